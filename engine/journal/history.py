"""The append-only history of one run: what may be appended next, and everything the next decision needs to know.

`append` enforces the named invariants (S, SE, CF, JS) and the guards G-01..G-20 in constant time and changes nothing
when it refuses. `engine.journal.invariants` says the same about whole journals, written apart: each tests the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from engine.errors import BrokenJournal
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitSignal, Entry, Event
from engine.journal.promises import Held, Invoke, JoinSet, Timer, Wait, held_value, resolves, result_of
from engine.journal.status import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    RUNNING,
    Blocked,
    Cancelled,
    Completed,
    Failed,
    Status,
)
from engine.journal.status import to_value as status_value
from engine.limits import retries_max


class History:
    """The state of one journal, fed event by event; `fork` before trying what may have to be thrown away."""

    __slots__ = (
        "_awaited_at",
        "_base",
        "_buffered",
        "_chained",
        "_delivered",
        "_head",
        "_held",
        "_missing",
        "_open_invokes",
        "_open_timers",
        "_parts",
        "_pending",
        "_received",
        "_unchained",
        "execution",
        "status",
        "version",
    )

    def __init__(self, execution: PromiseId) -> None:
        self.execution = execution
        self.version = 0  # the number of events
        self.status: Status = RUNNING  # of an empty history it says nothing: see `started`
        self._base = execution.path
        self._held: list[Held] = []  # by child number
        self._open_invokes: dict[int, None] = {}
        self._open_timers: dict[int, None] = {}
        self._delivered: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._buffered: dict[tuple[str, int], str] = {}
        self._awaited_at = -1
        self._missing = 0  # promises of the current wait that are not resolved
        self._head = ev.FIRST_PREV
        self._unchained: tuple[Entry, ...] = ()  # loaded, not yet in the head
        self._pending: list[Entry] = []
        self._parts: list[bytes] = []  # the bytes of the first pending entries
        self._chained = 0  # how many of those are in the head

    @classmethod
    def load(cls, execution: PromiseId, entries: Iterable[Entry], *, head: bytes | None = None) -> History:
        """The history of a stored journal, every rule checked but those of the writer; `head`, if given, is believed."""
        history = cls(execution)
        stored = tuple(entries)
        for entry in stored:
            if entry.sequence != history.version:
                history._broken("S-1", f"sequence {entry.sequence} stands at place {history.version}")
            history._admit(entry.event, None)
        history._unchained = stored
        if head is not None:
            history._head, history._unchained = head, ()
        return history

    def fork(self) -> History:
        """An independent copy, pending entries included."""
        twin = History.__new__(History)
        twin.execution, twin.version, twin.status, twin._base = self.execution, self.version, self.status, self._base
        twin._held = self._held.copy()
        twin._open_invokes = self._open_invokes.copy()
        twin._open_timers = self._open_timers.copy()
        twin._delivered = self._delivered.copy()
        twin._received = self._received.copy()
        twin._buffered = self._buffered.copy()
        twin._awaited_at, twin._missing = self._awaited_at, self._missing
        twin._head, twin._unchained = self._head, self._unchained
        twin._pending, twin._parts, twin._chained = self._pending.copy(), self._parts.copy(), self._chained
        return twin

    # --- append -----------------------------------------------------------------------------------------------------

    def append(self, event: Event, timestamp: int) -> Entry:
        """Append one event, or raise BrokenJournal with the rule it breaks and change nothing."""
        entry = Entry(self.version, timestamp, event)
        self._admit(event, timestamp)
        self._pending.append(entry)
        return entry

    def _admit(self, event: Event, timestamp: int | None) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is None:
            self._broken("E21", f"{type(event).__name__} is not an event")
        if self.version == 0:
            if type(event) is not ev.ExecutionStarted:
                self._broken("S-2", "a journal starts with ExecutionStarted")
        elif type(self.status) in _ENDED:
            self._broken("S-4", f"nothing follows the end of a run that is {type(self.status).__name__}")
        handler(self, event, timestamp)
        self.version += 1

    def _broken(self, rule: str, reason: str) -> NoReturn:
        raise BrokenJournal(rule, reason, sequence=self.version)

    # Each handler checks everything before it changes anything, the named invariants before the guards.

    def _started(self, event: ev.ExecutionStarted, timestamp: int | None) -> None:
        if self.version:
            self._broken("G-18", "the run has started already")

    def _ended(self, event: Event, timestamp: int | None) -> None:
        if self.status is not RUNNING:
            self._broken("G-17", "only a running program ends")
        self.status = COMPLETED if type(event) is ev.ExecutionCompleted else FAILED

    def _cancel_requested(self, event: ev.CancelRequested, timestamp: int | None) -> None:
        if self.status is CANCELLING:
            self._broken("G-15", "cancellation was requested already")
        self.status = CANCELLING

    def _cancelled(self, event: ev.ExecutionCancelled, timestamp: int | None) -> None:
        # Nothing leads out of Cancelling but an end, so this covers G-16 too.
        if self.status is not CANCELLING:
            self._broken("S-5", "no cancellation was requested")
        self.status = CANCELLED

    def _invoke_scheduled(self, event: ev.InvokeScheduled, timestamp: int | None) -> None:
        self._allocate(event.promise_id)
        self._open_invokes[len(self._held)] = None
        self._held.append(Invoke(event))

    def _invoke_started(self, event: ev.InvokeStarted, timestamp: int | None) -> None:
        number = self._number(event.promise_id)
        held = self._held[number] if number >= 0 else None
        if type(held) is not Invoke:
            self._broken("SE-1", f"{event.promise_id} was never scheduled")
        if held.phase == "completed":
            self._broken("SE-4", f"{event.promise_id} is completed")
        if held.phase == "started" or event.attempt != held.attempt + 1:
            self._broken("G-07", f"attempt {event.attempt} does not follow attempt {held.attempt} ({held.phase})")
        self._held[number] = held._replace(phase="started", attempt=event.attempt, retry_at=0)

    def _invoke_completed(self, event: ev.InvokeCompleted, timestamp: int | None) -> None:
        number = self._number(event.promise_id)
        held = self._held[number] if number >= 0 else None
        if type(held) is not Invoke or held.attempt == 0:
            self._broken("SE-2", f"{event.promise_id} was never started")
        if held.phase == "completed":
            self._broken("G-08", f"{event.promise_id} is completed already")
        if held.phase != "started" or event.attempt != held.attempt:
            self._broken("G-07", f"attempt {event.attempt} is not in flight")
        self._held[number] = held._replace(phase="completed", result=event.result)
        del self._open_invokes[number]
        self._resolve(event.promise_id)

    def _invoke_retrying(self, event: ev.InvokeRetrying, timestamp: int | None) -> None:
        number = self._number(event.promise_id)
        held = self._held[number] if number >= 0 else None
        if type(held) is not Invoke or not 1 <= event.failed_attempt <= held.attempt:
            self._broken("SE-3", f"attempt {event.failed_attempt} of {event.promise_id} was never started")
        if held.phase == "completed":
            self._broken("SE-4", f"{event.promise_id} is completed")
        if held.attempt - (held.phase == "started") >= retries_max:
            self._broken("SE-5", f"{event.promise_id} was retried {retries_max} times")
        if held.phase != "started" or event.failed_attempt != held.attempt:
            self._broken("G-07", f"attempt {event.failed_attempt} is not in flight")
        self._held[number] = held._replace(phase="retrying", retry_at=event.retry_at)

    def _value_recorded(self, event: ev.RandomGenerated | ev.TimeRecorded, timestamp: int | None) -> None:
        self._allocate(event.promise_id)
        self._held.append(event)

    def _timer_scheduled(self, event: ev.TimerScheduled, timestamp: int | None) -> None:
        self._allocate(event.promise_id)
        self._open_timers[len(self._held)] = None
        self._held.append(Timer(event))

    def _timer_fired(self, event: ev.TimerFired, timestamp: int | None) -> None:
        number = self._number(event.promise_id)
        held = self._held[number] if number >= 0 else None
        if type(held) is not Timer:
            self._broken("CF-1", f"{event.promise_id} is not a timer")
        if held.fired:
            self._broken("G-05", f"{event.promise_id} has fired")
        if timestamp is not None and timestamp < held.scheduled.fire_at:
            self._broken("G-06", f"{event.promise_id} is due at {held.scheduled.fire_at}, not at {timestamp}")
        self._held[number] = Timer(held.scheduled, fired=True)
        del self._open_timers[number]
        self._resolve(event.promise_id)

    def _signal_delivered(self, event: ev.SignalDelivered, timestamp: int | None) -> None:
        expected = self._delivered.get(event.signal_name, 0) + 1
        if event.delivery_id != expected:
            self._broken("G-12", f"delivery {expected} of {event.signal_name!r} comes next, not {event.delivery_id}")
        self._delivered[event.signal_name] = expected
        self._buffered[event.signal_name, expected] = event.payload

    def _signal_received(self, event: ev.SignalReceived, timestamp: int | None) -> None:
        name, delivery = event.signal_name, event.delivery_id
        received = self._received.get(name, 0)
        if not 1 <= delivery <= self._delivered.get(name, 0):
            self._broken("CF-2", f"delivery {delivery} of {name!r} never arrived")
        if delivery <= received:
            self._broken("CF-3", f"delivery {delivery} of {name!r} is consumed")
        if self._buffered[name, delivery] != event.payload:
            self._broken("CF-2", f"delivery {delivery} of {name!r} has another payload")
        if delivery != received + 1:
            self._broken("G-13", f"delivery {received + 1} of {name!r} is older")
        status = self.status
        if isinstance(status, Blocked):
            if status.kind != AwaitSignal(name, event.promise_id):
                self._broken("G-14", "the program is blocked on something else")
        elif status is not RUNNING:
            self._broken("G-14", "the program is not waiting for a signal")
        self._check_next(event.promise_id)
        self._received[name] = delivery
        del self._buffered[name, delivery]
        self._held.append(event)
        if status is not RUNNING:
            self._missing = 0

    def _awaiting(self, event: ev.ExecutionAwaiting, timestamp: int | None) -> None:
        waiting_on, kind = event.waiting_on, event.kind
        if type(kind) is AwaitSignal and waiting_on != {kind.promise_id}:
            self._broken("CF-4", "a wait for a signal waits for exactly its promise")
        if self.status is not RUNNING:
            self._broken("G-02", "only a running program can wait")
        if not waiting_on or (kind == "Single" and len(waiting_on) != 1):
            self._broken("G-19", f"a wait of kind {kind} cannot be for {len(waiting_on)} promises")
        missing = sum(not resolves(self.promise(promise), kind) for promise in waiting_on)
        if missing == 0 or (kind == "Any" and missing < len(waiting_on)):
            self._broken("G-19", "the wait is satisfied before it begins")
        self.status = Blocked(waiting_on, kind)
        self._awaited_at, self._missing = self.version, missing

    def _resumed(self, event: ev.ExecutionResumed, timestamp: int | None) -> None:
        if not self.can_resume():
            self._broken("G-01", "there is no wait that is satisfied")
        self.status = RUNNING

    def _join_set_created(self, event: ev.JoinSetCreated, timestamp: int | None) -> None:
        if type(self.promise(event.join_set_id)) is JoinSet:
            self._broken("G-09", f"join set {event.join_set_id} exists")
        self._allocate(event.join_set_id)
        self._held.append(JoinSet(event))

    def _join_set_submitted(self, event: ev.JoinSetSubmitted, timestamp: int | None) -> None:
        number, member = self._number(event.join_set_id), self._number(event.promise_id)
        join_set = self._held[number] if number >= 0 else None
        if type(join_set) is not JoinSet:
            self._broken("JS-1", f"join set {event.join_set_id} was never created")
        if join_set.awaited:
            self._broken("JS-2", f"a result of join set {event.join_set_id} was taken")
        held = self._held[member] if member >= 0 else None
        if type(held) is Invoke and held.join_set not in (-1, number):
            self._broken("JS-7", f"{event.promise_id} is in another join set")
        self._check_running()
        if type(held) is not Invoke or held.join_set == number:
            self._broken("G-10", f"{event.promise_id} is not an invocation that can be submitted")
        self._held[member] = held._replace(join_set=number)
        self._held[number] = join_set._replace(submitted=join_set.submitted + 1)

    def _join_set_awaited(self, event: ev.JoinSetAwaited, timestamp: int | None) -> None:
        number, member = self._number(event.join_set_id), self._number(event.promise_id)
        join_set = self._held[number] if number >= 0 else None
        held = self._held[member] if member >= 0 else None
        if type(join_set) is not JoinSet or type(held) is not Invoke or held.join_set != number:
            self._broken("JS-3", f"{event.promise_id} is not in join set {event.join_set_id}")
        if held.phase != "completed":
            self._broken("JS-4", f"{event.promise_id} is not completed")
        if held.consumed:
            self._broken("JS-5", f"the result of {event.promise_id} was taken")
        self._check_running()
        if event.result != held.result:
            self._broken("G-11", f"{event.promise_id} has another result")
        self._held[member] = held._replace(consumed=True)
        self._held[number] = join_set._replace(awaited=join_set.awaited + 1)

    # --- parts of the handlers ----------------------------------------------------------------------------------------

    def _number(self, promise: PromiseId) -> int:
        """The child number of a promise of this run, -1 for anything else."""
        path = promise.path
        if not path or path[:-1] != self._base or promise.root != self.execution.root:
            return -1
        return path[-1] if 0 <= path[-1] < len(self._held) else -1

    def _check_running(self) -> None:
        if self.status is not RUNNING:
            self._broken("G-03", "only a running program does this")

    def _check_next(self, promise: PromiseId) -> None:
        if promise.path != (*self._base, len(self._held)) or promise.root != self.execution.root:
            if self._number(promise) >= 0:
                self._broken("G-04", f"{promise} is taken")
            self._broken("G-20", f"the next child is {self.next_promise()}, not {promise}")

    def _allocate(self, promise: PromiseId) -> None:
        self._check_running()
        self._check_next(promise)

    def _resolve(self, promise: PromiseId) -> None:
        status = self.status
        if type(status) is Blocked and type(status.kind) is not AwaitSignal and promise in status.waiting_on:
            self._missing -= 1

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """False for an empty history."""
        return self.version > 0

    @property
    def ended(self) -> bool:
        """Completed, failed or cancelled: nothing may follow."""
        return type(self.status) in _ENDED

    @property
    def next_child(self) -> int:
        """The number that the next operation of the program gets."""
        return len(self._held)

    def next_promise(self) -> PromiseId:
        """The promise that the next operation of the program gets."""
        return self.execution.child(len(self._held))

    def promise(self, promise: PromiseId) -> Held | None:
        """Everything known about one promise: Invoke, Timer, JoinSet, or the event that recorded its value."""
        number = self._number(promise)
        return self._held[number] if number >= 0 else None

    def invoke(self, promise: PromiseId) -> Invoke | None:
        """The invocation of this promise."""
        held = self.promise(promise)
        return held if type(held) is Invoke else None

    def result(self, promise: PromiseId) -> str | int | None:
        """The recorded value that replay gives for this promise; None while there is none. A fired timer gives ""."""
        return result_of(self.promise(promise))

    def open_invokes(self) -> Iterator[Invoke]:
        """Invocations without a result, oldest first."""
        for number in self._open_invokes:
            held = self._held[number]
            assert type(held) is Invoke
            yield held

    def open_timers(self) -> Iterator[ev.TimerScheduled]:
        """Timers that have not fired, oldest first."""
        for number in self._open_timers:
            held = self._held[number]
            assert type(held) is Timer
            yield held.scheduled

    def deliveries(self, name: str) -> int:
        """How many signals of this name arrived; the next delivery has this number plus one."""
        return self._delivered.get(name, 0)

    def buffered(self, name: str) -> tuple[tuple[int, str], ...]:
        """Signals of this name that wait to be consumed: (delivery id, payload), oldest first."""
        waiting = range(self._received.get(name, 0) + 1, self._delivered.get(name, 0) + 1)
        return tuple((delivery, self._buffered[name, delivery]) for delivery in waiting)

    def members(self, join_set: PromiseId) -> tuple[Invoke, ...]:
        """The invocations of a join set by promise number; reads every promise, so not for a hot path."""
        number = self._number(join_set)
        return tuple(held for held in self._held if type(held) is Invoke and held.join_set == number >= 0)

    @property
    def wait(self) -> Wait | None:
        """What the run is blocked on; None unless it is blocked."""
        if not isinstance(self.status, Blocked):
            return None
        return Wait(self.status.waiting_on, self.status.kind, self._awaited_at, self.can_resume())

    def can_resume(self) -> bool:
        """True when the run is blocked and its wait is satisfied."""
        if not isinstance(self.status, Blocked):
            return False
        return self._missing == 0 or (self.status.kind == "Any" and self._missing < len(self.status.waiting_on))

    def state(self) -> dict[str, Any]:
        """The whole fold as one plain value with a canonical form: equal journals give equal bytes."""
        return {
            "execution": self.execution.to_list(),
            "version": self.version,
            "status": status_value(self.status),
            "awaited_at": self._awaited_at,
            "missing": self._missing,
            "held": [held_value(item) for item in self._held],
            "open_invokes": list(self._open_invokes),
            "open_timers": list(self._open_timers),
            "delivered": dict(self._delivered),
            "received": dict(self._received),
            "buffered": [[name, delivery, payload] for (name, delivery), payload in sorted(self._buffered.items())],
            "head": self.head,
        }

    # --- what is to be written ----------------------------------------------------------------------------------------

    def pending(self) -> tuple[Entry, ...]:
        """The entries appended since the history was loaded or saved."""
        return tuple(self._pending)

    def row(self) -> bytes:
        """The pending entries as the one journal row of this commit."""
        self._encode()
        return ev.row_of(self._parts) if self._parts else ev.encode_row(())

    def saved(self) -> None:
        """The pending entries are stored: the next row starts after them."""
        self._chain()
        self._pending, self._parts, self._chained = [], [], 0

    @property
    def head(self) -> bytes:
        """The leaf of the last entry, 32 zero bytes when there is none."""
        self._chain()
        return self._head

    def _encode(self) -> None:
        self._parts += [ev.entry_bytes(entry) for entry in self._pending[len(self._parts) :]]

    def _chain(self) -> None:
        for entry in self._unchained:
            self._head = ev.link(self._head, ev.entry_bytes(entry))
        self._unchained = ()
        self._encode()
        for part in self._parts[self._chained :]:
            self._head = ev.link(self._head, part)
        self._chained = len(self._parts)


_ENDED = frozenset({Completed, Failed, Cancelled})
_HANDLERS: dict[type[Event], Callable[[History, Any, int | None], None]] = {
    ev.ExecutionStarted: History._started,
    ev.ExecutionCompleted: History._ended,
    ev.ExecutionFailed: History._ended,
    ev.CancelRequested: History._cancel_requested,
    ev.ExecutionCancelled: History._cancelled,
    ev.InvokeScheduled: History._invoke_scheduled,
    ev.InvokeStarted: History._invoke_started,
    ev.InvokeCompleted: History._invoke_completed,
    ev.InvokeRetrying: History._invoke_retrying,
    ev.RandomGenerated: History._value_recorded,
    ev.TimeRecorded: History._value_recorded,
    ev.TimerScheduled: History._timer_scheduled,
    ev.TimerFired: History._timer_fired,
    ev.SignalDelivered: History._signal_delivered,
    ev.SignalReceived: History._signal_received,
    ev.ExecutionAwaiting: History._awaiting,
    ev.ExecutionResumed: History._resumed,
    ev.JoinSetCreated: History._join_set_created,
    ev.JoinSetSubmitted: History._join_set_submitted,
    ev.JoinSetAwaited: History._join_set_awaited,
}
