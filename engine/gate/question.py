"""The question that policy answers: input document v1 built from an action and the facts around it, and its strict canonical form.

The canonical form rejects and never coerces. Field values and effect keys enter only as HMACs under the tenant's key, so
that questions can be stored and replayed without anybody's data in them. `purpose` stays outside the document.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from engine.canonical import read_json, written
from engine.errors import CallerError
from engine.gate.action import CLASSES, FIELD_OPS, KINDS, TIERS, Action
from engine.gate.reducer import hidden_character
from engine.ids import keyed
from engine.limits import int_max, policy_bytes_max, policy_input_depth_max, policy_input_fields_max

INPUT_SCHEMA = "twokeys.policy.input/v1"
ENVIRONMENTS = ("prod", "staging", "dev")
PURPOSES = ("enforce", "recheck", "shadow", "replay")
ACTOR_TYPES = ("workflow", "user", "service", "model")
REVERSALS = ("inverse", "manual", "none")
BUCKETS = ("business", "after_hours", "weekend")
members_max = 200

_epoch = datetime(1970, 1, 1, tzinfo=UTC)


class QuestionRefused(CallerError):
    """The operator must act: a fact cannot stand in a question, so no question is asked and nothing happens."""

    code = "input_rejected"


# --- the facts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """Where an action comes from: the run, the step, who acts and for whom, and the switch that stops everything."""

    environment: str
    kill_switch: bool
    trigger_type: str
    run_attempt: int
    risk_ceiling: str
    step_index: int
    step_attempt: int
    actor_type: str
    actor_id: str
    actor_groups: tuple[str, ...] = ()
    on_behalf_of: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used already, read before judging; the intent's commit repeats the caps."""

    writes_this_run: int
    writes_this_hour: int
    runs_this_min: int
    concurrent_runs: int
    amount_today_minor: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The approval that a recheck is judged with; absent on the first judgement."""

    present: bool = False
    id: str = ""
    tier: str = ""
    distinct_approvers: int = 0
    two_person_met: bool = False
    policy_revision: str = ""
    action_sha256: str = ""
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whether a freeze stops this tenant's writes, and which one."""

    active: bool = False
    id: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is, on the tenant's own wall: policies never compute time."""

    now_ms: int
    weekday: int  # 0 is Monday
    minute_of_day: int
    tz: str
    bucket: str


@dataclass(frozen=True, slots=True)
class People:
    """Who could hold a key: persons by group, and the lineage, whose members never can."""

    groups: Mapping[str, frozenset[str]]
    lineage: frozenset[str]


@dataclass(frozen=True, slots=True)
class Question:
    """One document as its canonical bytes, what its answer must echo, and the people that its answer may name.

    A question that could not be put has no bytes and a `refusal` (code, message); judging it is a denial.
    """

    input_bytes: bytes
    request_id: str
    action_sha256: str
    purpose: str
    subject: Mapping[str, Any]
    people: People
    refusal: tuple[str, str] = ("", "")


def moment(
    local: datetime, tz: str, *, opens: int = 540, closes: int = 1080, weekend: tuple[int, ...] = (5, 6)
) -> Moment:
    """The moment of an aware local time; business hours are minutes of the day, from `opens` until before `closes`."""
    if local.utcoffset() is None:
        raise QuestionRefused("a moment needs a time zone", field="time")
    minute = local.hour * 60 + local.minute
    bucket = "weekend" if local.weekday() in weekend else "business" if opens <= minute < closes else "after_hours"
    return Moment((local - _epoch) // timedelta(milliseconds=1), local.weekday(), minute, tz, bucket)


def request_id(random_16: bytes) -> str:
    """A request's id from 16 random bytes: the answer must echo it, so no stored or crossed answer fits."""
    raw = bytearray(random_16)
    raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80  # RFC 9562: version 4
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def value_hmac(tenant_key: bytes, value: str) -> str:
    """The name of a value that only a holder of the tenant's key can compute or guess."""
    return keyed(tenant_key, b"twokeys/value/v1\x00" + value.encode("utf-8")).hex()


# --- the document -------------------------------------------------------------------------------------------------


def ask(
    action: Action,
    *,
    request: str,
    purpose: str,
    facts: Facts,
    usage: Usage,
    at: Moment,
    people: People,
    tenant_key: bytes,
    grant: Grant = Grant(),
    freeze: Freeze = Freeze(),
) -> Question:
    """The question about one action. What cannot be asked becomes a question with a refusal, never an exception."""
    subject = {"kind": action.kind, "risk_tier": action.risk, "reversible": action.reversible}
    sha256 = action.digest.hex()
    try:
        if purpose not in PURPOSES:
            _reject("request.purpose", "value", f"is one of {', '.join(PURPOSES)}")
        value = document(action, request, facts, usage, at, tenant_key, grant, freeze)
        data = canonical_input(value)
    except QuestionRefused as refused:
        return Question(b"", request, sha256, purpose, subject, people, (refused.code, str(refused)[:400]))
    return Question(data, request, sha256, purpose, subject, people)


def document(
    action: Action,
    request: str,
    facts: Facts,
    usage: Usage,
    at: Moment,
    tenant_key: bytes,
    grant: Grant,
    freeze: Freeze,
) -> dict[str, Any]:
    """Input document v1 as a value, not yet checked."""
    return {
        "schema": INPUT_SCHEMA,
        "environment": facts.environment,
        "kill_switch": facts.kill_switch,
        "request": {"id": request},
        "tenant": {"id": action.tenant, "workspace_id": action.workspace},
        "run": {"id": action.run, "trigger_type": facts.trigger_type, "attempt": facts.run_attempt},
        "workflow": {"id": action.workflow, "version_id": action.version, "risk_ceiling": facts.risk_ceiling},
        "step": {
            "id": action.step,
            "index": facts.step_index,
            "tool_name": f"{action.connector}.{action.operation}",
            "attempt": facts.step_attempt,
        },
        "actor": {
            "type": facts.actor_type,
            "id": facts.actor_id,
            "groups": sorted(facts.actor_groups),
            "on_behalf_of": facts.on_behalf_of,
        },
        "action": _action(action, tenant_key),
        "time": _record_of(at),
        "usage": _record_of(usage),
        "approval": _record_of(grant),
        "freeze": _record_of(freeze),
    }


def _action(action: Action, tenant_key: bytes) -> dict[str, Any]:
    fields = [
        {
            "name": f.name,
            "op": f.op,
            "classification": f.classification,
            "value_sha256": value_hmac(tenant_key, f.value),
        }
        for f in action.fields
    ]
    return {
        "connector": action.connector,
        "operation": action.operation,
        "kind": action.kind,
        "risk_tier": action.risk,
        "reversible": action.reversible,
        "reversal": {"kind": action.reversal, "operation": ""},
        "target": _record_of(action.target),
        "fields": sorted(fields, key=lambda field: field["name"]),
        "amount_minor": action.amount_minor,
        "currency": action.currency,
        "idempotency_key": value_hmac(tenant_key, action.key),
        "payload_bytes": action.payload_bytes(),
        "sha256": action.digest.hex(),
    }


def _record_of(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__dataclass_fields__}  # type: ignore[attr-defined]


def canonical_input(value: object) -> bytes:
    """The canonical bytes of an input document, if it is one; QuestionRefused names the path and the rule otherwise."""
    check_input(value)
    try:
        data = written(value)  # of the profile by what was just checked
    except CallerError as error:
        raise QuestionRefused(error.reason, code="input_rejected", field="input") from error
    if len(data) > policy_bytes_max:
        _reject("input", "too_large", f"is {len(data)} bytes; at most {policy_bytes_max}")
    return data


def read_input(data: bytes) -> dict[str, Any]:
    """The document of stored canonical bytes: strict, and only the bytes that canonical_input would write."""
    try:
        value = read_json(data, bytes_max=policy_bytes_max, depth_max=policy_input_depth_max)
    except CallerError as error:
        raise QuestionRefused(error.reason, code="input_rejected", field="input") from error
    if canonical_input(value) != data:
        _reject("input", "not_canonical", "is not in its canonical form")
    assert type(value) is dict, "check_input accepts nothing else"
    return value


# --- the model: one table, read by the canonicaliser and by the published JSON schema --------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    check: Callable[[object, str], None]
    schema: Mapping[str, Any]


_ident_pattern = "[A-Za-z0-9._:/@-]{1,128}"
_hex_pattern = "[0-9a-f]{64}"
_uuid_pattern = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_group_pattern = "[a-z][a-z0-9_-]{0,63}"
_currency_pattern = "[A-Z]{3}"


def _matching(pattern: str, *, empty: bool = False) -> _Kind:
    whole = re.compile(f"(?:{pattern})?" if empty else pattern)

    def check(value: object, path: str) -> None:
        if type(value) is str and value.isascii() and value.isprintable() and whole.fullmatch(value):
            return  # printable ASCII hides nothing and is in NFC
        if not whole.fullmatch(_checked_text(value, path)):
            _reject(path, "text", f"does not match {pattern}" + (" and is not empty" if empty else ""))

    return _Kind(check, {"type": "string", "pattern": f"^(?:{pattern})?$" if empty else f"^{pattern}$"})


def _one_of(*options: str) -> _Kind:
    def check(value: object, path: str) -> None:
        if (type(value) is not str or value not in options) and _checked_text(value, path) not in options:
            _reject(path, "value", f"is one of {', '.join(options)}")

    return _Kind(check, {"type": "string", "enum": list(options)})


def _whole(least: int, most: int) -> _Kind:
    def check(value: object, path: str) -> None:
        if type(value) is not int:
            _reject(path, "type", "is a whole number")
        if not least <= value <= most:
            _reject(path, "value", f"is {least} to {most}")

    return _Kind(check, {"type": "integer", "minimum": least, "maximum": most})


def _flag(value: object, path: str) -> None:
    if type(value) is not bool:
        _reject(path, "type", "is true or false")


def _set_of(kind: _Kind, most: int, key: str = "") -> _Kind:
    """A list that is sorted and without doubles, by the named key where the items are objects."""

    def check(value: object, path: str) -> None:
        if type(value) is not list:
            _reject(path, "type", "is a list")
        if len(value) > most:
            _reject(path, "too_large", f"has at most {most} items")
        before = ""
        for n, item in enumerate(value):
            kind.check(item, f"{path}[{n}]")
            name = item[key] if key else item
            if n and name <= before:
                _reject(path, "not_sorted", f"is sorted and names {name!r} once")
            before = name

    return _Kind(check, {"type": "array", "items": kind.schema, "maxItems": most})


def _object(**kinds: _Kind) -> _Kind:
    names = frozenset(kinds)

    def check(value: object, path: str) -> None:
        if type(value) is not dict:
            _reject(path, "type", "is an object")
        if frozenset(value) != names:
            odd = sorted(str(name) for name in names.symmetric_difference(value))
            _reject(path, "keys", f"has exactly its keys: {', '.join(odd)[:200]} missing or unknown")
        for name, kind in kinds.items():
            kind.check(value[name], f"{path}.{name}" if path else name)

    schema = {
        "type": "object",
        "properties": {name: kind.schema for name, kind in kinds.items()},
        "required": sorted(names),
        "additionalProperties": False,
    }
    return _Kind(check, schema)


_ident = _matching(_ident_pattern)
_ident_or_empty = _matching(_ident_pattern, empty=True)
_hex = _matching(_hex_pattern)
_hex_or_empty = _matching(_hex_pattern, empty=True)
_bool = _Kind(_flag, {"type": "boolean"})
_count = _whole(0, int_max)
_tier_or_empty = _one_of("", *TIERS)

_target = _object(system=_ident, type=_ident, id=_ident, instance=_ident_or_empty)
_field = _object(name=_ident, op=_one_of(*FIELD_OPS), classification=_one_of(*CLASSES), value_sha256=_hex)
_input = _object(
    schema=_one_of(INPUT_SCHEMA),
    environment=_one_of(*ENVIRONMENTS),
    kill_switch=_bool,
    request=_object(id=_matching(_uuid_pattern)),
    tenant=_object(id=_ident, workspace_id=_ident),
    run=_object(id=_ident, trigger_type=_ident, attempt=_count),
    workflow=_object(id=_ident, version_id=_ident, risk_ceiling=_one_of(*TIERS)),
    step=_object(id=_ident, index=_count, tool_name=_ident, attempt=_count),
    actor=_object(
        type=_one_of(*ACTOR_TYPES),
        id=_ident,
        groups=_set_of(_matching(_group_pattern), members_max),
        on_behalf_of=_ident_or_empty,
    ),
    action=_object(
        connector=_ident,
        operation=_ident,
        kind=_one_of(*KINDS),
        risk_tier=_one_of(*TIERS),
        reversible=_bool,
        reversal=_object(kind=_one_of(*REVERSALS), operation=_ident_or_empty),
        target=_target,
        fields=_set_of(_field, policy_input_fields_max, key="name"),
        amount_minor=_count,
        currency=_matching(_currency_pattern, empty=True),
        idempotency_key=_ident,
        payload_bytes=_count,
        sha256=_hex,
    ),
    time=_object(
        now_ms=_count,
        weekday=_whole(0, 6),
        minute_of_day=_whole(0, 1439),
        tz=_matching("[A-Za-z0-9._/+-]{1,64}"),
        bucket=_one_of(*BUCKETS),
    ),
    usage=_object(
        writes_this_run=_count,
        writes_this_hour=_count,
        runs_this_min=_count,
        concurrent_runs=_count,
        amount_today_minor=_count,
    ),
    approval=_object(
        present=_bool,
        id=_ident_or_empty,
        tier=_tier_or_empty,
        distinct_approvers=_count,
        two_person_met=_bool,
        policy_revision=_hex_or_empty,
        action_sha256=_hex_or_empty,
        expires_ms=_count,
    ),
    freeze=_object(active=_bool, id=_ident_or_empty),
)


def check_input(value: object) -> None:
    """Raise QuestionRefused at the first fact that is not exactly as the model says."""
    _input.check(value, "")


def input_schema() -> dict[str, Any]:
    """The JSON schema of the document, as published in policies/schema/input.json for `opa check`."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": INPUT_SCHEMA, **_input.schema}


def _checked_text(value: object, path: str) -> str:
    if type(value) is not str:
        _reject(path, "type", "is text")
    if hidden_character.search(value):
        _reject(path, "hidden_character", "holds a control, zero-width, direction or surrogate character")
    if not unicodedata.is_normalized("NFC", value):
        _reject(path, "not_nfc", "is not in Unicode's composed form (NFC)")
    return value


def _reject(path: str, rule: str, reason: str) -> NoReturn:
    raise QuestionRefused(f"{path or 'input'} {reason}", code=f"input_{rule}")
