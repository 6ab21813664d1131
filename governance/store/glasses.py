"""Broken glass: one key where policy wanted more, and the review that two others owe for it until a time."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from engine.gate.approval import reviews_needed
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Glass:
    """One broken glass with what its reviewers have said."""

    approval: str
    run: str
    person: str
    at: datetime.datetime
    due_at: datetime.datetime
    ticket: str
    reason: str
    reviews: tuple[tuple[str, str, str], ...] = ()  # person, how, reason

    @property
    def is_owed(self) -> bool:
        """Whether too few others have looked at it."""
        return len(self.reviews) < reviews_needed


def of(unit: Unit, approval: str) -> Glass | None:
    """The glass that was broken for this request; None when it was not."""
    return next(iter(_read(unit, "and g.approval = :approval", approval=approval)), None)


def owed(unit: Unit) -> list[Glass]:
    """Every glass of the tenant whose review is owed, the oldest debt first."""
    return [one for one in _read(unit, "") if one.is_owed]


def overdue(unit: Unit) -> tuple[str, ...]:
    """The requests whose reviews should have been there by now."""
    rows = unit.all(
        "select g.approval from glass g where g.tenant = :tenant and g.due_at <= clock_timestamp() and "
        "(select count(*) from review r where r.tenant = g.tenant and r.approval = g.approval) < :needed order by g.due_at, g.approval",
        needed=reviews_needed,
    )
    return tuple(row[0] for row in rows)


def _read(unit: Unit, which: str, **values: str) -> list[Glass]:
    rows = unit.all(
        "select g.approval, g.run, g.person, g.at, g.due_at, g.ticket, g.reason from glass g where g.tenant = :tenant "
        + which
        + " order by g.due_at, g.approval",
        **values,
    )
    said: dict[str, list[tuple[str, str, str]]] = {}
    for row in unit.all("select approval, person, how, reason from review where tenant = :tenant order by at, person"):
        said.setdefault(row[0], []).append((row[1], row[2], row[3]))
    return [Glass(row[0], row[1], row[2], row[3], row[4], row[5], row[6], tuple(said.get(row[0], ()))) for row in rows]


def put_review(
    unit: Unit, approval: str, person: str, how: str, at: datetime.datetime, via: str, identity: str, reason: str
) -> None:
    """What one reviewer says."""
    unit.run(
        "insert into review (tenant, approval, person, how, at, via, identity, reason) "
        "values (:tenant, :approval, :person, :how, :at, :via, :identity, :reason)",
        approval=approval, person=person, how=how, at=at, via=via, identity=identity, reason=reason,
    )  # fmt: skip
