"""The two canonical forms, deterministic CBOR and the JCS profile, one strict JSON reader, and the digest over stored bytes.

CBOR (RFC 8949 4.2.1: shortest heads, bytewise key order, text keys, no tags) is for what the kernel replays.
JCS (RFC 8785 profile: ASCII snake_case keys, no floats, |int| < 2^53) is for what outsiders read and verify.
Hash the stored bytes, never a re-serialisation.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any, NoReturn

from engine.errors import CallerError
from engine.limits import cbor_bytes_max, cbor_depth_max, int_max, json_bytes_max, json_depth_max

_key = re.compile(r"[a-z][a-z0-9_]*")
_unmarked = bytes(set(range(256)) - set(b'"[]{}'))
_levels = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}
_is_key = lru_cache(maxsize=2048)(_key.fullmatch)
_head_sizes = ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q"))


def sha256(data: bytes) -> bytes:
    """SHA-256 of exactly these bytes."""
    return hashlib.sha256(data).digest()


def digest(tag: str, value: Any) -> bytes:
    """sha256(tag, CBOR of the value): the tag keeps digests of different things apart."""
    return tagged(tag, encode(value))


def tagged(tag: str, stored: bytes) -> bytes:
    """sha256(tag, 0x00, stored bytes): for bytes that are already canonical and stored."""
    return hashlib.sha256(tag.encode("ascii") + b"\x00" + stored).digest()


# --- deterministic CBOR -------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Deterministic CBOR of None, bool, int (64 bit), finite float, str, bytes, list and dict with str keys."""
    out = bytearray()
    _put(out, value, 0)
    return bytes(out)


def _head(out: bytearray, major: int, n: int) -> None:
    if n < 24:
        out.append(major << 5 | n)
    elif n < 0x100:
        out += bytes((major << 5 | 24, n))
    elif n < 0x10000:
        out.append(major << 5 | 25)
        out += n.to_bytes(2, "big")
    elif n < 0x100000000:
        out.append(major << 5 | 26)
        out += n.to_bytes(4, "big")
    else:
        out.append(major << 5 | 27)
        out += n.to_bytes(8, "big")


def _put(out: bytearray, value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        raw = _utf8(value)
        if len(raw) < 24:
            out.append(0x60 | len(raw))
        else:
            _head(out, 3, len(raw))
        out += raw
    elif kind is int:
        if value >= 0:
            if value >= 2**64:
                _bad("an integer is below 2^64")
            _head(out, 0, value)
        else:
            if value < -(2**63):
                _bad("a negative integer is at least -2^63")
            _head(out, 1, -1 - value)
    elif kind is bytes:
        _head(out, 2, len(value))
        out += value
    elif value is None:
        out.append(0xF6)
    elif kind is bool:
        out.append(0xF5 if value else 0xF4)
    elif kind is list or kind is tuple:
        _deeper(depth)
        _head(out, 4, len(value))
        for item in value:
            _put(out, item, depth + 1)
    elif kind is dict:
        _put_map(out, value, depth)
    elif kind is float:
        out += _float_bytes(value)
    else:
        _bad(f"{kind.__name__} has no canonical form")


def _put_map(out: bytearray, value: dict[Any, Any], depth: int) -> None:
    _deeper(depth)
    for name in value:
        if type(name) is not str:
            _bad("a map key is a string")
    names = tuple(value)
    known = len(names) <= 24 and len("".join(names)) <= 400
    head, order = _known_map_order(names) if known else _map_order(names)
    out += head
    for raw, name in order:
        out += raw
        item = value[name]
        if type(item) is str and len(item) < 24 and item.isascii():  # most values are short words
            out.append(0x60 | len(item))
            out += item.encode("ascii")
        else:
            _put(out, item, depth + 1)


def _map_order(names: tuple[str, ...]) -> tuple[bytes, tuple[tuple[bytes, str], ...]]:
    """The head of a map with these keys, and the bytes of each key in their order."""
    out = bytearray()
    _head(out, 5, len(names))
    return bytes(out), tuple(sorted((_key_bytes(name), name) for name in names))


def _key_bytes(name: str) -> bytes:
    out = bytearray()
    _put(out, name, 0)
    return bytes(out)


_known_map_order = lru_cache(maxsize=1024)(_map_order)  # our own maps have some dozen shapes, met again and again


def _utf8(value: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        _bad("text is valid Unicode (a lone surrogate is not)")


def _float_bytes(value: float) -> bytes:
    if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
        _bad("a float is finite and not -0.0")
    for lead, form in ((0xF9, ">e"), (0xFA, ">f"), (0xFB, ">d")):
        try:
            raw = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, raw)[0] == value:
            return bytes((lead,)) + raw
    raise AssertionError("a double always holds a Python float")


def decode(data: bytes) -> Any:
    """The value of exactly one canonical CBOR item; anything that would not re-encode to these bytes is refused."""
    if len(data) > cbor_bytes_max:
        _bad(f"at most {cbor_bytes_max} bytes")
    value, end = _take(data, 0, 0)
    if end != len(data):
        _bad(f"{len(data) - end} bytes follow the value")
    return value


def _take(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data):
        _bad("the bytes end early")
    lead = data[at]
    major, info = lead >> 5, lead & 31
    if major == 7:
        return _take_simple(data, at, info)
    n, at = _take_head(data, at, info)
    if major == 0:
        return n, at
    if major == 1:
        if n >= 2**63:
            _bad("a negative integer is at least -2^63")
        return -1 - n, at
    if major in (2, 3):
        if at + n > len(data):
            _bad("the bytes end early")
        raw = data[at : at + n]
        if major == 2:
            return raw, at + n
        try:
            return raw.decode("utf-8"), at + n
        except UnicodeDecodeError:
            _bad("text is UTF-8")
    if major == 6:
        _bad("tags are not part of this form")
    _deeper(depth)
    if n > len(data) - at:
        _bad("a length goes past the end")
    if major == 4:
        items = []
        for _ in range(n):
            item, at = _take(data, at, depth + 1)
            items.append(item)
        return items, at
    return _take_map(data, at, n, depth)


def _take_map(data: bytes, at: int, n: int, depth: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    before = b""
    for _ in range(n):
        start = at
        name, at = _take(data, at, depth + 1)
        raw = data[start:at]
        if type(name) is not str:
            _bad("a map key is a string")
        if raw <= before:
            _bad(f"map key {name!r} is doubled or out of order")
        before = raw
        result[name], at = _take(data, at, depth + 1)
    return result, at


def _take_head(data: bytes, at: int, info: int) -> tuple[int, int]:
    if info < 24:
        return info, at + 1
    for code, form in _head_sizes:
        if info == code:
            size = struct.calcsize(form)
            if at + 1 + size > len(data):
                _bad("the bytes end early")
            n = int.from_bytes(data[at + 1 : at + 1 + size], "big")
            if n < (24 if size == 1 else 1 << (4 * size)):
                _bad("a number is not in its shortest form")
            return n, at + 1 + size
    _bad("indefinite lengths are not part of this form")


def _take_simple(data: bytes, at: int, info: int) -> tuple[Any, int]:
    simple = {20: False, 21: True, 22: None}
    if info in simple:
        return simple[info], at + 1
    forms = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
    if info not in forms:
        _bad("only false, true, null and floats are simple values here")
    form, size = forms[info]
    raw = data[at : at + 1 + size]
    if len(raw) != 1 + size:
        _bad("the bytes end early")
    value = struct.unpack(form, raw[1:])[0]
    if _float_bytes(value) != raw:
        _bad("a float is not in its shortest form")
    return value, at + 1 + size


def _deeper(depth: int) -> None:
    if depth >= cbor_depth_max:
        _bad(f"nested at most {cbor_depth_max} deep")


def _bad(reason: str) -> NoReturn:
    raise CallerError(reason, code="not_canonical")


# --- the JCS profile ----------------------------------------------------------------------------------------------


def jcs(value: Any) -> bytes:
    """RFC 8785 bytes of a value of our profile; a value outside the profile is an error, never a guess."""
    _check_profile(value, 0)
    return written(value)


def written(value: Any) -> bytes:
    """The same of a value that is known to be of the profile because it was just built or checked member by member."""
    return _utf8(_jcs.encode(value))


_jcs = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)  # json.dumps would make it each time


def _check_profile(value: Any, depth: int) -> None:
    kind = type(value)
    if kind is dict:
        if depth >= json_depth_max:
            _bad(f"nested at most {json_depth_max} deep")
        for name in value:
            if type(name) is not str or not _is_key(name):
                _bad(f"key {name!r} is not ASCII snake_case")
        _check_items(value.values(), depth + 1)
    elif kind is list or kind is tuple:
        if depth >= json_depth_max:
            _bad(f"nested at most {json_depth_max} deep")
        _check_items(value, depth + 1)
    else:
        _check_items((value,), depth)


def _check_items(items: Iterable[Any], depth: int) -> None:
    # Most values are text and small numbers: they are looked at here, without a call each.
    for item in items:
        kind = type(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is int:
            if abs(item) > int_max:
                _bad("an integer is below 2^53 in size; write larger numbers as strings")
        elif kind is dict or kind is list or kind is tuple:
            _check_profile(item, depth)
        else:
            _bad(f"{kind.__name__} is not part of this form")


# --- the one strict JSON reader -----------------------------------------------------------------------------------


def read_json(
    data: bytes, *, bytes_max: int = json_bytes_max, depth_max: int = json_depth_max, floats: bool = False
) -> Any:
    """Strict JSON: UTF-8, one document, no duplicate keys, no NaN, no infinity, bounded size and depth; floats only when asked for."""
    if len(data) > bytes_max:
        _refuse_json(f"{len(data)} bytes; at most {bytes_max} are read")
    if data.startswith(b"\xef\xbb\xbf"):
        _refuse_json("starts with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse_json(f"byte {error.start} is not UTF-8")
    _check_depth(data, depth_max)
    try:
        value = (_with_floats if floats else _without_floats).decode(text)
    except json.JSONDecodeError as error:
        _refuse_json(f"line {error.lineno} column {error.colno}: {error.msg}")
    if b"\\u" in data:  # UTF-8 holds no surrogate, so only an escape can bring one
        _check_text(value)
    return value


def _check_depth(data: bytes, depth_max: int) -> None:
    # Counted outside strings before parsing: the parser recurses, and a hostile depth must not reach it.
    if data.count(b"[") + data.count(b"{") <= depth_max:
        return
    # Without escaped backslashes and then without escaped quotes, every quote begins or ends a string. Up to the first
    # backslash outside a string, where the parser stops, nothing else is lost.
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _unmarked)
    outside = b"".join(marks.split(b'"')[::2])
    if max(accumulate(map(_levels.__getitem__, outside)), default=0) > depth_max:
        _refuse_json(f"nested deeper than {depth_max}")


def _check_text(value: Any) -> None:
    if type(value) is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            _refuse_json("a string holds a lone surrogate")
    elif type(value) is dict:
        for name, item in value.items():
            _check_text(name)
            _check_text(item)
    elif type(value) is list:
        for item in value:
            _check_text(item)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse_json(f"key {name!r} stands twice")
            seen.add(name)
    return result


def _no_constant(name: str) -> NoReturn:
    _refuse_json(f"{name} is not a number")


def _no_float(text: str) -> NoReturn:
    _refuse_json(f"{text[:40]} is a fraction; write it as a string")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse_json(f"{text[:40]} is out of range")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > 20:
        _refuse_json(f"{text[:40]} is out of range")
    return int(text)


def _reader(parse_float: Callable[[str], float]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=parse_float, parse_int=_bounded_int
    )


_with_floats, _without_floats = _reader(_finite), _reader(_no_float)


def _refuse_json(reason: str) -> NoReturn:
    raise CallerError(reason, code="malformed_json", field="body", next_step="send one strict JSON document")
