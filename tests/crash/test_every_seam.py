"""P5: a worker killed at any instruction loses nothing and repeats nothing: at most one effect per key, or a person is asked."""

from __future__ import annotations

import pytest

from engine.errors import Conflict, Refused
from governance.store.case import FenceLost
from governance.store.dispatch import Dispatch
from tests.kit.warm import Warm
from tests.kit.world import World


def ready_to_close(world: World) -> str:
    """A run whose two keys for the customer-visible close have just been turned."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    return run


def test_the_outside_commits_and_dies_before_it_answers_and_the_worker_is_killed_there(
    world: World, warm: Warm
) -> None:
    """Must show 5: one write, the item is unknown, a person says it happened, the run ends."""
    run = ready_to_close(world)
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    # Right after the call returned: nothing of the outcome is recorded when the worker dies there.
    assert warm.drain(world, only="after PATCH", at=1).killed
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


def test_a_person_may_not_speak_for_their_own_effect(world: World) -> None:
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
