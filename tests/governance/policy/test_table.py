"""The shipped policies give the expected effect for every row of the table, on every engine that is here."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.gate.question import QuestionRefused, canonical_input
from engine.gate.verdict import PolicyFault
from governance.policy import bundle
from governance.policy.embedded import Embedded
from governance.policy.managed import Managed
from tests.governance.policy.kit import GROUPS, ROOT, TABLE, opa_binary, patched, question_of, ruled

BUNDLE = bundle.shipped({"acme": {}})
POLICIES = ROOT / "policies"


@pytest.fixture(scope="module", params=["embedded", "managed"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine = Embedded() if request.param == "embedded" else Managed(opa_binary(), tmp_path_factory.mktemp("opa"))
    engine.load(BUNDLE)
    yield engine
    engine.close()


@pytest.mark.parametrize("row", TABLE["cases"], ids=[row["name"] for row in TABLE["cases"]])
def test_each_row_has_its_effect(policy: Any, row: dict[str, Any]) -> None:
    """Effect, codes, tier, keys, groups and expiry are exactly those of the row."""
    verdict = ruled(policy, BUNDLE.revision, question_of(patched(row["set"]))).verdict
    assert verdict.deny_kind != "fault", verdict.reasons
    assert {
        "name": row["name"],
        "set": row["set"],
        "effect": verdict.effect,
        "codes": [reason.code for reason in verdict.reasons],
        "tier": verdict.tier,
        "keys": verdict.keys,
        "groups": list(verdict.groups),
        "expires_in_s": verdict.expires_in_s,
    } == row


def test_a_tenant_that_was_added_has_the_defaults(policy: Any) -> None:
    """A production tenant gets policy data without anybody writing Rego."""
    high = {"tenant.id": "acme", "action.risk_tier": "high", "action.operation": "close"}
    verdict = ruled(policy, BUNDLE.revision, question_of(patched(high))).verdict
    assert (verdict.effect, verdict.keys, verdict.groups) == ("needs_approval", 2, ("incident-managers", "oncall"))


def test_every_group_that_the_policies_name_is_a_group_of_the_sample() -> None:
    """No row can fail later for want of a group."""
    named = {group for row in TABLE["cases"] for group in row["groups"]}
    assert named <= set(GROUPS)


EDGES: dict[str, list[Any]] = {
    "tenant.id": ["test", "demo", "test-off", "nobody"],
    "environment": ["prod", "staging", "dev"],
    "kill_switch": [False, False, False, True],
    "freeze.active": [False, False, True],
    "action.connector": ["servicenow", "slack", "bank", "jira", "twokeys"],
    "action.operation": ["update", "close", "lookup", "post", "pay", "refund", "wipe", "policy_publish", "thaw"],
    "action.kind": ["read", "write", "delete", "message", "payment"],
    "action.risk_tier": ["low", "med", "high"],
    "action.reversible": [True, True, False],
    "action.amount_minor": [0, 10_000, 10_001, 30_000, 30_001, 50_000, 50_001, 2**53 - 1],
    "action.target.id": ["INC0010001", "INC0000666", "Zoë", "\U0001f600"],
    "usage.writes_this_run": [0, 4, 5, 6],
    "usage.amount_today_minor": [0, 199_999, 200_000, 200_001],
    "time.bucket": ["business", "after_hours", "weekend"],
    "time.now_ms": [1795003200000, 1795003200000, 1798588799999, 1798588800000, 1798934400000],
    "time.weekday": [0, 3, 4, 4],
    "time.minute_of_day": [0, 1019, 1020, 1439],
    "action.fields": [[], [{"name": "card", "op": "set", "classification": "sensitive", "value_sha256": "0" * 64}]],
}
ODD: list[Any] = [None, "", 0, -1, 1.5, True, False, [], {}, "0", "true", 10**18, -(10**18), [[1]], "a\u0000b"]


def generated(dice: random.Random, odd: float = 0.5) -> dict[str, Any]:
    """Every field from its edges; in half of the documents (`odd`) one to three places deleted or odd."""
    document = patched({path: dice.choice(options) for path, options in EDGES.items()})
    if dice.random() < odd:
        for _ in range(dice.randint(1, 3)):
            at = document
            name = dice.choice(sorted(at))
            while isinstance(at[name], dict) and at[name] and dice.random() < 0.8:
                at = at[name]
                name = dice.choice(sorted(at))
            if dice.random() < 0.4:
                del at[name]
            else:
                at[name] = dice.choice(ODD)
    return document


def answer_of(engine: Any, data: bytes) -> Any:
    """Findings with their lists as sets, or that there are none."""
    try:
        found = json.loads(engine.evaluate(data).findings)
    except PolicyFault as fault:
        return fault.code
    return {
        name: sorted(json.dumps(item, sort_keys=True) for item in part) if isinstance(part, list) else part
        for name, part in found.items()
    }


SEED, SOME, MANY = 20261118, 400, 5_000
VERSIONS = json.loads((POLICIES / "VERSIONS.json").read_text(encoding="utf-8"))


def test_the_note_about_versions_is_about_these_policies() -> None:
    """VERSIONS.json says on which content and which engines the long comparison was run; `content` is the shipped bundle's revision.

    After a change of policies: run this file with `-m deep`, and when it is green write what this test shows.
    """
    engine = Embedded()
    try:
        engine.load(BUNDLE)
        embedded = engine.version
    finally:
        engine.close()
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (binary,) = re.findall(r"^OPA_VERSION=v(\S+)$", run, flags=re.MULTILINE)
    assert {
        "content": bundle.shipped({}).revision,
        "engines": {"library": embedded, "binary": binary},
        "differential": {"seed": SEED, "inputs": MANY, "mismatches": 0},
    } == VERSIONS


@pytest.mark.parametrize("rounds", [SOME, pytest.param(MANY, marks=pytest.mark.deep)])
def test_the_library_and_the_binary_answer_alike(rounds: int, tmp_path: Path) -> None:
    """No document, valid or broken, is judged differently by another build of OPA."""
    embedded, managed = Embedded(), Managed(opa_binary(), tmp_path / "opa")
    dice = random.Random(SEED)
    try:
        embedded.load(BUNDLE)
        managed.load(BUNDLE)
        differences = []
        for _ in range(rounds):
            document = generated(dice)
            data = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
            one, other = answer_of(embedded, data), answer_of(managed, data)
            # The library's fault line cannot tell an echo that is missing from one that is wrong.
            if one != other and not (one == "echo_mismatch" and _unusable(document)):
                differences.append((document, one, other))
        assert not differences, differences[0]
    finally:
        embedded.close()
        managed.close()


def _unusable(document: dict[str, Any]) -> bool:
    try:
        canonical_input(document)
    except QuestionRefused:
        return True
    return False


def test_the_tests_of_the_policies_pass_and_cover_them() -> None:
    """`opa test` as an administrator runs it, at least 95 % of the lines."""
    tests = sorted(str(file) for file in (POLICIES / "tests").glob("*.rego"))
    command = [str(opa_binary()), "test", "--coverage", "--threshold", "95", str(POLICIES / "twokeys"), *tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_the_policies_are_formatted_and_read_only_fields_that_exist(tmp_path: Path) -> None:
    """`opa fmt` has nothing to say, and `opa check` knows every field that a rule reads."""
    opa = str(opa_binary())
    formatted = subprocess.run([opa, "fmt", "--list", str(POLICIES)], capture_output=True, text=True, check=False)
    assert (formatted.returncode, formatted.stdout) == (0, "")
    schema = ["check", "--strict", "--schema", str(POLICIES / "schema" / "input.json")]
    subprocess.run([opa, *schema, str(POLICIES / "twokeys")], check=True)
    shutil.copytree(POLICIES / "twokeys", tmp_path / "twokeys")
    base = tmp_path / "twokeys" / "base.rego"
    base.write_text(base.read_text(encoding="utf-8").replace("input.action.risk_tier", "input.acton.risk_tier", 1))
    typo = subprocess.run([opa, *schema, str(tmp_path / "twokeys")], capture_output=True, text=True, check=False)
    assert typo.returncode != 0
    assert "base.rego" in typo.stderr
