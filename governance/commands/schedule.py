"""Schedule a workflow, and start its runs when a schedule is due: as the person who scheduled, whose level is asked again each time."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from engine.canonical import encode as canonical
from engine.canonical import sha256, tagged
from engine.catalog.schedule import ONCE, Plan, due, next_times
from engine.catalog.tenancy import may
from engine.errors import CallerError, Refused
from engine.ids import check_name
from engine.kernel import CancelAsked
from engine.ledger.entries import Fact, stamp
from engine.limits import schedule_retry_seconds
from engine.program.inputs import check_input
from engine.program.programs import Program
from governance.commands.authority import Actor, allowed
from governance.commands.start import Start, owner_of
from governance.store import caps, cases, entries, people, schedules, templates, withdrawing
from governance.store.case import SCHEDULE, SYSTEM
from governance.store.schedules import Schedule
from governance.store.unit import Database, Unit


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What became of an order: the schedule, and its next moments."""

    schedule: str
    next: tuple[datetime.datetime, ...]


class Schedules:
    """The orders about schedules, and what happens when one is due."""

    def __init__(self, database: Database, start: Start, hash_key: Callable[[str], bytes]) -> None:
        self._database = database
        self._start = start
        self._hash_key = hash_key

    def put(self, tenant: str, actor: Actor, workflow: str, plan: Plan, value: dict[str, Any]) -> Scheduled:
        """Schedule it; the same again is the same schedule, and a second entry says who asked."""
        check_name(workflow, "workflow")
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "schedule")
            owner_of(person)  # a service that nobody answers for starts nothing later either
            program = _schedulable(unit, workflow)
            faults = check_input(program, value)
            if faults:
                raise CallerError("; ".join(faults[:20]), code="invalid_input", field="input")
            now = unit.now()
            coming = tuple(next_times(plan, now))
            if not coming:
                raise CallerError(
                    "this moment is over", code="bad_schedule", field="at", next_step="give a moment to come"
                )
            parts = [workflow, plan.kind, plan.when, plan.zone, plan.catch_up, plan.most, plan.overlap, value]
            name = "sch_" + tagged("twokeys/schedule/v1", canonical(parts)).hex()[:16]
            schedules.put(unit, name, workflow, plan, value, person.person, version("tzdata"), coming[0])
            body = {
                "schedule": name, "workflow": workflow, "person": person.person, "kind": f"{plan.kind} {plan.when}", "zone": plan.zone,
                "catch_up": plan.catch_up, "most": plan.most, "overlap": plan.overlap, "input_sha256": sha256(canonical(value)).hex(),
            }  # fmt: skip
            fact = Fact("schedule.set", {"type": "person", "id": person.person}, body)
            entries.note(unit, f"template/{workflow}", fact)
        return Scheduled(name, coming)

    def drop(self, tenant: str, actor: Actor, schedule: str) -> None:
        """It starts nothing any more; runs that it has started go on."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "schedule")
            found = schedules.load(unit, schedule)
            if found.state != "active":
                raise Refused(f"the schedule is {found.state} already", code="ended")
            _drop(unit, found, "asked", {"type": "person", "id": person.person}, person.person)

    # --- when it is due -----------------------------------------------------------------------------------------------

    def fire(self, unit: Unit, schedule: str) -> None:
        """The clock of this schedule rang: start what is due, pass over what is not to be, and set the clock again."""
        found = schedules.load(unit, schedule)
        now = unit.now()
        if found.state != "active" or found.next_at is None or found.next_at > now:
            schedules.settle(unit, schedule, found.state, found.next_at)
            return
        why = _unfit(unit, found)
        if why:
            _drop(unit, found, why, SYSTEM, found.person)
            return
        state, _, program = templates.active(unit, found.workflow) or ("", "", None)
        assert program is not None
        wanted = due(found.plan, found.next_at, now)
        waits = self._waits(unit, found, state, bool(wanted.fire))
        if waits:
            schedules.settle(unit, schedule, "active", found.next_at, waits=waits)
            schedules.ring(unit, schedule, now + datetime.timedelta(seconds=schedule_retry_seconds))
            return
        passed = list(wanted.missed)
        reason = "missed"
        if state != "active":
            passed, reason = [*wanted.missed, *wanted.fire], state
        elif wanted.fire and found.plan.overlap == "skip" and schedules.open_run(unit, schedule):
            passed, reason = [*wanted.missed, *wanted.fire], "overlap"
        if passed:
            body = {"schedule": schedule, "workflow": found.workflow, "count": len(passed), "why": reason}
            entries.note(unit, f"template/{found.workflow}", Fact("schedule.skipped", SYSTEM, body))
        for moment in wanted.fire:
            if moment not in passed and not self._begin(unit, found, program, moment):
                return
        over = found.plan.kind == ONCE or wanted.next is None
        schedules.settle(unit, schedule, "done" if over else "active", None if over else wanted.next)

    def _waits(self, unit: Unit, found: Schedule, state: str, fires: bool) -> str:
        """Why a schedule that is due does not fire yet: it keeps its moment until it can."""
        if not fires or state != "active":
            return ""
        before = schedules.open_run(unit, found.schedule)
        if before and found.plan.overlap == "queue":
            return f"the run before, {before}, goes on"
        if before and found.plan.overlap == "cancel":
            _cancel(unit, before, found)
            return f"the run before, {before}, is being cancelled" if not cases.load(unit, before).ended else ""
        full = caps.no_place(unit, people.MAIN, found.workflow)
        return "" if full is None else f"{full} is reached"

    def _begin(self, unit: Unit, found: Schedule, program: Program, moment: datetime.datetime) -> bool:
        """One run for one moment, once; False when the schedule was dropped because it can start nothing any more."""
        profile = people.profiles(unit)[found.person]
        try:
            begun = self._start.begin(
                unit, self._hash_key(unit.tenant), program, people.MAIN, SCHEDULE, f"{found.schedule}/{stamp(moment)}", found.input,
                found.person, owner_of(profile),
            )  # fmt: skip
        except (CallerError, Refused) as error:
            _drop(unit, found, error.code, SYSTEM, found.person)
            return False
        body = {
            "schedule": found.schedule, "workflow": found.workflow, "person": found.person, "run": begun.run, "due_at": stamp(moment),
        }  # fmt: skip
        entries.note(unit, f"template/{found.workflow}", Fact("schedule.fired", SYSTEM, body))
        return True


def forget(unit: Unit, workflow: str, actor: dict[str, str], person: str) -> None:
    """The workflow is archived: its schedules start nothing any more, and the log says so."""
    for found in schedules.listed(unit, workflow=workflow):
        _drop(unit, found, "archived", actor, person)


def upcoming(found: Schedule, now: datetime.datetime) -> list[datetime.datetime]:
    """The next ten moments of a schedule."""
    if found.state != "active" or found.next_at is None:
        return []
    rest = [at for at in next_times(found.plan, now) if at > found.next_at]
    return [found.next_at, *rest][:10]


def _schedulable(unit: Unit, workflow: str) -> Program:
    found = templates.active(unit, workflow)
    if found is None or found[0] != "active":
        said = "has no active version" if found is None else f"is {found[0]}"
        raise Refused(
            f"workflow {workflow} {said} and cannot be scheduled",
            code="paused",
            next_step="`twokeys workflow activate`",
        )
    if found[2].trigger not in ("scheduled", "manual"):
        raise Refused(
            f"workflow {workflow} is started by events and cannot be scheduled", code="not_schedulable",
            next_step="publish it with trigger: {kind: scheduled}",
        )  # fmt: skip
    return found[2]


def _unfit(unit: Unit, found: Schedule) -> str:
    """Why this schedule can start nothing any more; empty while it can."""
    if templates.active(unit, found.workflow) is None:
        return "archived"
    person = people.profiles(unit).get(found.person)
    if person is None or not may("schedule", person.level, active=person.active, auditor=person.read_only):
        return "level"
    return ""


def _cancel(unit: Unit, run: str, found: Schedule) -> None:
    case = cases.load(unit, run, lock=True)
    if case.ended or case.cancel_requested:
        return
    digest = sha256(case.origin.salt_key + f"schedule {found.schedule}".encode()).hex()
    case.note("cancel.requested", {"person": found.person, "reason_sha256": digest})
    withdrawing.cancel(unit, case, CancelAsked(f"schedule:{found.schedule}"))
    cases.commit(unit, case, ())


def _drop(unit: Unit, found: Schedule, why: str, actor: dict[str, str], person: str) -> None:
    schedules.settle(unit, found.schedule, "dropped", None)
    body = {"schedule": found.schedule, "workflow": found.workflow, "person": person, "why": why}
    entries.note(unit, f"template/{found.workflow}", Fact("schedule.dropped", actor, body))
