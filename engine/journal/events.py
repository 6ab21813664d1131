"""The twenty events of a journal, their one strict encoding, and the chain of their leaf hashes.

One value shape serves both forms: canonical CBOR for the stored rows (one row per commit) and JSON for the interchange
line. A row is the CBOR array of the entries of one commit; each entry has its own bytes and its own leaf.
"""

from __future__ import annotations

import json
from collections.abc import Callable, KeysView, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn, TypeAlias

from engine.canonical import decode, encode, read_json, tagged
from engine.errors import BrokenJournal, CallerError
from engine.ids import PromiseId, promise_from_list
from engine.limits import id_chars_max, int_max

FIRST_PREV = bytes(32)
LINE_BYTES_MAX = 64 * 1024 * 1024  # of the interchange format


@dataclass(frozen=True, slots=True)
class AwaitSignal:
    """Waiting for the next signal of this name, to be received as this promise."""

    name: str
    promise_id: PromiseId


AwaitKind: TypeAlias = Literal["Single", "Any", "All"] | AwaitSignal


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """Always first: which code runs on which input, and for whom."""

    component_digest: str
    input: str
    parent_id: PromiseId
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class ExecutionCompleted:
    """The program returned a result."""

    result: str


@dataclass(frozen=True, slots=True)
class ExecutionFailed:
    """The program returned an error or could not go on."""

    error: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked to cancel; work in flight may still finish."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExecutionCancelled:
    """The cancellation is final."""

    reason: str


@dataclass(frozen=True, slots=True)
class InvokeScheduled:
    """The program wants this done: the intent, recorded before anything happens."""

    promise_id: PromiseId
    kind: str
    function_name: str
    input: str
    retry_policy: str


@dataclass(frozen=True, slots=True)
class InvokeStarted:
    """This attempt is in flight."""

    promise_id: PromiseId
    attempt: int


@dataclass(frozen=True, slots=True)
class InvokeCompleted:
    """The result that every replay will be given."""

    promise_id: PromiseId
    result: str
    attempt: int


@dataclass(frozen=True, slots=True)
class InvokeRetrying:
    """This attempt failed and another one is due."""

    promise_id: PromiseId
    failed_attempt: int
    error: str
    retry_at: int


@dataclass(frozen=True, slots=True)
class RandomGenerated:
    """A random value that the program was given."""

    promise_id: PromiseId
    value: str


@dataclass(frozen=True, slots=True)
class TimeRecorded:
    """A time that the program was given."""

    promise_id: PromiseId
    time: int


@dataclass(frozen=True, slots=True)
class TimerScheduled:
    """The program sleeps until fire_at."""

    promise_id: PromiseId
    duration: int
    fire_at: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The sleep is over."""

    promise_id: PromiseId


@dataclass(frozen=True, slots=True)
class SignalDelivered:
    """A signal arrived and is buffered; nobody need be waiting."""

    signal_name: str
    payload: str
    delivery_id: int


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The program consumed the oldest buffered signal of this name."""

    promise_id: PromiseId
    signal_name: str
    payload: str
    delivery_id: int


@dataclass(frozen=True, slots=True)
class ExecutionAwaiting:
    """The program is blocked until these promises resolve."""

    waiting_on: frozenset[PromiseId]
    kind: AwaitKind


@dataclass(frozen=True, slots=True)
class ExecutionResumed:
    """The wait is satisfied and the program goes on."""


@dataclass(frozen=True, slots=True)
class JoinSetCreated:
    """A set of concurrent invocations exists from here."""

    join_set_id: PromiseId


@dataclass(frozen=True, slots=True)
class JoinSetSubmitted:
    """This invocation belongs to that set."""

    join_set_id: PromiseId
    promise_id: PromiseId


@dataclass(frozen=True, slots=True)
class JoinSetAwaited:
    """The program took this member's result: the order of these entries is the order on replay."""

    join_set_id: PromiseId
    promise_id: PromiseId
    result: str


Event: TypeAlias = (
    ExecutionStarted
    | ExecutionCompleted
    | ExecutionFailed
    | CancelRequested
    | ExecutionCancelled
    | InvokeScheduled
    | InvokeStarted
    | InvokeCompleted
    | InvokeRetrying
    | RandomGenerated
    | TimeRecorded
    | TimerScheduled
    | TimerFired
    | SignalDelivered
    | SignalReceived
    | ExecutionAwaiting
    | ExecutionResumed
    | JoinSetCreated
    | JoinSetSubmitted
    | JoinSetAwaited
)
EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__args__}


@dataclass(frozen=True, slots=True)
class Entry:
    """One event at its place; the timestamp (microseconds) is for people and plays no part in replay."""

    sequence: int
    timestamp: int
    event: Event


# --- values: exact types out, exact types in ------------------------------------------------------------------------


def _refuse(at: str, reason: str) -> NoReturn:
    raise CallerError(reason, code="journal_format", field=at)


def _text(value: object, at: str) -> str:
    if type(value) is not str:
        _refuse(at, f"is text, not {type(value).__name__}")
    return value


def _number(value: object, at: str) -> int:
    if type(value) is not int:
        _refuse(at, f"is an integer, not {type(value).__name__}")
    if abs(value) > int_max:
        _refuse(at, "is an integer of at most 53 bits")
    return value


def _promise(value: object, at: str) -> PromiseId:
    try:
        promise = promise_from_list(value)
    except CallerError as error:
        _refuse(at, error.reason)
    root = promise.root
    if not 0 < len(root) <= id_chars_max if isinstance(root, str) else not 0 <= root <= int_max:
        _refuse(at, f"a promise id starts with a number from 0 or a text of 1-{id_chars_max} characters")
    return promise


def _promises(value: object, at: str) -> frozenset[PromiseId]:
    if type(value) is not list:
        _refuse(at, f"is a list of promise ids, not {type(value).__name__}")
    found = [_promise(item, f"{at}[{n}]") for n, item in enumerate(value)]
    if len(set(found)) != len(found):
        _refuse(at, "names a promise twice")
    return frozenset(found)


# Names in their order, which compare as a set.
_SIGNAL = dict.fromkeys(("name", "promise_id")).keys()


def _await_kind(value: object, at: str) -> AwaitKind:
    if value == "Single" or value == "Any" or value == "All":
        return value
    if type(value) is not dict or list(value) != ["AwaitSignal"]:
        _refuse(at, "is Single, Any, All or AwaitSignal with a name and a promise id")
    signal = _members(value["AwaitSignal"], _SIGNAL, f"{at}.AwaitSignal")
    return AwaitSignal(
        _text(signal["name"], f"{at}.AwaitSignal.name"),
        _promise(signal["promise_id"], f"{at}.AwaitSignal.promise_id"),
    )


def _members(value: object, names: KeysView[str], at: str) -> dict[str, Any]:
    if type(value) is not dict:
        _refuse(at, f"is an object, not {type(value).__name__}")
    if value.keys() == names:
        return value
    for name in names:
        if name not in value:
            _refuse(at, f"has no {name}")
    _refuse(at, f"has an unknown field {str(next(name for name in value if name not in names))[:40]!r}")


def promises_sorted(promises: frozenset[PromiseId]) -> list[PromiseId]:
    """A set of promises in its one written order: numbered roots first, then by position."""
    return sorted(promises, key=lambda promise: (type(promise.root) is str, promise.root, promise.path))


def _await_value(kind: AwaitKind) -> Any:
    if type(kind) is AwaitSignal:
        return {"AwaitSignal": {"name": kind.name, "promise_id": kind.promise_id.to_list()}}
    return kind


# A field's annotation chooses how it is read and how it is written. Written values pass through the reader too, so
# that nothing is stored which could not be loaded again.
_READ: dict[str, Callable[[object, str], Any]] = {
    "str": _text,
    "int": _number,
    "PromiseId": _promise,
    "frozenset[PromiseId]": _promises,
    "AwaitKind": _await_kind,
}
_WRITE: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: value,
    "int": lambda value: value,
    "PromiseId": PromiseId.to_list,
    "frozenset[PromiseId]": lambda value: [promise.to_list() for promise in promises_sorted(value)],
    "AwaitKind": _await_value,
}
_FIELDS = {kind: tuple((field.name, str(field.type)) for field in fields(kind)) for kind in EVENT_TYPES.values()}
_NAMES = {kind: {"type": "str", **dict(known)}.keys() for kind, known in _FIELDS.items()}
_READERS = {kind: tuple((name, _READ[form]) for name, form in known) for kind, known in _FIELDS.items()}
_ENTRY = dict.fromkeys(("sequence", "timestamp", "event")).keys()


def event_value(event: Event) -> dict[str, Any]:
    """An event as a plain value: its type and exactly its fields."""
    kind = type(event)
    value: dict[str, Any] = {"type": kind.__name__}
    for name, form in _FIELDS[kind]:
        value[name] = _WRITE[form](getattr(event, name))
        _READ[form](value[name], name)
    return value


def to_value(entry: Entry) -> dict[str, Any]:
    """An entry as a plain value, the same for CBOR and JSON."""
    return {
        "sequence": _number(entry.sequence, "sequence"),
        "timestamp": _number(entry.timestamp, "timestamp"),
        "event": event_value(entry.event),
    }


def event_from(value: object, at: str = "event") -> Event:
    """Read one event; an unknown type, a missing or an extra field, a wrong type are refused with their position."""
    name = value.get("type") if type(value) is dict else None
    kind = EVENT_TYPES.get(name) if type(name) is str else None
    if kind is None:
        _refuse(f"{at}.type", f"{str(name)[:40]!r} is not an event type")
    known = _members(value, _NAMES[kind], at)
    try:  # a field's position is put together only where it is refused: making it costs as much as reading
        return kind(*[read(known[name], name) for name, read in _READERS[kind]])
    except CallerError as error:
        _refuse(f"{at}.{error.field}", error.reason)


def from_value(value: object, at: str = "entry") -> Entry:
    """Read one entry, strictly."""
    known = _members(value, _ENTRY, at)
    return Entry(
        _number(known["sequence"], f"{at}.sequence"),
        _number(known["timestamp"], f"{at}.timestamp"),
        event_from(known["event"], f"{at}.event"),
    )


# --- stored bytes ---------------------------------------------------------------------------------------------------


def _written(event: Event, name: str, form: str) -> bytes:
    value = getattr(event, name)
    if form == "str":
        _text(value, name)
    elif form == "int":
        _number(value, name)
    else:
        value = _WRITE[form](value)
        _READ[form](value, name)
    return encode(value)


def _plan(kind: type[Event]) -> tuple[tuple[tuple[bytes, str, str], ...], bytes]:
    """The constant bytes of an entry of this type around its fields, keys in canonical order."""
    pieces = []
    # A map of n < 24 keys starts with the byte 0xa0 + n, here and for the entry's own three.
    constant = bytes((0xA0 + 3,)) + encode("event") + bytes((0xA0 + len(_NAMES[kind]),))
    forms = dict(_FIELDS[kind])
    for name in sorted(_NAMES[kind], key=encode):
        constant += encode(name)
        if name == "type":
            constant += encode(kind.__name__)
        else:
            pieces.append((constant, name, forms[name]))
            constant = b""
    return tuple(pieces), constant + encode("sequence")


_PLANS = {kind: _plan(kind) for kind in EVENT_TYPES.values()}
_TIMESTAMP = encode("timestamp")


def entry_bytes(entry: Entry) -> bytes:
    """The canonical CBOR of one entry: what is stored, hashed and chained."""
    event = entry.event
    pieces, tail = _PLANS[type(event)]
    out = bytearray()
    for constant, name, form in pieces:
        out += constant
        out += _written(event, name, form)
    out += tail
    out += encode(_number(entry.sequence, "sequence"))
    out += _TIMESTAMP
    out += encode(_number(entry.timestamp, "timestamp"))
    return bytes(out)


def row_of(parts: Sequence[bytes]) -> bytes:
    """One journal row from the bytes of its entries, in order."""
    # The head of an array of n items is what stands before n one-byte items.
    return encode([None] * len(parts))[: -len(parts)] + b"".join(parts)


def encode_row(entries: Sequence[Entry]) -> bytes:
    """The row of one commit: the canonical CBOR array of its entries, at least one."""
    if not entries:
        _refuse("row", "a commit writes at least one entry")
    return row_of([entry_bytes(entry) for entry in entries])


def decode_row(row: bytes) -> tuple[Entry, ...]:
    """The entries of one stored row; anything but the exact bytes that `encode_row` writes is a broken journal."""
    try:
        values = decode(row)
        if type(values) is not list or not values:
            _refuse("row", "is a list of at least one entry")
        entries = tuple(from_value(value, f"row[{n}]") for n, value in enumerate(values))
    except CallerError as error:
        raise BrokenJournal("ROW", str(error)) from error
    first = entries[0].sequence
    for n, entry in enumerate(entries):
        if entry.sequence != first + n:
            raise BrokenJournal("S-1", f"the row goes from {first + n - 1} on", sequence=entry.sequence)
        event = entry.event
        if type(event) is ExecutionAwaiting:
            written = values[n]["event"]["waiting_on"]
            if written != [promise.to_list() for promise in promises_sorted(event.waiting_on)]:
                raise BrokenJournal("ROW", "waiting_on is not in its one order", sequence=entry.sequence)
    return entries


def link(prev: bytes, entry: bytes) -> bytes:
    """The leaf of an entry: its bytes chained to the leaf before it; the first follows `FIRST_PREV`."""
    return tagged("twokeys/journal/v1", prev + entry)


# --- interchange ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exported:
    """One line of the interchange format: a journal, and the status that its sender had stored, if it says so."""

    execution: PromiseId
    entries: tuple[Entry, ...]
    stored_status: dict[str, Any] | None = None


def to_json(execution: PromiseId, entries: Sequence[Entry]) -> str:
    """One line of the interchange format."""
    value = {"execution_id": execution.to_list(), "journal": [to_value(entry) for entry in entries]}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def from_json(line: str | bytes) -> Exported:
    """Read one line of the interchange format, strictly; what is wrong is refused with its position."""
    raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    value = read_json(raw, bytes_max=LINE_BYTES_MAX)
    names = ["execution_id", "journal"]
    if type(value) is dict and "stored_status" in value:
        names.append("stored_status")
    known = _members(value, dict.fromkeys(names).keys(), "line")
    if type(known["journal"]) is not list:
        _refuse("journal", "is a list of entries")
    stored = known.get("stored_status")
    if "stored_status" in names and type(stored) is not dict:
        _refuse("stored_status", "is an object with a tag")
    return Exported(
        _promise(known["execution_id"], "execution_id"),
        tuple(from_value(item, f"journal[{n}]") for n, item in enumerate(known["journal"])),
        stored,
    )
