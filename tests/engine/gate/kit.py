"""Actions, questions, findings and people for the tests of the gate."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from engine.gate.action import Action, Field, Target
from engine.gate.question import Facts, Moment, People, Question, Usage, ask, moment, request_id
from engine.gate.verdict import Answer

REVISION = "a" * 64
NOON = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
FACTS = Facts("prod", False, "webhook", 1, "high", 2, 1, "workflow", "triage")
USAGE = Usage(0, 0, 0, 0, 0)
GROUPS = {"oncall": frozenset({"per_a", "per_b"}), "incident-managers": frozenset({"per_c"})}


def action(**changes: Any) -> Action:
    plain = Action(
        tenant="demo",
        workspace="main",
        run="0123456789abcdef0123456789abcdef",
        promise="0",
        step="update",
        workflow="triage",
        version="1",
        definition="f" * 64,
        connector="servicenow",
        operation="update",
        kind="write",
        risk="low",
        reversible=True,
        reversal="inverse",
        target=Target("servicenow", "incident", "INC0010001", "dev1"),
        fields=(Field("work_notes", "append", "looked at it", "internal"),),
        amount_minor=0,
        currency="",
        preconditions=(),
        key="servicenow:update:INC0010001",
        summary="Update incident",
        salt="5a" * 16,
    )
    return replace(plain, **changes)


def noon() -> Moment:
    return moment(NOON, "UTC")


def question(
    what: Action | None = None,
    *,
    purpose: str = "enforce",
    facts: Facts = FACTS,
    usage: Usage = USAGE,
    people: People = People(GROUPS, frozenset()),
    seed: bytes = b"0" * 16,
    **more: Any,
) -> Question:
    return ask(
        what or action(),
        request=request_id(seed),
        purpose=purpose,
        facts=facts,
        usage=usage,
        at=more.pop("at", noon()),
        people=people,
        tenant_key=b"k" * 32,
        **more,
    )


def hold(**changes: Any) -> dict[str, Any]:
    plain = {
        "code": "tier_high",
        "message": "two people decide",
        "tier": "high",
        "two_person": True,
        "groups": ["oncall"],
        "expires_in_s": 1800,
    }
    return {**plain, **changes}


def findings(asked: Question | None = None, **changes: Any) -> dict[str, Any]:
    """Findings that allow, changed as said."""
    of = asked or question()
    plain: dict[str, Any] = {
        "schema": "twokeys.policy.findings/v1",
        "echo": {"request_id": of.request_id, "action_sha256": of.action_sha256},
        "policy": {"package": "twokeys.main", "revision": REVISION},
        "denials": [],
        "holds": [],
        "grants": [{"code": "listed_write", "message": "it is on the list"}],
        "obligations": [],
    }
    return {**plain, **changes}


class Says:
    """A policy that answers these bytes, this value, or by raising."""

    def __init__(self, what: Any, revision: str = REVISION) -> None:
        self.what = what
        self.revision = revision

    def evaluate(self, input_bytes: bytes) -> Answer:
        if isinstance(self.what, BaseException):
            raise self.what
        data = self.what if isinstance(self.what, bytes) else json.dumps(self.what).encode()
        return Answer(data, self.revision, "test", "0")
