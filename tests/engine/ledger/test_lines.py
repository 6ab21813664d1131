"""P9: a line of an export holds the entry's exact bytes, in either form, and nothing else passes as one."""

from __future__ import annotations

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.canonical import jcs, read_json
from engine.errors import CallerError
from engine.ledger.entries import GENESIS, Fact, build
from engine.ledger.lines import FORMS, checked, read_line, write_line
from engine.ledger.tree import leaf_hash

AT = datetime.datetime(2026, 8, 21, 10, 11, 12, 345678, datetime.UTC)
ORIGIN = "test/log/acme/0"
texts = st.text(max_size=60).filter(lambda text: not any("\ud800" <= one <= "\udfff" for one in text))


def entry(person: str, seq: int = 0) -> bytes:
    fact = Fact("person.added", {"type": "system", "id": person}, {"person": person, "level": 4, "kind": "human"})
    return build(fact, "acme", "person/per_1", seq, GENESIS, AT)[0]


@settings(deadline=None)
@given(person=texts, index=st.integers(0, 2**53 - 1), form=st.sampled_from(FORMS))
def test_a_line_holds_the_exact_bytes_and_is_canonical_itself(person: str, index: int, form: str) -> None:
    body = entry(person)
    line = write_line(ORIGIN, index, body, form)
    assert body in line
    assert b"\n" not in line
    assert jcs(read_json(line)) == line
    assert read_line(line) == (ORIGIN, index, body)


def test_a_plain_line_has_these_names() -> None:
    body = entry("per_1")
    value = json.loads(write_line(ORIGIN, 17, body, "plain"))
    assert value == {"entry": json.loads(body), "index": 17, "leaf": leaf_hash(body).hex(), "origin": ORIGIN}


def test_a_cloudevent_has_what_the_standard_wants() -> None:
    body = entry("per_1")
    value = json.loads(write_line(ORIGIN, 17, body, "cloudevents"))
    assert value == {
        "specversion": "1.0",
        "id": "17",
        "source": ORIGIN,
        "type": "twokeys.person.added",
        "subject": "person/per_1",
        "time": "2026-08-21T10:11:12.345678Z",
        "datacontenttype": "application/json",
        "sequence": "00000000000000000017",
        "leafhash": leaf_hash(body).hex(),
        "data": json.loads(body),
    }
    assert all(name.isascii() and name.isalnum() and name.islower() for name in value), "names as CloudEvents 3.1"


@settings(deadline=None, max_examples=300)
@given(data=st.data(), form=st.sampled_from(FORMS))
def test_a_line_that_was_touched_is_refused(data: st.DataObject, form: str) -> None:
    """Anything that still reads as a line says another thing, and the log is asked whether it is so."""
    line = write_line(ORIGIN, 3, entry("per_1"), form)
    at = data.draw(st.integers(0, len(line) - 1))
    touched = line[:at] + bytes([data.draw(st.integers(0, 255).filter(lambda one: one != line[at]))]) + line[at + 1 :]
    try:
        found = read_line(touched)
    except CallerError:
        return
    assert found != read_line(line)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"7", b'{"specversion":"1.0"}', b'{"entry":{},"index":"0","leaf":"","origin":""}', b"\xff"],
)
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(CallerError, match="no line of an export"):
        read_line(line)


def test_a_gap_and_a_changed_entry_end_the_good_ones() -> None:
    rows = [(n, entry("per_1", n), leaf_hash(entry("per_1", n))) for n in range(4)]
    bodies = [body for _, body, _ in rows]
    assert checked(rows, 0) == (bodies, "")
    assert checked([*rows[:2], rows[3]], 0) == (bodies[:2], "index 2 is missing")
    assert checked(rows[1:], 0) == ([], "index 0 is missing")
    assert checked([rows[0], (1, b"{}", rows[1][2])], 0) == (bodies[:1], "index 1 is not what was hashed")
    assert checked([rows[0], rows[0]], 0) == (bodies[:1], "index 1 is missing"), "one that comes twice is no next one"
