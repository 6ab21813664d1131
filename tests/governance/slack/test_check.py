"""`twokeys slack check`: each thing that can be wrong is named, with what to do about it, and a probe leaves nothing behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governance import clock
from governance.local.desk.webapi import SCOPES
from governance.slack.check import BOT_SCOPES, FAIL, OK, WARN, Check, Finding, Subject
from governance.store.templates import Installation
from tests.kit.product import Delivery, Product
from tests.kit.slack import SlackSink

MANIFEST = (Path(__file__).resolve().parents[3] / "manifest.yml").read_text("utf-8")
AUTH = {"ok": True, "team_id": "T0ACME", "team": "Acme", "user_id": "U0BOT", "user": "twokeys"}


@pytest.fixture
def slack() -> Iterator[SlackSink]:
    with SlackSink() as sink:
        sink.headers = {"x-oauth-scopes": ",".join(sorted(BOT_SCOPES))}
        yield sink


@pytest.fixture
def product() -> Iterator[Product]:
    with Product() as made:
        made.answer = lambda delivery: (200, delivery.payload["challenge"])
        yield made


def subject(slack: SlackSink, url: str = "http://127.0.0.1:1", **changed: Any) -> Subject:
    made = Subject(
        installed=Installation("T0ACME", "A0TWOKEYS", "U0BOT", b"", "C0OPS", "active"), token="xoxb-1", api_base=slack.api_base,
        local=True, app_id="A0TWOKEYS", public_url=url, signing_secret="a-signing-secret-of-32-characters",
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def found(slack: SlackSink, about: Subject, *, late: int = 0, manifest: str = "", **answers: Any) -> dict[str, Finding]:
    take = slack._take

    def answer(method: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        take(method, arguments)
        return 200, {**AUTH, "ts": "1.2", "channel": "C0OPS", **answers.get(method.partition(".")[2], {})}

    slack._take = answer  # type: ignore[method-assign]
    asking = Check(about, now=lambda: clock.epoch_seconds() + late, monotonic=clock.monotonic)
    return {one.check: one for one in asking.findings(posts=True, manifest=manifest)}


def test_an_installation_that_is_well_is_said_to_be(slack: SlackSink, product: Product) -> None:
    all_of_it = found(slack, subject(slack, product.url.removesuffix("/slack/events")))
    assert {one.check: one.state for one in all_of_it.values()} == dict.fromkeys(
        ("token", "scopes", "clock", "round trip", "address", "posting"), OK
    )
    assert [method for method, _ in slack.calls][-2:] == ["chat.postMessage", "chat.delete"]
    (signed,) = product.deliveries
    assert signed.headers["x-slack-signature"].startswith("v0=")


@pytest.mark.parametrize("error", ["invalid_auth", "token_revoked", "account_inactive", "token_expired"])
def test_a_token_that_slack_does_not_take_ends_the_questions(slack: SlackSink, error: str) -> None:
    only = found(slack, subject(slack), test={"ok": False, "error": error})
    assert list(only) == ["token"]
    assert only["token"].state == FAIL
    assert error in only["token"].what
    assert only["token"].next_step


@pytest.mark.parametrize(("named", "value", "state"), [("team_id", "T0OTHER", FAIL), ("user_id", "U0OTHER", WARN)])
def test_a_token_of_another_workspace_or_app_is_named(slack: SlackSink, named: str, value: str, state: str) -> None:
    one = found(slack, subject(slack), test={named: value})["token"]
    assert (one.state, value in one.what) == (state, True)


@pytest.mark.parametrize(
    ("header", "state", "word"),
    [
        ("chat:write", FAIL, "commands"),
        ("chat:write,commands,files:read", WARN, "files:read"),
        (None, WARN, "does not say"),
    ],
)
def test_permissions_are_read_from_the_answers_header(
    slack: SlackSink, header: str | None, state: str, word: str
) -> None:
    slack.headers = {} if header is None else {"x-oauth-scopes": header}
    one = found(slack, subject(slack))["scopes"]
    assert (one.state, word in one.what) == (state, True)


@pytest.mark.parametrize(("late", "state"), [(5, OK), (60, WARN), (400, FAIL), (-400, FAIL)])
def test_a_clock_that_is_off_is_named_before_clicks_are_refused(slack: SlackSink, late: int, state: str) -> None:
    assert found(slack, subject(slack), late=late)["clock"].state == state


@pytest.mark.parametrize("error", ["channel_not_found", "not_in_channel", "is_archived", "restricted_action"])
def test_a_channel_that_takes_no_message_is_named_with_what_to_do(slack: SlackSink, error: str) -> None:
    one = found(slack, subject(slack), postMessage={"ok": False, "error": error})["posting"]
    assert (one.state, error in one.what, "C0OPS" in one.what) == (FAIL, True, True)
    assert one.next_step != "see Slack's own word for it"


def test_a_probe_that_stays_is_said(slack: SlackSink) -> None:
    one = found(slack, subject(slack), delete={"ok": False, "error": "cant_delete_message"})["posting"]
    assert one.state == WARN
    assert "by hand" in one.next_step


@pytest.mark.parametrize("answer", [(401, ""), (200, "hello"), (502, "bad gateway")])
def test_an_address_that_answers_otherwise_is_named(
    slack: SlackSink, product: Product, answer: tuple[int, str]
) -> None:
    def other(_: Delivery) -> tuple[int, str]:
        return answer

    product.answer = other
    one = found(slack, subject(slack, product.url.removesuffix("/slack/events")))["address"]
    assert one.state == WARN
    assert one.next_step


def test_a_manifest_with_another_address_or_other_permissions_is_named(slack: SlackSink) -> None:
    here = MANIFEST.replace("https://twokeys.example.com", "http://127.0.0.1:1")
    assert found(slack, subject(slack), manifest=here)["manifest"].state == OK
    assert "twokeys.example.com" in found(slack, subject(slack), manifest=MANIFEST)["manifest"].what
    assert found(slack, subject(slack), manifest=here.replace("      - commands\n", ""))["manifest"].state == FAIL


def test_the_desk_says_the_permissions_of_the_manifest() -> None:
    assert set(SCOPES) == set(BOT_SCOPES)
