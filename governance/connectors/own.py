"""The connector `twokeys`: publishes policies and lifts freezes, in our own database, behind the same permit as any effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import Conflict
from engine.gate.action import Action
from engine.gate.own import CONNECTOR, LOOSEN, PUBLISH, ROLL_BACK, SPECS, THAW, Change
from engine.gate.permit import Permit
from engine.gate.receipt import CannotLook, Outcome
from engine.gate.retry import AGAIN, NEVER, Fault, Faults, outcome_of
from engine.ledger.entries import Fact, stamp
from governance.connectors.http import overslept
from governance.store import changes, drafts, entries, standstills, templates
from governance.store.case import SYSTEM
from governance.store.unit import Database, Unit

# Every fault of it leaves nothing behind: what it does is one transaction of ours.
FAULTS: Faults = {
    "lease_expired": Fault(AGAIN, AGAIN),
    "busy": Fault(AGAIN, AGAIN),
    "not_proposed": Fault(NEVER, NEVER),
    "not_enough_keys": Fault(NEVER, NEVER),
    "draft_changed": Fault(NEVER, NEVER),
    "policy_moved": Fault(NEVER, NEVER),
    "not_frozen": Fault(NEVER, NEVER),
}
_hows = {PUBLISH: "published", ROLL_BACK: "rolled_back", LOOSEN: "loosened"}


class Own:
    """What a change does is read from its record, never from the proposal: the proposal only has to say exactly the same."""

    specs = SPECS
    faults = FAULTS
    calls_per_min = None

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """Nothing is held: the database belongs to the store."""

    def observe(self, action: Action) -> Mapping[str, str]:
        """What is in force now; refused when this is not, or is no longer, what was proposed."""
        with self._database.unit(action.tenant, write=False) as unit:
            change = changes.of_run(unit, action.run)
            if change is None or _said(action) != _meant(change):
                text = "this is no change that somebody proposed; `twokeys policy propose` and `twokeys thaw` do that"
                raise CannotLook(outcome_of(FAULTS, "not_proposed", text, changes=False))
            cannot = _gone(unit, change)
            if cannot is not None:
                raise CannotLook(cannot)
            return {} if change.operation == THAW else {"revision": templates.active_revision(unit)}

    def perform(self, permit: Permit) -> Outcome:
        """Do it once, in one transaction; whoever does it again finds that it is done."""
        action = permit.action
        request = {"operation": action.operation, "target": action.target.id}
        if too_late := overslept(permit.send_by):
            return too_late
        try:
            with self._database.unit(action.tenant) as unit:
                change = changes.of_run(unit, action.run)
                if change is None or _said(action) != _meant(change):
                    return outcome_of(FAULTS, "not_proposed", "this is no change that somebody proposed", changes=True)
                if changes.keys_given(unit, permit.approval) < change.people:
                    text = f"takes the keys of {change.people} people, whatever the policy in force asks for"
                    return outcome_of(FAULTS, "not_enough_keys", text, changes=True)
                done = _lift(unit, change, action.run) if change.operation == THAW else _activate(unit, change, action)
        except changes.Moved as moved:
            return outcome_of(FAULTS, "policy_moved", str(moved), changes=True)
        except Conflict as busy:
            return outcome_of(FAULTS, "busy", busy.reason, changes=True)
        if done is None:
            return outcome_of(FAULTS, "not_frozen", "this freeze is not in force any more", changes=True)
        return Outcome("ok", request, done, done)

    def look(self, permit: Permit) -> Outcome | None:
        """Our own record says for certain whether it happened."""
        action = permit.action
        with self._database.unit(action.tenant, write=False) as unit:
            if action.operation == THAW:
                lifted = standstills.ended_by(unit, action.run)
                found: dict[str, str] | None = {"freeze": lifted} if lifted else None
            else:
                made = changes.activated_by(unit, action.run)
                found = None if made is None else _result(made)
        if found is not None:
            return Outcome("ok", response=found, result=found)
        return Outcome("rejected", error_class="did_not_happen", message="it is not on record", retryable=True)


def _said(action: Action) -> tuple[Any, ...]:
    given = {field.name: field.value for field in action.fields}
    return action.connector, action.operation, action.target.id, action.risk, given


def _meant(change: Change) -> tuple[Any, ...]:
    return CONNECTOR, change.operation, change.target, change.risk, dict(change.fields)


def _gone(unit: Unit, change: Change) -> Outcome | None:
    """Why this can no longer be done: what people were shown is not what there is now."""
    if change.operation == THAW:
        if standstills.of_id(unit, change.target) is None:
            return outcome_of(FAULTS, "not_frozen", "this freeze is not in force any more", changes=False)
        return None
    live = templates.active_revision(unit)
    if live != change.base_revision:
        text = f"another policy came into force ({live[:16]}); rebase the draft and propose it again"
        return outcome_of(FAULTS, "policy_moved", text, changes=False)
    draft = drafts.load(unit, change.draft)
    if draft.state != "open" or draft.n != change.n:
        what = f"is {draft.state}" if draft.state != "open" else f"was edited (edit {draft.n})"
        text = f"draft {change.draft} {what} since edit {change.n} was proposed; propose it again"
        return outcome_of(FAULTS, "draft_changed", text, changes=False)
    return None


def _activate(unit: Unit, change: Change, action: Action) -> dict[str, str]:
    before = changes.activated_by(unit, action.run)
    made = before or changes.activate(unit, change, _hows[change.operation], run=action.run, by=action.run)
    if before is None:
        drafts.close(unit, change.draft, "published", change.revision)
    return _result(made)


def _result(made: changes.Activation) -> dict[str, str]:
    return {"revision": made.revision, "until": stamp(made.until)} if made.until else {"revision": made.revision}


def _lift(unit: Unit, change: Change, run: str) -> dict[str, str] | None:
    found = standstills.of_id(unit, change.target)
    if found is None or not standstills.end(unit, found, run):
        return {"freeze": change.target} if standstills.ended_by(unit, run) else None
    body = {"freeze": found.freeze, "scope": found.scope, "name": found.name, "run": run}
    entries.note(unit, f"tenant/{unit.tenant}", Fact("freeze.ended", SYSTEM, body))
    return {"freeze": found.freeze}
