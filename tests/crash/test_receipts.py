"""P5: what is known is recorded and never becomes unknown; what is unknown is never repeated before it is certain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.errors import Conflict, OperatorError, Refused
from engine.gate.permit import Permit
from engine.limits import hold_receipt_seconds_max
from governance.connectors import http
from governance.connectors.servicenow import ServiceNow
from governance.drive import Drive
from governance.evidence.sequence import trust_text
from governance.stages.judge import Judge
from tests.flow.test_a_governed_run import verify
from tests.governance.stages.kit import receipts
from tests.kit.seams import another, before_commit, begin, during_call, killed, notes, work
from tests.kit.world import World

BROKEN = (OperatorError("the database does not answer", code="database"), RuntimeError("a fault of ours"))


@pytest.fixture(autouse=True)
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def written(world: World) -> list[str]:
    return world.writes("work_notes")


def known(world: World, run: str) -> bool:
    """Both effects happened once, and nobody ever doubted it."""
    assert world.case(run).state == "succeeded"
    assert written(world) == ["first", "second"]
    assert receipts(world, run) == [(1, 1, "ok"), (1, 1, "ok")]
    return "effect.unknown" not in world.entries(run)


# --- an outcome that is known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", BROKEN, ids=type)
@pytest.mark.parametrize("late", [0.0, 2 * hold_receipt_seconds_max])
def test_a_verdict_on_the_next_step_that_fails_does_not_cost_the_receipt(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, late: float
) -> None:
    opinion, failed = Judge.opinion, []

    def failing(judge: Judge, case: Any, around: Any, promise: str, found: Any, **how: Any) -> Any:
        if promise == "1" and not failed:
            failed.append(1)
            time.sleep(late)
            raise error
        return opinion(judge, case, around, promise, found, **how)

    monkeypatch.setattr(Judge, "opinion", failing)
    run = begin(world, notes("verdict", "first", "second"))
    world.drain()
    assert failed
    assert world.case(run).promises["0"].state == "succeeded"
    world.hurry()
    world.drain()
    assert known(world, run)


@pytest.mark.parametrize("error", [*BROKEN, Conflict("somebody else has it", code="another_pkey")], ids=type)
def test_a_database_that_hiccups_at_the_commit_does_not_cost_the_receipt(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def hiccup() -> None:
        raise error

    hit = before_commit(monkeypatch, hiccup, when=lambda drive: drive.done is not None)
    run = begin(world, notes("hiccup", "first", "second"))
    world.drain()
    assert hit
    world.hurry()
    world.drain()
    assert known(world, run)


def test_a_database_that_hiccups_while_a_run_that_moved_is_read_again_does_not_cost_the_receipt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, failed = Drive._again, []

    def failing(drive: Drive) -> None:
        if not failed:
            failed.append(1)
            raise BROKEN[0]
        again(drive)

    def moved() -> None:
        raise Conflict("the run moved", code="version")

    monkeypatch.setattr(Drive, "_again", failing)
    before_commit(monkeypatch, moved, when=lambda drive: drive.done is not None)
    run = begin(world, notes("moved", "first", "second"))
    world.drain()
    assert failed
    world.hurry()
    world.drain()
    assert known(world, run)


def test_a_receipt_under_a_lease_that_ran_out_counts_while_nobody_has_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step's intent may not begin under it; what has happened is recorded all the same."""
    during_call(monkeypatch, world.expire_leases)
    run = begin(world, notes("expired", "first", "second"))
    world.drain()
    assert world.case(run).promises["0"].state == "succeeded"
    world.hurry()
    world.drain()
    assert known(world, run)


def test_an_outcome_that_comes_after_the_take_over_changes_nothing_and_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch, said: list[Any]
) -> None:
    other = another(world)

    def taken_over() -> None:
        world.expire_leases()
        other.drain()

    during_call(monkeypatch, taken_over)
    run = begin(world, notes("late", "only"))
    world.drain()
    assert receipts(world, run) == [(1, 1, "unknown")]
    assert world.case(run).promises["0"].state == "unknown"
    assert [line["outcome"] for line in said if line["event"] == "late outcome"] == ["ok"]
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, "0", "happened", "It is in the notes")
    world.until(run, "succeeded")
    assert written(world) == ["only"]


# --- an outcome that nobody knows -------------------------------------------------------------------------------------


def answers(monkeypatch: pytest.MonkeyPatch, status: int, headers: Mapping[str, str], *, sent: bool) -> None:
    """The first write is answered with this; a gateway answers so although it has passed the request on (`sent`)."""
    call, hit = http.Exchange.call, []

    def gateway(exchange: http.Exchange, method: str, path: str, **how: Any) -> http.Answer:
        if not how["changes"] or hit:
            return call(exchange, method, path, **how)
        hit.append(1)
        if sent:
            call(exchange, method, path, **how)
        return http._understood(status, b"<html>", headers, True)

    monkeypatch.setattr(http.Exchange, "call", gateway)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_after_a_write_is_unknown_and_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    answers(monkeypatch, status, {}, sent=True)
    run = begin(world, notes("gateway", "only"))
    for _ in range(3):
        world.drain()
        world.hurry()
    assert world.case(run).promises["0"].state == "unknown"
    assert receipts(world, run) == [(1, 1, "unknown")]
    assert written(world) == ["only"]


def test_a_server_that_asks_to_come_back_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 503, {"retry-after": "1"}, sent=False)
    run = begin(world, notes("turned-away", "only"))
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "error"), (2, 1, "ok")]
    assert written(world) == ["only"]


def test_unchanged_proves_nothing_while_the_attempt_may_be_on_the_road_and_is_looked_at_later_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of a killed worker lands after the look of the next one: it would have been written twice."""
    settles = world.parts.registry.spec("servicenow", "update").settles_seconds
    sent: list[Permit] = []
    with monkeypatch.context() as patch:
        perform = ServiceNow.perform
        patch.setattr(ServiceNow, "perform", lambda connector, granted: sent.append(granted) or _gone())
        run = begin(world, notes("late-landing", "only"))
        with pytest.raises(KeyboardInterrupt):
            world.drain()
    world.expire_leases()
    world.drain()
    assert world.case(run).promises["0"].state == "unknown"
    (item,) = work(world, run)
    assert (item["stage"], item["state"]) == ("execute", "ready"), "it is looked at again without anybody's doing"
    assert settles - 60 < item["wait"] <= settles
    perform(world.parts.registry.of("servicenow"), sent[0])  # type: ignore[arg-type]
    assert written(world) == ["only"]
    _settled(world)
    world.drain()
    assert world.case(run).promises["0"].state == "unknown", (
        "changed proves nothing either: a person says what happened"
    )
    assert written(world) == ["only"]
    assert [row["state"] for row in work(world, run)] == ["parked"]


def test_unchanged_after_everything_has_settled_did_not_happen_and_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(world, notes("settled", "only"))
    killed(monkeypatch, world, sent=False)
    world.drain()
    assert receipts(world, run) == [(1, 1, "unknown")]
    _settled(world)
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "unknown"), (1, 2, "rejected"), (2, 1, "ok")]
    assert written(world) == ["only"]


def _gone() -> Any:
    raise KeyboardInterrupt


def _settled(world: World) -> None:
    """An hour later: nothing of an attempt can be on the road any more."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update promise set started_at = started_at - interval '1 hour' where tenant = :tenant")
    world.hurry()


@pytest.mark.parametrize("method", ["perform", "look"])
def test_a_connector_with_a_bug_leaves_an_outcome_that_a_person_can_resolve(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """What it raises is not its business alone: after the call nobody knows, and nothing is repeated or stuck for ever."""

    def bug(connector: ServiceNow, granted: Permit) -> Any:
        raise ZeroDivisionError(granted.key)

    run = begin(world, notes("bug", "only"))
    if method == "look":
        killed(monkeypatch, world, sent=True)
    monkeypatch.setattr(ServiceNow, method, bug)
    for _ in range(3):
        world.drain()
        world.hurry()
    step = world.case(run).promises["0"]
    assert step.state == "unknown"
    # The second look of the first case finds nothing out; the second case has nothing but the bug.
    assert step.last_error.startswith("cannot_tell: " if method == "perform" else "connector_fault: ZeroDivisionError")
    told = "did_not" if method == "perform" else "happened"
    monkeypatch.undo()
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, "0", told, "I looked it up")
    world.until(run, "succeeded")
    assert written(world) == ["only"]


def test_only_somebody_who_could_hold_a_key_says_what_happened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saying that it happened is as good as a key: of the right level, of the right group, and not of the lineage."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    killed(monkeypatch, world, sent=True)
    world.drain()
    raised = next(p for p in world.case(run).promises.values() if p.step == "raise")
    assert raised.state == "unknown"
    for name, code in (("olga", "not_approver"), ("rita", "lineage"), ("low", "level"), ("aud", "auditor")):
        with pytest.raises(Refused) as caught:
            world.parts.resolve.resolve(world.tenant, world.actor(name), run, raised.promise, "happened", "trust me")
        assert caught.value.code == code, name
    assert world.case(run).promises[raised.promise].state == "unknown"
    world.parts.resolve.resolve(world.tenant, world.actor("cleo"), run, raised.promise, "happened", "I see it")
    world.until(run, "waiting_approval")
    assert world.writes("impact") == ["1"]


# --- what is sealed ---------------------------------------------------------------------------------------------------


def cancelled_before_it_began(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    run = world.start()
    assert world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "never mind") == "canceled"
    return run


def doubted_and_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    run = begin(world, notes("doubted", "only"))
    killed(monkeypatch, world, sent=False)
    world.drain()
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, "0", "did_not", "There is no such note")
    world.until(run, "succeeded")
    return run


@pytest.mark.parametrize("story", [cancelled_before_it_began, doubted_and_repeated], ids=lambda story: story.__name__)
def test_however_a_run_went_its_bundle_verifies_without_us(
    sealing_world: World,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    story: Callable[[World, pytest.MonkeyPatch], str],
) -> None:
    world = sealing_world
    sealed = world.seal(story(world, monkeypatch))
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr
