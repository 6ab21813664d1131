"""P15: an outside system is called no more often than its connector declares and its tenant allows; what waits loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from engine.errors import CallerError
from governance.store import paces
from tests.kit.seams import begin, notes
from tests.kit.world import World


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def connect(world: World, calls_per_min: int | None) -> None:
    sn = world.servicenow
    world.parts.admit.connection(world.tenant, "servicenow", "dev1", sn.base_url, sn.user, sn.password, calls_per_min)
    world.parts.reach.forget()


def wait_over(world: World) -> None:
    """As if the next call were due."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update pace set free_at = clock_timestamp() where tenant = :tenant")


def test_effects_over_the_pace_wait_without_using_an_attempt_and_are_made_in_the_end(world: World) -> None:
    connect(world, 1)
    run = begin(world, notes("paced", "first", "second"))
    world.drain()
    case = world.case(run)
    assert world.writes("work_notes") == ["first"]
    row = case.promises["1"]
    assert (row.state, row.attempt) == ("failed_retryable", 0)
    assert row.last_error == "calls_per_min: servicenow dev1 is given no more calls a minute"
    assert row.next_eligible_at is not None
    assert 50 < (row.next_eligible_at - case.now).total_seconds() <= 61
    world.hurry()
    world.drain()
    assert world.writes("work_notes") == ["first"], "to look earlier helps nobody"
    wait_over(world)
    world.hurry()
    world.drain()
    assert world.writes("work_notes") == ["first", "second"]
    assert world.case(run).promises["1"].attempt == 1


@pytest.mark.parametrize("most", [1, 2, 10, 50, 300])
def test_racing_workers_never_make_more_calls_than_a_minute_allows(world: World, most: int) -> None:
    """A minute is played in steps: the row is moved back as time would, beside the time that really passes."""
    take, made, moved, begun = (
        lambda: paces.take(world.parts.database, world.tenant, "c", "i", most),
        0,
        0.0,
        time.monotonic(),
    )
    while moved + time.monotonic() - begun < 58:
        with ThreadPoolExecutor(4) as pool:
            made += sum(waits == 0 for waits in pool.map(lambda _: take(), range(most // 8 + 4)))
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update pace set free_at = free_at - interval '0.9 seconds' where tenant = :tenant")
        moved += 0.9
    assert most * 0.85 - 1 <= made <= most


def test_each_instance_has_a_pace_of_its_own(world: World) -> None:
    database = world.parts.database
    assert paces.take(database, world.tenant, "c", "one", 1) == 0
    assert paces.take(database, world.tenant, "c", "one", 1) > 50
    assert paces.take(database, world.tenant, "c", "two", 1) == 0


def test_what_the_connector_declares_holds_without_a_word_of_the_tenant(world: World) -> None:
    assert world.parts.registry.calls_per_min("slack") == 300
    assert world.parts.registry.calls_per_min("servicenow") is None


@pytest.mark.parametrize("value", [0, -5, True])
def test_a_pace_of_nothing_is_refused_by_name(world: World, value: int) -> None:
    with pytest.raises(CallerError) as caught:
        connect(world, value)
    assert caught.value.field == "calls_per_min"
