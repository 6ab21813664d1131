"""Move a run to other code: only when its whole journal replays under that code, event for event; otherwise nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.catalog.template import check_publish
from engine.errors import CallerError, Conflict, Refused
from engine.kernel import Files, begun
from engine.ledger.entries import Fact
from engine.program.function import Step, Turn
from engine.program.function_code import Component
from engine.program.function_journal import Feed, ReplayMismatch, can_turn
from engine.program.programs import Function
from governance.commands.authority import Actor, allowed
from governance.commands.publish import function_from
from governance.store import cases, entries, templates
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.unit import Database, Unit

tries_max = 5  # a run that moves under our hands is rehearsed again


@dataclass(frozen=True, slots=True)
class Migrated:
    """Which code a run goes on with, and after how many events."""

    run: str
    version: str
    digest: str
    events: int


class Rehearses(Protocol):
    """The processes that run authors' code."""

    def check(self, component: Component, *, tenant: str = "") -> None:
        """Load the code into a fresh process."""

    def turn(self, component: Component, feed: Feed, *, now: int, entropy: bytes, tenant: str = "") -> Turn:
        """What follows from a journal; ReplayMismatch when the code does something else than it says."""


class DiffersFromJournal(Refused):
    """Nobody must act, or the author: the code does not do what the run's journal says it did; the run stays as it is."""

    code = "replay_mismatch"

    def __init__(self, mismatch: ReplayMismatch) -> None:
        super().__init__(
            f"the run stays as it is: {mismatch}", next_step="change the code so that what has happened stays the same"
        )
        self.sequence = mismatch.sequence
        self.journal: Step | None = mismatch.expected
        self.does: Step | None = mismatch.got


class Migrate:
    """The order to go on under other code."""

    def __init__(self, database: Database, hosts: Rehearses) -> None:
        self._database = database
        self._hosts = hosts

    def to_version(self, tenant: str, actor: Actor, run: str, version: str = "") -> Migrated:
        """To a published version of its workflow, whatever became of that; without one to the active version."""
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "migrate")
            name = cases.load(unit, run).origin.workflow
            found = templates.version(unit, name, version) if version else templates.active(unit, name)
        if found is None:
            raise CallerError(
                f"{name} {version or 'with an active version'} is not published",
                code="unknown_workflow", field="to", next_step="`twokeys workflow list` shows the versions",
            )  # fmt: skip
        program = found[2]
        if not isinstance(program, Function):
            raise _not_python(name)
        return self._migrate(tenant, actor, run, program, "")

    def to_file(
        self, tenant: str, actor: Actor, run: str, text: bytes, filename: str, modules: Mapping[str, bytes]
    ) -> Migrated:
        """To code that need not be published: it is kept as a draft, which starts nothing."""
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "migrate")  # before anything of theirs is loaded
        function = function_from(text, filename, modules)
        return self._migrate(tenant, actor, run, function, text.decode("utf-8"))

    def _migrate(self, tenant: str, actor: Actor, run: str, function: Function, authored: str) -> Migrated:
        self._hosts.check(function.component, tenant=tenant)
        for _ in range(tries_max):
            with self._database.unit(tenant, write=False) as unit:
                case = cases.load(unit, run)
                _check(unit, case, function)
            events = self._rehearsed(case, function)
            with self._database.unit(tenant) as unit:
                person = allowed(unit, actor, "migrate")
                case = cases.load(unit, run, lock=True)
                _check(unit, case, function)
                if case.history.version != events:
                    continue
                if authored:
                    _keep(unit, function, authored, person)
                _move(unit, case, function, person)
            return Migrated(run, function.version, function.digest.hex(), events)
        raise Conflict(f"run {run} moves all the time", code="busy", next_step="try again")

    def _rehearsed(self, case: Case, function: Function) -> int:
        """Replay the whole journal; no transaction is open meanwhile. How many stored events it has."""
        history = begun(case.history, case.start, case.micros)
        feed = Feed(Files(case.origin.salt_key, case.payloads)).take(case.stored).take(history.pending())
        try:
            # What would follow from here is not of interest, so neither are the moment and the chance it is given.
            self._hosts.turn(function.component, feed, now=case.micros, entropy=bytes(32), tenant=case.origin.tenant)
        except ReplayMismatch as mismatch:
            raise DiffersFromJournal(mismatch) from None
        return case.history.version


def _check(unit: Unit, case: Case, function: Function) -> None:
    if case.ended or case.cancel_requested:
        raise Refused("the run is over, or is being cancelled", code="ended")
    if not isinstance(templates.by_digest(unit, case.code), Function):
        raise _not_python(case.origin.workflow)
    if function.name != case.origin.workflow:
        raise Refused(f"this is {function.name}, the run is one of {case.origin.workflow}", code="other_workflow")
    if function.digest == case.code:
        raise Refused(
            f"the run is on {function.version} already", code="same_code",
            next_step="`twokeys run retry RUN` goes on with what is parked",
        )  # fmt: skip


def _not_python(name: str) -> Refused:
    return Refused(f"{name} is no workflow in Python; its runs end on what they started with", code="not_a_function")


def _keep(unit: Unit, function: Function, authored: str, person: Profile) -> None:
    known = templates.state_of(unit, function.name, function.version)
    status, stored = known if known else (None, None)
    if check_publish(status, function.version, stored, function.digest):
        templates.put(unit, function, authored, person.person)
        body = {"name": function.name, "version": function.version, "definition_sha256": function.digest.hex()}
        entries.note(
            unit,
            f"template/{function.name}",
            Fact("template.created", {"type": "person", "id": person.person}, body),
        )


def _move(unit: Unit, case: Case, function: Function, person: Profile) -> None:
    case.now = max(case.now, unit.now())
    body = {
        "person": person.person, "from_sha256": case.code.hex(), "definition_sha256": function.digest.hex(),
        "version": function.version, "journal_version": case.history.version,
    }  # fmt: skip
    case.note("run.migrated", body, actor={"type": "person", "id": person.person})
    case.code, case.code_version = function.digest, function.version
    case.editors = tuple(dict.fromkeys((*case.editors, person.person)))
    if can_turn(begun(case.history, case.start, case.micros)):
        # Whatever held it was about the old code: it is taken up afresh, its error forgotten.
        case.work_done.append(("", "advance"))
        case.put_work("", "advance")
    cases.commit(unit, case, ())
