"""The strict JSON reader, the one order of a map, and the MAC: nothing hostile is read, and nothing is written in two ways."""

from __future__ import annotations

import hmac
import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import decode, encode, read_json
from engine.errors import CallerError
from engine.ids import keyed
from engine.limits import json_depth_max

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
# What matters to somebody who counts brackets without parsing: quotes, backslashes, brackets, and a little of the rest.
PIECES = st.lists(
    st.sampled_from([b'"', b"\\", b"\\\\", b'\\"', b"[", b"]", b"{", b"}", b"a", b",", b":", b"\xc3\xa9"])
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
)


def deepest(data: bytes) -> int:
    """The deepest nesting, token by token."""
    depth = found = 0
    for match in TOKEN.finditer(data):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(match[0], 0)
        found = max(found, depth)
    return found


def refusal(data: bytes, **limits: int) -> str:
    """Why these bytes are refused; empty when they are read."""
    try:
        read_json(data, **limits)  # type: ignore[arg-type]
    except CallerError as error:
        return error.reason
    return ""


@given(values, st.booleans())
def test_what_was_written_is_read(value: object, ascii_only: bool) -> None:
    """Every value of ours comes back, however its text is escaped."""
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    if deepest(data) <= json_depth_max:
        assert read_json(data) == value


@given(values, st.integers(1, 4))
def test_a_document_is_refused_exactly_when_it_is_nested_too_deep(value: object, depth_max: int) -> None:
    """Brackets in strings do not count, whatever quotes and backslashes stand around them."""
    data = json.dumps(value).encode()
    expected = f"nested deeper than {depth_max}" if deepest(data) > depth_max else ""
    assert refusal(data, depth_max=depth_max) == expected


@given(PIECES, st.integers(1, 3))
def test_no_nesting_reaches_the_parser_behind_quotes_and_backslashes(pieces: list[bytes], depth_max: int) -> None:
    """Whatever is made of quotes, backslashes and brackets, what the parser accepts is not deeper than was allowed."""
    data = b"[" + b"".join(pieces) + b"]"
    if refusal(data, depth_max=depth_max) == "":
        assert deepest(data) <= depth_max


@pytest.mark.parametrize(
    "data", [b"[" * 5_000_000, b'{"a":' * 1_000_000, b'["\\"' + b"[" * 40, b'["\\\\"' + b"," + b"[" * 40]
)
def test_a_nesting_bomb_is_refused_before_it_is_parsed(data: bytes) -> None:
    """Issue 3: a billion laughs; the third hides its brackets in a string that never ends, which is no JSON either."""
    why = refusal(data, bytes_max=64 * 1024 * 1024)
    assert why.startswith("line 1 column" if data.startswith(b'["\\"') else "nested deeper than 32")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'["\\ud800"]', "a string holds a lone surrogate"),
        (b'["\\udfff"]', "a string holds a lone surrogate"),
        (b'{"\\uD83D":1}', "a string holds a lone surrogate"),
        (b'["\\ud83d\\ude00"]', ""),
        (b'["\\\\ud800"]', ""),
        (b"[18446744073709551616]", ""),
        (b"[-9223372036854775808]", ""),
        (b"[123456789012345678901]", "123456789012345678901 is out of range"),
        (b"[" + b"9" * 1_000_000 + b"]", "9" * 40 + " is out of range"),
        (b"[1e400]", "1e400 is a fraction; write it as a string"),
        (b"[NaN]", "NaN is not a number"),
        (b'{"a":1,"b":2,"a":3}', "key 'a' stands twice"),
        (b"\xef\xbb\xbf[]", "starts with a byte order mark"),
        (b'["\xff"]', "byte 2 is not UTF-8"),
        (b"[1] [2]", "line 1 column 5: Extra data"),
    ],
    ids=str,
)
def test_what_another_reader_could_read_otherwise_is_refused(data: bytes, why: str) -> None:
    """P14: half characters, numbers beyond reason, doubled keys, marks and trailing text; a pair of halves is a character."""
    assert refusal(data) == why


def test_a_document_that_is_too_long_is_not_looked_at() -> None:
    assert refusal(b"[1]", bytes_max=2) == "3 bytes; at most 2 are read"


class Named(str):
    """Equal to a plain text, and none."""


@given(st.dictionaries(st.text(max_size=50), st.integers(0, 9), max_size=30), st.randoms())
def test_a_map_is_written_in_one_order_however_it_was_filled(value: dict[str, int], chance: Random) -> None:
    names = list(value)
    chance.shuffle(names)
    assert encode({name: value[name] for name in names}) == encode(value)
    assert decode(encode(value)) == value
    for name in names[:1]:
        with pytest.raises(CallerError, match="a map key is a string"):
            encode({**{other: value[other] for other in names[1:]}, Named(name): 1})


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_what_is_kept_of_a_key_changes_no_mac(key: bytes, data: bytes) -> None:
    assert keyed(key, data) == keyed(key, data) == hmac.digest(key, data, "sha256")
