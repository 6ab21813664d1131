"""The console's forms of the gate: other values for what is proposed, reviews of broken glass, absences."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from engine.errors import CallerError, TwokeysError
from governance.commands.edit import Changed
from governance.web.auth import Session, dedupe_key
from governance.web.problems import status_of
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


def review(console: Any, visit: Any) -> Response:
    """POST /approvals/{approval}/review: whether it was justified to break the glass."""
    session, form = console.acting(visit), visit.form
    try:
        done = console.seams.gate.review.review(
            session.tenant,
            session.caller.actor,
            visit.params["approval"],
            form.get("how", ""),
            form.get("reason", ""),
            "console",
        )
    except TwokeysError as refused:
        return _response(console.approval(visit, (False, _sentence(refused)), status_of(refused)))
    return _response(console.approval(visit, (True, done.sentence)))


def away(console: Any, visit: Any) -> Response:
    """POST /people/away: away until a day, with who stands in; or back."""
    session, form = console.acting(visit), visit.form
    try:
        if form.get("what") == "back":
            console.seams.gate.absent.back(session.tenant, session.caller.actor, form.get("person", ""))
        else:
            console.seams.gate.absent.away(
                session.tenant, session.caller.actor, form.get("person", ""), _day(form.get("until", "")),
                delegate=form.get("delegate", ""),
            )  # fmt: skip
    except TwokeysError as refused:
        return _response(console.people(visit, _sentence(refused), status_of(refused)))
    return RedirectResponse("/people", 303)


def _day(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time(), datetime.UTC)
    except ValueError:
        raise CallerError("a day is needed, for example 2026-12-01", code="invalid_body", field="until") from None


def _sentence(error: TwokeysError) -> str:
    text = error.reason[:1].upper() + error.reason[1:]
    return text if text.endswith(".") else text + "."


def _response(made: Any) -> Response:
    assert isinstance(made, Response)
    return made
