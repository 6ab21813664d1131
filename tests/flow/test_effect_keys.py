"""P3, P4, P5: what an effect rests on: its key, its permit, and everything that was true when it was judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.gate.permit import reopened
from engine.gate.verdict import Answer, PolicyFault
from governance.stages import judge as judging
from governance.store import cases
from governance.store.dispatch import Dispatch
from tests.governance.stages.kit import receipts
from tests.kit.seams import before_commit, begin, during_call, intends, notes
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

OWN = ', key: "once-${input.sys_id}"'
NAMED = ', key: "sn:incident:update"'


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def keys(world: World, run: str) -> list[str]:
    rows = world.rows("select key from intent where tenant = :tenant and run = :run order by promise, turn", run=run)
    return [row["key"] for row in rows]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_that_a_failed_run_held_goes_to_one_of_two_newcomers(world: World) -> None:
    """Both were judged while it was free; the second one's intent is refused by the database and it waits."""
    first = begin(world, notes("failed", "note", more=NAMED + ", retry: {max_attempts: 1}"))
    world.servicenow.plan("too_many_requests", method="PATCH")
    world.until(first, "failed_terminal")

    name, worker = world.apply(notes("newcomers", "note", more=NAMED)), world.parts.worker
    runs = [world.start(name, value={"sys_id": INCIDENT}, ref=ref) for ref in ("a", "b")]
    leases = {one.run: one for one in Dispatch(world.parts.database).claim(worker._name, 100, 30)}
    drives = [worker._in_hand(leases[run]) for run in runs]
    assert all(drive.decide() is not None for drive in drives)
    drives[0].commit()
    assert drives[1].decide_and_commit() is None, "its decision is given up and made again"
    assert world.case(runs[1]).promises["0"].last_error.startswith("effect_in_progress")
    held = world.rows("select turn, run from intent where tenant = :tenant order by turn")
    assert held == [{"turn": 1, "run": first}, {"turn": 2, "run": runs[0]}]
    assert world.writes("work_notes") == []


def test_the_numbers_of_receipts_go_on_over_every_run_that_held_the_key(world: World) -> None:
    """(key, attempt, n) names one receipt: a newcomer's first attempt is not the failed run's."""
    first = begin(world, notes("failed", "note", more=NAMED + ", retry: {max_attempts: 1}"))
    world.servicenow.plan("too_many_requests", method="PATCH")
    world.until(first, "failed_terminal")
    second = begin(world, notes("second", "note", more=NAMED))
    world.until(second, "succeeded")
    third = begin(world, notes("third", "note", more=NAMED))
    world.until(third, "succeeded")
    assert receipts(world, first) == [(1, 1, "error")]
    assert receipts(world, second) == [(1, 2, "ok")]
    assert receipts(world, third) == []
    assert "effect.reused" in world.entries(third)
    assert world.writes("work_notes") == ["note"]


def test_one_key_for_two_steps_is_reused_for_the_same_and_refused_for_another_effect(world: World) -> None:
    run = begin(world, notes("twice", "note", "note", 'impact: "1"', more=OWN))
    world.until(run, "failed_terminal")
    steps = world.steps(run)
    assert (steps["step-0"], steps["step-1"]) == ("succeeded", "succeeded")
    assert steps["step-2"].startswith("failed_terminal key_conflict")
    assert world.entries(run).count("effect.reused") == 1
    assert world.writes("work_notes") == ["note"]
    assert world.writes("impact") == []


def test_without_a_key_every_step_of_every_run_has_its_own(world: World) -> None:
    text = notes("default", "note", "note")
    runs = [begin(world, text, ref) for ref in ("a", "b")]
    for run in runs:
        world.until(run, "succeeded")
    found = [key for run in runs for key in keys(world, run)]
    assert len(set(found)) == 4
    assert all(key.endswith(f":{run}.{n}") for run in runs for n, key in enumerate(keys(world, run))), found
    assert world.writes("work_notes") == ["note"] * 4


def test_the_named_template_is_the_seeds_format(world: World) -> None:
    """sn:incident:update:{instance}:{sys_id}:{hash}: nothing of the run is in it."""
    run = begin(world, notes("named", "note", more=NAMED))
    world.until(run, "succeeded")
    (key,) = keys(world, run)
    assert re.fullmatch(rf"sn:incident:update:dev1:{INCIDENT}:[0-9a-f]{{32}}", key)


# --- actions and permits ----------------------------------------------------------------------------------------------


def test_the_same_values_in_two_runs_have_different_digests(world: World) -> None:
    """An action is salted: who knows its digest cannot guess at its values, nor see that two are alike."""
    text = notes("salted", "note", more=NAMED)
    runs = [begin(world, text, ref) for ref in ("a", "b")]
    for run in runs:
        world.until(run, "succeeded")
    actions = []
    for run in runs:
        with world.parts.database.unit(world.tenant, write=False) as unit:
            actions.append(cases.action(unit, run, "0", 1))
    assert actions[0].fields == actions[1].fields
    assert actions[0].salt != actions[1].salt
    told = [replace(action, run="", promise="", key="", preconditions=()) for action in actions]
    assert told[0].digest != told[1].digest
    assert replace(told[0], salt="").digest == replace(told[1], salt="").digest


def test_a_permit_performs_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = during_call(monkeypatch, lambda: None)
    run = begin(world, notes("once", "note"))
    world.until(run, "succeeded")
    monkeypatch.undo()
    with pytest.raises(TypeError, match="spent"):
        world.parts.execute.perform(calls[0])
    assert world.writes("work_notes") == ["note"]


def test_a_reopened_permit_performs_nothing(world: World) -> None:
    """What looks at an attempt and settles it cannot make another."""
    run = begin(world, notes("reopened", "note"))
    world.until(run, "succeeded")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        action = cases.action(unit, run, "0", 1)
    again = reopened(action, attempt=9, verdict_n=1, revision="", approval="", deadline_seconds=15)
    with pytest.raises(TypeError, match="looking"):
        world.parts.execute.perform(again)
    assert world.writes("work_notes") == ["note"]


# --- between the verdict and the intent -------------------------------------------------------------------------------


def switch(column: str, value: object) -> Callable[[World], None]:
    def thrown(world: World) -> None:
        with world.parts.database.unit(world.tenant) as unit:
            unit.run(f"update tenant set {column} = :value where tenant = :tenant", value=value)

    return thrown


def another_policy(world: World) -> None:
    world.parts.admit.policy(world.tenant, {"caps": {"max_writes_per_run": 7}})


def holder_leaves(world: World) -> None:
    world.parts.admit.deactivate(world.tenant, None, world.who["ana"])


@pytest.mark.parametrize(
    ("change", "state", "writes"),
    [
        (switch("kill_switch", True), "failed_terminal", 0),
        (switch("freeze_id", "year-end"), "failed_terminal", 0),
        (another_policy, "waiting_approval", 1),
        (holder_leaves, "waiting_approval", 0),
    ],
    ids=["kill switch", "freeze", "policy", "key holder"],
)
def test_what_changes_between_the_verdict_and_the_intent_is_judged_again(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World], None], state: str, writes: int
) -> None:
    """P4: the intent's commit finds what its permit rests on unchanged, or nothing is written and policy is asked again."""
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.approve(run, "ana")
    before = world.entries(run)
    revision = world.row("select revision from policy where tenant = :tenant and state = 'active'")
    changed = before_commit(monkeypatch, lambda: change(world), when=intends)
    world.drain()
    assert changed
    case = world.until(run, state)
    since = world.entries(run)[len(before) :]
    assert len(world.writes("impact")) == writes
    if not writes:
        assert "effect.intended" not in since
        assert since[0] == "verdict.given", "the verdict that no longer held has left nothing"
    if change is holder_leaves:
        assert world.waiting(run).asked.promise == found.asked.promise
        assert world.waiting(run).asked.id != found.asked.id
    if change is another_policy:
        assert revision is not None
        rows = world.rows(
            "select revision from verdict where tenant = :tenant and run = :run and promise = '2'", run=run
        )
        assert [row["revision"] == revision["revision"] for row in rows] == [True, False]
    if state == "failed_terminal":
        assert case.promises[found.asked.promise].state == "failed_terminal"


# --- people and time --------------------------------------------------------------------------------------------------


def test_keys_given_in_the_console_satisfy_a_step_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy wants a fresh sign-in; a key that has one still has it at the recheck, or people would be asked for ever."""
    judge = judging.judge

    def with_step_up(*args: Any, **how: Any) -> Any:
        found = judge(*args, **how)
        if found.verdict.effect != "needs_approval":
            return found
        return replace(found, verdict=replace(found.verdict, obligations=({"type": "step_up", "max_age_s": 300},)))

    monkeypatch.setattr(judging, "judge", with_step_up)
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert world.press(found, "ana", via="slack_button").code == "step_up"
    assert world.press(found, "ana", via="console").code == "approved"
    world.until(run, "waiting_approval")
    assert len(world.writes("impact")) == 1
    two = world.waiting(run)
    assert two.asked.promise != found.asked.promise
    assert world.press(two, "bo", via="slack_button").code == "key_given"
    assert world.press(two, "cleo", via="console").code == "approved"
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1


def test_the_hours_that_people_took_are_not_the_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline passed while they decided; a doubt that passes after the last key does not end it."""

    class Down:
        def evaluate(self, input_bytes: bytes) -> Answer:
            raise PolicyFault("refused", "nobody listens")

    run = world.start()
    world.until(run, "waiting_approval")
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update promise set deadline_at = clock_timestamp() - interval '1 minute' where tenant = :tenant")
    found = world.approve(run, "ana")
    with monkeypatch.context() as patch:
        patch.setattr(world.parts.worker._tools.hands.judge, "_policy_of", lambda tenant, revision: Down())
        world.drain()
    step = world.case(run).promises[found.asked.promise]
    assert step.state == "failed_retryable", step.last_error
    world.until(run, "waiting_approval")
    assert len(world.writes("impact")) == 1
