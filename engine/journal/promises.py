"""What a history holds for each promise: an invocation, a timer, a join set, or the event that recorded a value."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from engine.ids import PromiseId
from engine.journal.events import (
    AwaitKind,
    InvokeScheduled,
    JoinSetCreated,
    RandomGenerated,
    SignalReceived,
    TimeRecorded,
    TimerScheduled,
    event_value,
)


class Invoke(NamedTuple):
    """One invocation: its intent, how far it is, its result once it has one, and the join set that owns it."""

    scheduled: InvokeScheduled
    phase: Literal["scheduled", "started", "retrying", "completed"] = "scheduled"
    attempt: int = 0  # the newest attempt started
    result: str = ""
    retry_at: int = 0
    join_set: int = -1  # child number of the set
    consumed: bool = False


class Timer(NamedTuple):
    """One sleep."""

    scheduled: TimerScheduled
    fired: bool = False


class JoinSet(NamedTuple):
    """One join set: how many were submitted and how many results were taken."""

    created: JoinSetCreated
    submitted: int = 0
    awaited: int = 0


Held: TypeAlias = Invoke | Timer | JoinSet | SignalReceived | RandomGenerated | TimeRecorded


class Wait(NamedTuple):
    """What a blocked run waits for; `version` is the sequence of its ExecutionAwaiting, the identity of this wait."""

    waiting_on: frozenset[PromiseId]
    kind: AwaitKind
    version: int
    satisfied: bool


def result_of(held: Held | None) -> str | int | None:
    """The recorded value that replay gives; None while there is none. A fired timer gives ""."""
    match held:
        case Invoke(phase="completed"):
            return held.result
        case SignalReceived():
            return held.payload
        case RandomGenerated():
            return held.value
        case TimeRecorded():
            return held.time
        case Timer(fired=True):
            return ""
    return None


def resolves(held: Held | None, kind: AwaitKind) -> bool:
    """True when what is held ends a wait of this kind for its promise; a wait for a signal ends by that signal only."""
    if type(held) is SignalReceived:
        return True
    if not isinstance(kind, str):
        return False
    return (type(held) is Invoke and held.phase == "completed") or (type(held) is Timer and held.fired)


def held_value(held: Held) -> list[Any]:
    """What is held as a plain value with a canonical form."""
    if isinstance(held, Invoke):
        return ["invoke", event_value(held.scheduled), *held[1:]]
    if isinstance(held, Timer):
        return ["timer", event_value(held.scheduled), held.fired]
    if isinstance(held, JoinSet):
        return ["join_set", event_value(held.created), *held[1:]]
    return ["value", event_value(held)]
