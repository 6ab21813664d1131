"""P10, P15: turns are fair on a real database: who comes late to somebody else's backlog waits for one batch, not for the backlog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from engine.limits import claim_batch, turns_ahead_max
from governance.local import postgres
from governance.store import dispatch, turns
from governance.store.dispatch import Dispatch, Lease
from governance.store.unit import Database

FILL = """
insert into work (tenant, run, item, stage, workspace, workflow, state, rank, begins)
select %s, %s || n, '', 'advance', %s, 'w', 'ready', n, true from generate_series(1, %s) n
"""


class Desk:
    """Tenants with nothing but work."""

    def __init__(self, database: postgres.Database, superuser: str) -> None:
        self.store = Database(database.app_url)
        self.dispatch = Dispatch(self.store)
        self._owner = psycopg.connect(superuser, autocommit=True)
        self._filled = 0

    def arrive(self, tenant: str, n: int, workspace: str = "main") -> None:
        self._filled += 1
        self._owner.execute(FILL, (tenant, f"{workspace}-{self._filled}-", workspace, n))

    def caps(
        self, tenant: str, scope: str = "tenant", name: str = "", *, weight: int = 1, most: int | None = None
    ) -> None:
        self._owner.execute(
            "insert into tenant (tenant, name, environment, salt_key) values (%s, '', 'dev', '') on conflict do nothing",
            (tenant,),
        )
        self._owner.execute(
            "insert into cap (tenant, scope, name, weight, max_concurrency) values (%s, %s, %s, %s, %s)",
            (tenant, scope, name, weight, most),
        )

    def settle(self) -> None:
        self._owner.execute("analyze work")

    def claim(self, n: int = claim_batch) -> list[Lease]:
        return self.dispatch.claim("desk", n, 60)

    def serve(self, n: int) -> Counter[str]:
        """Claim and end so many items; how many of each tenant."""
        served: Counter[str] = Counter()
        while served.total() < n and (leases := self.claim(min(claim_batch, n - served.total()))):
            served.update(one.tenant for one in leases)
            self.end(leases)
        return served

    def end(self, leases: list[Lease]) -> None:
        self._owner.execute(
            "delete from work w using unnest(%s::text[], %s::text[]) d (tenant, run) where w.tenant = d.tenant and w.run = d.run",
            ([one.tenant for one in leases], [one.run for one in leases]),
        )

    def close(self) -> None:
        self._owner.close()
        self.store.close()


@pytest.fixture
def desk(fresh_database: postgres.Database, postgres_server: postgres.Postgres) -> Iterator[Desk]:
    made = Desk(fresh_database, postgres_server.url(postgres.SUPERUSER, fresh_database.name))
    yield made
    made.close()


def test_100_000_queued_items_delay_another_tenants_first_by_no_more_than_one_batch(desk: Desk) -> None:
    desk.arrive("big", 100_000)
    desk.settle()
    desk.serve(3 * claim_batch)
    desk.arrive("late", 1)
    assert "late" in {one.tenant for one in desk.claim()}


def test_100_000_items_of_a_tenant_without_a_free_place_are_not_read(desk: Desk) -> None:
    """Neither statement of a claim looks at more rows than it has turns to give, and the other tenant's item is found."""
    desk.caps("full", most=2)
    desk.arrive("full", 100_000)
    desk.settle()
    assert [one.tenant for one in desk.claim()] == ["full", "full"]
    desk.arrive("other", 1)
    for statement, values in (
        (turns.lines, {"enough": claim_batch}),
        (dispatch._claim, {"owner": "desk", "n": claim_batch, "ttl": 60, "seals": False}),
    ):
        assert rows_read(desk, str(statement), values) < 100
    assert [one.tenant for one in desk.claim()] == ["other"]


def rows_read(desk: Desk, statement: str, values: dict[str, Any]) -> int:
    """What the scans of a statement produced or threw away, as the dispatcher; nothing of it stays done."""
    with desk.store._engine.connect() as connection:
        connection.execute(sa.text("set local role tk_dispatch"))
        (plan,) = connection.execute(sa.text(f"explain (analyze, format json) {statement}"), values).scalar_one()
        connection.rollback()

    def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from nodes(child)

    return int(
        sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in nodes(plan["Plan"]) if "Scan" in node["Node Type"] and node.get("Relation Name") == "work"
        )
    )  # fmt: skip


def test_the_skewed_backlog_serves_every_small_tenant_within_twice_their_number(desk: Desk) -> None:
    """engines.md 3.6: 20,000 items, one tenant owns 95 % of them and came first."""
    desk.arrive("big", 19_000)
    for n in range(199):
        desk.arrive(f"small-{n:03}", 5)
    desk.settle()
    assert len(desk.serve(400)) == 200


def test_shares_are_those_of_the_weights_between_tenants_and_inside_one_between_its_workspaces(desk: Desk) -> None:
    desk.caps("three", weight=3)
    desk.caps("ten", "workspace", "w0", weight=2)
    desk.arrive("three", 600)
    desk.arrive("one", 600)
    for n in range(10):
        desk.arrive("ten", 60, f"w{n}")
    served = desk.serve(320)
    assert abs(served["three"] - 192) <= 8
    assert abs(served["one"] - 64) <= 8
    assert abs(served["ten"] - 64) <= 8
    inside = desk._owner.execute(
        "select workspace, 60 - count(*) from work where tenant = 'ten' group by 1 order by 1"
    ).fetchall()
    assert dict(inside)["w0"] in range(9, 15)
    assert all(count in range(4, 8) for name, count in inside if name != "w0")


def test_a_tenant_that_was_away_starts_where_service_is(desk: Desk) -> None:
    desk.arrive("back", 1)
    desk.arrive("busy", 400)
    desk.serve(200)
    desk.arrive("back", 200)
    served = desk.serve(100)
    assert abs(served["back"] - served["busy"]) <= claim_batch


def test_many_claimers_serve_each_item_once_and_keep_the_shares(desk: Desk) -> None:
    desk.arrive("a", 300)
    desk.arrive("b", 300)

    def worker(_: int) -> list[tuple[str, str]]:
        found = []
        while leases := desk.claim(4):
            found += [(one.tenant, one.run) for one in leases]
            desk.end(leases)
        return found

    with ThreadPoolExecutor(4) as pool:
        served = [one for part in pool.map(worker, range(4)) for one in part]
    assert len(served) == len(set(served)) == 600
    assert Counter(tenant for tenant, _ in served) == {"a": 300, "b": 300}
    assert abs(Counter(tenant for tenant, _ in served[:200])["a"] - 100) <= 40


def test_an_item_that_is_put_back_goes_before_those_that_came_after_it(desk: Desk) -> None:
    desk.arrive("t", 60)
    (first,) = desk.claim(1)
    desk._owner.execute("update work set state = 'ready', owner = '', turn = null where state = 'leased'")
    assert len(desk.claim(40)) == turns_ahead_max - 1, "these have their turns"
    assert desk.claim(1)[0].run == first.run


def test_a_busy_worker_gives_turns_now_and_then_and_at_once_when_there_are_too_few(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that are ahead are claimed without asking for more; nobody waits for the time to come when there are none."""
    given: list[int] = []
    give_turns = turns.give_turns

    def counted(connection: sa.Connection) -> int:
        given.append(give_turns(connection))
        return given[-1]

    monkeypatch.setattr(turns, "give_turns", counted)
    desk.arrive("big", 20)
    assert len(desk.dispatch.claim("desk", 4, 60, turns_every=3600)) == 4
    assert given == [20]
    assert len(desk.dispatch.claim("desk", 4, 60, turns_every=3600)) == 4
    assert given == [20]
    desk.arrive("small", 1)
    assert {one.tenant for one in desk.dispatch.claim("desk", 13, 60, turns_every=3600)} == {"big", "small"}
    assert given == [20, 1]
    assert len(desk.dispatch.claim("desk", 1, 60, turns_every=0)) == 0
    assert len(given) == 3
