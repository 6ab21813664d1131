"""P1, P4, P7: no effect without a permit, and nothing that goes wrong counts as yes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from engine.errors import Refused
from engine.gate.permit import Permit
from engine.gate.verdict import Answer, PolicyFault
from governance.stages.tick import Tick
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World


def engine_pid(world: World) -> int:
    """The policy child that answers for this tenant now."""
    revision = world.row("select revision from policy where tenant = :tenant and state = 'active'")
    assert revision is not None
    engine, _ = world.parts.policies._engines[revision["revision"]]
    return int(engine.pid)  # type: ignore[attr-defined]


def test_a_policy_child_that_is_killed_means_no_effect_and_recovery_without_a_restart(world: World) -> None:
    """Must show 6: SIGKILL of the evaluating child in mid-run."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    os.kill(engine_pid(world), signal.SIGKILL)
    writes = len(world.writes("state"))
    world.drain()
    case = world.case(run)
    assert case.state in ("failed_retryable", "waiting_approval")
    if case.state == "failed_retryable":
        assert len(world.writes("state")) == writes
    world.until(run, "waiting_approval")
    assert len(world.writes("state")) == 1


def test_a_policy_child_that_hangs_is_a_fault_with_a_time_and_no_attempt_is_used(world: World) -> None:
    """Must show 6: SIGSTOP. The deadline ends the wait, the step shows why and when, the journal shows nothing."""
    run = world.start()
    world.until(run, "waiting_approval")
    pid = engine_pid(world)
    os.kill(pid, signal.SIGSTOP)
    try:
        world.approve(run, "ana")
        version = world.case(run).history.version
        world.drain()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    case = world.case(run)
    assert case.state == "failed_retryable"
    assert "timeout" in case.promises["2"].last_error
    assert case.promises["2"].next_eligible_at is not None
    assert case.history.version == version
    assert world.writes("state") == []
    world.until(run, "waiting_approval")


@pytest.mark.parametrize(
    "answer",
    [b"{}", b"null", b'{"allow": true}', b"not json", b'{"schema":"twokeys.policy.findings/v1"}', b""],
)
def test_garbage_from_the_engine_never_allows(world: World, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """P1: whatever an engine answers, only complete findings to this very question permit."""

    class Garbage:
        def evaluate(self, input_bytes: bytes) -> Answer:
            return Answer(answer, "0" * 64, "garbage", "1")

    monkeypatch.setattr(world.parts.policies, "of", lambda tenant, revision: Garbage())
    monkeypatch.setattr(world.parts.worker._tools.hands.judge, "_policy_of", lambda tenant, revision: Garbage())
    run = world.start()
    world.until(run, "failed_terminal", "failed_retryable")
    assert world.writes("assignment_group") == []
    assert "effect.intended" not in world.entries(run)


def test_an_engine_that_is_down_leaves_the_step_waiting_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the allow-list is retried until the deadline; it never proceeds."""

    class Down:
        def evaluate(self, input_bytes: bytes) -> Answer:
            raise PolicyFault("refused", "nobody listens")

    monkeypatch.setattr(world.parts.worker._tools.hands.judge, "_policy_of", lambda tenant, revision: Down())
    run = world.start()
    for _ in range(3):
        world.drain()
        world.hurry()
    case = world.case(run)
    assert case.state == "failed_retryable"
    assert case.promises["0"].last_error.startswith("policy_fault: refused")
    assert "effect.intended" not in world.entries(run)
    monkeypatch.undo()
    world.until(run, "waiting_approval")


def test_a_question_nobody_answers_in_time_is_a_no(world: World) -> None:
    """P7, S004-2.1e: expiry ends the step; a late key changes nothing."""
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update approval set expires_at = clock_timestamp() - interval '1 second' where tenant = :tenant")
        unit.run("update due set at = clock_timestamp() where tenant = :tenant")
    assert world.press(found, "ana").code == "expired"
    Tick(world.parts.database).step()
    world.until(run, "failed_terminal")
    assert world.writes("state") == []
    assert "approval.expired" in world.entries(run)
    assert world.press(found, "ana").code == "expired"


def test_when_the_world_changed_while_people_decided_they_are_asked_again_with_what_is_true_now(world: World) -> None:
    """P3, P4: somebody else changed the incident; the keys are void, nothing ran, a new card shows the new before value."""
    run = world.start()
    world.until(run, "waiting_approval")
    old = world.waiting(run)
    world.servicenow.change(INCIDENT, {"impact": "2"})
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    new = world.waiting(run)
    assert new.asked.id != old.asked.id
    assert new.asked.action_digest != old.asked.action_digest
    assert dict(new.action.preconditions)["impact"] == "2"
    assert world.writes("state") == []
    assert "approval.canceled" in world.entries(run)
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    assert len(world.writes("state")) == 1


def test_a_kill_switch_stops_the_next_effect_even_after_the_last_key(world: World) -> None:
    """P4: everything is judged again at resume; the recheck denies."""
    run = world.start()
    world.until(run, "waiting_approval")
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")
    world.approve(run, "ana")
    world.until(run, "failed_terminal")
    assert "kill_switch" in world.steps(run)["raise"]
    assert world.writes("state") == []


def test_cancelling_while_people_are_asked_withdraws_the_question(world: World) -> None:
    """S004-2.1j, C-15: nothing in flight, so the run is over at once and a late key is told so."""
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "wrong incident") == "canceled"
    assert world.press(found, "cleo").code == "decided"
    world.drain()
    case = world.case(run)
    assert (case.state, case.ended) == ("canceled", True)
    assert world.entries(run)[-2:] == ["run.closed", "key.refused"]
    with pytest.raises(Refused):
        world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "again")


def test_a_run_that_has_not_begun_can_be_cancelled(world: World) -> None:
    """S004-2.1i: queued to canceled, with its entries and no journal."""
    run = world.start()
    assert world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "never mind") == "canceled"
    world.drain()
    assert world.case(run).history.version == 0
    assert world.entries(run)[-1] == "run.closed"


def test_only_the_gate_makes_a_permit() -> None:
    """P1: skipping the gate is a TypeError, whoever tries."""
    with pytest.raises(TypeError):
        Permit(object(), None, 1, 1, "", "", 1.0)  # type: ignore[arg-type]
