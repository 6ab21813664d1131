"""Policies and freezes over /v1: the same orders as at the command line, and what a draft comes to."""

from __future__ import annotations

import datetime
from typing import Any

from engine.catalog.draft import Draft
from engine.gate.replay import LOOSER, TIGHTER
from engine.gate.tightening import people_needed
from governance.commands.authority import allowed
from governance.policy import publishing
from governance.policy.bundle import BundleInvalid
from governance.policy.faults import PolicyInvalid
from governance.policy.publishing import Proved
from governance.policy.replay import burden
from governance.store import changes, drafts, standstills, templates
from governance.store.changes import Activation
from governance.store.drafts import DraftRecord, Position
from governance.store.standstills import Standstill
from governance.web import policy_models as shape
from governance.web.auth import reader
from governance.web.openapi import Operation
from governance.web.seams import Seams

history_rows = 50


def policies(api: Any, call: Any) -> shape.PoliciesOut:
    """GET /v1/policies."""
    with api.seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        return shape.PoliciesOut(
            in_force=templates.active_revision(unit), activations=[_activation(one) for one in changes.activations(unit, history_rows)],
            drafts=[_draft(one) for one in drafts.listed(unit)],
        )  # fmt: skip


def show_draft(api: Any, call: Any) -> shape.DraftDetailOut:
    """GET /v1/policies/drafts/{draft}."""
    with api.seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        found = drafts.load(unit, call.path["draft"])
    d = found.draft
    return shape.DraftDetailOut(
        draft=_draft(found), modules=dict(d.modules), tests=dict(d.tests), data=dict(d.data), dropped=list(d.dropped)
    )


def begin_draft(api: Any, call: Any) -> shape.DraftDetailOut:
    """POST /v1/policies/drafts."""
    api.seams.amend.begin(call.caller.tenant, call.caller.actor, call.body.draft)
    call.path["draft"] = call.body.draft
    return show_draft(api, call)


def edit_draft(api: Any, call: Any) -> shape.DraftDetailOut:
    """PUT /v1/policies/drafts/{draft}."""
    asked: shape.EditDraft = call.body
    content = Draft(asked.modules, asked.tests, asked.data, tuple(asked.dropped))
    api.seams.amend.edit(call.caller.tenant, call.caller.actor, call.path["draft"], content)
    return show_draft(api, call)


def rebase_draft(api: Any, call: Any) -> shape.DraftDetailOut:
    """POST /v1/policies/drafts/{draft}/rebase."""
    api.seams.amend.rebase(call.caller.tenant, call.caller.actor, call.path["draft"])
    return show_draft(api, call)


def withdraw_draft(api: Any, call: Any) -> shape.DraftDetailOut:
    """POST /v1/policies/drafts/{draft}/withdraw."""
    api.seams.amend.withdraw(call.caller.tenant, call.caller.actor, call.path["draft"])
    return show_draft(api, call)


def check_draft(api: Any, call: Any) -> shape.CheckedOut:
    """POST /v1/policies/drafts/{draft}/check."""
    _may(api.seams, call)
    return checked(api.seams, call.caller.tenant, call.path["draft"])


def checked(seams: Seams, tenant: str, draft: str) -> shape.CheckedOut:
    """What is to be said of a draft without the recorded decisions."""
    try:
        proved = seams.publishing.prove(tenant, draft)
    except BundleInvalid as invalid:
        return shape.CheckedOut(
            valid=False,
            faults=_faults(invalid),
            failed={},
            gone=[],
            coverage=0.0,
            people=2,
            weight=[],
            diff=[],
            revision="",
        )
    return said_of(tenant, proved)


def said_of(tenant: str, proved: Proved) -> shape.CheckedOut:
    """The same of one that was proved."""
    tested, needed = proved.tested, people_needed(proved.comparison, 0)
    return shape.CheckedOut(
        valid=tested.passed, faults=[], failed=dict(tested.failed), gone=list(tested.gone), coverage=round(tested.coverage, 1),
        people=needed, weight=publishing.weight(proved.comparison, needed),
        diff=publishing.text_diff(tenant, proved.base, proved.made), revision=proved.made.revision,
    )  # fmt: skip


def replay_draft(api: Any, call: Any) -> shape.ReplayedOut:
    """POST /v1/policies/drafts/{draft}/replay."""
    _may(api.seams, call)
    tenant = call.caller.tenant
    proved = api.seams.publishing.prove(tenant, call.path["draft"])
    return replayed(
        api.seams, tenant, api.seams.publishing.replayed(tenant, proved, seconds=publishing.replay_seconds_max)
    )


def replayed(seams: Seams, tenant: str, at: Position) -> shape.ReplayedOut:
    """A replay as far as it is."""
    tally = at.tally
    return shape.ReplayedOut(
        done=at.done, seen=at.seen, matrix=dict(publishing.matrix(tally)), looser=tally.weighed[LOOSER], tighter=tally.weighed[TIGHTER],
        same=tally.weighed["same"], lines=publishing.impact(at, burden(seams.database, tenant, tally)), flips=tally.first_flips(),
    )  # fmt: skip


def propose_draft(api: Any, call: Any) -> shape.ChangeOut:
    """POST /v1/policies/drafts/{draft}/propose."""
    asked: shape.ProposeDraft = call.body
    tenant, actor, name = call.caller.tenant, call.caller.actor, call.path["draft"]
    if asked.minutes is None:
        begun = api.seams.changes.publish(tenant, actor, name, asked.reason)
    else:
        begun = api.seams.changes.loosen(tenant, actor, name, asked.reason, asked.minutes)
    return shape.ChangeOut(run=begun.run, new=begun.new)


def roll_back(api: Any, call: Any) -> shape.ChangeOut:
    """POST /v1/policies/rollback."""
    begun = api.seams.changes.roll_back(call.caller.tenant, call.caller.actor, call.body.revision, call.body.reason)
    return shape.ChangeOut(run=begun.run, new=begun.new)


def list_freezes(api: Any, call: Any) -> shape.FreezesOut:
    """GET /v1/freezes."""
    with api.seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        return shape.FreezesOut(freezes=[_freeze(one) for one in standstills.open_ones(unit)])


def begin_freeze(api: Any, call: Any) -> shape.FreezeOut:
    """POST /v1/freezes."""
    asked: shape.BeginFreeze = call.body
    return _freeze(
        api.seams.freezes.freeze(
            call.caller.tenant, call.caller.actor, asked.reason, scope=asked.scope, name=asked.name
        )
    )


def thaw(api: Any, call: Any) -> shape.ChangeOut:
    """POST /v1/freezes/{freeze}/thaw."""
    begun = api.seams.changes.thaw(call.caller.tenant, call.caller.actor, call.path["freeze"], call.body.reason)
    return shape.ChangeOut(run=begun.run, new=begun.new)


def _may(seams: Seams, call: Any) -> None:
    with seams.database.unit(call.caller.tenant, write=False) as unit:
        allowed(unit, call.caller.actor, "policy")


def _faults(invalid: BundleInvalid) -> list[shape.FaultOut]:
    if isinstance(invalid, PolicyInvalid):
        return [
            shape.FaultOut(**{name: getattr(one, name) for name in shape.FaultOut.model_fields})
            for one in invalid.faults
        ]
    return [
        shape.FaultOut(file=invalid.field or "policies", line=1, column=1, message=invalid.reason, text="", hint="")
    ]


def _draft(one: DraftRecord) -> shape.DraftOut:
    return shape.DraftOut(
        draft=one.name, state=one.state, edit=one.n, base_revision=one.base_revision, revision=one.revision, authors=list(one.authors),
        changed_at=_utc(one.changed_at),
    )  # fmt: skip


def _activation(one: Activation) -> shape.ActivationOut:
    return shape.ActivationOut(
        revision=one.revision, base_revision=one.base_revision, how=one.how, run=one.run, at=_utc(one.at),
        until=_utc(one.until) if one.until else None,
    )  # fmt: skip


def _freeze(one: Standstill) -> shape.FreezeOut:
    return shape.FreezeOut(
        freeze=one.freeze, scope=one.scope, name=one.name, reason=one.reason, by=one.by, at=_utc(one.at)
    )


def _utc(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(datetime.UTC)


_of = "/v1/policies/drafts/{draft}"
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/policies", "listPolicies", "The policy in force, its history and the drafts", policies, out=shape.PoliciesOut),
    Operation("POST", "/v1/policies/drafts", "beginDraft", "Begin a draft of the policy in force", begin_draft, body=shape.BeginDraft,
              out=shape.DraftDetailOut, status=201),
    Operation("GET", _of, "showDraft", "A draft with its content", show_draft, out=shape.DraftDetailOut),
    Operation("PUT", _of, "editDraft", "Give a draft another content; a question about it is withdrawn", edit_draft,
              body=shape.EditDraft, out=shape.DraftDetailOut),
    Operation("POST", f"{_of}/check", "checkDraft", "Faults, tests, the weight of each difference and the text", check_draft,
              out=shape.CheckedOut),
    Operation("POST", f"{_of}/replay", "replayDraft", "What it would have decided of everything recorded", replay_draft,
              out=shape.ReplayedOut),
    Operation("POST", f"{_of}/propose", "proposeDraft", "Ask the policy owners to bring it into force", propose_draft,
              body=shape.ProposeDraft, out=shape.ChangeOut, status=202),
    Operation("POST", f"{_of}/rebase", "rebaseDraft", "Take over what came into force since it was begun", rebase_draft,
              out=shape.DraftDetailOut),
    Operation("POST", f"{_of}/withdraw", "withdrawDraft", "Give a draft up", withdraw_draft, out=shape.DraftDetailOut),
    Operation("POST", "/v1/policies/rollback", "rollBackPolicy", "Ask for an earlier policy", roll_back, body=shape.RollBack,
              out=shape.ChangeOut, status=202),
    Operation("GET", "/v1/freezes", "listFreezes", "What stands still", list_freezes, out=shape.FreezesOut),
    Operation("POST", "/v1/freezes", "beginFreeze", "Stop what is changed, or everything, at once", begin_freeze,
              body=shape.BeginFreeze, out=shape.FreezeOut, status=201),
    Operation("POST", "/v1/freezes/{freeze}/thaw", "thaw", "Ask two others to lift a freeze", thaw, body=shape.Thaw,
              out=shape.ChangeOut, status=202),
)  # fmt: skip
