"""Between a Python workflow and its journal: entries become what a replay looks up, commands become events.

Every event goes through `History.append`, so that whatever the author's process says, the guards hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from engine.errors import BrokenJournal
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import Entry
from engine.journal.history import History
from engine.journal.promises import Invoke, Timer
from engine.journal.status import RUNNING, Blocked
from engine.program import function_commands as do
from engine.program.function import Index, Step, random_value

child_prefix = "workflow:"  # of the function name of a child run; no connector's name has a colon
task_name = "task:form"  # the function name of a human step


@dataclass(frozen=True, slots=True)
class Result:
    """How an operation or a run has ended."""

    ok: bool
    value: Any = None
    error_class: str = ""
    message: str = ""


class Payloads(Protocol):
    """How texts in events stand for values: the kernel's payload files, or the values themselves."""

    def keep(self, place: str, value: Any) -> str:
        """Store a value and give the text that stands for it."""

    def keep_result(self, place: str, result: Result) -> str:
        """The same for the way something ended."""

    def value(self, text: str) -> Any:
        """The value that a text stands for."""

    def result(self, text: str) -> Result:
        """The ending that a text stands for."""


class ReplayMismatch(BrokenJournal):
    """The author must act: the code does not do what its journal says it did; the run stands still and loses nothing."""

    code = "replay_mismatch"

    def __init__(self, sequence: int, expected: Step | None, got: Step | None) -> None:
        super().__init__(
            "replay", f"the journal has {_shown(expected)}, the code does {_shown(got)}", sequence=sequence
        )
        self.expected = expected
        self.got = got


def _shown(step: Step | None) -> str:
    if step is None:
        return "nothing more"
    text = json.dumps({name: value for name, value in step.items() if name != "do"}, sort_keys=True, ensure_ascii=False)
    return f"{step['do']} {text if len(text) <= 600 else text[:600] + '…'}"


# --- entries to items -----------------------------------------------------------------------------------------------------

_tokens = count(1)


@dataclass(slots=True)
class Feed:
    """What a host must know of one run, kept ready to be sent: each entry is opened once, as long as the worker holds the run.

    The token names this object: a run that is loaded anew has a new feed, and a host forgets what it knew of the old one.
    """

    payloads: Payloads
    version: int = 0
    items: list[bytes] = field(default_factory=list)  # JSON, one for each entry that a replay asks for
    token: int = field(default_factory=lambda: next(_tokens))

    def take(self, entries: Iterable[Entry]) -> Feed:
        """Take up new entries; those taken before are passed over, so `history.pending()` may be given again."""
        for entry in entries:
            if entry.sequence < self.version:
                continue
            if entry.sequence > self.version:
                raise BrokenJournal("S-1", f"entries {self.version} to {entry.sequence - 1} are missing")
            item = item_of(entry, self.payloads)
            if item is not None:
                self.items.append(json.dumps(item, separators=(",", ":")).encode("ascii"))
            self.version += 1
        return self

    def index(self) -> Index:
        """The index that a host builds of it; for tests and for tools that replay in their own process."""
        return Index().take(json.loads(item) for item in self.items)


def item_of(entry: Entry, payloads: Payloads) -> list[Any] | None:
    """What a replay must know of an entry; None when it asks nothing of it."""
    event = entry.event
    match event:
        case ev.ExecutionStarted():
            return ["input", _json(payloads.value(event.input))]
        case ev.InvokeCompleted():
            ended = payloads.result(event.result)
            text = _json(ended.value if ended.ok else ended.message)
            return ["done", entry.sequence, _child(event.promise_id), ended.ok, text, ended.error_class]
        case ev.TimerFired():
            return ["done", entry.sequence, _child(event.promise_id), True, "null", ""]
        case ev.SignalDelivered():
            return ["signal", event.signal_name, _json(payloads.value(event.payload))]
        case ev.SignalReceived():
            step: Step = {"do": "Receive", "child": _child(event.promise_id), "name": event.signal_name}
            return ["step", entry.sequence, step, _json(payloads.value(event.payload))]
        case ev.RandomGenerated():
            return ["step", entry.sequence, {"do": "Random", "child": _child(event.promise_id)}, event.value]
        case ev.TimeRecorded():
            return ["step", entry.sequence, {"do": "Now", "child": _child(event.promise_id)}, event.time]
    found = _step(event, payloads)
    return None if found is None else ["step", entry.sequence, found, None]


def _step(event: ev.Event, payloads: Payloads) -> Step | None:
    """The command that an event of the program came from."""
    match event:
        case ev.InvokeScheduled():
            child, name = _child(event.promise_id), event.function_name
            value = payloads.value(event.input)
            if name.startswith(child_prefix):
                return {"do": "StartChild", "child": child, "workflow": name.removeprefix(child_prefix), "input": value}
            if name == task_name:
                return {"do": "Task", "child": child, "form": value["form"], "sign_off": value["sign_off"]}
            return {"do": "Invoke", "child": child, "input": value}
        case ev.TimerScheduled():
            return {"do": "Sleep", "child": _child(event.promise_id), "micros": event.duration}
        case ev.JoinSetCreated():
            return {"do": "CreateSet", "child": _child(event.join_set_id)}
        case ev.JoinSetSubmitted():
            return {"do": "Submit", "join_set": _child(event.join_set_id), "member": _child(event.promise_id)}
        case ev.JoinSetAwaited():
            return {"do": "Take", "join_set": _child(event.join_set_id), "member": _child(event.promise_id)}
        case ev.ExecutionAwaiting():
            if isinstance(event.kind, ev.AwaitSignal):
                return {"do": "AwaitSignal", "child": _child(event.kind.promise_id), "name": event.kind.name}
            return {"do": "Await", "kind": event.kind, "on": sorted(map(_child, event.waiting_on))}
        case ev.ExecutionCompleted():
            return {"do": "Complete", "value": payloads.result(event.result).value}
        case ev.ExecutionFailed():
            ended = payloads.result(event.error)
            return {"do": "Fail", "error_class": ended.error_class, "message": ended.message}
    return None


def _child(promise: PromiseId) -> int:
    return promise.path[-1]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- commands to events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """What the caller does about a turn, in the commit that carries its events."""

    invokes: tuple[tuple[PromiseId, do.Invoke], ...] = ()  # to be judged
    children: tuple[tuple[PromiseId, do.StartChild], ...] = ()  # to be started
    timers: tuple[tuple[PromiseId, int], ...] = ()  # promise and when it fires
    tasks: tuple[tuple[PromiseId, do.Task], ...] = ()  # to be asked of people
    ended: do.Complete | do.Fail | None = None


def can_turn(history: History) -> bool:
    """Whether a turn could do anything: the run goes on, and what it waits for is there or can be received."""
    if not history.started or history.ended:
        return False
    status = history.status
    if not isinstance(status, Blocked):
        return status == RUNNING
    is_there = isinstance(status.kind, ev.AwaitSignal) and bool(history.buffered(status.kind.name))
    return is_there or history.can_resume()


def apply(
    history: History,
    commands: Sequence[do.Command],
    payloads: Payloads,
    *,
    now: int,
    entropy: bytes,
    propose: Callable[[do.Invoke], dict[str, Any]] = lambda command: command.input,
) -> Applied:
    """Append the commands of a turn as events, each by the guards; on BrokenJournal the history is to be thrown away.

    `now` and `entropy` are those that the turn was given: recorded times and random values are made here, not by the
    author's process. `propose` fills in what a proposal leaves to the catalogue.
    """
    found = _Applying(history, payloads, now, entropy, propose)
    rest = list(commands)
    if isinstance(history.status, Blocked) and rest:
        if isinstance(history.status.kind, ev.AwaitSignal) and not history.can_resume():
            found.append(rest.pop(0))
        history.append(ev.ExecutionResumed(), now)
    for command in rest:
        found.append(command)
    return found.applied()


class _Applying:
    def __init__(
        self,
        history: History,
        payloads: Payloads,
        now: int,
        entropy: bytes,
        propose: Callable[[do.Invoke], dict[str, Any]],
    ) -> None:
        self._history, self._payloads, self._now, self._entropy = history, payloads, now, entropy
        self._propose = propose
        self._invokes: list[tuple[PromiseId, do.Invoke]] = []
        self._children: list[tuple[PromiseId, do.StartChild]] = []
        self._timers: list[tuple[PromiseId, int]] = []
        self._tasks: list[tuple[PromiseId, do.Task]] = []
        self._ended: do.Complete | do.Fail | None = None

    def applied(self) -> Applied:
        """What has come together."""
        return Applied(
            tuple(self._invokes), tuple(self._children), tuple(self._timers), tuple(self._tasks), self._ended
        )

    def append(self, command: do.Command) -> None:
        """One command, one event."""
        self._history.append(self._event(command), self._now)

    def _event(self, command: do.Command) -> ev.Event:
        child = self._history.execution.child
        match command:
            case do.Invoke():
                return self._invoke(command)
            case do.StartChild():
                promise = child(command.child)
                self._children.append((promise, command))
                text = self._payloads.keep(f"{promise}/input", command.input)
                return ev.InvokeScheduled(promise, "Function", f"{child_prefix}{command.workflow}", text, "attempts=1")
            case do.Task():
                promise = child(command.child)
                self._tasks.append((promise, command))
                asked = {"form": command.form, "sign_off": command.sign_off}
                text = self._payloads.keep(f"{promise}/input", asked)
                return ev.InvokeScheduled(promise, "Function", task_name, text, "attempts=1")
            case do.Sleep():
                promise, fire_at = child(command.child), self._now + command.micros
                self._timers.append((promise, fire_at))
                return ev.TimerScheduled(promise, command.micros, fire_at)
            case do.Random():
                return ev.RandomGenerated(child(command.child), random_value(self._entropy, command.child))
            case do.Now():
                return ev.TimeRecorded(child(command.child), self._now)
            case do.CreateSet():
                return ev.JoinSetCreated(child(command.child))
            case do.Submit():
                return ev.JoinSetSubmitted(child(command.join_set), child(command.member))
            case do.Take():
                member = child(command.member)
                return ev.JoinSetAwaited(child(command.join_set), member, str(self._history.result(member) or ""))
            case do.Receive():
                return self._receive(command)
            case do.Await():
                return self._await(command)
            case do.AwaitSignal():
                promise = child(command.child)
                return ev.ExecutionAwaiting(frozenset((promise,)), ev.AwaitSignal(command.name, promise))
            case do.Complete() | do.Fail():
                return self._end(command)

    def _invoke(self, command: do.Invoke) -> ev.Event:
        promise = self._history.execution.child(command.child)
        value = self._propose(command)
        self._invokes.append((promise, command))
        policy = f"attempts={value['max_attempts']};deadline_s={value['deadline_s']}"
        name = f"{value['connector']}.{value['operation']}"
        return ev.InvokeScheduled(promise, "Function", name, self._payloads.keep(f"{promise}/input", value), policy)

    def _await(self, command: do.Await) -> ev.Event:
        kind: Any = command.kind
        promises = frozenset(map(self._history.execution.child, command.on))
        for promise in promises:
            # A wait for something that does not exist passes every guard and never ends.
            if not isinstance(self._history.promise(promise), Invoke | Timer):
                raise BrokenJournal("G-19", f"{promise} is nothing that can be waited for")
        return ev.ExecutionAwaiting(promises, kind)

    def _receive(self, command: do.Receive) -> ev.Event:
        waiting = self._history.buffered(command.name)
        if not waiting:
            raise BrokenJournal("CF-2", f"no signal {command.name!r} waits to be received")
        delivery, text = waiting[0]
        return ev.SignalReceived(self._history.execution.child(command.child), command.name, text, delivery)

    def _end(self, command: do.Complete | do.Fail) -> ev.Event:
        self._ended = command
        if isinstance(command, do.Complete):
            return ev.ExecutionCompleted(self._payloads.keep_result("result", Result(True, command.value)))
        result = Result(False, None, command.error_class, command.message)
        return ev.ExecutionFailed(self._payloads.keep_result("error", result))
