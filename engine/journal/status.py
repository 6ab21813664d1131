"""The status of a run as the fold of its journal, and every other document's word for it as a projection.

Nothing else may say what a run's status is: the words of the queue, of the instance list and of the kernel are pure
functions of this fold and of the work that is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import BrokenJournal, CallerError
from engine.ids import PromiseId
from engine.journal.events import (
    AwaitKind,
    AwaitSignal,
    CancelRequested,
    Entry,
    Event,
    ExecutionAwaiting,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionFailed,
    ExecutionResumed,
    ExecutionStarted,
    event_from,
    event_value,
)


@dataclass(frozen=True, slots=True)
class Running:
    """The program is executing."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The program waits for these promises."""

    waiting_on: frozenset[PromiseId]
    kind: AwaitKind


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Cancellation was asked for; work in flight finishes."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Ended with a result."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Ended with an error."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Ended by cancellation."""


Status: TypeAlias = Running | Blocked | Cancelling | Completed | Failed | Cancelled

RUNNING = Running()
CANCELLING = Cancelling()
COMPLETED = Completed()
FAILED = Failed()
CANCELLED = Cancelled()
TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})

_SETS: dict[type[Event], Status] = {
    ExecutionStarted: RUNNING,
    ExecutionResumed: RUNNING,
    CancelRequested: CANCELLING,
    ExecutionCompleted: COMPLETED,
    ExecutionFailed: FAILED,
    ExecutionCancelled: CANCELLED,
}


def step(status: Status, event: Event) -> Status:
    """The status after one more event: seven types set it, thirteen leave it."""
    if type(event) is ExecutionAwaiting:
        return Blocked(event.waiting_on, event.kind)
    return _SETS.get(type(event), status)


def statuses(entries: Iterable[Entry]) -> list[Status]:
    """The status after each entry."""
    found: list[Status] = []
    status: Status = RUNNING
    for entry in entries:
        status = step(status, entry.event)
        found.append(status)
    return found


def fold(entries: Iterable[Entry]) -> Status:
    """The status of a journal; an empty journal has none."""
    found = statuses(entries)
    if not found:
        raise BrokenJournal("S-2", "an empty journal has no status")
    return found[-1]


def name(status: Status) -> str:
    """The status in one word of document 003."""
    return type(status).__name__


def to_value(status: Status) -> dict[str, Any]:
    """The tagged form: {"tag": ...}, with the wait as value while blocked."""
    if isinstance(status, Blocked):
        wait = event_value(ExecutionAwaiting(status.waiting_on, status.kind))
        return {"tag": "Blocked", "value": {"waiting_on": wait["waiting_on"], "kind": wait["kind"]}}
    return {"tag": name(status)}


def matches(stored: dict[str, Any], status: Status) -> bool:
    """True when a stored tagged status is this one; a Blocked without its wait is compared by tag only."""
    if type(stored.get("tag")) is not str or not set(stored) <= {"tag", "value"}:
        raise CallerError("is an object with a tag", code="journal_format", field="stored_status")
    if stored["tag"] != name(status):
        return False
    if not isinstance(status, Blocked) or "value" not in stored:
        return True
    value = stored["value"]
    if type(value) is not dict or set(value) != {"waiting_on", "kind"}:
        raise CallerError("has waiting_on and kind", code="journal_format", field="stored_status.value")
    wait = event_from({"type": "ExecutionAwaiting", **value}, "stored_status.value")
    return wait == ExecutionAwaiting(status.waiting_on, status.kind)


# --- projections (C-1) ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenWork:
    """What the projections need to know beside the fold."""

    started: bool = True
    approvals: frozenset[PromiseId] = frozenset()  # promises whose approval is open
    ready_or_leased: bool = False
    retry_ahead: bool = False  # an awaited invoke retries and its time has not come
    cancel_requested: bool = False
    timers: frozenset[PromiseId] = frozenset()  # timers that have not fired


def _ended_unstarted(status: Status | None, work: OpenWork) -> bool:
    # A run that is cancelled while it is queued never gets a journal; its cancellation is final at once.
    return status is None and not work.started and work.cancel_requested


def _waits_for_people(status: Status, work: OpenWork) -> bool:
    return isinstance(status, Blocked) and bool(status.waiting_on & work.approvals) and not work.ready_or_leased


def _waits_for_retry(status: Status, work: OpenWork) -> bool:
    return isinstance(status, Blocked) and work.retry_ahead and not work.approvals and not work.ready_or_leased


def run_word(status: Status | None, work: OpenWork) -> str:
    """Document 004: queued, running, waiting_approval, failed_retryable, succeeded, failed_terminal, canceled."""
    if status is None:
        return "canceled" if _ended_unstarted(status, work) else "queued"
    if _waits_for_people(status, work):
        return "waiting_approval"
    if _waits_for_retry(status, work):
        return "failed_retryable"
    ended: dict[Status, str] = {COMPLETED: "succeeded", FAILED: "failed_terminal", CANCELLED: "canceled"}
    return ended.get(status, "running")


def instance_word(status: Status | None, work: OpenWork) -> str:
    """Document 000: queued, running, completed, failed, cancelled."""
    if status is None:
        return "cancelled" if _ended_unstarted(status, work) else "queued"
    return name(status).lower() if status in TERMINAL else "running"


def model_word(status: Status | None, work: OpenWork) -> str:
    """Document 001: Running, the five WaitingFor..., Cancelling, Completed, Failed, Cancelled; empty before the start."""
    if status is None:
        return "Cancelled" if _ended_unstarted(status, work) else ""
    if not isinstance(status, Blocked):
        return name(status)
    if _waits_for_people(status, work):
        return "WaitingForTaskCompletion"
    if _waits_for_retry(status, work):
        return "WaitingForRetry"
    if isinstance(status.kind, AwaitSignal):
        return "WaitingForTaskCompletion" if status.kind.name.startswith("task:") else "WaitingForSignal"
    return "WaitingForTimer" if status.waiting_on & work.timers else "WaitingForChild"


def kernel_word(status: Status | None, work: OpenWork) -> str:
    """Document 002: running, waiting, completed, failed; empty before the start."""
    if status is None:
        return "failed" if _ended_unstarted(status, work) else ""
    if isinstance(status, Blocked | Cancelling):
        return "waiting"
    return "failed" if status == CANCELLED else name(status).lower()
