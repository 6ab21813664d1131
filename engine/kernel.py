"""advance(), for functions advance_function(), and accept(): the verbs that change a run; they only append and say what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.canonical import jcs, read_json, sha256
from engine.errors import BrokenJournal
from engine.ids import PromiseId, keyed
from engine.journal import events as ev
from engine.journal.events import Entry
from engine.journal.history import History
from engine.journal.status import CANCELLING, Blocked
from engine.limits import cbor_bytes_max
from engine.program import function_commands as do
from engine.program.definition import Definition
from engine.program.function import Turn
from engine.program.function_journal import Applied, Result, apply, child_prefix, task_name
from engine.program.interpreter import begin, deliver, run_to_wait
from engine.program.orders import (
    AskPerson,
    Complete,
    Context,
    Fail,
    Listen,
    Outcome,
    Propose,
    Several,
    Single,
    Sleep,
    StartRun,
    Take,
)
from engine.program.orders import Turn as Wanted
from engine.program.snapshot import Frame

signal_prefix = "signal:"  # of the function name of a wait for a signal
apart_prefix = "continue:"  # of a start that nobody waits for


@dataclass(frozen=True, slots=True)
class Payload:
    """A value outside the journal: its file, and the salted commitment that stands for it inside."""

    commit: bytes
    body: bytes

    @property
    def reference(self) -> dict[str, Any]:
        """How a journal event names it."""
        return {"commit": self.commit.hex(), "size": len(self.body)}


@dataclass(frozen=True, slots=True)
class Advanced:
    """Where the program stands now, what it wants next, when its sleeps end, and the payloads to store."""

    frame: Frame
    outcome: Outcome
    payloads: tuple[Payload, ...]
    orders: tuple[Single | Take, ...] = ()
    timers: tuple[tuple[PromiseId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """News: this attempt's intent is being written."""

    promise: PromiseId
    attempt: int


@dataclass(frozen=True, slots=True)
class Finished:
    """News: this operation has its result, for ever."""

    promise: PromiseId
    attempt: int
    ok: bool
    value: Any = None
    error_class: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Retrying:
    """News: this attempt failed and another one is due."""

    promise: PromiseId
    attempt: int
    error: str
    retry_at: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """News: a signal arrived; nobody need be waiting for it."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Fired:
    """News: a timer has run out, by the database's clock."""

    promise: PromiseId


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """News: somebody wants this run cancelled."""

    reason: str


News = Started | Finished | Retrying | Signalled | Fired | CancelAsked


def payload(salt_key: bytes, place: str, value: Any) -> Payload:
    """A payload file: the salt is a MAC under the run's own secret, so it is the same on a repeat and unguessable outside."""
    salt = keyed(salt_key, b"twokeys/salt/v1\x00" + place.encode()).hex()[:32]
    body = jcs({"salt": salt, "media": "application/json", "value": wire(value)})
    return Payload(sha256(body), body)


def wire(value: Any) -> Any:
    """A value as a payload file carries it: keys of the canonical profile only exist in our own records, so maps become pairs."""
    if type(value) is dict:
        return {"pairs": [[name, wire(item)] for name, item in sorted(value.items())]}
    if type(value) is list or type(value) is tuple:
        return [wire(item) for item in value]
    return value


def unwire(value: Any) -> Any:
    """The value that a payload file carries."""
    if type(value) is dict:
        return {name: unwire(item) for name, item in value["pairs"]}
    if type(value) is list:
        return [unwire(item) for item in value]
    return value


def opened(body: bytes) -> Any:
    """What a payload file says."""
    return unwire(read_json(body, bytes_max=cbor_bytes_max, depth_max=128)["value"])


class Files:
    """Payload files as the journal of a function reads and writes them; `new` are those that this turn has written."""

    def __init__(self, salt_key: bytes, stored: Mapping[bytes, bytes]) -> None:
        self._salt_key = salt_key
        self._stored = stored
        self.new: list[Payload] = []

    def keep(self, place: str, value: Any) -> str:
        """Write a value; the text that stands for it in an event."""
        return _text(self._kept(place, value).reference)

    def keep_result(self, place: str, result: Result) -> str:
        """The same for the way something ended."""
        if result.ok:
            return _text({"ok": self._kept(place, result.value).reference})
        kept = self._kept(place, result.message)
        return _text({"err": {"class": result.error_class, **kept.reference}})

    def value(self, text: str) -> Any:
        """The value that a text stands for."""
        return _open(read_json(text.encode()), self._stored)

    def result(self, text: str) -> Result:
        """The ending that a text stands for."""
        value = read_json(text.encode())
        if "ok" in value:
            return Result(True, _open(value["ok"], self._stored))
        return Result(False, None, value["err"]["class"], str(_open(value["err"], self._stored)))

    def _kept(self, place: str, value: Any) -> Payload:
        self.new.append(payload(self._salt_key, place, value))
        return self.new[-1]


def begun(history: History, start: ev.ExecutionStarted, now: int) -> History:
    """A copy of a function's history that has begun, for a turn that may still come to nothing."""
    fork = history.fork()
    if not fork.started:
        fork.append(start, now)
    return fork


def advance_function(
    history: History,
    turn: Turn,
    files: Files,
    propose: Callable[[do.Invoke], dict[str, Any]],
    *,
    now: int,
    entropy: bytes,
) -> Applied:
    """Append what a function did in its turn, each event by the guards; give it a copy, because a guard may refuse midway."""
    return apply(history, turn.commands, files, now=now, entropy=entropy, propose=propose)


def advance(
    history: History,
    definition: Definition,
    frame: Frame,
    context: Context,
    salt_key: bytes,
    start: ev.ExecutionStarted,
    now: int,
    payloads: Mapping[bytes, bytes] | None = None,
    ends: Callable[[], None] = lambda: None,
) -> Advanced | None:
    """Run the program to its next wait or its end. The caller has delivered what the wait was for into the frame.

    None, and nothing appended, when the program has come to its end while something of it is in flight: a run ends when
    nothing is, and whatever comes of that brings it here again. `ends` is called before the end is written.
    """
    turn = run_to_wait(definition, frame, context, _inbox(history, definition, payloads or {}))
    if isinstance(turn.outcome, Complete | Fail) and any(each.phase == "started" for each in history.open_invokes()):
        return None
    if isinstance(turn.outcome, Complete | Fail) and history.started:
        ends()
    if not history.started:
        history.append(start, now)
    elif isinstance(history.status, Blocked):
        history.append(ev.ExecutionResumed(), now)
    kept: list[Payload] = []
    timers: list[tuple[PromiseId, int]] = []
    for order in turn.orders:
        promise = history.execution.child(order.child)
        if history.next_promise() != promise:
            raise BrokenJournal(
                "G-20", f"the program proposes {promise}, the journal has {history.next_promise()} next"
            )
        event = _ordered(history, promise, order, salt_key, now, kept)
        if isinstance(event, ev.TimerScheduled):
            timers.append((promise, event.fire_at))
        history.append(event, now)
    match turn.outcome:
        case Complete(value):
            kept.append(payload(salt_key, "result", value))
            history.append(ev.ExecutionCompleted(_text({"ok": kept[-1].reference})), now)
        case Fail(error_class, message):
            kept.append(payload(salt_key, "error", message))
            history.append(ev.ExecutionFailed(_text({"err": {"class": error_class, **kept[-1].reference}})), now)
        case Several(_, on) if len(on) > 1:
            history.append(ev.ExecutionAwaiting(frozenset(map(history.execution.child, on)), "Any"), now)
        case _:
            history.append(
                ev.ExecutionAwaiting(frozenset(map(history.execution.child, turn.frame.open)), "Single"), now
            )
    return Advanced(turn.frame, turn.outcome, tuple(kept), turn.orders, tuple(timers))


def _ordered(
    history: History, promise: PromiseId, order: Single | Take, salt_key: bytes, now: int, kept: list[Payload]
) -> ev.Event:
    """The event of the journal that an order of the program is."""
    match order:
        case Sleep(_, micros, until):
            fire_at = max(until, now) if until else now + micros
            return ev.TimerScheduled(promise, fire_at - now, fire_at)
        case Take(_, name):
            delivery, text = history.buffered(name)[0]
            return ev.SignalReceived(promise, name, text, delivery)
        case Propose():
            policy = f"attempts={order.max_attempts};deadline_s={order.deadline_s}"
            value: Any = proposal_value(order)
        case AskPerson(_, form):
            policy, value = "attempts=1", {"form": form, "sign_off": order.sign_off}
        case Listen(_, name, deadline_s):
            policy, value = "attempts=1", {"signal": name, "deadline_s": deadline_s}
        case StartRun():
            policy, value = "attempts=1", order.input
    kept.append(payload(salt_key, f"{promise}/input", value))
    return ev.InvokeScheduled(promise, "Function", name_of(order), _text(kept[-1].reference), policy)


def name_of(order: Single | Take) -> str:
    """What the journal calls an operation that a program orders; a sleep and a signal have no name of that kind."""
    match order:
        case Propose():
            return f"{order.connector}.{order.operation}"
        case AskPerson():
            return task_name
        case StartRun():
            return f"{apart_prefix if order.apart else child_prefix}{order.workflow}"
        case Listen():
            return f"{signal_prefix}{order.name}"
    return ""


def _inbox(history: History, definition: Definition, payloads: Mapping[bytes, bytes]) -> dict[str, list[Any]]:
    """The signals that came and that nobody has consumed, of those that the program may wait for."""
    return {
        name: [_open(read_json(text.encode()), payloads) for _, text in history.buffered(name)]
        for name in definition.signals
    }


def accept(history: History, news: News, salt_key: bytes, now: int) -> tuple[Payload, ...]:
    """Append what has become known. The payloads returned are stored with it."""
    match news:
        case Started(promise, attempt):
            history.append(ev.InvokeStarted(promise, attempt), now)
        case Retrying(promise, attempt, error, retry_at):
            history.append(ev.InvokeRetrying(promise, attempt, error, retry_at), now)
        case Fired(promise):
            history.append(ev.TimerFired(promise), now)
        case CancelAsked(reason):
            history.append(ev.CancelRequested(reason), now)
        case Signalled(name, value):
            delivery = history.deliveries(name) + 1
            kept = payload(salt_key, f"signal/{name}/{delivery}", value)
            history.append(ev.SignalDelivered(name, _text(kept.reference), delivery), now)
            return (kept,)
        case Finished(promise, attempt, ok, value, error_class, message):
            kept = payload(salt_key, f"{promise}/result", value if ok else message)
            result = {"ok": kept.reference} if ok else {"err": {"class": error_class, **kept.reference}}
            history.append(ev.InvokeCompleted(promise, _text(result), attempt), now)
            return (kept,)
    return ()


def settle_cancel(history: History, now: int) -> bool:
    """Finish a requested cancellation as soon as no attempt is in flight; True when the run has ended by it."""
    if history.status is not CANCELLING or any(invoke.phase == "started" for invoke in history.open_invokes()):
        return False
    history.append(ev.ExecutionCancelled("requested"), now)
    return True


def delivered(
    definition: Definition, frame: Frame, result: str, payloads: Mapping[bytes, bytes], child: int | None = None
) -> Frame:
    """The frame after the operation it waits for has this recorded result; a sleep that is over has none."""
    if not result:
        return deliver(definition, frame, True, None, child=child)
    value = read_json(result.encode())
    if "ok" in value:
        return deliver(definition, frame, True, _open(value["ok"], payloads), child=child)
    message = str(_open(value["err"], payloads))
    return deliver(definition, frame, False, None, value["err"]["class"], message, child=child)


def rebuild(
    entries: Iterable[Entry], definition: Definition, context: Context, payloads: Mapping[bytes, bytes]
) -> Frame:
    """The frame that a journal implies: the program run again from its start over recorded results, turn by turn.

    What ended while the run waited is in the frame only when the run has gone on since.
    """
    frame = begin()
    ended: dict[int, str] = {}
    inbox: dict[str, list[Any]] = {}
    wanted: list[Single | Take] = []

    def turn() -> None:
        nonlocal frame
        if wanted:
            raise BrokenJournal("replay", f"the program asks for {name_of(wanted[0])}, the journal has nothing more")
        again: Wanted = run_to_wait(definition, frame, context, inbox)
        frame = again.frame
        wanted.extend(again.orders)

    for entry in entries:
        match entry.event:
            case ev.ExecutionStarted():
                turn()
            case ev.ExecutionResumed():
                for child in frame.open:
                    if child in ended:
                        frame = delivered(definition, frame, ended[child], payloads, child)
                turn()
            case ev.InvokeScheduled() as event:
                _asked_for(wanted, event.function_name)
            case ev.TimerScheduled():
                _asked_for(wanted, "")
            case ev.InvokeCompleted(promise, result):
                ended[promise.path[-1]] = result
            case ev.TimerFired(promise):
                ended[promise.path[-1]] = ""
            case ev.SignalDelivered(name, text) if name in definition.signals:
                inbox.setdefault(name, []).append(_open(read_json(text.encode()), payloads))
            case ev.SignalReceived(_, name):
                _asked_for(wanted, "")
                inbox[name].pop(0)
    return frame


def _asked_for(wanted: list[Single | Take], name: str) -> None:
    """The journal holds what the program asks for, in the same order."""
    if not wanted:
        raise BrokenJournal("replay", "the journal holds operations that the program does not ask for")
    asked = name_of(wanted.pop(0))
    if asked != name:
        raise BrokenJournal("replay", f"the program asks for {asked}, the journal has something else")


def proposal_value(proposal: Propose) -> dict[str, Any]:
    """A proposal as the journal's input payload carries it."""
    value = {name: getattr(proposal, name) for name in Propose.__dataclass_fields__}
    if not proposal.reverses:
        del value["reverses"]  # so that every other proposal is written as it always was
    return value


def proposal_from(body: bytes) -> Propose:
    """The proposal that was journaled: what is judged, whatever a later reading of the program would say."""
    return Propose(**opened(body))


def input_payload(salt_key: bytes, value: Any) -> Payload:
    """The input of a run as its start stores it."""
    return payload(salt_key, "input", value)


def reference_of(text: str) -> bytes:
    """The commitment that a plain payload reference names."""
    return bytes.fromhex(read_json(text.encode())["commit"])


def _open(reference: Mapping[str, Any], payloads: Mapping[bytes, bytes]) -> Any:
    body = payloads.get(bytes.fromhex(reference["commit"]))
    if body is None or sha256(body).hex() != reference["commit"]:
        raise BrokenJournal(
            "payload", f"payload {reference['commit'][:16]} is missing or is not what the journal committed to"
        )
    return opened(body)


def _text(value: dict[str, Any]) -> str:
    return jcs(value).decode()
