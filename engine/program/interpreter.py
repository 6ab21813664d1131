"""Runs a definition from one durable wait to the next: pure, so that the same frame always gives the same turn."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import BrokenJournal, CallerError, StaleWake
from engine.ids import check_ident
from engine.limits import approval_seconds_max, approval_seconds_min
from engine.program import formula
from engine.program.definition import ActionStep, AssignStep, CompleteStep, Definition, FailStep, Placed
from engine.program.expression import ExprError, Scope, admit, check_size, compile_condition
from engine.program.form import OPERATORS
from engine.program.snapshot import Frame

_key = re.compile(r"[\x21-\x7e]{1,512}")
# Time was up: of a call, of people who were asked, or of the step before it could be tried again.
TIMEOUTS = ("timeout", "approval_expired", "deadline")
UNDONE = "It is undone"
_bad_result = "bad_result"
_expression_error = "expression_error"


@dataclass(frozen=True, slots=True)
class Context:
    """What a run is, fixed at its start; expressions see it as `run`, `trigger` and `input`."""

    tenant: str
    workspace: str
    run: str
    workflow: str
    version: str
    started_at: str  # RFC 3339
    trigger: dict[str, str]  # type, ref
    input: dict[str, Any]
    business_reference: str = ""

    def roots(self) -> dict[str, Any]:
        """The roots that never change during a run."""
        return {
            "input": self.input,
            "trigger": self.trigger,
            "run": {
                "id": self.run,
                "tenant": self.tenant,
                "workspace": self.workspace,
                "workflow": self.workflow,
                "version": self.version,
                "started_at": self.started_at,
                "business_reference": self.business_reference,
            },
        }


RUN_NAMES = ("id", "tenant", "workspace", "workflow", "version", "started_at", "business_reference")
TRIGGER_NAMES = ("type", "ref")


@dataclass(frozen=True, slots=True)
class Propose:
    """The program wants this done and waits for the outcome; every expression in it has been evaluated."""

    child: int
    step_id: str
    step_index: int
    connector: str
    operation: str
    target: dict[str, str]  # type, id
    fields: dict[str, str]
    amount_minor: int
    currency: str
    risk: str
    key: str  # empty: the connector's template decides
    result: str
    deadline_s: int
    max_attempts: int
    reverses: str = ""  # the operation whose effect is to be undone; its fields are then those of before it


@dataclass(frozen=True, slots=True)
class AskPerson:
    """The program wants a person to undo what no connector can, and waits for what they say."""

    child: int
    form: dict[str, Any]
    step_id: str
    step_index: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The program has ended and gives this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The program has ended without success."""

    error_class: str
    message: str


Outcome = Propose | AskPerson | Complete | Fail


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to a wait or to the end: where the run stands now, and what follows."""

    frame: Frame
    outcome: Outcome


def begin() -> Frame:
    """Before the first step."""
    return Frame()


def run_to_wait(definition: Definition, frame: Frame, context: Context) -> Turn:
    """Go on from this frame until something must be done outside, or the program ends."""
    if frame.waiting is not None:
        raise StaleWake(f"the run waits for its operation {frame.waiting}; deliver that outcome first")
    flat = definition.flat
    if frame.step > len(flat):
        raise BrokenJournal("frame", f"the frame is at step {frame.step} of {len(flat)}")
    if frame.undo:
        return _undo(definition, frame)
    if frame.error_class:
        return Turn(frame, Fail(frame.error_class, frame.error))
    at, state = frame.step, dict(frame.state)
    roots = {**context.roots(), "steps": frame.steps, "state": state}
    if frame.caught:
        roots["run"] = {**roots["run"], "error": frame.caught}
    where = "the input"
    try:
        size = admit(roots, -2)  # two levels around the values: the roots and the names in them
        while at < len(flat):
            step = flat[at].step
            where = f"step {step.id!r}"
            check_size(size)
            scope = Scope(roots)
            if isinstance(step, AssignStep):
                values = {name: _named(name, each, scope) for name, each in step.values}
                size += sum(admit(value) - admit(state.get(name)) for name, value in values.items())
                # A new map, because the scope of a step shows the state as it was before that step.
                state = {**state, **values}
                roots["state"] = state
            elif isinstance(step, ActionStep):
                proposal = _propose(step, at, frame.next_child, scope)
                after = replace(frame, step=at, state=state, next_child=frame.next_child + 1, waiting=frame.next_child)
                return Turn(after, proposal)
            elif _applies(step, scope):
                return Turn(replace(frame, step=at, state=state), _end(step, scope))
            at = flat[at].next
        return Turn(replace(frame, step=at, state=state), Complete({}))
    except ExprError as error:
        return Turn(replace(frame, step=at, state=state), Fail(_expression_error, f"{where}: {error.message}"))


def deliver(
    definition: Definition, frame: Frame, ok: bool, value: Any = None, error_class: str = "", message: str = ""
) -> Frame:
    """The waiting step gets its outcome; a failure, or a result that expressions cannot read, ends the run at its next turn."""
    if frame.waiting is None:
        raise StaleWake("the run waits for no operation")
    if frame.undo:
        return _undone(definition, frame, ok, value, error_class, message)
    here = definition.flat[frame.step] if frame.step < len(definition.flat) else None
    if here is None or not isinstance(here.step, ActionStep):
        raise BrokenJournal("frame", f"the frame waits at step {frame.step}, which is no action")
    step = here.step
    if not ok:
        return _failed(definition, frame, here, error_class or "failed", message)
    steps, done = frame.steps, frame.done
    if step.result:
        try:
            admit(value)
        except ExprError as error:
            message = f"step {step.id!r}: the result cannot be used: {error.message}"
            return replace(frame, waiting=None, error_class=_bad_result, error=message)
        steps = {**steps, step.result: value}
    if definition.reverses:
        done = [*done, [frame.waiting, frame.step]]
    at = here.success if here.success >= 0 else here.next
    return replace(frame, step=at, steps=steps, waiting=None, done=done)


def _failed(definition: Definition, frame: Frame, here: Placed, error_class: str, message: str) -> Frame:
    """A branch of its author's deals with the failure, or what was done before is undone, or the run fails."""
    assert isinstance(here.step, ActionStep)
    at = here.timeout if error_class in TIMEOUTS and here.timeout >= 0 else here.failure
    if at >= 0:
        caught = {"step": here.step.id, "error_class": error_class, "message": message}
        return replace(frame, step=at, waiting=None, caught=caught)
    failed = replace(frame, waiting=None, error_class=error_class, error=message)
    return _begin_undo(definition, failed) if here.step.undoes else failed


# --- undoing what was done ----------------------------------------------------------------------------------------


def _begin_undo(definition: Definition, frame: Frame) -> Frame:
    """What succeeded and changed something is undone, the newest first; then the run fails with what went wrong."""
    undo = [pair for pair in reversed(frame.done) if _doer(definition, pair).reversal != "skip"]
    return replace(frame, undo=undo, done=[])


def _doer(definition: Definition, pair: list[int]) -> ActionStep:
    step = definition.flat[pair[1]].step if pair[1] < len(definition.flat) else None
    if not isinstance(step, ActionStep):
        raise BrokenJournal("frame", f"the frame undoes step {pair[1]}, which is no action")
    return step


def _undo(definition: Definition, frame: Frame) -> Turn:
    """The next of it: an action of its own where the connector has an inverse, else a person is asked."""
    child, at = frame.undo[0]
    step = _doer(definition, frame.undo[0])
    after = replace(frame, next_child=frame.next_child + 1, waiting=frame.next_child)
    way, _, operation = step.reversal.partition(":")
    if way != "by":
        return Turn(after, AskPerson(frame.next_child, _by_hand(step, child, frame.error), f"undo-{step.id}"[:63], at))
    return Turn(
        after,
        Propose(
            child=frame.next_child, step_id=f"undo-{step.id}"[:63], step_index=at, connector=step.connector, operation=operation,
            target={"type": "-", "id": "-"}, fields={}, amount_minor=0, currency="", risk=step.risk, key="", result="",
            deadline_s=step.deadline_s, max_attempts=step.max_attempts, reverses=str(child),
        ),
    )  # fmt: skip


def _by_hand(step: ActionStep, child: int, why: str) -> dict[str, Any]:
    text = (
        f"The run failed: {why[:500]}\n\nWhat “{step.id}” did by {step.connector}.{step.operation} (operation {child} of the run) "
        "is to be undone, and no connector can do that. Undo it by hand, then say so; the run's page shows what was done."
    )
    return {
        "title": f"Undo “{step.id}” by hand",
        "text": text,
        "fields": [{"name": "what_now", "label": "What now?", "kind": "choice", "options": [UNDONE, "It cannot be undone"]}],
        "groups": [OPERATORS],
        "deadline_s": min(max(step.deadline_s, approval_seconds_min), approval_seconds_max),
    }  # fmt: skip


def _undone(definition: Definition, frame: Frame, ok: bool, value: Any, error_class: str, message: str) -> Frame:
    """One is undone and the next follows; one that could not be undone ends it, and the run says which."""
    step = _doer(definition, frame.undo[0])
    if ok and (step.reversal != "person" or value == {"what_now": UNDONE}):
        return replace(frame, waiting=None, undo=frame.undo[1:])
    why = f"{error_class}: {message}" if not ok else "a person said that it cannot be undone"
    left = ", ".join(_doer(definition, pair).id for pair in frame.undo)
    text = f"{frame.error}; undoing stopped at step {step.id!r} ({why}); still done: {left}"
    return replace(frame, waiting=None, undo=[], error_class="reversal_failed", error=f"{frame.error_class}: {text}")


def _named(name: str, each: formula.Formula, scope: Scope) -> Any:
    try:
        return formula.evaluate(each, scope)
    except ExprError as error:
        raise ExprError(f"{name}: {error.message}", error.line, error.col) from None


def _text(name: str, each: formula.Formula, scope: Scope) -> str:
    try:
        return formula.as_text(formula.evaluate(each, scope))
    except ExprError as error:
        raise ExprError(f"{name}: {error.message}", error.line, error.col) from None


def _propose(step: ActionStep, at: int, child: int, scope: Scope) -> Propose:
    target = {"type": _text("target.type", step.target_type, scope), "id": _text("target", step.target_id, scope)}
    for name, value in target.items():
        try:
            check_ident(value, f"target.{name}")
        except CallerError as error:
            raise ExprError(str(error)) from None
    amount = 0
    if step.amount is not None:
        amount = _named("amount", step.amount, scope)
        if type(amount) is not int or amount < 0:
            raise ExprError("amount: a whole number of the smallest unit, 0 or more, can stand here")
    key = "" if step.key is None else _text("key", step.key, scope)
    if step.key is not None and not _key.fullmatch(key):
        raise ExprError(f"key: {key[:40]!r} is not a key; use 1-512 printable ASCII characters without spaces")
    return Propose(
        child=child,
        step_id=step.id,
        step_index=at,
        connector=step.connector,
        operation=step.operation,
        target=target,
        fields={name: _text(f"fields.{name}", each, scope) for name, each in step.fields},
        amount_minor=amount,
        currency=step.currency,
        risk=step.risk,
        key=key,
        result=step.result,
        deadline_s=step.deadline_s,
        max_attempts=step.max_attempts,
    )


def _applies(step: CompleteStep | FailStep, scope: Scope) -> bool:
    if not step.when:
        return True
    try:
        return compile_condition(step.when).holds(scope)
    except ExprError as error:
        raise ExprError(f"when: {error.message}", error.line, error.col) from None


def _end(step: CompleteStep | FailStep, scope: Scope) -> Complete | Fail:
    if isinstance(step, FailStep):
        return Fail(step.error_class, _text("message", step.message, scope))
    value = _named("result", step.result, scope)
    try:
        admit(value)
    except ExprError as error:
        raise ExprError(f"result: {error.message}") from None
    return Complete(value)
