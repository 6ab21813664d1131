"""An attempt that certainly failed is made again, later, four times at most and never past its deadline; anything else is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.limits import retry_delays_seconds
from governance.connectors import servicenow as connector
from governance.store.dispatch import Dispatch
from tests.governance.stages.kit import attempts, begin, one_step, receipts, wait_seconds
from tests.kit.world import World

SLOW = {"fault": "slow", "seconds": 4}


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    """The connector of this module gives up earlier; a slow answer takes longer than that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector, "_seconds", 1.5)
        yield


def refuse(world: World, times: int = 1, seconds: int = 0, method: str = "PATCH") -> None:
    """The stand-in turns the next requests away before it does anything."""
    world.servicenow.plan("too_many_requests", method=method, times=times, seconds=seconds)


def test_a_refused_attempt_is_made_again_and_there_is_one_effect(world: World) -> None:
    run = begin(world, one_step("again"))
    refuse(world)
    world.drain()
    case = world.case(run)
    assert (case.state, case.promises["0"].state) == ("failed_retryable", "failed_retryable")
    assert case.promises["0"].last_error.startswith("rate_limited: ")
    assert attempts(world, run) == [("Started", 1), ("Retrying", 1)]
    # Until it is due nobody takes it up: the wait is in the database and sleeps in no worker.
    assert world.drain() == 0

    world.until(run, "succeeded")
    assert attempts(world, run) == [("Started", 1), ("Retrying", 1), ("Started", 2), ("Completed", 2)]
    assert receipts(world, run) == [(1, 1, "error"), (2, 1, "ok")]
    assert world.writes("urgency") == ["1"]
    assert [kind for kind in world.entries(run) if kind.startswith("effect")] == [
        "effect.intended", "effect.receipted", "effect.retried", "effect.intended", "effect.receipted",
    ]  # fmt: skip
    assert len(world.rows("select 1 from intent where tenant = :tenant and run = :run", run=run)) == 1


def test_an_attempt_is_judged_again_before_it_is_made_again(world: World) -> None:
    """P4: after any wait policy speaks again; here somebody threw the switch in between."""
    run = begin(world, one_step("switched"))
    refuse(world)
    world.drain()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")
    world.until(run, "failed_terminal")
    assert world.writes("urgency") == []
    assert "kill_switch" in world.steps(run)["only"]
    purposes = world.rows("select purpose from verdict where tenant = :tenant and run = :run order by n", run=run)
    assert [row["purpose"] for row in purposes] == ["enforce", "recheck"]


def test_after_four_attempts_it_is_over(world: World) -> None:
    run = begin(world, one_step("exhausted"))
    refuse(world, times=20)
    case = world.until(run, "failed_terminal")
    assert (case.promises["0"].state, case.promises["0"].attempt) == ("failed_terminal", 4)
    assert case.promises["0"].last_error.startswith("rate_limited: ")
    assert receipts(world, run) == [(n, 1, "error") for n in (1, 2, 3, 4)]
    started = [one for one in attempts(world, run) if one[0] != "Retrying"]
    assert started == [("Started", 1), ("Started", 2), ("Started", 3), ("Started", 4), ("Completed", 4)]
    assert attempts(world, run).count(("Retrying", 4)) == 0
    assert world.writes("urgency") == []
    assert world.entries(run)[-1] == "run.closed"


@pytest.mark.parametrize("most", [1, 2])
def test_an_author_may_allow_fewer(world: World, most: int) -> None:
    run = begin(world, one_step(f"fewer-{most}", f", retry: {{max_attempts: {most}}}"))
    refuse(world, times=20)
    world.until(run, "failed_terminal")
    assert receipts(world, run) == [(n + 1, 1, "error") for n in range(most)]


def test_the_waits_grow_and_carry_a_little_chance(world: World) -> None:
    run = begin(world, one_step("growing"))
    refuse(world, times=20)
    for least in retry_delays_seconds:
        world.drain()
        assert least - 2 < wait_seconds(world, run) <= least * 1.2
        world.hurry()


def test_a_server_that_names_a_later_time_is_heard(world: World) -> None:
    run = begin(world, one_step("later"))
    refuse(world, seconds=600)
    world.drain()
    assert 590 < wait_seconds(world, run) <= 600
    world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]


def test_a_server_that_names_an_earlier_time_does_not_hurry_us(world: World) -> None:
    run = begin(world, one_step("earlier"))
    refuse(world, seconds=1)
    world.drain()
    assert wait_seconds(world, run) > retry_delays_seconds[0] - 2


@pytest.mark.parametrize(("deadline", "asked"), [(60, 3), (3600, 7200)])
def test_past_the_deadline_nothing_is_tried(world: World, deadline: int, asked: int) -> None:
    """The next try would come too late: it is over now, with the reason, instead of after a wait for nothing."""
    run = begin(world, one_step(f"deadline-{deadline}", f", deadline_s: {deadline}"))
    refuse(world, times=20, seconds=asked)
    if deadline == 60:
        world.drain()
        with world.parts.database.unit(world.tenant) as unit:
            unit.run(
                "update promise set deadline_at = clock_timestamp() + interval '20 seconds' where tenant = :tenant"
            )
        world.hurry()
    world.drain()
    case = world.case(run)
    assert (case.state, case.promises["0"].state) == ("failed_terminal", "failed_terminal")
    assert len(receipts(world, run)) == (2 if deadline == 60 else 1)
    assert world.writes("urgency") == []


def test_what_would_be_refused_again_is_not_tried_again(world: World) -> None:
    run = begin(world, one_step("refused", target="0" * 32))
    world.drain()
    case = world.case(run)
    assert case.state == "failed_terminal"
    assert case.promises["0"].last_error.startswith("target_not_found")
    # It showed when the world was looked at, so nothing was intended: denied and done in one commit.
    assert receipts(world, run) == []


@pytest.mark.parametrize("fault", [{"fault": "error_500"}, SLOW, {"fault": "drop_connection"}])
def test_a_write_that_may_have_happened_is_never_repeated(world: World, fault: dict[str, Any]) -> None:
    """P5: a 500 after the commit, a lost answer, a time-out: unknown, however often its time comes."""
    run = begin(world, one_step("unknown"))
    world.servicenow.plan(**fault, method="PATCH")
    world.drain()
    for _ in range(3):
        world.hurry()
        world.drain()
    case = world.case(run)
    assert case.promises["0"].state == "unknown"
    assert not case.ended
    assert attempts(world, run) == [("Started", 1)]
    assert receipts(world, run)[0] == (1, 1, "unknown")
    assert {status for _, _, status in receipts(world, run)} == {"unknown"}
    assert len(world.writes("urgency")) == (0 if fault["fault"] == "error_500" else 1)
    assert "effect.unknown" in world.entries(run)


def test_an_unknown_write_is_cleared_up_by_the_version_when_it_can_no_longer_be_on_the_road(world: World) -> None:
    """Unchanged proves "did not happen" only after the time in which an attempt may still arrive."""
    run = begin(world, one_step("cleared"))
    world.servicenow.plan("error_500", method="PATCH")
    world.drain()
    world.hurry()
    world.drain()
    assert world.case(run).promises["0"].state == "unknown"
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update promise set started_at = started_at - interval '1 hour' where tenant = :tenant")
        unit.run(
            "update work set state = 'ready', eligible_at = clock_timestamp() where tenant = :tenant and run = :run",
            run=run,
        )
    world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]
    assert receipts(world, run)[-1] == (2, 1, "ok")
    assert (1, 2, "rejected") in receipts(world, run)


def test_a_person_who_says_that_it_did_not_happen_lets_it_be_tried_again(world: World) -> None:
    run = begin(world, one_step("told"))
    world.servicenow.plan("error_500", method="PATCH")
    world.drain()
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, "0", "did_not", "The log shows no request")
    world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]
    assert receipts(world, run) == [(1, 1, "unknown"), (1, 2, "rejected"), (2, 1, "ok")]


# --- reads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"fault": "error_500"}, SLOW, {"fault": "drop_connection"}])
def test_a_read_that_failed_is_made_again(world: World, fault: dict[str, Any]) -> None:
    run = begin(world, one_step("reading", operation="lookup"))
    world.servicenow.plan(**fault, method="GET")
    world.drain()
    assert world.case(run).state == "failed_retryable"
    world.until(run, "succeeded")
    assert attempts(world, run) == [("Started", 1), ("Retrying", 1), ("Started", 2), ("Completed", 2)]


def test_a_read_whose_worker_died_is_simply_read_again(world: World) -> None:
    """Reading twice does no harm, so nobody is asked what happened."""
    run = begin(world, one_step("dying", operation="lookup"))
    worker = world.parts.worker
    lease = next(one for one in Dispatch(world.parts.database).claim(worker._name, 100, 30) if one.run == run)
    assert worker._in_hand(lease).decide_and_commit() is not None
    assert world.case(run).promises["0"].state == "running"
    world.expire_leases()
    world.until(run, "succeeded")
    assert attempts(world, run) == [("Started", 1), ("Retrying", 1), ("Started", 2), ("Completed", 2)]
    assert receipts(world, run) == [(1, 1, "error"), (2, 1, "ok")]
    assert "effect.unknown" not in world.entries(run)


def test_a_write_whose_worker_died_before_the_call_waits_until_it_can_be_known(world: World) -> None:
    run = begin(world, one_step("died"))
    worker = world.parts.worker
    lease = next(one for one in Dispatch(world.parts.database).claim(worker._name, 100, 30) if one.run == run)
    assert worker._in_hand(lease).decide_and_commit() is not None
    world.expire_leases()
    world.drain()
    assert world.case(run).promises["0"].state == "unknown"
    assert world.writes("urgency") == []


# --- before the effect ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"fault": "error_500"}, SLOW, {"fault": "too_many_requests"}])
def test_a_target_that_cannot_be_seen_uses_no_attempt(world: World, fault: dict[str, Any]) -> None:
    """Nothing was intended yet: the journal shows nothing and the step waits with the reason."""
    run = begin(world, one_step("unseen"))
    world.servicenow.plan(**fault, method="GET")
    world.drain()
    case = world.case(run)
    assert (case.state, case.promises["0"].attempt) == ("failed_retryable", 0)
    assert attempts(world, run) == []
    assert 3 < wait_seconds(world, run) <= 6
    world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]


def test_a_target_that_stays_unseen_ends_the_step_at_its_deadline(world: World) -> None:
    run = begin(world, one_step("blind", ", deadline_s: 60"))
    world.servicenow.plan("error_500", method="GET", times=50)
    world.drain()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update promise set deadline_at = clock_timestamp() + interval '1 second' where tenant = :tenant")
    case = world.until(run, "failed_terminal", rounds=3)
    assert case.promises["0"].last_error.startswith("server_error")
    assert receipts(world, run) == []
