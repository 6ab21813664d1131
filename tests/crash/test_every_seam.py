"""P5: a worker killed at any instruction loses nothing and repeats nothing: at most one effect per key, or a person is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import Conflict, Refused
from governance.store.case import FenceLost
from governance.store.dispatch import Dispatch
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

ROOT = Path(__file__).parents[2]
# Seams of the last stretch (after both keys): intent, effect, receipt with the next intent, the message, the end.
SAMPLE = (1, 2, 3, 4, 5)
ALL = tuple(range(1, 13))


def die(world: World, at: int, directory: Path) -> tuple[int, list[str]]:
    """Let a process of its own work until seam `at`; its exit status and the seams it passed, when it lived."""
    settings = {name: getattr(world.parts.settings, name) for name in type(world.parts.settings).model_fields}
    order = json.dumps({"at": at, "settings": settings, "directory": str(directory)})
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.dying", order],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, -9), done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []


def ready_to_close(world: World) -> str:
    """A run whose two keys for the customer-visible close have just been turned."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    return run


def finish(world: World, run: str) -> str:
    """Restart after the crash: leases run out, work goes on, and a person answers what nobody can know."""
    world.expire_leases()
    for _ in range(40):
        world.drain()
        case = world.case(run)
        if case.ended:
            return case.state
        for promise in case.promises.values():
            if promise.state == "unknown":
                field, text = ("close_code", "Solved (Permanently)") if promise.step == "close" else ("", "")
                happened = field and world.servicenow.record(INCIDENT)[field] == text
                told = f"{world.tenant}: looked it up"
                world.parts.resolve.resolve(
                    world.tenant,
                    world.actor("bo"),
                    run,
                    promise.promise,
                    "happened" if happened or not field else "did_not",
                    told,
                )
        if case.state == "waiting_approval":
            world.approve(run, "bo", "cleo")
        world.hurry()
    raise AssertionError(f"the run did not end: {world.steps(run)}")


def check(world: World, run: str, at: int, directory: Path) -> None:
    code, _ = die(world, at, directory)
    assert code == -9, f"seam {at} is past the end of the stretch"
    assert finish(world, run) == "succeeded"
    assert len(world.writes("close_code")) == 1
    successes = world.rows(
        "select key, count(*) as n from receipt where tenant = :tenant and status = 'ok' group by key"
    )
    assert {row["n"] for row in successes} == {1}
    facts = world.entries(run)
    assert facts[-1] == "run.closed"
    assert facts.count("run.closed") == 1
    assert world.case(run).history.ended


@pytest.mark.parametrize("at", SAMPLE)
def test_a_worker_killed_at_a_seam_of_the_close_is_taken_over(world: World, at: int, tmp_path: Path) -> None:
    check(world, ready_to_close(world), at, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("at", ALL)
def test_a_worker_killed_at_any_seam_of_the_last_stretch_is_taken_over(world: World, at: int, tmp_path: Path) -> None:
    run = ready_to_close(world)
    code, names = die(world, at, tmp_path)
    if code == 0:
        assert at > len(names)
        pytest.skip(f"the stretch has {len(names)} seams only; this one does not exist")
    assert finish(world, run) == "succeeded"
    assert len(world.writes("close_code")) == 1


def test_the_outside_commits_and_dies_before_it_answers_and_the_worker_is_killed_there(
    world: World, tmp_path: Path
) -> None:
    """Must show 5: one write, the item is unknown, a person says it happened, the run ends."""
    run = ready_to_close(world)
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    # Seam 4 is right after the call returned: nothing of the outcome is recorded when the worker dies there.
    code, _ = die(world, 4, tmp_path)
    assert code == -9
    world.servicenow.wait_until_down()
    world.servicenow.restart_if_down()
    assert len(world.writes("close_code")) == 1
    world.expire_leases()
    world.drain()
    case = world.case(run)
    unknown = [p for p in case.promises.values() if p.state == "unknown"]
    assert [p.step for p in unknown] == ["close"]
    assert "effect.unknown" in world.entries(run)
    for _ in range(3):
        world.hurry()
        world.drain()
    assert len(world.writes("close_code")) == 1, "an unknown outcome is never retried blindly"
    told = world.parts.resolve.resolve(
        world.tenant, world.actor("bo"), run, unknown[0].promise, "happened", "I see it closed in ServiceNow"
    )
    assert told.how == "happened"
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1
    assert "effect.resolved" in world.entries(run)


def test_a_person_may_not_speak_for_their_own_effect(world: World, tmp_path: Path) -> None:
    """Resolving is decided like a key: nobody of the lineage, and never twice."""
    run = ready_to_close(world)
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    world.drain()
    world.servicenow.wait_until_down()
    world.servicenow.restart_if_down()
    unknown = next(p for p in world.case(run).promises.values() if p.state == "unknown")
    with pytest.raises(Refused, match="another person"):
        world.parts.resolve.resolve(world.tenant, world.actor("rita"), run, unknown.promise, "happened", "trust me")
    with pytest.raises(Refused):
        world.parts.resolve.resolve(world.tenant, world.actor("aud"), run, unknown.promise, "happened", "I only read")
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, unknown.promise, "did_not", "It is still open")
    with pytest.raises(Refused):
        world.parts.resolve.resolve(world.tenant, world.actor("ana"), run, unknown.promise, "happened", "late")


def test_a_late_result_of_a_worker_that_lost_its_lease_changes_nothing(world: World) -> None:
    """A zombie: its lease ran out and another worker went on; its commit is refused, by the version or by the fence."""
    run = world.start()
    claimed = Dispatch(world.parts.database).claim("zombie", 100, 30)
    lease = next(one for one in claimed if one.run == run)
    drive = world.parts.worker._in_hand(lease)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update work set lease_until = clock_timestamp() - interval '1 second' where tenant = :tenant and run = :run",
            run=run,
        )
    world.until(run, "waiting_approval")
    version = world.case(run).history.version
    drive.decide()
    with pytest.raises(Conflict):
        drive.commit()
    assert world.case(run).history.version == version


def test_the_fence_alone_refuses_a_worker_whose_item_was_taken_over(world: World) -> None:
    """The same when the run has not moved: another owner or another epoch on the item is enough."""
    run = world.start()
    claimed = Dispatch(world.parts.database).claim("zombie", 100, 30)
    lease = next(one for one in claimed if one.run == run)
    drive = world.parts.worker._in_hand(lease)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set epoch = epoch + 1 where tenant = :tenant and run = :run", run=run)
    drive.decide()
    with pytest.raises(FenceLost):
        drive.commit()
    assert world.case(run).history.version == 0
