"""Proves the whole way in: signed bytes over HTTP through the guard and Bolt to the handlers, and what comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from governance.slack import endpoint
from tests.governance.slack.kit import (
    APPROVAL,
    NOW,
    OLD_SECRET,
    SECRET,
    TEAM,
    World,
    click,
    command,
    form,
    record,
    signed,
    submission,
    value,
)
from tests.governance.slack.test_tasks import pressed
from tests.governance.slack.test_tasks import world as task_world


@pytest.fixture(autouse=True)
def the_same_time_for_bolt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bolt keeps its own verification as a second lock, and reads the clock itself."""
    monkeypatch.setattr("slack_sdk.signature.Clock.now", lambda _: NOW)


def world() -> World:
    return World(records={("acme", APPROVAL): record()})


def web(there: World, *secrets: str) -> TestClient:
    routes = endpoint.slack_routes(there.clicks(), secrets or (SECRET,), lambda: NOW, there.counted.append)
    return TestClient(Starlette(routes=routes))


def post(there: World, body: bytes, headers: list[tuple[bytes, bytes]] | None = None, *secrets: str) -> Any:
    given = signed(body) if headers is None else headers
    return web(there, *secrets).post(
        endpoint.PATH, content=body, headers=[(k.decode(), v.decode("latin-1")) for k, v in given]
    )


def test_a_signed_click_reaches_the_command_and_is_answered_200() -> None:
    there = world()
    answer = post(there, form(click("tk_approve", value("tk_approve"))))
    assert (answer.status_code, answer.text) == (200, "")
    assert [press.approval for press in there.pressed] == [APPROVAL]


def test_a_signed_submission_is_answered_with_the_next_view() -> None:
    there = world()
    post(there, form(click("tk_reject", value("tk_reject"))))
    answer = post(there, form(submission(there.opened[0][2], "wrong incident")))
    assert answer.json()["response_action"] == "update"
    assert answer.headers["content-type"].startswith("application/json")
    assert there.pressed[0].kind == "reject"


def test_a_signed_submission_without_a_reason_keeps_the_window_open() -> None:
    there = world()
    post(there, form(click("tk_reject", value("tk_reject"))))
    answer = post(there, form(submission(there.opened[0][2], " ")))
    assert answer.json() == {
        "response_action": "errors",
        "errors": {"tk_reason": "Say why; the requester will read it."},
    }


@pytest.mark.parametrize("name", ["/twokeys", "/another"])
def test_a_signed_command_is_answered_to_the_person(name: str) -> None:
    answer = post(world(), urlencode(command("help", command=name)).encode())
    assert answer.json()["response_type"] == "ephemeral"


def test_the_address_is_verified() -> None:
    body = json.dumps({"type": "url_verification", "challenge": "c0ffee", "token": "t"}).encode()
    headers = [(b"content-type", b"application/json"), *signed(body)[1:]]
    assert "c0ffee" in post(world(), body, headers).text


@pytest.mark.parametrize("name", ["app_uninstalled", "tokens_revoked", "message", "app_mention"])
def test_events_are_answered_200(name: str) -> None:
    there = world()
    event = {
        "type": "event_callback",
        "team_id": TEAM,
        "api_app_id": "A0TWOKEYS",
        "event_id": "Ev1",
        "event": {"type": name},
    }
    body = json.dumps(event).encode()
    assert post(there, body, [(b"content-type", b"application/json"), *signed(body)[1:]]).status_code == 200
    assert bool(there.lost) == (name in ("app_uninstalled", "tokens_revoked"))


@pytest.mark.parametrize(
    "payload",
    [
        {**click("tk_approve", ""), "type": "shortcut", "callback_id": "x"},
        {**click("tk_approve", ""), "type": "message_action", "callback_id": "x"},
        {**click("tk_approve", ""), "type": "block_suggestion", "action_id": "x", "value": "a"},
        click("anything\nelse", "v"),
        {**submission({"callback_id": "other", "type": "modal"}), "type": "view_closed"},
    ],
)
def test_what_is_not_ours_is_answered_too(payload: dict[str, Any]) -> None:
    assert post(world(), form(payload)).status_code == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"payload={}", [], 401),
        (b"ssl_check=1", [(b"content-type", b"application/x-www-form-urlencoded")], 401),
        (b"\xff\xfe", None, 400),
        (b"{bad", None, 400),
        (b"payload=[]", None, 400),
        (b"payload=null", None, 400),
        (b"payload=" + b"[" * 20_000, None, 400),
        (b"a" * 1_048_577, None, 413),
    ],
)
def test_what_is_wrong_is_turned_away_and_never_500(body: bytes, headers: Any, status: int) -> None:
    there = world()
    answer = post(there, body, headers)
    assert answer.status_code == status
    assert there.pressed == []
    assert there.counted[0].startswith("slack_turned_")


def test_a_long_body_without_a_length_is_cut_off() -> None:
    there = world()

    async def ask() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        pieces = iter(range(1_000))

        async def receive() -> dict[str, Any]:
            assert next(pieces) < 40, "reading went on after the limit"
            return {"type": "http.request", "body": b"a" * 65_536, "more_body": True}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": endpoint.PATH,
            "headers": [],
            "query_string": b"",
            "http_version": "1.1",
        }
        (route,) = endpoint.slack_routes(there.clicks(), (SECRET,), lambda: NOW, there.counted.append)
        await Starlette(routes=[route])(
            {**scope, "scheme": "http", "server": ("x", 1), "client": ("y", 2), "root_path": ""}, receive, send
        )
        return sent

    assert asyncio.run(ask())[0]["status"] == 413


def test_a_header_cannot_name_the_function_to_run() -> None:
    there = world()
    body = form(click("tk_approve", value("tk_approve")))
    lazy = [(b"x-slack-bolt-lazy-only", b"1"), (b"x-slack-bolt-lazy-function-name", b"answer")]
    assert post(there, body, [*signed(body), *lazy]).status_code == 200
    assert len(there.pressed) == 1


def test_both_secrets_work_while_they_are_rotated() -> None:
    there = world()
    body = form(click("tk_approve", value("tk_approve")))
    for secret in (SECRET, OLD_SECRET):
        assert post(there, body, signed(body, secret=secret), SECRET, OLD_SECRET).status_code == 200
    assert len(there.pressed) == 2


def test_no_lazy_listener_is_registered() -> None:
    app = endpoint.bolt_app(World().clicks(), SECRET, lambda _: None)
    assert app._listeners
    assert all(not listener.lazy_functions for listener in app._listeners)


class Held(Exception):
    """As if the database held the row too long."""


def test_a_failed_click_makes_slack_warn_the_person() -> None:
    there = world()
    there.broken = Held("secret text of a payload")
    answer = post(there, form(click("tk_approve", value("tk_approve"))))
    assert (answer.status_code, "secret" in answer.text) == (503, False)


def test_a_failed_window_says_that_nothing_was_recorded_and_stays_open() -> None:
    there = world()
    post(there, form(click("tk_reject", value("tk_reject"))))
    there.broken = Held()
    answer = post(there, form(submission(there.opened[0][2], "wrong incident")))
    assert "nothing was recorded" in answer.json()["errors"]["tk_reason"]


def test_a_form_that_could_not_be_taken_stays_open_and_says_so_at_its_first_field() -> None:
    there = task_world()
    post(there, form(click("tk_fill", pressed())))
    there.broken = Held()
    answer = post(there, form(submission(there.opened[0][2])))
    assert "nothing was recorded" in answer.json()["errors"]["tk_f_cause"]


def test_a_failed_command_says_so() -> None:
    there = world()
    there.broken = Held()
    assert "nothing was recorded" in post(there, urlencode(command("pending")).encode()).json()["text"]


def test_no_variable_of_the_environment_has_an_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = endpoint.bolt_app(World().clicks(), SECRET, lambda _: None)
    for name in (
        "BOT_TOKEN",
        "SIGNING_SECRET",
        "CLIENT_ID",
        "CLIENT_SECRET",
        "VERIFICATION_TOKEN",
        "SCOPES",
        "APP_TOKEN",
    ):
        monkeypatch.setenv(f"SLACK_{name}", "from-the-environment")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))
    there = world()
    app = endpoint.bolt_app(there.clicks(), SECRET, there.counted.append)
    assert app.oauth_flow is None
    assert app.installation_store is None
    assert app._token is None
    assert app.client.token is None
    assert app.client.proxy is None
    assert [type(part) for part in app._middleware_list] == [type(part) for part in plain._middleware_list]
    assert post(there, form(click("tk_approve", value("tk_approve")))).status_code == 200
    assert post(world(), b"ssl_check=1", []).status_code == 401
    body = form(click("tk_approve", value("tk_approve")))
    assert post(world(), body, signed(body, secret="from-the-environment")).status_code == 401
    assert list(tmp_path.iterdir()) == []


def test_a_slow_click_does_not_hold_up_the_others() -> None:
    there, together = world(), threading.Barrier(4, timeout=10)
    decide = there.decide

    def wait_for_the_others(press: Any) -> Any:
        together.wait()
        return decide(press)

    clicks = there.clicks()
    clicks._seams = dataclasses.replace(clicks._seams, decide=wait_for_the_others)
    routes = endpoint.slack_routes(clicks, (SECRET,), lambda: NOW, there.counted.append)
    body = form(click("tk_approve", value("tk_approve")))
    headers = {key.decode(): held.decode() for key, held in signed(body)}
    with TestClient(Starlette(routes=routes)) as client:
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(client.post(endpoint.PATH, content=body, headers=headers).status_code)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)
    assert answers == [200] * 4


def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    there = world()
    body = form(click("tk_approve", value("tk_approve"), token="the-token"))
    post(there, body)
    post(there, body, signed(b"other"))
    there.broken = Held("the-token")
    post(there, body)
    assert "the-token" not in caplog.text
    assert "hooks.slack.com" not in caplog.text
    assert SECRET not in caplog.text
