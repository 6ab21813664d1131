"""Everything that is done often reads what it is about and not the past: no table that grows is scanned, and each queue has its index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from structlog.testing import capture_logs

from governance.local import postgres
from governance.stages.tick import Tick
from governance.store import dispatch, turns, views
from governance.store.migrate import driver_url
from governance.wiring import Parts
from tests.kit.crowd import copy_run
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, settle

# The most rows that one deed may read of a table that grows; a run of this size has fewer of each.
rows_max = 400
SEEN = """
select relname::text, seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read from pg_stat_user_tables where relname = any(%s)
"""


class Watch:
    """What the deeds between two looks have read, by table."""

    def __init__(self, world: World, superuser: str, tables: list[str]) -> None:
        self._engine = world.parts.database._engine
        self._look = psycopg.connect(superuser, autocommit=True)
        self._tables = tables

    def close(self) -> None:
        self._look.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Each connection tells its numbers with its next transaction's end, instead of some time later."""

        def tell(_: Any, cursor: Any, *__: Any) -> None:
            cursor.connection.execute("select pg_stat_force_next_flush()")

        event.listen(self._engine, "after_cursor_execute", tell)
        try:
            yield
        finally:
            event.remove(self._engine, "after_cursor_execute", tell)

    def _seen(self) -> dict[str, tuple[int, int]]:
        return {row[0]: (row[1], row[2]) for row in self._look.execute(SEEN, (self._tables,))}

    def faults(self, name: str, deed: Callable[[], object]) -> list[str]:
        before = self._seen()
        with self._told():
            deed()
        after = self._seen()
        found = []
        for table, (scans, rows) in after.items():
            more, read = scans - before[table][0], rows - before[table][1]
            if more:
                found.append(f"{name}: {more} scans of {table}")
            elif read > rows_max:
                found.append(f"{name}: {read} rows of {table}")
        return found


def a_run_with_everything(world: World) -> str:
    run = world.start(ref="first")
    world.drain()
    while world.until(run, "waiting_approval", "succeeded").state == "waiting_approval":
        give_keys(world, run)
        world.drain()
    while world.parts.log.step():
        pass
    world.post()
    return run


def give_keys(world: World, run: str) -> None:
    """As many as are needed, and no more."""
    found = world.waiting(run)
    for name in ("ana", "bo")[: found.asked.keys]:
        assert world.press(found, name).ok


def look(world: World, deed: Callable[[Any], object]) -> None:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        deed(unit)


def deeds(world: World, runs: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What happens all the time, in the order in which it can happen."""
    parts = world.parts
    yield "start", lambda: runs.append(world.start(ref="new"))
    yield "start again", lambda: world.start(ref="new")
    yield "drive to the first question", world.drain
    yield "post the card", world.post
    yield "decide", lambda: give_keys(world, runs[0])
    yield "drive on", world.drain
    yield "drive on after a retry", lambda: (world.hurry(), world.drain())
    yield "claim when nothing waits", lambda: parts.dispatch.claim("nobody", 16, 30)
    yield "claim seals", lambda: parts.dispatch.claim("nobody", 0, 30, seals=True)
    yield "clocks", lambda: Tick(parts.database).step()
    yield "log", parts.log.step
    yield "list of runs", lambda: look(world, lambda u: views.runs(u, state="", workflow="", after=None, limit=50))
    yield (
        "a run's page",
        lambda: look(world, lambda u: (views.run(u, runs[0]), views.steps(u, runs[0]), views.happened(u, runs[0]))),
    )
    yield "what waits for people", lambda: look(world, lambda u: (views.waiting(u, None, 50), views.waiting_count(u)))
    yield "how many are open", lambda: look(world, views.open_counts)
    yield "cancel", lambda: parts.cancel.cancel(world.tenant, world.actor("rita"), world.start(ref="gone"), "")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def old(parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow) -> Iterator[World]:
    """A tenant whose past is made up of copies, which nobody could replay."""
    made = settle(parts, slack_sink, servicenow)
    yield made
    made.forget()


@pytest.mark.parametrize(
    "size", [4_000, pytest.param(200_000, marks=pytest.mark.deep)], ids=["thousands", "1,000,000 items"]
)
def test_no_deed_reads_the_past(
    old: World, postgres_server: postgres.Postgres, database: postgres.Database, size: int
) -> None:
    """The longer one has 1,000,000 finished operations and more."""
    world = old
    first = a_run_with_everything(world)
    grown = copy_run(postgres_server, database, world.tenant, first, size)
    assert {
        "run",
        "journal",
        "promise",
        "action",
        "verdict",
        "intent",
        "receipt",
        "approval",
        "vote",
        "entry",
        "payload",
    } <= set(grown)
    if size > 100_000:
        (count,) = world.rows("select count(*) as n from promise where tenant = :tenant and state = 'succeeded'")
        assert count["n"] >= 1_000_000
    watch = Watch(world, postgres_server.url(postgres.SUPERUSER, database.name), grown)
    runs: list[str] = []
    try:
        faults = [fault for name, deed in deeds(world, runs) for fault in watch.faults(name, deed)]
    finally:
        watch.close()
    assert "\n".join(faults) == ""


# What every worker asks all the time, each with the one index that answers it.
QUEUES = {
    "lines": (str(turns.lines), {"enough": 16}, {"work_waiting", "work_ranked", "work_asleep", "work_pkey"}),
    "next": (str(dispatch._claim), {"owner": "w", "n": 16, "ttl": 30, "seals": False}, {"work_next", "work_leased", "work_pkey"}),
    "seals": (str(dispatch._claim_seals), {"owner": "w", "n": 1, "ttl": 30, "seals": True}, {"work_seals", "work_leased", "work_pkey"}),
    "clocks": (str(dispatch._due), {"n": 100}, {"due_at"}),
    "posts": (str(dispatch._posts), {"n": 10, "each": 4, "hold": 30}, {"outbox_due_tenant", "outbox_due_pkey", "outbox_due_at"}),
}  # fmt: skip
BY_TIME = {"work_asleep", "work_leased", "work_seals", "due_at", "outbox_due_at", "outbox_due_tenant"}
CROWD = """
insert into work (tenant, run, item, stage, workspace, workflow, state, rank, turn, owner, lease_until, eligible_at)
  select 't' || n % 50, 'r' || n, '', case when n % 10 = 0 then 'seal' else 'judge' end, 'main', 'w' || n % 3,
         case when n % 100 < 5 then 'leased' when n % 100 < 50 then 'parked' else 'ready' end, n,
         case when n % 100 between 50 and 60 and n % 10 <> 0 then n end, 'w',
         case when n % 100 < 5 then now() + interval '1 minute' end, now()
    from generate_series(1, 20000) n;
insert into due (tenant, kind, ref, at)
  select 't' || n % 50, 'approval', n::text, now() + n * interval '1 s' from generate_series(1, 20000) n;
insert into outbox_due (tenant, id, eligible_at) select 't' || n % 50, n, now() + n * interval '1 s' from generate_series(1, 20000) n;
"""


@pytest.mark.parametrize("name", QUEUES)
def test_each_queue_is_answered_by_its_own_index(
    fresh_database: postgres.Database, postgres_server: postgres.Postgres, name: str
) -> None:
    """With 20,000 rows in each, most of them not due: no scan, no sort of everything, and no other index."""
    statement, values, indexes = QUEUES[name]
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, fresh_database.name), autocommit=True) as connection:
        connection.execute(CROWD)
        connection.execute("vacuum analyze")
    engine = sa.create_engine(driver_url(fresh_database.app_url))
    with engine.connect() as connection:
        connection.execute(sa.text("set local role tk_dispatch"))
        (plan,) = connection.execute(sa.text(f"explain (format json) {statement}"), values).scalar_one()
        connection.rollback()
    engine.dispose()
    found = list(nodes(plan["Plan"]))
    scanned = {node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"}
    assert scanned <= {"turn_clock"}, "which has one row"
    assert {node["Index Name"] for node in found if "Index Name" in node} <= indexes
    assert all(node["Plan Rows"] <= 1_000 for node in found if node["Node Type"] == "Sort")
    unbound = [node["Index Name"] for node in found if node.get("Index Name") in BY_TIME and "Index Cond" not in node]
    assert unbound == [], "a clock that may differ from row to row filters what was read, and bounds nothing"


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)
