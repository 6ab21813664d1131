"""P14: whatever is down, at whichever stage, the place where an operator looks says what it is, and nothing is lost or half done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.errors import OperatorError
from engine.gate.verdict import PolicyFault
from governance.connectors.http import Exchange
from governance.evidence.sequence import Log
from governance.local.children import free_port
from governance.policy.embedded import Embedded
from governance.stages.tick import Tick
from governance.store.dispatch import Dispatch
from tests.governance.stages.kit import receipts
from tests.kit.proxy import Proxy
from tests.kit.seams import another, begin, notes, work
from tests.kit.servicenow import INCIDENT
from tests.kit.wait import until
from tests.kit.world import World

DATABASE = "the database does not answer: "


@pytest.fixture(autouse=True)
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


# --- the database -------------------------------------------------------------------------------------------------------


def start(world: World) -> object:
    return world.start("only-one", value={"sys_id": INCIDENT}, ref="again")


def press(world: World) -> object:
    return world.press(world.waiting(world.rows("select run from run where tenant = :tenant")[0]["run"]), "ana")


def fsck(world: World) -> object:
    return list(world.parts.fsck.check(world.tenant, lambda: None))


@pytest.mark.parametrize(
    "order",
    [
        start,
        press,
        fsck,
        lambda world: world.drain(),
        lambda world: Tick(world.parts.database).step(),
        lambda world: world.parts.log.step(),
        lambda world: world.parts.delivery.step(),
    ],
    ids=["start", "decide", "fsck", "claim", "tick", "log", "outbox"],
)
def test_without_the_database_every_order_says_so_and_works_again_after_it(
    world: World, through: tuple[World, Proxy], order: Callable[[World], object]
) -> None:
    world.apply(notes("only-one", "note"))
    run = world.start()
    world.until(run, "waiting_approval")
    behind, proxy = through
    behind.parts.database.ping()
    proxy.down = True
    with pytest.raises(OperatorError) as caught:
        order(behind)
    assert str(caught.value).startswith(DATABASE)
    assert caught.value.code == "database"
    proxy.down = False
    order(behind)


def test_a_worker_without_the_database_says_so_and_goes_on_by_itself(
    world: World, through: tuple[World, Proxy], said: list[Any]
) -> None:
    """Its loop and every task beside it survive the outage."""
    behind, proxy = through
    world.apply(notes("only-one", "note"))
    worker = another(behind)
    tasks = (("log", 0.01, behind.parts.log.step), ("tick", 0.01, Tick(behind.parts.database).step))
    thread = threading.Thread(target=worker.run, args=(tasks,))
    proxy.down = True
    thread.start()
    try:
        told = {"claim failed", "log", "tick"}
        until(lambda: told <= {line.get("task", line["event"]) for line in said}, 20)
        assert all(
            DATABASE in (line.get("reason") or line.get("error")) for line in said if line["log_level"] == "warning"
        )
        proxy.down = False
        run = str(start(world))
        until(lambda: world.case(run).ended, 20)
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert world.case(run).state == "succeeded"


def test_a_receipt_waits_for_the_database_and_is_not_lost(
    world: World, through: tuple[World, Proxy], monkeypatch: pytest.MonkeyPatch, said: list[Any]
) -> None:
    """The effect has happened when the database goes: its outcome is known, and never becomes unknown."""
    behind, proxy = through
    call = Exchange.call

    def gone(exchange: Exchange, method: str, path: str, **how: Any) -> Any:
        answer = call(exchange, method, path, **how)
        if method == "PATCH":
            proxy.down = True
        return answer

    monkeypatch.setattr(Exchange, "call", gone)
    run = begin(world, notes("waits", "note"))
    thread = threading.Thread(target=behind.drain)
    thread.start()
    until(lambda: [line for line in said if line["event"] == "receipt waits for the database"], 20)
    proxy.down = False
    thread.join(20)
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "ok")]
    assert world.writes("work_notes") == ["note"]
    assert DATABASE in next(line["reason"] for line in said if line["event"] == "receipt waits for the database")


def test_a_run_in_hand_says_that_the_database_went_and_comes_back(
    world: World, through: tuple[World, Proxy], monkeypatch: pytest.MonkeyPatch, said: list[Any]
) -> None:
    """Claimed and then nothing: its lease runs out, and the next worker finds it as it was."""
    behind, proxy = through
    claim = Dispatch.claim

    def gone(dispatch: Dispatch, *args: Any, **how: Any) -> Any:
        leases = claim(dispatch, *args, **how)
        proxy.down = bool(leases)
        return leases

    monkeypatch.setattr(Dispatch, "claim", gone)
    run = begin(world, notes("in-hand", "note"))
    with pytest.raises(OperatorError, match=DATABASE):
        behind.drain()
    monkeypatch.undo()
    assert [line["reason"].startswith(DATABASE) for line in said if line["event"] == "stage failed"] == [True]
    proxy.down = False
    world.expire_leases()
    world.until(run, "succeeded")
    assert world.writes("work_notes") == ["note"]


# --- policy, the outside, Slack -------------------------------------------------------------------------------------------


def no_policy(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def gone(engine: Embedded, inputs: Any) -> Any:
        raise PolicyFault("engine_exit", "the engine's process ended before it answered")

    monkeypatch.setattr(Embedded, "evaluate_many", gone)
    return monkeypatch.undo


def no_servicenow(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def at(port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        world.parts.admit.connection(
            world.tenant, "servicenow", "dev1", url, world.servicenow.user, world.servicenow.password
        )
        world.parts.reach.forget()

    at(free_port())
    return lambda: at(world.servicenow.port)


def servicenow_refuses_us(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def as_user(password: str) -> None:
        world.parts.admit.connection(
            world.tenant, "servicenow", "dev1", world.servicenow.base_url, world.servicenow.user, password
        )
        world.parts.reach.forget()

    as_user("wrong")
    return lambda: as_user(world.servicenow.password)


@pytest.mark.parametrize(
    ("down", "text", "ends"),
    [
        (no_policy, "policy_fault: engine_exit: the engine's process ended before it answered", "succeeded"),
        (no_servicenow, "unreachable: ConnectError: ", "succeeded"),
        (servicenow_refuses_us, "not_authorized: answered 401: the connection's credentials do not suffice", ""),
    ],
)
def test_what_a_step_waits_for_is_shown_at_the_step(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    down: Callable[[World, pytest.MonkeyPatch], Callable[[], None]],
    text: str,
    ends: str,
) -> None:
    """No attempt is used for it; what only an operator can mend is not tried for ever."""
    name = world.apply(notes("shown", "note"))
    back = down(world, monkeypatch)
    run = world.start(name, value={"sys_id": INCIDENT})
    for _ in range(2):
        world.drain()
        world.hurry()
    step = world.case(run).promises["0"]
    assert step.last_error.startswith(text)
    assert "effect.intended" not in world.entries(run)
    back()
    if ends:
        assert (step.state, step.attempt) == ("failed_retryable", 0)
        assert work(world, run)[0]["faults"] >= 1
        world.until(run, ends)
        assert world.writes("work_notes") == ["note"]


def test_without_slack_the_message_that_waits_says_why(world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    world.slack.down = True
    world.parts.delivery.step()
    rows = world.rows("select kind, tries, last_error, state from outbox where tenant = :tenant and tries > 0")
    assert [(row["kind"], row["tries"], row["state"]) for row in rows] == [("card", 1, "ready")]
    assert rows[0]["last_error"] == "service_unavailable"
    world.slack.down = False
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
    world.post()
    assert world.rows("select 1 from outbox where tenant = :tenant") == []


def test_a_log_that_cannot_be_signed_says_so(world: World, monkeypatch: pytest.MonkeyPatch, said: list[Any]) -> None:
    """The sequencer's own key: without it no checkpoint, and no run is held by that."""

    def gone(log: Log, *args: Any) -> Any:
        raise OperatorError("the key of this tenant's log cannot be opened", code="key")

    run = begin(world, notes("log", "note"))
    world.until(run, "succeeded")
    monkeypatch.setattr(world.parts.log, "_signer", gone)
    world.parts.log.step()
    reasons = [line["reason"] for line in said if line["log_level"] == "error"]
    assert reasons
    assert all("the key of this tenant's log cannot be opened" in reason for reason in reasons)
