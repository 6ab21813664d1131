"""Decide: one choke point for every key, whatever it was turned with; one transaction, run before approval, database clock."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.canonical import sha256
from engine.errors import BrokenJournal, BrokenLedger, CallerError, Conflict, OperatorError, Refused
from engine.gate import approval as gate
from engine.kernel import Signalled, opened
from engine.ledger.entries import Fact, stamp
from engine.limits import click_lock_seconds, click_statement_seconds
from governance.commands.authority import Actor, who
from governance.store import approvals, attention, cases, entries, gates, glasses, outbox, people, refusals, tasks
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.unit import Database, Unit


@dataclass(frozen=True, slots=True)
class Press:
    """What a person did, as an entry understood it; nothing in it is authority, everything is looked up again."""

    tenant: str
    approval: str
    actor_kind: str
    actor_ref: str
    kind: str  # key | reject | stop | break_glass
    digest16: str
    card_rev: int
    via: str  # slack_button | slack_modal | console | api | cli
    reason: str
    dedupe_key: str
    blocks_sha256: str
    ticket: str = ""  # of the emergency, to break the glass
    reply: Mapping[str, str] = field(
        default_factory=dict
    )  # where a Slack answer goes: channel, user, thread_ts, response_url


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person is told. Every press gets one."""

    code: str
    ok: bool
    sentence: str
    status: str
    given: int
    needed: int


class Decide:
    """The only way a key is ever given."""

    def __init__(self, database: Database, now: Callable[[], datetime.datetime]) -> None:
        self._database = database
        self._now = now

    def decide(self, press: Press) -> Answer:
        """Count the press or say why not. Never raises for a refusal."""
        try:
            with self._database.unit(
                press.tenant, lock_seconds=click_lock_seconds, statement_seconds=click_statement_seconds
            ) as unit:
                before = outbox.answered(unit, press.dedupe_key) if press.dedupe_key else None
                if before is not None:
                    return Answer(**before)
                answer = self._decide(unit, press)
                self._reply(unit, press, answer)
                return answer
        except (BrokenJournal, BrokenLedger):
            sentence = "Nothing was recorded: the record of this run cannot be trusted, and an operator has to look at it first."
            return Answer("broken", False, sentence, "", 0, 0)
        except (Conflict, OperatorError) as error:
            why = error.reason if isinstance(error, OperatorError) else "somebody else is deciding this at this moment"
            sentence = f"Nothing was recorded: {why}. Try again."
            return Answer("try_again", False, sentence, "", 0, 0)

    def _decide(self, unit: Unit, press: Press) -> Answer:
        try:
            run = approvals.run_of(unit, press.approval)
        except CallerError as error:
            return Answer(error.code, False, str(error), "", 0, 0)
        case = cases.load(unit, run, lock=True)
        found = approvals.load(unit, press.approval, lock=True)
        before = outbox.answered(unit, press.dedupe_key) if press.dedupe_key else None
        if before is not None:
            return Answer(**before)
        try:
            person = who(unit, Actor(press.actor_kind, press.actor_ref))
        except Refused as refused:
            sentence = (
                "Your identity is linked to nobody here, so you cannot decide. Ask an owner of your tenant to link it."
            )
            return self._refused(unit, press, found, "", refused.code, sentence)
        return self._vote(unit, case, found, person, press)

    def _vote(self, unit: Unit, case: Case, found: approvals.Recorded, person: Profile, press: Press) -> Answer:
        if press.kind == gate.GLASS:
            return self._break(unit, case, found, person, press)
        if press.kind not in gate.VOTE_KINDS:
            return Answer("unknown_kind", False, f"{press.kind} is not a decision", found.asked.status, 0, 0)
        asked, now = found.asked, unit.now()
        profiles = people.profiles(unit)
        crowd = {name: people.as_person(p) for name, p in profiles.items()}
        viewed = attention.saw(unit, asked.id, person.person, press.via)
        try:
            counted = gate.vote(
                asked, found.votes, crowd, people.as_person(person), press.kind, press.digest16, now, press.reason,
                signed_in=press.via == "console", stoppable=_stoppable(case, found),
            )  # fmt: skip
        except gate.VoteRefused as refused:
            return self._refused(unit, press, found, person.person, refused.code, refused.sentence)
        case.now = max(case.now, now)
        seconds = max(0, int((now - asked.requested_at).total_seconds()))
        case.add(
            "attention", approval=asked.id, person=person.person, kind=press.kind, at=now, seconds=seconds, viewed=viewed,
        )  # fmt: skip
        self._record_vote(
            unit, case, found, person, press, counted, profiles, now, {"seconds": seconds, "viewed": viewed}
        )
        if counted.status == "approved":
            persons = [v.person for v in found.votes if v.kind == "key"] + [person.person]
            self._release(
                unit,
                case,
                found,
                [p for p in dict.fromkeys(persons) if p in self._standing(found, press, person, counted, crowd, now)],
            )
        elif counted.status == "rejected" and asked.status == "approved":
            self._stop(case, found, person, press)
        elif counted.status == "rejected":
            self._reject(case, found, person, press)
        case.posts.append(("card", asked.id, {}))
        if press.kind == "key":
            case.posts.append(
                (
                    "thread",
                    asked.id,
                    {
                        "person": _named(person, counted, profiles),
                        "given": counted.given,
                        "needed": counted.needed,
                        "reason": press.reason,
                    },
                )
            )
        cases.commit(unit, case, ())
        code = f"{press.kind}_given" if counted.status == "requested" else counted.status
        if asked.status == "approved":
            code = "stopped"
        answer = Answer(
            code, True, _said(found, code, counted.given, counted.needed), counted.status, counted.given, counted.needed
        )
        if press.dedupe_key:
            outbox.remember(unit, press.dedupe_key, _plain(answer))
        return answer

    def _break(self, unit: Unit, case: Case, found: approvals.Recorded, person: Profile, press: Press) -> Answer:
        """One key for all of them: it runs now, and two others owe a review."""
        asked, now = found.asked, unit.now()
        crowd = {name: people.as_person(p) for name, p in people.profiles(unit).items()}
        lasting = found.action.reversal == "none" or not found.action.reversible
        try:
            gate.check_glass(
                asked, people.as_person(person), crowd, press.digest16, now, reason=press.reason, ticket=press.ticket,
                can_be_taken_back=not lasting and not found.is_sign_off, overdue=len(glasses.overdue(unit)),
                signed_in=press.via == "console",
            )  # fmt: skip
        except gate.VoteRefused as refused:
            return self._refused(unit, press, found, person.person, refused.code, refused.sentence)
        case.now = max(case.now, now)
        due_at = case.now + datetime.timedelta(seconds=gates.of(unit).review_seconds)
        case.add(
            "vote", approval=asked.id, person=person.person, kind="key", at=now, action_digest=asked.action_digest,
            card_digest=asked.card_digest, card_rev=press.card_rev or found.card_rev, policy_revision=found.verdict.policy_revision,
            blocks_sha256=press.blocks_sha256, via=press.via, identity=f"{press.actor_kind}:{press.actor_ref}", reason=press.reason,
        )  # fmt: skip
        case.add(
            "glass", approval=asked.id, promise=asked.promise, person=person.person, at=case.now, due_at=due_at,
            ticket=press.ticket.strip(), reason=press.reason.strip(),
        )  # fmt: skip
        ticket = sha256(case.origin.salt_key + press.ticket.strip().encode()).hex()
        case.note(
            "glass.broken",
            {
                "approval": asked.id, "promise": asked.promise, "person": person.person, "level": person.level,
                "groups": list(person.groups), "action_sha256": asked.action_digest.hex(), "card_sha256": asked.card_digest.hex(),
                "policy_revision": found.verdict.policy_revision, "via": press.via, "ticket_sha256": ticket,
                "reason_sha256": _reason_sha256(case, press), "due_at": stamp(due_at),
            },
            actor={"type": "person", "id": person.person},
        )  # fmt: skip
        self._release(unit, case, found, [])
        text = f"🚨 {person.name} broke the glass ({press.ticket.strip()}): {press.reason.strip()} Two others owe a review until "
        case.posts += [("card", asked.id, {}), ("said", asked.id, {"text": f"{text}{due_at:%Y-%m-%d %H:%M} UTC."})]
        cases.commit(unit, case, ())
        sentence = f"The glass is broken: it runs now. Two others owe a review until {due_at:%Y-%m-%d %H:%M} UTC."
        answer = Answer("glass_broken", True, sentence, "approved", 1, asked.keys)
        if press.dedupe_key:
            outbox.remember(unit, press.dedupe_key, _plain(answer))
        return answer

    def _standing(
        self,
        found: approvals.Recorded,
        press: Press,
        person: Profile,
        counted: gate.Counted,
        crowd: Mapping[str, gate.Person],
        now: datetime.datetime,
    ) -> tuple[str, ...]:
        asked = found.asked
        new = gate.Vote(
            person.person, press.kind, now, asked.action_digest, asked.card_digest, for_person=counted.for_person
        )
        return gate.standing(found.asked, (*found.votes, new), crowd, now)

    def _record_vote(
        self,
        unit: Unit,
        case: Case,
        found: approvals.Recorded,
        person: Profile,
        press: Press,
        counted: gate.Counted,
        profiles: Mapping[str, Profile],
        now: datetime.datetime,
        how: Mapping[str, int],
    ) -> None:
        asked = found.asked
        # What the clicker's card was posted with is on record; what the click repeats of it is only a claim.
        blocks = approvals.posted_blocks(unit, asked.id) if press.via == "slack_button" else ""
        blocks = blocks or press.blocks_sha256
        case.add(
            "vote", approval=asked.id, person=person.person, kind=press.kind, at=now, action_digest=asked.action_digest,
            card_digest=asked.card_digest, card_rev=press.card_rev or found.card_rev, policy_revision=found.verdict.policy_revision,
            blocks_sha256=blocks, via=press.via, identity=f"{press.actor_kind}:{press.actor_ref}", reason=press.reason,
        )  # fmt: skip
        lent = profiles[counted.for_person].groups if counted.for_person else person.groups
        if counted.for_person:
            case.add("mandate", approval=asked.id, person=person.person, for_person=counted.for_person)
        if press.kind == "key":
            case.note(
                "key.given",
                {
                    **({"for_person": counted.for_person} if counted.for_person else {}), **how,
                    "approval": asked.id, "person": person.person, "level": person.level, "groups": list(lent),
                    "action_sha256": asked.action_digest.hex(), "card_sha256": asked.card_digest.hex(),
                    "card_rev": press.card_rev or found.card_rev, "policy_revision": found.verdict.policy_revision,
                    "blocks_sha256": blocks, "via": press.via, "given": counted.given, "needed": counted.needed,
                },
                actor={"type": "person", "id": person.person},
            )  # fmt: skip
        elif press.kind == "reject" and counted.status == "requested":
            case.note(
                "rejection.given",
                {
                    "approval": asked.id, "person": person.person, "level": person.level, "groups": list(person.groups),
                    "action_sha256": asked.action_digest.hex(), "via": press.via, "given": counted.given, "needed": counted.needed,
                    "reason_sha256": _reason_sha256(case, press),
                },
                actor={"type": "person", "id": person.person},
            )  # fmt: skip

    def _release(self, unit: Unit, case: Case, found: approvals.Recorded, persons: list[str]) -> None:
        """It may run; without persons a broken glass has said so."""
        asked = found.asked
        case.approval_status[asked.id] = "approved"
        case.add("due_done", kind="approval", ref=asked.id)
        body = {
            "approval": asked.id,
            "promise": asked.promise,
            "action_sha256": asked.action_digest.hex(),
            "persons": persons,
        }
        if persons:
            case.note("approval.released", body)
        case.accept(Signalled(f"approval:{asked.id}", "approved"))
        if found.is_sign_off:
            # What was signed was answered before: it is the operation's result now.
            signed = tasks.load(unit, tasks.id_of(asked.run, asked.promise)).answer
            assert signed is not None
            case.finish(asked.promise, ok=True, value=opened(case.payloads[signed]))
            case.put_work("", "advance")
            return
        # The hours that people took are not the step's: its time to run begins now, or when nobody has stopped it in time.
        held = gate.window_seconds(asked.obligations) if persons else 0
        case.touch(
            asked.promise, state="ready", deadline_at=None,
            next_eligible_at=case.now + datetime.timedelta(seconds=held) if held else None,
        )  # fmt: skip
        case.state = "running"
        case.put_work(asked.promise, "execute", wait_seconds=held)

    def _reject(self, case: Case, found: approvals.Recorded, person: Profile, press: Press) -> None:
        asked = found.asked
        case.approval_status[asked.id] = "rejected"
        case.add("due_done", kind="approval", ref=asked.id)
        case.note(
            "approval.rejected",
            {
                "approval": asked.id, "promise": asked.promise, "action_sha256": asked.action_digest.hex(), "person": person.person,
                "reason_sha256": _reason_sha256(case, press),
            },
            actor={"type": "person", "id": person.person},
        )  # fmt: skip
        case.accept(Signalled(f"approval:{asked.id}", "rejected"))
        error_class = "rejected" if found.is_sign_off else "approval_rejected"
        case.finish(asked.promise, ok=False, error_class=error_class, message=f"rejected: {press.reason}")
        case.put_work("", "advance")

    def _stop(self, case: Case, found: approvals.Recorded, person: Profile, press: Press) -> None:
        """It was approved and has not begun: now it never does, whoever had been about to begin it."""
        asked = found.asked
        case.approval_status[asked.id] = "rejected"
        case.note(
            "approval.stopped",
            {
                "approval": asked.id, "promise": asked.promise, "action_sha256": asked.action_digest.hex(), "person": person.person,
                "reason_sha256": _reason_sha256(case, press),
            },
            actor={"type": "person", "id": person.person},
        )  # fmt: skip
        case.work_done += [(asked.promise, "execute"), (asked.promise, "judge")]
        why = press.reason.strip() or "no reason given"
        case.finish(asked.promise, ok=False, error_class="approval_stopped", message=f"stopped: {why}")
        case.put_work("", "advance")

    def _refused(
        self, unit: Unit, press: Press, found: approvals.Recorded, person: str, code: str, sentence: str
    ) -> Answer:
        """A refusal is an entry too; repeated ones by one person within a minute are folded into one counted row."""
        if refusals.count(unit, found.asked.id, person or f"{press.actor_kind}:unlinked", code):
            actor = {"type": "person", "id": person} if person else {"type": "service", "id": press.actor_kind}
            fact = Fact(
                "key.refused",
                actor,
                {"approval": found.asked.id, "person": person, "code": code, "via": press.via, "count": 1},
            )
            entries.note_run(unit, found.asked.run, [fact])
        answer = Answer(code, False, sentence, found.asked.status, 0, found.asked.keys)
        if press.dedupe_key:
            outbox.remember(unit, press.dedupe_key, _plain(answer))
        return answer

    def _reply(self, unit: Unit, press: Press, answer: Answer) -> None:
        if press.reply:
            outbox.put(unit, "ephemeral", press.approval, {**press.reply, "text": answer.sentence})


def _stoppable(case: Case, found: approvals.Recorded) -> bool:
    """Whether it is approved and nothing of it is on the road: its attempt has no intent yet, or the last one has failed."""
    invoke = case.history.invoke(case.promise_id(found.asked.promise))
    idle = invoke is not None and invoke.phase not in ("started", "completed")
    newest = case.promises[found.asked.promise].approval == found.asked.id
    return idle and newest and not case.ended and not found.is_sign_off


def _named(person: Profile, counted: gate.Counted, profiles: Mapping[str, Profile]) -> str:
    """Both names, where a key was turned in somebody's place."""
    return f"{person.name} for {profiles[counted.for_person].name}" if counted.for_person else person.name


def _reason_sha256(case: Case, press: Press) -> str:
    return sha256(case.origin.salt_key + press.reason.encode()).hex()


def _plain(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in Answer.__dataclass_fields__}


def _said(found: approvals.Recorded, code: str, given: int, needed: int) -> str:
    if found.is_sign_off and code == "approved":
        return "Signed. The run goes on with this answer."
    if found.is_sign_off and code == "rejected":
        return "Rejected. The run goes on without this answer; its workflow reads your reason."
    if code == "stopped":
        return "Stopped. It was approved and will not run; nothing was done."
    if code == "reject_given":
        return f"Your rejection is in: {given} of {needed}. It ends when {needed} different people have rejected it."
    if code == "approved" and found.asked.obligations and (held := gate.window_seconds(found.asked.obligations)):
        return f"Approved: the last of {needed}. It is held for {held} s; until then one person may stop it."
    if code == "approved":
        return f"Approved: your key was the last of {needed}. It runs now." if needed > 1 else "Approved. It runs now."
    if code == "rejected":
        return "Rejected. Nothing will be executed; the person who asked reads your reason."
    return f"Your key is in: {given} of {needed}. A different person must give the next."
