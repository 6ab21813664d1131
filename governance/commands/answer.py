"""Answer a task: one choke point for every form, wherever it was filled in; one transaction, run before task, database clock."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.catalog.tenancy import require
from engine.errors import BrokenJournal, BrokenLedger, CallerError, Conflict, OperatorError, Refused
from engine.kernel import payload, reference_of
from engine.limits import click_lock_seconds, click_statement_seconds
from engine.program.form import read_answer
from governance.commands.authority import Actor, who
from governance.store import cases, mending, outbox, tasks
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.tasks import TaskRecord
from governance.store.unit import Database, Unit


class AnswerInvalid(CallerError):
    """The caller must act: an answer does not fit its form; `faults` says so field by field."""

    code = "invalid_answer"
    faults: Mapping[str, str] = {}

    def __init__(self, sentence: str, faults: Mapping[str, str]) -> None:
        super().__init__(sentence)
        self.faults = dict(faults)


@dataclass(frozen=True, slots=True)
class Filled:
    """A form as a person sent it; nothing in it is authority, everything is looked up again."""

    tenant: str
    task: str
    actor: Actor
    digest16: str  # of the form that was shown
    values: Mapping[str, Any]
    via: str  # slack_form | console | api | cli
    dedupe_key: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What the person is told. Every form gets an answer; `faults` says by field what does not fit."""

    code: str
    ok: bool
    sentence: str
    status: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Return when the answer was taken; raise what became of it otherwise."""
        if self.faults:
            raise AnswerInvalid(self.sentence, self.faults)
        if self.code.startswith("unknown_"):
            raise CallerError(self.sentence, code=self.code)
        if not self.ok:
            raise Refused(self.sentence, code=self.code)


class Answers:
    """The only way a task is ever answered."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def answer(self, filled: Filled) -> Told:
        """Take the answer or say why not. Never raises for a refusal."""
        try:
            with self._database.unit(
                filled.tenant, lock_seconds=click_lock_seconds, statement_seconds=click_statement_seconds
            ) as unit:
                return self._answer(unit, filled)
        except (CallerError, Refused) as refused:
            return Told(refused.code, False, _sentence(refused))
        except (BrokenJournal, BrokenLedger):
            sentence = "Nothing was recorded: the record of this run cannot be trusted, and an operator has to look at it first."
            return Told("broken", False, sentence)
        except (Conflict, OperatorError) as error:
            why = error.reason if isinstance(error, OperatorError) else "somebody else is answering at this moment"
            return Told("try_again", False, f"Nothing was recorded: {why}. Try again.")

    def _answer(self, unit: Unit, filled: Filled) -> Told:
        case = cases.load(unit, tasks.run_of(unit, filled.task), lock=True)
        found = tasks.load(unit, filled.task, lock=True)
        before = outbox.answered(unit, filled.dedupe_key) if filled.dedupe_key else None
        if before is not None:
            return Told(**before)
        person = who(unit, filled.actor)
        now = unit.now()
        _check_person(found, person)
        _check_open(found, person, now)
        if case.ended or case.cancel_requested:
            raise Refused("the run is over, or is being cancelled", code="ended")
        if filled.digest16 != found.digest16:
            raise Refused("this is not the form that is asked now", code="stale_card", next_step="open the newest one")
        value, faults = read_answer(found.form, filled.values)
        if faults:
            return Told("invalid_answer", False, "Nothing was recorded: some fields do not fit.", found.status, faults)
        case.now = max(case.now, now)
        self._take(case, found, person, filled, value)
        cases.commit(unit, case, ())
        told = Told("answered", True, _thanks(found), "answered")
        if filled.dedupe_key:
            remembered = {"code": told.code, "ok": True, "sentence": told.sentence, "status": told.status}
            outbox.remember(unit, filled.dedupe_key, remembered)
        return told

    def _take(self, case: Case, found: TaskRecord, person: Profile, filled: Filled, value: dict[str, Any]) -> None:
        """The first answer that fits: it is the operation's result, unless others have to sign it first."""
        promise = found.promise
        if found.is_operators:
            self._mended(case, found, person, filled, value)
            return
        kept = payload(case.origin.salt_key, f"{case.promise_id(promise)}/answer", value)
        case.keep(kept.commit, kept.body)
        tasks.end(case, found.task, "answered", person=person.person, via=filled.via, answer=kept.commit)
        invoke = case.history.invoke(case.promise_id(promise))
        assert invoke is not None
        body = {
            "task": found.task, "promise": promise, "person": person.person, "groups": list(person.groups),
            "form_sha256": reference_of(invoke.scheduled.input).hex(), "answer_sha256": kept.commit.hex(), "via": filled.via,
        }  # fmt: skip
        actor = {"type": "person", "id": person.person}
        case.note("task.answered", body, actor=actor, commit=(kept.commit.hex(),))
        if found.form.sign_off is None:
            case.finish(promise, ok=True, value=value)
            case.put_work("", "advance")
            return
        case.touch(promise, state="ready", deadline_at=None)
        case.state = "running"
        case.put_work(promise, "judge")

    def _mended(self, case: Case, found: TaskRecord, person: Profile, filled: Filled, value: dict[str, Any]) -> None:
        """An operator says that what was wrong is put right, or that it will not be."""
        goes_on = value[mending.QUESTION] == mending.GO_ON
        tasks.end(case, found.task, "answered", person=person.person, via=filled.via)
        case.note(
            "operator.answered",
            {
                "task": found.task, "promise": found.promise, "person": person.person,
                "how": "go_on" if goes_on else "give_up", "via": filled.via,
            },
            actor={"type": "person", "id": person.person},
        )  # fmt: skip
        if goes_on:
            mending.go_on(case, found.promise)
        else:
            mending.give_up(case, found.promise, "give_up", found.error_class, found.error)


def why_not(found: TaskRecord, person: Profile, now: datetime.datetime) -> str:
    """What this person would be told without looking at an answer; empty when they may give one. Only shown, decided above."""
    try:
        _check_person(found, person)
        _check_open(found, person, now)
    except Refused as refused:
        return _sentence(refused)
    return ""


def _check_person(found: TaskRecord, person: Profile) -> None:
    require("complete_task", person.level, active=person.active, auditor=person.read_only)
    if person.kind != "human":
        raise Refused("only a person can answer this; a service account cannot", code="not_human")
    if not set(tasks.groups_of(person)) & set(found.form.groups):
        raise Refused(f"you are in no group that may answer this; it takes {found.who}", code="not_answerer")


def _check_open(found: TaskRecord, person: Profile, now: datetime.datetime) -> None:
    if found.status == "answered":
        at = found.decided_at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC") if found.decided_at else "before"
        name = "you" if found.answerer == person.person else found.answered_by
        raise Refused(f"this was answered by {name} at {at}; what you wrote changed nothing", code="decided")
    if found.status == "expired" or (found.is_open and now >= found.expires_at):
        raise Refused("the time to answer this is up; what you wrote changed nothing", code="expired")
    if not found.is_open:
        raise Refused("this was withdrawn; what you wrote changed nothing", code="decided")


def _sentence(error: CallerError | Refused) -> str:
    text = error.reason[:1].upper() + error.reason[1:] + "."
    return f"{text} {error.next_step[:1].upper()}{error.next_step[1:]}." if error.next_step else text


def _thanks(found: TaskRecord) -> str:
    if found.is_operators:
        return "Recorded."
    if found.form.sign_off is None:
        return "Your answer is recorded. The run goes on."
    groups = " or ".join(f"@{group}" for group in found.form.sign_off.groups)
    return f"Your answer is recorded. Others have to sign it next: {groups}."
