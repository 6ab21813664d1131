"""Refused clicks, counted: the first of a minute is told at once, the others of that minute become one entry with their number."""

from __future__ import annotations

from collections.abc import Sequence

from governance.store.unit import Unit


def count(unit: Unit, ref: str, who: str, code: str) -> bool:
    """One more refusal of this person at this approval or doubt; whether it is the first of its minute."""
    row = unit.one(
        "insert into refusal (tenant, approval, person, code, minute, count, told) "
        "values (:tenant, :ref, :person, :code, date_trunc('minute', clock_timestamp()), 1, 1) "
        "on conflict (tenant, approval, person, code, minute) do update set count = refusal.count + 1 returning count",
        ref=ref, person=who, code=code,
    )  # fmt: skip
    if row is not None and row[0] == 1:
        return True
    unit.run(
        "insert into due (tenant, kind, ref, at) values (:tenant, 'refusals', :ref, clock_timestamp() + interval '1 minute') "
        "on conflict do nothing",
        ref=ref,
    )
    return False


def untold(unit: Unit, ref: str) -> Sequence[tuple[str, str, int]]:
    """(person, code, how many more) of minutes that are over, told from now on."""
    rows = unit.all(
        "update refusal set told = count where tenant = :tenant and approval = :ref and count > told "
        "and minute < date_trunc('minute', clock_timestamp()) returning person, code, count",
        ref=ref,
    )
    left = unit.one("select 1 from refusal where tenant = :tenant and approval = :ref and count > told", ref=ref)
    if left is not None:
        unit.run(
            "update due set at = clock_timestamp() + interval '1 minute' where tenant = :tenant and kind = 'refusals' and ref = :ref",
            ref=ref,
        )
    return [(row[0], row[1], row[2] - 1) for row in rows]
