"""The encodings of events: two forms of one shape, read strictly, written in exactly one way."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import decode, encode, sha256
from engine.errors import BrokenJournal, CallerError
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import (
    EVENT_TYPES,
    AwaitSignal,
    Entry,
    Event,
    decode_row,
    encode_row,
    entry_bytes,
    event_from,
    from_json,
    from_value,
    link,
    to_json,
    to_value,
)
from engine.limits import id_chars_max, int_max
from tests.engine.journal.stories import EXAMPLES, ROOT, journal, p, sched, start, wait

# The fields of document 003, copied from it and not from the code.
DOCUMENT = {
    "ExecutionStarted": "component_digest input parent_id idempotency_key",
    "ExecutionCompleted": "result",
    "ExecutionFailed": "error",
    "CancelRequested": "reason",
    "ExecutionCancelled": "reason",
    "InvokeScheduled": "promise_id kind function_name input retry_policy",
    "InvokeStarted": "promise_id attempt",
    "InvokeCompleted": "promise_id result attempt",
    "InvokeRetrying": "promise_id failed_attempt error retry_at",
    "RandomGenerated": "promise_id value",
    "TimeRecorded": "promise_id time",
    "TimerScheduled": "promise_id duration fire_at",
    "TimerFired": "promise_id",
    "SignalDelivered": "signal_name payload delivery_id",
    "SignalReceived": "promise_id signal_name payload delivery_id",
    "ExecutionAwaiting": "waiting_on kind",
    "ExecutionResumed": "",
    "JoinSetCreated": "join_set_id",
    "JoinSetSubmitted": "join_set_id promise_id",
    "JoinSetAwaited": "join_set_id promise_id result",
}

texts = st.text(st.characters(codec="utf-8"), max_size=40)
numbers = st.integers(-int_max, int_max)
roots = st.integers(0, int_max) | st.text("0123456789abcdef", min_size=1, max_size=32)
promises = st.builds(PromiseId, roots, st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple))
kinds = st.sampled_from(["Single", "Any", "All"]) | st.builds(AwaitSignal, texts, promises)
FORMS = {
    "str": texts,
    "int": numbers,
    "PromiseId": promises,
    "frozenset[PromiseId]": st.frozensets(promises, max_size=4),
    "AwaitKind": kinds,
}


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, *[FORMS[str(field.type)] for field in fields(kind)])


entries = st.builds(Entry, numbers, numbers, st.one_of([events_of(kind) for kind in EVENT_TYPES.values()]))


def test_there_are_exactly_the_twenty_types_of_the_document_with_exactly_its_fields() -> None:
    """S003-E01..E21, S003-T7, S003-J1."""
    assert {name: " ".join(field.name for field in fields(kind)) for name, kind in EVENT_TYPES.items()} == DOCUMENT
    assert [field.name for field in fields(Entry)] == ["sequence", "timestamp", "event"]


@given(entries)
def test_an_entry_survives_both_forms_and_its_bytes_are_canonical(entry: Entry) -> None:
    """C-36, S003-T4: decode gives the entry back, and the fast writer writes what the codec writes."""
    stored = entry_bytes(entry)
    assert stored == encode(to_value(entry))
    assert from_value(decode(stored)) == entry
    assert from_value(json.loads(json.dumps(to_value(entry)))) == entry
    assert decode_row(encode_row([entry])) == (entry,)


@given(st.lists(entries, max_size=5), promises)
def test_a_line_of_the_interchange_format_survives(story: list[Entry], execution: PromiseId) -> None:
    """spec.md 1: what is exported is read back unchanged."""
    found = from_json(to_json(execution, story))
    assert (found.execution, list(found.entries), found.stored_status) == (execution, story, None)


@given(
    st.binary(max_size=200)
    | st.lists(entries, min_size=1, max_size=2)
    .map(encode_row)
    .flatmap(
        lambda row: st.tuples(st.just(row), st.integers(0, len(row) - 1), st.integers(0, 255)).map(
            lambda cut: cut[0][: cut[1]] + bytes((cut[2],)) + cut[0][cut[1] + 1 :]
        )
    )
)
def test_hostile_bytes_are_a_broken_journal_or_exactly_one_journal(row: bytes) -> None:
    """C-36: whatever is accepted re-encodes to the same bytes; everything else is BrokenJournal and nothing worse."""
    try:
        found = decode_row(row)
    except BrokenJournal:
        return
    assert encode_row(found) == row


def entry_with(**changes: object) -> dict[str, Any]:
    event = {"type": "InvokeStarted", "promise_id": [1, 0], "attempt": 1, **changes}
    return {"sequence": 3, "timestamp": 5, "event": {name: value for name, value in event.items() if value != "gone"}}


WAIT = {"type": "ExecutionAwaiting", "waiting_on": [[1, 0]], "kind": "Single"}
SIGNAL = {"name": "s", "promise_id": [1, 0]}
REFUSED: dict[str, tuple[object, str]] = {
    "no object": ([], "entry: is an object, not list"),
    "no event": ({"sequence": 0, "timestamp": 0}, "entry: has no event"),
    "extra member": ({**entry_with(), "id": 1}, "entry: has an unknown field 'id'"),
    "bool as sequence": ({**entry_with(), "sequence": True}, "entry.sequence: is an integer, not bool"),
    "large timestamp": ({**entry_with(), "timestamp": 2**53}, "entry.timestamp: is an integer of at most 53 bits"),
    "text as event": ({**entry_with(), "event": "x"}, "entry.event.type: 'None' is not an event type"),
    "unknown type": (entry_with(type="InvokePaused"), "entry.event.type: 'InvokePaused' is not an event type"),
    "no type": (entry_with(type="gone"), "entry.event.type: 'None' is not an event type"),
    "a list as type": (entry_with(type=[]), "entry.event.type: '[]' is not an event type"),
    "missing field": (entry_with(attempt="gone"), "entry.event: has no attempt"),
    "extra field": (entry_with(error="x"), "entry.event: has an unknown field 'error'"),
    "bool as attempt": (entry_with(attempt=True), "entry.event.attempt: is an integer, not bool"),
    "float as attempt": (entry_with(attempt=1.0), "entry.event.attempt: is an integer, not float"),
    "null as attempt": (entry_with(attempt=None), "entry.event.attempt: is an integer, not NoneType"),
    "empty promise": (entry_with(promise_id=[]), "entry.event.promise_id: a promise id is a non-empty list"),
    "text promise": (entry_with(promise_id="1.0"), "entry.event.promise_id: a promise id is a non-empty list"),
    "bool in promise": (entry_with(promise_id=[1, True]), "entry.event.promise_id: a promise id continues"),
    "negative child": (entry_with(promise_id=[1, -1]), "entry.event.promise_id: a promise id continues"),
    "large child": (entry_with(promise_id=[1, 2**31]), "entry.event.promise_id: a promise id continues"),
    "negative root": (entry_with(promise_id=[-1]), "entry.event.promise_id: a promise id starts with a number from 0"),
    "large root": (entry_with(promise_id=[2**53]), "entry.event.promise_id: a promise id starts with a number from 0"),
    "empty root": (entry_with(promise_id=[""]), "entry.event.promise_id: a promise id starts with a number from 0"),
    "number as text": (
        {**entry_with(), "event": {"type": "ExecutionFailed", "error": 1}},
        "entry.event.error: is text, not int",
    ),
    "no list to wait on": ({**entry_with(), "event": {**WAIT, "waiting_on": {}}}, "entry.event.waiting_on: is a list"),
    "twice in a set": (
        {**entry_with(), "event": {**WAIT, "waiting_on": [[1, 0], [1, 0]]}},
        "entry.event.waiting_on: names a promise twice",
    ),
    "broken in a set": (
        {**entry_with(), "event": {**WAIT, "waiting_on": [[1, 0], []]}},
        "entry.event.waiting_on[1]: a promise id is a non-empty list",
    ),
    "unknown kind": ({**entry_with(), "event": {**WAIT, "kind": "Some"}}, "entry.event.kind: is Single, Any, All"),
    "two kinds": (
        {**entry_with(), "event": {**WAIT, "kind": {"AwaitSignal": SIGNAL, "Any": {}}}},
        "entry.event.kind: is Single, Any, All",
    ),
    "signal without name": (
        {**entry_with(), "event": {**WAIT, "kind": {"AwaitSignal": {"promise_id": [1, 0]}}}},
        "entry.event.kind.AwaitSignal: has no name",
    ),
    "a long unknown field": ({**entry_with(), "x" * 50: 1}, f"entry: has an unknown field {'x' * 40!r}"),
    "a long unknown type": (entry_with(type="X" * 50), f"entry.event.type: {'X' * 40!r} is not an event type"),
    "long root": (
        entry_with(promise_id=["r" * (id_chars_max + 1)]),
        "entry.event.promise_id: a promise id starts with a number from 0",
    ),
    "signal with a number as name": (
        {**entry_with(), "event": {**WAIT, "kind": {"AwaitSignal": {**SIGNAL, "name": 1}}}},
        "entry.event.kind.AwaitSignal.name: is text, not int",
    ),
    "signal without promise": (
        {**entry_with(), "event": {**WAIT, "kind": {"AwaitSignal": {**SIGNAL, "promise_id": []}}}},
        "entry.event.kind.AwaitSignal.promise_id: a promise id is a non-empty list",
    ),
    "signal with more": (
        {**entry_with(), "event": {**WAIT, "kind": {"AwaitSignal": {**SIGNAL, "token": 1}}}},
        "entry.event.kind.AwaitSignal: has an unknown field 'token'",
    ),
}


@pytest.mark.parametrize(("value", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_entry_is_refused_with_its_position_and_reason(value: object, reason: str) -> None:
    """spec.md 1, S003-E21: unknown types and fields, wrong types, bool as int and numbers out of range."""
    with pytest.raises(CallerError) as refusal:
        from_value(value)
    assert str(refusal.value).startswith(reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "malformed_json"),
        ("[]", "line: is an object"),
        ('{"execution_id":[1]}', "line: has no journal"),
        ('{"execution_id":[1],"journal":{}}', "journal: is a list"),
        ('{"execution_id":1,"journal":[]}', "execution_id: a promise id"),
        ('{"execution_id":[1],"journal":[],"x":1}', "line: has an unknown field 'x'"),
        ('{"execution_id":[1],"execution_id":[1],"journal":[]}', "stands twice"),
        ('{"execution_id":[1],"journal":[],"stored_status":"Running"}', "stored_status: is an object"),
        ('{"execution_id":[1],"journal":[{"sequence":0.5}]}', "fraction"),
        ('{"execution_id":[1],"journal":[{}]}', "journal[0]: has no sequence"),
        ('{"execution_id":["\\ud800"],"journal":[]}', "lone surrogate"),
    ],
)
def test_a_wrong_line_is_refused(line: str, reason: str) -> None:
    """spec.md 1: one strict reader, positions of a line start at its members."""
    with pytest.raises(CallerError) as refusal:
        from_json(line)
    assert reason in f"{refusal.value.code} {refusal.value}"


FIRST = encode_row([Entry(0, 7, start())])
SEQUENCE = encode("sequence")
STORED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "ROW: the bytes end early"),
    "an entry alone": (FIRST[1:], "ROW: row: is a list of at least one entry"),
    "a length of more bytes": (b"\x98\x01" + FIRST[1:], "ROW: a number is not in its shortest form"),
    "a length without end": (b"\x9f" + FIRST[1:] + b"\xff", "ROW: indefinite lengths are not part of this form"),
    "a number of more bytes": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + b"\x18\x00"),
        "ROW: a number is not in its",
    ),
    "keys in another order": (
        b"\x81\xa3" + SEQUENCE + b"\x00" + FIRST[2:].replace(SEQUENCE + b"\x00", b""),
        "ROW: map key 'event' is doubled or out of order",
    ),
    "a byte more": (FIRST + b"\x00", "ROW: 1 bytes follow the value"),
    "a byte less": (FIRST[:-1], "ROW: the bytes end early"),
    "2^53": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + encode(2**53)),
        "ROW: row[0].sequence: is an integer of at most",
    ),
    "2^63": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + encode(2**63)),
        "ROW: row[0].sequence: is an integer of at most",
    ),
    "-2^63": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + encode(-(2**63))),
        "ROW: row[0].sequence: is an integer of at",
    ),
    "below -2^63": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + b"\x3b" + b"\xff" * 8),
        "ROW: a negative integer is at least",
    ),
    "a number of 9 bytes": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + b"\xc2\x49" + b"\x01" * 9),
        "ROW: tags are not part",
    ),
    "a fraction": (
        FIRST.replace(SEQUENCE + b"\x00", SEQUENCE + encode(0.5)),
        "ROW: row[0].sequence: is an integer, not float",
    ),
    "a nesting bomb": (b"\x81" * 1_000_000 + b"\x80", "ROW: nested at most 32 deep"),
    "a length bomb": (b"\x9b" + b"\x7f" + b"\xff" * 7, "ROW: a length goes past the end"),
}


@pytest.mark.parametrize(("row", "reason"), STORED.values(), ids=STORED)
def test_stored_bytes_that_are_not_the_one_form_are_refused_with_their_reason(row: bytes, reason: str) -> None:
    """Issue 3, C-36: non-canonical bytes, 64-bit numbers and nesting bombs are a broken journal, with a position."""
    assert decode_row(FIRST)[0].timestamp == 7
    with pytest.raises(BrokenJournal) as refusal:
        decode_row(row)
    assert refusal.value.reason.startswith(reason)


UNWRITABLE: dict[str, tuple[Entry, str]] = {
    "bool": (Entry(0, 0, ev.InvokeStarted(p(0), True)), "attempt: is an integer, not bool"),
    "2^53": (Entry(0, 0, ev.InvokeStarted(p(0), 2**53)), "attempt: is an integer of at most 53 bits"),
    "no text": (Entry(0, 0, ev.ExecutionFailed(1)), "error: is text, not int"),  # type: ignore[arg-type]
    "no promise": (Entry(0, 0, ev.TimerFired(PromiseId(-1))), "promise_id: a promise id starts with a number from 0"),
    "no kind": (Entry(0, 0, wait(0, kind="Some")), "kind: is Single, Any, All or AwaitSignal"),  # type: ignore[arg-type]
    "sequence": (Entry(2**53, 0, start()), "sequence: is an integer of at most 53 bits"),
    "timestamp": (Entry(0, 2**53, start()), "timestamp: is an integer of at most 53 bits"),
}


@pytest.mark.parametrize(("entry", "reason"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_nothing_is_written_that_could_not_be_read_again(entry: Entry, reason: str) -> None:
    """C-36: a wrong field is refused by its name in both forms, before anything depends on it."""
    for write in (entry_bytes, to_value):
        with pytest.raises(CallerError) as refusal:
            write(entry)
        assert str(refusal.value).startswith(reason)


def test_half_a_character_and_an_empty_commit_are_not_written() -> None:
    with pytest.raises(CallerError, match="lone surrogate"):
        encode_row([Entry(0, 0, ev.ExecutionFailed("\ud800"))])
    with pytest.raises(CallerError) as refusal:
        encode_row([])
    assert str(refusal.value) == "row: a commit writes at least one entry"


def test_a_line_is_written_without_blanks_and_in_its_own_script() -> None:
    """spec.md 1: what is exported is the same everywhere, so that two exports can be compared."""
    assert to_json(ROOT, [Entry(0, 5, ev.ExecutionFailed("über"))]) == (
        '{"execution_id":[1],"journal":[{"sequence":0,"timestamp":5,"event":{"type":"ExecutionFailed","error":"über"}}]}'
    )


def test_a_line_may_be_longer_than_a_request_and_half_a_character_is_refused_as_such() -> None:
    """spec.md 1: the bound of a line is its own; text that is no UTF-8 is the caller's fault in either form."""
    long = to_json(ROOT, [Entry(0, 0, ev.ExecutionFailed("x" * 2_000_000))])
    assert len(from_json(long).entries) == 1
    for line in ('{"execution_id":["\ud800"],"journal":[]}', b'{"execution_id":["\xed\xa0\x80"],"journal":[]}'):
        with pytest.raises(CallerError, match="byte 18 is not UTF-8"):
            from_json(line)


def test_a_row_is_one_commit_and_its_entries_are_addressable() -> None:
    """S003-J2, S003-J3: entries of a row follow each other; a waiting set has one order."""
    story = journal(event for event, _ in EXAMPLES["S003-X1"])
    assert decode_row(encode_row(story[3:7])) == story[3:7]
    with pytest.raises(BrokenJournal, match="S-1: entry 4: the row goes from 2 on"):
        decode_row(encode_row([story[2], story[4]]))
    for value in ([], {}, "x", None):
        with pytest.raises(BrokenJournal, match="ROW"):
            decode_row(encode(value))
    value = to_value(Entry(3, 0, wait(0, 1, kind="Any")))
    value["event"]["waiting_on"].reverse()
    assert from_value(value).event == wait(0, 1, kind="Any")
    with pytest.raises(BrokenJournal) as refusal:
        decode_row(encode([value]))
    assert (refusal.value.rule, refusal.value.sequence) == ("ROW", 3)
    assert refusal.value.reason == "ROW: entry 3: waiting_on is not in its one order"


def test_a_set_of_promises_has_one_written_order() -> None:
    """C-36: numbered roots, then text roots, each by root and position; the order is part of the stored bytes for ever."""
    longest = "r" * id_chars_max
    order = [[1, 0], [1, 0, 3], [1, 2], [2], ["a", 1], ["b"], [longest, 0]]
    waiting = frozenset(PromiseId(root, tuple(path)) for root, *path in order)  # type: ignore[arg-type]
    value = to_value(Entry(0, 0, ev.ExecutionAwaiting(waiting, "All")))
    assert value["event"]["waiting_on"] == order
    assert from_value(value).event == ev.ExecutionAwaiting(waiting, "All")


def test_an_event_by_itself_is_refused_by_its_own_position() -> None:
    with pytest.raises(CallerError) as refusal:
        event_from({})
    assert refusal.value.field == "event.type"


def test_a_leaf_chains_the_bytes_of_an_entry_to_the_leaf_before() -> None:
    """S003-J2: the leaf is a tagged hash, so that no stored entry can be changed, moved or left out."""
    first, second = (entry_bytes(entry) for entry in journal((start(), sched(0))))
    assert link(bytes(32), first) == sha256(b"twokeys/journal/v1\x00" + bytes(32) + first)
    assert link(link(bytes(32), first), second) != link(bytes(32), second)
    assert bytes(32) == ev.FIRST_PREV


def test_promise_ids_say_which_journal_which_parent_and_which_operation() -> None:
    """S003-T1, S003-T2, S003-ID3, S003-ID4."""
    assert ROOT.child(2).child(0).to_list() == [1, 2, 0]
    assert ROOT.child(2).root == ROOT.root
    assert ROOT.child(0) != ROOT.child(1)


def test_the_largest_root_is_read() -> None:
    """The bound itself is inside: 2^53 - 1 is an id, 2^53 is none."""
    event = ev.TimerFired(PromiseId(int_max))
    assert decode_row(encode_row([Entry(0, 0, event)])) == (Entry(0, 0, event),)
