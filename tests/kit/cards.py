"""A small card and a small modal to put on a local Slack desk, and the steps tests take with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slack_sdk import WebClient

from tests.kit.desk import Desk
from tests.kit.product import Delivery


def plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def button(action_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "button", "action_id": action_id, "text": plain(action_id.title()), "value": "v1.x", **more}


CARD = [
    {"type": "section", "block_id": "what", "text": plain("Close <b>INC1</b> & tell")},
    {"type": "actions", "block_id": "buttons", "elements": [button("approve"), button("review")]},
]
MODAL = {
    "type": "modal",
    "callback_id": "reject",
    "private_metadata": "opaque",
    "notify_on_close": True,
    "title": plain("Reject"),
    "submit": plain("Send"),
    "blocks": [
        {
            "type": "input",
            "block_id": "reason",
            "label": plain("Why"),
            "element": {"type": "plain_text_input", "action_id": "text", "multiline": True},
        },
        {"type": "actions", "block_id": "more", "elements": [button("explain")]},
    ],
}


def post(slack: WebClient, **more: Any) -> None:
    slack.chat_postMessage(channel="C0APPROVALS", text="A card", blocks=CARD, **more)


def card(desk: Desk, user: str = "U0ALICE") -> tuple[Any, Any]:
    browser = desk.browser(user)
    return browser, browser.state()["messages"][-1]


def opens_modal(slack: WebClient) -> Callable[[Delivery], tuple[int, str]]:
    def answer(delivery: Delivery) -> tuple[int, str]:
        if delivery.payload["type"] == "block_actions":
            slack.views_open(trigger_id=delivery.payload["trigger_id"], view=MODAL)
        return 200, ""

    return answer
