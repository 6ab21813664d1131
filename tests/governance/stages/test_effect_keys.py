"""P5: under one effect key something happens once, whoever asks; a repeat is given the first one's result and says so."""

from __future__ import annotations

from typing import Any

import pytest

from engine.canonical import read_json
from engine.kernel import opened
from tests.governance.stages.kit import begin, one_step, receipts
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

NAMED = ', key: "sn:incident:update"'
OWN = ', key: "only-once"'


def entry(world: World, run: str, kind: str) -> dict[str, Any]:
    """The one entry of this kind in a run's chain."""
    (row,) = world.rows(
        "select convert_from(body, 'UTF8') as body from entry_pending where tenant = :tenant and chain = :run "
        "and convert_from(body, 'UTF8')::json ->> 'type' = :kind",
        run=run,
        kind=kind,
    )
    body: dict[str, Any] = read_json(row["body"].encode())["body"]
    return body


def result(world: World, run: str) -> Any:
    """What the program was given for the step."""
    case = world.case(run)
    value = read_json(case.history.result(case.promise_id("0")).encode())
    return opened(case.payloads[bytes.fromhex(value["ok"]["commit"])])


@pytest.mark.parametrize("key", [NAMED, OWN])
def test_a_second_run_with_the_same_key_writes_nothing_and_says_whose_receipt_it_uses(world: World, key: str) -> None:
    first = begin(world, one_step("first", key))
    world.until(first, "succeeded")
    world.servicenow.change(INCIDENT, {"urgency": "3"})
    second = begin(world, one_step("second", key))
    world.until(second, "succeeded")

    assert world.writes("urgency") == ["1"]
    assert receipts(world, first) == [(1, 1, "ok")]
    assert receipts(world, second) == []
    reused = entry(world, second, "effect.reused")
    assert reused["run"] == first
    (row,) = world.rows(
        "select encode(sha256(body), 'hex') as sha256 from receipt where tenant = :tenant and run = :run", run=first
    )
    assert reused["receipt_sha256"] == row["sha256"]
    assert "effect.intended" not in world.entries(second)
    # The program sees what the first one saw, so both runs go the same way.
    assert result(world, second) == result(world, first)
    assert result(world, second)["urgency"] == "1"


def test_without_a_key_the_same_change_by_another_run_is_another_effect(world: World) -> None:
    for name in ("one", "two"):
        run = begin(world, one_step(name))
        world.until(run, "succeeded")
        assert receipts(world, run) == [(1, 1, "ok")]
        world.servicenow.change(INCIDENT, {"urgency": "3"})
    assert world.writes("urgency") == ["1", "1"]


def test_the_same_key_for_something_else_is_refused(world: World) -> None:
    """Its result would be a lie: what the first run did is not what the second one asks for."""
    first = begin(world, one_step("first", OWN))
    world.until(first, "succeeded")
    second = begin(world, one_step("second", OWN).replace('urgency: "1"', 'urgency: "2"'))
    world.drain()
    case = world.case(second)
    assert case.state == "failed_terminal"
    assert case.promises["0"].last_error == f"key_conflict: run {first} did something else under the same effect key"
    assert world.writes("urgency") == ["1"]


def test_a_key_belongs_to_one_tenant(world: World) -> None:
    from tests.kit.world import settle

    first = begin(world, one_step("first", OWN))
    world.until(first, "succeeded")
    other = settle(world.parts, world.slack, world.servicenow)
    run = begin(other, one_step("first", OWN))
    other.until(run, "succeeded")
    assert receipts(other, run) == [(1, 1, "ok")]


def test_while_the_first_is_open_the_second_waits(world: World) -> None:
    first = begin(world, one_step("first", NAMED))
    world.servicenow.plan("drop_connection", method="PATCH")
    world.drain()
    assert world.case(first).promises["0"].state == "unknown"

    second = begin(world, one_step("second", NAMED))
    for _ in range(3):
        world.drain()
        case = world.case(second)
        assert (case.state, case.promises["0"].attempt) == ("failed_retryable", 0)
        assert case.promises["0"].last_error == f"effect_in_progress: run {first} holds the intent of the same effect"
        with world.parts.database.unit(world.tenant) as unit:
            unit.run(
                "update work set eligible_at = clock_timestamp() where tenant = :tenant and run = :run", run=second
            )
    assert world.writes("urgency") == ["1"]

    world.parts.resolve.resolve(world.tenant, world.actor("bo"), first, "0", "happened", "I see it in the record")
    world.until(first, "succeeded")
    world.until(second, "succeeded")
    assert world.writes("urgency") == ["1"]
    assert entry(world, second, "effect.reused")["run"] == first


def test_when_the_first_certainly_failed_the_second_does_it(world: World) -> None:
    """A key is not burnt by a run that ended without the effect."""
    first = begin(world, one_step("first", NAMED + ", retry: {max_attempts: 1}"))
    world.servicenow.plan("too_many_requests", method="PATCH")
    world.until(first, "failed_terminal")
    second = begin(world, one_step("second", NAMED))
    world.until(second, "succeeded")
    assert world.writes("urgency") == ["1"]
    held = world.rows("select turn, run from intent where tenant = :tenant order by turn")
    assert held == [{"turn": 1, "run": first}, {"turn": 2, "run": second}]
    assert receipts(world, first) == [(1, 1, "error")]
    assert [status for _, _, status in receipts(world, second)] == ["ok"]


def test_of_many_runs_with_one_key_one_does_it(world: World) -> None:
    """All are ready before the first begins; each finds the intent or the receipt of the one that came first."""
    name = world.apply(one_step("crowd", NAMED))
    runs = [world.start(name, value={}, ref=str(n)) for n in range(5)]
    for run in runs:
        world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]
    done = [run for run in runs if receipts(world, run)]
    assert len(done) == 1
    assert [entry(world, run, "effect.reused")["run"] for run in runs if run not in done] == done * 4


def test_a_race_for_one_key_has_one_winner(world: World) -> None:
    """Both were judged before either wrote its intent: the second commit is refused by the key and judged again."""
    from governance.store.dispatch import Dispatch

    name = world.apply(one_step("racing", NAMED))
    runs = [world.start(name, value={}, ref=ref) for ref in ("a", "b")]
    worker = world.parts.worker
    leases = {one.run: one for one in Dispatch(world.parts.database).claim(worker._name, 100, 30)}
    drives = [worker._in_hand(leases[run]) for run in runs]
    granted = [drive.decide() for drive in drives]
    assert all(one is not None for one in granted), "both were allowed"
    drives[0].commit()
    # The loser's whole decision is given up; decided again it finds the winner's intent and waits.
    assert worker._in_hand(leases[runs[1]]).decide_and_commit() is None
    assert world.case(runs[1]).promises["0"].last_error.startswith("effect_in_progress")
    world.expire_leases()
    assert world.writes("urgency") == []
    assert len(world.rows("select 1 from intent where tenant = :tenant")) == 1


def test_a_commit_of_a_second_intent_is_refused_by_the_database(world: World) -> None:
    from engine.errors import Conflict
    from governance.store.dispatch import Dispatch

    name = world.apply(one_step("racing", NAMED))
    runs = [world.start(name, value={}, ref=ref) for ref in ("a", "b")]
    worker = world.parts.worker
    leases = {one.run: one for one in Dispatch(world.parts.database).claim(worker._name, 100, 30)}
    drives = [worker._in_hand(leases[run]) for run in runs]
    for drive in drives:
        assert drive.decide() is not None
    drives[0].commit()
    with pytest.raises(Conflict) as caught:
        drives[1].commit()
    assert caught.value.code == "intent_pkey"
    assert world.case(runs[1]).history.version == 0, "nothing of the refused commit is there"
