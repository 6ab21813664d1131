"""Evaluates what a step says, and names the part of the step that gives no value that can stand there."""

from __future__ import annotations

import datetime
import re
from typing import Any

from engine.errors import CallerError
from engine.ids import check_ident
from engine.program import formula
from engine.program.expression import ExprError, Scope, admit, compile_condition
from engine.program.kinds import ActionStep, CompleteStep, FailStep, TaskStep, WaitStep
from engine.program.orders import AskPerson, Complete, Fail, Propose, Sleep

wait_seconds_max = 366 * 86_400
_key = re.compile(r"[\x21-\x7e]{1,512}")
_epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_micro = datetime.timedelta(microseconds=1)


def named(name: str, each: formula.Formula, scope: Scope) -> Any:
    """The value of this part."""
    try:
        return formula.evaluate(each, scope)
    except ExprError as error:
        raise ExprError(f"{name}: {error.message}", error.line, error.col) from None


def text(name: str, each: formula.Formula, scope: Scope) -> str:
    """The value of this part where only text can stand."""
    try:
        return formula.as_text(formula.evaluate(each, scope))
    except ExprError as error:
        raise ExprError(f"{name}: {error.message}", error.line, error.col) from None


def holds(name: str, source: str, scope: Scope) -> bool:
    """Whether this condition holds."""
    try:
        return compile_condition(source).holds(scope)
    except ExprError as error:
        raise ExprError(f"{name}: {error.message}", error.line, error.col) from None


def proposal(step: ActionStep, at: int, child: int, scope: Scope) -> Propose:
    """The side effect that an action step wants, every expression in it evaluated."""
    target = {"type": text("target.type", step.target_type, scope), "id": text("target", step.target_id, scope)}
    for name, value in target.items():
        try:
            check_ident(value, f"target.{name}")
        except CallerError as error:
            raise ExprError(str(error)) from None
    amount = 0
    if step.amount is not None:
        amount = named("amount", step.amount, scope)
        if type(amount) is not int or amount < 0:
            raise ExprError("amount: a whole number of the smallest unit, 0 or more, can stand here")
    key = "" if step.key is None else text("key", step.key, scope)
    if step.key is not None and not _key.fullmatch(key):
        raise ExprError(f"key: {key[:40]!r} is not a key; use 1-512 printable ASCII characters without spaces")
    return Propose(
        child=child,
        step_id=step.id,
        step_index=at,
        connector=step.connector,
        operation=step.operation,
        target=target,
        fields={name: text(f"fields.{name}", each, scope) for name, each in step.fields},
        amount_minor=amount,
        currency=step.currency,
        risk=step.risk,
        key=key,
        result=step.result,
        deadline_s=step.deadline_s,
        max_attempts=step.max_attempts,
    )


def question(step: TaskStep, at: int, child: int, scope: Scope) -> AskPerson:
    """The form that a task step puts before people."""
    form = named("form", step.form, scope)
    if type(form) is not dict:
        raise ExprError("form: a map can stand here")
    return AskPerson(child, form, step.id, at, named("sign_off", step.sign_off, scope))


def pause(step: WaitStep, child: int, scope: Scope) -> Sleep:
    """How long, or until when, a wait step waits."""
    if step.seconds is not None:
        seconds = named("seconds", step.seconds, scope)
        if type(seconds) is not int or not 0 <= seconds <= wait_seconds_max:
            raise ExprError(f"seconds: a whole number from 0 to {wait_seconds_max} can stand here")
        return Sleep(child, seconds * 1_000_000)
    assert step.until is not None
    return Sleep(child, 0, moment(text("until", step.until, scope)))


def moment(written: str) -> int:
    """A moment as microseconds after 1970."""
    try:
        found = datetime.datetime.fromisoformat(written)
        if found.tzinfo is None:
            raise ValueError
        micros = (found - _epoch) // _micro
    except (ValueError, OverflowError):
        raise ExprError(f"until: {written[:40]!r} is not a moment; write it as 2026-08-21T10:00:00Z") from None
    if micros <= 0:
        raise ExprError(f"until: {written[:40]!r} is before 1970")
    return micros


def applies(step: CompleteStep | FailStep, scope: Scope) -> bool:
    """Whether the run ends here."""
    return not step.when or holds("when", step.when, scope)


def end(step: CompleteStep | FailStep, scope: Scope) -> Complete | Fail:
    """What the run ends with."""
    if isinstance(step, FailStep):
        return Fail(step.error_class, text("message", step.message, scope))
    value = named("result", step.result, scope)
    try:
        admit(value)
    except ExprError as error:
        raise ExprError(f"result: {error.message}") from None
    return Complete(value)
