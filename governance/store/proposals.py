"""A proposed action as whoever proposed it sees it: where it stands, what policy said, whose keys it waits for, what came of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import CallerError
from governance.store import approvals, cases, views
from governance.store.case import ACTION
from governance.store.unit import Unit

# The word for how it ended, by the error class of its step.
_endings = {
    "policy_denied": "denied",
    "policy_fault": "denied",
    "approval_rejected": "rejected",
    "approval_expired": "expired",
}
_words = {
    "ready": "running",
    "running": "running",
    "waiting_approval": "waiting_approval",
    "failed_retryable": "waiting_retry",
    "unknown": "unknown",
    "succeeded": "done",
    "canceled": "canceled",
}
STATES = ("queued", *dict.fromkeys(_words.values()), *dict.fromkeys(_endings.values()), "failed")


@dataclass(frozen=True, slots=True)
class ActionView:
    """One proposed action now."""

    run: str
    tool: str
    state: str
    ended: bool
    effect: str  # of the newest verdict
    reasons: tuple[tuple[str, str], ...]
    policy_revision: str
    action_sha256: str
    approval: str  # the newest, empty when nobody was asked
    keys_needed: int
    keys_given: int
    expires_at: datetime.datetime | None
    attempt: int
    next_eligible_at: datetime.datetime | None
    error_class: str
    message: str
    result: Mapping[str, str]
    evidence_sha256: str  # of the sealed bundle


def load(unit: Unit, name: str) -> ActionView:
    """The action that this run is; other runs are not actions."""
    run = views.run(unit, name)
    if run.trigger_type != ACTION:
        raise CallerError(
            f"run {name} is a workflow's, no proposed action", code="unknown_action", field="action",
            next_step="GET /v1/runs/{run} shows runs",
        )  # fmt: skip
    step = next(iter(views.steps(unit, name)), None)
    verdict = next((found.verdict for found in reversed(views.verdicts(unit, name))), None)
    asked = approvals.load(unit, step.approval) if step is not None and step.approval else None
    bundle = views.bundle(unit, name)
    error_class, _, message = (step.last_error if step else run.trouble).partition(": ")
    state = "queued" if step is None else _words.get(step.state) or _endings.get(error_class, "failed")
    if run.ended_at is not None and state not in _endings.values():
        state = {"succeeded": "done", "canceled": "canceled"}.get(run.state, state if state == "done" else "failed")
    return ActionView(
        run=name, tool=step.tool if step else "", state=state, ended=run.ended_at is not None,
        effect=verdict.effect if verdict else "", reasons=tuple((r.code, r.message) for r in verdict.reasons) if verdict else (),
        policy_revision=verdict.policy_revision if verdict else "", action_sha256=verdict.action_sha256 if verdict else "",
        approval=step.approval if step else "", keys_needed=asked.asked.keys if asked else 0,
        keys_given=sum(vote.kind == "key" for vote in asked.votes) if asked else 0, expires_at=asked.asked.expires_at if asked else None,
        attempt=step.attempt if step else 0, next_eligible_at=step.next_eligible_at if step else None, error_class=error_class,
        message=message, result=cases.result_under(unit, name, step.promise) if step and step.state == "succeeded" else {},
        evidence_sha256=bundle.sha256 if bundle and bundle.state == "sealed" else "",
    )  # fmt: skip
