"""Give turns to what waits: read what the tenants have under way, let the engine decide, write it down, one short transaction.

Runs under the dispatcher's role, apart from every business transaction. The row of a tenant in `turn` is locked before
anything is counted, and nothing else lets an item begin: so no cap can be exceeded, however many workers ask at once.
Nothing is lost when this transaction is, so it does not wait for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from engine.catalog.caps import TENANT, WORKFLOW, WORKSPACE, Usage
from engine.catalog.turns import Queue, Waiting, give
from engine.limits import turns_ahead_max
from engine.program.caps import Caps
from governance import metrics

# What waits for a turn; the partial index `work_waiting` says the same.
_waits = "state = 'ready' and turn is null and not asleep and stage <> 'seal'"

# A moment that an index is searched by is the statement's: `clock_timestamp()` may differ from row to row, so it filters
# what was read and bounds nothing.
_unhurried = sa.text("set local synchronous_commit = off")
# One look: what slept long enough wakes, and the lines that have something in them are found by skipping from one to the
# next, so that a line of 100,000 costs as much as a line of one. Tenants that have enough turns ahead are left alone.
lines = sa.text(f"""
with recursive woken as (
  update work w set asleep = false from
    (select tenant, run, item, stage from work where state = 'ready' and asleep and eligible_at <= statement_timestamp()
      order by eligible_at limit 1000 for update skip locked) d
   where w.tenant = d.tenant and w.run = d.run and w.item = d.item and w.stage = d.stage returning 1),
line (tenant, workspace, workflow, begins) as (
  (select tenant, workspace, workflow, begins from work where {_waits} order by tenant, workspace, workflow, begins limit 1)
  union all
  select n.tenant, n.workspace, n.workflow, n.begins from line l cross join lateral
    (select tenant, workspace, workflow, begins from work where {_waits}
        and (tenant, workspace, workflow, begins) > (l.tenant, l.workspace, l.workflow, l.begins)
      order by tenant, workspace, workflow, begins limit 1) n)
select (select count(*) from woken), l.tenant, l.workspace, l.workflow, l.begins from (select) one left join line l on
  (select count(*) from (select from work g where g.tenant = l.tenant and g.state = 'ready' and g.turn is not null
    limit :enough) ranked) < :enough
""")
_open = sa.text(
    "insert into turn (tenant, workspace) select t, '' from unnest(cast(:tenants as text[])) t on conflict do nothing"
)
_lock = sa.text(
    "select tenant from turn where tenant = any(cast(:tenants as text[])) and workspace = '' order by tenant for update"
)
under_way = sa.text("""
select last_value,
  (select coalesce(jsonb_agg(to_jsonb(c)), '[]') from cap c where c.tenant = any(cast(:tenants as text[]))),
  (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from turn t where t.tenant = any(cast(:tenants as text[])) and t.workspace <> ''),
  (select coalesce(jsonb_agg(to_jsonb(n)), '[]') from (
     select tenant, workspace, workflow, count(*) as busy, count(*) filter (where state = 'ready') as ranked from (
       select tenant, workspace, workflow, state from work
        where tenant = any(cast(:tenants as text[])) and state = 'leased' and stage <> 'seal'
       union all select tenant, workspace, workflow, state from work
        where tenant = any(cast(:tenants as text[])) and state = 'ready' and turn is not null) w
     group by tenant, workspace, workflow) n)
  from turn_clock
""")
_places = sa.text("""
select tenant, workspace, workflow, count(*) filter (where not over) as runs,
       count(*) filter (where at > clock_timestamp() - interval '1 minute') as fresh from (
  select tenant, workspace, workflow, over, at from place where tenant = any(cast(:tenants as text[])) and not over
  union all select tenant, workspace, workflow, over, at from place
   where tenant = any(cast(:tenants as text[])) and over and at > statement_timestamp() - interval '1 minute') p
 group by tenant, workspace, workflow
""")
heads = sa.text(f"""
select l.tenant, l.workspace, l.workflow, w.run, w.item, w.stage, w.rank,
       l.begins and not exists (select from place p where p.tenant = l.tenant and p.run = w.run) as begins
  from unnest(cast(:tenants as text[]), cast(:workspaces as text[]), cast(:workflows as text[]), cast(:begins as boolean[]))
       as l (tenant, workspace, workflow, begins) cross join lateral
       (select run, item, stage, rank from work w where w.tenant = l.tenant and w.workspace = l.workspace
           and w.workflow = l.workflow and w.begins = l.begins and {_waits} and w.eligible_at <= clock_timestamp()
         order by w.rank, w.run limit :most) w
""")
_give = sa.text("""
with given as (select * from unnest(cast(:tenants as text[]), cast(:runs as text[]), cast(:items as text[]), cast(:stages as text[]),
    cast(:turns as bigint[]), cast(:places as boolean[])) as g (tenant, run, item, stage, turn, place)),
done as (update work w set turn = g.turn from given g where w.tenant = g.tenant and w.run = g.run and w.item = g.item
    and w.stage = g.stage and w.state = 'ready' and w.turn is null
  returning w.tenant, w.run, w.workspace, w.workflow, g.place),
placed as (insert into place (tenant, run, workspace, workflow) select tenant, run, workspace, workflow from done where place
  on conflict do nothing)
select count(*) from done
""")
_reach = sa.text("""
insert into turn (tenant, workspace, reached) select * from unnest(cast(:tenants as text[]), cast(:workspaces as text[]),
  cast(:reached as bigint[])) on conflict (tenant, workspace) do update set reached = excluded.reached
""")
_forget = sa.text(
    "delete from place where tenant = any(cast(:tenants as text[])) and over and at < statement_timestamp() - interval '1 minute'"
)


def give_turns(connection: sa.Connection) -> int:
    """Turns for whoever waits and has a place, as far as one window goes; how many were given. `connection` is the dispatcher's."""
    connection.execute(_unhurried)
    # A tenant that still has a batch of turns ahead is not asked again: its line is longer than what is claimed at once.
    found = connection.execute(lines, {"enough": turns_ahead_max // 2}).all()
    if found[0][0]:
        found = connection.execute(lines, {"enough": turns_ahead_max // 2}).all()
    waiting = [tuple(row[1:]) for row in found if row[1] is not None]
    if not waiting:
        return 0
    tenants = sorted({line[0] for line in waiting})
    _hold(connection, tenants)
    queues, clock = _queues(connection, tenants, waiting)
    given: list[tuple[str, Waiting, int]] = []
    for queue in queues:
        turns = give(queue, clock)
        given += [(queue.tenant, one, turn) for one, turn in turns]
        if len(turns) < len(queue.waiting) and queue.ranked + len(turns) < turns_ahead_max:
            metrics.count("cap_reached")
    if not given:
        return 0
    done = connection.execute(
        _give,
        {
            "tenants": [tenant for tenant, _, _ in given], "runs": [one.run for _, one, _ in given],
            "items": [one.item for _, one, _ in given], "stages": [one.stage for _, one, _ in given],
            "turns": [turn for _, _, turn in given], "places": [one.begins for _, one, _ in given],
        },
    ).scalar_one()  # fmt: skip
    reached = [(queue.tenant, name, turn) for queue in queues for name, turn in queue.reached.items()]
    connection.execute(
        _reach,
        {
            "tenants": [row[0] for row in reached],
            "workspaces": [row[1] for row in reached],
            "reached": [row[2] for row in reached],
        },
    )
    return int(done)


def _hold(connection: sa.Connection, tenants: list[str]) -> None:
    held = connection.execute(_lock, {"tenants": tenants}).all()
    if len(held) < len(tenants):  # the first turns of a tenant ever
        connection.execute(_open, {"tenants": tenants})
        connection.execute(_lock, {"tenants": tenants})


def _queues(
    connection: sa.Connection, tenants: list[str], waiting: Sequence[tuple[Any, ...]]
) -> tuple[list[Queue], int]:
    """The tenants as they are now, after the lock."""
    clock, caps, reached, busy = connection.execute(under_way, {"tenants": tenants}).one()
    queues = {tenant: Queue(tenant, [], reached={}) for tenant in tenants}
    counted = _with_caps(queues, caps)
    for row in reached:
        queues[row["tenant"]].reached[row["workspace"]] = row["reached"]
    for row in busy:
        queue = queues[row["tenant"]]
        queue.ranked += row["ranked"]
        if row["ranked"]:
            queue.busy |= {row["workspace"]}
        _use(queue, row, Usage(concurrency=row["busy"]))
    if counted:
        connection.execute(_forget, {"tenants": sorted(counted)})
        for place in connection.execute(_places, {"tenants": sorted(counted)}).mappings():
            _use(queues[place["tenant"]], place, Usage(runs=place["runs"], runs_this_minute=place["fresh"]))
    found = connection.execute(
        heads,
        {
            "tenants": [line[0] for line in waiting], "workspaces": [line[1] for line in waiting],
            "workflows": [line[2] for line in waiting], "begins": [line[3] for line in waiting], "most": turns_ahead_max,
        },
    )  # fmt: skip
    lines_of: dict[str, list[Waiting]] = {}
    for tenant, workspace, workflow, run, item, stage, rank, begins in found:
        one = Waiting(workspace, workflow, run, item, stage, rank, begins and tenant in counted)
        lines_of.setdefault(tenant, []).append(one)
    for tenant, line in lines_of.items():
        queues[tenant].waiting = line
    return list(queues.values()), int(clock)


def _with_caps(queues: dict[str, Queue], rows: list[dict[str, Any]]) -> set[str]:
    """Put the caps and weights into the queues; the tenants that have a cap on runs, whose places are counted."""
    counted = set()
    weights: dict[str, dict[str, int]] = {}
    for row in rows:
        queue, name = queues[row["tenant"]], "" if row["scope"] == TENANT else row["name"]
        caps = Caps(row["max_concurrency"], row["max_concurrent_runs"], row["max_runs_per_min"])
        queue.caps = {**queue.caps, (row["scope"], name): caps}
        if caps.max_concurrent_runs is not None or caps.max_runs_per_min is not None:
            counted.add(row["tenant"])
        if row["scope"] == TENANT:
            queue.weight = row["weight"]
        elif row["scope"] == WORKSPACE:
            weights.setdefault(row["tenant"], {})[name] = row["weight"]
    for tenant, found in weights.items():
        queues[tenant].weights = found
    return counted


def _use(queue: Queue, row: Any, more: Usage) -> None:
    for scope in ((TENANT, ""), (WORKSPACE, row["workspace"]), (WORKFLOW, row["workflow"])):
        now = queue.used.get(scope, Usage())
        queue.used[scope] = Usage(
            now.concurrency + more.concurrency, now.runs + more.runs, now.runs_this_minute + more.runs_this_minute
        )
