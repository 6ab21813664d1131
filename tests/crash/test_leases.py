"""P5: a lease is held by the drive that works under it and by nobody else: what is lost sight of runs out and is taken over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.errors import OperatorError
from engine.limits import hold_receipt_seconds_max
from governance.drive import Drive
from governance.stages.execute import effect_seconds_max
from governance.stages.judge import Judge
from governance.store.case import FenceLost
from governance.store.dispatch import Dispatch
from tests.kit.seams import (
    age_leases,
    another,
    beat_once,
    before_commit,
    begin,
    during_call,
    intends,
    lose_the_answer,
    notes,
    work,
)  # fmt: skip
from tests.kit.wait import until
from tests.kit.world import World


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def written(world: World) -> list[str]:
    return world.writes("work_notes")


def late_verdict_fails(error: Exception) -> Callable[[pytest.MonkeyPatch], None]:
    """The second step's verdict takes longer than a receipt may wait for it, and then cannot be found, once."""

    def arrange(monkeypatch: pytest.MonkeyPatch) -> None:
        opinion, failed = Judge.opinion, []

        def failing(judge: Judge, case: Any, around: Any, promise: str, found: Any, **how: Any) -> Any:
            if promise == "1" and not failed:
                failed.append(1)
                time.sleep(2 * hold_receipt_seconds_max)
                raise error
            return opinion(judge, case, around, promise, found, **how)

        monkeypatch.setattr(Judge, "opinion", failing)

    return arrange


def call_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(drive: Drive) -> None:
        monkeypatch.undo()
        raise FenceLost("the lease ran out before the call")

    monkeypatch.setattr(Drive, "outlive", lost)


@pytest.mark.parametrize(
    ("arrange", "stage"),
    [
        (late_verdict_fails(OperatorError("the database does not answer", code="database")), "judge"),
        (late_verdict_fails(RuntimeError("a fault of ours")), "judge"),
        (call_is_not_made, "execute"),
    ],
    ids=["an operator's error", "a fault of ours", "no call under a lost lease"],
)
def test_a_drive_that_fails_after_its_first_commit_gives_back_the_lease_it_holds_now(
    world: World, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[pytest.MonkeyPatch], None], stage: str
) -> None:
    """The lease it began with is long done; that of the later item would be held for ever by nobody."""
    arrange(monkeypatch)
    run = begin(world, notes("fails", "first", "second"))
    world.drain()
    (item,) = work(world, run)
    assert (item["stage"], item["state"], item["owner"], item["faults"]) == (stage, "ready", "", 1)
    assert item["wait"] > 0
    world.hurry()
    world.drain()
    if stage == "judge":
        assert world.case(run).state == "succeeded"
        assert written(world) == ["first", "second"]
    else:
        # An intent without its call is looked at and never repeated blindly.
        assert world.case(run).promises["0"].state == "unknown"
        assert written(world) == []


def test_a_commit_whose_answer_is_lost_leaves_a_lease_that_runs_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent is there and nobody here knows: the heart does not keep it, and the next worker looks before anything else."""
    lost = lose_the_answer(monkeypatch, when=intends)
    run = begin(world, notes("lost", "only"))
    world.drain()
    assert lost
    (item,) = work(world, run)
    assert (item["stage"], item["state"], item["owner"]) == ("execute", "leased", world.parts.worker._name)
    assert world.parts.worker._held == {}
    age_leases(world, 5)
    beat_once(world.parts.worker)
    assert work(world, run)[0]["held"] < 5.1
    world.expire_leases()
    another(world).drain()
    assert world.case(run).promises["0"].state == "unknown"
    assert written(world) == []


def test_the_heart_extends_only_what_is_held_and_revives_nothing(world: World) -> None:
    name = world.apply(notes("beating", "only"))
    runs = [world.start(name, value={"sys_id": "9" * 32}, ref=str(n)) for n in range(3)]
    worker = another(world)
    leases = {one.run: one for one in Dispatch(world.parts.database).claim("other", 100, 30)}
    held, lost_sight_of, run_out = runs
    age_leases(world, 5)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update work set lease_until = clock_timestamp() - interval '1 second' where tenant = :tenant and run = :run",
            run=run_out,
        )
    worker._held = {1: leases[held], 2: leases[run_out]}
    beat_once(worker)
    assert work(world, held)[0]["held"] > 25
    assert work(world, lost_sight_of)[0]["held"] < 5.1
    assert work(world, run_out)[0]["held"] < 0


def test_an_expired_lease_commits_no_intent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that slept: its verdict is as old as its lease, so nothing begins, although nobody has taken over yet."""
    expired = before_commit(monkeypatch, world.expire_leases, when=intends)
    calls = during_call(monkeypatch, lambda: None)
    run = begin(world, notes("slept", "only"))
    claimed = Dispatch(world.parts.database).claim(world.parts.worker._name, 100, 30)
    world.parts.worker._guarded(next(one for one in claimed if one.run == run))
    assert expired
    assert calls == []
    assert "effect.intended" not in world.entries(run)
    assert world.rows("select 1 from intent where tenant = :tenant") == []
    world.until(run, "succeeded")
    assert written(world) == ["only"]


def test_a_lease_that_was_taken_over_before_the_call_makes_no_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It paused between its intent and its call: the other worker has looked, and this one leaves the call undone."""
    outlive, other, paused = Drive.outlive, another(world), []

    def pausing(drive: Drive) -> None:
        if not paused:
            paused.append(1)
            drive.until = 0.0  # by the clock that counts a suspend, the lease may be over
            world.expire_leases()
            other.drain()
        outlive(drive)

    monkeypatch.setattr(Drive, "outlive", pausing)
    calls = during_call(monkeypatch, lambda: None)
    run = begin(world, notes("paused", "only"))
    world.drain()
    assert calls == []
    assert written(world) == []
    assert world.case(run).promises["0"].state == "unknown"


def test_a_lease_that_would_not_outlive_the_call_is_extended_first(world: World) -> None:
    run = begin(world, notes("short", "only"))
    worker = another(world)
    lease = next(one for one in Dispatch(world.parts.database).claim("other", 100, 30) if one.run == run)
    drive = worker._in_hand(lease)
    age_leases(world, 2)
    drive.outlive()
    assert work(world, run)[0]["held"] > effect_seconds_max
    extended = drive.until
    drive.outlive()
    assert drive.until == extended, "one that lasts costs no statement"


def test_a_worker_that_stops_in_the_middle_of_a_long_call_keeps_its_lease_until_it_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graceful stop takes nothing new and finishes what is in hand, also when that takes longer than a lease."""
    began, go = threading.Event(), threading.Event()

    def long() -> None:
        began.set()
        assert go.wait(20)

    calls = during_call(monkeypatch, long, sent=False)
    run = begin(world, notes("stopping", "only", "second"))
    worker = another(world, "stopping", lease_seconds=4)
    thread = threading.Thread(target=worker.run, args=((),))
    thread.start()
    try:
        assert began.wait(10)
        worker.stop()
        # Not enough to live on: only a beat after the stop can have made it longer again.
        age_leases(world, 2)
        until(lambda: work(world, run)[0]["held"] > 2.5, 5)
        assert another(world).drain() == 0
    finally:
        go.set()
        thread.join(20)
    assert not thread.is_alive()
    assert len(calls) == 1
    case = world.case(run)
    assert (case.promises["0"].state, case.promises["1"].state) == ("succeeded", "ready")
    assert written(world) == ["only"], "nothing new was begun"
    world.until(run, "succeeded")
    assert written(world) == ["only", "second"]
