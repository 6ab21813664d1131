"""How people decide: how long each decision took, whether the whole request had been before them, and what that comes to."""

from __future__ import annotations

from dataclasses import dataclass

from governance.store.unit import Unit

WHOLE = ("console", "slack_modal")  # doors that show everything, whatever a card had to cut
_days = 30


@dataclass(frozen=True, slots=True)
class Figures:
    """One person's decisions of the last thirty days."""

    person: str
    decisions: int
    median_seconds: int
    viewed: int  # of them, with the whole request before them
    rejected: int


def saw(unit: Unit, approval: str, person: str, via: str) -> bool:
    """Note that this person has had the whole request before them, if this door shows it; whether they ever had."""
    if via in WHOLE:
        unit.run(
            "insert into viewing (tenant, approval, person, via) values (:tenant, :approval, :person, :via) on conflict do nothing",
            approval=approval, person=person, via=via,
        )  # fmt: skip
        return True
    row = unit.one(
        "select 1 from viewing where tenant = :tenant and approval = :approval and person = :person",
        approval=approval,
        person=person,
    )
    return row is not None


def figures(unit: Unit) -> list[Figures]:
    """Everybody who has decided something lately; whoever rejects nothing and needs no time stands out."""
    rows = unit.all(
        "select person, count(*), percentile_cont(0.5) within group (order by seconds), count(*) filter (where viewed), "
        "count(*) filter (where kind <> 'key') from attention where tenant = :tenant "
        "and at > clock_timestamp() - make_interval(days => :days) group by person order by 2 desc, 1",
        days=_days,
    )
    return [Figures(row[0], int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in rows]
