"""The question holds every fact exactly, no value of a field, and nothing that two readers could read differently."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from engine.gate import question as room
from engine.gate.action import Field, Target
from engine.gate.question import (
    Freeze,
    Grant,
    QuestionRefused,
    canonical_input,
    input_schema,
    moment,
    read_input,
    request_id,
    value_hmac,
)
from tests.engine.gate.kit import FACTS, NOON, action, noon, question

ROOT = Path(__file__).resolve().parents[3]
SECRET = "the customer's own words"


def document(**more: Any) -> dict[str, Any]:
    return read_input(question(**more).input_bytes)


def test_the_document_has_exactly_the_keys_of_version_1() -> None:
    """Every key is present, and what is absent is empty, never null."""
    asked = document()
    assert {name: sorted(part) for name, part in asked.items() if isinstance(part, dict)} == {
        "request": ["id"],
        "tenant": ["id", "workspace_id"],
        "run": ["attempt", "id", "trigger_type"],
        "workflow": ["id", "risk_ceiling", "version_id"],
        "step": ["attempt", "id", "index", "tool_name"],
        "actor": ["groups", "id", "on_behalf_of", "type"],
        "action": sorted(
            "connector operation kind risk_tier reversible reversal target fields amount_minor currency "
            "idempotency_key payload_bytes sha256".split()
        ),
        "time": ["bucket", "minute_of_day", "now_ms", "tz", "weekday"],
        "usage": ["amount_today_minor", "concurrent_runs", "runs_this_min", "writes_this_hour", "writes_this_run"],
        "approval": sorted(
            "present id tier distinct_approvers two_person_met policy_revision action_sha256 expires_ms".split()
        ),
        "freeze": ["active", "id"],
    }
    assert set(asked) - {name for name, part in asked.items() if isinstance(part, dict)} == {
        "schema",
        "environment",
        "kill_switch",
    }


def test_no_value_of_a_field_and_no_effect_key_is_in_the_document() -> None:
    """Only a holder of the tenant's key can tell which value a hash stands for."""
    asked = question(action(fields=(Field("work_notes", "append", SECRET, "internal"),), key=f"key:{SECRET}"))
    assert SECRET.encode() not in asked.input_bytes
    field = read_input(asked.input_bytes)["action"]["fields"][0]
    assert field["value_sha256"] == value_hmac(b"k" * 32, SECRET) != value_hmac(b"l" * 32, SECRET)
    assert asked.subject == {"kind": "write", "risk_tier": "low", "reversible": True}


def test_the_order_of_an_authors_fields_does_not_matter() -> None:
    """Sets are sorted, so the same question has the same bytes."""
    fields = (Field("b", "set", "1", "public"), Field("a", "set", "2", "public"))
    names = [field["name"] for field in document(what=action(fields=fields))["action"]["fields"]]
    assert names == ["a", "b"]


def test_purpose_is_not_visible_to_rules() -> None:
    """A rule cannot answer a replay or a recheck differently."""
    assert question(purpose="enforce").input_bytes == question(purpose="replay").input_bytes


def test_the_bytes_are_canonical_and_read_back() -> None:
    """What is stored is what was asked, byte for byte."""
    data = question(
        grant=Grant(True, "ap_1", "high", 2, True, "b" * 64, "c" * 64, 5), freeze=Freeze(True, "f1")
    ).input_bytes
    value = read_input(data)
    assert canonical_input(value) == data
    assert value["approval"]["present"] is True
    assert value["freeze"] == {"active": True, "id": "f1"}
    with pytest.raises(QuestionRefused, match="canonical"):
        read_input(json.dumps(value).encode())


def test_a_request_id_is_a_version_4_uuid() -> None:
    """OPA and people read it; the answer must echo it."""
    assert request_id(b"\xff" * 16) == "ffffffff-ffff-4fff-bfff-ffffffffffff"


@pytest.mark.parametrize(
    ("local", "weekday", "minute", "bucket"),
    [
        (NOON, 2, 720, "business"),
        (NOON.replace(hour=8, minute=59), 2, 539, "after_hours"),
        (NOON.replace(hour=9), 2, 540, "business"),
        (NOON.replace(hour=18), 2, 1080, "after_hours"),
        (NOON + timedelta(days=3), 5, 720, "weekend"),
        (NOON - timedelta(days=2), 0, 720, "business"),
        (NOON.astimezone(timezone(timedelta(hours=13))), 3, 60, "after_hours"),
    ],
)
def test_a_moment_is_read_on_the_tenants_wall(local: datetime, weekday: int, minute: int, bucket: str) -> None:
    """0 is Monday; business hours are Monday to Friday 9 to 18 on that wall."""
    at = moment(local, "Some/Where")
    assert (at.weekday, at.minute_of_day, at.bucket) == (weekday, minute, bucket)
    assert at.now_ms == int(local.timestamp() * 1000)


def test_a_time_without_a_zone_is_refused() -> None:
    """Nobody guesses whose noon it is."""
    with pytest.raises(QuestionRefused):
        moment(NOON.replace(tzinfo=None), "UTC")


def put(path: str, value: object) -> dict[str, Any]:
    whole: dict[str, Any] = copy.deepcopy(document(facts=replace(FACTS, actor_groups=("a", "b"))))
    *parents, last = path.split("/")
    at: Any = whole
    for name in parents:
        at = at[int(name)] if name.isdigit() else at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return whole


BROKEN = [
    ("run/id", None, "input_type"),
    ("run/attempt", 1.0, "input_type"),
    ("run/attempt", True, "input_type"),
    ("run/attempt", "1", "input_type"),
    ("run/attempt", -1, "input_value"),
    ("run/attempt", 2**53, "input_value"),
    ("kill_switch", 0, "input_type"),
    ("kill_switch", "false", "input_type"),
    ("action/amount_minor", float("nan"), "input_type"),
    ("action", ..., "input_keys"),
    ("action/sha256", ..., "input_keys"),
    ("approver", {}, "input_keys"),
    ("request/purpose", "enforce", "input_keys"),
    ("freeze/active", ..., "input_keys"),
    ("tenant", [], "input_type"),
    ("tenant/id", "", "input_text"),
    ("tenant/id", "a b", "input_text"),
    ("tenant/id", "x" * 129, "input_text"),
    ("tenant/id", "demo\n", "input_hidden_character"),
    ("tenant/id", "de\x00mo", "input_hidden_character"),
    ("tenant/id", "de\u202emo", "input_hidden_character"),
    ("tenant/id", "de\u200bmo", "input_hidden_character"),
    ("tenant/id", "de\x85mo", "input_hidden_character"),
    ("tenant/id", "de\ud800mo", "input_hidden_character"),
    ("tenant/id", "e\u0301", "input_not_nfc"),
    ("tenant/id", "démo", "input_text"),
    ("schema", "twokeys.policy.input/v2", "input_value"),
    ("environment", "production", "input_value"),
    ("action/kind", "poke", "input_value"),
    ("action/risk_tier", "medium", "input_value"),
    ("action/risk_tier", ["low"], "input_type"),
    ("action/currency", "eur", "input_text"),
    ("action/sha256", "A" * 64, "input_text"),
    ("request/id", "1", "input_text"),
    ("actor/groups", ["b", "a"], "input_not_sorted"),
    ("actor/groups", ["a", "a"], "input_not_sorted"),
    ("actor/groups", "a", "input_type"),
    ("actor/groups", [f"g{n:03}" for n in range(201)], "input_too_large"),
    ("action/fields", [{}], "input_keys"),
    ("time/weekday", 7, "input_value"),
    ("time/minute_of_day", 1440, "input_value"),
    ("approval/tier", "none", "input_value"),
]


@pytest.mark.parametrize(
    ("path", "value", "code"), BROKEN, ids=[f"{path}={str(value)[:16]!a}" for path, value, _ in BROKEN]
)
def test_a_document_that_is_not_exact_is_rejected(path: str, value: object, code: str) -> None:
    """Nothing is coerced: the first wrong fact is named by its path."""
    with pytest.raises(QuestionRefused) as refused:
        canonical_input(put(path, value))
    assert refused.value.code == code
    assert path.split("/")[0] in str(refused.value) or code == "input_keys"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":1.5}',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"[" * 9 + b"]" * 9,
        b"{}" + b" " * 70_000,
    ],
)
def test_stored_bytes_are_read_strictly(data: bytes) -> None:
    """Duplicate keys, NaN, fractions, depth, size and encoding are refused before anything is understood."""
    with pytest.raises(QuestionRefused):
        read_input(data)


def test_a_field_named_twice_is_not_a_question() -> None:
    """Two values for one field would show one and write the other."""
    asked = question(action(fields=(Field("a", "set", "1", "public"), Field("a", "set", "2", "public"))))
    assert asked.refusal[0] == "input_not_sorted"
    assert asked.input_bytes == b""


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ({"target": Target("servicenow", "incident", "INC 1", "dev1")}, {}),
        ({"kind": "poke"}, {}),
        ({"amount_minor": -1}, {}),
        ({}, {"purpose": "guess"}),
        ({}, {"facts": replace(FACTS, environment="demo")}),
        ({}, {"facts": replace(FACTS, kill_switch=0)}),
        ({}, {"at": replace(noon(), weekday=9)}),
        ({"fields": tuple(Field(f"f{n:03}", "set", "x", "public") for n in range(500))}, {}),
    ],
)
def test_what_cannot_be_asked_becomes_a_refused_question_and_no_exception(
    what: dict[str, Any], more: dict[str, Any]
) -> None:
    """The stage judges it like any other, and the verdict is a denial."""
    asked = question(action(**what), **more)
    assert asked.refusal[0].startswith("input_")
    assert asked.input_bytes == b""


def test_the_published_schema_is_generated_from_the_model() -> None:
    """`opa check -s` reads what the canonicaliser enforces; after a change write input_schema() to the file again."""
    text = (ROOT / "policies" / "schema" / "input.json").read_text(encoding="utf-8")
    assert text == json.dumps(input_schema(), indent=2, sort_keys=True) + "\n"


def test_every_object_of_the_schema_is_closed() -> None:
    """An unknown key is refused at every level."""
    objects = 0

    def walk(part: object) -> None:
        nonlocal objects
        if isinstance(part, dict):
            if part.get("type") == "object":
                objects += 1
                assert part["additionalProperties"] is False
                assert part["required"] == sorted(part["properties"])
            for inner in part.values():
                walk(inner)

    walk(input_schema())
    assert objects == 15
    assert input_schema()["title"] == room.INPUT_SCHEMA
