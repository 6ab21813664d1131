"""P5: a worker that stands still past its lease and wakes up later changes nothing that others have gone on with."""

from __future__ import annotations

import signal

import psycopg
import pytest

from governance.stages.tick import Tick
from tests.kit.stories import STORIES, asked_people, check_record, outcome, play
from tests.kit.wait import until
from tests.kit.warm import Ended, Warm
from tests.kit.world import World

STORY = STORIES["allowed"]
PROGRESS = "commit_facts|PATCH"
# Before and after an effect; before and after the commit of its receipt, the first of them with the run's row locked.
SAMPLE = ("before PATCH", "after PATCH", "before commit of commit_facts", "after commit of commit_facts")
HOUR = 3600.0


def stand_still(warm: Warm, world: World, **how: object) -> Ended:
    """A process that plays the story, and stops at a seam with whatever it holds."""
    STORY.publish(world)
    warm.warm(world.tenant)
    ended = warm.play(world, STORY.name, "run", signal=int(signal.SIGSTOP), idle=1.0, **how)
    assert ended.code is None, "the story has no such seam"
    world.expire_leases()
    return ended


def check(world: World, run: str) -> None:
    assert world.writes("work_notes") == ["first", "second", "third"]
    assert set(outcome(world, run).states.values()) == {"succeeded"}
    check_record(world, run)


@pytest.mark.parametrize("where", SAMPLE)
def test_a_worker_that_stood_still_past_its_lease_repeats_nothing(
    sealing_world: World, sealing_warm: Warm, where: str
) -> None:
    """Others look, go on as far as anybody can know, and then it wakes up with its late result."""
    world = sealing_world
    zombie = stand_still(sealing_warm, world, only=where, at=2)
    for _ in range(5):
        world.drain()
        world.hurry()
    assert sealing_warm.go_on(zombie) == 0
    check(world, play(world, STORY, "run"))


@pytest.mark.deep
@pytest.mark.parametrize("at", range(1, 15))
def test_a_worker_that_stood_still_at_any_seam_repeats_nothing(
    sealing_world: World, sealing_warm: Warm, at: int
) -> None:
    """The whole run is over before it wakes up, unless nobody could know what it had done."""
    world = sealing_world
    zombie = stand_still(sealing_warm, world, only=PROGRESS, at=at, sleeps=HOUR)
    run = play(world, STORY, "run")
    assert sealing_warm.go_on(zombie) == 0
    check(world, run)


def test_a_worker_that_wakes_up_after_its_lease_sends_nothing(sealing_world: World, sealing_warm: Warm) -> None:
    """Its last check was before it slept. By now the others have seen that nothing happened, and did it themselves."""
    world = sealing_world
    zombie = stand_still(sealing_warm, world, only="before PATCH", at=2, sleeps=HOUR)
    run = play(world, STORY, "run")
    assert asked_people(world, run) == 1
    assert world.writes("work_notes") == ["first", "second", "third"]
    said = len(sealing_warm.said)
    assert sealing_warm.go_on(zombie) == 0
    check(world, run)
    lines = [line for line in sealing_warm.said[said:].splitlines() if "late outcome" in line]
    assert [("outcome=error" in line) for line in lines] == [True]
    assert "stage failed" not in sealing_warm.said[said:]


def test_a_transaction_that_stands_still_is_ended_by_the_database(sealing_world: World, sealing_warm: Warm) -> None:
    """It holds the run's row, so nobody else could go on with the run for as long as it stands."""
    world = sealing_world
    zombie = stand_still(sealing_warm, world, only="before commit of commit_facts", at=2)
    until(lambda: _idle_in_transaction(world) == 0, 10)
    run = play(world, STORY, "run")
    assert sealing_warm.go_on(zombie) == 0
    check(world, run)


def _idle_in_transaction(world: World) -> int:
    with psycopg.connect(world.parts.settings.database_url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("where", ["before commit", "after commit"])
def test_of_two_schedulers_one_stands_still_and_each_clock_is_heard_once(world: World, warm: Warm, where: str) -> None:
    """Its transaction is ended by the database, the other one tells the run, and waking up it finds nothing due."""
    run = world.start()
    world.until(run, "waiting_approval")
    approval = world.waiting(run).asked.id
    with psycopg.connect(world.parts.settings.database_url) as connection:
        connection.execute("select set_config('tk.tenant', %s, false)", [world.tenant])
        connection.execute("update approval set expires_at = clock_timestamp() where approval = %s", [approval])
        connection.execute("update due set at = clock_timestamp() where ref = %s", [approval])
    stopped = warm.work(
        {"do": "tick", "tenant": world.tenant, "only": where, "at": 1, "signal": int(signal.SIGSTOP), "idle": 1.0}
    )
    assert stopped.code is None
    tick = Tick(world.parts.database)
    until(lambda: tick.step() == 0 and world.entries(run).count("approval.expired") == 1, 15)
    assert warm.go_on(stopped) == 0
    while tick.step():
        pass
    world.drain()
    assert world.case(run).state == "failed_terminal"
    facts = world.entries(run)
    assert facts.count("approval.expired") == 1
    assert facts.count("run.closed") == 1
