"""Between the last key and the effect: a window to stop it in, one person who may, and more than one rejection where policy asks."""

from __future__ import annotations

import datetime

from engine.ledger.trust import read_trust
from engine.ledger.verify import verify
from governance.evidence.sequence import trust_text
from governance.store import approvals
from governance.store.approvals import Recorded
from tests.kit.policies import enforce, obliging
from tests.kit.world import World

WINDOW = obliging('"type": "hold_window", "seconds": 600', 'input.action.risk_tier == "high"')
TWO_NOES = obliging('"type": "rejections", "needed": 2', 'input.action.risk_tier == "high"')


def high(world: World, *, first: str = "cleo") -> tuple[str, Recorded]:
    """A run that waits for two people."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, first)
    world.until(run, "waiting_approval")
    return run, world.waiting(run)


def soon_away(world: World, name: str, delegate: str) -> None:
    """This person is away for the next eight hours."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        until = unit.now() + datetime.timedelta(hours=8)
    world.parts.gate.absent.away(world.tenant, None, name, until, delegate=delegate)


def again(world: World, found: Recorded) -> Recorded:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return approvals.load(unit, found.asked.id)


def let_pass(world: World, found: Recorded) -> None:
    """As if the window had passed: the decision is put into the past."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update approval set decided_at = decided_at - interval '10 minutes' where tenant = :tenant and approval = :approval",
            approval=found.asked.id,
        )


def verified(world: World, run: str) -> tuple[int, list[str]]:
    """The sealed bundle as an auditor's verifier sees it."""
    world.seal(run)
    row = world.row("select object_key, version_id from bundle where tenant = :tenant and run = :run", run=run)
    assert row is not None
    trust = read_trust(trust_text(world.parts.database, "test", world.tenant).encode())
    found = verify(world.parts.vault.get(row["object_key"], row["version_id"]), trust)
    return found.outcome, [f"{one}" for one in found.findings]


def test_what_is_approved_is_held_for_its_window_whoever_wakes_it(world: World) -> None:
    """The effect is absent before the window has passed, and happens once after it."""
    enforce(world, WINDOW)
    run, found = high(world)
    world.press(found, "ana")
    answer = world.press(found, "bo")
    assert (answer.code, "held for 600 s" in answer.sentence) == ("approved", True)
    for _ in range(3):
        world.hurry()
        world.drain()
    assert world.writes("close_code") == []
    held = again(world, found)
    assert held.is_held
    assert approvals.phase_of(held) == "held"
    let_pass(world, found)
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1


def test_one_person_stops_what_two_have_approved(world: World) -> None:
    """A holder of a key, or anybody else who could hold one, with one click; nothing happens and the run says why."""
    enforce(world, WINDOW)
    for name in ("ana", "cleo"):
        run, found = high(world)
        world.press(found, "ana")
        assert world.press(found, "bo").code == "approved"
        world.drain()
        assert world.press(found, "olga", kind="stop").code == "not_approver"
        assert world.press(found, "rita", kind="stop").code == "self"
        answer = world.press(found, name, kind="stop", reason="wrong customer")
        assert (answer.code, answer.ok) == ("stopped", True)
        world.until(run, "failed_terminal")
        assert "stopped: wrong customer" in world.steps(run)["close"]
        assert "approval.stopped" in world.entries(run)
        assert world.press(found, "cleo").code == "decided"
    assert world.writes("close_code") == []


def test_a_holder_of_a_key_may_reject_before_the_intent_and_nobody_after_it(world: World) -> None:
    """Never the reverse: a rejected request takes no key, and what has run cannot be stopped."""
    run, found = high(world)
    world.press(found, "ana")
    assert world.press(found, "bo").code == "approved"
    assert world.press(found, "ana", kind="reject", reason="I was wrong").code == "stopped"
    world.until(run, "failed_terminal")
    assert world.writes("close_code") == []
    run, found = high(world)
    world.approve(run, "ana", "bo")
    world.until(run, "succeeded")
    assert world.press(found, "ana", kind="stop").code == "decided"


def test_a_stop_and_the_worker_that_was_about_to_begin_never_both_win(world: World) -> None:
    """A stop that comes while a worker has the item in hand: whoever commits first is right, the other one finds it."""
    run, found = high(world)
    world.approve(run, "ana", "bo")
    leases = world.parts.dispatch.claim("other", 16, 30)
    assert [lease.item for lease in leases] == [found.asked.promise]
    assert world.press(found, "cleo", kind="stop", reason="wait").code == "stopped"
    world.expire_leases()
    world.until(run, "failed_terminal")
    assert world.writes("close_code") == []


def test_policy_may_want_more_than_one_rejection(world: World) -> None:
    """One no is a vote, two are the end; whoever said no gives no key, and a key that was taken back does not count."""
    enforce(world, TWO_NOES)
    run, found = high(world)
    assert world.press(found, "ana").code == "key_given"
    answer = world.press(found, "ana", kind="reject", reason="not sure any more")
    assert (answer.code, answer.given, answer.needed) == ("reject_given", 1, 2)
    assert world.press(found, "ana").code == "same_person"
    assert world.press(found, "ana", kind="reject", reason="again").code == "same_person"
    assert world.press(found, "bo").code == "key_given"  # Ana's key was taken back
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "cleo", kind="reject", reason="no").code == "rejected"
    world.until(run, "failed_terminal")
    assert world.entries(run).count("rejection.given") == 1


def test_a_window_without_anybody_who_was_asked_is_a_fault_of_the_policy(world: World) -> None:
    """A plain allow that is to be held could be stopped by nobody: nothing happens."""
    enforce(world, obliging('"type": "hold_window", "seconds": 60', 'input.action.risk_tier == "low"'))
    run = world.start()
    world.until(run, "failed_terminal", "waiting_approval")
    assert any("window_without_hold" in text for text in world.steps(run).values())


def test_the_bundle_of_a_held_and_of_a_stopped_run_verifies(sealing_world: World) -> None:
    """What was held, stopped and rejected is re-derived offline."""
    world = sealing_world
    enforce(world, WINDOW + TWO_NOES)
    run, found = high(world)
    assert world.press(found, "ana", kind="reject", reason="not sure").code == "reject_given"
    world.approve(run, "bo", "cleo")
    let_pass(world, found)
    # The log cannot be put back, so what an auditor sees is an effect that came ten minutes too early.
    world.until(run, "succeeded")
    outcome, said = verified(world, run)
    assert outcome != 0
    assert any("had to be held for 600 seconds" in one for one in said)
    run, found = high(world)
    world.press(found, "bo")
    world.press(found, "cleo")
    assert world.press(found, "ana", kind="stop").code == "stopped"
    world.until(run, "failed_terminal")
    assert verified(world, run) == (0, [])
