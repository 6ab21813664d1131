"""Who wrote the rules: the last author of each rule that sets the tier of a verdict, found through the drafts it was published by."""

from __future__ import annotations

from engine.catalog.draft import Draft, draft_from, passage
from engine.gate.action import TIERS
from engine.gate.verdict import Verdict
from governance.store import drafts, gates
from governance.store.unit import Unit

_back_max = 200  # published drafts that are looked through; a rule that is older has no author who is still asked about


def authors(unit: Unit, revision: str, verdict: Verdict) -> tuple[str, ...]:
    """The people who last changed a rule that asks for this at its tier; nobody where the tenant has switched that off.

    A rule that came with the product, or that nobody has changed since, has no author.
    """
    if verdict.tier == TIERS[0] or not gates.of(unit).rule_author:
        return ()
    found = (_author(unit, revision, reason.code) for reason in verdict.reasons)
    return tuple(dict.fromkeys(author for author in found if author))


def _author(unit: Unit, revision: str, code: str) -> str:
    for _ in range(_back_max):
        draft = drafts.published_as(unit, revision)
        if draft is None:
            return ""
        author = _changed_by(drafts.edits(unit, draft.name), code)
        if author:
            return author
        revision = draft.base_revision
    return ""


def _changed_by(edits: list[tuple[str, bytes]], code: str) -> str:
    """Of the edits of a draft, oldest first and the first of them a copy of what was in force, who made the newest that changed it."""
    author, before = "", ""
    for n, (who, body) in enumerate(edits):
        draft: Draft = draft_from(body)
        said = passage(draft, code)
        if n and said != before:
            author = who
        before = said
    return author
