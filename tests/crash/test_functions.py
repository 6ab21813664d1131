"""P5, P8: the documented workflow in Python with its worker killed at sampled seams: nothing is lost, nothing happens twice."""

from __future__ import annotations

import datetime
import random
import re
from typing import Any

import pytest

from engine.journal.history import History
from engine.journal.invariants import guards, violations
from engine.kernel import Files
from governance.stages.tick import Tick
from governance.store.unit import Unit
from tests.flow.test_workflows_in_python import publish
from tests.kit.servicenow import INCIDENT
from tests.kit.warm import ROOT, Warm
from tests.kit.world import World

EXAMPLE, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "workflows.md").read_text(), flags=re.DOTALL)
# What the progress of a run consists of; all the rest has its turn in test_seams_of_stories.py.
PROGRESS = "commit_facts|PATCH"
INCIDENTS = [INCIDENT, "9" * 32, INCIDENT]
# Of the fan-out: the intent of the first effect, the effect, its receipt, and those of the next ones.
SAMPLE = (2, 3, 4, 8)
ALL = tuple(range(1, 17))


def begin(world: World) -> str:
    name = world.parts.publish.apply(world.tenant, world.actor("rita"), EXAMPLE.encode(), "first_two.py").name
    given = {"incidents": INCIDENTS, "question": f"Who can help {world.tenant}?"}
    return world.start(name, value=given)


def sleepers(world: World, run: str) -> int:
    return len(list(world.case(run).history.open_timers()))


def fan_out(world: World, run: str) -> None:
    """Go on after the crash until the workflow sleeps and none of its operations is open."""
    world.expire_leases()
    for _ in range(60):
        world.drain()
        case = world.case(run)
        for promise in case.promises.values():
            if promise.state == "unknown":
                # An appended note cannot be found again by looking, so a person has to say.
                happened = question(world) > len([p for p in case.promises.values() if p.state == "succeeded"])
                world.parts.resolve.resolve(
                    world.tenant,
                    world.actor("bo"),
                    run,
                    promise.promise,
                    "happened" if happened else "did_not",
                    "I looked",
                )
        if sleepers(world, run) and not list(case.history.open_invokes()):
            return
        world.hurry()
    raise AssertionError(f"the workflow does not come to its sleep: {world.steps(run)}")


def question(world: World) -> int:
    """How often the question was written to an incident."""
    return len([note for note in world.writes("work_notes") if world.tenant in note])


def wake(world: World, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """A day passes for the table of clocks and for the journal's guard alike: the stored time is moved, never the guard."""
    case = world.case(run)
    (timer,) = case.history.open_timers()
    now = Unit.now
    later = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=timer.fire_at + 1)
    monkeypatch.setattr(Unit, "now", lambda unit: max(now(unit), later))
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'timer'")
    Tick(world.parts.database).step()
    monkeypatch.setattr(Unit, "now", now)
    assert sleepers(world, run) == 0


def end(world: World, monkeypatch: pytest.MonkeyPatch, run: str) -> Any:
    wake(world, monkeypatch, run)
    world.drain()
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "last-word", "enough")
    case = world.until(run, "succeeded")
    assert violations(case.stored) == []
    assert guards(case.stored, case.history.execution) == []
    assert History.load(case.history.execution, case.stored).state() == case.history.state()
    value = Files(case.origin.salt_key, case.payloads).result(getattr(case.stored[-1].event, "result", "")).value
    assert value["word"] == "enough"
    assert len(value["answers"]) == 2
    facts = world.entries(run)
    assert facts.count("run.closed") == 1
    assert facts[-1] == "run.closed"
    return value


@pytest.mark.parametrize("at", SAMPLE)
def test_a_worker_killed_at_a_seam_of_the_fan_out_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, warm: Warm
) -> None:
    run = begin(world)
    assert warm.drain(world, at=at, only=PROGRESS).killed, f"seam {at} is past the end of the stretch"
    fan_out(world, run)
    assert question(world) == 3
    end(world, monkeypatch, run)
    assert question(world) == 3


def test_a_worker_killed_while_the_last_turn_is_committed_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, warm: Warm
) -> None:
    run = begin(world)
    fan_out(world, run)
    wake(world, monkeypatch, run)
    world.drain()
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "last-word", "enough")
    assert warm.drain(world, at=1, only=PROGRESS).killed
    assert not world.case(run).ended
    world.expire_leases()
    world.until(run, "succeeded")
    assert question(world) == 3
    again = world.case(run)
    assert History.load(again.history.execution, again.stored).state() == again.history.state()


@pytest.mark.deep
@pytest.mark.parametrize("at", ALL)
def test_a_worker_killed_at_any_seam_of_the_fan_out_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, warm: Warm
) -> None:
    run = begin(world)
    ended = warm.drain(world, at=at, only=PROGRESS)
    if not ended.killed:
        assert at > len(ended.seams)
        pytest.skip(f"the stretch has {len(ended.seams)} seams only; this one does not exist")
    fan_out(world, run)
    end(world, monkeypatch, run)
    assert question(world) == 3


# --- families ---------------------------------------------------------------------------------------------------------------

CHILD = """async def note_it(ctx, input):
    await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": input["note"]}})
    return input["note"]
"""
PARENT = """async def both(ctx, input):
    calls = await ctx.join_set()
    for n in range(2):
        await calls.submit_child("note-it", {"sys_id": input["sys_id"], "note": f"{n} {input['word']}"})
    await calls.submit_child("nobody-published-this", {})
    return [each.value if each.ok else each.error_class for each in await calls.all()]
"""
STILL = """async def still(ctx, input):
    return await ctx.wait_signal("word")
"""
NEST = """async def nest(ctx, input):
    return await ctx.child("nest" if input["deep"] else "still", {"deep": input["deep"] - 1})
"""


def begin_family(world: World) -> str:
    publish(world, CHILD, "note_it.py")
    publish(world, PARENT, "both.py")
    return world.start("both", value={"sys_id": INCIDENT, "word": world.tenant})


def family(world: World, run: str) -> list[str]:
    rows = world.rows("select run from run where tenant = :tenant and root = :run order by depth, run", run=run)
    return [row["run"] for row in rows]


def settle_family(world: World, run: str) -> None:
    """Go on after crashes until the whole family has ended; a person answers what nobody can know."""
    world.expire_leases()
    for _ in range(60):
        world.drain()
        cases = [world.case(each) for each in family(world, run)]
        if all(case.ended for case in cases):
            return
        for case in cases:
            for promise in case.promises.values():
                if promise.state == "unknown":
                    note = Files(case.origin.salt_key, case.payloads).value(getattr(case.stored[0].event, "input", ""))
                    how = "happened" if note["note"] in world.writes("work_notes") else "did_not"
                    world.parts.resolve.resolve(
                        world.tenant, world.actor("bo"), case.origin.run, promise.promise, how, "I looked"
                    )
        world.hurry()
    raise AssertionError([(case.origin.workflow, case.state) for case in cases])


def check_family(world: World, run: str, *states: str) -> None:
    """Every journal sound, one child for each operation, each end told once, nothing left to do."""
    runs = family(world, run)
    for each in runs:
        case = world.case(each)
        assert case.state in states, (case.origin.workflow, case.state)
        assert violations(case.stored) == []
        assert guards(case.stored, case.history.execution) == []
        assert History.load(case.history.execution, case.stored).state() == case.history.state()
        facts = world.entries(each)
        assert facts.count("run.closed") == 1
        assert facts.count("child.started") == facts.count("child.ended")
        assert facts.count("child.started") == len(
            world.rows("select 1 as one from run where tenant = :tenant and parent = :run", run=each)
        )
    assert world.rows("select run, item, stage from work where tenant = :tenant and stage <> 'seal'") == []


def check_both(world: World, run: str) -> None:
    check_family(world, run, "succeeded")
    assert len(family(world, run)) == 3
    case = world.case(run)
    value = Files(case.origin.salt_key, case.payloads).result(getattr(case.stored[-1].event, "result", "")).value
    assert value == [f"0 {world.tenant}", f"1 {world.tenant}", "unknown_workflow"]
    notes = [note for note in world.writes("work_notes") if world.tenant in note]
    assert sorted(notes) == [f"0 {world.tenant}", f"1 {world.tenant}"]


def begin_nest(world: World) -> str:
    """Three runs below one another, the deepest waiting, the first being cancelled."""
    publish(world, STILL, "still.py")
    publish(world, NEST, "nest.py")
    run = world.start("nest", value={"deep": 1})
    world.drain()
    assert len(family(world, run)) == 3
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    return run


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_a_worker_killed_while_a_cancellation_goes_down_and_up_is_taken_over(world: World, at: int, warm: Warm) -> None:
    run = begin_nest(world)
    assert warm.drain(world, at=at, only=PROGRESS).killed, f"seam {at} is past the end of the stretch"
    settle_family(world, run)
    check_family(world, run, "canceled")


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(8))
def test_workers_killed_again_and_again_lose_and_repeat_nothing_of_a_family(
    world: World, seed: int, warm: Warm
) -> None:
    """Killed at seams by chance until one lives to the end."""
    chance = random.Random(seed)
    run = begin_family(world)
    for _ in range(6):
        if not warm.drain(world, at=chance.randint(1, 9), only=PROGRESS).killed:
            break
        world.expire_leases()
        world.hurry()
    settle_family(world, run)
    check_both(world, run)
