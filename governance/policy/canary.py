"""Canaries: questions with known answers that an engine must get right before anybody may trust it."""

from __future__ import annotations

from typing import Any

from engine.canonical import jcs
from engine.gate import reducer
from engine.gate.question import INPUT_SCHEMA
from engine.gate.verdict import Policy, PolicyFault, read_findings
from governance.policy.bundle import CANARY_TENANT

_request = "00000000-0000-4000-8000-000000000001"
_sha256 = "c" * 64
_other_sha256 = "d" * 64
# Denials that only the product's own guard gives: whatever an administrator writes, the first canary has none of them.
_guard_codes = frozenset(("input_invalid", "tenant_unknown", "connector_disabled", "kill_switch", "freeze"))


def document(
    *, kind: str = "read", tenant: str = CANARY_TENANT, kill_switch: bool = False, reversible: bool = True
) -> bytes:
    """A canary's input document."""
    value: dict[str, Any] = {
        "schema": INPUT_SCHEMA,
        "environment": "dev",
        "kill_switch": kill_switch,
        "request": {"id": _request},
        "tenant": {"id": tenant, "workspace_id": "canary"},
        "run": {"id": "canary", "trigger_type": "canary", "attempt": 1},
        "workflow": {"id": "canary", "version_id": "1", "risk_ceiling": "high"},
        "step": {"id": "canary", "index": 0, "tool_name": "canary.sing", "attempt": 1},
        "actor": {"type": "service", "id": "canary", "groups": [], "on_behalf_of": ""},
        "action": {
            "connector": "canary",
            "operation": "sing",
            "kind": kind,
            "risk_tier": "low",
            "reversible": reversible,
            "reversal": {"kind": "none", "operation": ""},
            "target": {"system": "canary", "type": "canary", "id": "canary", "instance": ""},
            "fields": [],
            "amount_minor": 0,
            "currency": "",
            "idempotency_key": "canary",
            "payload_bytes": 0,
            "sha256": _sha256,
        },
        "time": {"now_ms": 0, "weekday": 3, "minute_of_day": 600, "tz": "UTC", "bucket": "business"},
        "usage": dict.fromkeys(
            ("writes_this_run", "writes_this_hour", "runs_this_min", "concurrent_runs", "amount_today_minor"), 0
        ),
        "approval": {
            "present": False,
            "id": "",
            "tier": "",
            "distinct_approvers": 0,
            "two_person_met": False,
            "policy_revision": "",
            "action_sha256": "",
            "expires_ms": 0,
        },
        "freeze": {"active": False, "id": ""},
    }
    return jcs(value)


def prove(policy: Policy, revision: str) -> str:
    """Put every canary to an engine that should have this revision; its version, or PolicyFault for the first wrong answer."""
    allowed, version = _codes(policy, document(), revision)
    if allowed & _guard_codes:
        _wrong("a plain read is denied")
    if "irreversible" not in _codes(policy, document(kind="write", reversible=False), revision)[0]:
        _wrong("an irreversible write is not held")
    probe(policy, revision)
    if "tenant_unknown" not in _codes(policy, document(tenant="twokeys-nobody"), revision)[0]:
        _wrong("an unknown tenant is not denied")
    findings = read_findings(policy.evaluate(document()).findings)
    if reducer.source_fault(findings, _request, _other_sha256, revision) != "echo_mismatch":
        _wrong("an answer fits another action")
    try:
        policy.evaluate(b"{}")
    except PolicyFault as fault:
        if fault.code != "undefined":
            raise
    else:
        _wrong("an undefined answer is an answer")
    return version


def probe(policy: Policy, revision: str) -> None:
    """The one canary whose right answer is a denial: what a breaker asks before it trusts an engine again."""
    if "kill_switch" not in _codes(policy, document(kill_switch=True), revision)[0]:
        _wrong("the kill switch does not stop")


def _codes(policy: Policy, input_bytes: bytes, revision: str) -> tuple[set[str], str]:
    """The codes of denials and holds in a valid answer of the right source."""
    answer = policy.evaluate(input_bytes)
    findings = read_findings(answer.findings)
    differs = reducer.source_fault(findings, _request, _sha256, revision)
    if differs or answer.revision != revision:
        raise PolicyFault(
            differs or "revision_mismatch", "the engine does not answer under the revision that was loaded"
        )
    return {reason["code"] for reason in findings["denials"] + findings["holds"]}, answer.version


def _wrong(what: str) -> None:
    raise PolicyFault("canary_failed", f"the engine is not to be trusted: {what}")
