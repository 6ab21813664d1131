"""The door for agents: propose one action over /v1, and wait for or poll what becomes of it."""

from __future__ import annotations

import datetime
from typing import Any

from engine.errors import CallerError
from engine.program.one_step import Proposal
from governance.store import proposals
from governance.web import models as shape
from governance.web.auth import reader
from governance.web.evidence import receipts
from governance.web.seams import Seams


def propose(seams: Seams, call: Any) -> shape.ActionOut:
    """POST /v1/actions."""
    asked: shape.ProposeAction = call.body
    connector, dot, operation = asked.operation.partition(".")
    if not dot:
        raise CallerError("is connector.operation", code="invalid_body", field="operation")
    given = {name: value for name in ("deadline_s", "max_attempts") if (value := getattr(asked, name)) is not None}
    proposal = Proposal(
        connector, operation, asked.target, asked.fields, asked.risk, asked.amount_minor, asked.currency, **given
    )
    begun = seams.propose.propose(
        call.caller.tenant, call.caller.actor, proposal, call.key, asked.on_behalf_of, asked.workspace
    )
    return _out(seams, call, begun.run)


def show(seams: Seams, call: Any) -> shape.ActionOut:
    """GET /v1/actions/{action}."""
    return _out(seams, call, call.path["action"])


def seconds(call: Any) -> float:
    """How long this request is willing to wait for an end."""
    return float(call.query.wait_s or 0) if call.query else 0.0


def _out(seams: Seams, call: Any, run: str) -> shape.ActionOut:
    with seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        found = proposals.load(unit, run)
        given = receipts(unit, seams.verify, run)
    newest = given[-1] if given else None
    url = f"{seams.public_url.rstrip('/')}/approvals/{found.approval}" if found.approval else ""
    return shape.ActionOut(
        action=found.run, operation=found.tool, state=found.state, ended=found.ended, effect=found.effect, reasons=list(found.reasons),
        policy_revision=found.policy_revision, action_sha256=found.action_sha256, approval=found.approval, approval_url=url,
        keys_needed=found.keys_needed, keys_given=found.keys_given, expires_at=_utc(found.expires_at), attempt=found.attempt,
        next_eligible_at=_utc(found.next_eligible_at), error_class=found.error_class, message=found.message, result=dict(found.result),
        receipt_status=newest.row.status if newest else "", receipt_sha256=newest.sha256 if newest else "",
        evidence_sha256=found.evidence_sha256,
    )  # fmt: skip


def _utc(value: datetime.datetime | None) -> datetime.datetime | None:
    return value.astimezone(datetime.UTC) if value else None
