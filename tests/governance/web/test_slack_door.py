"""Slack's door as it is wired: a signed click becomes a vote, and what Slack asks for is answered from the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from governance import clock
from governance.slack import buttons
from governance.store import templates
from tests.governance.slack import kit
from tests.governance.web.test_console import high
from tests.kit.world import World

Send = Callable[..., Any]


@pytest.fixture
def team(world: World) -> str:
    """The tenant's Slack workspace, with Ana and Rita in it."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = templates.installation(unit)
    assert found is not None
    for name in ("ana", "rita"):
        world.parts.admit.link_slack(world.tenant, None, world.who[name], found.team, f"U0{name.upper()}")
    return found.team


@pytest.fixture
def send(client: TestClient, world: World) -> Send:
    def signed(body: bytes, kind: bytes = b"application/x-www-form-urlencoded") -> Any:
        _, *proof = kit.signed(body, at=clock.epoch_seconds(), secret=world.parts.settings.slack_signing_secret)
        headers = [(b"content-type", kind), *proof]
        return client.post("/slack/events", content=body, headers=[(n.decode(), v.decode()) for n, v in headers])

    return signed


def press(world: World, approval: str, action_id: str, team: str, user: str, trigger: str) -> bytes:
    record = world.parts.records.approval(world.tenant, approval)
    value = buttons.value_of(record, action_id, world.parts.settings.deployment, world.parts.button_mac)
    who = {"id": user, "username": "x", "name": "x", "team_id": team}
    return kit.form(kit.click(action_id, value, team={"id": team}, user=who, api_app_id="A0DESK", trigger_id=trigger))


def test_a_click_in_slack_and_one_in_the_console_are_two_keys(world: World, send: Send, team: str) -> None:
    run, approval = high(world)
    assert send(press(world, approval, buttons.APPROVE, team, "U0RITA", "1.1")).status_code == 200
    assert send(press(world, approval, buttons.APPROVE, team, "U0ANA", "1.2")).status_code == 200
    assert send(press(world, approval, buttons.APPROVE, team, "U0ANA", "1.2")).status_code == 200
    assert send(press(world, approval, buttons.APPROVE, team, "U0NOBODY", "1.3")).status_code == 200
    found = world.waiting(run)
    assert [vote.person for vote in found.votes] == [world.who["ana"]]
    world.post()
    told = world.slack.texts("chat.postEphemeral")
    assert any("You asked for this, so you cannot hold a key." in text for text in told)
    assert any("Your key is in: 1 of 2." in text for text in told)
    assert any("linked to nobody here" in text for text in told)
    assert world.press(found, "bo").status == "approved"
    world.until(run, "succeeded")


def test_reject_opens_the_window_with_the_whole_request(world: World, send: Send, team: str) -> None:
    _, approval = high(world)
    assert send(press(world, approval, buttons.REJECT, team, "U0ANA", "2.1")).status_code == 200
    assert [name for name, _ in world.slack.calls if name == "views.open"] == ["views.open"]


def test_pending_lists_what_this_person_could_decide(world: World, send: Send, team: str) -> None:
    _, approval = high(world)
    for user, shown in (("U0ANA", True), ("U0RITA", False), ("U0NOBODY", False)):
        form = kit.command("pending", team_id=team, user_id=user, api_app_id="A0DESK")
        answer = send(urlencode(form).encode())
        assert answer.status_code == 200
        assert (approval in answer.text) == shown, user


def test_a_removed_installation_sends_nothing_more(world: World, send: Send, team: str) -> None:
    assert world.parts.reach.slack_token(world.tenant) == "xoxb-test"
    event = {
        "type": "event_callback",
        "team_id": team,
        "api_app_id": "A0DESK",
        "event_id": "Ev1",
        "event": {"type": "app_uninstalled"},
    }
    assert send(json.dumps(event).encode(), b"application/json").status_code == 200
    assert world.parts.reach.slack_token(world.tenant) == ""


def test_a_wrong_signature_changes_nothing(client: TestClient, world: World, team: str) -> None:
    run, approval = high(world)
    body = press(world, approval, buttons.APPROVE, team, "U0ANA", "3.1")
    headers = kit.signed(body, at=clock.epoch_seconds(), secret="another secret of the right size")
    answer = client.post("/slack/events", content=body, headers=[(n.decode(), v.decode()) for n, v in headers])
    assert answer.status_code == 401
    assert world.waiting(run).votes == ()
