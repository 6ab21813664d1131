"""P5, P8: the documented workflow in Python with its worker killed at sampled seams: nothing is lost, nothing happens twice."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from engine.journal.history import History
from engine.journal.invariants import guards, violations
from engine.kernel import Files
from governance.stages.tick import Tick
from governance.store.unit import Unit
from tests.crash.test_every_seam import ROOT, die
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

(EXAMPLE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "workflows.md").read_text(), flags=re.DOTALL)
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
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, tmp_path: Path
) -> None:
    run = begin(world)
    code, _ = die(world, at, tmp_path)
    assert code == -9, f"seam {at} is past the end of the stretch"
    fan_out(world, run)
    assert question(world) == 3
    end(world, monkeypatch, run)
    assert question(world) == 3


def test_a_worker_killed_while_the_last_turn_is_committed_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = begin(world)
    fan_out(world, run)
    wake(world, monkeypatch, run)
    world.drain()
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "last-word", "enough")
    code, _ = die(world, 1, tmp_path)
    assert code == -9
    assert not world.case(run).ended
    world.expire_leases()
    world.until(run, "succeeded")
    assert question(world) == 3
    again = world.case(run)
    assert History.load(again.history.execution, again.stored).state() == again.history.state()


@pytest.mark.deep
@pytest.mark.parametrize("at", ALL)
def test_a_worker_killed_at_any_seam_of_the_fan_out_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, tmp_path: Path
) -> None:
    run = begin(world)
    code, names = die(world, at, tmp_path)
    if code == 0:
        assert at > len(names)
        pytest.skip(f"the stretch has {len(names)} seams only; this one does not exist")
    fan_out(world, run)
    end(world, monkeypatch, run)
    assert question(world) == 3
