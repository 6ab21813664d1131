"""Schedules of a tenant: what somebody wants started when, and when each is due next."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from engine.canonical import decode, encode
from engine.catalog.schedule import Plan
from engine.errors import CallerError
from governance.store.case import SCHEDULE
from governance.store.unit import Row, Unit

_columns = "schedule, workflow, kind, at, zone, catch_up, most, overlap, input, person, next_at, waits, state"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule as it is stored."""

    schedule: str
    workflow: str
    plan: Plan
    input: dict[str, Any]
    person: str
    next_at: datetime.datetime | None
    waits: str  # why it has not fired although it is due
    state: str  # active | done | dropped


def put(
    unit: Unit,
    schedule: str,
    workflow: str,
    plan: Plan,
    given: dict[str, Any],
    person: str,
    zones: str,
    next_at: datetime.datetime,
) -> bool:
    """A new schedule with its clock; False when it is there and active already."""
    known = unit.one(
        "select state from schedule where tenant = :tenant and schedule = :schedule for update", schedule=schedule
    )
    if known is not None and known[0] == "active":
        return False
    if known is None:
        unit.run(
            "insert into schedule (tenant, schedule, workflow, kind, at, zone, zones, catch_up, most, overlap, input, person, next_at) "
            "values (:tenant, :schedule, :workflow, :kind, :at, :zone, :zones, :catch_up, :most, :overlap, :input, :person, :next)",
            schedule=schedule, workflow=workflow, kind=plan.kind, at=plan.when, zone=plan.zone, zones=zones, catch_up=plan.catch_up,
            most=plan.most, overlap=plan.overlap, input=encode(given), person=person, next=next_at,
        )  # fmt: skip
    settle(unit, schedule, "active", next_at)
    return True


def settle(unit: Unit, schedule: str, state: str, next_at: datetime.datetime | None, *, waits: str = "") -> None:
    """Where a schedule stands now; its clock rings again when it is still active."""
    unit.run(
        "update schedule set state = :state, next_at = :next, waits = :waits where tenant = :tenant and schedule = :schedule",
        schedule=schedule, state=state, next=next_at, waits=waits,
    )  # fmt: skip
    if state != "active" or next_at is None:
        unit.run("delete from due where tenant = :tenant and kind = 'schedule' and ref = :ref", ref=schedule)
        return
    ring(unit, schedule, next_at)


def ring(unit: Unit, schedule: str, at: datetime.datetime) -> None:
    """The clock of a schedule rings then."""
    unit.run(
        "insert into due (tenant, kind, ref, at) values (:tenant, 'schedule', :ref, :at) "
        "on conflict (tenant, kind, ref) do update set at = excluded.at",
        ref=schedule, at=at,
    )  # fmt: skip


def load(unit: Unit, schedule: str) -> Schedule:
    """One schedule, its row held."""
    row = unit.one(
        f"select {_columns} from schedule where tenant = :tenant and schedule = :schedule for update", schedule=schedule
    )
    if row is None:
        raise CallerError(
            f"schedule {schedule[:40]} is unknown here", code="unknown_schedule", field="schedule",
            next_step="`twokeys schedule list` shows them",
        )  # fmt: skip
    return _schedule(row)


def listed(unit: Unit, *, workflow: str = "", everything: bool = False) -> list[Schedule]:
    """The schedules, the next to be due first; those that are over only when everything is wanted."""
    rows = unit.all(
        f"select {_columns} from schedule where tenant = :tenant and (:workflow = '' or workflow = :workflow) "
        "and (:everything or state = 'active') order by next_at nulls last, schedule limit 1000",
        workflow=workflow, everything=everything,
    )  # fmt: skip
    return [_schedule(row) for row in rows]


def open_run(unit: Unit, schedule: str) -> str:
    """The newest run that this schedule has started and that goes on; empty when there is none."""
    row = unit.one(
        "select run from run where tenant = :tenant and trigger_type = :kind and starts_with(trigger_ref, :mine) and ended_at is null "
        "order by created_at desc limit 1",
        kind=SCHEDULE, mine=f"{schedule}/",
    )  # fmt: skip
    return "" if row is None else str(row[0])


def _schedule(row: Row) -> Schedule:
    plan = Plan(row[2], row[3], row[4], row[5], row[6], row[7])
    next_at = None if row[10] is None else row[10].astimezone(datetime.UTC)
    return Schedule(row[0], row[1], plan, decode(bytes(row[8])), row[9], next_at, row[11], row[12])
