"""Cards follow their record to the end, whatever happens to messages, channels and the installation; whoever asked is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from governance.commands.decide import Press
from governance.slack.outbox import fallback_chars_max
from governance.stages.tick import Tick
from governance.store import templates
from governance.wiring import Parts
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, settle

Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def at_home(world: World, *names: str) -> str:
    """Give these people an account in the very workspace that is installed; its team."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = templates.installation(unit)
    assert found is not None
    for name in names:
        world.parts.admit.link_slack(world.tenant, None, world.who[name], found.team, f"U0{name.upper()}")
    return found.team


def later(world: World) -> None:
    """As if every message had waited as long as it must, and the channel had been quiet for a minute."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
        unit.run("update pace set free_at = clock_timestamp() - interval '1 minute' where tenant = :tenant")


def send(world: World, rounds: int = 6) -> None:
    for _ in range(rounds):
        later(world)
        world.parts.delivery.step()


def asked(world: World, ref: str = "") -> str:
    run = world.start(ref=ref)
    world.until(run, "waiting_approval")
    return run


def to(world: World, member: str) -> list[str]:
    return [
        arguments["text"]
        for method, arguments in world.slack.calls
        if method == "chat.postMessage" and arguments["channel"] == member
    ]


def replies(world: World) -> list[str]:
    return [
        arguments["text"]
        for method, arguments in world.slack.calls
        if method == "chat.postMessage" and arguments.get("thread_ts")
    ]


def refusing(world: World, monkeypatch: pytest.MonkeyPatch, error: str, where: str = "C0DESK") -> None:
    take = world.slack._take

    def answer(method: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        taken = take(method, arguments)
        return (200, {"ok": False, "error": error}) if arguments.get("channel") == where else taken

    monkeypatch.setattr(world.slack, "_take", answer)


def test_whoever_asked_is_told_of_the_question_each_key_and_the_end(world: World) -> None:
    at_home(world, "rita")
    run = asked(world)
    send(world)
    first = to(world, "U0RITA")
    assert len(first) == 1
    assert "waits for 1 key" in first[0]
    assert "oncall" in first[0]
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    send(world)
    assert any("was approved by cleo" in text or "✅ Done" in text for text in to(world, "U0RITA")[1:])
    assert len([text for text in to(world, "U0RITA") if "Done" in text]) == 1, "the end is told once"
    world.press(world.waiting(run), "ana")
    send(world)
    assert any("ana gave key 1 of 2" in text for text in to(world, "U0RITA"))
    answer = world.press(world.waiting(run), "bo", kind="reject", reason="not in the change window <!channel>")
    assert answer.code == "rejected"
    send(world)
    assert any("Rejected by bo" in text and "not in the change window" in text for text in to(world, "U0RITA"))
    reply = next(text for text in replies(world) if "Rejected by bo" in text)
    assert "<!channel>" not in reply
    assert "&lt;!channel&gt;" in reply
    assert all(len(text) <= fallback_chars_max for text in to(world, "U0RITA"))


def test_a_person_without_an_account_in_this_workspace_is_not_written_to(world: World) -> None:
    asked(world)
    send(world)
    assert {arguments["channel"] for _, arguments in world.slack.calls} == {"C0DESK"}


def test_a_channel_that_is_gone_sends_the_question_to_its_people(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 24: whoever could give a key gets it, nobody else does, and it is settled there too."""
    at_home(world, "ana", "cleo", "rita", "aud", "low", "dan", "olga")
    run = asked(world)
    with monkeypatch.context() as patch:
        refusing(world, patch, "is_archived")
        send(world)
        copies = {
            arguments["channel"]
            for method, arguments in world.slack.calls
            if "Review and decide" in json.dumps(arguments)
        }
        assert copies == {"U0ANA", "U0CLEO"}
        assert "waits for 1 key" in to(world, "U0RITA")[0]
        world.slack.calls.clear()
        world.approve(run, "ana")
        world.until(run, "waiting_approval")
        send(world)
    settled = [arguments for method, arguments in world.slack.calls if method == "chat.update"]
    assert len(settled) >= 2
    assert all("actions" not in [block["type"] for block in arguments["blocks"]] for arguments in settled)
    assert world.rows("select 1 as x from outbox where tenant = :tenant and state = 'ready'") == []


def test_a_channel_that_comes_back_gets_the_card_at_the_next_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(world)
    with monkeypatch.context() as patch:
        refusing(world, patch, "channel_not_found")
        send(world)
    found = world.approve(run, "ana")
    send(world)
    place = world.row("select ts, channel from card where tenant = :tenant and approval = :a", a=found.asked.id)
    assert place is not None
    assert place["ts"]
    assert place["channel"] == "C0DESK"


def test_a_card_that_missed_its_update_is_healed(world: World) -> None:
    """Trap 18: whatever swallowed the update, within a minute the buttons are gone."""
    run = asked(world)
    send(world)
    found = world.approve(run, "ana")
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("delete from outbox_due where tenant = :tenant")
        unit.run("delete from outbox where tenant = :tenant")
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'cards'")
    world.slack.calls.clear()
    Tick(world.parts.database).step()
    send(world)
    (update,) = [arguments for method, arguments in world.slack.calls if method == "chat.update"]
    assert "tk_approve" not in json.dumps(update["blocks"])
    row = world.row("select at > clock_timestamp() as later from due where tenant = :tenant and kind = 'cards'")
    assert row == {"later": True}, "it is looked at again while its effect is under way"
    assert found.asked.id


def test_the_watch_ends_when_every_card_is_settled(world: World) -> None:
    run = asked(world)
    send(world)
    world.press(
        world.waiting(run), "bo" if "bo" in world.waiting(run).asked.groups else "ana", kind="reject", reason="no"
    )
    world.until(run, "failed_terminal", "failed", "succeeded", "canceled")
    send(world)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'cards'")
    Tick(world.parts.database).step()
    assert world.rows("select 1 as x from due where tenant = :tenant and kind = 'cards'") == []
    assert world.rows("select 1 as x from card where tenant = :tenant and not settled") == []


def test_several_changes_are_one_update(world: World) -> None:
    run = asked(world)
    send(world)
    world.slack.calls.clear()
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    rows = world.rows("select 1 as x from outbox where tenant = :tenant and kind = 'card'")
    assert len(rows) > 2
    send(world, 8)
    updates = [arguments["ts"] for method, arguments in world.slack.calls if method == "chat.update"]
    assert len(updates) == 1, "the first update shows how it ended; the others have nothing to add"


def test_a_revoked_token_parks_everything_and_a_new_installation_sends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 28: nothing is lost, nothing is decided, and the console goes on."""
    team = at_home(world, "ana")
    run = asked(world)
    with monkeypatch.context() as patch:
        refusing(world, patch, "token_revoked")
        send(world, 2)
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert templates.installation(unit) is None
    calls = len(world.slack.calls)
    send(world, 2)
    assert len(world.slack.calls) == calls, "nobody is asked while there is no installation"
    assert world.press(world.waiting(run), "ana").code == "approved"
    world.parts.admit.slack(
        world.tenant, team=team, app_id="A0DESK", bot_user="U0BOT", token="xoxb-new", channel="C0NEW"
    )
    send(world)
    posts = [arguments for method, arguments in world.slack.calls[calls:] if method == "chat.postMessage"]
    assert posts[0]["channel"] == "C0NEW"


def test_a_channel_gets_no_more_than_its_pace(world: World) -> None:
    for n in range(9):
        asked(world, f"run-{n}")
    while world.parts.delivery.step():
        pass
    sent = len(world.slack.calls)
    assert 6 <= sent <= 7, "a burst of six, then one a second"
    left = world.rows("select tries, last_error from outbox where tenant = :tenant and state = 'ready'")
    assert len(left) == 9 - sent
    assert {row["tries"] for row in left} == {0}, "waiting for one's turn is not a try"
    send(world, 4)
    assert len([1 for method, _ in world.slack.calls if method == "chat.postMessage"]) == 9


def test_slacks_retry_after_holds_the_whole_channel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(world, "a")
    asked(world, "b")
    with monkeypatch.context() as patch:
        patch.setattr(world.slack, "_take", lambda method, arguments: (429, {"ok": False, "error": "ratelimited"}))
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
        world.parts.delivery.step()
    rows = world.rows("select tries from outbox where tenant = :tenant order by id")
    assert [row["tries"] for row in rows] == [1, 0], "the second has not been sent into a channel that said not now"
    assert world.slack.calls == []
    wait = world.row(
        "select extract(epoch from min(eligible_at) - clock_timestamp())::float as s from outbox_due where tenant = :tenant"
    )
    assert wait is not None
    assert 25 < wait["s"] <= 31


def test_a_tenant_whose_slack_is_slow_holds_up_nobody_else(
    world: World, parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: the answer to the one comes only after the other's message has arrived."""
    other = settle(parts, slack_sink, servicenow)
    parts.admit.slack(
        other.tenant, team=at_home(other), app_id="A0DESK", bot_user="U0BOT", token="xoxb-o", channel="C0OTHER"
    )
    asked(world)
    asked(other)
    arrived, take = threading.Event(), slack_sink._take
    met: list[bool] = []

    def slow(method: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if arguments.get("channel") == "C0OTHER":
            arrived.set()
        else:
            met.append(arrived.wait(4))
        return take(method, arguments)

    monkeypatch.setattr(slack_sink, "_take", slow)
    parts.delivery.step()
    assert met == [True]
    other.forget()


def test_a_long_queue_of_one_tenant_keeps_nobody_else_waiting(
    world: World, parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow
) -> None:
    other = settle(parts, slack_sink, servicenow)
    with parts.database.unit(world.tenant) as unit:
        for n in range(60):
            unit.run(
                "insert into outbox (tenant, kind, body) values (:tenant, 'dm', :b)",
                b=json.dumps({"user": f"U{n}", "text": "x"}).encode(),
            )
        unit.run(
            "insert into outbox_due (tenant, id, eligible_at) select tenant, id, clock_timestamp() - interval '1 hour' "
            "from outbox where tenant = :tenant"
        )
    asked(other)
    slack_sink.calls.clear()
    parts.delivery.step()
    assert "C0DESK" in {arguments["channel"] for _, arguments in slack_sink.calls}
    other.forget()


def test_a_press_on_a_copy_decides_like_any_other(world: World) -> None:
    """The windows of a copy are those of the card: the same choke point, the same digests."""
    run = asked(world)
    found = world.waiting(run)
    press = Press(
        tenant=world.tenant, approval=found.asked.id, actor_kind="slack", actor_ref=world.slack_ref("ana"), kind="key",
        digest16=found.asked.action_digest.hex()[:16], card_rev=found.card_rev, via="slack_modal", reason="",
        dedupe_key="t1", blocks_sha256="",
    )  # fmt: skip
    assert world.parts.decide.decide(press).code == "approved"
