#!/usr/bin/env python3
"""Verifies the evidence bundle of a Twokeys run or period offline.

    python verify.py BUNDLE.zip --trust policy.txt

Python 3.11 or newer and this one file; the package `cryptography` is used when it is there. It reads the two files that
you name and nothing else, writes to standard output, and starts no network connection. What each step checks is
described in docs/auditor.md under the same number.

Generated from the product's own modules by `make verifier`; the parts below keep their names. Do not edit.
Digest of the parts: ee9afa5e17a750a09b4c6a6c04a883e5c5dd74316699914b9a771365ac7c1e3d
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

# ================== engine.errors =====================================================================================

"""The engine's error tree: each class says in its first line who must act.

TwokeysError
├── AuthorError        the author of a definition
├── CallerError        whoever sent the request
├── Refused            nobody: authority, separation of duty or a rule said no
├── OperatorError      the operator: configuration, or a part that does not answer
├── StaleWake          nobody: the wait this answers is over
├── Conflict           nobody: somebody else moved first, load again
├── BrokenJournal      the operator: a journal that cannot be trusted
└── BrokenLedger       the operator and the auditor: evidence that does not hold
"""


class TwokeysError(Exception):
    """Base: `code` for machines, the sentence for people, `field` and `next_step` where there are any."""

    code = "error"

    def __init__(self, reason: str, *, code: str | None = None, field: str = "", next_step: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code or type(self).code
        self.field = field
        self.next_step = next_step

    def __str__(self) -> str:
        head = f"{self.field}: {self.reason}" if self.field else self.reason
        return f"{head} ({self.next_step})" if self.next_step else head


class AuthorError(TwokeysError):
    """The author must act: a definition, an expression or a document is wrong at a line and column."""

    code = "invalid_definition"


class CallerError(TwokeysError):
    """The caller must act: a field of the request is wrong."""

    code = "invalid_request"


class Refused(TwokeysError):
    """Nobody must act: who asked may not do this, or may not do it now; nothing has changed."""

    code = "refused"


class OperatorError(TwokeysError):
    """The operator must act: a setting is wrong or a part of the installation does not answer."""

    code = "unavailable"


class StaleWake(TwokeysError):
    """Nobody must act: the wait this answers is over."""

    code = "stale"


class Conflict(TwokeysError):
    """Nobody must act: somebody else moved the run first; load it again and decide again."""

    code = "conflict"


class BrokenJournal(TwokeysError):
    """The operator must act: this run's journal breaks a rule, so nothing may be appended to it."""

    code = "broken_journal"

    def __init__(self, rule: str, reason: str, *, sequence: int | None = None) -> None:
        where = f"entry {sequence}: " if sequence is not None else ""
        super().__init__(f"{rule}: {where}{reason}")
        self.rule = rule
        self.sequence = sequence


class BrokenLedger(TwokeysError):
    """The operator and the auditor must act: a piece of evidence does not hold."""

    code = "broken_ledger"


# ================== engine.limits =====================================================================================

"""Every bound of the product as a named constant with its unit, and the relations between bounds."""


# Doors: what is refused before it is understood.
json_bytes_max = 1_048_576
json_depth_max = 32
yaml_bytes_max = 262_144
webhook_bytes_max = 262_144
int_max = 2**53 - 1  # the largest integer that every JSON reader keeps exactly
cbor_depth_max = 32
cbor_bytes_max = 16_777_216
id_chars_max = 128

# Entries (C2SP tlog-tiles allows 65,535 bytes to one entry).
entry_bytes_soft = 16_384
entry_bytes_max = 65_535

# Journal.
signals_waiting_max = 1_000  # of one name, sent and not yet received
turns_per_commit_max = 16  # of a function whose operations end at once
child_depth_max = 8  # of runs that start runs: a recursion ends here
family_runs_max = 1_000  # a run with its children and theirs: depth alone would let each of them start thousands
attempts_max = 4  # seed 004's delays, cut to SE-5's three retries
retries_max = attempts_max - 1
retry_delays_seconds = (5, 30, 120)
fault_delay_first_seconds = 5
fault_delay_max_seconds = 60

# Leases: a worker may miss two heartbeats and still hold its work.
lease_seconds = 30
heartbeat_seconds = 10
claim_batch = 16
runs_per_commit_max = 16  # of one tenant, written by one call
faults_max = 9  # an item that came back this often is parked and shown
hold_receipt_seconds_max = 0.05  # a receipt waits this long for the next verdict, never longer
heartbeats_per_lease_min = 3
poll_seconds = 0.25  # without wake-ups, whoever is free looks this often
poll_idle_seconds = 2.0  # with them, for what no wake-up tells: a time that has come, a wake-up that was lost

# Caps and turns.
cap_max = 1_000_000
weight_max = 1_000  # units of a tenant's or a workspace's share
turns_ahead_max = 2 * claim_batch  # items of a tenant that have a turn and that nobody has claimed
turns_seconds = 0.05  # a busy worker gives turns this often: whoever is new waits no longer for one

# Schedules.
catch_up_max = 100  # runs for moments that were missed
schedule_late_seconds = 60  # a moment is not missed yet
schedule_missed_max = 5_000  # moments looked at one by one
schedule_retry_seconds = 15  # until a schedule that had to wait is looked at again

# Policy.
policy_bytes_max = 65_536
policy_deadline_seconds = 0.5
policy_server_connect_seconds = 0.25
policy_server_total_seconds = 1.0
policy_input_fields_max = 500
policy_input_depth_max = 8
policy_draft_bytes_max = 4_194_304
policy_reading_seconds = 20.0  # to parse, compile and test a draft; nobody's run waits for it
policy_reading_bytes_max = 67_108_864  # of syntax trees, which are some twenty times their text
policy_reading_depth_max = 160  # of a syntax tree

# Approvals.
approval_seconds_min = 60
approval_seconds_max = 604_800
reason_chars_max = 2_000
click_lock_seconds = 1
click_statement_seconds = 2

# Tasks: a form fits one Slack modal, and an answer fits one console form although every byte may travel as three.
task_title_chars_max = 150
task_text_chars_max = 2_000
task_fields_max = 20
task_options_max = 50
task_groups_max = 10
task_line_chars_max = 300
task_chars_max = 3_000
task_answer_bytes_max = 18_000

# Expressions.
expression_bytes_max = 4_096
expression_input_bytes_max = 262_144
expression_loops_nested_max = 2
steps_max = 1_000
steps_per_turn_max = 20_000  # that an interpreter does before it must have come to a wait
repeat_items_max = 1_000  # of one collection that a step goes through
lanes_max = 32  # of one parallel step

# Slack (slack_sdk's models and the undocumented total of bolt-js#2509).
slack_header_chars_max = 150
slack_text_chars_max = 3_000
slack_blocks_max = 50
slack_blocks_total_chars_max = 13_000
slack_request_bytes_max = 1_048_576
slack_skew_seconds_max = 300

assert heartbeat_seconds * heartbeats_per_lease_min <= lease_seconds
assert len(retry_delays_seconds) == retries_max
assert child_depth_max < family_runs_max
assert entry_bytes_soft < entry_bytes_max
assert approval_seconds_min < approval_seconds_max
assert policy_server_connect_seconds < policy_server_total_seconds


# ================== engine.canonical ==================================================================================

"""The two canonical forms, deterministic CBOR and the JCS profile, one strict JSON reader, and the digest over stored bytes.

CBOR (RFC 8949 4.2.1: shortest heads, bytewise key order, text keys, no tags) is for what the kernel replays.
JCS (RFC 8785 profile: ASCII snake_case keys, no floats, |int| < 2^53) is for what outsiders read and verify.
Hash the stored bytes, never a re-serialisation.
"""


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


# ================== engine.gate.reducer ===============================================================================

"""What findings mean: strict validation of what Rego returned and its total reduction to an effect, with the product's own floor.

It imports nothing but `re`, because the offline verifier carries this very text; a test holds its lists equal to the
product's own. Every value in gives a ruling out, and what is not understood is a denial of kind fault.
"""


FINDINGS_SCHEMA = "twokeys.policy.findings/v1"
FINDINGS_PACKAGE = "twokeys.main"
ruling_kinds = ("read", "write", "delete", "message", "payment")
ruling_tiers = ("low", "med", "high")
findings_reasons_max = 50
findings_obligations_max = 20
findings_groups_max = 20
findings_needs_max = 20
hold_seconds_min = 60
hold_seconds_max = 604_800
hold_count_max = 9

# Nothing that a reader cannot see, or that changes the order of what is read, may reach a card.
hidden_character = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_finding_code = re.compile(r"[a-z][a-z0-9_]{0,63}")
_finding_group = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_hex64 = re.compile(r"[0-9a-f]{64}")
_finding_keys = frozenset(("schema", "echo", "policy", "denials", "holds", "grants", "obligations"))
_hold_keys = frozenset(("code", "message", "tier", "two_person", "groups", "expires_in_s"))
# What an obligation carries besides its type: text, or a number of seconds up to this many.
_obligation_keys: dict[str, dict[str, int]] = {
    "receipt": {"level": 0},
    "redact": {"field": 0},
    "notify": {"channel": 0},
    "step_up": {"max_age_s": 86_400},
    "reason": {},
    "hold_window": {"seconds": 604_800},
    "rejections": {"needed": 9},
    "break_glass": {"group": 0},
    "escalate": {"group": 0, "after_s": 604_800},
}


class Unfit(Exception):
    """The operator must act: findings that no effect may be read from; the code says which rule they break."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def reduce(findings: object, subject: object) -> dict[str, Any]:
    """The ruling over findings; `subject` is {kind, risk_tier, reversible} of the action. Never raises, never guesses.

    The ruling has effect, deny_kind, fault, tier, keys, counts, groups, needs, two_person, expires_in_s, reasons,
    obligations.
    """
    try:
        kind, tier, reversible = _subject_facts(subject)
    except Unfit as unfit:
        return fault_ruling(unfit.code, unfit.message)
    try:
        parts = check_findings(findings)
        if parts["denials"]:
            return _ruling("deny", "policy", "", tier, _reasons(parts["denials"]))
        if not parts["grants"]:
            return _ruling("deny", "policy", "", tier, [{"code": "no_grant", "message": "no rule grants this action"}])
        floor = floor_keys(kind, tier, reversible)
        if parts["holds"]:
            return _held(parts, tier, floor)
        if floor:
            _unfit("below_floor", "policy granted without a hold what always needs a person's key")
    except Unfit as unfit:
        return fault_ruling(unfit.code, unfit.message, tier)
    allowed = _ruling("allow", "", "", tier, _reasons(parts["grants"]))
    allowed["obligations"] = parts["obligations"]
    return allowed


def fault_ruling(code: str, message: str, tier: str = "high") -> dict[str, Any]:
    """The ruling of doubt: a denial of kind fault with its code."""
    return _ruling("deny", "fault", code, tier, [{"code": code, "message": message}])


def floor_keys(kind: str, tier: str, reversible: bool) -> int:
    """How many keys the product itself demands, below any policy: 0, 1 or 2 (messages are outside the floor)."""
    if kind == "message":
        return 0
    if not reversible and kind in ("delete", "payment"):
        return 2
    return 1 if tier == "high" or (not reversible and kind == "write") else 0


def subject_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The three facts that a reduction needs, out of an input document."""
    action = document["action"]
    return {"kind": action["kind"], "risk_tier": action["risk_tier"], "reversible": action["reversible"]}


def source_fault(findings: Mapping[str, Any], request_id: str, action_sha256: str, revision: str) -> str:
    """Empty when checked findings answer exactly this request under this revision, else the code of what differs."""
    if findings["echo"] != {"request_id": request_id, "action_sha256": action_sha256}:
        return "echo_mismatch"
    if findings["policy"]["package"] != FINDINGS_PACKAGE:
        return "package_mismatch"
    return "" if findings["policy"]["revision"] == revision else "revision_mismatch"


def requirements(wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What must be satisfied, each on its own: every hold's requirement, and the counts of all holds by different people.

    `wanted` has keys, counts, groups and, only where holds ask for different things, needs: a list of the same three.
    """
    needs = list(wanted.get("needs", ()))
    if not needs:
        return [wanted]
    counts = dict(wanted["counts"])
    if counts:
        needs.append({"keys": sum(counts.values()), "counts": counts, "groups": sorted(counts)})
    return needs


def progress(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> tuple[int, int]:
    """How many people's keys count, and how many that makes with those who are still missing at least.

    `holders` maps a person to that person's groups. What is wanted is satisfied when the two are equal.
    """
    turned: set[str] = set()
    missing = 0
    for one in requirements(wanted):
        placed = _placed(one, holders)
        turned |= placed
        missing = max(missing, _needed(one) - len(placed))
    return len(turned), len(turned) + missing


def is_satisfied(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> bool:
    """Whether these people's keys satisfy every single requirement."""
    return shortfall(wanted, holders) == 0


def shortfall(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> int:
    """How much is missing over all requirements: a key that does not lower it opens nothing."""
    return sum(_needed(one) - len(_placed(one, holders)) for one in requirements(wanted))


def implies(stricter: Mapping[str, Any], milder: Mapping[str, Any]) -> bool:
    """Whether whoever satisfies one requirement satisfies the other too."""
    more = dict(stricter["counts"])
    return (
        set(stricter["groups"]) <= set(milder["groups"])
        and _needed(stricter) >= _needed(milder)
        and all(more.get(group, 0) >= count for group, count in dict(milder["counts"]).items())
    )


def keys_needed(keys: int, counts: Mapping[str, int]) -> int:
    """How many keys a requirement asks for; nothing that is held is ever free."""
    return max(1, keys, sum(counts.values()))


def _needed(one: Mapping[str, Any]) -> int:
    return keys_needed(one["keys"], dict(one["counts"]))


def _placed(one: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> set[str]:
    """The people who fill the places of one requirement: one person fills at most one, each counted group has its own."""
    counts, groups = dict(one["counts"]), one["groups"]
    slots: list[Collection[str]] = [(group,) for group in sorted(counts) for _ in range(counts[group])]
    slots += [groups] * (_needed(one) - len(slots))
    fits = {
        person: [n for n, wanted in enumerate(slots) if any(group in wanted for group in theirs)]
        for person, theirs in holders.items()
        if any(group in groups for group in theirs)
    }
    filled: dict[int, str] = {}

    def place(person: str, tried: set[int]) -> bool:
        for slot in fits[person]:
            if slot in tried:
                continue
            tried.add(slot)
            if slot not in filled or place(filled[slot], tried):
                filled[slot] = person
                return True
        return False

    for person in sorted(fits):
        place(person, set())
    return set(filled.values())


# --- the reduction ------------------------------------------------------------------------------------------------


def _held(parts: dict[str, Any], tier: str, floor: int) -> dict[str, Any]:
    holds = parts["holds"]
    counts: dict[str, int] = {}
    for hold in holds:
        for group, count in hold.get("counts", {}).items():
            counts[group] = max(counts.get(group, 0), count)
    each = [_hold_keys_needed(hold) for hold in holds]
    keys = keys_needed(max(floor, *each), counts)
    groups = sorted({group for hold in holds for group in hold["groups"]})
    if len(groups) > findings_groups_max:
        _unfit("too_many_groups", f"at most {findings_groups_max} groups hold the keys of one action")
    highest = max((tier, *(hold["tier"] for hold in holds)), key=ruling_tiers.index)
    ruling = _ruling("needs_approval", "", "", highest, _reasons(holds))
    ruling["keys"] = keys
    ruling["counts"] = dict(sorted(counts.items()))
    ruling["groups"] = groups
    # The floor is met by any hold that asks for as many keys itself; where none does, it lies under each of them.
    ruling["needs"] = _needs(ruling, holds, floor if floor > max(each) else 1)
    ruling["two_person"] = keys >= 2
    ruling["expires_in_s"] = min(hold["expires_in_s"] for hold in holds)
    ruling["obligations"] = parts["obligations"]
    return ruling


def _hold_keys_needed(hold: dict[str, Any]) -> int:
    return sum(hold["counts"].values()) if "counts" in hold else 2 if hold["two_person"] else 1


def _needs(ruling: dict[str, Any], holds: list[dict[str, Any]], least: int) -> list[dict[str, Any]]:
    """What each hold asks for by itself, without what another one implies; nothing where keys, counts and groups say it all."""
    own = [
        {
            "keys": max(least, _hold_keys_needed(hold)),
            "counts": [[group, count] for group, count in sorted(hold.get("counts", {}).items())],
            "groups": sorted(hold["groups"]),
        }
        for hold in holds
    ]
    distinct = [one for _, one in sorted({str(one): one for one in own}.items())]
    if len(distinct) > findings_needs_max:
        _unfit("too_many_needs", f"at most {findings_needs_max} different demands for keys on one action")
    needs = [one for one in distinct if not any(implies(other, one) for other in distinct if other is not one)]
    return [] if len(needs) == 1 and implies(needs[0], ruling) and implies(ruling, needs[0]) else needs


def _ruling(effect: str, deny_kind: str, fault: str, tier: str, reasons: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "effect": effect,
        "deny_kind": deny_kind,
        "fault": fault,
        "tier": tier,
        "keys": 0,
        "counts": {},
        "groups": [],
        "needs": [],
        "two_person": False,
        "expires_in_s": 0,
        "reasons": reasons,
        "obligations": [],
    }


def _reasons(found: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"code": code, "message": message} for code, message in sorted({(f["code"], f["message"]) for f in found})]


# --- the shape ----------------------------------------------------------------------------------------------------


def check_findings(findings: object) -> dict[str, Any]:
    """The findings, if exactly of the known shape; else Unfit with the code of the rule that they break."""
    value = _record(findings, _finding_keys, "findings")
    if value["schema"] != FINDINGS_SCHEMA:
        _unfit("schema_unknown", "the findings are of another schema")
    echo = _record(value["echo"], frozenset(("request_id", "action_sha256")), "echo")
    policy = _record(value["policy"], frozenset(("package", "revision")), "policy")
    _text(echo["request_id"], 128, "echo.request_id")
    _text(policy["package"], 128, "policy.package")
    for digest, name in ((echo["action_sha256"], "echo.action_sha256"), (policy["revision"], "policy.revision")):
        if type(digest) is not str or not _hex64.fullmatch(digest):
            _unfit("not_a_digest", f"{name} is 64 hexadecimal digits")
    plain = frozenset(("code", "message"))
    denials = [_reason(item, plain, "denials") for item in _items(value["denials"], "denials")]
    grants = [_reason(item, plain, "grants") for item in _items(value["grants"], "grants")]
    holds = [_hold(item) for item in _items(value["holds"], "holds")]
    if len(denials) + len(grants) + len(holds) > findings_reasons_max:
        _unfit("too_many_reasons", f"at most {findings_reasons_max} reasons")
    obligations = [_obligation(item) for item in _items(value["obligations"], "obligations")]
    if len(obligations) > findings_obligations_max:
        _unfit("too_many_obligations", f"at most {findings_obligations_max} obligations")
    ordered = {str(sorted(item.items())): item for item in obligations}
    value = dict(value)
    value.update(denials=denials, grants=grants, holds=holds, obligations=[ordered[name] for name in sorted(ordered)])
    return value


def _subject_facts(subject: object) -> tuple[str, str, bool]:
    value = _record(subject, frozenset(("kind", "risk_tier", "reversible")), "subject")
    kind, tier, reversible = value["kind"], value["risk_tier"], value["reversible"]
    if type(kind) is not str or kind not in ruling_kinds:
        _unfit("subject_invalid", "the action is of an unknown kind")
    if type(tier) is not str or tier not in ruling_tiers:
        _unfit("subject_invalid", "the action is of an unknown tier")
    if type(reversible) is not bool:
        _unfit("subject_invalid", "the action does not say whether it can be reversed")
    return kind, tier, reversible


def _record(value: object, keys: frozenset[str], name: str) -> dict[str, Any]:
    if type(value) is not dict or frozenset(value) != keys:
        _unfit("shape", f"{name} has exactly the keys {', '.join(sorted(keys))}")
    return value


def _items(value: object, name: str) -> list[Any]:
    if type(value) is not list:
        _unfit("shape", f"{name} is a list")
    return value


def _text(value: object, chars_max: int, name: str) -> str:
    if type(value) is not str or not 1 <= len(value) <= chars_max:
        _unfit("text", f"{name} is text of 1 to {chars_max} characters")
    if hidden_character.search(value):
        _unfit("text", f"{name} holds a control, zero-width or direction character")
    return value


def _reason(item: object, keys: frozenset[str], name: str) -> dict[str, Any]:
    value = _record(item, keys, name)
    if type(value["code"]) is not str or not _finding_code.fullmatch(value["code"]):
        _unfit("code", f"a code of {name} is lower case letters, digits and underscores")
    _text(value["message"], 500, f"{name}.message")
    return value


def _hold(item: object) -> dict[str, Any]:
    counted = type(item) is dict and "counts" in item
    value = _reason(item, _hold_keys | {"counts"} if counted else _hold_keys, "holds")
    if type(value["tier"]) is not str or value["tier"] not in ruling_tiers:
        _unfit("tier", "a hold's tier is low, med or high")
    if type(value["two_person"]) is not bool:
        _unfit("shape", "two_person is true or false")
    seconds = value["expires_in_s"]
    if type(seconds) is not int or not hold_seconds_min <= seconds < hold_seconds_max:
        _unfit("expiry", f"expires_in_s is at least {hold_seconds_min} and below {hold_seconds_max}")
    groups = _items(value["groups"], "holds.groups")
    for group in groups:
        if type(group) is not str or not _finding_group.fullmatch(group):
            _unfit("group", "a group's name is lower case letters, digits, _ and -")
    if not groups or len(groups) > findings_groups_max or len(set(groups)) != len(groups):
        _unfit("group", f"a hold names 1 to {findings_groups_max} groups, each once")
    if counted:
        _check_counts(value)
    return value


def _check_counts(hold: dict[str, Any]) -> None:
    counts = _record(hold["counts"], frozenset(hold["groups"]), "counts")
    for count in counts.values():
        if type(count) is not int or not 1 <= count <= hold_count_max:
            _unfit("counts", f"a group's count is 1 to {hold_count_max}")
    if hold["two_person"] and sum(counts.values()) < 2:
        _unfit("counts", "two_person with counts needs at least two keys")


def _obligation(item: object) -> dict[str, Any]:
    known = _obligation_keys.get(item["type"]) if type(item) is dict and type(item.get("type")) is str else None
    if known is None:
        _unfit("obligation_unknown", "an obligation of a type that this product does not know")
    value = _record(item, frozenset(("type", *known)), "obligation")
    for name, seconds_max in known.items():
        if not seconds_max:
            _text(value[name], 200, f"obligation.{name}")
        elif type(value[name]) is not int or not 1 <= value[name] <= seconds_max:
            _unfit("obligation_value", f"obligation.{name} is 1 to {seconds_max}")
    return value


def _unfit(code: str, message: str) -> NoReturn:
    raise Unfit(code, message)


# ================== engine.ledger.tree ================================================================================

"""The Merkle tree of a tenant's log: RFC 6962 hashing, frontier, inclusion and consistency proofs, and checking them."""


hash_bytes = 32
size_max = 2**63 - 1


def leaf_hash(entry: bytes) -> bytes:
    """sha256(0x00, entry): the prefix keeps an inner node from being offered as an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """sha256(0x01, left, right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def empty_root() -> bytes:
    """The root of a tree without leaves: sha256 of nothing."""
    return hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """All that appending needs: the size and the roots of its complete subtrees, the largest (leftmost) first."""

    size: int = 0
    nodes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.nodes) != self.size.bit_count():
            raise BrokenLedger(f"{len(self.nodes)} nodes are no frontier of {self.size} leaves")
        if any(len(node) != hash_bytes for node in self.nodes):
            raise BrokenLedger("a frontier holds hashes of 32 bytes")

    def extend(self, leaves: Iterable[bytes]) -> Frontier:
        """The frontier after these leaf hashes."""
        size, nodes = self.size, list(self.nodes)
        for leaf in leaves:
            _check_hash(leaf, "leaf")
            node, carry = leaf, size
            while carry & 1:
                node = node_hash(nodes.pop(), node)
                carry >>= 1
            nodes.append(node)
            size += 1
        return Frontier(size, tuple(nodes))

    def append(self, leaf: bytes) -> Frontier:
        """The frontier after one leaf hash."""
        return self.extend((leaf,))

    @property
    def root(self) -> bytes:
        """The root of the tree with exactly this size."""
        if not self.nodes:
            return empty_root()
        node = self.nodes[-1]
        for left in reversed(self.nodes[:-1]):
            node = node_hash(left, node)
        return node


# The root of a complete subtree: (level, number) stands for the leaves from number << level up to (number + 1) << level.
Node = Callable[[int, int], bytes]


def root_of(size: int, node: Node) -> bytes:
    """The root of the first `size` leaves."""
    return _range(0, size, node) if size else empty_root()


def inclusion_path(index: int, size: int, node: Node) -> tuple[bytes, ...]:
    """The audit path of one leaf in the tree of the first `size` leaves, from the leaf upwards: O(log n) nodes are asked for."""
    if not 0 <= index < size:
        raise BrokenLedger(f"leaf {index} is not in a tree of {size}")
    path: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split_size(high - low)
        if index < middle:
            path.append(_range(middle, high, node))
            high = middle
        else:
            path.append(_range(low, middle, node))
            low = middle
    return tuple(reversed(path))


def consistency_path(old: int, new: int, node: Node) -> tuple[bytes, ...]:
    """The proof that the tree of the first `old` leaves is a prefix of that of the first `new`."""
    if not 0 <= old <= new:
        raise BrokenLedger(f"a tree of {old} is no prefix of a tree of {new}")
    if old in (0, new):
        return ()
    path: list[bytes] = []
    low, high, whole = 0, new, True
    while old != high:
        middle = low + _split_size(high - low)
        if old <= middle:
            path.append(_range(middle, high, node))
            high = middle
        else:
            path.append(_range(low, middle, node))
            low, whole = middle, False
    if not whole:
        path.append(_range(low, high, node))
    return tuple(reversed(path))


def _range(low: int, high: int, node: Node) -> bytes:
    # Every range asked for starts at a multiple of the power of two that covers it, so its complete parts are nodes.
    level = (high - low - 1).bit_length()
    if high - low == 1 << level and low % (high - low) == 0:
        return node(level, low >> level)
    middle = low + _split_size(high - low)
    return node_hash(_range(low, middle, node), _range(middle, high, node))


class Tree:
    """A whole tree in memory: every complete subtree is hashed once, so a proof costs O(log n)."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        _check_hash(leaf, "leaf")
        self._levels[0].append(leaf)
        level = 0
        while len(self._levels[level]) % 2 == 0:
            if level + 1 == len(self._levels):
                self._levels.append([])
            row = self._levels[level]
            self._levels[level + 1].append(node_hash(row[-2], row[-1]))
            level += 1

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return len(self._levels[0])

    def node(self, level: int, number: int) -> bytes:
        """The root of one complete subtree."""
        return self._levels[level][number]

    def root(self, size: int | None = None) -> bytes:
        """The root of the first `size` leaves, or of all."""
        return root_of(self._checked(size), self.node)

    def inclusion(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """The audit path of one leaf in the tree of the first `size` leaves, from the leaf upwards."""
        return inclusion_path(index, self._checked(size), self.node)

    def consistency(self, old: int, new: int | None = None) -> tuple[bytes, ...]:
        """The proof that the tree of the first `old` leaves is a prefix of that of the first `new`."""
        return consistency_path(old, self._checked(new), self.node)

    def _checked(self, size: int | None) -> int:
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise BrokenLedger(f"this tree holds {self.size} leaves, not {size}")
        return size


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Return when the leaf stands at the index of the tree with this size and root; raise otherwise."""
    if not 0 <= index < size <= size_max:
        raise BrokenLedger(f"leaf {index} is not in a tree of {size}", code="inclusion")
    _check_hashes((leaf, root, *proof))
    inner = (index ^ (size - 1)).bit_length()
    border = (index >> inner).bit_count()
    if len(proof) != inner + border:
        raise BrokenLedger(f"the proof has {len(proof)} hashes, not {inner + border}", code="inclusion")
    node = leaf
    for level, other in enumerate(proof):
        if level < inner and not index >> level & 1:
            node = node_hash(node, other)
        else:
            node = node_hash(other, node)
    if node != root:
        raise BrokenLedger(f"leaf {index} does not lead to the root of the tree of {size}", code="inclusion")


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Return when the old tree is a prefix of the new one; raise otherwise."""
    if not 0 <= old <= new <= size_max:
        raise BrokenLedger(f"a tree of {old} is no prefix of a tree of {new}", code="consistency")
    _check_hashes((old_root, new_root, *proof))
    if old in (0, new):
        if proof or old_root != (new_root if old else empty_root()):
            raise BrokenLedger(f"the trees of {old} and {new} do not fit", code="consistency")
        return
    # The proof starts at the largest complete subtree that ends where the old tree ends.
    shift = (old & -old).bit_length() - 1
    inner = ((old - 1) ^ (new - 1)).bit_length() - shift
    border = ((old - 1) >> (inner + shift)).bit_count()
    start = 0 if old == 1 << shift else 1
    if len(proof) != start + inner + border:
        raise BrokenLedger(f"the proof has {len(proof)} hashes, not {start + inner + border}", code="consistency")
    seed = proof[0] if start else old_root
    path, mask = proof[start:], (old - 1) >> shift
    before, after = seed, seed
    for level, other in enumerate(path):
        if level < inner and not mask >> level & 1:
            after = node_hash(after, other)
        else:
            before, after = node_hash(other, before), node_hash(other, after)
    if before != old_root:
        raise BrokenLedger(f"the proof does not lead to the root of the tree of {old}", code="consistency")
    if after != new_root:
        raise BrokenLedger(f"the proof does not lead to the root of the tree of {new}", code="consistency")


def _split_size(size: int) -> int:
    return 1 << ((size - 1).bit_length() - 1)


def _check_hash(value: bytes, what: str) -> None:
    if type(value) is not bytes or len(value) != hash_bytes:
        raise BrokenLedger(f"a {what} is a hash of 32 bytes", code="hash_size")


def _check_hashes(values: Sequence[bytes]) -> None:
    for value in values:
        _check_hash(value, "proof")


# ================== engine.ledger.ed25519 =============================================================================

"""Ed25519 verification, strict (RFC 8032): by `cryptography` where it is installed, else by the arithmetic below.

Both ways accept exactly the same: a canonical key that is not of small order, S below the group's order, and the one
encoding of R that the equation gives.
"""


try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    has_cryptography = True
except ImportError:
    has_cryptography = False

Point: TypeAlias = tuple[int, int, int, int]

_prime = 2**255 - 19
_order = 2**252 + 27742317777372353535851937790883648493
_curve_d = -121665 * pow(121666, _prime - 2, _prime) % _prime
_root_of_minus_one = pow(2, (_prime - 1) // 4, _prime)
_neutral: Point = (0, 1, 1, 0)


@lru_cache(maxsize=256)
def check_public(public: bytes) -> None:
    """Return when these 32 bytes are a key that can be trusted; a key of small order would accept forged signatures."""
    point = _decode_point(public) if len(public) == 32 else None
    if point is None:
        raise BrokenLedger("not a canonical Ed25519 key", code="weak-key")
    for _ in range(3):
        point = _add_points(point, point)
    if _is_neutral(point):
        raise BrokenLedger("an Ed25519 key of small order accepts forged signatures", code="weak-key")


def verify_signature(public: bytes, message: bytes, signature: bytes, *, arithmetic: bool = False) -> bool:
    """Whether the holder of this key signed this message; `arithmetic` forces the way without `cryptography`."""
    if len(public) != 32 or len(signature) != 64 or int.from_bytes(signature[32:], "little") >= _order:
        return False
    if arithmetic or not has_cryptography:
        return _verify_point(public, message, signature)
    try:
        check_public(public)
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (BrokenLedger, InvalidSignature, ValueError):
        return False
    return True


def _verify_point(public: bytes, message: bytes, signature: bytes) -> bool:
    point = _decode_point(public)
    if point is None or _is_neutral(_add_points(*[_add_points(*[_add_points(point, point)] * 2)] * 2)):
        return False
    s = int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % _order
    x, y, z, t = point
    return _encode_point(_double_scalar(s, _base_of_curve, k, (_prime - x, y, z, _prime - t))) == signature[:32]


def _double_scalar(s: int, left: Point, k: int, right: Point) -> Point:
    """s times the left plus k times the right point, both scalars in one pass."""
    both = _add_points(left, right)
    result = _neutral
    for bit in range(max(s.bit_length(), k.bit_length()) - 1, -1, -1):
        result = _add_points(result, result)
        which = (s >> bit & 1, k >> bit & 1)
        if which == (1, 1):
            result = _add_points(result, both)
        elif which == (1, 0):
            result = _add_points(result, left)
        elif which == (0, 1):
            result = _add_points(result, right)
    return result


def _add_points(left: Point, right: Point) -> Point:
    # RFC 8032 5.1.4: complete, so doubling needs no case of its own.
    a = (left[1] - left[0]) * (right[1] - right[0]) % _prime
    b = (left[1] + left[0]) * (right[1] + right[0]) % _prime
    c = 2 * left[3] * right[3] * _curve_d % _prime
    d = 2 * left[2] * right[2] % _prime
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _prime, g * h % _prime, f * g % _prime, e * h % _prime


def _decode_point(raw: bytes) -> Point | None:
    """The point of its one encoding; None for a y that is not reduced, an x that does not exist, or minus zero."""
    y = int.from_bytes(raw, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= _prime:
        return None
    square = (y * y - 1) * pow(_curve_d * y * y + 1, _prime - 2, _prime) % _prime
    x = pow(square, (_prime + 3) // 8, _prime)
    if (x * x - square) % _prime:
        x = x * _root_of_minus_one % _prime
    if (x * x - square) % _prime or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _prime - x
    return x, y, 1, x * y % _prime


def _encode_point(point: Point) -> bytes:
    inverse = pow(point[2], _prime - 2, _prime)
    x, y = point[0] * inverse % _prime, point[1] * inverse % _prime
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _is_neutral(point: Point) -> bool:
    return point[0] % _prime == 0 and (point[1] - point[2]) % _prime == 0


def _base_point() -> Point:
    point = _decode_point((4 * pow(5, _prime - 2, _prime) % _prime).to_bytes(32, "little"))
    assert point is not None, "the base point of the curve is on the curve"
    return point


_base_of_curve = _base_point()


# ================== engine.ledger.entries =============================================================================

"""Audit entries: the published catalogue, building one entry's exact bytes, and reading one strictly."""


GENESIS = bytes(32)
ACTOR_TYPES = ("person", "system", "service")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One type of fact per line, dotted and past tense, with exactly the keys of its body.
CATALOGUE: dict[str, tuple[str, ...]] = {
    "run.queued": _words("workflow version definition_sha256 trigger_type trigger_ref workspace input_sha256"),
    "run.started": _words("journal_version"),
    "action.proposed": _words(
        "promise rev step connector operation kind risk reversible target_type target key_sha256 action_sha256"
    ),
    "action.edited": _words("approval promise action_sha256 person fields_sha256 via"),
    "verdict.given": _words(
        "promise n purpose effect deny_kind retryable tier keys counts groups expires_in_s reasons "
        "action_sha256 policy_revision engine engine_version input_sha256 findings_sha256"
    ),
    "approval.asked": _words(
        "approval promise action_sha256 card_sha256 tier keys counts groups expires_at lineage "
        "verdict_n policy_revision"
    ),
    "key.given": _words(
        "approval person level groups action_sha256 card_sha256 card_rev policy_revision blocks_sha256 via given needed"
    ),
    "key.refused": _words("approval person code via count"),
    "rejection.given": _words("approval person level groups action_sha256 via given needed reason_sha256"),
    "approval.stopped": _words("approval promise action_sha256 person reason_sha256"),
    "approval.released": _words("approval promise action_sha256 persons"),
    "approval.rejected": _words("approval promise action_sha256 person reason_sha256"),
    "glass.broken": _words(
        "approval promise person level groups action_sha256 card_sha256 policy_revision via ticket_sha256 reason_sha256 due_at"
    ),
    "review.given": _words("approval person groups how via given needed reason_sha256"),
    "debt.overdue": _words("reviews"),
    "approval.reminded": _words("approval promise share persons"),
    "approval.escalated": _words("approval promise group persons"),
    "approval.expired": _words("approval promise action_sha256"),
    "approval.canceled": _words("approval promise action_sha256 why"),
    "effect.intended": _words("promise attempt key_sha256 action_sha256 verdict_n approval policy_revision"),
    "effect.receipted": _words("promise attempt n status key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.unknown": _words("promise attempt n key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.resolved": _words("promise attempt n how person key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.retried": _words("promise attempt error_class retry_at"),
    "effect.reused": _words("promise key_sha256 action_sha256 receipt_sha256 run"),
    "effect.looked": _words("promise attempt error_class"),
    "doubt.asked": _words("doubt promise attempt action_sha256 keys lineage"),
    "word.given": _words("doubt promise attempt person groups how via given needed reason_sha256"),
    "word.refused": _words("doubt person how code via count"),
    "reversal.proposed": _words("promise step of"),
    "step.completed": _words("promise step"),
    "step.failed": _words("promise step error_class"),
    "task.asked": _words("task promise step form_sha256 groups expires_at keys counts signers"),
    "task.answered": _words("task promise person groups form_sha256 answer_sha256 via"),
    "task.expired": _words("task promise"),
    "task.canceled": _words("task promise why"),
    "operator.asked": _words("task promise step error_class expires_at"),
    "operator.answered": _words("task promise person how via"),
    "operator.expired": _words("task promise"),
    "operator.canceled": _words("task promise why"),
    "signal.sent": _words("person name delivery payload_sha256"),
    "cancel.requested": _words("person reason_sha256"),
    "cancel.inherited": _words("run promise"),
    "parent.named": _words("run promise depth"),
    "child.started": _words("promise run workflow version definition_sha256"),
    "child.ended": _words("promise run status error_class journal_version journal_head"),
    "run.continued": _words("promise run workflow version definition_sha256"),
    "run.migrated": _words("person from_sha256 definition_sha256 version journal_version"),
    "run.retried": _words("person count"),
    "change.proposed": _words(
        "operation target draft n base_revision revision bundle_sha256 people authors reason_sha256"
    ),
    "run.closed": _words("status entries journal_version journal_head"),
    "evidence.sealed": _words("sha256 size key version_id"),
    "evidence.downloaded": _words("sha256 person"),
    "template.created": _words("name version definition_sha256"),
    "template.activated": _words("name version definition_sha256"),
    "template.archived": _words("name version definition_sha256"),
    "template.paused": _words("name version definition_sha256"),
    "schedule.set": _words("schedule workflow person kind zone catch_up most overlap input_sha256"),
    "schedule.dropped": _words("schedule workflow person why"),
    "schedule.fired": _words("schedule workflow person run due_at"),
    "schedule.skipped": _words("schedule workflow count why"),
    "person.added": _words("person level kind"),
    "person.linked": _words("person identity_kind identity_sha256"),
    "person.owned": _words("person owner"),
    "person.deactivated": _words("person"),
    "person.away": _words("person delegate from_at until_at"),
    "group.changed": _words("group person change"),
    "tenant.created": _words("tenant"),
    "workspace.added": _words("workspace"),
    "caps.changed": _words("scope name max_concurrency max_concurrent_runs max_runs_per_min max_writes_per_run weight"),
    "gate.changed": _words("rule_author zone quiet_from quiet_until review_seconds"),
    "policy.activated": _words("revision bundle_sha256"),
    "policy.published": _words("revision bundle_sha256 base_revision draft n how run until"),
    "policy.drafted": _words("draft n base_revision draft_sha256"),
    "policy.withdrawn": _words("draft"),
    "policy.shadowed": _words("draft change"),
    "freeze.begun": _words("freeze scope name person reason_sha256"),
    "freeze.ended": _words("freeze scope name run"),
    "key.created": _words("purpose key_id"),
    "key.rotated": _words("purpose key_id before signs_until"),
    "key.compromised": _words("purpose key_id"),
    "export.changed": _words("export change target form position"),
    "log.exported": _words("person position size"),
}

# What a body has only where there is something to say. `needs`: the holds on an action ask for different things, and each
# must be satisfied on its own. `for_person`: who was away, in whose groups and in whose place a key was turned.
# `seconds` and `viewed`: how long the person took, and whether the whole request had been before them.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "verdict.given": ("needs",),
    "approval.asked": ("needs",),
    "key.given": ("for_person", "seconds", "viewed"),
}

_body_keys = {kind: frozenset(keys) for kind, keys in CATALOGUE.items()}
_optional_keys = {kind: frozenset(OPTIONAL.get(kind, ())) for kind in CATALOGUE}

# What a body key holds; a key named in none of these holds text.
_numbers = frozenset(
    _words(
        "rev n keys expires_in_s verdict_n card_rev given needed count attempt level entries size journal_version delivery depth "
        "share quiet_from quiet_until review_seconds seconds "
        "max_concurrency max_concurrent_runs max_runs_per_min max_writes_per_run weight people most position"
    )
)
_flags = frozenset(_words("retryable reversible rule_author viewed"))
_text_lists = frozenset(_words("groups reasons persons signers authors reviews"))
_by_rule = frozenset(_words("counts needs lineage version"))

_entry_keys = frozenset(_words("v tenant chain chain_seq prev at type actor body commit"))
_actor_keys = frozenset(("type", "id"))
_entry_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_entry_digest = re.compile(r"[0-9a-f]{64}")
_tenant = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_chain = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
_at = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


_quoted = json.encoder.encode_basestring


def _form(name: str) -> str:
    if name in _numbers:
        return "number"
    if name in _flags or name in _text_lists or name in _by_rule:
        return "rule"
    return "digest" if name.endswith("sha256") or name == "journal_head" else "text"


# Of each type its body's keys in their order, each with the text before its value and how that is written.
_plans = {kind: tuple((name, f'"{name}":', _form(name)) for name in sorted(keys)) for kind, keys in CATALOGUE.items()}


@dataclass(frozen=True, slots=True)
class Fact:
    """What happened and who did it, before it has a place in a chain."""

    type: str
    actor: dict[str, str]
    body: dict[str, Any]
    commit: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One audit entry as read from its exact bytes."""

    tenant: str
    chain: str
    chain_seq: int
    prev: str
    at: str
    type: str
    actor: dict[str, str]
    body: dict[str, Any]
    commit: tuple[str, ...]
    leaf: bytes


def build(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> tuple[bytes, bytes]:
    """The bytes to store and their leaf hash; `prev` is the leaf hash of the chain's last entry, GENESIS for the first."""
    data = _quickly(fact, tenant, chain, chain_seq, prev, at)
    if data is None:
        data = _slowly(fact, tenant, chain, chain_seq, prev, at)
    if len(data) > entry_bytes_max:
        _bad_entry("entry-size", f"{fact.type} has {len(data)} bytes; an entry has at most {entry_bytes_max}")
    return data, leaf_hash(data)


def _slowly(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> bytes:
    """By the rules one after the other; whatever is wrong is refused here, with its reason."""
    value = {
        "v": 1,
        "tenant": tenant,
        "chain": chain,
        "chain_seq": chain_seq,
        "prev": prev.hex(),
        "at": stamp(at),
        "type": fact.type,
        "actor": fact.actor,
        "body": fact.body,
        "commit": list(fact.commit),
    }
    _check_entry(value)
    return _canonical_entry(value)


def _quickly(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> bytes | None:
    """What nearly every fact is, written around its type's constant text; None when anything is not as it should be."""
    plan, actor, body = _plans.get(fact.type), fact.actor, fact.body
    if plan is None or type(actor) is not dict or len(actor) != 2 or fact.commit or len(prev) != len(GENESIS):
        return None
    if type(body) is not dict or len(body) != len(plan) or type(tenant) is not str or type(chain) is not str:
        return None
    who, kind = actor.get("id"), actor.get("type")
    if type(who) is not str or kind not in ACTOR_TYPES or type(chain_seq) is not int or not 0 <= chain_seq <= int_max:
        return None
    if at.tzinfo is None or not _tenant.fullmatch(tenant) or not _chain.fullmatch(chain):
        return None
    parts = []
    for name, before, form in plan:
        item = body.get(name)
        if form == "text":
            if type(item) is not str:
                return None
            parts.append(before + _quoted(item))
        elif form == "digest":
            if type(item) is not str or (item and not _entry_digest.fullmatch(item)):
                return None
            parts.append(f'{before}"{item}"')
        elif form == "number":
            if type(item) is not int or not 0 <= item <= int_max:
                return None
            parts.append(f"{before}{item}")
        elif name not in body or not _holds(name, item):
            return None
        else:
            parts.append(before + _entry_encoder.encode(item))
    text = (
        f'{{"actor":{{"id":{_quoted(who)},"type":"{kind}"}},"at":"{stamp(at)}","body":{{{",".join(parts)}}},"chain":"{chain}",'
        f'"chain_seq":{chain_seq},"commit":[],"prev":"{prev.hex()}","tenant":"{tenant}","type":"{fact.type}","v":1}}'
    )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


def read_entry(data: bytes) -> Entry:
    """The entry these bytes hold; anything but the canonical bytes of a catalogued fact is refused."""
    value = _plainly(data)
    if value is None:
        value = _strictly(data)
    parts = {name: item for name, item in value.items() if name not in ("v", "commit")}
    return Entry(**parts, commit=tuple(value["commit"]), leaf=leaf_hash(data))


def _strictly(data: bytes) -> dict[str, Any]:
    if len(data) > entry_bytes_max:
        _bad_entry("entry-size", f"{len(data)} bytes; an entry has at most {entry_bytes_max}")
    try:
        value = read_json(data, bytes_max=entry_bytes_max)
    except CallerError as error:
        _bad_entry("entry-parse", error.reason)
    _check_entry(value)
    instant(value["at"])
    if _canonical_entry(value) != data:
        _bad_entry("entry-noncanonical", "the bytes are not the canonical form of what they say")
    assert type(value) is dict, "what was checked is an entry"
    return value


def _plainly(data: bytes) -> dict[str, Any] | None:
    """What nearly every entry is, read without the strict reader: its checks say nothing that canonical bytes do not say too.

    Doubled keys, fractions, marks and whatever else they refuse would not be written again as these very bytes. Anything
    that does not pass here is read again, strictly, for the reason.
    """
    if len(data) > entry_bytes_max or data.count(b"[") + data.count(b"{") > json_depth_max:
        return None
    try:
        value = json.loads(data.decode("utf-8"))
        _check_entry(value)
        instant(value["at"])
        same = _canonical_entry(value) == data
    except (ValueError, BrokenLedger):
        return None
    return value if same and type(value) is dict else None


def _canonical_entry(value: dict[str, Any]) -> bytes:
    # After _check_entry every key and every type is known to be of the JCS profile; only the text is left to check.
    try:
        return _entry_encoder.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        _bad_entry("entry-noncanonical", f"{value['type']}: text is valid Unicode (a lone surrogate is not)")


def stamp(at: datetime) -> str:
    """UTC with six digits and a Z: fixed width, so that text order is time order."""
    if at.tzinfo is None:
        _bad_entry("entry-time", "a time without a zone says nothing")
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def instant(text: str) -> datetime:
    """The moment that a stamp names."""
    if not _at.fullmatch(text):
        _bad_entry("entry-time", f"{text[:40]!r} is not a time like 2026-08-21T10:11:12.345678Z")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        _bad_entry("entry-time", f"{text!r} is not a moment of the calendar")


def _check_entry(value: Any) -> None:
    if type(value) is not dict or value.keys() != _entry_keys:
        _bad_entry("entry-shape", f"an entry has exactly the keys {', '.join(sorted(_entry_keys))}")
    if type(value["v"]) is not int or value["v"] != 1:
        _bad_entry("entry-shape", "the version of an entry is 1")
    _check_written(value["tenant"], _tenant, "tenant")
    _check_written(value["chain"], _chain, "chain")
    if type(value["chain_seq"]) is not int or not 0 <= value["chain_seq"] <= int_max:
        _bad_entry("entry-shape", "chain_seq counts from 0")
    _check_written(value["prev"], _entry_digest, "prev")
    _check_written(value["at"], _at, "at")
    actor = value["actor"]
    if type(actor) is not dict or actor.keys() != _actor_keys or actor["type"] not in ACTOR_TYPES:
        _bad_entry("entry-shape", "the actor is {type: person|system|service, id}")
    if type(actor["id"]) is not str:
        _bad_entry("entry-shape", "the actor's id is text")
    if type(value["commit"]) is not list:
        _bad_entry("entry-shape", "commit is a list")
    for commitment in value["commit"]:
        _check_written(commitment, _entry_digest, "commitment")
    check_body(value["type"], value["body"])


def check_body(kind: Any, body: Any) -> None:
    """Return when the body has exactly the keys of its type and each holds what its name says; raise otherwise."""
    if type(kind) is not str or kind not in CATALOGUE:
        _bad_entry("entry-type", f"{str(kind)[:60]!r} is not in the catalogue of entries")
    if type(body) is not dict or body.keys() - _optional_keys[kind] != _body_keys[kind]:
        given = set(body) if type(body) is dict else set()
        wrong = sorted(str(name) for name in given ^ _body_keys[kind])
        _bad_entry("entry-body", f"{kind}: missing or unknown keys: {', '.join(wrong)}")
    for name, item in body.items():
        if not _holds(name, item):
            _bad_entry("entry-body", f"{kind}: {name} does not hold what its name says")


def _holds(name: str, item: Any) -> bool:
    if name in _numbers:
        return type(item) is int and 0 <= item <= int_max
    if name in _flags:
        return type(item) is bool
    if name in _text_lists:
        return type(item) is list and all(type(one) is str for one in item)
    if name == "counts":
        return type(item) is list and all(_is_count(one) for one in item)
    if name == "needs":
        return type(item) is list and len(item) > 0 and all(_is_need(one) for one in item)
    if name == "lineage":
        return type(item) is list and all(_is_ancestor(one) for one in item)
    if name == "version":
        return type(item) is str or (type(item) is int and 0 <= item <= int_max)
    if type(item) is not str:
        return False
    if name.endswith("sha256") or name == "journal_head":
        return not item or _entry_digest.fullmatch(item) is not None
    return True


def holds_of(name: str) -> str:
    """What a body key holds, in a word for people; empty for text."""
    if name in _numbers:
        return "number"
    if name in _flags:
        return "true or false"
    if name in _text_lists or name in ("counts", "lineage"):
        return "list"
    return "digest" if name.endswith("sha256") or name == "journal_head" else ""


def _is_count(item: Any) -> bool:
    # A group's name may hold a dash, which a key of the canonical form may not: hence pairs.
    return (
        type(item) is list and len(item) == 2 and type(item[0]) is str and type(item[1]) is int and 1 <= item[1] <= 99
    )


def _is_need(item: Any) -> bool:
    names = ("counts", "groups", "keys")
    return type(item) is dict and tuple(sorted(item)) == names and all(_holds(name, item[name]) for name in names)


def _is_ancestor(item: Any) -> bool:
    return type(item) is dict and set(item) == {"person", "why"} and all(type(part) is str for part in item.values())


def _check_written(item: Any, pattern: re.Pattern[str], what: str) -> None:
    if type(item) is not str or not pattern.fullmatch(item):
        _bad_entry("entry-shape", f"{str(item)[:60]!r} is not a {what}")


def _bad_entry(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.container ===========================================================================

"""The zip container of a bundle: one writing per content, STORED, and a reader that accepts no other bytes.

Read and written here, because the ordinary readers accept doubled names, junk around the archive and members that
overlap. Nothing is ever extracted to a disk.
"""


container_bytes_max = 1_073_741_824
container_files_max = 65_000
name_chars_max = 200

_file_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_local = struct.Struct("<IHHHHHIIIHH")
_central = struct.Struct("<IHHHHHHIIIHHHHHII")
_end = struct.Struct("<IHHHHIIH")
_local_mark, _central_mark, _end_mark = 0x04034B50, 0x02014B50, 0x06054B50
_version, _made_on_unix = 10, 3 << 8 | 10
_first_day = 1 << 5 | 1  # 1980-01-01, the first day that a zip can name
_mode = 0o100644 << 16


def write_container(files: Mapping[str, bytes]) -> bytes:
    """The one archive of these files."""
    for name in files:
        _check_name(name)
    return b"".join(bytes(piece) for piece in _pieces({name: memoryview(data) for name, data in files.items()}))


def read_container(data: bytes) -> dict[str, memoryview]:
    """The members of an archive by name, as views of its bytes; what is not one plain sequence of files is refused."""
    if len(data) > container_bytes_max:
        _bad_zip("zip-size", f"{len(data)} bytes; a bundle has at most {container_bytes_max}")
    view = memoryview(data)
    count, start, end = _read_end(data)
    files: dict[str, memoryview] = {}
    folded: set[str] = set()
    at, offset, before = start, 0, ""
    for _ in range(count):
        if at + _central.size > end:
            _bad_zip("zip-layout", "the directory ends early")
        head = _central.unpack_from(data, at)
        if head[0] != _central_mark:
            _bad_zip("zip-layout", f"no directory record stands at byte {at}")
        name = _read_name(data, at + _central.size, head[10])
        if head[4]:
            _bad_zip("zip-method", f"{name} is compressed; members are stored as they are")
        if name.lower() in folded:
            _bad_zip("zip-dup", f"{name} stands twice")
        folded.add(name.lower())
        if name <= before:
            _bad_zip("zip-layout", f"{name} is not in its place; names are sorted")
        if head[16] != offset or head[8] != head[9]:
            _bad_zip("zip-layout", f"{name} does not follow the member before it")
        body = offset + _local.size + len(name)
        offset = body + head[9]
        if offset > start:
            _bad_zip("zip-layout", f"{name} reaches into the directory")
        files[name] = view[body:offset]
        before, at = name, at + _central.size + head[10] + head[11] + head[12]
    if offset != start or at != end:
        _bad_zip("zip-prefix" if offset < start else "zip-layout", "bytes that belong to no member")
    return files


def check_canonical(data: bytes, files: Mapping[str, memoryview]) -> None:
    """Return when writing these members again gives exactly these bytes; raise otherwise."""
    view, at = memoryview(data), 0
    for piece in _pieces(files):
        if view[at : at + len(piece)] != piece:
            _bad_zip("zip-noncanonical", f"from byte {at} on this is not how these members are written")
        at += len(piece)
    if at != len(data):
        _bad_zip("zip-noncanonical", "bytes follow the archive")


def _pieces(files: Mapping[str, memoryview]) -> Iterator[bytes | memoryview]:
    directory: list[bytes] = []
    offset = 0
    for name in sorted(files):
        raw, body = name.encode("ascii"), files[name]
        crc, size = binascii.crc32(body), len(body)
        if offset + size >= 2**32 - 1 or len(directory) >= container_files_max:
            _bad_zip("zip-size", "a bundle stays below 4 GiB and 65,000 files")
        shared = (0, 0, 0, _first_day, crc, size, size, len(raw), 0)
        directory.append(_central.pack(_central_mark, _made_on_unix, _version, *shared, 0, 0, 0, _mode, offset) + raw)
        yield _local.pack(_local_mark, _version, *shared) + raw
        yield body
        offset += _local.size + len(raw) + size
    yield from directory
    length = sum(len(record) for record in directory)
    yield _end.pack(_end_mark, 0, 0, len(directory), len(directory), length, offset, 0)


def _read_end(data: bytes) -> tuple[int, int, int]:
    """How many members there are, and where their directory starts and ends."""
    at = len(data) - _end.size
    if at < 0 or data[at : at + 4] != _end_mark.to_bytes(4, "little"):
        where = data.rfind(_end_mark.to_bytes(4, "little"))
        _bad_zip("zip-trailing" if where >= 0 else "zip-layout", "the file does not end as a plain zip archive ends")
    _, disk, first_disk, here, count, length, start, comment = _end.unpack_from(data, at)
    if comment:
        _bad_zip("zip-comment", "the archive carries a comment")
    if disk or first_disk or here != count or count > container_files_max:
        _bad_zip("zip-layout", "the archive is not in one piece")
    if start + length != at:
        _bad_zip("zip-prefix" if start + length < at else "zip-layout", "the directory is not where it should be")
    return count, start, at


def _read_name(data: bytes, at: int, size: int) -> str:
    raw = data[at : at + size]
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        _bad_zip("zip-name", f"{raw[:60]!r} is not a plain name")
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if len(name) > name_chars_max or not _file_name.fullmatch(name):
        _bad_zip("zip-name", f"{name[:60]!r} is not a plain name: letters, digits, dots, dashes and slashes")


def _bad_zip(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.notes ===============================================================================

"""Signed checkpoints of a log: C2SP signed notes, tlog-checkpoints, vkeys and witness cosignatures."""


ED25519 = 1  # the signature type of a log
COSIGNATURE = 4  # the signature type of a witness: a time, then a signature
note_bytes_max = 65_536
note_signatures_max = 100

_decimal = re.compile(r"0|[1-9][0-9]{0,18}")
_key_name = re.compile(r"[^\s+\x00-\x20\x7f]{1,255}")
_signature_line = re.compile("— ([^ ]+) ([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A named public key as trust policies write it."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self) -> bytes:
        """The four bytes that a signature line carries for this key."""
        return key_hash(self.name, self.kind, self.public)


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: who claims to have signed, under which key id, and the bytes."""

    name: str
    id: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A text and its signatures, not yet verified."""

    text: bytes
    signatures: tuple[NoteSignature, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log says of itself: its name, how many entries it has, and their root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> bytes:
        """The exact text that is signed."""
        root = base64.b64encode(self.root).decode("ascii")
        return f"{self.origin}\n{self.size}\n{root}\n".encode()


def log_origin(deployment: str, tenant: str, shard: int = 0) -> str:
    """The name of one tenant's log: the verifier reads the tenant back from it."""
    return f"{deployment}/log/{tenant}/{shard}"


def tenant_of(origin: str) -> str:
    """The tenant that a log's name says it belongs to, empty when it says none."""
    parts = origin.split("/")
    return parts[-2] if len(parts) >= 4 and parts[-3] == "log" and _decimal.fullmatch(parts[-1]) else ""


def key_hash(name: str, kind: int, public: bytes) -> bytes:
    """sha256(name, newline, type, key), the first four bytes."""
    return hashlib.sha256(name.encode() + b"\n" + bytes((kind,)) + public).digest()[:4]


def write_vkey(name: str, public: bytes, kind: int = ED25519) -> str:
    """`name+hash+base64(type, key)`: how a public key is handed to those who verify."""
    if not _key_name.fullmatch(name):
        _bad_note("vkey", f"{name[:40]!r} is not a key's name: no spaces and no plus")
    check_public(public)
    key = base64.b64encode(bytes((kind,)) + public).decode("ascii")
    return f"{name}+{key_hash(name, kind, public).hex()}+{key}"


def read_vkey(text: str) -> VerifierKey:
    """The key of one vkey; another writing, another hash or a weak key is refused."""
    name, _, rest = text.partition("+")
    digits, _, key = rest.partition("+")
    raw = read_base64(key)
    if not _key_name.fullmatch(name) or not re.fullmatch(r"[0-9a-f]{8}", digits) or raw is None or len(raw) != 33:
        _bad_note("vkey", f"{text[:60]!r} is not written as name+hash+key")
    if raw[0] not in (ED25519, COSIGNATURE):
        _bad_note("vkey", f"the key {name} is of type {raw[0]}; 1 is a log's, 4 a witness's")
    if key_hash(name, raw[0], raw[1:]).hex() != digits:
        _bad_note("vkey", f"the hash of the key {name} is not its own")
    check_public(raw[1:])
    return VerifierKey(name, raw[0], raw[1:])


def sign_note(text: bytes, name: str, public: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """The note of this text with one signature; the same text and key give the same bytes."""
    return text + b"\n" + signature_line(name, key_hash(name, ED25519, public) + sign(text))


def signature_line(name: str, signed: bytes) -> bytes:
    """One signature as the line that ends a note."""
    return f"— {name} {base64.b64encode(signed).decode('ascii')}\n".encode()


def read_note(data: bytes) -> Note:
    """Split a note into text and signatures, strictly; nothing is verified here."""
    if len(data) > note_bytes_max:
        _bad_note("note", f"a note has at most {note_bytes_max} bytes")
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError:
        _bad_note("note", "a note is UTF-8")
    if re.search("[\x00-\x09\x0b-\x1f]", whole):
        _bad_note("note", "a note holds no control characters")
    at = whole.rfind("\n\n")
    if at < 0 or not whole.endswith("\n"):
        _bad_note("note", "a note is a text, an empty line and signature lines")
    text, lines = whole[: at + 1], whole[at + 2 :].split("\n")[:-1]
    if not 1 <= len(lines) <= note_signatures_max:
        _bad_note("note", f"a note has 1 to {note_signatures_max} signatures")
    return Note(text.encode(), tuple(_read_signature(line) for line in lines))


def _read_signature(line: str) -> NoteSignature:
    match = _signature_line.fullmatch(line)
    raw = read_base64(match[2]) if match else None
    if match is None or raw is None or len(raw) < 5 or not _key_name.fullmatch(match[1]):
        _bad_note("note", f"{line[:60]!r} is not a signature line")
    return NoteSignature(match[1], raw[:4], raw[4:])


def read_checkpoint(text: bytes) -> Checkpoint:
    """The checkpoint of a note's text: three lines, a decimal size, a hash of 32 bytes and nothing else."""
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        _bad_note("checkpoint", "a checkpoint is UTF-8")
    if len(lines) != 4 or lines[3]:
        _bad_note("checkpoint", "a checkpoint has exactly the lines origin, size and root")
    origin, digits, key = lines[:3]
    if not _key_name.fullmatch(origin):
        _bad_note("cp-origin", f"{origin[:60]!r} is not a log's name")
    if not _decimal.fullmatch(digits) or int(digits) > size_max:
        _bad_note("cp-size", f"{digits[:40]!r} is not a size in plain decimal")
    root = read_base64(key)
    if root is None or len(root) != hash_bytes:
        _bad_note("checkpoint", "the root is 32 bytes in base64")
    return Checkpoint(origin, int(digits), root)


def signed_by_log(note: Note, key: VerifierKey) -> bool:
    """Whether this log key signed the note; a signature that claims to be this key's and is not breaks the note."""
    found = False
    for signature in _signatures_of(note, key):
        if len(signature.raw) != 64 or not verify_signature(key.public, note.text, signature.raw):
            _bad_note("note-badsig", f"the signature of {key.name} does not hold over this text")
        found = True
    return found


def cosigned_at(note: Note, key: VerifierKey) -> int | None:
    """When this witness says it saw the checkpoint (POSIX seconds), or None when it did not sign."""
    seen: int | None = None
    for signature in _signatures_of(note, key):
        seconds = int.from_bytes(signature.raw[:8], "big")
        message = cosigned_text(seconds, note.text)
        if (
            len(signature.raw) != 72
            or seconds > size_max
            or not verify_signature(key.public, message, signature.raw[8:])
        ):
            _bad_note("note-badsig", f"the cosignature of {key.name} does not hold over this text")
        seen = seconds
    return seen


def cosigned_text(seconds: int, text: bytes) -> bytes:
    """What a witness signs: the time it saw the checkpoint, and the checkpoint."""
    return b"cosignature/v1\ntime %d\n" % seconds + text


def _signatures_of(note: Note, key: VerifierKey) -> list[NoteSignature]:
    return [signature for signature in note.signatures if (signature.name, signature.id) == (key.name, key.id)]


def read_base64(text: str) -> bytes | None:
    """Standard base64 in its one writing, else None."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode("ascii") == text else None


def _bad_note(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.trust ===============================================================================

"""The trust policy: whose keys and how many witnesses a verifier believes, obtained outside the bundle and pinned.

The lines `log`, `witness`, `group` and `quorum` are C2SP tlog-policy. Four more are ours: `bundle <vkey>` (who may seal
a bundle), `receipt <vkey>` (who may sign a receipt), `tenant <name>` and `min-size <n>` (refuse older checkpoints).
"""


trust_bytes_max = 262_144
_trust_number = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Group:
    """So many of these witnesses or groups."""

    needed: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """A parsed trust policy."""

    logs: tuple[VerifierKey, ...]
    bundles: tuple[VerifierKey, ...]
    receipts: dict[str, VerifierKey] = field(default_factory=dict)
    witnesses: dict[str, VerifierKey] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    quorum: str = "none"
    tenant: str = ""
    size_min: int = 0

    def witnessed(self, note: Note) -> dict[str, int]:
        """Which witnesses cosigned, and when (POSIX seconds)."""
        seen = {name: cosigned_at(note, key) for name, key in self.witnesses.items()}
        return {name: at for name, at in seen.items() if at is not None}

    def has_quorum(self, seen: dict[str, int], name: str | None = None) -> bool:
        """Whether these witnesses are enough."""
        name = self.quorum if name is None else name
        if name == "none":
            return True
        if name in self.witnesses:
            return name in seen
        group = self.groups[name]
        return sum(self.has_quorum(seen, member) for member in group.members) >= group.needed


def public_id(public: bytes) -> str:
    """The name by which entries and envelopes call a signing key: 16 hex digits of its hash."""
    return tagged("twokeys/key/v1", public).hex()[:16]


def write_trust(
    logs: tuple[str, ...],
    bundles: tuple[str, ...],
    receipts: tuple[str, ...],
    tenant: str = "",
    size_min: int = 0,
    witnesses: tuple[str, ...] = (),
) -> str:
    """The policy text of a deployment, from vkeys; with witnesses, one of them has to have cosigned."""
    lines = ["# Twokeys trust policy. Keep it where nobody who could change a bundle can change it."]
    lines += [f"log {key}" for key in logs]
    lines += [f"bundle {key}" for key in bundles]
    lines += [f"receipt {key}" for key in receipts]
    lines += [f"tenant {tenant}"] if tenant else []
    lines += [f"min-size {size_min}"] if size_min else []
    names = [f"w{n}" for n in range(1, len(witnesses) + 1)]
    lines += [f"witness {name} {key}" for name, key in zip(names, witnesses, strict=True)]
    lines += [f"group witnesses any {' '.join(names)}"] if len(names) > 1 else []
    quorum = "none" if not names else names[0] if len(names) == 1 else "witnesses"
    return "\n".join([*lines, f"quorum {quorum}", ""])


def read_trust(data: bytes) -> Trust:
    """Parse a policy file, strictly; an unknown line is refused, because it might be a condition."""
    if len(data) > trust_bytes_max:
        _bad_trust("a trust policy has at most 262,144 bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        _bad_trust("a trust policy is UTF-8 text")
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", text):
        _bad_trust("a trust policy holds no control characters but tab and newline")
    reader = _TrustReader()
    for number, line in enumerate(text.split("\n"), 1):
        words = re.split("[ \t]+", line.strip(" \t"))
        if words != [""] and not words[0].startswith("#"):
            reader.take(number, words)
    return reader.done()


class _TrustReader:
    def __init__(self) -> None:
        self.keys: dict[str, list[VerifierKey]] = {"log": [], "bundle": [], "receipt": []}
        self.witnesses: dict[str, VerifierKey] = {}
        self.groups: dict[str, Group] = {}
        self.once: dict[str, str] = {}

    def take(self, number: int, words: list[str]) -> None:
        word, rest = words[0], words[1:]
        try:
            if word in self.keys and len(rest) in ((1, 2) if word == "log" else (1,)):
                self._key(word, rest[0])
            elif word == "witness" and len(rest) in (2, 3):
                self._witness(rest[0], rest[1])
            elif word == "group" and len(rest) >= 3:
                self._group(rest[0], rest[1], tuple(rest[2:]))
            elif word in ("quorum", "tenant", "min-size") and len(rest) == 1 and word not in self.once:
                self._single(word, rest[0])
            else:
                _bad_trust(f"{' '.join(words)[:60]!r} is not a line of a trust policy")
        except BrokenLedger as error:
            raise BrokenLedger(f"line {number}: {error.reason}", code=error.code) from None

    def done(self) -> Trust:
        if "quorum" not in self.once:
            _bad_trust("a trust policy has one quorum line; `quorum none` asks for no witness")
        if not self.keys["log"] or not self.keys["bundle"] or not self.keys["receipt"]:
            _bad_trust("a trust policy names at least one log, one bundle and one receipt key")
        return Trust(
            logs=tuple(self.keys["log"]),
            bundles=tuple(self.keys["bundle"]),
            receipts={public_id(key.public): key for key in self.keys["receipt"]},
            witnesses=self.witnesses,
            groups=self.groups,
            quorum=self.once["quorum"],
            tenant=self.once.get("tenant", ""),
            size_min=int(self.once.get("min-size", "0")),
        )

    def _key(self, word: str, text: str) -> None:
        key = read_vkey(text)
        if key.kind != ED25519:
            _bad_trust(f"a {word} key is of type 1")
        if any(key.public == known.public for keys in self.keys.values() for known in keys):
            _bad_trust(f"the key {key.name} stands twice, or is used for two purposes")
        self.keys[word].append(key)

    def _witness(self, name: str, text: str) -> None:
        key = read_vkey(text)
        if key.kind != COSIGNATURE:
            _bad_trust("a witness's key is of type 4")
        known = [*self.witnesses.values(), *(one for keys in self.keys.values() for one in keys)]
        if any(key.public == one.public for one in known):
            _bad_trust(f"the key {key.name} stands twice, or is used for two purposes")
        self._fresh(name)
        self.witnesses[name] = key

    def _group(self, name: str, count: str, members: tuple[str, ...]) -> None:
        if count not in ("any", "all") and not _trust_number.fullmatch(count):
            _bad_trust(f"{count[:20]!r} is not any, all or a number")
        needed = {"any": 1, "all": len(members)}.get(count) or int(count)
        used = {member for group in self.groups.values() for member in group.members}
        for member in members:
            if member not in self.witnesses and member not in self.groups:
                _bad_trust(f"{member!r} is not defined above")
            if member in used or members.count(member) > 1:
                _bad_trust(f"{member!r} counts twice")
        if not 1 <= needed <= len(members):
            _bad_trust(f"a group of {len(members)} cannot need {needed}")
        self._fresh(name)
        self.groups[name] = Group(needed, members)

    def _single(self, word: str, value: str) -> None:
        if word == "quorum" and value != "none" and value not in self.witnesses and value not in self.groups:
            _bad_trust(f"{value!r} is not defined above")
        if word == "min-size" and not _trust_number.fullmatch(value):
            _bad_trust(f"{value[:40]!r} is not a number")
        self.once[word] = value

    def _fresh(self, name: str) -> None:
        if name == "none" or name in self.witnesses or name in self.groups:
            _bad_trust(f"the name {name!r} is taken")


def _bad_trust(reason: str) -> NoReturn:
    raise BrokenLedger(reason, code="trust-policy")


# ================== engine.ledger.layout ==============================================================================

"""The names and small documents inside a bundle, written and read in one place."""


BUILDER = "twokeys/bundle/v1"
BAGIT = "bagit.txt"
BAGIT_TEXT = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
MANIFEST = "manifest-sha256.txt"
ATTESTATION = "attestation.intoto.jsonl"

# Below data/:
ENTRIES = "entries.jsonl"
PROOFS = "proofs.jsonl"
CHECKPOINT = "checkpoint"
WITHHELD = "withheld.json"
DEFINITION = "definition.cbor"
CODE_DIRECTORY = "code/"
DEFINITION_TAG, COMPONENT_TAG = "twokeys/definition/v1", "twokeys/component/v1"
JOURNAL = "journal.json"
POLICIES = "policies/index.json"
TRUST = "trust.txt"
VERIFIER = "verify.py"
README = "README.txt"
REPORT = "report.html"
REQUIRED = (ENTRIES, PROOFS, CHECKPOINT, WITHHELD, DEFINITION, JOURNAL, POLICIES, README, REPORT, TRUST, VERIFIER)
# Of a period instead of a run:
PERIOD_BUILDER = "twokeys/period/v1"
PERIOD = "period.json"
CHECKPOINT_BEFORE = "checkpoint-before"
COMPLETENESS = "completeness.json"
RECONCILED = "reconciled.json"
PERIOD_REQUIRED = (ENTRIES, PERIOD, CHECKPOINT, COMPLETENESS, RECONCILED, README, TRUST, VERIFIER)
PAYLOAD_DIRECTORY, RECEIPT_DIRECTORY, POLICY_DIRECTORY = "payloads/", "receipts/", "policies/"

document_bytes_max = 268_435_456
_hex_text = re.compile(r"(?:[0-9a-f]{2})*")
_hex_digest = re.compile(r"[0-9a-f]{64}")
_suffix = re.compile(r"\.[a-z0-9]{1,8}")
_manifest_line = re.compile(r"([0-9a-f]{64})  (data/[A-Za-z0-9][A-Za-z0-9._/-]*)")


def payload_name(digest: str) -> str:
    """A committed document travels under the hash of its own bytes."""
    return f"{PAYLOAD_DIRECTORY}{digest}.json"


def code_name(digest: str) -> str:
    """Code that a run was moved to travels under the digest that the run was pinned to."""
    return f"{CODE_DIRECTORY}{digest}.cbor"


def receipt_name(digest: str) -> str:
    """A receipt travels under the hash of its envelope."""
    return f"{RECEIPT_DIRECTORY}{digest}.json"


def policy_name(path: str, text: bytes) -> str:
    """A policy file travels under the hash of its text, with the ending that its author gave it."""
    ending = "." + path.rpartition(".")[2].lower() if "." in path else ""
    return f"{POLICY_DIRECTORY}{sha256(text).hex()}{ending if _suffix.fullmatch(ending) else '.txt'}"


def read_manifest(data: bytes) -> dict[str, str]:
    """The digests by file name; lines are sorted, each written one way."""
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        _bad_layout("manifest-parse", "the manifest is ASCII text")
    if lines.pop():
        _bad_layout("manifest-parse", "the manifest's last line does not end")
    found: dict[str, str] = {}
    before = ""
    for number, line in enumerate(lines, 1):
        match = _manifest_line.fullmatch(line)
        if not match or match[2] <= before:
            _bad_layout("manifest-parse", f"line {number} of the manifest is not `sha256  data/name` in sorted order")
        found[match[2]] = match[1]
        before = match[2]
    return found


def write_receipt(body: bytes, signature: bytes, key_id: str) -> bytes:
    """A receipt's file."""
    return jcs({"envelope": body.hex(), "key_id": key_id, "signature": signature.hex()})


def read_receipt(data: bytes) -> tuple[bytes, bytes, str, dict[str, Any]]:
    """A receipt's envelope, signature, key id and what the envelope says."""
    value = read_document(data, {"envelope", "key_id", "signature"}, "receipt-parse")
    body, signature = from_hex(value["envelope"], "receipt-parse"), from_hex(value["signature"], "receipt-parse")
    try:
        envelope = decode(body)
    except CallerError as error:
        _bad_layout("receipt-parse", f"the envelope is not canonical CBOR: {error.reason}")
    if type(envelope) is not dict or type(value["key_id"]) is not str:
        _bad_layout("receipt-parse", "the envelope is a map and its key has an id")
    return body, signature, value["key_id"], envelope


def receipt_signed_bytes(body: bytes) -> bytes:
    """What the executor signs: the stored envelope under its own tag."""
    return tagged("twokeys/receipt/v1", body)


def write_journal(rows: Iterable[bytes]) -> bytes:
    """The journal's file: its rows in hex, and the head that they chain to."""
    rows = tuple(rows)
    head, version = journal_head(journal_events(rows))
    return jcs({"head": head.hex(), "rows": [row.hex() for row in rows], "version": version})


def read_journal(data: bytes) -> tuple[tuple[bytes, ...], str, int]:
    """The rows, and the head and version that the file claims."""
    value = read_document(data, {"head", "rows", "version"}, "journal-parse")
    if type(value["rows"]) is not list or type(value["head"]) is not str or type(value["version"]) is not int:
        _bad_layout("journal-parse", "a journal has rows, a head and a version")
    return tuple(from_hex(row, "journal-parse") for row in value["rows"]), value["head"], value["version"]


def journal_events(rows: Iterable[bytes]) -> list[dict[str, Any]]:
    """Every journal entry of these rows; a row is the CBOR array of one commit's entries."""
    events: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            items = decode(row)
        except CallerError as error:
            _bad_layout("journal-parse", f"row {number} is not canonical CBOR: {error.reason}")
        if type(items) is not list or not items or any(type(item) is not dict for item in items):
            _bad_layout("journal-parse", f"row {number} is not a list of journal entries")
        events.extend(items)
    return events


def journal_head(events: Iterable[dict[str, Any]]) -> tuple[bytes, int]:
    """The leaf of the last journal entry and how many there are: each leaf chains the entry to the leaf before it."""
    head, version = bytes(32), 0
    for event in events:
        head = tagged("twokeys/journal/v1", head + encode(event))
        version += 1
    return head, version


def read_withheld(data: bytes) -> tuple[str, ...]:
    """The commitments whose documents are kept encrypted outside the bundle; sorted, each once."""
    value = read_document(data, {"withheld"}, "withheld-parse")["withheld"]
    if type(value) is not list or any(type(item) is not str or not _hex_digest.fullmatch(item) for item in value):
        _bad_layout("withheld-parse", "the withheld commitments are a list of digests")
    if value != sorted(set(value)):
        _bad_layout("withheld-parse", "the withheld commitments are sorted and stand once")
    return tuple(value)


def read_policies(data: bytes) -> dict[str, tuple[tuple[str, str], ...]]:
    """The files (path, digest) of each policy revision."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    value = read_document(data, {"revisions"}, "policies-parse")["revisions"]
    if type(value) is not list:
        _bad_layout("policies-parse", "the index of policies is a list")
    for item in value:
        revision, files = _index_entry(item, ("revision", "files"))
        if type(revision) is not str or type(files) is not list or revision in found:
            _bad_layout("policies-parse", "the index of policies lists revisions with their files")
        pairs = [_index_entry(one, ("path", "sha256")) for one in files]
        if any(type(part) is not str for pair in pairs for part in pair):
            _bad_layout("policies-parse", "a policy file has a path and a digest")
        found[revision] = tuple(pairs)
    return found


def _index_entry(item: Any, keys: tuple[str, str]) -> tuple[Any, Any]:
    if type(item) is not dict or set(item) != set(keys):
        _bad_layout("policies-parse", f"an item of the index of policies has exactly {' and '.join(keys)}")
    return item[keys[0]], item[keys[1]]


def policy_revision(files: Iterable[tuple[str, str]]) -> str:
    """The revision that these files (path, digest) make."""
    return tagged("twokeys/policy/v1", encode(sorted([path, digest] for path, digest in files))).hex()


def read_document(data: bytes, keys: set[str], code: str) -> dict[str, Any]:
    """A small canonical JSON object with exactly these keys."""
    try:
        value = read_json(data, bytes_max=document_bytes_max)
        canonical = jcs(value)
    except CallerError as error:
        _bad_layout(code, error.reason)
    if canonical != data:
        _bad_layout(code, "the bytes are not the canonical form of what they say")
    if type(value) is not dict or set(value) != keys:
        _bad_layout(code, f"the document has exactly {', '.join(sorted(keys))}")
    return value


def from_hex(value: Any, code: str) -> bytes:
    """Bytes in their one writing as text."""
    if type(value) is not str or not _hex_text.fullmatch(value):
        _bad_layout(code, "bytes are written as lower-case hexadecimal digits")
    return bytes.fromhex(value)


def _bad_layout(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.lineage =============================================================================

"""What the entries of a run say of its parent, its children and the code it was moved to, held against its journal and its files."""


OWN_CONNECTOR = "twokeys"


def check_parent(start: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """The first event of the journal names the operation that started the run, and so do its entries."""
    named = [(body["run"], body["promise"]) for body in _bodies(entries, "parent.named")] or [(entries[0].chain, "")]
    inner = start.get("event")
    said = inner.get("parent_id") if type(inner) is dict else None
    if type(said) is not list or not said or [(said[0], ".".join(map(str, said[1:])))] != named:
        _astray("journal-parent", "the journal names another parent than the entries of the run")


def check_moves(entries: Sequence[Entry], code: Mapping[str, bytes | memoryview]) -> None:
    """Each code that the run was moved to follows the one before it, and is here, and nothing else is."""
    pinned, moved = entries[0].body["definition_sha256"], set()
    for body in _bodies(entries, "run.migrated"):
        name = code_name(body["definition_sha256"]).removeprefix(CODE_DIRECTORY)
        if body["from_sha256"] != pinned:
            _astray("code-order", f"the run was moved from {body['from_sha256'][:16]} and ran on {pinned[:16]}")
        if name not in code:
            _astray("code-missing", f"the code {name[:16]} that the run was moved to is not in the bundle")
        pinned = body["definition_sha256"]
        if tagged(COMPONENT_TAG, bytes(code[name])).hex() != pinned:
            _astray("code-digest", f"{name[:16]} is not the code that the run was moved to")
        moved.add(name)
    foreign = sorted(code.keys() - moved)
    if foreign:
        _astray("code-foreign", f"the run was never moved to the code {foreign[0][:16]}")


class Family:
    """What the entries of a run tell of its parent, its children and its editors, in order; refuses what could not have been."""

    def __init__(self, started: frozenset[tuple[str, int]]) -> None:
        self._started = started
        self._parent = ""
        self._open: dict[str, dict[str, Any]] = {}  # children by promise, those whose end has not come
        self._born: set[str] = set()
        self._editors: set[str] = set()
        self._people = 0  # that a change of the product's own rules takes
        self.trigger = ""
        self.rules: dict[str, Callable[[Entry], None]] = {
            "parent.named": self._named,
            "run.migrated": self._moved,
            "change.proposed": self._changes,
            "child.started": self._begun,
            "child.ended": self._ended,
            "run.continued": self._continued,
        }

    def check_asked(self, lineage: set[str], keys: int) -> None:
        """Who moved the run, or wrote what it would bring into force, can hold no key for it; and keys are as many as were said."""
        if self._editors - lineage:
            _astray(
                "approval-lineage",
                f"{min(self._editors - lineage)} edited what is asked and is missing from the lineage",
            )
        if keys < self._people:
            _astray(
                "change-keys", f"a change that takes {self._people} people besides its authors asks for {keys} keys"
            )

    @property
    def is_change(self) -> bool:
        """Whether the run changes the product's own rules, which is never done without keys."""
        return bool(self._people)

    def close(self) -> None:
        """At the end of the run."""
        if self.trigger == "child" and not self._parent:
            _astray("parent-named", "another run started this one and is not named")
        for promise, child in self._open.items():
            _astray("child-open", f"promise {promise} started run {child['run'][:40]}, whose end is not told")

    def _named(self, entry: Entry) -> None:
        if self.trigger != "child" or self._parent or entry.chain_seq != 1:
            _astray("parent-named", "a parent is named once, right at the start of a run that another one started")
        self._parent = entry.body["run"]

    def _moved(self, entry: Entry) -> None:
        person = entry.body["person"]
        if entry.actor != {"type": "person", "id": person}:
            _astray("move-person", f"the run was moved to other code by {person[:40]} and by {entry.actor['id']}")
        self._editors.add(person)

    def _changes(self, entry: Entry) -> None:
        if self._people or entry.chain_seq != 1 or not 1 <= entry.body["people"] <= 2:
            _astray("change-proposed", "what a run changes of the product's own rules is said once, right at its start")
        self._people = entry.body["people"]
        self._editors |= set(entry.body["authors"])

    def check_proposed(self, connector: str) -> None:
        """Only a run that was begun for it changes the product's own rules."""
        if connector == OWN_CONNECTOR and not self._people:
            _astray("change-proposed", "a change of the product's own rules that nobody proposed as one")

    def _begun(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._born:
            _astray("child-twice", f"promise {promise[:40]} started two runs")
        if (promise, 1) not in self._started:
            _astray("child-journal", f"the journal does not start promise {promise[:40]}")
        self._born.add(promise)
        self._open[promise] = entry.body

    def _continued(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._born:
            _astray("child-twice", f"promise {promise[:40]} started two runs")
        if (promise, 1) not in self._started:
            _astray("child-journal", f"the journal does not start promise {promise[:40]}")
        self._born.add(promise)

    def _ended(self, entry: Entry) -> None:
        body = entry.body
        begun = self._open.pop(body["promise"], None)
        if begun is None or begun["run"] != body["run"]:
            _astray(
                "child-other", f"run {body['run'][:40]} ended and is not the open child of promise {body['promise']}"
            )


def _bodies(entries: Sequence[Entry], kind: str) -> list[dict[str, Any]]:
    return [entry.body for entry in entries if entry.type == kind]


def _astray(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.statement ===========================================================================

"""The signature over a bundle: a DSSE envelope around an in-toto statement about the bundle's manifest."""


STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://twokeys.example/attestation/run-evidence/v1"
PERIOD_TYPE = "https://twokeys.example/attestation/period-evidence/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_KEYS = ("builder", "entries", "origin", "policy_revisions", "root", "run", "status", "tenant", "tree_size")
PERIOD_KEYS = ("builder", "entries", "from_size", "origin", "root", "tenant", "tree_size")

_subject_digest = re.compile(r"[0-9a-f]{64}")


def write_statement(manifest_sha256: str, predicate: Mapping[str, Any], kind: str = PREDICATE_TYPE) -> bytes:
    """The in-toto statement: this manifest, and what it is the evidence of."""
    return _plain_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": MANIFEST, "digest": {"sha256": manifest_sha256}}],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: what is signed, so that a payload cannot be taken for one of another type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def write_envelope(payload: bytes, public: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """The envelope with one signature, as one line."""
    signature = sign(pre_authentication(PAYLOAD_TYPE, payload))
    value = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": public_id(public), "sig": base64.b64encode(signature).decode("ascii")}],
    }
    return _plain_json(value) + b"\n"


def read_envelope(data: bytes) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """The payload and its signatures (key id, bytes), not yet verified."""
    if not data.endswith(b"\n"):
        _bad_statement("dsse-parse", "the envelope is one line")
    value = _read_plain(data[:-1], "dsse-parse")
    if type(value) is not dict or set(value) != {"payloadType", "payload", "signatures"}:
        _bad_statement("dsse-parse", "an envelope has a payload, its type and signatures")
    if value["payloadType"] != PAYLOAD_TYPE:
        _bad_statement("dsse-type", f"the payload is of type {str(value['payloadType'])[:60]!r}, not {PAYLOAD_TYPE}")
    payload = read_base64(value["payload"]) if type(value["payload"]) is str else None
    if payload is None or type(value["signatures"]) is not list:
        _bad_statement("dsse-parse", "the payload is base64 and the signatures are a list")
    return payload, tuple(_envelope_signature(item) for item in value["signatures"])


def signer_of(payload: bytes, signatures: tuple[tuple[str, bytes], ...], keys: tuple[VerifierKey, ...]) -> VerifierKey:
    """The pinned key that signed; a signature that claims to be a pinned key's and is not breaks the envelope."""
    message = pre_authentication(PAYLOAD_TYPE, payload)
    pinned = {public_id(key.public): key for key in keys}
    found: VerifierKey | None = None
    for key_id, signature in signatures:
        if key_id in pinned:
            if not verify_signature(pinned[key_id].public, message, signature):
                _bad_statement("dsse-sig", f"the signature of {pinned[key_id].name} does not hold over this statement")
            found = pinned[key_id]
    if found is None:
        _bad_statement("dsse-sig", "no bundle key of the trust policy signed this statement")
    return found


def read_statement(payload: bytes, kind: str = PREDICATE_TYPE) -> tuple[str, dict[str, Any]]:
    """The manifest's digest and the predicate of this kind, strictly."""
    value = _read_plain(payload, "stmt-parse")
    if type(value) is not dict or set(value) != {"_type", "subject", "predicateType", "predicate"}:
        _bad_statement("stmt-parse", "a statement has a type, a subject, a predicate type and a predicate")
    if value["_type"] != STATEMENT_TYPE or value["predicateType"] != kind:
        _bad_statement("stmt-type", "the statement is about another kind of evidence")
    subject = value["subject"]
    shaped = type(subject) is list and len(subject) == 1 and type(subject[0]) is dict
    if not shaped or set(subject[0]) != {"name", "digest"} or subject[0]["name"] != MANIFEST:
        _bad_statement("stmt-subject", f"the statement's subject is {MANIFEST}")
    digest = subject[0]["digest"]
    if type(digest) is not dict or set(digest) != {"sha256"} or not _is_digest(digest["sha256"]):
        _bad_statement("stmt-subject", "the subject's digest is one SHA-256")
    predicate = value["predicate"]
    keys = PREDICATE_KEYS if kind == PREDICATE_TYPE else PERIOD_KEYS
    if type(predicate) is not dict or set(predicate) != set(keys):
        _bad_statement("stmt-parse", f"the predicate has exactly {', '.join(keys)}")
    return digest["sha256"], predicate


def _envelope_signature(item: Any) -> tuple[str, bytes]:
    if type(item) is not dict or set(item) != {"keyid", "sig"} or type(item["keyid"]) is not str:
        _bad_statement("dsse-parse", "a signature has a key id and its bytes")
    raw = read_base64(item["sig"]) if type(item["sig"]) is str else None
    if raw is None:
        _bad_statement("dsse-parse", "a signature is base64")
    return item["keyid"], raw


def _is_digest(value: Any) -> bool:
    return type(value) is str and _subject_digest.fullmatch(value) is not None


def _plain_json(value: Any) -> bytes:
    # These two documents have keys that their standards chose (payloadType), so they are outside the JCS profile;
    # sorted ASCII keys and no floats make this the RFC 8785 form all the same.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _read_plain(data: bytes, code: str) -> Any:
    try:
        value = read_json(data)
    except CallerError as error:
        _bad_statement(code, error.reason)
    if _plain_json(value) != data:
        _bad_statement(code, "the bytes are not the canonical form of what they say")
    return value


def _bad_statement(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.sealed ==============================================================================

"""What every bundle is checked for before its kind matters: steps (0) to (5), from the stamp to the signed checkpoint."""


VALID, INVALID, INCOMPLETE, MALFORMED = 0, 1, 2, 3
OUTCOMES = ("valid", "invalid", "incomplete", "malformed")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a bundle is the evidence of: what signs it as such, and the files that it has."""

    predicate: str
    builder: str
    required: tuple[str, ...]


OF_RUN = Kind(PREDICATE_TYPE, BUILDER, REQUIRED)
OF_PERIOD = Kind(PERIOD_TYPE, PERIOD_BUILDER, PERIOD_REQUIRED)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: the step, a code for machines, the record and why."""

    step: int
    code: str
    record: str
    reason: str
    outcome: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the person who verifies knows already and wants to see confirmed."""

    run: str = ""
    sha256: str = ""


@dataclass(slots=True)
class Verified:
    """The result: the outcome, what each step found, and the facts of the run."""

    titles: tuple[str, ...] = ()
    steps: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> int:
        """The worst of what was found; 0 when nothing was."""
        for outcome in (MALFORMED, INVALID, INCOMPLETE):
            if any(finding.outcome == outcome for finding in self.findings):
                return outcome
        return VALID


class Sealed:
    """An opened bundle, checked step by step."""

    def __init__(self, data: bytes, trust: Trust | None, expected: Expectation) -> None:
        self.data, self.trust, self.expected = data, trust, expected
        self.kind = OF_RUN
        self.result = Verified()
        self.step, self.record = 0, ""
        self.files: dict[str, memoryview] = {}
        self.predicate: dict[str, Any] = {}
        self.checkpoint = Checkpoint("", 0, b"")

    def broken(self, code: str, reason: str, outcome: int) -> None:
        self.result.findings.append(Finding(self.step, code, self.record or "bundle", reason, outcome))

    def file(self, name: str) -> bytes:
        self.record = f"data/{name}"
        return bytes(self.files[f"data/{name}"])

    def below(self, directory: str) -> dict[str, memoryview]:
        start = f"data/{directory}"
        return {name[len(start) :]: body for name, body in self.files.items() if name.startswith(start)}

    def lines(self, name: str) -> list[bytes]:
        parts = self.file(name).split(b"\n")
        if parts.pop():
            wrong("lines", "the last line does not end")
        return parts

    # (0) stamp
    def stamp(self) -> str:
        digest = hashlib.sha256(self.data).hexdigest()
        self.result.facts["sha256"] = digest
        if self.expected.sha256 and self.expected.sha256 != digest:
            wrong("stamp", f"the file's sha256 is {digest}, expected was {self.expected.sha256}")
        return "is the expected one" if self.expected.sha256 else "no sha256 was given to compare with"

    # (1) strict zip
    def container(self) -> str:
        self.files = read_container(self.data)
        self.kind = OF_PERIOD if f"data/{PERIOD}" in self.files else OF_RUN
        return f"{len(self.files)} files, stored, nothing before, between or behind them"

    # (2) the same bytes again
    def rewriting(self) -> str:
        check_canonical(self.data, self.files)
        return f"all {len(self.data)} bytes are the one writing of these files"

    # (3) manifest
    def manifest(self) -> str:
        for name in (BAGIT, MANIFEST, ATTESTATION):
            self.record = name
            if name not in self.files:
                wrong("manifest-set", "is missing")
        self.record = BAGIT
        if self.files[BAGIT] != BAGIT_TEXT:
            wrong("manifest-set", "is not BagIt's declaration")
        self.record = MANIFEST
        listed = read_manifest(bytes(self.files[MANIFEST]))
        there = {name for name in self.files if name not in (BAGIT, MANIFEST, ATTESTATION)}
        odd = sorted(there ^ listed.keys())
        if odd:
            self.record = odd[0]
            wrong("manifest-set", "is in the archive and not in the manifest" if odd[0] in there else "is missing")
        for name, digest in listed.items():
            self.record = name
            if hashlib.sha256(self.files[name]).hexdigest() != digest:
                wrong("manifest-hash", "does not have the digest that the manifest says")
        for name in self.kind.required:
            self.record = f"data/{name}"
            if self.record not in there:
                wrong("manifest-set", "is missing")
        return f"{len(listed)} files, none missing, none beside"

    # (4) attestation
    def attestation(self) -> str:
        self.record = ATTESTATION
        payload, signatures = read_envelope(bytes(self.files[ATTESTATION]))
        subject, self.predicate = read_statement(payload, self.kind.predicate)
        if subject != hashlib.sha256(self.files[MANIFEST]).hexdigest():
            wrong("stmt-subject", "the statement is about another manifest")
        if self.predicate["builder"] != self.kind.builder:
            wrong("stmt-type", f"this verifier reads {self.kind.builder}, not {str(self.predicate['builder'])[:40]!r}")
        run = self.predicate.get("run", "")
        if self.expected.run and run != self.expected.run:
            wrong("wrong-run", f"this is the evidence of run {str(run)[:40]}, expected was {self.expected.run}")
        if self.trust is None:
            self.broken("no-trust", "no trust policy was given, so no signature was checked", INCOMPLETE)
            return "read; no trust policy, so its signature was not checked"
        return f"signed by {signer_of(payload, signatures, self.trust.bundles).name}"

    # (5) checkpoint
    def note(self) -> str:
        note = read_note(self.file(CHECKPOINT))
        self.checkpoint = read_checkpoint(note.text)
        cp, said = self.checkpoint, self.predicate
        tenant = tenant_of(cp.origin)
        if (cp.origin, cp.size, cp.root.hex(), tenant) != (
            said["origin"],
            said["tree_size"],
            said["root"],
            said["tenant"],
        ):
            wrong("cp-origin", "the checkpoint is not the one that the statement names, or of another tenant")
        self.result.facts |= {"origin": cp.origin, "tree_size": cp.size, "root": cp.root.hex(), "tenant": tenant}
        if self.trust is None:
            return f"read; size {cp.size}; no trust policy, so no signature was checked"
        if self.trust.tenant and self.trust.tenant != tenant:
            wrong("cp-origin", f"the policy is for tenant {self.trust.tenant}, the checkpoint of {tenant}")
        logs = [key for key in self.trust.logs if key.name == cp.origin]
        if not logs:
            wrong("cp-origin", f"the log {cp.origin} is not in the trust policy")
        signed = [key for key in logs if signed_by_log(note, key)]
        if not signed:
            wrong("note-nosig", f"no pinned key of {cp.origin} signed the checkpoint")
        if cp.size < self.trust.size_min:
            wrong("cp-rollback", f"the tree has {cp.size} entries; the policy pins at least {self.trust.size_min}")
        seen = self.trust.witnessed(note)
        self.result.facts["witnesses"] = sorted(seen)
        if not self.trust.has_quorum(seen):
            self.broken("cp-quorum", "fewer witnesses cosigned than the trust policy asks for", INCOMPLETE)
            return f"signed by the log, cosigned by {len(seen)}: below the quorum"
        if not seen:
            self.result.remarks.append(
                "unwitnessed: nobody but the log's own key vouches that this is the only history; whoever holds that "
                "key could have written another"
            )
            return f"signed by {cp.origin}, size {cp.size}, UNWITNESSED"
        return f"signed by {cp.origin}, size {cp.size}, witnessed by {', '.join(sorted(seen))}"


def wrong(code: str, reason: str) -> NoReturn:
    """This record is not as it was recorded."""
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.complete ============================================================================

"""Whether every effect of a stretch of the log has what it needs: proposal, verdict, keys, intent and outcome, over all runs."""


_outcomes = ("effect.receipted", "effect.unknown", "effect.resolved", "effect.retried")
listed_max = 1000  # of each list; more are counted


@dataclass(slots=True)
class _Chain:
    """One chain as far as it was told."""

    seq: int
    leaf: bytes
    at: str
    carried: bool  # it began before the stretch
    is_run: bool
    closed: bool = False
    sealed: bool = False
    proposals: dict[str, set[str]] = field(default_factory=dict)
    verdicts: dict[tuple[str, int], str] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    effects: dict[tuple[str, int], str] = field(default_factory=dict)


class Completeness:
    """Takes every entry of the stretch in the log's order; what it finds missing it names."""

    def __init__(self, since: int) -> None:
        """`since` is how many entries the log had before; with 0 nothing can have begun earlier."""
        self._since = since
        self._chains: dict[str, _Chain] = {}
        self._counts: Counter[str] = Counter()
        self._gaps: list[str] = []
        self._carried = 0

    def take(self, entry: Entry) -> None:
        """The next entry."""
        chain = self._follow(entry)
        self._counts[entry.type] += 1
        body = entry.body
        promise = str(body.get("promise", ""))
        if entry.type == "action.proposed":
            chain.proposals.setdefault(promise, set()).add(body["action_sha256"])
        elif entry.type == "verdict.given":
            chain.verdicts[promise, body["n"]] = body["effect"]
        elif entry.type == "approval.asked":
            chain.asked[body["approval"]] = body["keys"]
        elif entry.type == "key.given":
            chain.keys.setdefault(body["approval"], set()).add(body["person"])
        elif entry.type == "approval.released":
            self._released(entry, chain)
        elif entry.type == "effect.intended":
            self._intended(entry, chain)
        elif entry.type in _outcomes:
            self._outcome(entry, chain)
        elif entry.type == "run.closed":
            self._closed(entry, chain)
        elif entry.type == "evidence.sealed":
            chain.sealed = True

    def report(self) -> dict[str, Any]:
        """What was counted and what is missing; the same entries give the same report."""
        runs = {name: chain for name, chain in self._chains.items() if chain.is_run}
        in_flight = [
            f"{name}: attempt {attempt} of {promise} is {state}"
            for name, chain in runs.items()
            for (promise, attempt), state in chain.effects.items()
            if state != "settled" and not chain.closed
        ]
        unsealed = [name for name, chain in runs.items() if chain.closed and not chain.sealed]
        return {
            "carried": self._carried,
            "counts": {name.replace(".", "_"): number for name, number in sorted(self._counts.items())},
            "gaps": _listed(self._gaps),
            "in_flight": _listed(in_flight),
            "runs": len(runs),
            "unsealed": _listed(unsealed),
        }

    def _follow(self, entry: Entry) -> _Chain:
        chain = self._chains.get(entry.chain)
        if chain is None:
            began = entry.chain_seq == 0
            if (began and entry.prev != "0" * 64) or (not began and not self._since):
                self._gap(entry, "its chain does not begin here, and there is nothing before")
            chain = _Chain(
                entry.chain_seq, entry.leaf, entry.at, not began, entry.type == "run.queued" or "/" not in entry.chain
            )
            self._chains[entry.chain] = chain
            return chain
        if entry.chain_seq != chain.seq + 1 or entry.prev != chain.leaf.hex():
            self._gap(entry, f"does not follow entry {chain.seq} of its chain")
        if entry.at < chain.at:
            self._gap(entry, "is earlier than the entry that it follows")
        chain.seq, chain.leaf, chain.at = entry.chain_seq, entry.leaf, entry.at
        return chain

    def _released(self, entry: Entry, chain: _Chain) -> None:
        name, persons = entry.body["approval"], set(entry.body["persons"])
        chain.released.add(name)
        if name not in chain.asked:
            self._missing(entry, chain, f"releases {name}, which nobody asked for")
            return
        given = chain.keys.get(name, set())
        if len(persons) < chain.asked[name]:
            self._gap(entry, f"releases {name} with {len(persons)} people where {chain.asked[name]} are needed")
        if persons - given:
            self._missing(entry, chain, f"counts {sorted(persons - given)[0]} for {name}, who gave no key")

    def _intended(self, entry: Entry, chain: _Chain) -> None:
        body = entry.body
        promise, place = body["promise"], f"attempt {body['attempt']} of {body['promise']}"
        if body["action_sha256"] not in chain.proposals.get(promise, ()):
            self._missing(entry, chain, f"{place} was never proposed")
        effect = chain.verdicts.get((promise, body["verdict_n"]), "")
        if not effect:
            self._missing(entry, chain, f"{place} has no verdict")
        elif effect == "deny":
            self._gap(entry, f"{place} was denied")
        elif (effect == "needs_approval" or body["approval"]) and body["approval"] not in chain.released:
            self._missing(entry, chain, f"{place} was not released")
        chain.effects[promise, body["attempt"]] = "open"

    def _outcome(self, entry: Entry, chain: _Chain) -> None:
        body = entry.body
        place = body["promise"], body["attempt"]
        if place not in chain.effects:
            self._missing(entry, chain, f"attempt {body['attempt']} of {body['promise']} has an outcome and no intent")
        unknown = entry.type == "effect.unknown"
        chain.effects[place] = "unknown" if unknown else "settled"

    def _closed(self, entry: Entry, chain: _Chain) -> None:
        chain.closed = True
        if entry.body["entries"] != entry.chain_seq + 1:
            self._gap(entry, f"counts {entry.body['entries']} entries and is number {entry.chain_seq + 1}")
        for (promise, attempt), state in chain.effects.items():
            if state == "open":
                self._gap(entry, f"attempt {attempt} of {promise} has no outcome")

    def _missing(self, entry: Entry, chain: _Chain, what: str) -> None:
        # What happened before the stretch is in the one before it.
        if chain.carried:
            self._carried += 1
        else:
            self._gap(entry, what)

    def _gap(self, entry: Entry, what: str) -> None:
        self._gaps.append(f"{entry.chain} entry {entry.chain_seq} ({entry.type}): {what}")


def _listed(items: list[str]) -> dict[str, Any]:
    return {"count": len(items), "first": items[:listed_max]}


# ================== engine.ledger.period ==============================================================================

"""Checks the bundle of a period: every entry between two checkpoints, and whether each effect has what it needs."""


PERIOD_STEPS = (
    "stamp: the file is the one that was expected",
    "container: one plain archive and nothing beside it",
    "container: writing its members again gives the same bytes",
    "manifest: every file is listed and has its digest",
    "attestation: a pinned bundle key signed this manifest",
    "checkpoint: a pinned log, and enough witnesses, signed the tree at its end",
    "entries: every entry between two checkpoints, and no other, makes the tree",
    "consistency: the tree at its begin is a part of the tree at its end",
    "completeness: the report inside says what the entries say",
    "rules: every effect has proposal, verdict, keys, intent and outcome",
)


class PeriodCheck:
    """Steps (6) to (9) of the evidence of a period."""

    def __init__(self, sealed: Sealed) -> None:
        self.sealed = sealed
        self.frontier = Frontier()
        self.leaves: list[bytes] = []
        self.report: dict[str, Any] = {}
        self.steps: tuple[Callable[[], str], ...] = (self.entries, self.consistency, self.completeness, self.rules)

    # (6) entries
    def entries(self) -> str:
        sealed = self.sealed
        value = read_document(sealed.file(PERIOD), {"frontier", "from_size", "proof"}, "period-parse")
        if (
            type(value["from_size"]) is not int
            or type(value["frontier"]) is not list
            or type(value["proof"]) is not list
        ):
            wrong("period-parse", "a period has a begin, its subtrees and a proof")
        self.frontier = Frontier(value["from_size"], _hashes(value["frontier"]))
        self.proof = _hashes(value["proof"])
        lines = sealed.lines(ENTRIES)
        complete = Completeness(self.frontier.size)
        first = last = ""
        for number, line in enumerate(lines, self.frontier.size):
            sealed.record = f"entry {number} of the log"
            entry = read_entry(line)
            if entry.tenant != sealed.predicate["tenant"]:
                wrong("entry-chain", f"belongs to {entry.tenant}, not to {sealed.predicate['tenant']}")
            complete.take(entry)
            self.leaves.append(leaf_hash(line))
            first, last = min(first or entry.at, entry.at), max(last, entry.at)
        said = sealed.predicate
        sealed.record = f"data/{ENTRIES}"
        if (said["entries"], said["from_size"]) != (len(lines), self.frontier.size) or not lines:
            wrong(
                "entry-count",
                f"the statement says {said['entries']} entries from {said['from_size']}, here are {len(lines)}",
            )
        tree = self.frontier.extend(self.leaves)
        if (tree.size, tree.root) != (sealed.checkpoint.size, sealed.checkpoint.root):
            wrong("root", f"{tree.size} entries do not make the tree of {sealed.checkpoint.size} that was signed")
        self.report = complete.report()
        sealed.result.facts |= {"entries": len(lines), "from_size": self.frontier.size, "from": first, "to": last}
        return f"{len(lines)} entries from {self.frontier.size} make the tree of {tree.size}: none is missing, none is beside"

    # (7) consistency
    def consistency(self) -> str:
        sealed, size = self.sealed, self.frontier.size
        old_root = self.frontier.root if size else empty_root()
        verify_consistency(size, sealed.checkpoint.size, old_root, sealed.checkpoint.root, self.proof)
        if not size:
            return "the log begins here"
        if f"data/{CHECKPOINT_BEFORE}" not in sealed.files:
            sealed.record = f"data/{CHECKPOINT_BEFORE}"
            wrong("manifest-set", "is missing")
        note = read_note(sealed.file(CHECKPOINT_BEFORE))
        before = read_checkpoint(note.text)
        if (before.origin, before.size, before.root) != (sealed.checkpoint.origin, size, old_root):
            wrong("consistency", "the checkpoint at the begin is of another tree than the entries go on from")
        if sealed.trust is None:
            return f"goes on from the tree of {size}; no trust policy, so its signature was not checked"
        logs = [key for key in sealed.trust.logs if key.name == before.origin]
        if not any(signed_by_log(note, key) for key in logs):
            wrong("note-nosig", f"no pinned key of {before.origin} signed the checkpoint at the begin")
        return f"goes on from the signed tree of {size}"

    # (8) completeness
    def completeness(self) -> str:
        if self.sealed.file(COMPLETENESS) != jcs(self.report):
            wrong("completeness", "the report says something else than the entries")
        systems = read_document(self.sealed.file(RECONCILED), {"systems"}, "reconciled-parse")["systems"]
        if type(systems) is not list:
            wrong("reconciled-parse", "what was reconciled is a list of systems")
        for system in systems:
            self.sealed.result.remarks += _foreign(system)
        facts = self.sealed.result.facts
        facts["completeness"] = {name: self.report[name] for name in ("runs", "carried", "counts")}
        facts["in_flight"], facts["unsealed"] = self.report["in_flight"]["count"], self.report["unsealed"]["count"]
        return (
            f"{self.report['runs']} runs; {facts['in_flight']} effects in flight and {facts['unsealed']} ended runs "
            f"not sealed at the end; {len(systems)} outside change logs were read"
        )

    # (9) rules
    def rules(self) -> str:
        gaps = self.report["gaps"]
        if gaps["count"]:
            self.sealed.record = gaps["first"][0].partition(":")[0]
            wrong("orphan", f"{gaps['first'][0].partition(': ')[2]}; {gaps['count']} such in all")
        if self.report["carried"]:
            self.sealed.result.remarks.append(
                f"{self.report['carried']} entries rest on what happened before the period: see the bundle before it"
            )
        counts = self.report["counts"]
        return f"{counts.get('effect_intended', 0)} effects, each proposed, judged, released and settled or in flight"


def _hashes(items: Iterable[Any]) -> tuple[bytes, ...]:
    found = tuple(from_hex(item, "period-parse") for item in items)
    if any(len(item) != 32 for item in found):
        wrong("period-parse", "a hash has 32 bytes")
    return found


def _foreign(system: Any) -> list[str]:
    keys = {"connector", "instance", "read_to", "ours", "foreign", "unexplained", "error"}
    if type(system) is not dict or set(system) != keys:
        raise BrokenLedger(f"a reconciled system has exactly {', '.join(sorted(keys))}", code="reconciled-parse")
    where = f"{system['connector']} {system['instance']}"
    if system["error"]:
        return [f"the change log of {where} could not be read: {system['error']}"]
    said = []
    for name, words in (("unexplained", "with our credentials that no effect explains"), ("foreign", "by others")):
        items = system[name]
        if type(items) is not list or any(type(item) is not dict for item in items):
            raise BrokenLedger(f"{name} is a list of changes", code="reconciled-parse")
        if items:
            first = items[0]
            said.append(
                f"{where} reports {len(items)} changes {words}; the first: {first.get('target')} {first.get('field')} "
                f"by {first.get('by')} at {first.get('at')}"
            )
    return said


# ================== engine.ledger.tasks ===============================================================================

"""The rules that the entries of a task must obey: who was asked what, who answered in time, and whose signature the answer needs."""


sign_seconds_max = 604_800  # nobody waits longer for a signature


@dataclass(slots=True)
class Task:
    """One form that people were asked to fill in, as its entries tell it."""

    body: dict[str, Any]
    state: str = "open"  # open | answered | expired | canceled
    person: str = ""


class Tasks:
    """The tasks of a run by their promises; each verb refuses what could not have happened."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __contains__(self, promise: str) -> bool:
        return promise in self._tasks

    def asked(self, entry: Entry) -> None:
        """People were asked."""
        body = entry.body
        if body["promise"] in self._tasks:
            _task_broken("task-twice", f"promise {body['promise']} is asked twice")
        if not body["form_sha256"] or instant(body["expires_at"]) <= instant(entry.at):
            _task_broken("task-empty", f"{body['task']} names no form or has no time")
        if bool(body["signers"]) != bool(body["keys"]):
            _task_broken("task-empty", f"{body['task']} does not say who signs and how many")
        self._tasks[body["promise"]] = Task(body)

    def answered(self, entry: Entry) -> None:
        """Somebody of the groups answered, first and in time."""
        body = entry.body
        task = self._open(body)
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _task_broken("task-person", f"the answer of {body['person']} was given by {entry.actor['id']}")
        if not set(body["groups"]) & set(task.body["groups"]):
            _task_broken("task-group", f"{body['person']} is in none of the groups that were asked")
        if body["form_sha256"] != task.body["form_sha256"] or not body["answer_sha256"]:
            _task_broken("task-form", f"{body['person']} answered another form than was asked")
        if list(entry.commit) != [body["answer_sha256"]]:
            _task_broken("task-form", "an answer commits to exactly what was answered")
        if instant(entry.at) >= instant(task.body["expires_at"]):
            _task_broken("task-late", f"the answer of {body['person']} came after {task.body['expires_at']}")
        task.state, task.person = "answered", body["person"]

    def ended(self, entry: Entry) -> None:
        """Nobody answered: the time is up, or nobody waits any more."""
        task = self._open(entry.body)
        if entry.type == "task.expired" and instant(entry.at) < instant(task.body["expires_at"]):
            _task_broken("task-late", f"{entry.body['task']} ends only at {task.body['expires_at']}")
        task.state = entry.type.partition(".")[2]

    @staticmethod
    def mended(entry: Entry) -> None:
        """An operator says that what was wrong outside is put right, or will not be."""
        if entry.actor != {"type": "person", "id": entry.body["person"]} or not entry.body["person"]:
            _task_broken("task-person", "what an operator says about mending is said by a person who is named")

    def signatures(self, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What a request to sign must ask for, and for how long at most."""
        task = self._tasks[body["promise"]]
        if task.state != "answered" or not task.body["signers"]:
            _task_broken("sign-off", f"{body['approval']} asks to sign a task that has no answer or wants no signature")
        if body["verdict_n"] or body["policy_revision"]:
            _task_broken("sign-off", f"{body['approval']} signs an answer, which no policy judges")
        if task.person not in {ancestor["person"] for ancestor in body["lineage"]}:
            _task_broken("sign-off", f"{task.person} answered and may not sign; the lineage leaves that out")
        return {**task.body, "groups": task.body["signers"]}, sign_seconds_max

    def check_done(self, promise: str, *, is_signed: bool) -> None:
        """Return when the task was answered and what had to be signed is signed."""
        task = self._tasks[promise]
        if task.state != "answered":
            _task_broken("step-unproved", f"task {task.body['task']} completed and is {task.state}")
        if task.body["signers"] and not is_signed:
            _task_broken("step-unproved", f"task {task.body['task']} completed and its answer is not signed")

    def _open(self, body: dict[str, Any]) -> Task:
        task = self._tasks.get(body["promise"])
        if task is None or task.body["task"] != body["task"]:
            _task_broken("task-unknown", f"{body['task'][:40]!r} was never asked")
        if task.state != "open":
            _task_broken("task-late", f"{body['task']} is already {task.state}")
        return task


def _task_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.doubts ==============================================================================

"""The rules that the entries of a doubt must obey: who may speak about an outcome that nobody knows, and how many want it made again."""


@dataclass(slots=True)
class Question:
    """One attempt that may have happened, as its entries tell it."""

    body: dict[str, Any]
    groups: frozenset[str]
    lineage: frozenset[str]
    retry: list[str] = field(default_factory=list)  # who wants it made again


class Doubts:
    """The doubts of a run by promise and attempt; each verb refuses what could not have happened."""

    def __init__(self) -> None:
        self._doubts: dict[tuple[str, int], Question] = {}

    def asked(self, entry: Entry, groups: list[str], *, reversible: bool) -> None:
        """People were asked; `groups` are those who could hold a key for it."""
        body = entry.body
        place = (body["promise"], body["attempt"])
        if place in self._doubts:
            _doubt_broken("doubt", f"{body['doubt']} is asked twice")
        if body["keys"] < (1 if reversible else 2):
            _doubt_broken("doubt", f"{body['doubt']} asks {body['keys']} people where what they say cannot be undone")
        lineage = frozenset(ancestor["person"] for ancestor in body["lineage"])
        self._doubts[place] = Question(body, frozenset(groups), lineage)

    def word(self, entry: Entry) -> None:
        """Somebody wants it looked at, or made again."""
        body = entry.body
        doubt = self._doubts.get((body["promise"], body["attempt"]))
        if doubt is None or doubt.body["doubt"] != body["doubt"]:
            _doubt_broken("word-unknown", f"{body['doubt'][:40]!r} was never asked")
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _doubt_broken("word-person", f"the word of {body['person']} was given by {entry.actor['id']}")
        if body["how"] not in ("probe", "retry"):
            _doubt_broken("word-kind", f"{body['how'][:40]!r} is no word that is kept as such")
        if list(entry.commit) != ([body["reason_sha256"]] if body["reason_sha256"] else []):
            _doubt_broken("word-reason", "a word commits to exactly the reason that was given")
        if body["how"] == "probe":
            return
        self._check_unrelated(doubt, body["person"])
        if doubt.groups and not doubt.groups & set(body["groups"]):
            _doubt_broken("word-group", f"{body['person']} could hold no key for this and speaks about it")
        if not body["reason_sha256"]:
            _doubt_broken("word-reason", f"{body['person']} gives no reason")
        if body["person"] in doubt.retry:
            _doubt_broken("word-twice", f"{body['person']} wants it made again twice")
        doubt.retry.append(body["person"])

    def check_speaker(self, promise: str, attempt: int, person: str) -> None:
        """Return unless the one who says what happened had a part in asking for it."""
        doubt = self._doubts.get((promise, attempt))
        if doubt is not None:
            self._check_unrelated(doubt, person)

    def check_retry(self, promise: str, attempt: int) -> None:
        """Return when enough different people want it made again."""
        doubt = self._doubts.get((promise, attempt))
        if doubt is None or len(doubt.retry) < doubt.body["keys"]:
            wanted = 0 if doubt is None else doubt.body["keys"]
            _doubt_broken(
                "retry-unasked",
                f"attempt {attempt} of promise {promise} is unknown and made again by "
                f"{len(self.wanting(promise, attempt))} of {wanted or 'enough'} people",
            )

    def wanting(self, promise: str, attempt: int) -> tuple[str, ...]:
        """Who wants it made again."""
        doubt = self._doubts.get((promise, attempt))
        return tuple(doubt.retry) if doubt is not None else ()

    def _check_unrelated(self, doubt: Question, person: str) -> None:
        if person in doubt.lineage:
            _doubt_broken("resolved-person", f"{person} had a part in asking for it and cannot speak about its outcome")


def _doubt_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.findings ============================================================================

"""The rule that recorded findings give the recorded verdict again: no verdict of a bundle is believed for its own sake."""


def derive_verdict(
    body: dict[str, Any], proposal: dict[str, Any], documents: Mapping[str, bytes], tenant: str, run: str
) -> tuple[str, list[dict[str, Any]]]:
    """The recorded findings must give the recorded verdict; doubt may only have become a denial. Returns a remark, or "", and what
    the findings oblige to.

    Before holds kept their own groups a verdict said nothing of `needs`, and the groups of all holds came together. Such
    a verdict is held to what was in force then, and the remark says so.
    """
    if body["effect"] not in ("allow", "deny", "needs_approval"):
        _finding_broken("verdict-effect", f"{body['effect'][:40]!r} is no effect")
    if body["effect"] == "deny" and body["deny_kind"] == "fault":
        return "", []
    document = _judged_document(documents, body["input_sha256"], "input")
    findings = _judged_document(documents, body["findings_sha256"], "findings")
    try:
        subject = subject_of(document)
        said = (document["action"]["sha256"], document["tenant"]["id"], document["run"]["id"])
        checked = check_findings(findings)
        differs = source_fault(checked, document["request"]["id"], body["action_sha256"], body["policy_revision"])
    except (KeyError, TypeError, Unfit) as error:
        _finding_broken(
            "verdict-documents", f"the documents of this verdict are not what policy reads and writes: {error}"
        )
    if differs:
        _finding_broken("verdict-echo", f"the findings do not answer this question: {differs}")
    if said != (body["action_sha256"], tenant, run):
        _finding_broken("verdict-input", "the input document is about another action, run or tenant")
    facts = {"kind": proposal["kind"], "risk_tier": proposal["risk"], "reversible": proposal["reversible"]}
    if subject != facts:
        _finding_broken("verdict-input", "the input document describes the action otherwise than the proposal")
    ruling = reduce(findings, subject)
    derived = {
        "effect": ruling["effect"],
        "deny_kind": ruling["deny_kind"],
        "tier": ruling["tier"],
        "keys": ruling["keys"],
        "counts": [[group, count] for group, count in sorted(ruling["counts"].items())],
        "groups": list(ruling["groups"]),
        "expires_in_s": ruling["expires_in_s"],
        "reasons": [reason["code"] for reason in ruling["reasons"]],
    }
    for name, value in derived.items():
        if body[name] != value:
            _finding_broken(
                "verdict-derived", f"the recorded findings give {name} {value!r}, the verdict says {body[name]!r}"
            )
    if "needs" in body and body["needs"] != ruling["needs"]:
        _finding_broken("verdict-derived", f"the recorded findings give needs {ruling['needs']!r}, the verdict others")
    remark = ""
    if ruling["needs"] and "needs" not in body:
        remark = (
            f"verdict {body['n']} of promise {body['promise']} is from before holds kept their own groups: "
            "a key from any of the groups could satisfy each of them"
        )
    return remark, ruling["obligations"]


def _judged_document(documents: Mapping[str, bytes], digest: str, what: str) -> Any:
    if digest not in documents:
        _finding_broken("verdict-documents", f"the {what} of this verdict is not in the bundle")
    try:
        return read_json(documents[digest])
    except CallerError as error:
        _finding_broken("verdict-documents", f"the {what} of this verdict is not strict JSON: {error.reason}")


def _finding_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.owed ================================================================================

"""What policy obliges to beside keys, held against the entries: a fresh sign-in, a window to stop it in, more than one rejection."""


@dataclass(slots=True)
class Debt:
    """What is owed for one approval, and what was given of it beside its keys."""

    asked_by: tuple[str, int]  # the verdict that asked: its promise and number
    rejecting: list[str] = field(default_factory=list)
    lent: dict[str, str] = field(default_factory=dict)  # who turned a key in whose place
    released_at: datetime | None = None
    glass: frozenset[str] = frozenset()  # the groups of who broke it; empty when nobody did


class Owed:
    """The obligations of the verdicts of a run; each verb refuses what could not have happened under them."""

    def __init__(self) -> None:
        self._obligations: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._debts: dict[str, Debt] = {}
        self._editors: dict[str, set[str]] = {}  # by promise

    def judged(self, body: Mapping[str, Any], obligations: list[dict[str, Any]]) -> None:
        """A verdict, and what its findings oblige to."""
        self._obligations[body["promise"], body["n"]] = obligations

    def edited(self, entry: Entry) -> None:
        """Somebody changed a proposal that was asked about: from now on they are of its lineage."""
        body = entry.body
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _owed_broken("edit-person", f"the edit of {body['person']} was made by {entry.actor['id']}")
        if body["approval"] not in self._debts or self._debts[body["approval"]].asked_by[0] != body["promise"]:
            _owed_broken("edit-unasked", f"{body['approval'][:40]!r} was never asked for this step and is edited")
        if list(entry.commit) != [body["fields_sha256"]]:
            _owed_broken("edit-commit", "an edit commits to exactly the values that it gives")
        self._editors.setdefault(body["promise"], set()).add(body["person"])

    def asked(self, body: Mapping[str, Any]) -> None:
        """An approval is asked; a verdict of number 0 is an author's, which obliges to nothing."""
        missing = self._editors.get(body["promise"], set()) - {ancestor["person"] for ancestor in body["lineage"]}
        if missing:
            _owed_broken("approval-lineage", f"{min(missing)} edited what is asked and is missing from the lineage")
        self._debts[body["approval"]] = Debt((body["promise"], body["verdict_n"]))

    def rejected(self, entry: Entry, asked: Mapping[str, Any]) -> None:
        """Somebody rejects where policy wants more than one to."""
        body, debt = entry.body, self._debts[entry.body["approval"]]
        person, needed = body["person"], self._rejections(debt)
        if entry.actor != {"type": "person", "id": person} or not person:
            _owed_broken("rejection-person", f"the rejection of {person} was given by {entry.actor['id']}")
        if person in debt.rejecting:
            _owed_broken("rejection-twice", f"{person} rejected {body['approval']} twice")
        if person in {ancestor["person"] for ancestor in asked["lineage"]} or not set(body["groups"]) & set(
            asked["groups"]
        ):
            _owed_broken("rejection-person", f"{person} could hold no key for {body['approval']} and rejects it")
        debt.rejecting.append(person)
        if body["needed"] != needed or not 1 <= body["given"] <= len(debt.rejecting) or body["given"] >= needed:
            _owed_broken(
                "rejection-count", f"the rejection of {person} claims to be {body['given']} of {body['needed']}"
            )

    def turned(self, entry: Entry, lineage: frozenset[str]) -> None:
        """A key, perhaps in somebody's place: those two are one person, and the lineage holds for both."""
        absent = entry.body.get("for_person", "")
        if not absent:
            return
        if absent == entry.body["person"] or absent in lineage:
            _owed_broken(
                "key-lineage", f"{entry.body['person']} turned a key in the place of {absent[:40]}, who could not"
            )
        self._debts[entry.body["approval"]].lent[entry.body["person"]] = absent

    def broken(self, entry: Entry, asked: Mapping[str, Any], *, reversible: bool) -> str:
        """One person broke the glass: policy has one, what is done can be taken back, and a review is owed. What to say of it."""
        body, debt = entry.body, self._debts[entry.body["approval"]]
        person, owed = body["person"], self._of(debt)
        if entry.actor != {"type": "person", "id": person} or not person:
            _owed_broken("glass-person", f"the glass of {person} was broken by {entry.actor['id']}")
        if person in {ancestor["person"] for ancestor in asked["lineage"]} or body["level"] < 4:
            _owed_broken(
                "glass-person", f"{person} took part in the request, or has level {body['level']}, and breaks its glass"
            )
        if not _glass_groups(owed) & set(body["groups"]):
            _owed_broken("glass-policy", f"policy has no glass that {person} may break for {body['approval']}")
        if not reversible:
            _owed_broken("glass-irreversible", f"{person} broke the glass for what cannot be taken back")
        if (body["action_sha256"], body["card_sha256"]) != (asked["action_sha256"], asked["card_sha256"]):
            _owed_broken("key-digest", f"{person} saw another action or another card than was asked for")
        if instant(entry.at) >= instant(asked["expires_at"]) or not body["ticket_sha256"] or not body["reason_sha256"]:
            _owed_broken(
                "glass-late", f"the glass of {body['approval']} was broken too late, or without a ticket or a reason"
            )
        if any(one["type"] == "step_up" for one in owed) and body["via"] != "console":
            _owed_broken("step-up", "policy wanted a fresh sign-in, and the glass was broken elsewhere")
        debt.glass, debt.released_at = frozenset(body["groups"]), instant(entry.at)
        return f"{person} broke the glass for {body['approval']}: one key for all; two others owe a review until {body['due_at']}"

    def is_broken(self, approval: str) -> bool:
        """Whether one key does for all of this approval."""
        return bool(self._debts[approval].glass)

    def released(self, entry: Entry, vias: Mapping[str, str]) -> None:
        """Enough keys are there; `vias` says through which door each person gave theirs."""
        debt = self._debts[entry.body["approval"]]
        debt.released_at = instant(entry.at)
        self._check_keys(debt, self._of(debt), vias, entry.body["persons"])

    def check_intent(self, entry: Entry, vias: Mapping[str, str], persons: Collection[str], *, held: bool) -> None:
        """An effect begins under an approval: what was owed when people were asked, and what is owed now; `held` if it still is."""
        body = entry.body
        debt = self._debts[body["approval"]]
        newest = self._obligations.get((body["promise"], body["verdict_n"]), [])
        if debt.glass:
            if held and not _glass_groups(newest) & debt.glass:
                _owed_broken("glass-policy", f"policy had no glass any more when {body['approval']} was used")
            return
        both = [*self._of(debt), *newest]
        self._check_keys(debt, both, vias, persons)
        seconds = max((one["seconds"] for one in both if one["type"] == "hold_window"), default=0)
        if debt.released_at is None or instant(entry.at) < debt.released_at + timedelta(seconds=seconds):
            _owed_broken("window", f"{body['approval']} had to be held for {seconds} seconds and was not")

    def _check_keys(
        self, debt: Debt, owed: list[dict[str, Any]], vias: Mapping[str, str], persons: Collection[str]
    ) -> None:
        if any(one["type"] == "step_up" for one in owed) and not any(
            vias.get(person) == "console" for person in persons
        ):
            _owed_broken("step-up", "policy wanted a key with a fresh sign-in, and none was given in the console")
        ones = [debt.lent.get(person, person) for person in persons]
        if len(set(ones)) != len(ones):
            _owed_broken("two-person", "whoever was away and whoever stood in for them are counted as two people")
        both = sorted(set(persons) & set(debt.rejecting))
        if both:
            _owed_broken("two-person", f"{both[0]} is counted for what they rejected")

    def _of(self, debt: Debt) -> list[dict[str, Any]]:
        return self._obligations.get(debt.asked_by, [])

    def _rejections(self, debt: Debt) -> int:
        return min((int(one["needed"]) for one in self._of(debt) if one["type"] == "rejections"), default=1)


def _glass_groups(owed: list[dict[str, Any]]) -> set[str]:
    return {one["group"] for one in owed if one["type"] == "break_glass"}


def _owed_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.receipts ============================================================================

"""The receipts of a bundle held against the entries that name them: each is there, in order, and says what its entry says."""


class Receipts:
    """Every receipt by its digest; each verb refuses one that is not what its entry says."""

    def __init__(self, envelopes: Mapping[str, dict[str, Any]]) -> None:
        self._envelopes = envelopes
        self._newest: dict[str, tuple[int, int]] = {}  # attempt and n, by effect key

    def __contains__(self, digest: str) -> bool:
        return digest in self._envelopes

    def check(self, body: dict[str, Any], status: str, tenant: str, run: str) -> dict[str, Any]:
        """The envelope that this entry names; with an empty status it may be any."""
        digest = body["receipt_sha256"]
        envelope = self._envelopes.get(digest)
        if envelope is None:
            _receipt_broken("receipt-missing", f"receipt {digest[:16]} is not in the bundle")
        place = (body["attempt"], body["n"])
        if place <= self._newest.get(body["key_sha256"], (0, 0)):
            _receipt_broken("receipt-order", f"receipt {body['n']} of attempt {body['attempt']} is not the next")
        self._newest[body["key_sha256"]] = place
        origin = envelope.get("origin")
        said = {
            "tenant": (envelope.get("tenant"), tenant),
            "run": (origin.get("run") if type(origin) is dict else None, run),
            "promise": (origin.get("promise") if type(origin) is dict else None, body["promise"]),
            "attempt": (envelope.get("attempt"), body["attempt"]),
            "n": (envelope.get("n"), body["n"]),
            "action_sha256": (envelope.get("action_sha256"), body["action_sha256"]),
            "status": (envelope.get("status"), status or envelope.get("status")),
            "signed_by": (envelope["signed_by"], body["signed_by"]),
        }
        for name, (inside, outside) in said.items():
            if inside != outside:
                _receipt_broken("receipt-other", f"the receipt says {name} {inside!r}, the entry {outside!r}")
        return envelope


def _receipt_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.story ===============================================================================

"""The rules that the entries of a run must obey together: what was done was proposed, judged, released and receipted.

Nothing here trusts a summary. Verdicts are derived again from the recorded findings, and every release is counted again
from the raw keys.
"""


approver_level_min = 4
nothing_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
settled_statuses = ("ok", "error", "timeout", "rejected")
tiers_in_order = ("low", "med", "high")


@dataclass(slots=True)
class Asked:
    """One request for approval as its entries tell it."""

    body: dict[str, Any]
    seconds: float  # from asking to expiry
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: str = "open"  # open | released | rejected | expired | canceled
    persons: tuple[str, ...] = ()


@dataclass(slots=True)
class Effect:
    """One attempt at an effect as its entries tell it."""

    body: dict[str, Any]
    state: str = "open"  # open | receipted | retried | unknown | resolved


class Story:
    """Takes the entries in order and refuses the first that could not have happened."""

    def __init__(
        self,
        documents: Mapping[str, bytes],
        receipts: Mapping[str, dict[str, Any]],
        started: frozenset[tuple[str, int]],
    ) -> None:
        self._documents = documents
        self._receipts = Receipts(receipts)
        self._started = started
        self._tenant = self._run = ""
        self._requester = ""
        self._family = Family(started)
        self._proposals: dict[str, dict[str, Any]] = {}
        self._verdicts: dict[str, list[dict[str, Any]]] = {}
        self._effects: dict[str, list[Effect]] = {}
        self._done: set[str] = set()
        self._tasks = Tasks()
        self._doubts = Doubts()
        self._owed = Owed()
        self.approvals: dict[str, Asked] = {}
        self.counts: dict[str, int] = {}
        self.remarks: list[str] = []
        self._rules: dict[str, Callable[[Entry], None]] = {
            "run.queued": self._queued,
            **self._family.rules,
            "action.proposed": self._proposed,
            "action.edited": self._owed.edited,
            "verdict.given": self._judged,
            "approval.asked": self._asked,
            "key.given": self._key,
            "key.refused": self._refused,
            "rejection.given": self._rejected,
            "approval.stopped": self._ended,
            "glass.broken": self._glass,
            "debt.overdue": self._debt,
            "approval.released": self._released,
            "approval.rejected": self._ended,
            "approval.expired": self._ended,
            "approval.canceled": self._ended,
            "effect.intended": self._intended,
            "effect.receipted": self._receipted,
            "effect.unknown": self._unknown,
            "effect.resolved": self._resolved,
            "effect.retried": self._retried,
            "effect.reused": self._reused,
            "effect.looked": self._looked,
            "doubt.asked": self._doubted,
            "word.given": self._word,
            "task.asked": self._task_asked,
            "task.answered": self._tasks.answered,
            "task.expired": self._tasks.ended,
            "task.canceled": self._tasks.ended,
            "operator.answered": self._tasks.mended,
            "reversal.proposed": self._reversal,
            "step.completed": self._completed,
            "run.closed": self._closed,
        }

    def take(self, entry: Entry) -> None:
        """One more entry; raises BrokenLedger when it breaks a rule."""
        self.counts[entry.type] = self.counts.get(entry.type, 0) + 1
        rule = self._rules.get(entry.type)
        if rule:
            rule(entry)

    def _task_asked(self, entry: Entry) -> None:
        if entry.body["promise"] in self._proposals:
            _broken("task-twice", f"promise {entry.body['promise']} is an action and no task")
        self._tasks.asked(entry)

    # --- proposed and judged ---------------------------------------------------------------------------------------

    def _queued(self, entry: Entry) -> None:
        self._tenant, self._run = entry.tenant, entry.chain
        self._requester, self._family.trigger = entry.actor["id"], entry.body["trigger_type"]

    def _proposed(self, entry: Entry) -> None:
        body = entry.body
        before = self._proposals.get(body["promise"])
        if before and body["rev"] <= before["rev"]:
            _broken("proposal-order", f"revision {body['rev']} of promise {body['promise']} follows {before['rev']}")
        self._family.check_proposed(body["connector"])
        if not body["action_sha256"] or not body["key_sha256"]:
            _broken("proposal-empty", "a proposal names its action and its effect key by their digests")
        self._proposals[body["promise"]] = body

    def _judged(self, entry: Entry) -> None:
        body = entry.body
        if body["promise"] in self._tasks:
            _broken("sign-off", f"promise {body['promise']} is a task, which no policy judges")
        proposal = self._proposal_of(body)
        given = self._verdicts.setdefault(body["promise"], [])
        if given and body["n"] <= given[-1]["n"]:
            _broken("verdict-order", f"verdict {body['n']} of promise {body['promise']} follows {given[-1]['n']}")
        wanted = [digest for digest in (body["input_sha256"], body["findings_sha256"]) if digest]
        if list(entry.commit) != wanted:
            _broken("verdict-commit", "a verdict commits to exactly its input and its findings")
        remark, obligations = derive_verdict(body, proposal, self._documents, self._tenant, self._run)
        self._owed.judged(body, obligations)
        if remark:
            self.remarks.append(remark)
        given.append(body)

    # --- keys ------------------------------------------------------------------------------------------------------

    def _asked(self, entry: Entry) -> None:
        body = entry.body
        self._proposal_of(body)
        if body["approval"] in self.approvals:
            _broken("approval-twice", f"{body['approval']} is asked twice")
        wanted, lasts_max = self._wanted_of(body)
        for name in ("keys", "groups", "counts", "needs"):
            if body.get(name) != wanted.get(name):
                _broken("approval-verdict", f"asks for {name} {body.get(name)!r} where {wanted.get(name)!r} are needed")
        lasts = (instant(body["expires_at"]) - instant(entry.at)).total_seconds()
        if not 0 < lasts <= lasts_max + 1:
            _broken("approval-expiry", f"expires after {lasts:.0f} seconds where {lasts_max:.0f} are allowed")
        lineage = {ancestor["person"] for ancestor in body["lineage"]}
        if self._requester and self._requester not in lineage:
            _broken("approval-lineage", f"{self._requester} started the run and is missing from the lineage")
        self._family.check_asked(lineage, keys_needed(body["keys"], dict(body["counts"])))
        self.approvals[body["approval"]] = Asked(body, lasts)
        self._owed.asked(body)

    def _wanted_of(self, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What must be asked for: a signature by the author of a task, everything else by policy."""
        if body["promise"] in self._tasks:
            return self._tasks.signatures(body)
        verdict = self._verdict_of(body["promise"], body["verdict_n"])
        if verdict is not self._verdicts[body["promise"]][-1]:
            _broken("approval-verdict", f"verdict {verdict['n']} is not the newest of promise {body['promise']}")
        for name in ("action_sha256", "policy_revision", "tier"):
            if body[name] != verdict[name]:
                _broken("approval-verdict", f"{name} differs from verdict {verdict['n']}")
        return self._wanted(verdict)

    def _wanted(self, verdict: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What must be asked for, and for how long: by the verdict, or as before when only the action drifted."""
        if verdict["effect"] == "needs_approval":
            return verdict, verdict["expires_in_s"]
        before = [asked for asked in self.approvals.values() if asked.body["promise"] == verdict["promise"]]
        if verdict["effect"] != "allow" or not before:
            _broken("approval-verdict", f"verdict {verdict['n']} asks for no approval")
        return before[-1].body, before[-1].seconds

    def _key(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        person = body["person"]
        if asked.state != "open":
            _broken("key-late", f"a key for {body['approval']}, which is already {asked.state}")
        if entry.actor != {"type": "person", "id": person} or not person:
            _broken("key-person", f"the key of {person} was given by {entry.actor['id']}")
        if person in asked.keys:
            _broken("two-person", f"{person} turned a key of {body['approval']} twice")
        if person in {ancestor["person"] for ancestor in asked.body["lineage"]}:
            _broken("key-lineage", f"{person} took part in the request that this key is for")
        if (body["action_sha256"], body["card_sha256"]) != (asked.body["action_sha256"], asked.body["card_sha256"]):
            _broken("key-digest", f"{person} saw another action or another card than was asked for")
        if instant(entry.at) >= instant(asked.body["expires_at"]):
            _broken("key-expired", f"the key of {person} came after {asked.body['expires_at']}")
        if body["level"] < approver_level_min:
            _broken("key-level", f"{person} has level {body['level']}; keys need {approver_level_min}")
        if not set(body["groups"]) & set(asked.body["groups"]):
            _broken("key-group", f"{person} is in none of the groups that were asked")
        self._owed.turned(entry, frozenset(ancestor["person"] for ancestor in asked.body["lineage"]))
        asked.keys[person] = body
        least = keys_needed(asked.body["keys"], dict(asked.body["counts"]))
        given, _ = _progress(asked.body, asked, tuple(asked.keys))
        # Where holds ask for different things, how many it takes depends on who comes: at least so many.
        fits = body["needed"] >= least if "needs" in asked.body else body["needed"] == least
        if not fits or not 1 <= body["given"] <= min(given, body["needed"]):
            _broken("key-count", f"the key of {person} claims to be {body['given']} of {body['needed']}")

    def _refused(self, entry: Entry) -> None:
        self._approval_of(entry.body)

    def _rejected(self, entry: Entry) -> None:
        asked = self._approval_of(entry.body)
        if asked.state != "open":
            _broken("rejection-late", f"{entry.body['approval']} is already {asked.state}")
        self._owed.rejected(entry, asked.body)

    def _released(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        self._same_approval(body, asked)
        if asked.state != "open":
            _broken("release-late", f"{body['approval']} is already {asked.state}")
        self._check_release(asked.body, asked, tuple(body["persons"]))
        if instant(entry.at) >= instant(asked.body["expires_at"]):
            _broken("release-late", f"{body['approval']} expired at {asked.body['expires_at']}")
        self._owed.released(entry, _vias(asked))
        asked.state, asked.persons = "released", tuple(body["persons"])

    def _glass(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        self._same_approval(body, asked)
        if asked.state != "open":
            _broken("release-late", f"{body['approval']} is already {asked.state}")
        self.remarks.append(self._owed.broken(entry, asked.body, reversible=self._proposal_of(body)["reversible"]))
        asked.state, asked.persons = "released", (body["person"],)

    def _debt(self, entry: Entry) -> None:
        owing = ", ".join(entry.body["reviews"][:5])
        self.remarks.append(f"DEBT: when this run ended, reviews of broken glass were overdue in this tenant: {owing}")

    def _check_release(self, wanted: dict[str, Any], asked: Asked, persons: tuple[str, ...]) -> None:
        name = asked.body["approval"]
        unknown = [person for person in persons if person not in asked.keys]
        if unknown:
            _broken("forged-key", f"{unknown[0]} is counted for {name} and gave no key")
        if len(set(persons)) != len(persons):
            _broken("two-person", f"one person is counted twice for {name}")
        given, needed = _progress(wanted, asked, persons)
        if given < needed:
            _broken("two-person", f"{name} needs {needed} keys of different people and has {given}")

    def _ended(self, entry: Entry) -> None:
        asked = self._approval_of(entry.body)
        self._same_approval(entry.body, asked)
        # Between release and intent a person may still stop, and a drift may still withdraw.
        if entry.type == "approval.stopped" and asked.state != "released":
            _broken("approval-ended", f"{entry.body['approval']} is {asked.state} and is stopped")
        if asked.state != "open" and not (asked.state == "released" and entry.type != "approval.expired"):
            _broken("approval-ended", f"{entry.body['approval']} is already {asked.state}")
        if entry.type == "approval.expired" and instant(entry.at) < instant(asked.body["expires_at"]):
            _broken("approval-ended", f"{entry.body['approval']} ends only at {asked.body['expires_at']}")
        asked.state = entry.type.partition(".")[2]

    def _same_approval(self, body: dict[str, Any], asked: Asked) -> None:
        if (body["promise"], body["action_sha256"]) != (asked.body["promise"], asked.body["action_sha256"]):
            _broken("approval-action", f"{body['approval']} was asked for another action")

    def _approval_of(self, body: dict[str, Any]) -> Asked:
        asked = self.approvals.get(body["approval"])
        if asked is None:
            _broken("approval-unknown", f"{body['approval'][:40]!r} was never asked for")
        return asked

    # --- effects ---------------------------------------------------------------------------------------------------

    def _intended(self, entry: Entry) -> None:
        body = entry.body
        proposal = self._proposal_of(body)
        if body["key_sha256"] != proposal["key_sha256"]:
            _broken("intent-key", "the intent has another effect key than the proposal")
        place = f"attempt {body['attempt']} of promise {body['promise']}"
        attempts = self._effects.setdefault(body["promise"], [])
        if body["attempt"] < 1 or any(body["attempt"] <= other.body["attempt"] for other in attempts):
            _broken("intent-order", f"{place} is not the next")
        if any(other.state in ("open", "unknown") for other in attempts):
            _broken("intent-open", f"{place} is intended while an earlier one has no known outcome")
        if body["key_sha256"] in self._done:
            _broken("effect-twice", f"{place}: this effect succeeded already")
        if (body["promise"], body["attempt"]) not in self._started:
            _broken("intent-journal", f"the journal does not start {place}")
        self._permit(entry)
        attempts.append(Effect(body))

    def _permit(self, entry: Entry) -> None:
        """An allow for exactly this action, or keys that satisfy the stricter of what was asked and what is asked now."""
        body = entry.body
        verdict = self._verdict_of(body["promise"], body["verdict_n"])
        given = self._verdicts[body["promise"]]
        if verdict is not given[-1] or verdict["action_sha256"] != body["action_sha256"]:
            _broken("executed-unapproved", "the intent does not rest on the newest verdict about this action")
        if verdict["policy_revision"] != body["policy_revision"]:
            _broken("executed-unapproved", "the intent names another policy revision than its verdict")
        denied = any(one["effect"] == "deny" and one["deny_kind"] != "fault" for one in given)
        if denied or verdict["effect"] == "deny":
            _broken("executed-denied", f"policy denied the action of promise {body['promise']}")
        # Once policy wanted people to see this step, a later plain allow does not take that back.
        held = self._family.is_change or any(one["effect"] == "needs_approval" for one in given)
        if not held and not body["approval"]:
            return
        asked = self.approvals.get(body["approval"])
        if asked is None or asked.state != "released":
            state = asked.state if asked else "not asked for"
            _broken("executed-unapproved", f"the action needs keys and {body['approval'] or 'its approval'} is {state}")
        self._same_approval(body, asked)
        is_held = verdict["effect"] == "needs_approval"
        self._owed.check_intent(entry, _vias(asked), asked.persons, held=is_held)
        if is_held and not self._owed.is_broken(body["approval"]):
            if tiers_in_order.index(verdict["tier"]) > tiers_in_order.index(asked.body["tier"]):
                _broken("executed-unapproved", f"{body['approval']} was asked at a lower tier than the recheck demands")
            stricter = {**verdict, "keys": max(verdict["keys"], asked.body["keys"])}
            self._check_release(stricter, asked, asked.persons)

    def _receipted(self, entry: Entry) -> None:
        effect = self._open_effect(entry.body, ("open", "unknown"))
        status = entry.body["status"]
        if status not in settled_statuses:
            _broken("receipt-status", f"{status[:40]!r} is no status of a settled effect")
        envelope = self._check_receipt(entry.body, status)
        if effect.state == "unknown" and envelope.get("how") != "looked":
            _broken("effect-order", "an unknown outcome is settled by looking or by a person, and by nothing else")
        effect.state = "receipted"
        self._settle(entry.body, status)

    def _unknown(self, entry: Entry) -> None:
        effect = self._open_effect(entry.body, ("open",))
        self._check_receipt(entry.body, "unknown")
        effect.state = "unknown"

    def _resolved(self, entry: Entry) -> None:
        body = entry.body
        effect = self._open_effect(body, ("unknown",))
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _broken("resolved-person", "an unknown outcome is resolved by a person who is named")
        self._doubts.check_speaker(body["promise"], body["attempt"], body["person"])
        if body["person"] == self._requester:
            _broken("resolved-person", f"{body['person']} started the run and cannot say how its effect ended")
        envelope = self._check_receipt(body, "")
        if envelope.get("status") not in settled_statuses or body["how"] not in ("happened", "did_not"):
            _broken("receipt-status", "the resolution does not say whether it happened")
        if (body["how"] == "happened") != (envelope["status"] == "ok"):
            _broken("receipt-status", f"the person said {body['how']}, the receipt says {envelope['status']}")
        if envelope.get("resolved_by") != body["person"]:
            _broken("resolved-person", "the receipt names somebody else as the one who resolved it")
        effect.state = "resolved"
        self._settle(body, envelope["status"])

    def _settle(self, body: dict[str, Any], status: str) -> None:
        if status == "ok":
            if body["key_sha256"] in self._done:
                _broken("effect-twice", "a second receipt says that this effect succeeded")
            self._done.add(body["key_sha256"])

    def _retried(self, entry: Entry) -> None:
        body = entry.body
        effect = self._effect_of(body)
        if effect.state == "unknown":
            # Nobody knows whether it happened: only people may want it made again, and enough of them.
            self._doubts.check_retry(body["promise"], body["attempt"])
            self.remarks.append(
                f"attempt {body['attempt']} of promise {body['promise']} stayed unknown and was made again because "
                f"{', '.join(self._doubts.wanting(body['promise'], body['attempt']))} wanted it"
            )
        elif effect.state not in ("open", "receipted", "resolved"):
            _broken("effect-order", f"an attempt that is {effect.state} is tried again")
        effect.state = "retried"

    def _reversal(self, entry: Entry) -> None:
        done = self._proposals.get(entry.body["of"])
        if done is None or done["key_sha256"] not in self._done:
            _broken(
                "reversal", f"{entry.body['step'][:40]} undoes operation {entry.body['of'][:40]}, which never happened"
            )

    def _doubted(self, entry: Entry) -> None:
        effect = self._effect_of(entry.body)
        if effect.state != "unknown" or entry.body["action_sha256"] != effect.body["action_sha256"]:
            _broken("doubt", "people are asked about an attempt that is not unknown, or about another action")
        approval = self.approvals.get(effect.body["approval"])
        groups = approval.body["groups"] if approval else []
        proposal = self._proposal_of({**entry.body, "action_sha256": effect.body["action_sha256"]})
        self._doubts.asked(entry, groups, reversible=proposal["reversible"])

    def _looked(self, entry: Entry) -> None:
        if self._effect_of(entry.body).state != "unknown":
            _broken("effect-order", "an outcome that is known is looked for")

    def _word(self, entry: Entry) -> None:
        if self._effect_of(entry.body).state != "unknown":
            _broken("word-late", f"{entry.body['person']} speaks about an attempt that is not unknown")
        self._doubts.word(entry)

    def _reused(self, entry: Entry) -> None:
        body = entry.body
        proposal = self._proposal_of(body)
        if body["key_sha256"] != proposal["key_sha256"]:
            _broken("intent-key", "the reused receipt has another effect key than the proposal")
        if body["receipt_sha256"] not in self._receipts:
            self.remarks.append(
                f"promise {body['promise']} reused a receipt of run {body['run']}: see that run's bundle"
            )
        self._done.add(body["key_sha256"])

    def _check_receipt(self, body: dict[str, Any], status: str) -> dict[str, Any]:
        return self._receipts.check(body, status, self._tenant, self._run)

    def _effect_of(self, body: dict[str, Any]) -> Effect:
        for effect in self._effects.get(body["promise"], ()):
            if effect.body["attempt"] == body["attempt"]:
                return effect
        _broken("no-intent", f"attempt {body['attempt']} of promise {body['promise']} was never intended")

    def _open_effect(self, body: dict[str, Any], states: tuple[str, ...]) -> Effect:
        effect = self._effect_of(body)
        if effect.state not in states:
            _broken("effect-order", f"an attempt that is {effect.state} gets another outcome")
        for name in ("key_sha256", "action_sha256"):
            if body[name] != effect.body[name]:
                _broken("receipt-other", f"{name} differs from the intent")
        return effect

    # --- ends ------------------------------------------------------------------------------------------------------

    def _completed(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._tasks:
            states = {asked.state for asked in self.approvals.values() if asked.body["promise"] == promise}
            self._tasks.check_done(promise, is_signed="released" in states)
            return
        proposal = self._proposals.get(entry.body["promise"])
        if proposal is None or proposal["key_sha256"] not in self._done:
            _broken("step-unproved", f"step {entry.body['step'][:40]} completed and no receipt says that it happened")

    def _closed(self, entry: Entry) -> None:
        self._family.close()
        for promise, attempts in self._effects.items():
            for effect in attempts:
                if effect.state == "open":
                    _broken("intent-open", f"attempt {effect.body['attempt']} of promise {promise} has no outcome")
                if effect.state == "unknown":
                    if entry.body["status"] == "succeeded":
                        _broken("intent-open", f"promise {promise} is unknown and the run claims to have succeeded")
                    self.remarks.append(f"the outcome of promise {promise} was still unknown when the run closed")

    def _proposal_of(self, body: dict[str, Any]) -> dict[str, Any]:
        proposal = self._proposals.get(body["promise"])
        if proposal is None:
            _broken("unproposed", f"promise {body['promise'][:40]!r} was never proposed")
        if proposal["action_sha256"] != body["action_sha256"]:
            _broken("unproposed", f"the action is not the one that promise {body['promise']} proposed last")
        return proposal

    def _verdict_of(self, promise: str, n: int) -> dict[str, Any]:
        for verdict in self._verdicts.get(promise, ()):
            if verdict["n"] == n:
                return verdict
        _broken("no-verdict", f"promise {promise} has no verdict {n}")


def _vias(asked: Asked) -> dict[str, str]:
    return {person: body["via"] for person, body in asked.keys.items()}


def _progress(wanted: dict[str, Any], asked: Asked, persons: tuple[str, ...]) -> tuple[int, int]:
    return progress(wanted, {person: asked.keys[person]["groups"] for person in persons})


def _broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)


# ================== engine.ledger.verify ==============================================================================

"""Verifies an evidence bundle: steps (0) to (9), each numbered as in docs/auditor.md; (6) to (9) of a run are here.

Each step returns what it found or raises; the first broken record is named. Trust comes from a policy that was pinned
outside the bundle; the copies inside are not read. Without a pinned policy the structure is still checked, and the
result is at best incomplete.
"""


STEPS = (
    "stamp: the file is the one that was expected",
    "container: one plain archive and nothing beside it",
    "container: writing its members again gives the same bytes",
    "manifest: every file is listed and has its digest",
    "attestation: a pinned bundle key signed this manifest",
    "checkpoint: a pinned log, and enough witnesses, signed the tree",
    "entries: canonical, chained, in time, included in the tree",
    "run: from its first entry to its closing count",
    "records: commitments, receipts, definition and journal hold",
    "rules: every effect was proposed, judged, released and receipted",
)
_run_ends = ("ExecutionCompleted", "ExecutionFailed", "ExecutionCancelled")


def verify(data: bytes, trust: Trust | None, expected: Expectation = Expectation()) -> Verified:
    """Run all steps; the first broken record ends them, what is only missing is noted and the rest is still checked."""
    sealed = Sealed(data, trust, expected)
    sealed.result.titles = STEPS
    if not _run(sealed, 0, (sealed.stamp, sealed.container, sealed.rewriting, sealed.manifest)):
        return sealed.result
    if sealed.kind is OF_PERIOD:
        sealed.result.titles = PERIOD_STEPS
        later = PeriodCheck(sealed).steps
    else:
        later = _Check(sealed).steps
    _run(sealed, 4, (sealed.attestation, sealed.note, *later))
    return sealed.result


def _run(sealed: Sealed, first: int, steps: tuple[Callable[[], str], ...]) -> bool:
    for number, step in enumerate(steps, first):
        sealed.step, sealed.record = number, ""
        try:
            sealed.result.steps.append(step())
        except TwokeysError as error:
            sealed.broken(error.code, error.reason, MALFORMED if number in (1, 2) else INVALID)
            return False
        except RecursionError:
            sealed.broken("too-deep", "nested deeper than anything this product writes", MALFORMED)
            return False
    return True


class _Check:
    """The steps that only the evidence of one run has: (6) to (9)."""

    def __init__(self, sealed: Sealed) -> None:
        self.sealed = sealed
        self.result, self.trust = sealed.result, sealed.trust
        self.entries: list[Entry] = []
        self.receipts: dict[str, dict[str, Any]] = {}
        self.started: frozenset[tuple[str, int]] = frozenset()
        self.steps: tuple[Callable[[], str], ...] = (self.chain, self.ends, self.records, self.rules)

    # (6) entries
    def chain(self) -> str:
        proofs = self.sealed.lines(PROOFS)
        lines = self.sealed.lines(ENTRIES)
        if len(proofs) != len(lines) or not lines:
            wrong("entry-count", f"{len(lines)} entries and {len(proofs)} proofs")
        before, at, last_index = "0" * 64, "", -1
        for number, (line, proof) in enumerate(zip(lines, proofs, strict=True)):
            self.sealed.record = f"entry {number}"
            entry = read_entry(line)
            self.sealed.record = f"entry {number} ({entry.type})"
            if (entry.tenant, entry.chain) != (self.sealed.predicate["tenant"], self.sealed.predicate["run"]):
                wrong("entry-chain", f"belongs to {entry.tenant}/{entry.chain}, not to this run")
            if entry.chain_seq != number or entry.prev != before:
                wrong("entry-chain", "does not follow the entry before it")
            if entry.at < at:
                wrong("time-order", f"is of {entry.at}, before the entry that it follows")
            index, hashes = _read_proof(proof)
            if index <= last_index:
                wrong("entry-index", f"stands at {index} of the log, the entry before it at {last_index}")
            verify_inclusion(entry.leaf, index, self.sealed.checkpoint.size, hashes, self.sealed.checkpoint.root)
            self.entries.append(entry)
            before, at, last_index = entry.leaf.hex(), entry.at, index
        return f"{len(self.entries)} entries, all in the tree of {self.sealed.checkpoint.size}"

    # (7) run
    def ends(self) -> str:
        first, last = self.entries[0], self.entries[-1]
        self.sealed.record = "entry 0"
        if first.type != "run.queued" or first.prev != "0" * 64:
            wrong("no-genesis", f"a run begins with run.queued, not with {first.type}")
        again = [entry for entry in self.entries[1:] if entry.type == "run.queued"]
        early = [entry for entry in self.entries[:-1] if entry.type == "run.closed"]
        for entry in (*again, *early):
            self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
            wrong("run-order", "stands in the middle of the run")
        self.sealed.record = f"entry {last.chain_seq} ({last.type})"
        facts = {"run": first.chain, "entries": len(self.entries), "from": first.at, "to": last.at}
        self.result.facts |= facts
        if self.sealed.predicate["entries"] != len(self.entries):
            wrong(
                "entry-count",
                f"the statement says {self.sealed.predicate['entries']} entries, here are {len(self.entries)}",
            )
        if last.type != "run.closed":
            self.result.facts["status"] = "open"
            self.sealed.broken(
                "no-terminal", "the run has no closing entry: it is still open, or its end was cut off", INCOMPLETE
            )
            return "begins with run.queued and does not end"
        if last.body["entries"] != len(self.entries):
            wrong("entry-count", f"the closing entry counts {last.body['entries']}, here are {len(self.entries)}")
        if last.body["status"] != self.sealed.predicate["status"]:
            wrong(
                "run-status", f"closed as {last.body['status']}, the statement says {self.sealed.predicate['status']}"
            )
        self.result.facts["status"] = last.body["status"]
        return f"run.queued to run.closed, {last.body['entries']} entries, {last.body['status']}"

    # (8) records
    def records(self) -> str:
        payloads = self._commitments()
        named = {entry.body.get("receipt_sha256") for entry in self.entries}
        for name, body in self.sealed.below(RECEIPT_DIRECTORY).items():
            self.sealed.record = f"data/{RECEIPT_DIRECTORY}{name}"
            self._receipt(name, bytes(body), named)
        self._definition_and_journal()
        self.sealed.record = f"data/{CODE_DIRECTORY}"
        check_moves(self.entries, self.sealed.below(CODE_DIRECTORY))
        policies = self._policies()
        signed = "signed by pinned keys" if self.trust else "not checked against a key"
        return f"{payloads} documents, {len(self.receipts)} receipts {signed}, {policies}"

    def _commitments(self) -> str:
        withheld = set(read_withheld(self.sealed.file(WITHHELD)))
        here = {}
        for name, body in self.sealed.below(PAYLOAD_DIRECTORY).items():
            self.sealed.record = f"data/{PAYLOAD_DIRECTORY}{name}"
            digest = hashlib.sha256(body).hexdigest()
            if payload_name(digest) != PAYLOAD_DIRECTORY + name:
                wrong("payload-hash", f"is named after another document than it holds ({digest[:16]})")
            here[digest] = body
        both = sorted(withheld & here.keys())
        if both:
            wrong("payload-withheld", f"{both[0][:16]} is here and said to be withheld")
        committed: set[str] = set()
        for entry in self.entries:
            for commitment in entry.commit:
                self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
                if commitment not in here and commitment not in withheld and commitment != nothing_sha256:
                    wrong("payload-missing", f"commits to {commitment[:16]}, which is neither here nor withheld")
                committed.add(commitment)
        foreign = sorted((withheld | here.keys()) - committed)
        if foreign:
            self.sealed.record = f"data/{payload_name(foreign[0])}"
            wrong("payload-foreign", "no entry commits to this document")
        self.result.facts["withheld"] = len(withheld)
        return f"{len(here)} here and {len(withheld)} withheld"

    def _receipt(self, name: str, data: bytes, named: set[Any]) -> None:
        body, signature, key_id, envelope = read_receipt(data)
        digest = hashlib.sha256(body).hexdigest()
        if receipt_name(digest) != RECEIPT_DIRECTORY + name:
            wrong("receipt-hash", f"is named after another receipt than it holds ({digest[:16]})")
        if digest not in named:
            wrong("receipt-foreign", "no entry names this receipt")
        if self.trust is not None:
            key = self.trust.receipts.get(key_id)
            if key is None:
                wrong("receipt-sig", f"the key {key_id} is not a receipt key of the trust policy")
            if not verify_signature(key.public, receipt_signed_bytes(body), signature):
                wrong("receipt-sig", f"the signature of {key.name} does not hold over this receipt")
        self.receipts[digest] = {**envelope, "signed_by": key_id}

    def _definition_and_journal(self) -> None:
        first, last = self.entries[0], self.entries[-1]
        # A definition that is interpreted, or the component of a function that is replayed.
        tags = (DEFINITION_TAG, COMPONENT_TAG)
        if first.body["definition_sha256"] not in [tagged(tag, self.sealed.file(DEFINITION)).hex() for tag in tags]:
            wrong("definition", "is not the definition that the run was pinned to")
        rows, head, version = read_journal(self.sealed.file(JOURNAL))
        events = journal_events(rows)
        leaf, count = journal_head(events)
        # A run that was cancelled before it began has no journal; every other one has.
        unbegun = last.type == "run.closed" and last.body["status"] == "canceled" and last.body["journal_version"] == 0
        if (head, version) != (leaf.hex(), count) or (not count and not unbegun):
            wrong("journal-head", "its rows do not chain to the head that it names")
        if last.type == "run.closed":
            if (head, version) != (last.body["journal_head"], last.body["journal_version"]):
                wrong("journal-head", "is not the journal that the run was closed with")
            if events and _event_type(events[-1]) not in _run_ends:
                wrong("journal-end", f"ends with {_event_type(events[-1])}")
        places = set()
        for number, event in enumerate(events):
            if type(event.get("sequence")) is not int or event["sequence"] - events[0]["sequence"] != number:
                wrong("journal-order", f"event {number} is out of sequence")
            if _event_type(event) == "InvokeStarted":
                places.add(_started_place(event["event"]))
        self.started = frozenset(places)
        if events:
            check_parent(events[0], self.entries)

    def _policies(self) -> str:
        revisions = read_policies(self.sealed.file(POLICIES))
        here = {}
        for name, body in self.sealed.below(POLICY_DIRECTORY).items():
            if POLICY_DIRECTORY + name != POLICIES:
                self.sealed.record = f"data/{POLICY_DIRECTORY}{name}"
                digest = hashlib.sha256(body).hexdigest()
                if name.partition(".")[0] != digest:
                    wrong("policy-hash", "is named after another text than it holds")
                here[digest] = name
        self.sealed.record = f"data/{POLICIES}"
        for revision, files in revisions.items():
            if policy_revision(files) != revision:
                wrong("policy-revision", f"the files listed do not make revision {revision[:16]}")
        listed = {digest for files in revisions.values() for _, digest in files}
        if here.keys() - listed:
            wrong("policy-set", "a policy file belongs to no listed revision")
        if sorted(revisions) != self.sealed.predicate["policy_revisions"]:
            wrong("policy-set", "has other revisions than the statement names")
        used = {entry.body["policy_revision"] for entry in self.entries if entry.type == "verdict.given"} - {""}
        self.result.remarks += [
            f"the policy files of revision {name[:16]} are not in the bundle"
            for name in sorted(used - revisions.keys())
        ]
        return f"{len(here)} of {len(listed)} policy files"

    # (9) rules
    def rules(self) -> str:
        documents = {
            name.removesuffix(".json"): bytes(body) for name, body in self.sealed.below(PAYLOAD_DIRECTORY).items()
        }
        story = Story(documents, self.receipts, self.started)
        for entry in self.entries:
            self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
            story.take(entry)
        self.result.remarks += story.remarks
        self.result.facts["approvals"] = {
            name: {"state": asked.state, "persons": sorted(asked.persons)} for name, asked in story.approvals.items()
        }
        counted = {kind: story.counts[kind] for kind in CATALOGUE if kind in story.counts}
        self.result.facts["counts"] = counted
        released = sum(asked.state == "released" for asked in story.approvals.values())
        return (
            f"{counted.get('verdict.given', 0)} verdicts derived again, {released} approvals counted again, "
            f"{counted.get('effect.intended', 0)} effects permitted"
        )


def _read_proof(line: bytes) -> tuple[int, tuple[bytes, ...]]:
    try:
        value = read_json(line, bytes_max=16_384)
    except CallerError as error:
        raise BrokenLedger(error.reason, code="proof-parse") from None
    shaped = type(value) is dict and set(value) == {"index", "hashes"} and type(value["index"]) is int
    if not shaped or type(value["hashes"]) is not list:
        wrong("proof-parse", "a proof is an index and hashes")
    hashes = []
    for item in value["hashes"]:
        if type(item) is not str or len(item) != 64 or item.strip("0123456789abcdef"):
            wrong("proof-parse", "a proof's hashes are 64 hexadecimal digits")
        hashes.append(bytes.fromhex(item))
    return value["index"], tuple(hashes)


def _event_type(event: dict[str, Any]) -> str:
    inner = event.get("event")
    return str(inner.get("type")) if type(inner) is dict else ""


def _started_place(event: dict[str, Any]) -> tuple[str, int]:
    promise, attempt = event.get("promise_id"), event.get("attempt")
    if type(promise) is not list or type(attempt) is not int:
        wrong("journal-parse", "an InvokeStarted names its promise and its attempt")
    return ".".join(str(part) for part in promise[1:]), attempt


# ================== engine.ledger.command =============================================================================

"""The verifier's command line: arguments in, a report and an exit code out; files are read by the caller's hand."""


_about = "Verify the evidence bundle of a Twokeys run or period, offline. Exit: 0 valid, 1 invalid, 2 incomplete, 3 malformed."
_no_pin = "Get the trust policy from somebody other than whoever gave you the bundle, and give it with --trust."


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would leave with 2, which here means an incomplete bundle.
        raise CallerError(message, code="usage", next_step="see --help")


def run_verifier(
    arguments: Sequence[str],
    read_file: Callable[[str], bytes],
    write: Callable[[str], object],
    program: str = "verify.py",
) -> int:
    """Verify as the arguments say, write the report, and return the exit code."""
    try:
        options = _parse(arguments, program)
        data = _content(read_file, options.bundle)
        trust = read_trust(_content(read_file, options.trust)) if options.trust else None
    except (CallerError, BrokenLedger) as error:
        write(f"{program}: {error}\n")
        return MALFORMED
    result = verify(data, trust, Expectation(run=options.run, sha256=options.sha256.lower()))
    write(json_report(result) if options.json else text_report(result, options.bundle, trust))
    return result.outcome


def json_report(result: Verified) -> str:
    """The result as one JSON object on one line."""
    value: dict[str, Any] = {
        "outcome": OUTCOMES[result.outcome],
        "exit": result.outcome,
        "findings": [
            {
                "step": finding.step,
                "code": finding.code,
                "record": finding.record,
                "reason": finding.reason,
                "outcome": OUTCOMES[finding.outcome],
            }
            for finding in result.findings
        ],
        "steps": list(result.steps),
        "remarks": list(result.remarks),
        "facts": result.facts,
    }
    return json.dumps(value, sort_keys=True) + "\n"


def text_report(result: Verified, path: str, trust: Trust | None) -> str:
    """The result for a person: each step, then the verdict in the last line."""
    facts = result.facts
    signatures = "cryptography" if has_cryptography else "built-in Ed25519"
    lines = [f"bundle  {path}", f"sha256  {facts.get('sha256', '')}", f"checks  {signatures}", ""]
    found = {finding.step: finding for finding in result.findings}
    for number, title in enumerate(result.titles):
        if number < len(result.steps):
            word = "MISSING" if number in found else "ok"
            lines.append(f"({number}) {title}\n      {word}: {_printable(result.steps[number])}")
        elif number in found:
            lines.append(f"({number}) {title}\n      BROKEN: see below")
        else:
            lines.append(f"({number}) {title}\n      not reached")
    lines.append("")
    for name in sorted(facts.get("approvals", {})):
        approval = facts["approvals"][name]
        persons = ", ".join(approval["persons"]) or "nobody"
        lines.append(_printable(f"approval {name}: {approval['state']}, keys of {persons}"))
    lines += [_printable(f"note: {remark}") for remark in result.remarks]
    for finding in result.findings:
        word = OUTCOMES[finding.outcome].upper()
        lines.append(
            _printable(f"{word} at step ({finding.step}), {finding.record}: {finding.reason} [{finding.code}]")
        )
    if trust is None:
        lines.append(_no_pin)
    lines.append(_last_line(result))
    return "\n".join(lines) + "\n"


def _last_line(result: Verified) -> str:
    facts = result.facts
    if result.outcome:
        return f"RESULT: {OUTCOMES[result.outcome]}"
    witnesses = facts.get("witnesses")
    by = f"witnessed by {', '.join(witnesses)}" if witnesses else "unwitnessed"
    if "from_size" in facts:
        return (
            f"RESULT: valid ({by}): log of tenant {facts['tenant']} from {facts['from_size']} to {facts['tree_size']}, "
            f"{facts['entries']} entries, {facts['from']} to {facts['to']}"
        )
    return (
        f"RESULT: valid ({by}): run {facts['run']} of tenant {facts['tenant']}, {facts['status']}, "
        f"{facts['entries']} entries, {facts['from']} to {facts['to']}"
    )


def _parse(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = _Arguments(prog=program, description=_about, allow_abbrev=False)
    parser.add_argument("bundle", metavar="BUNDLE", help="the bundle, a .zip file")
    parser.add_argument("--trust", default="", metavar="POLICY", help="the trust policy, obtained from elsewhere")
    parser.add_argument("--run", default="", metavar="RUN", help="refuse the evidence of any other run")
    parser.add_argument("--sha256", default="", metavar="HEX", help="refuse a file with any other digest")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(list(arguments))
    if options.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", options.sha256):
        raise CallerError("a sha256 is 64 hexadecimal digits", code="usage", field="--sha256")
    return options


def _content(read_file: Callable[[str], bytes], path: str) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise CallerError(f"cannot be read: {error.strerror or error}", code="unreadable", field=path) from None


def _printable(text: str) -> str:
    # A hostile bundle's words must not move the cursor of the terminal that shows them.
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(container_bytes_max + 1)


if __name__ == "__main__":
    sys.exit(run_verifier(sys.argv[1:], _read_file, sys.stdout.write))
