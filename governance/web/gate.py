"""What forms of the console say about a request: other values for what is proposed, read against what the page showed."""

from __future__ import annotations

from collections.abc import Mapping

from governance.commands.edit import Changed
from governance.web.auth import Session, dedupe_key
from governance.web.questions import Question

_field = "field."


def changed(session: Session, question: Question, form: Mapping[str, str]) -> Changed:
    """What the form changes; bound to the page that it came from, like a decision."""
    approval = question.record.approval
    given = {one.name: _lines(one.value) for one in question.found.action.fields}
    values = {name.removeprefix(_field): text for name, text in form.items() if name.startswith(_field)}
    # A browser sends every line end as two characters; what was not changed must not look changed.
    moved = {name: text for name, text in values.items() if _lines(text) != given.get(name, "")}
    digest16 = form.get("digest16", "") if form.get("shown", "") == question.shown else ""
    once = dedupe_key("console", session.caller, f"{approval}/edit", form.get("once", ""))
    return Changed(
        session.tenant, approval, session.caller.actor, digest16, moved, form.get("reason", "").strip(), "console",
        dedupe_key=once,
    )  # fmt: skip


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")
