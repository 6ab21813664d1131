"""Absences: who is away, until when, and who stands in for them; every change is kept, the newest of a person holds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Absence:
    """One person's absence; without a delegate nobody stands in for them."""

    person: str
    delegate: str
    from_at: datetime.datetime
    until_at: datetime.datetime


def put(unit: Unit, absence: Absence, by_person: str) -> None:
    """From now on this is what holds of this person; two at once wait for each other."""
    unit.run("select 1 from person where tenant = :tenant and person = :person for update", person=absence.person)
    unit.run(
        "insert into away (tenant, person, n, delegate, from_at, until_at, by_person) "
        "select :tenant, :person, coalesce(max(n), 0) + 1, :delegate, :from_at, :until_at, :by from away "
        "where tenant = :tenant and person = :person",
        person=absence.person, delegate=absence.delegate, from_at=absence.from_at, until_at=absence.until_at, by=by_person,
    )  # fmt: skip


def known(unit: Unit) -> dict[str, Absence]:
    """Who is away now or will be, by person."""
    rows = unit.all(
        "select w.person, w.delegate, w.from_at, w.until_at from away w where w.tenant = :tenant and w.until_at > clock_timestamp() "
        "and not exists (select from away x where x.tenant = w.tenant and x.person = w.person and x.n > w.n) order by w.until_at"
    )
    return {row[0]: Absence(*row) for row in rows}
