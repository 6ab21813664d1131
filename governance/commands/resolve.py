"""Resolve an unknown outcome: a person says what happened, and their word is on the receipt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.errors import CallerError, Refused
from engine.gate.permit import Permit, reopened
from engine.gate.receipt import Outcome
from engine.kernel import payload, settle_cancel
from engine.limits import reason_chars_max
from governance.commands.authority import Actor, allowed
from governance.store import approvals, cases
from governance.store.case import Case
from governance.store.unit import Database


class Settles(Protocol):
    """The part of the execute stage that writes receipts."""

    def settle(self, case: Case, granted: Permit, outcome: Outcome, *, how: str, person: str, keep: bool) -> object:
        """Record what an attempt came to."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where the run stands after a person's word."""

    run: str
    promise: str
    how: str
    state: str


class Resolve:
    """The answers to "it may have happened"."""

    def __init__(self, database: Database, settles: Settles) -> None:
        self._database = database
        self._settles = settles

    def resolve(self, tenant: str, actor: Actor, run: str, promise: str, how: str, reason: str) -> Resolved:
        """`happened` or `did_not`; refused unless this very operation is unknown. Nobody of the lineage speaks for their own effect."""
        if how not in ("happened", "did_not"):
            raise CallerError(f"{how!r} is not an answer", field="how", next_step="say `happened` or `did_not`")
        if not reason.strip() or len(reason) > reason_chars_max:
            raise CallerError(
                f"a reason of 1-{reason_chars_max} characters is needed", field="reason", next_step="say how you know"
            )
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "resolve")
            case = cases.load(unit, run, lock=True)
            row = case.promises.get(promise)
            if row is None or row.state != "unknown":
                raise Refused(
                    f"{promise!r} of this run is not unknown",
                    code="not_unknown",
                    next_step="the run page shows what waits",
                )
            if person.person in case.lineage:
                raise Refused("you asked for this, so another person must say what happened", code="lineage")
            if row.approval:
                groups = approvals.load(unit, row.approval, lock=True).asked.groups
                if not groups.intersection(person.groups):
                    names = ", ".join(f"@{group}" for group in sorted(groups))
                    raise Refused(
                        f"only those who could hold a key may say what happened: {names}", code="not_approver"
                    )
            action = cases.action(unit, run, promise, row.rev)
            granted = reopened(
                action,
                attempt=row.attempt,
                verdict_n=row.verdict_n,
                revision="",
                approval=row.approval,
                deadline_seconds=0,
            )
            kept = payload(case.origin.salt_key, f"{promise}/told/{row.attempt}", reason)
            case.keep(kept.commit, kept.body)
            said = {"told_by": person.person, "reason": kept.reference}
            if how == "happened":
                outcome = Outcome("ok", response=said, result={})
            else:
                outcome = Outcome(
                    "rejected", response=said, error_class="did_not_happen", message="a person said so", retryable=True
                )
            case.work_done.append((promise, "execute"))
            self._settles.settle(case, granted, outcome, how="told", person=person.person, keep=False)
            if settle_cancel(case.history, case.micros):
                case.work_done.append(("", "advance"))
                case.rows.pop("work", None)
                case.close("canceled")
            if row.approval:
                case.posts.append(("card", row.approval, {}))
            cases.commit(unit, case, ())
            return Resolved(run, promise, how, case.state)
