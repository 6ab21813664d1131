"""Amend: begin a draft of the policy, edit it, give it up; nothing here changes what is in force."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.catalog.draft import Draft, rebased
from engine.errors import CallerError
from engine.kernel import CancelAsked
from engine.ledger.entries import Fact
from governance.commands.authority import Actor, allowed
from governance.store import cases, changes, drafts, entries, templates, withdrawing
from governance.store.unit import Database, Unit

_name = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Amended:
    """What became of a draft."""

    draft: str
    n: int
    base_revision: str
    content: Draft


class Amend:
    """Orders about drafts. `starting` gives the draft that says exactly what a revision says."""

    def __init__(self, database: Database, starting: Callable[[str, str], Draft]) -> None:
        self._database = database
        self._starting = starting

    def begin(self, tenant: str, actor: Actor, name: str) -> Amended:
        """A new draft that says what the policy in force says."""
        if not _name.fullmatch(name):
            raise CallerError("is lower case letters, digits and -, beginning with a letter", field="draft")
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "policy")
            base = templates.active_revision(unit)
        content = self._starting(tenant, base)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            drafts.create(unit, name, base, person.person, content)
            body = {"draft": name, "n": 1, "base_revision": base, "draft_sha256": content.digest.hex()}
            entries.note(unit, f"policy/{name}", Fact("policy.drafted", _person(person.person), body))
        return Amended(name, 1, base, content)

    def edit(self, tenant: str, actor: Actor, name: str, content: Draft) -> Amended:
        """The draft says this from now on; who said it is kept, because an author may not approve it."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            before = drafts.load(unit, name)
            n = drafts.edit(unit, name, person.person, content)
            if n != before.n:
                # What people were asked about is not what there is any more.
                _void(unit, name, person.person)
                body = {
                    "draft": name, "n": n, "base_revision": before.base_revision, "draft_sha256": content.digest.hex(),
                }  # fmt: skip
                entries.note(unit, f"policy/{name}", Fact("policy.drafted", _person(person.person), body))
        return Amended(name, n, before.base_revision, content)

    def rebase(self, tenant: str, actor: Actor, name: str) -> Amended:
        """The draft with what came into force since it was begun; refused when both changed the same."""
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "policy")
            before, live = drafts.load(unit, name), templates.active_revision(unit)
        if before.base_revision == live:
            return Amended(name, before.n, live, before.draft)
        content = rebased(self._starting(tenant, before.base_revision), self._starting(tenant, live), before.draft)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            n = drafts.edit(unit, name, person.person, content)
            drafts.rebase(unit, name, live)
            _void(unit, name, person.person)
            body = {"draft": name, "n": n, "base_revision": live, "draft_sha256": content.digest.hex()}
            entries.note(unit, f"policy/{name}", Fact("policy.drafted", _person(person.person), body))
        return Amended(name, n, live, content)

    def withdraw(self, tenant: str, actor: Actor, name: str) -> None:
        """Nobody goes on with this draft."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            drafts.close(unit, name, "withdrawn")
            _void(unit, name, person.person)
            entries.note(unit, f"policy/{name}", Fact("policy.withdrawn", _person(person.person), {"draft": name}))

    def shadow(self, tenant: str, actor: Actor, name: str, on: bool) -> None:
        """Judge a draft beside the policy in force, without any effect; or no longer."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            drafts.set_shadow(unit, name, on)
            body = {"draft": name, "change": "on" if on else "off"}
            entries.note(unit, f"policy/{name}", Fact("policy.shadowed", _person(person.person), body))


def _void(unit: Unit, name: str, person: str) -> None:
    """Whatever asks for this draft is withdrawn, keys and all; what has its keys already finds the edit when it looks again."""
    for run in changes.open_runs_of_draft(unit, name):
        case = cases.load(unit, run, lock=True)
        if not case.ended and not case.cancel_requested:
            withdrawing.cancel(unit, case, CancelAsked(f"person:{person}"))
            cases.commit(unit, case, ())


def _person(person: str) -> dict[str, str]:
    return {"type": "person", "id": person}
