"""P6: Slack decides nothing and loses nothing: what is queued waits as long as it takes, and a click counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from governance.commands.decide import Answer
from governance.slack.records import Records
from tests.kit.world import World


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def send(world: World, rounds: int = 1) -> None:
    """So many rounds of the sender; between them as much time passes as every row waits."""
    for _ in range(rounds):
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
            unit.run("update pace set free_at = clock_timestamp() - interval '1 minute' where tenant = :tenant")
        world.parts.delivery.step()


def queue(world: World) -> list[dict[str, Any]]:
    return world.rows("select kind, ref, state, tries, last_error from outbox where tenant = :tenant order by id")


def asked(world: World, ref: str = "") -> str:
    run = world.start(ref=ref)
    world.until(run, "waiting_approval")
    return run


def test_slack_may_be_down_for_as_long_as_it_likes(world: World) -> None:
    """A card that gave up would be a question that nobody sees; so nothing ever fails for want of Slack."""
    world.slack.down = True
    run = asked(world)
    send(world, 25)
    (card,) = queue(world)
    assert (card["kind"], card["state"], card["tries"]) == ("card", "ready", 25)
    waits = world.row(
        "select extract(epoch from eligible_at - clock_timestamp())::float as s from outbox_due where tenant = :tenant"
    )
    assert waits is not None
    assert 50 < waits["s"] <= 61, "it is asked less and less often, and once a minute in the end"
    world.slack.down = False
    send(world, 2)
    assert queue(world) == []
    place = world.row("select ts from card where tenant = :tenant and approval = :a", a=world.waiting(run).asked.id)
    assert place is not None
    assert place["ts"]


def test_waiting_for_ones_turn_is_not_a_try(world: World) -> None:
    """A reply behind its card has not been sent, so it has not failed either."""
    world.slack.down = True
    run = asked(world)
    world.press(world.waiting(run), "ana")
    send(world, 6)
    rows = queue(world)
    assert rows[0]["tries"] == 6
    assert len(rows) > 1
    assert {(row["tries"], row["state"]) for row in rows[1:]} == {(0, "ready")}
    world.slack.down = False
    send(world, 12)
    assert queue(world) == []
    assert any("gave key 1 of 1" in text for text in world.slack.texts("chat.postMessage"))


def test_a_card_that_is_refused_takes_its_replies_along(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for it for ever; refused for good is kept and shown, with Slack's own word."""
    run = asked(world)
    found = world.waiting(run)
    world.press(found, "ana")
    with monkeypatch.context() as patch:
        patch.setattr(world.slack, "_take", lambda method, arguments: (200, {"ok": False, "error": "is_archived"}))
        send(world)
    rows = queue(world)
    assert len(rows) > 1
    assert {row["state"] for row in rows} == {"failed"}
    assert rows[0]["last_error"] == "is_archived"
    assert {row["last_error"] for row in rows[1:]} == {"the card was refused: is_archived"}
    world.slack.calls.clear()
    send(world, 2)
    assert world.slack.calls == []
    # The decision itself stands.
    world.until(run, "waiting_approval")
    assert len(world.writes("impact")) == 1


def test_a_card_that_cannot_be_rendered_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [asked(world, ref) for ref in ("a", "b")]
    poisoned, healthy = (world.waiting(run).asked.id for run in runs)
    record_of = Records.of

    def broken(records: Records, tenant: str, approval: str) -> Any:
        if approval == poisoned:
            raise RuntimeError("it cannot be rendered")
        return record_of(records, tenant, approval)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "of", broken)
        send(world)
        (left,) = queue(world)
        assert (left["ref"], left["state"], left["last_error"]) == (poisoned, "ready", "it cannot be rendered")
        assert world.row("select 1 from card where tenant = :tenant and approval = :a and ts <> ''", a=healthy)
    send(world)
    assert queue(world) == [], "once it can be rendered it is sent"


def test_two_deliveries_of_one_click_at_once_are_one_vote_and_one_answer(world: World) -> None:
    """Slack repeats what it thinks was lost, sometimes while we are still at it."""
    run = asked(world)
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    answers: list[Answer] = []
    together = threading.Barrier(4)

    def deliver() -> None:
        together.wait()
        answers.append(world.press(found, "ana", dedupe="one-trigger"))

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.code for answer in answers} == {"key_given"}
    assert all(answer == answers[0] for answer in answers)
    votes = world.rows("select person from vote where tenant = :tenant and approval = :a", a=found.asked.id)
    assert [vote["person"] for vote in votes] == [world.who["ana"]]
    assert world.entries(run).count("key.given") == 2
    assert world.entries(run).count("key.refused") == 0
