"""Slack's own framework accepts what the desk sends, and refuses what the desk spoils."""

from __future__ import annotations

from typing import Any

import pytest
from slack_bolt import App, BoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient

from tests.kit.cards import CARD, MODAL, card, opens_modal, post
from tests.kit.desk import BOT_TOKEN, SIGNING_SECRET, Desk
from tests.kit.product import Delivery, Product


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def bolt(seen: list[Any]) -> App:
    def authorize(**_: Any) -> AuthorizeResult:
        return AuthorizeResult(enterprise_id=None, team_id="T0DEMO", bot_token=BOT_TOKEN, bot_user_id="U0TWOKEYS")

    def listen(ack: Any, body: dict[str, Any]) -> None:
        ack()
        seen.append(body)

    app = App(signing_secret=SIGNING_SECRET, authorize=authorize, process_before_response=True, ssl_check_enabled=False)
    app.action("approve")(listen)
    app.view("reject")(listen)
    app.command("/twokeys")(listen)
    app.event("app_home_opened")(lambda body: seen.append(body))
    return app


def dispatch(bolt: App, delivery: Delivery) -> int:
    headers = {name: [value] for name, value in delivery.headers.items()}
    return int(bolt.dispatch(BoltRequest(body=delivery.body.decode(), headers=headers)).status)


def test_bolt_accepts_every_kind_of_delivery(desk: Desk, product: Product, bolt: App, seen: list[Any]) -> None:
    slack = WebClient(token=BOT_TOKEN, base_url=desk.api_base)
    post(slack)
    browser, message = card(desk)
    browser.press(message, "approve")
    product.answer = opens_modal(slack)
    browser.press(message, "review")
    product.answer = lambda _: (200, "")
    browser.submit({"reason": "because"})
    browser.command("C0APPROVALS", "help")
    browser.open_home()
    pressed, _, submitted, commanded, opened = product.deliveries
    assert [dispatch(bolt, each) for each in (pressed, submitted, commanded, opened)] == [200] * 4
    assert seen[0]["message"]["blocks"][0]["text"] == CARD[0]["text"]
    assert seen[1]["view"]["callback_id"] == MODAL["callback_id"]
    assert seen[2]["text"] == "help"
    assert seen[3]["event"]["user"] == "U0ALICE"


def test_bolt_refuses_a_forged_and_a_late_delivery(desk: Desk, product: Product, bolt: App, seen: list[Any]) -> None:
    post(WebClient(token=BOT_TOKEN, base_url=desk.api_base))
    browser, message = card(desk)
    browser.press(message, "approve")
    browser.deliver_again(1, "wrong_signature")
    browser.deliver_again(1, "late")
    assert [dispatch(bolt, delivery) for delivery in product.deliveries] == [200, 401, 401]
    assert len(seen) == 1
