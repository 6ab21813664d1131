"""Operator tasks: what is wrong outside a run that a person can put right; the run waits, and goes on when they say so (C-44)."""

from __future__ import annotations

import datetime
from typing import Any

from engine.canonical import encode
from engine.kernel import Signalled
from engine.ledger.entries import stamp
from engine.limits import approval_seconds_max, approval_seconds_min, task_text_chars_max, task_title_chars_max
from engine.program.form import OPERATORS, form_from
from governance.store import tasks
from governance.store.case import Case

GO_ON, GIVE_UP = "Go on", "Give up"
QUESTION = "what_now"


def signal(promise: str) -> str:
    """The signal by which an answer wakes the operation; how many there were tells one question from the next."""
    return f"operator:{promise}"


def open_task(case: Case, promise: str) -> str:
    """The question that an operation waits with, or would ask next."""
    n = case.history.deliveries(signal(promise))
    return tasks.id_of(case.origin.run, f"{promise}/operator/{n}")


def ask(case: Case, promise: str, error_class: str, message: str, mend: str) -> None:
    """Tell an operator what is wrong and what to do; the operation waits until they say go on, and no longer than its deadline."""
    row = case.promises[promise]
    seconds = (row.deadline_at - case.now).total_seconds() if row.deadline_at else float(approval_seconds_max)
    seconds = min(max(seconds, approval_seconds_min), approval_seconds_max)
    until = case.now + datetime.timedelta(seconds=seconds)
    value: dict[str, Any] = {
        "form": {
            "title": f"Mend what “{row.step}” met: {error_class}"[:task_title_chars_max],
            "text": f"{row.tool} met {error_class}: {message}\n\nWhat to do: {mend}. Then say “{GO_ON}”: it is judged again first. "
            f"“{GIVE_UP}” fails the step."[:task_text_chars_max],
            "fields": [{"name": QUESTION, "label": "What now?", "kind": "choice", "options": [GO_ON, GIVE_UP]}],
            "groups": [OPERATORS],
            "deadline_s": int(seconds),
        },
        "sign_off": None,
    }  # fmt: skip
    task, form = open_task(case, promise), form_from(value)
    case.add(
        "task", task=task, promise=promise, form_digest=form.digest,
        body=encode({**value, "operator": {"error_class": error_class, "message": message}}), groups=list(form.groups),
        asked_at=case.now, expires_at=until,
    )  # fmt: skip
    case.add("card", approval=task)
    case.add("due", kind="task", ref=task, at=until)
    case.show_card(task)
    case.show_card(row.approval)
    case.touch(promise, state=tasks.WAITING, last_error=f"{error_class}: {message}"[:500], next_eligible_at=None)
    case.state = tasks.WAITING
    case.note(
        "operator.asked",
        {"task": task, "promise": promise, "step": row.step, "error_class": error_class, "expires_at": stamp(until)},
    )


def go_on(case: Case, promise: str) -> None:
    """It is mended, they say: the operation is judged again as if nothing had been wrong, and its time begins now."""
    case.accept(Signalled(signal(promise), "go_on"))
    case.touch(promise, state="ready", deadline_at=None, last_error="")
    case.state = "running"
    case.put_work(promise, "judge")


def give_up(case: Case, promise: str, why: str, error_class: str, message: str) -> None:
    """Nobody mends it: the operation fails with what it met."""
    case.accept(Signalled(signal(promise), why))
    case.finish(promise, ok=False, error_class=error_class, message=message)
    case.put_work("", "advance")
