"""What a journal says must not be done again: the recovery index, and the check of an exported journal.

The index is fed entry by entry, so that taking up new entries costs as much as there are new ones. It reads results,
never rules: a journal is checked by `engine.journal.history` when it is loaded, or here by `check_line`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import CallerError
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitSignal, Entry, Exported
from engine.journal.invariants import guards, violations
from engine.journal.status import RUNNING, Blocked, Status, name, statuses, step


@dataclass(slots=True)
class JoinIndex:
    """One join set: its members as submitted, and the members whose results were taken, both in order."""

    submitted: list[PromiseId] = field(default_factory=list)
    awaited: list[PromiseId] = field(default_factory=list)


@dataclass(slots=True)
class Recovery:
    """Everything that a replay looks up instead of doing it, and what it finds open."""

    version: int = 0
    status: Status = RUNNING
    next_child: int = 0
    cached: dict[PromiseId, str | int] = field(default_factory=dict)
    resolved: set[PromiseId] = field(default_factory=set)  # what can end a wait: not random values and times
    signals: set[PromiseId] = field(default_factory=set)
    open_invokes: dict[PromiseId, ev.InvokeScheduled] = field(default_factory=dict)
    open_timers: dict[PromiseId, ev.TimerScheduled] = field(default_factory=dict)
    buffered: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    join_sets: dict[PromiseId, JoinIndex] = field(default_factory=dict)

    def take(self, entries: Iterable[Entry]) -> Recovery:
        """Take up the entries that follow those taken so far."""
        for entry in entries:
            self._take(entry.event)
            self.status = step(self.status, entry.event)
            self.version += 1
        return self

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.InvokeScheduled():
                self.open_invokes[event.promise_id] = event
                self.next_child += 1
            case ev.InvokeCompleted():
                self.cached[event.promise_id] = event.result
                self.resolved.add(event.promise_id)
                self.open_invokes.pop(event.promise_id, None)
            case ev.RandomGenerated():
                self.cached[event.promise_id] = event.value
                self.next_child += 1
            case ev.TimeRecorded():
                self.cached[event.promise_id] = event.time
                self.next_child += 1
            case ev.TimerScheduled():
                self.open_timers[event.promise_id] = event
                self.next_child += 1
            case ev.TimerFired():
                self.cached[event.promise_id] = ""
                self.resolved.add(event.promise_id)
                self.open_timers.pop(event.promise_id, None)
            case ev.SignalDelivered():
                self.buffered.setdefault(event.signal_name, []).append((event.delivery_id, event.payload))
            case ev.SignalReceived():
                self.cached[event.promise_id] = event.payload
                self.resolved.add(event.promise_id)
                self.signals.add(event.promise_id)
                self.next_child += 1
                waiting = self.buffered.pop(event.signal_name, [])
                if left := [signal for signal in waiting if signal[0] != event.delivery_id]:
                    self.buffered[event.signal_name] = left
            case ev.JoinSetCreated():
                self.join_sets[event.join_set_id] = JoinIndex()
                self.next_child += 1
            case ev.JoinSetSubmitted():
                self.join_sets.setdefault(event.join_set_id, JoinIndex()).submitted.append(event.promise_id)
            case ev.JoinSetAwaited():
                self.join_sets.setdefault(event.join_set_id, JoinIndex()).awaited.append(event.promise_id)

    @property
    def can_resume(self) -> bool:
        """True when the run is blocked and what it waits for is there."""
        if not isinstance(self.status, Blocked):
            return False
        if isinstance(self.status.kind, AwaitSignal):
            return self.status.kind.promise_id in self.signals
        if self.status.kind == "Any":
            return not self.resolved.isdisjoint(self.status.waiting_on)
        return self.status.waiting_on <= self.resolved


def recover(entries: Iterable[Entry]) -> Recovery:
    """The recovery index of a journal."""
    return Recovery().take(entries)


# --- twokeys journal check --------------------------------------------------------------------------------------------


def check(exported: Exported, *, named_only: bool = False) -> dict[str, Any]:
    """The findings about one exported journal; guards are looked at only when no named invariant is broken."""
    violates = violations(exported.entries, stored=exported.stored_status)
    broken = [] if violates or named_only else guards(exported.entries, exported.execution)
    words = [name(status) for status in statuses(exported.entries)]
    return {
        "valid": not violates and not broken,
        "violates": violates,
        "guards": broken,
        "status": words[-1] if words else None,
        "statuses": words,
    }


def check_line(line: str | bytes, *, named_only: bool = False) -> dict[str, Any]:
    """What `twokeys journal check` prints for one input line; a line that cannot be read is invalid and says why."""
    try:
        return check(ev.from_json(line), named_only=named_only)
    except CallerError as error:
        unread = {"valid": False, "violates": [], "guards": [], "status": None, "statuses": []}
        return {**unread, "error": str(error)}
