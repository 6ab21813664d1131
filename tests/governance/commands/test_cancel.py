"""Cancelling: once, by somebody who may, of a run that is there; what is in flight is finished and nothing new begins."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import Refused, TwokeysError
from governance.store.dispatch import Dispatch
from tests.governance.commands.kit import begin, stored
from tests.kit.world import World


def cancel(world: World, run: str, by: str = "ana") -> str:
    return world.parts.cancel.cancel(world.tenant, world.actor(by), run, "not needed any more")


def test_a_second_cancel_is_refused_and_changes_nothing(world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    assert cancel(world, run) == "canceled"
    before = stored(world)
    with pytest.raises(Refused, match="already canceled") as caught:
        cancel(world, run, "bo")
    assert caught.value.code == "ended"
    assert stored(world) == before


def test_ten_cancels_at_once_are_one(world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    barrier = threading.Barrier(10)

    def go(_: int) -> str:
        barrier.wait()
        try:
            return cancel(world, run)
        except TwokeysError as error:
            return error.code

    with ThreadPoolExecutor(10) as pool:
        said = list(pool.map(go, range(10)))
    assert sorted(said) == ["canceled", *["ended"] * 9]
    assert world.entries(run).count("cancel.requested") == 1
    assert world.entries(run).count("run.closed") == 1


def test_a_run_that_is_over_stays_what_it_came_to(company: World) -> None:
    run = begin(company)
    company.until(run, "succeeded")
    with pytest.raises(Refused, match="already succeeded"):
        cancel(company, run)
    assert company.case(run).state == "succeeded"


@pytest.mark.parametrize("run", ["0" * 32, "nonsense", "", "'; drop table run; --"])
def test_an_unknown_run_is_refused_by_name(company: World, run: str) -> None:
    with pytest.raises(TwokeysError, match="unknown here") as caught:
        cancel(company, run)
    assert (caught.value.code, caught.value.field) == ("unknown_run", "run")


def test_the_reason_is_committed_to_and_not_shown(world: World) -> None:
    run = world.start()
    cancel(world, run)
    bodies = world.rows(
        "select convert_from(body, 'UTF8') as body from entry_pending where tenant = :tenant and chain = :run", run=run
    )
    assert "not needed" not in " ".join(row["body"] for row in bodies)
    assert '"reason_sha256"' in " ".join(row["body"] for row in bodies)


def test_what_is_in_flight_is_finished_first_and_nothing_new_begins(world: World) -> None:
    """C-15: an intent is on record and the call is on its way; the cancel waits for its result and ends the run with it."""
    run = world.start()
    lease = next(
        one for one in Dispatch(world.parts.database).claim(world.parts.worker._name, 100, 30) if one.run == run
    )
    drive = world.parts.worker._in_hand(lease)
    granted = drive.decide_and_commit()
    assert granted is not None

    state = cancel(world, run)
    assert state == "running"
    with pytest.raises(Refused, match="being cancelled; what is in flight is finished first"):
        cancel(world, run, "bo")

    drive.done = (granted, world.parts.worker._tools.hands.execute.perform(granted))
    assert drive.decide_and_commit() is None
    case = world.case(run)
    assert (case.state, case.ended) == ("canceled", True)
    assert world.entries(run).count("effect.receipted") == 1
    world.drain()
    assert world.entries(run)[-1] == "run.closed"
    assert world.entries(run).count("effect.intended") == 1


def test_a_step_that_waits_for_another_try_is_not_tried_again(world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    world.servicenow.plan("too_many_requests", method="PATCH", times=9, seconds=1)
    world.approve(run, "ana")
    world.drain()
    assert world.case(run).state == "failed_retryable"
    assert cancel(world, run) == "canceled"
    for _ in range(3):
        world.hurry()
        world.drain()
    assert world.writes("impact") == []
    assert world.case(run).promises["2"].attempt == 1
