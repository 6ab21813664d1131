"""Edit before approving: what was proposed with other values is a new proposal, judged and asked anew, and the editor holds no key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from engine.errors import CallerError, Refused
from engine.gate import approval as gate
from engine.gate.action import OperationSpec
from engine.kernel import payload
from engine.limits import click_lock_seconds, click_statement_seconds, int_max, reason_chars_max
from governance.commands.authority import Actor, who
from governance.store import approvals, cases, edits, outbox, people
from governance.store.approvals import Recorded
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.unit import Database


@dataclass(frozen=True, slots=True)
class Changed:
    """What a person wants otherwise, as an entry understood it; nothing in it is authority, everything is looked up again."""

    tenant: str
    approval: str
    actor: Actor
    digest16: str  # of the action that they saw
    fields: Mapping[str, str]
    reason: str
    via: str  # slack_modal | console | api | cli
    amount_minor: int | None = None
    dedupe_key: str = ""
    reply: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """What came of it: the run goes on with the changed proposal, which is judged next."""

    approval: str  # the one that was withdrawn
    run: str
    promise: str
    sentence: str


class Edit:
    """The only way a proposal is ever changed."""

    def __init__(self, database: Database, spec: Callable[[str, str], OperationSpec]) -> None:
        self._database = database
        self._spec = spec

    def edit(self, changed: Changed) -> Resubmitted:
        """Withdraw what was asked and propose it with these values; CallerError or Refused when that cannot be."""
        with self._database.unit(
            changed.tenant, lock_seconds=click_lock_seconds, statement_seconds=click_statement_seconds
        ) as unit:
            run = approvals.run_of(unit, changed.approval)
            case = cases.load(unit, run, lock=True)
            found = approvals.load(unit, changed.approval, lock=True)
            before = outbox.answered(unit, changed.dedupe_key) if changed.dedupe_key else None
            if before is not None:
                return Resubmitted(**before)
            person, now = who(unit, changed.actor), unit.now()
            crowd = {name: people.as_person(one) for name, one in people.profiles(unit).items()}
            gate.check_edit(found.asked, people.as_person(person), crowd, changed.digest16, now)
            if case.ended or case.cancel_requested or found.is_sign_off:
                raise Refused("this cannot be edited: it is an answer, or its run is over", code="decided")
            if case.promises[found.asked.promise].attempt:
                # What was tried may have happened; under other values it would be another effect.
                raise Refused("this was tried before, so it cannot be changed any more", code="decided")
            self._check(found, changed)
            case.now = max(case.now, now)
            self._take(case, found, person, changed, edits.count(unit, run, found.asked.promise) + 1)
            cases.commit(unit, case, ())
            done = Resubmitted(
                changed.approval, run, found.asked.promise, "Changed. It is judged anew, and others decide it."
            )
            if changed.dedupe_key:
                outbox.remember(unit, changed.dedupe_key, asdict(done))
            if changed.reply:
                outbox.put(unit, "ephemeral", changed.approval, {**changed.reply, "text": done.sentence})
            return done

    def _check(self, found: Recorded, changed: Changed) -> None:
        action = found.action
        known = {one.name: one for one in self._spec(action.connector, action.operation).fields}
        given = {one.name: one.value for one in action.fields}
        for name, value in changed.fields.items():
            if name not in known or name not in given:
                raise CallerError(
                    f"{name[:60]!r} is not a field of this proposal", code="invalid_body", field="fields",
                    next_step=f"change one of {', '.join(sorted(given))}",
                )  # fmt: skip
            if len(value) > known[name].chars_max:
                raise CallerError(
                    f"has {len(value)} characters; at most {known[name].chars_max} may be sent", code="invalid_body", field=name,
                )  # fmt: skip
            if known[name].required and not value:
                raise CallerError("is needed and cannot be emptied", code="invalid_body", field=name)
        if changed.amount_minor is not None and not (action.currency and 0 < changed.amount_minor <= int_max):
            raise CallerError("only a payment has an amount, above 0", code="invalid_body", field="amount_minor")
        moved = any(given[name] != value for name, value in changed.fields.items())
        if not moved and changed.amount_minor in (None, action.amount_minor):
            raise CallerError(
                "nothing was changed", code="invalid_body", field="fields", next_step="approve or reject it"
            )
        if action.summary.startswith("Undo operation "):
            raise Refused("what undoes something takes its values from what was done", code="decided")
        if len(changed.reason) > reason_chars_max:
            raise CallerError(f"has at most {reason_chars_max:,} characters", code="invalid_body", field="reason")

    def _take(self, case: Case, found: Recorded, person: Profile, changed: Changed, n: int) -> None:
        asked = found.asked
        given = {one.name: one.value for one in found.action.fields}
        value = {
            "fields": {name: text for name, text in changed.fields.items() if given[name] != text},
            "amount_minor": changed.amount_minor,
        }
        kept = payload(case.origin.salt_key, f"{case.promise_id(asked.promise)}/edit/{n}", value)
        case.keep(kept.commit, kept.body)
        case.add(
            "action_edit", promise=asked.promise, n=n, approval=asked.id, person=person.person, at=case.now, via=changed.via,
            identity=f"{changed.actor.kind}:{changed.actor.ref}", fields=kept.commit, reason=changed.reason,
        )  # fmt: skip
        about = {"approval": asked.id, "promise": asked.promise, "action_sha256": asked.action_digest.hex()}
        case.note(
            "action.edited",
            {**about, "person": person.person, "fields_sha256": kept.commit.hex(), "via": changed.via},
            actor={"type": "person", "id": person.person}, commit=(kept.commit.hex(),),
        )  # fmt: skip
        case.approval_status[asked.id] = "canceled"
        case.add("due_done", kind="approval", ref=asked.id)
        case.note("approval.canceled", {**about, "why": "edited"})
        case.show_card(asked.id)
        case.touch(asked.promise, state="ready", deadline_at=None)
        case.state = "running"
        case.put_work(asked.promise, "judge")
