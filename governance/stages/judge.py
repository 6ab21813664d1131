"""Judge: look at the world, put the question to policy, and say what follows: do it, ask people, wait, or no."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.errors import CallerError
from engine.gate import approval as gate
from engine.gate.action import TIERS, Action, Field, OperationSpec, Target, effect_key, same_effect
from engine.gate.permit import Judgement, Release
from engine.gate.question import Grant, People, ask, moment, request_id
from engine.gate.receipt import CannotLook, Outcome
from engine.gate.retry import fault_delay, ours
from engine.gate.verdict import Judged, Policy, Verdict, judge
from engine.kernel import proposal_from, reference_of
from engine.program.faults import hint
from engine.program.orders import Propose
from governance.keys import hashed, mac
from governance.store import mending
from governance.store.approvals import Recorded
from governance.store.around import Around, Holder, KeyState, Success
from governance.store.case import Case
from governance.store.edits import NOTHING, Edited
from governance.store.people import as_person


class Looks(Protocol):
    """A connector as far as judging needs it."""

    def observe(self, action: Action) -> Mapping[str, str]:
        """The facts of the target that the action relies on."""


class Connectors(Protocol):
    """What connectors declare, and which one to look with."""

    def spec(self, connector: str, operation: str) -> OperationSpec:
        """The declaration of one operation."""

    def of(self, connector: str) -> Looks:
        """The connector of that name."""


_nothing_known = KeyState(None, None, {})


@dataclass(frozen=True, slots=True)
class Opinion:
    """What was found out about one promise without changing anything: the complete action and the verdict on it."""

    promise: str
    proposal: Propose
    action: Action | None
    judged: Judged | None
    cannot: Outcome | None = None
    keyed: KeyState = _nothing_known
    lineage: Mapping[str, str] = field(default_factory=dict)  # who can hold no key for it, and why
    spent_by_others: int = 0  # of a payment: what the others of today come to


@dataclass(frozen=True, slots=True)
class Go:
    """The gate is passed: what the intent needs."""

    action: Action
    judgement: Judgement
    release: Release | None
    turn: int  # of the key's intent; 0 when this very operation holds it already


@dataclass(frozen=True, slots=True)
class Ask:
    """People must see this first."""

    action: Action
    judged: Judged
    verdict_n: int
    lineage: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reuse:
    """The effect happened already under this key."""

    action: Action
    run: str
    promise: str
    body: bytes
    signature: bytes
    key_id: str


class Judge:
    """The hands of this stage: connectors to look with, policies to ask, and chance for request ids and jitter."""

    def __init__(
        self,
        registry: Connectors,
        *,
        instance_of: Callable[[str, str], str],
        policy_of: Callable[[str, str], Policy],
        hash_key: Callable[[str], bytes],
        key_state_of: Callable[[str, str], KeyState],
        spent_of: Callable[[Action], int],
        recorded: Callable[[Case, str], Action],
        edited: Callable[[Case, str], Edited],
        hear: Callable[[str, Judged], None],
        random_bytes: Callable[[int], bytes],
        monotonic: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._instance_of = instance_of
        self._policy_of = policy_of
        self._hash_key = hash_key
        self._key_state_of = key_state_of
        self._spent_of = spent_of
        self._recorded = recorded
        self._edited = edited
        self._hear = hear  # told of every verdict that is recorded, and of no opinion that came to nothing
        self._random_bytes = random_bytes
        self._monotonic = monotonic

    def opinion(
        self, case: Case, around: Around, promise: str, found: Recorded | None, *, contested: bool = False
    ) -> Opinion:
        """Read the world, look for an earlier success, ask policy. Nothing is changed anywhere.

        `contested` says that somebody else wrote what the last opinion would have written.
        """
        invoke = case.history.invoke(case.promise_id(promise))
        assert invoke is not None
        proposal = proposal_from(case.payloads[reference_of(invoke.scheduled.input)])
        # Only what was asked about before can have been edited.
        edited = NOTHING if found is None else self._edited(case, promise)
        lineage = {**dict.fromkeys(edited.editors, "editor"), **case.lineage}
        try:
            action = self._action(case, promise, proposal, edited)
        except CannotLook as error:
            return Opinion(promise, proposal, None, None, cannot=error.outcome)
        # A key by position is its promise's own, so before the first attempt there is nothing under it; the intent's
        # constraint would find out if there were.
        first = not proposal.key and case.promises[promise].attempt == 0 and not contested
        keyed = _nothing_known if first else self._key_state_of(action.tenant, action.key)
        if keyed.success is not None or _held_elsewhere(keyed.holder, action):
            return Opinion(promise, proposal, action, None, keyed=keyed, lineage=lineage)
        row = case.promises[promise]
        again = found is not None or row.attempt > 0
        others = self._spent_of(action) if action.amount_minor else 0
        question = ask(
            action, request=request_id(self._random_bytes(16)), purpose="recheck" if again else "enforce",
            facts=around.facts(case, row),
            usage=replace(
                around.usage, writes_this_run=case.writes + around.writes_of_others,
                amount_today_minor=others + action.amount_minor,
            ),
            at=moment(around.now.astimezone(datetime.UTC), "UTC"), people=People(around.groups, frozenset(lineage)),
            tenant_key=self._hash_key(action.tenant), grant=_grant(found, action), freeze=around.freeze(action),
        )  # fmt: skip
        judged = judge(
            question,
            self._policy_of(action.tenant, around.revision),
            accepted=(around.revision,),
            monotonic=self._monotonic,
        )
        return Opinion(promise, proposal, action, judged, keyed=keyed, lineage=lineage, spent_by_others=others)

    def _action(self, case: Case, promise: str, proposal: Propose, edited: Edited) -> Action:
        o = case.origin
        try:
            spec = self._registry.spec(proposal.connector, proposal.operation)
            instance = self._instance_of(o.tenant, proposal.connector)
        except CallerError as error:
            raise CannotLook(ours(error.code, str(error), again=False)) from None
        if proposal.reverses:
            proposal = self._reversal(case, proposal, spec)
        elif edited.editors:
            amount = proposal.amount_minor if edited.amount_minor is None else edited.amount_minor
            proposal = replace(proposal, fields={**proposal.fields, **edited.fields}, amount_minor=amount)
        misfit = _misfit(spec, proposal)
        if misfit:
            raise CannotLook(Outcome("rejected", error_class="invalid_proposal", message=misfit))
        given = proposal.fields
        fields = []
        for declared in spec.fields:
            if declared.name not in given:
                continue
            value = given[declared.name]
            if len(value) > declared.chars_max:
                text = f"{declared.name} has {len(value)} characters; at most {declared.chars_max} may be sent"
                raise CannotLook(Outcome("rejected", error_class="field_too_long", message=text))
            fields.append(Field(declared.name, "clear" if value == "" else declared.op, value, declared.classification))
        target = Target(proposal.connector, proposal.target["type"], proposal.target["id"], instance)
        key = effect_key(spec, target, tuple(fields), str(case.promise_id(promise)), proposal.key)
        action = Action(
            tenant=o.tenant, workspace=o.workspace, run=o.run, promise=promise, step=proposal.step_id, workflow=o.workflow,
            version=case.code_version,
            definition=case.code.hex(), connector=spec.connector, operation=spec.operation, kind=spec.kind, risk=proposal.risk,
            reversible=spec.reversible, reversal=spec.reversal, target=target, fields=tuple(fields), amount_minor=proposal.amount_minor,
            currency=proposal.currency, preconditions=(), key=key, summary=_summary(spec, proposal),
            salt=mac(o.salt_key, "twokeys/action/v1", promise).hex()[:32],
        )  # fmt: skip
        seen = self._registry.of(spec.connector).observe(action)
        return replace(action, preconditions=tuple(sorted(seen.items())))

    def _reversal(self, case: Case, proposal: Propose, spec: OperationSpec) -> Propose:
        """The same proposal with what it undoes filled in: each field as it was before, by the action that was recorded and ran."""
        try:
            done = self._recorded(case, proposal.reverses)
        except CallerError as error:
            raise CannotLook(Outcome("rejected", error_class=error.code, message=error.reason)) from None
        before, known = dict(done.preconditions), {field.name for field in spec.fields}
        back = {
            f.name: before[f.name] for f in done.fields if f.op != "append" and f.name in before and f.name in known
        }
        if not back:
            text = f"what operation {proposal.reverses} did leaves nothing that could be set back"
            raise CannotLook(Outcome("rejected", error_class="nothing_to_reverse", message=text))
        seen = self._registry.of(spec.connector).observe(done)
        wrote = {f.name: "" if f.op == "clear" else f.value for f in done.fields}
        moved = sorted(name for name in back if seen.get(name, wrote[name]) != wrote[name])
        if moved:
            text = f"{', '.join(moved)} was changed by somebody else since; undoing would take that back too"
            raise CannotLook(Outcome("rejected", error_class="reversal_conflict", message=text))
        return replace(proposal, target={"type": done.target.type, "id": done.target.id}, fields=back)

    def record(
        self, case: Case, around: Around, opinion: Opinion, found: Recorded | None, faults: int
    ) -> Go | Ask | Reuse | None:
        """Write down the opinion and say what follows; None when the step is over or waits for another try."""
        promise, action = opinion.promise, opinion.action
        row = case.promises[promise]
        if row.deadline_at is None:
            row.deadline_at = case.now + datetime.timedelta(seconds=opinion.proposal.deadline_s)
            case.changed.add(promise)
        if opinion.cannot is not None or action is None:
            assert opinion.cannot is not None
            if opinion.cannot.mend:
                cannot = opinion.cannot
                mending.ask(case, promise, cannot.error_class, cannot.message, cannot.mend)
                return None
            self._stuck(
                case, promise, opinion.cannot.error_class, opinion.cannot.message, opinion.cannot.retryable, faults
            )
            return None
        self.propose(case, promise, action)
        for attempt, n in opinion.keyed.receipts.items():
            case.receipts_n[action.key, attempt] = max(n, case.receipts_n.get((action.key, attempt), 0))
        if opinion.keyed.success is not None:
            return self._reuse(case, promise, action, opinion.keyed.success, faults)
        most, writes = around.writes_cap, case.writes + around.writes_of_others
        if action.kind != "read" and row.attempt == 0 and most is not None and writes >= most.value:
            text = f"a run may write {most.value} times ({most}), and this one has"
            self._stuck(case, promise, "cap_writes_per_run", text, False, faults)
            return None
        holder = opinion.keyed.holder
        if holder is not None and _held_elsewhere(holder, action):
            text = f"run {holder.run} holds the intent of the same effect"
            self._stuck(case, promise, "effect_in_progress", text, True, faults)
            return None
        assert opinion.judged is not None
        verdict = opinion.judged.verdict
        n = self._note_verdict(case, promise, opinion.judged)
        case.touch(promise, verdict_n=n)
        if verdict.effect == "deny":
            reason = verdict.reasons[0] if verdict.reasons else None
            code = f"policy_{verdict.deny_kind or 'denied'}" if verdict.deny_kind == "fault" else "policy_denied"
            text = "; ".join(f"{r.code}: {r.message}" for r in verdict.reasons) if reason else "policy denied this"
            self._stuck(case, promise, code, text, verdict.retryable, faults)
            return None
        ruling = self._gate(case, around, opinion, n, found, _turn(holder, action))
        held = _held_for(case, found, verdict) if isinstance(ruling, Go) and found is not None else 0.0
        if held > 0:
            # Approved, and people still have time to stop it: nothing of it begins, whoever woke it and whatever crashed.
            at = case.now + datetime.timedelta(seconds=held)
            case.touch(promise, next_eligible_at=at)
            case.put_work(promise, "execute", wait_seconds=held)
            return None
        return ruling

    def _gate(
        self, case: Case, around: Around, opinion: Opinion, n: int, found: Recorded | None, turn: int
    ) -> Go | Ask:
        action, judged = opinion.action, opinion.judged
        assert action is not None
        assert judged is not None
        v = judged.verdict
        judgement = Judgement(n, v.effect, v.action_sha256, v.keys, v.tier, v.policy_revision)
        if found is None:
            return Go(action, judgement, None, turn) if v.effect == "allow" else Ask(action, judged, n, opinion.lineage)
        people = {name: as_person(profile) for name, profile in around.profiles.items()}
        if found.glass and found.asked.status == "approved" and found.asked.action_digest == action.digest:
            if gate.glass_stands(found.asked, v, people.get(found.glass)):
                release = Release(found.asked.id, action.digest, (found.glass,), 1, found.asked.tier, glass=True)
                return Go(action, judgement, release, turn)
            return Ask(action, judged, n, opinion.lineage)
        if found.asked.action_digest == action.digest and gate.stands(found.asked, v, found.votes, people, case.now):
            persons = gate.standing(found.asked, found.votes, people, case.now)
            release = Release(found.asked.id, action.digest, persons, found.asked.keys, found.asked.tier)
            return Go(action, judgement, release, turn)
        # The world moved under the keys, or policy wants more than they give: people look again, even where a plain
        # allow would do now, because what they agreed to is not what would run.
        return Ask(action, judged, n, opinion.lineage)

    def _reuse(self, case: Case, promise: str, action: Action, success: Success, faults: int) -> Reuse | None:
        if same_effect(success.action, action):
            return Reuse(action, success.run, success.promise, success.body, success.signature, success.key_id)
        text = f"run {success.run} did something else under the same effect key"
        self._stuck(case, promise, "key_conflict", text, False, faults)
        return None

    def propose(self, case: Case, promise: str, action: Action) -> None:
        """Record a proposal, unless it is the one that is recorded already."""
        row = case.promises[promise]
        if row.rev and row.key == action.key and self._same(case, promise, action):
            return
        rev = row.rev + 1
        case.put_action(action, rev)
        case.touch(promise, rev=rev, key=action.key, kind=action.kind)
        key = self._hash_key(action.tenant)
        case.note(
            "action.proposed",
            {
                "promise": promise, "rev": rev, "step": action.step, "connector": action.connector, "operation": action.operation,
                "kind": action.kind, "risk": action.risk, "reversible": action.reversible, "target_type": action.target.type,
                "target": hashed(key, "target", action.target.id), "key_sha256": hashed(key, "effect-key", action.key),
                "action_sha256": action.digest.hex(),
            },
        )  # fmt: skip

    def _same(self, case: Case, promise: str, action: Action) -> bool:
        return case.action_digests.get(promise) == action.digest

    def _note_verdict(self, case: Case, promise: str, judged: Judged) -> int:
        v = judged.verdict
        n = case.put_verdict(promise, judged)
        self._hear(case.origin.tenant, judged)
        case.note(
            "verdict.given",
            {
                "promise": promise, "n": n, "purpose": v.purpose, "effect": v.effect, "deny_kind": v.deny_kind, "retryable": v.retryable,
                "tier": v.tier, "keys": v.keys, "counts": [[g, c] for g, c in v.counts], "groups": list(v.groups),
                "expires_in_s": v.expires_in_s, "reasons": [r.code for r in v.reasons], "action_sha256": v.action_sha256,
                "policy_revision": v.policy_revision, "engine": v.engine, "engine_version": v.engine_version,
                "input_sha256": v.input_sha256, "findings_sha256": v.findings_sha256,
                **({"needs": [dict(need) for need in v.needs]} if v.needs else {}),
            },
            commit=(v.input_sha256, v.findings_sha256),
        )  # fmt: skip
        return n

    def pace(self, case: Case, promise: str, target: str, seconds: float, faults: int) -> None:
        """The outside system takes no more calls for so many seconds: the effect waits and uses no attempt."""
        self._stuck(case, promise, "calls_per_min", f"{target} is given no more calls a minute", True, faults, seconds)

    def lagging(self, case: Case, promise: str, why: str, faults: int) -> None:
        """What happens is ahead of its evidence: no further effect until the log has caught up."""
        self._stuck(case, promise, "log_lag", why, True, faults)

    def _stuck(
        self, case: Case, promise: str, code: str, text: str, retryable: bool, faults: int, at_least: float = 0.0
    ) -> None:
        """A doubt that may pass is waited out without using an attempt, until the deadline; anything else ends the step."""
        row = case.promises[promise]
        delay = max(at_least, fault_delay(faults, self._random_bytes(1)[0] / 256))
        at = case.now + datetime.timedelta(seconds=delay)
        if retryable and row.deadline_at is not None and at < row.deadline_at:
            case.touch(promise, state="failed_retryable", last_error=f"{code}: {text}"[:500], next_eligible_at=at)
            case.state = "failed_retryable"
            case.put_work(promise, "judge", wait_seconds=delay, faults=faults + 1)
        else:
            case.finish(promise, ok=False, error_class=code, message=text)
            case.put_work("", "advance", keep=True)


def _misfit(spec: OperationSpec, proposal: Propose) -> str:
    """Why this is not a use of the operation; a definition was checked when it was published, a function can only be checked now."""
    name, known = f"{spec.connector}.{spec.operation}", {field.name: field for field in spec.fields}
    if strange := sorted(proposal.fields.keys() - known.keys()):
        return f"{name} has no field {strange[0]!r}{hint(strange[0], known)}"
    for one in known.values():
        if one.required and one.name not in proposal.fields:
            return f"{name} needs the field {one.name!r}"
    if TIERS.index(proposal.risk) < TIERS.index(spec.risk):
        return f"risk {proposal.risk!r} is below {spec.risk!r}, the least for {name}"
    if proposal.target["type"] != spec.target_type:
        return f"{name} changes a target of type {spec.target_type!r}, not {proposal.target['type']!r}"
    if spec.kind == "payment" and not proposal.currency:
        return f"{name} is a payment and needs an amount"
    return ""


def _summary(spec: OperationSpec, proposal: Propose) -> str:
    return f"Undo operation {proposal.reverses}: {spec.summary}" if proposal.reverses else spec.summary


def _held_for(case: Case, found: Recorded, verdict: Verdict) -> float:
    """Seconds for which what was approved may still be stopped: the longest window that policy asked for then or asks for now."""
    if found.decided_at is None or found.glass:
        return 0.0
    seconds = gate.window_seconds((*found.asked.obligations, *verdict.obligations))
    return (found.decided_at + datetime.timedelta(seconds=seconds) - case.now).total_seconds() if seconds else 0.0


def _held_elsewhere(holder: Holder | None, action: Action) -> bool:
    return holder is not None and not holder.free and (holder.run, holder.promise) != (action.run, action.promise)


def _turn(holder: Holder | None, action: Action) -> int:
    if holder is None:
        return 1
    return 0 if (holder.run, holder.promise) == (action.run, action.promise) else holder.turn + 1


def _grant(found: Recorded | None, action: Action) -> Grant:
    if found is None or found.asked.status != "approved":
        return Grant()
    keys = {vote.person for vote in found.votes if vote.kind == "key"}
    return Grant(
        present=True, id=found.asked.id, tier=found.asked.tier, distinct_approvers=len(keys), two_person_met=len(keys) >= 2,
        policy_revision=found.verdict.policy_revision, action_sha256=found.asked.action_digest.hex(),
        expires_ms=int(found.asked.expires_at.timestamp() * 1000),
    )  # fmt: skip
