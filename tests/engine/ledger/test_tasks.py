"""The story of a task in a bundle: asked, answered by one of those who were asked, signed by others, or over without an answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.errors import BrokenLedger
from engine.ledger.entries import GENESIS, Fact, build, read_entry
from engine.ledger.story import Story

START = datetime(2026, 8, 21, 10, 0, 0, tzinfo=UTC)
RITA, ANA, BO, CLEO = "per_a", "per_b", "per_c", "per_d"
SYSTEM = {"type": "system", "id": "twokeys"}
FORM, ANSWER, ACTION, CARD = "aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32


def person(name: str) -> dict[str, str]:
    return {"type": "person", "id": name}


def told(kind: str, **changed: Any) -> Fact:
    """One fact of the story, as it happens when nothing is wrong."""
    of = {"task": "ta_1", "promise": "0"}
    approval = {"approval": "ap_1", "promise": "0", "action_sha256": ACTION}
    lineage = [{"person": RITA, "why": "requester"}, {"person": ANA, "why": "answerer"}]
    bodies: dict[str, dict[str, Any]] = {
        "run.queued": {
            "workflow": "w", "version": "1", "definition_sha256": FORM, "trigger_type": "manual", "trigger_ref": "x", "workspace": "main",
            "input_sha256": FORM,
        },
        "task.asked": {
            **of, "step": "task-0", "form_sha256": FORM, "groups": ["oncall"], "expires_at": "2026-08-21T11:00:00.000000Z", "keys": 1,
            "counts": [], "signers": ["ops"],
        },
        "task.answered": {**of, "person": ANA, "groups": ["oncall", "x"], "form_sha256": FORM, "answer_sha256": ANSWER, "via": "api"},
        "task.expired": of,
        "task.canceled": {**of, "why": "run_ended"},
        "action.proposed": {
            "promise": "0", "rev": 1, "step": "task-0", "connector": "task", "operation": "sign_off", "kind": "read", "risk": "low",
            "reversible": True, "target_type": "task", "target": FORM, "key_sha256": FORM, "action_sha256": ACTION,
        },
        "approval.asked": {
            **approval, "card_sha256": CARD, "tier": "low", "keys": 1, "counts": [], "groups": ["ops"],
            "expires_at": "2026-08-21T12:00:00.000000Z", "lineage": lineage, "verdict_n": 0, "policy_revision": "",
        },
        "key.given": {
            "approval": "ap_1", "person": BO, "level": 4, "groups": ["ops"], "action_sha256": ACTION, "card_sha256": CARD, "card_rev": 1,
            "policy_revision": "", "blocks_sha256": "", "via": "api", "given": 1, "needed": 1,
        },
        "approval.released": {**approval, "persons": [BO]},
        "step.completed": {"promise": "0", "step": "task-0"},
    }  # fmt: skip
    actors = {"run.queued": person(RITA), "task.answered": person(ANA), "key.given": person(BO)}
    actor = changed.pop("actor", actors.get(kind, SYSTEM))
    body = {**bodies[kind], **changed}
    return Fact(kind, actor, body, (body["answer_sha256"],) if kind == "task.answered" else ())


def story(*facts: Fact, hours: float = 0) -> None:
    """Tell it; `hours` pass before the last of the facts."""
    teller = Story({}, {}, frozenset({("0", 1)}))
    for n, fact in enumerate(facts):
        late = timedelta(hours=hours) if n == len(facts) - 1 else timedelta()
        data, _ = build(fact, "acme", "run", n, GENESIS, START + timedelta(seconds=n) + late)
        teller.take(read_entry(data))


SIGNED = (
    "run.queued", "task.asked", "task.answered", "action.proposed", "approval.asked", "key.given", "approval.released", "step.completed",
)  # fmt: skip


def test_an_answered_and_signed_task_is_done() -> None:
    story(*map(told, SIGNED))
    plain = told("task.asked", keys=0, signers=[])
    story(told("run.queued"), plain, told("task.answered"), told("step.completed"))
    story(told("run.queued"), plain, told("task.canceled"))
    story(told("run.queued"), plain, told("task.expired"), hours=2)


@pytest.mark.parametrize(
    ("code", "at", "changed"),
    [
        ("task-empty", "task.asked", {"form_sha256": ""}),
        ("task-empty", "task.asked", {"expires_at": "2026-08-21T10:00:00.000000Z"}),
        ("task-empty", "task.asked", {"keys": 0}),
        ("task-unknown", "task.answered", {"task": "ta_2"}),
        ("task-unknown", "task.answered", {"promise": "1"}),
        ("task-person", "task.answered", {"actor": person(BO)}),
        ("task-person", "task.answered", {"actor": SYSTEM}),
        ("task-group", "task.answered", {"groups": ["x"]}),
        ("task-form", "task.answered", {"form_sha256": CARD}),
        ("sign-off", "approval.asked", {"verdict_n": 1}),
        ("sign-off", "approval.asked", {"policy_revision": "ab"}),
        ("sign-off", "approval.asked", {"lineage": [{"person": RITA, "why": "requester"}]}),
        ("approval-lineage", "approval.asked", {"lineage": [{"person": ANA, "why": "answerer"}]}),
        ("approval-verdict", "approval.asked", {"groups": ["oncall"]}),
        ("approval-verdict", "approval.asked", {"keys": 2}),
        ("approval-expiry", "approval.asked", {"expires_at": "2026-09-21T12:00:00.000000Z"}),
        ("key-lineage", "key.given", {"person": ANA, "actor": person(ANA)}),
        ("key-lineage", "key.given", {"person": RITA, "actor": person(RITA)}),
        ("key-group", "key.given", {"groups": ["oncall"]}),
        ("forged-key", "approval.released", {"persons": [CLEO]}),
    ],
)
def test_what_could_not_have_happened_is_refused(code: str, at: str, changed: dict[str, Any]) -> None:
    with pytest.raises(BrokenLedger) as caught:
        story(*(told(kind, **changed) if kind == at else told(kind) for kind in SIGNED[: SIGNED.index(at) + 1]))
    assert caught.value.code == code


def test_an_answer_counts_once_in_time_and_what_has_to_be_signed_is_signed() -> None:
    first = [told(kind) for kind in SIGNED[:3]]
    for code, last, hours in (
        ("task-late", told("task.answered"), 0),
        ("task-late", told("task.canceled"), 0),
        ("task-twice", told("task.asked"), 0),
        ("step-unproved", told("step.completed"), 0),
    ):
        with pytest.raises(BrokenLedger) as caught:
            story(*first, last, hours=hours)
        assert caught.value.code == code
    for code, kinds, hours in (
        ("task-late", SIGNED[:3], 2),
        ("task-late", ("run.queued", "task.asked", "task.expired"), 0),
        ("step-unproved", ("run.queued", "task.asked", "step.completed"), 0),
        ("sign-off", ("run.queued", "task.asked", "action.proposed", "approval.asked"), 0),
        ("step-unproved", (*SIGNED[:6], "step.completed"), 0),
        ("task-twice", ("run.queued", "action.proposed", "task.asked"), 0),
    ):
        with pytest.raises(BrokenLedger) as caught:
            story(*map(told, kinds), hours=hours)
        assert caught.value.code == code


def test_no_effect_hides_behind_a_task() -> None:
    """A verdict about a task's promise is refused, and without one there is no intent."""
    verdict = {
        "promise": "0", "n": 1, "purpose": "enforce", "effect": "allow", "deny_kind": "", "retryable": False, "tier": "low", "keys": 0,
        "counts": [], "groups": [], "expires_in_s": 0, "reasons": [], "action_sha256": ACTION, "policy_revision": "ab", "engine": "opa",
        "engine_version": "1", "input_sha256": "", "findings_sha256": "",
    }  # fmt: skip
    with pytest.raises(BrokenLedger, match="no policy judges"):
        story(*map(told, SIGNED[:4]), Fact("verdict.given", SYSTEM, verdict))
    intent = {
        "promise": "0", "attempt": 1, "key_sha256": FORM, "action_sha256": ACTION, "verdict_n": 0, "approval": "ap_1",
        "policy_revision": "",
    }  # fmt: skip
    with pytest.raises(BrokenLedger, match="no verdict"):
        story(*map(told, SIGNED[:7]), Fact("effect.intended", SYSTEM, intent))
