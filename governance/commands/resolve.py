"""Resolve an unknown outcome: people say what happened, or what to do about it; one choke point, and their word is on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from engine.catalog.tenancy import require
from engine.errors import BrokenJournal, BrokenLedger, CallerError, Conflict, OperatorError, Refused
from engine.gate import doubt as gate
from engine.gate.doubt import Doubt, Heard, Word
from engine.gate.permit import Permit, reopened
from engine.gate.receipt import Outcome
from engine.kernel import payload, settle_cancel
from engine.ledger.entries import Fact
from engine.limits import click_lock_seconds, click_statement_seconds
from governance.commands.authority import Actor, who
from governance.store import cases, doubts, entries, outbox, people, refusals
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.unit import Database, Unit


class Settles(Protocol):
    """The part of the execute stage that writes receipts."""

    def settle(self, case: Case, granted: Permit, outcome: Outcome, *, how: str, person: str, keep: bool) -> object:
        """Record what an attempt came to."""

    def retry(self, case: Case, promise: str, attempt: int) -> None:
        """Make an attempt of unknown outcome again under the same key."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a person said, as an entry understood it; nothing in it is authority, everything is looked up again."""

    tenant: str
    actor: Actor
    run: str  # may be empty when the doubt is named
    promise: str
    how: str  # probe | happened | did_not | retry
    reason: str
    via: str  # slack_button | slack_modal | console | api | cli
    doubt: str = ""  # as it was shown; empty: the one that is open now
    dedupe_key: str = ""
    reply: Mapping[str, str] = field(default_factory=dict)  # where a Slack answer goes


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the person is told, and where the run stands. Every word gets an answer."""

    code: str
    ok: bool
    sentence: str
    run: str = ""
    promise: str = ""
    how: str = ""
    state: str = ""
    given: int = 0  # people who want it tried again
    needed: int = 0

    def check(self) -> None:
        """Return when the word was taken; raise what became of it otherwise."""
        if not self.ok:
            raise Refused(self.sentence, code=self.code)


class Resolve:
    """The only way anybody ever speaks about an outcome that nobody knows."""

    def __init__(self, database: Database, settles: Settles) -> None:
        self._database = database
        self._settles = settles

    def resolve(
        self, tenant: str, actor: Actor, run: str, promise: str, how: str, reason: str, *,
        via: str = "cli", doubt: str = "", dedupe_key: str = "",
    ) -> Resolved:  # fmt: skip
        """The same for doors that answer with errors: raises what was wrong, after it was recorded."""
        errors: list[Refused] = []
        done = self._say(Said(tenant, actor, run, promise, how, reason, via, doubt, dedupe_key), errors)
        if errors:
            raise errors[0]
        done.check()
        return done

    def say(self, said: Said) -> Resolved:
        """Take a word or say why not. Never raises for a refusal."""
        errors: list[Refused] = []
        try:
            return self._say(said, errors)
        except (CallerError, Refused) as refused:
            return Resolved(refused.code, False, _sentence(refused))
        except (BrokenJournal, BrokenLedger):
            sentence = "Nothing was recorded: the record of this run cannot be trusted, and an operator has to look at it first."
            return Resolved("broken", False, sentence)
        except (Conflict, OperatorError) as error:
            why = error.reason if isinstance(error, OperatorError) else "somebody else is deciding this at this moment"
            return Resolved("try_again", False, f"Nothing was recorded: {why}. Try again.")

    def _say(self, said: Said, errors: list[Refused]) -> Resolved:
        """`errors` gets what was refused, because the entry about it has to be committed first."""
        with self._database.unit(
            said.tenant, lock_seconds=click_lock_seconds, statement_seconds=click_statement_seconds
        ) as unit:
            run = said.run or doubts.run_of(unit, said.doubt)
            person = _speaker(unit, said)
            case = cases.load(unit, run, lock=True)
            before = outbox.answered(unit, said.dedupe_key) if said.dedupe_key else None
            if before is not None:
                return Resolved(**before)
            asked, words = self._asked(unit, case, said)
            try:
                if person is None:
                    raise Refused("this identity belongs to nobody here", code="unknown_person",
                                  next_step="ask an owner to link it")  # fmt: skip
                require("resolve", person.level, active=person.active, auditor=person.read_only)
                crowd = {key: people.as_person(one) for key, one in people.profiles(unit).items()}
                heard = gate.hear(asked, words, crowd, people.as_person(person), said.how, said.reason)
            except Refused as error:
                errors.append(error)
                done = self._refused(unit, said, asked, person, error)
            else:
                done = self._take(unit, case, asked, len(words), person, said, heard)
            if said.dedupe_key:
                outbox.remember(unit, said.dedupe_key, asdict(done))
            if said.reply:
                outbox.put(unit, "ephemeral", asked.id, {**said.reply, "text": done.sentence})
            return done

    def _asked(self, unit: Unit, case: Case, said: Said) -> tuple[Doubt, tuple[Word, ...]]:
        """The doubt that is spoken of: as shown, or the operation's newest; what an earlier release asked nobody is asked now."""
        if said.doubt:
            return doubts.load(unit, case, said.doubt), doubts.words(unit, said.doubt)
        row, name = case.promises.get(said.promise), doubts.newest(unit, case.origin.run, said.promise)
        if row is not None and row.state == "unknown":
            if name != gate.id_of(case.origin.run, row.promise, row.attempt):
                name = doubts.ask(case, cases.action(unit, case.origin.run, row.promise, row.rev))
            return doubts.about(unit, case, row.promise, row.attempt), doubts.words(unit, name)
        if not name:
            raise Refused(
                f"{said.promise[:40]!r} of this run is not unknown",
                code="not_unknown",
                next_step="the run page shows what waits",
            )
        return doubts.load(unit, case, name), doubts.words(unit, name)

    def _refused(self, unit: Unit, said: Said, asked: Doubt, person: Profile | None, error: Refused) -> Resolved:
        """A refused word is an entry too; repeated ones of a minute become one with their number."""
        name = person.person if person else ""
        if refusals.count(unit, asked.id, name or f"{said.actor.kind}:unlinked", error.code):
            actor = {"type": "person", "id": name} if name else {"type": "service", "id": said.actor.kind}
            body = {"doubt": asked.id, "person": name, "how": said.how, "code": error.code, "via": said.via, "count": 1}
            entries.note_run(unit, asked.run, [Fact("word.refused", actor, body)])
        return Resolved(error.code, False, _sentence(error), asked.run, asked.promise, said.how)

    def _take(
        self, unit: Unit, case: Case, asked: Doubt, before: int, person: Profile, said: Said, heard: Heard
    ) -> Resolved:
        case.now = max(case.now, unit.now())
        identity = f"{said.actor.kind}:{said.actor.ref}"
        case.add(
            "word", doubt=asked.id, n=before + 1, person=person.person, how=said.how, at=case.now, via=said.via,
            identity=identity, reason=said.reason,
        )  # fmt: skip
        if said.how in (gate.HAPPENED, gate.DID_NOT):
            self._settle(unit, case, asked, person, said)
        else:
            self._note(case, asked, person, said, heard)
        if said.how == gate.PROBE:
            case.put_work(asked.promise, "execute")
        elif said.how == gate.RETRY and heard.settled:
            case.work_done.append((asked.promise, "execute"))
            self._settles.retry(case, asked.promise, asked.attempt)
        elif said.how == gate.RETRY:
            case.show_card(asked.id)
        if settle_cancel(case.history, case.micros):
            case.work_done.append(("", "advance"))
            case.rows.pop("work", None)
            case.close("canceled")
        cases.commit(unit, case, ())
        unknown = not case.ended and any(one.state == "unknown" for one in case.promises.values())
        state = "unknown" if unknown else case.shown
        return Resolved(
            said.how, True, _told(said.how, heard), asked.run, asked.promise, said.how, state, heard.given, heard.needed
        )

    def _settle(self, unit: Unit, case: Case, asked: Doubt, person: Profile, said: Said) -> None:
        row = case.promises[asked.promise]
        action = cases.action(unit, asked.run, asked.promise, row.rev)
        granted = reopened(
            action, attempt=row.attempt, verdict_n=row.verdict_n, revision="", approval=row.approval, deadline_seconds=0
        )
        kept = payload(case.origin.salt_key, f"{asked.promise}/told/{row.attempt}", said.reason)
        case.keep(kept.commit, kept.body)
        told = {"told_by": person.person, "reason": kept.reference}
        if said.how == gate.HAPPENED:
            outcome = Outcome("ok", response=told, result={})
        else:
            outcome = Outcome(
                "rejected", response=told, error_class="did_not_happen", message="a person said so", retryable=True
            )
            # The hours that people took are not the step's: what is left of its attempts has its time again.
            case.touch(asked.promise, deadline_at=None)
        case.work_done.append((asked.promise, "execute"))
        self._settles.settle(case, granted, outcome, how="told", person=person.person, keep=False)
        case.show_card(row.approval)

    def _note(self, case: Case, asked: Doubt, person: Profile, said: Said, heard: Heard) -> None:
        commit = ""
        if said.reason.strip():
            kept = payload(case.origin.salt_key, f"{asked.id}/word/{person.person}/{said.how}", said.reason)
            case.keep(kept.commit, kept.body)
            commit = kept.commit.hex()
        case.note(
            "word.given",
            {
                "doubt": asked.id, "promise": asked.promise, "attempt": asked.attempt, "person": person.person,
                "groups": list(person.groups), "how": said.how, "via": said.via, "given": heard.given, "needed": heard.needed,
                "reason_sha256": commit,
            },
            actor={"type": "person", "id": person.person}, commit=(commit,) if commit else (),
        )  # fmt: skip


def _speaker(unit: Unit, said: Said) -> Profile | None:
    """Who speaks; somebody who may never resolve is refused before anything is looked up, unless a doubt hears of it."""
    try:
        person = who(unit, said.actor)
    except Refused:
        if not said.doubt:
            raise
        return None
    if not said.doubt and not doubts.newest(unit, said.run, said.promise):
        require("resolve", person.level, active=person.active, auditor=person.read_only)
    return person


def _told(how: str, heard: Heard) -> str:
    if how == gate.PROBE:
        return "Looking now. What is found is said in the card's thread and on the run's page."
    if how == gate.HAPPENED:
        return "Recorded that it happened. The run goes on."
    if how == gate.DID_NOT:
        return "Recorded that it did not happen. What is left of its attempts is used, judged again first."
    if heard.settled:
        return "It is tried again under the same key, judged again first."
    return (
        f"Recorded: {heard.given} of {heard.needed} people want it tried again. A different person must ask for it too."
    )


def _sentence(error: CallerError | Refused) -> str:
    text = error.reason[:1].upper() + error.reason[1:] + "."
    return f"{text} {error.next_step[:1].upper()}{error.next_step[1:]}." if error.next_step else text
