"""What the payments of a day come to, by currency: read before a verdict, and again under a lock where an intent adds to it."""

from __future__ import annotations

from engine.errors import Conflict
from engine.gate.action import Action
from governance.store.unit import Database, Unit

# A payment counts from its intent on, also while its outcome is unknown, until it has certainly failed for good.
_spent = """
select coalesce(sum(s.amount_minor), 0) from spending s
  join promise p on p.tenant = s.tenant and p.run = s.run and p.promise = s.promise
 where s.tenant = :tenant and s.currency = :currency and s.at >= date_trunc('day', clock_timestamp(), 'UTC')
   and not (s.run = :run and s.promise = :promise)
   and not (p.state in ('failed_terminal', 'canceled') and coalesce((select r.status from receipt r
     where r.tenant = s.tenant and r.key = s.key and r.run = s.run order by r.attempt desc, r.n desc limit 1), 'unknown')
       not in ('ok', 'unknown', 'timeout'))
"""


def of_others(unit: Unit, action: Action) -> int:
    """What the other payments of today (UTC) come to in the currency of this one."""
    row = unit.one(_spent, currency=action.currency, run=action.run, promise=action.promise)
    assert row is not None
    return int(row[0])


def read(database: Database, action: Action) -> int:
    """The same, before a verdict."""
    with database.unit(action.tenant, write=False) as unit:
        return of_others(unit, action)


def hold(unit: Unit, action: Action, seen: int) -> None:
    """Keep every other payment of this currency waiting until this commit ends; Conflict when the verdict saw another sum."""
    unit.run(
        "select pg_advisory_xact_lock(hashtextextended('spending ' || :tenant || ' ' || :currency, 0))",
        currency=action.currency,
    )
    if of_others(unit, action) != seen:
        raise Conflict("what other payments come to has changed since the verdict", code="version")
