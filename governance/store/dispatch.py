"""The only reads across tenants: which work is runnable, which clock is due, which tenant a door leads to. Ids, ranks and times only."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from governance import clock
from governance.store import turns
from governance.store.unit import Database


@dataclass(frozen=True, slots=True)
class Lease:
    """A claimed work item: the epoch is the fence that every later write checks."""

    tenant: str
    run: str
    item: str
    stage: str
    owner: str
    epoch: int
    faults: int
    taken_over: bool
    until: datetime.datetime
    now: datetime.datetime


# Every item here has its turn, and so its place under every cap. A lease that ran out is taken over first. The clock of the
# turns stands where the newest claimed item stands; two that set it at once may set it back a little, which costs nothing.
claim = """
with lost as (
  select tenant, run, item, stage, true as lost from work
   where state = 'leased' and lease_until < statement_timestamp() and (stage = 'seal') = :seals
   order by lease_until limit :n for update skip locked),
next as (
  select tenant, run, item, stage, false as lost from work where {next} limit :n for update skip locked),
picked as (select * from lost union all (select * from next limit greatest(0, :n - (select count(*) from lost)))),
held as (
  update work w set state = 'leased', owner = :owner,
         epoch = greatest(w.epoch + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
         lease_until = clock_timestamp() + make_interval(secs => :ttl)
    from picked p where w.tenant = p.tenant and w.run = p.run and w.item = p.item and w.stage = p.stage
  returning w.tenant, w.run, w.item, w.stage, w.owner, w.epoch, w.faults, p.lost, w.lease_until, w.turn),
clock as (select setval('turn_clock', newest) from (select max(turn) as newest from held) h, turn_clock c where newest > c.last_value)
select tenant, run, item, stage, owner, epoch, faults, lost, lease_until, clock_timestamp(), (select count(*) from clock) from held
 order by turn, tenant, run
"""
_next = "state = 'ready' and turn is not null and eligible_at <= clock_timestamp() order by turn, tenant, run"
_next_seal = "state = 'ready' and stage = 'seal' and eligible_at <= statement_timestamp() order by eligible_at"
_claim = sa.text(claim.format(next=_next))
_claim_seals = sa.text(claim.format(next=_next_seal))
# In the order in which a commit of several runs locks them, so that a heartbeat and a commit of one worker never wait in a circle.
_extend = sa.text("""
with mine as (
  select w.tenant, w.run, w.item, w.stage
    from unnest(cast(:tenants as text[]), cast(:runs as text[]), cast(:items as text[]), cast(:stages as text[]),
                cast(:epochs as bigint[])) as h (tenant, run, item, stage, epoch)
    join work w on w.tenant = h.tenant and w.run = h.run and w.item = h.item and w.stage = h.stage and w.epoch = h.epoch
     and w.owner = :owner and w.state = 'leased' and w.lease_until > clock_timestamp()
   order by w.tenant, w.run, w.item, w.stage for update of w)
update work w set lease_until = clock_timestamp() + make_interval(secs => :ttl)
  from mine m where w.tenant = m.tenant and w.run = m.run and w.item = m.item and w.stage = m.stage
""")


_levels = sa.text("""
select count(*) filter (where ready) as work_ready,
       coalesce(extract(epoch from clock_timestamp() - min(eligible_at) filter (where ready)), 0)::float8 as work_ready_seconds,
       count(*) filter (where state = 'ready' and not ready) as work_later,
       count(*) filter (where state = 'leased' and not expired) as work_leased,
       count(*) filter (where state = 'leased' and expired) as work_expired,
       count(*) filter (where state = 'parked') as work_parked,
       count(*) filter (where stage = 'seal' and faults > 0) as seal_failing,
       (select coalesce(extract(epoch from clock_timestamp() - min(at) filter (where at < clock_timestamp())), 0)::float8 from due)
         as due_overdue_seconds,
       (select count(*) from outbox_due where eligible_at <= clock_timestamp()) as outbox_ready,
       (select coalesce(extract(epoch from clock_timestamp() - min(eligible_at) filter (where eligible_at < clock_timestamp())), 0)::float8
          from outbox_due) as outbox_ready_seconds
  from (select state, stage, faults, eligible_at, state = 'ready' and eligible_at <= clock_timestamp() as ready,
               coalesce(lease_until < clock_timestamp(), false) as expired from work) w
""")

_due = sa.text("select tenant, kind, ref from due where at <= statement_timestamp() order by at limit :n")
# A few of each tenant that has something to send, so that a long queue of one keeps nobody else waiting.
_posts = sa.text("""
with recursive has as (
  (select tenant from outbox_due order by tenant limit 1)
  union all
  select (select o.tenant from outbox_due o where o.tenant > has.tenant order by o.tenant limit 1) from has
   where has.tenant is not null),
next as (
  select d.tenant, d.id, d.eligible_at, row_number() over (partition by d.tenant order by d.eligible_at, d.id) as turn
    from has cross join lateral (
      select o.tenant, o.id, o.eligible_at from outbox_due o
       where o.tenant = has.tenant and o.eligible_at <= statement_timestamp() order by o.eligible_at, o.id limit :each) d),
picked as (
  select o.tenant, o.id from next n join outbox_due o on o.tenant = n.tenant and o.id = n.id
   where o.eligible_at <= statement_timestamp() order by n.turn, n.eligible_at limit :n for update of o skip locked)
update outbox_due o set eligible_at = clock_timestamp() + make_interval(secs => :hold)
  from picked p where o.tenant = p.tenant and o.id = p.id returning o.tenant, o.id
""")


class Dispatch:
    """The cross-tenant side of the store, always under the role tk_dispatch."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._given_at = float("-inf")

    def claim(
        self, owner: str, n: int, lease_seconds: float, *, seals: bool = False, turns_every: float = 0.0
    ) -> list[Lease]:
        """Up to n items whose turn it is, now leased to `owner`, lost leases first. Seals are claimed apart: a slow bucket holds no run.

        Turns are given first, `turns_every` seconds apart at least, and at once when there are too few of them.
        """
        if seals:
            return self._claimed(owner, n, lease_seconds, seals=True)
        fresh = clock.monotonic() - self._given_at >= turns_every
        if fresh:
            self.give_turns()
        leases = self._claimed(owner, n, lease_seconds)
        if not fresh and len(leases) < n:
            self.give_turns()
            leases += self._claimed(owner, n - len(leases), lease_seconds)
        return leases

    def _claimed(self, owner: str, n: int, lease_seconds: float, *, seals: bool = False) -> list[Lease]:
        with self._database.across("tk_dispatch") as connection:
            how = _claim_seals if seals else _claim
            rows = connection.execute(how, {"owner": owner, "n": n, "ttl": lease_seconds, "seals": seals}).all()
        return [Lease(*row[:-1]) for row in rows]

    def give_turns(self) -> int:
        """Let those who waited longest by their share go next, as far as caps leave places; how many turns were given."""
        self._given_at = clock.monotonic()
        with self._database.across("tk_dispatch") as connection:
            return turns.give_turns(connection)

    def extend(self, owner: str, held: Sequence[Lease], lease_seconds: float) -> int:
        """Extend these leases as far as they are still ours; one statement per worker. How many were extended."""
        if not held:
            return 0
        columns: dict[str, list[Any]] = {
            "tenants": [one.tenant for one in held], "runs": [one.run for one in held], "items": [one.item for one in held],
            "stages": [one.stage for one in held], "epochs": [one.epoch for one in held],
        }  # fmt: skip
        with self._database.across("tk_dispatch") as connection:
            return connection.execute(_extend, {**columns, "owner": owner, "ttl": lease_seconds}).rowcount

    def levels(self) -> dict[str, float]:
        """How much waits and for how long, over all tenants together: the names of governance.metrics."""
        with self._database.across("tk_dispatch") as connection:
            return {name: float(value) for name, value in connection.execute(_levels).one()._mapping.items()}

    def route(self, kind: str, ref: str) -> str | None:
        """The tenant an outside identity leads to."""
        with self._database.across("tk_dispatch") as connection:
            found = connection.execute(
                sa.text("select tenant from route where kind = :kind and ref = :ref"), {"kind": kind, "ref": ref}
            )
            return found.scalar_one_or_none()

    def due(self, n: int) -> Sequence[tuple[str, str, str]]:
        """(tenant, kind, ref) of clocks that have run out."""
        with self._database.across("tk_dispatch") as connection:
            rows = connection.execute(_due, {"n": n}).all()
        return [(row[0], row[1], row[2]) for row in rows]

    def posts(self, n: int, each: int, hold_seconds: float) -> Sequence[tuple[str, int]]:
        """(tenant, id) of at most n outbox rows to send now and `each` of a tenant, held for this sender until the hold runs out."""
        with self._database.across("tk_dispatch") as connection:
            rows = connection.execute(_posts, {"n": n, "each": each, "hold": hold_seconds}).all()
        return sorted((row[0], int(row[1])) for row in rows)

    def tenants(self) -> Sequence[str]:
        """Every tenant that has a log."""
        with self._database.across("tk_dispatch") as connection:
            return [
                row[0] for row in connection.execute(sa.text("select tenant from audit_head order by tenant")).all()
            ]
