"""A tenant's policy data: caps, lists, groups, times and windows as one schema that data, rules and pages are held against."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.limits import approval_seconds_max, approval_seconds_min, int_max
from engine.program.faults import hint

SCHEMA_NAME = "twokeys.policy.tenant/v1"
_texts: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 128},
    "uniqueItems": True,
}
_group_name = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,63}$"}
_groups = {"type": "array", "items": _group_name, "minItems": 1, "maxItems": 20, "uniqueItems": True}
_number = {"type": "integer", "minimum": 0, "maximum": int_max}
_seconds = {"type": "integer", "minimum": approval_seconds_min, "maximum": approval_seconds_max - 1}
_minute = {"type": "integer", "minimum": 0, "maximum": 1440}
_code = {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,47}$"}


def _object(later: Mapping[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    """An object with exactly these parts, and `later` ones, which stored data may be without."""
    whole = {**properties, **(later or {})}
    return {"type": "object", "properties": whole, "required": sorted(properties), "additionalProperties": False}


def _by_tier(value: Any) -> dict[str, Any]:
    return _object(low=value, med=value, high=value)


_always = {
    "enabled": {"type": "boolean"},
    "connectors": _texts,
    "allowed_operations": {"type": "object", "additionalProperties": _texts},
    "caps": _object(max_writes_per_run=_number, max_amount_minor=_number, later={"max_amount_today_minor": _number}),
    "approver_groups": _by_tier(_groups),
    "approval_ttl_s": _by_tier(_seconds),
    "blocked_targets": _texts,
    "after_hours_hold": {"type": "boolean"},
}
# What came after the first release: a stored bundle without them stays what it is, to the byte.
_later = {
    "policy_owners": _groups,
    "payment_holds": _object(one_key_above_minor=_number, two_keys_above_minor=_number),
    "quorums": {
        "type": "array",
        "maxItems": 20,
        "items": _object(
            code=_code,
            connector={"type": "string", "minLength": 1, "maxLength": 128},
            operations=_texts,
            counts={
                "type": "object",
                "minProperties": 1,
                "propertyNames": _group_name,
                "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            expires_in_s=_seconds,
        ),
    },
    "freeze_windows": {
        "type": "array",
        "maxItems": 50,
        "items": _object(code=_code, from_ms=_number, until_ms=_number),
    },
    "weekly_freezes": {
        "type": "array",
        "maxItems": 50,
        "items": _object(
            code=_code,
            weekdays={
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 6},
                "minItems": 1,
                "uniqueItems": True,
            },
            from_minute=_minute,
            until_minute=_minute,
        ),
    },
}
TENANT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {**_always, **_later},
    "required": sorted(_always),
    "additionalProperties": False,
}


def tenant_schema() -> dict[str, Any]:
    """The JSON schema of one tenant's data, as published in policies/schema/tenant.json."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": SCHEMA_NAME, **TENANT_SCHEMA}


def faults(value: object, where: str = "") -> list[tuple[str, str]]:
    """(place, what is wrong) of everything that does not fit, windows that end before they begin included."""
    found = list(_misfits(value, TENANT_SCHEMA, where))
    if found or not isinstance(value, Mapping):
        return found
    for name, begins, ends in (
        ("freeze_windows", "from_ms", "until_ms"),
        ("weekly_freezes", "from_minute", "until_minute"),
    ):
        for n, one in enumerate(value.get(name, ())):
            if one[begins] >= one[ends]:
                found.append((f"{where}.{name}[{n}]", f"{ends} is after {begins}"))
    holds = value.get("payment_holds", {})
    if holds and holds["two_keys_above_minor"] < holds["one_key_above_minor"]:
        found.append((f"{where}.payment_holds", "two_keys_above_minor is at least one_key_above_minor"))
    return found


def _misfits(value: object, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    kind = schema["type"]
    if kind == "boolean":
        if type(value) is not bool:
            yield where, "is true or false"
    elif kind == "integer":
        least, most = schema["minimum"], schema["maximum"]
        if type(value) is not int or not least <= value <= most:
            yield where, f"is a whole number from {least} to {most}"
    elif kind == "string":
        yield from _misfit_text(value, schema, where)
    elif kind == "array":
        yield from _misfits_of_list(value, schema, where)
    else:
        yield from _misfits_of_object(value, schema, where)


def _misfit_text(value: object, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if type(value) is not str:
        yield where, "is text"
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield where, "is lower case letters, digits, _ and - (a code: without -), beginning with a letter"
    elif not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 128):
        yield where, "is text of 1 to 128 characters"


def _misfits_of_list(value: object, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        yield where, "is a list"
        return
    if len(value) < schema.get("minItems", 0):
        yield where, "names at least one"
    if len(value) > schema.get("maxItems", 10_000):
        yield where, f"has at most {schema['maxItems']} items"
    odd = [misfit for n, item in enumerate(value) for misfit in _misfits(item, schema["items"], f"{where}[{n}]")]
    yield from odd
    if not odd and schema.get("uniqueItems") and len(set(value)) != len(value):
        yield where, "names something twice"


def _misfits_of_object(value: object, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, Mapping):
        yield where, "is an object"
        return
    known = schema.get("properties", {})
    for name in sorted(set(schema.get("required", ())) - set(value)):
        yield f"{where}.{name}", "is missing"
    if len(value) < schema.get("minProperties", 0):
        yield where, "names at least one"
    for name, item in value.items():
        if type(name) is not str:
            yield where, "has names of text"
        elif name in known:
            yield from _misfits(item, known[name], f"{where}.{name}")
        elif schema.get("additionalProperties"):
            if "propertyNames" in schema:
                yield from _misfit_text(name, schema["propertyNames"], f"{where}.{name}")
            yield from _misfits(item, schema["additionalProperties"], f"{where}.{name}")
        else:
            yield f"{where}.{name}", f"is unknown{hint(name, known)}"
