"""P15: caps hold under load: racing workers cannot exceed them, what is over one waits with its reason, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from engine.errors import AuthorError, CallerError, Refused
from engine.limits import lease_seconds
from governance.store import views
from governance.store.dispatch import Dispatch, Lease
from tests.kit.seams import notes
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World, settle


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def caps(world: World, workspace: str = "", weight: int | None = None, **changes: int | None) -> None:
    world.parts.caps.set(world.tenant, world.actor("rita"), workspace, changes, weight)


def begin_many(world: World, n: int) -> list[str]:
    name = world.apply(notes("many", "only"))
    return [world.start(name, value={"sys_id": INCIDENT}, ref=str(k)) for k in range(n)]


def claim(world: World, n: int = 100, owner: str = "racer") -> list[Lease]:
    """Items of this tenant, leased now."""
    leases = Dispatch(world.parts.database).claim(owner, n, lease_seconds)
    return [one for one in leases if one.tenant == world.tenant]


def done(world: World, lease: Lease) -> None:
    """No worker's hands are on the item any more."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update work set state = 'parked', owner = '', lease_until = null, turn = null "
            "where tenant = :tenant and run = :run and item = :item and stage = :stage",
            run=lease.run, item=lease.item, stage=lease.stage,
        )  # fmt: skip


def why(world: World, run: str) -> str:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return views.run(unit, run).held_up


def run_over(world: World, run: str) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update place set over = true where tenant = :tenant and run = :run", run=run)


@pytest.mark.parametrize("scope", ["tenant", "workspace"])
def test_racing_workers_never_hold_more_items_than_max_concurrency(world: World, scope: str) -> None:
    """Eight claimers at once, cap 5: at no look more than five, and all 40 are served in the end."""
    caps(world, "main" if scope == "workspace" else "", max_concurrency=5)
    begin_many(world, 40)
    barrier, over, served, lock = threading.Barrier(8), [], [0], threading.Lock()

    def race(number: int) -> list[Lease]:
        barrier.wait()
        return claim(world, 3, f"racer-{number}")

    def serve(first: list[Lease]) -> None:
        mine = first
        while served[0] < 40:
            for lease in mine:
                held = world.rows("select 1 from work where tenant = :tenant and state = 'leased' and stage <> 'seal'")
                with lock:
                    over.extend(held[5:])
                    served[0] += 1
                done(world, lease)
            mine = claim(world, 3)

    with ThreadPoolExecutor(8) as pool:
        first = [one.result(timeout=60) for one in [pool.submit(race, number) for number in range(8)]]
        assert sum(map(len, first)) == 5, "the cap is reached"
        for one in [pool.submit(serve, leases) for leases in first]:
            one.result(timeout=60)
    assert served == [40]
    assert over == []


def test_what_is_over_max_concurrency_waits_with_its_reason_and_goes_on_when_a_place_is_free(world: World) -> None:
    caps(world, max_concurrency=2)
    runs = begin_many(world, 3)
    held = claim(world)
    assert [one.run for one in held] == runs[:2], "in the order of their arrival"
    assert claim(world) == []
    assert why(world, runs[2]) == f"max_concurrency 2 of tenant {world.tenant}"
    assert why(world, runs[0]) == ""
    done(world, held[0])
    assert [one.run for one in claim(world)] == [runs[2]]
    assert why(world, runs[2]) == ""


def test_a_lease_that_ran_out_keeps_its_place_until_it_is_taken_over(world: World) -> None:
    caps(world, max_concurrency=1)
    first, _ = begin_many(world, 2)
    assert [one.run for one in claim(world)] == [first]
    world.expire_leases()
    (again,) = claim(world)
    assert (again.run, again.taken_over) == (first, True)
    assert claim(world) == []


def test_an_item_that_waits_for_a_later_try_holds_no_place(world: World) -> None:
    caps(world, max_concurrency=1)
    _, second = begin_many(world, 2)
    (lease,) = claim(world)
    world.parts.worker._put_back(lease, "a fault")
    assert [one.run for one in claim(world)] == [second]
    world.hurry()
    assert claim(world) == []


def test_a_workspaces_cap_leaves_the_other_workspaces_alone(world: World) -> None:
    world.parts.admit.workspace(world.tenant, world.actor("rita"), "emea", "Emea")
    name = world.apply(notes("many", "only"))
    runs = [
        world.parts.start.by_hand(
            world.tenant, world.actor("rita"), name, {"sys_id": INCIDENT}, str(k), "main" if k < 3 else "emea"
        ).run
        for k in range(6)
    ]
    caps(world, "emea", max_concurrency=1)
    assert {one.run for one in claim(world)} == {*runs[:4]}
    assert why(world, runs[5]) == "max_concurrency 1 of workspace emea"


def test_more_runs_than_max_concurrent_runs_are_accepted_and_stay_queued(world: World) -> None:
    """C-20: a run that has begun counts until it ends, also while it waits for people."""
    caps(world, max_concurrent_runs=2)
    first, second, third = (world.start(ref=str(n)) for n in range(3))
    world.drain()
    assert [world.case(run).state for run in (first, second, third)] == [
        "waiting_approval",
        "waiting_approval",
        "queued",
    ]
    assert why(world, third) == f"max_concurrent_runs 2 of tenant {world.tenant}"
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), first, "")
    world.drain()
    assert world.case(first).state == "canceled"
    assert world.case(third).state == "waiting_approval"
    assert why(world, third) == ""


def test_racing_workers_never_begin_more_runs_than_may_be_open(world: World) -> None:
    caps(world, max_concurrent_runs=3)
    begin_many(world, 24)
    barrier, begun = threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait()
        begun.extend(one.run for one in claim(world, 2, f"racer-{number}"))

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(race, number) for number in range(8)]:
            one.result(timeout=60)
    begun.extend(one.run for one in claim(world))
    assert len(begun) == len(set(begun)) == 3
    run_over(world, begun[0])
    assert len(claim(world)) == 1


def test_runs_over_max_runs_per_min_begin_when_the_minute_has_passed(world: World) -> None:
    """Any sixty seconds, by the database's clock; a run that has ended still counts for its minute."""
    caps(world, max_runs_per_min=2)
    runs = begin_many(world, 3)
    for lease in claim(world):
        done(world, lease)
        run_over(world, lease.run)
    assert claim(world) == []
    assert why(world, runs[2]) == f"max_runs_per_min 2 of tenant {world.tenant}"
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update place set at = at - interval '59 seconds' where tenant = :tenant")
    assert claim(world) == []
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update place set at = at - interval '1 second' where tenant = :tenant")
    assert [one.run for one in claim(world)] == [runs[2]]


def test_a_cap_that_is_set_late_counts_what_has_begun_before(world: World) -> None:
    begun, second = world.start(ref="1"), world.start(ref="2")
    world.drain()
    third = world.start(ref="3")
    caps(world, max_concurrent_runs=2)
    world.drain()
    assert world.case(third).state == "queued"
    for run in (begun, second):
        world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "")
    world.drain()
    assert world.case(third).state == "waiting_approval"


def test_taking_a_cap_away_lets_everything_begin(world: World) -> None:
    caps(world, max_concurrent_runs=1, max_concurrency=1)
    runs = begin_many(world, 4)
    assert len(claim(world)) == 1
    caps(world, max_concurrent_runs=None, max_concurrency=None)
    assert {one.run for one in claim(world)} == set(runs[1:])


def test_one_tenants_caps_are_nobody_elses(world: World) -> None:
    caps(world, max_concurrency=1)
    begin_many(world, 3)
    other = settle(world.parts, world.slack, world.servicenow)
    begin_many(other, 3)
    leases = Dispatch(world.parts.database).claim("racer", 100, lease_seconds)
    assert [one.tenant for one in leases].count(other.tenant) == 3
    assert [one.tenant for one in leases].count(world.tenant) == 1
    other.forget()


def test_a_workspace_may_only_tighten_and_a_tenant_that_tightens_later_bounds_it(world: World) -> None:
    caps(world, max_concurrency=5)
    with pytest.raises(CallerError, match="6 is more than max_concurrency 5 of tenant") as caught:
        caps(world, "main", max_concurrency=6)
    assert caught.value.field == "max_concurrency"
    caps(world, "main", max_concurrency=4)
    caps(world, max_concurrency=1)
    begin_many(world, 3)
    assert len(claim(world)) == 1


@pytest.mark.parametrize("value", [0, -1, 10**9])
def test_a_cap_of_nothing_is_refused_and_nothing_is_changed(world: World, value: int) -> None:
    caps(world, max_concurrency=5)
    with pytest.raises(CallerError) as caught:
        caps(world, max_concurrency=7, max_runs_per_min=value)
    assert caught.value.field == "max_runs_per_min"
    (row,) = world.rows("select max_concurrency, max_runs_per_min from cap where tenant = :tenant and scope = 'tenant'")
    assert row == {"max_concurrency": 5, "max_runs_per_min": None}


def test_caps_are_an_owners_order_and_stand_in_the_log(world: World) -> None:
    with pytest.raises(Refused):
        world.parts.caps.set(world.tenant, world.actor("ana"), "", {"max_concurrency": 5})
    with pytest.raises(CallerError, match="unknown"):
        caps(world, "nowhere", max_concurrency=5)
    caps(world, weight=3, max_concurrency=5)
    found = world.rows(
        "select convert_from(body, 'UTF8')::json ->> 'type' as type, convert_from(body, 'UTF8')::json -> 'body' as body from entry_pending "
        "where tenant = :tenant and chain = :chain order by chain_seq desc limit 1",
        chain=f"tenant/{world.tenant}",
    )
    assert found[0]["type"] == "caps.changed"
    assert found[0]["body"] == {
        "scope": "tenant", "name": world.tenant, "weight": 3, "max_concurrency": 5, "max_concurrent_runs": 0, "max_runs_per_min": 0,
        "max_writes_per_run": 0,
    }  # fmt: skip


def capped(name: str, block: str, *steps: str) -> str:
    return notes(name, *(steps or ("only",))).replace("steps:", f"caps: {block}\nsteps:")


def test_a_workflows_own_caps_hold_for_its_runs_alone(world: World) -> None:
    name, other = (
        world.apply(capped("tight", "{max_concurrency: 1, max_concurrent_runs: 2}")),
        world.apply(notes("loose", "only")),
    )
    tight = [world.start(name, value={"sys_id": INCIDENT}, ref=str(n)) for n in range(3)]
    loose = [world.start(other, value={"sys_id": INCIDENT}, ref=str(n)) for n in range(3)]
    first = claim(world)
    assert {one.run for one in first} == {tight[0], *loose}
    assert why(world, tight[1]) == "max_concurrency 1 of workflow tight"
    done(world, first[0] if first[0].run == tight[0] else next(one for one in first if one.run == tight[0]))
    (second,) = claim(world)
    done(world, second)
    assert claim(world) == []
    assert why(world, tight[2]) == "max_concurrent_runs 2 of workflow tight"


def test_work_that_a_run_leaves_behind_counts_for_its_workflow_and_keeps_its_place_in_the_line(world: World) -> None:
    """Every item carries its workflow and the moment its run came, not only the first."""
    run = world.start()
    world.drain()
    world.approve(run, "ana")
    (row,) = world.rows(
        "select w.workflow, w.begins, w.asleep, w.rank = (extract(epoch from r.created_at) * 1000000)::bigint as came from work w "
        "join run r using (tenant, run) where w.tenant = :tenant and w.run = :run",
        run=run,
    )
    assert row == {"workflow": "incident-triage", "begins": False, "asleep": False, "came": True}


@pytest.mark.parametrize("given", ["max_concurrency: 6", "max_runs_per_min: 61"])
def test_a_workflow_that_would_loosen_a_cap_is_refused_at_its_line(world: World, given: str) -> None:
    caps(world, max_concurrency=5, max_runs_per_min=60)
    with pytest.raises(
        AuthorError, match=r"workflow\.yaml:\d+:\d+: max_\w+ \d+ is more than max_\w+ \d+ of tenant"
    ) as caught:
        world.apply(capped("wide", f"{{{given}}}"))
    assert given.partition(":")[0] in str(caught.value)
    world.apply(capped("wide", "{max_concurrency: 5, max_runs_per_min: 60}"))


@pytest.mark.parametrize(("tenant", "workspace", "own"), [(1, None, None), (None, 1, None), (None, None, 1), (3, 2, 1)])
def test_a_run_writes_no_more_often_than_the_smallest_cap(
    world: World, tenant: int | None, workspace: int | None, own: int | None
) -> None:
    caps(world, max_writes_per_run=tenant)
    caps(world, "main", max_writes_per_run=workspace)
    text = notes("writes", "first", "second", "third")
    name = world.apply(text.replace("steps:", f"caps: {{max_writes_per_run: {own}}}\nsteps:") if own else text)
    run = world.start(name, value={"sys_id": INCIDENT})
    world.until(run, "failed_terminal")
    assert world.writes("work_notes") == ["first"]
    error = world.case(run).promises["1"].last_error
    whose = f"tenant {world.tenant}" if tenant == 1 else "workspace main" if workspace == 1 else "workflow writes"
    assert error == f"cap_writes_per_run: a run may write 1 times (max_writes_per_run 1 of {whose}), and this one has"


def test_ten_thousand_parked_approvals_and_timers_are_rows_and_no_work(world: World) -> None:
    """Who waits for a person or a time holds no place, no turn and no worker: a claim does not see it."""
    run = world.start()
    world.drain()
    assert world.case(run).state == "waiting_approval"
    assert world.rows("select 1 from work where tenant = :tenant and run = :run", run=run) == []
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "insert into due (tenant, kind, ref, at, run) select :tenant, 'approval', 'parked-' || n, "
            "clock_timestamp() + interval '1 day', :run from generate_series(1, 10000) n",
            run=run,
        )
    before = world.row("select count(*) as n from work where tenant = :tenant")
    assert world.drain() == 0
    assert claim(world) == []
    assert world.row("select count(*) as n from work where tenant = :tenant") == before == {"n": 0}
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("delete from due where tenant = :tenant and ref like 'parked-%'")
