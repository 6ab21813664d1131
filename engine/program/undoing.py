"""Undoes what a run did, the newest first: by the connector's inverse where it has one, else by asking a person."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import BrokenJournal
from engine.limits import approval_seconds_max, approval_seconds_min
from engine.program.definition import Definition
from engine.program.form import OPERATORS
from engine.program.kinds import ActionStep
from engine.program.orders import AskPerson, Propose, Turn
from engine.program.snapshot import Frame

UNDONE = "It is undone"


def begin_undo(definition: Definition, frame: Frame) -> Frame:
    """What succeeded and changed something is undone, the newest first; then the run fails with what went wrong."""
    undo = [pair for pair in reversed(frame.done) if _doer(definition, pair).reversal != "skip"]
    return replace(frame, undo=undo, done=[])


def next_undo(definition: Definition, frame: Frame) -> Turn:
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


def undone(definition: Definition, frame: Frame, ok: bool, value: Any, error_class: str, message: str) -> Frame:
    """One is undone and the next follows; one that could not be undone ends it, and the run says which."""
    step = _doer(definition, frame.undo[0])
    if ok and (step.reversal != "person" or value == {"what_now": UNDONE}):
        return replace(frame, waiting=None, undo=frame.undo[1:])
    why = f"{error_class}: {message}" if not ok else "a person said that it cannot be undone"
    left = ", ".join(_doer(definition, pair).id for pair in frame.undo)
    text = f"{frame.error}; undoing stopped at step {step.id!r} ({why}); still done: {left}"
    return replace(frame, waiting=None, undo=[], error_class="reversal_failed", error=f"{frame.error_class}: {text}")


def _doer(definition: Definition, pair: list[int]) -> ActionStep:
    step = definition.flat[pair[1]].step if pair[1] < len(definition.flat) else None
    if not isinstance(step, ActionStep):
        raise BrokenJournal("frame", f"the frame undoes step {pair[1]}, which is no action")
    return step


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
