"""What the local Slack desk sends to the product: signatures, payload shapes, deadlines, and the pages it is sent from."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from governance.local.children import LOOPBACK
from governance.local.desk.delivery import sign
from tests.kit.cards import CARD, MODAL, button, card, opens_modal, plain, post
from tests.kit.desk import BOT_TOKEN, PEOPLE, SIGNING_SECRET, Desk
from tests.kit.product import Product

# Mandatory and allowed keys, from the SDKs' samples of real payloads (reference/slack.md 4.3).
COMMON = {"type", "team", "user", "api_app_id", "token", "enterprise", "is_enterprise_install"}
KEYS = {
    "message": COMMON | {"container", "trigger_id", "channel", "message", "response_url", "actions", "state"},
    "ephemeral": COMMON | {"container", "trigger_id", "channel", "response_url", "actions", "state"},
    "view": COMMON | {"container", "trigger_id", "view", "actions"},
    "view_submission": COMMON | {"trigger_id", "view", "response_urls"},
    "view_closed": COMMON | {"view", "is_cleared"},
}
VIEW_KEYS = {
    "id", "team_id", "type", "blocks", "private_metadata", "callback_id", "state", "hash", "title", "submit", "close",
    "clear_on_close", "notify_on_close", "root_view_id", "previous_view_id", "app_id", "external_id",
    "app_installed_team_id", "bot_id",
}  # fmt: skip


@pytest.fixture
def slack(desk: Desk) -> WebClient:
    return WebClient(token=BOT_TOKEN, base_url=desk.api_base, retry_handlers=[], timeout=5)


def test_the_signature_is_slacks_own_known_example() -> None:
    """The example request of Slack's documentation on verifying requests."""
    body = (
        "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        "&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        "%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    expected = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert sign("8f742231b10e8888abcd99yyyzzz85a5", 1531420618, body) == expected


def test_a_press_arrives_signed_over_its_raw_bytes(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    browser, message = card(desk)
    browser.press(message, "approve")
    [delivery] = product.deliveries
    moment = delivery.headers["x-slack-request-timestamp"]
    expected = hmac.new(SIGNING_SECRET.encode(), f"v0:{moment}:".encode() + delivery.body, hashlib.sha256).hexdigest()
    assert delivery.headers["x-slack-signature"] == f"v0={expected}"
    assert abs(int(moment) - time.time()) < 5
    assert delivery.headers["content-type"] == "application/x-www-form-urlencoded"


def test_a_press_on_a_message_has_slacks_keys(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    browser, message = card(desk)
    browser.press(message, "approve")
    payload = product.deliveries[0].payload
    assert payload.keys() == KEYS["message"]
    assert payload["user"] == {"id": "U0ALICE", "username": "alice", "name": "alice", "team_id": "T0DEMO"}
    assert payload["team"]["id"] == "T0DEMO"
    assert payload["api_app_id"] == "A0TWOKEYS"
    assert payload["container"] == {
        "type": "message", "message_ts": message["ts"], "channel_id": "C0APPROVALS", "is_ephemeral": False,
    }  # fmt: skip
    assert payload["message"]["blocks"] == message["blocks"]
    [action] = payload["actions"]
    assert action.keys() == {"type", "action_id", "block_id", "value", "text", "action_ts"}
    assert (action["block_id"], action["action_id"], action["value"]) == ("buttons", "approve", "v1.x")


def test_somebody_of_another_company_presses_with_their_own_team(
    desk: Desk, slack: WebClient, product: Product
) -> None:
    post(slack)
    browser, message = card(desk, "U0EVE")
    browser.press(message, "approve")
    payload = product.deliveries[0].payload
    assert (payload["team"]["id"], payload["user"]["team_id"]) == ("T0DEMO", "T0OTHER")


def test_a_press_says_what_the_person_saw_although_the_card_has_changed(
    desk: Desk, slack: WebClient, product: Product
) -> None:
    """As in Slack: a client that has not drawn the newer card sends the older value."""
    post(slack)
    browser, message = card(desk)
    newer = [CARD[0], {"type": "actions", "block_id": "buttons", "elements": [button("approve", value="v2.y")]}]
    slack.chat_update(channel="C0APPROVALS", ts=message["ts"], text="newer", blocks=newer)
    browser.press(message, "approve")
    assert product.deliveries[0].payload["actions"][0]["value"] == "v1.x"
    assert product.deliveries[0].payload["message"]["text"] == "newer"


def test_a_modal_opens_takes_input_shows_errors_and_closes(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    product.answer = opens_modal(slack)
    browser, message = card(desk)
    browser.press(message, "review")
    assert browser.view()["callback_id"] == "reject"
    assert desk.browser("U0BOB").view() is None

    browser.submit({"reason": ""})
    assert browser.state()["errors"]["U0ALICE"] == {"reason": "Please complete this required field."}
    assert len(product.deliveries) == 1  # Slack's client does not send an incomplete form

    product.answer = lambda _: (200, '{"response_action": "errors", "errors": {"reason": "Say more"}}')
    browser.submit({"reason": "no\r\nway"})
    payload = product.deliveries[-1].payload
    assert payload.keys() == KEYS["view_submission"]
    assert payload["view"].keys() == VIEW_KEYS
    assert payload["view"]["private_metadata"] == "opaque"
    assert payload["view"]["state"]["values"] == {"reason": {"text": {"type": "plain_text_input", "value": "no\nway"}}}
    assert browser.state()["errors"]["U0ALICE"] == {"reason": "Say more"}
    assert "no\nway" in browser.page("/c/C0APPROVALS")[1]

    updated = {**MODAL, "title": plain("Done"), "blocks": [CARD[0]]}
    del updated["submit"]
    product.answer = lambda _: (200, json.dumps({"response_action": "update", "view": updated}))
    browser.submit({"reason": "no"})
    assert browser.view()["title"]["text"] == "Done"

    product.answer = lambda _: (200, "")
    browser.close()
    assert product.deliveries[-1].payload.keys() == KEYS["view_closed"]
    assert browser.view() is None


@pytest.mark.parametrize("answer", ["", '{"response_action": "clear"}'])
def test_an_accepted_form_closes_the_modal(desk: Desk, slack: WebClient, product: Product, answer: str) -> None:
    post(slack)
    product.answer = opens_modal(slack)
    browser, message = card(desk)
    browser.press(message, "review")
    product.answer = lambda _: (200, answer)
    browser.submit({"reason": "because"})
    assert browser.view() is None


def test_a_press_inside_a_modal_has_a_view_and_no_message(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    product.answer = opens_modal(slack)
    browser, message = card(desk)
    browser.press(message, "review")
    product.answer = lambda _: (200, "")
    browser.press(browser.view(), "explain", answers={"reason": "half a tho"})
    payload = product.deliveries[-1].payload
    assert payload.keys() == KEYS["view"]
    assert payload["container"] == {"type": "view", "view_id": payload["view"]["id"]}
    assert browser.view()["state"]["values"]["reason"]["text"]["value"] == "half a tho"


def test_a_trigger_opens_one_view(desk: Desk, slack: WebClient, product: Product) -> None:
    """That it lives for three seconds is shown in tests/governance/local/test_desk_state.py, without the wait."""
    post(slack)
    browser, message = card(desk)
    browser.press(message, "review")
    used = product.deliveries[0].payload["trigger_id"]
    assert slack.views_open(trigger_id=used, view=MODAL)["view"]["id"] == browser.view()["id"]
    assert refusal(slack.views_open, trigger_id=used, view=MODAL) == "exchanged_trigger_id"
    assert refusal(slack.views_open, trigger_id="1.2.3", view=MODAL) == "invalid_trigger_id"


def test_a_private_note_is_seen_by_its_addressee_only(desk: Desk, slack: WebClient, product: Product) -> None:
    slack.chat_postEphemeral(channel="C0APPROVALS", user="U0BOB", text="for *Bob*", blocks=CARD)
    assert "Only visible to you" in desk.browser("U0BOB").page("/c/C0APPROVALS")[1]
    assert "Only visible to you" not in desk.browser("U0ALICE").page("/c/C0APPROVALS")[1]
    bob = desk.browser("U0BOB")
    note = bob.state()["ephemerals"][0]
    bob.press(note, "approve")
    assert product.deliveries[0].payload.keys() == KEYS["ephemeral"]
    with pytest.raises(Exception, match="not there any more"):
        desk.browser("U0ALICE").press(note, "approve")


def test_a_response_url_answers_five_times(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    browser, message = card(desk)
    browser.press(message, "approve")
    url = product.deliveries[0].payload["response_url"]
    assert send(url, '{"text": "thank you"}') == (200, "ok")
    assert browser.notes() == ["thank you"]
    assert desk.browser("U0BOB").notes() == []
    assert send(url, '{"replace_original": true, "text": "decided"}')[0] == 200
    assert browser.state()["messages"][-1]["text"] == "decided"
    assert "blocks" not in browser.state()["messages"][-1]
    assert send(url, '{"response_type": "in_channel", "text": "all see"}')[0] == 200
    assert send(url, "{")[0] == 400
    assert send(url, '{"blocks": [{"type": "nonsense"}]}') == (400, "invalid_blocks")
    assert send(url, '{"text": "4"}')[0] == 200
    assert send(url, '{"delete_original": true}')[0] == 200
    assert [m["text"] for m in browser.state()["messages"]] == ["all see"]
    assert send(url, '{"text": "6"}') == (404, "expired_url")


def test_a_slash_command_carries_its_text_and_shows_its_answer(desk: Desk, product: Product) -> None:
    product.answer = lambda _: (200, "*3* waiting")
    browser = desk.browser("U0CAROL")
    browser.command("C0APPROVALS", "/twokeys list")
    form = product.deliveries[0].form
    assert form.keys() == {
        "token", "team_id", "team_domain", "channel_id", "channel_name", "user_id", "user_name", "command", "text",
        "response_url", "trigger_id", "api_app_id", "is_enterprise_install",
    }  # fmt: skip
    assert (form["command"], form["text"], form["user_id"]) == ("/twokeys", "list", "U0CAROL")
    assert form["is_enterprise_install"] == "false"
    assert browser.notes() == ["*3* waiting"]


def test_the_home_tab_is_shown_to_its_owner(desk: Desk, slack: WebClient, product: Product) -> None:
    slack.views_publish(user_id="U0BOB", view={"type": "home", "blocks": CARD})
    bob = desk.browser("U0BOB")
    assert "Close &lt;b&gt;INC1&lt;/b&gt; &amp; tell" in bob.page("/app-home")[1]
    assert "published nothing" in desk.browser("U0ALICE").page("/app-home")[1]
    home = bob.state()["homes"]["U0BOB"]
    press = '{"type": "button", "block_id": "buttons", "action_id": "approve", "value": "v1.x"}'
    bob.send_press(home, press)
    assert product.deliveries[0].payload.keys() == KEYS["view"]


def test_a_delivery_again_is_the_same_bytes_and_a_forged_one_is_not_signed(
    desk: Desk, slack: WebClient, product: Product
) -> None:
    post(slack)
    browser, message = card(desk)
    browser.press(message, "approve")
    for variant in ("again", "wrong_signature", "late"):
        browser.deliver_again(1, variant)
    first, again, forged, late = product.deliveries
    assert (again.body, again.headers["x-slack-signature"]) == (first.body, first.headers["x-slack-signature"])
    assert forged.body == first.body
    assert forged.headers["x-slack-signature"] != first.headers["x-slack-signature"]
    assert re.fullmatch("v0=[0-9a-f]{64}", forged.headers["x-slack-signature"])
    moments = [int(delivery.headers["x-slack-request-timestamp"]) for delivery in (first, late)]
    assert moments[0] - moments[1] == 600
    expected = sign(SIGNING_SECRET, moments[1], first.body.decode())
    assert late.headers["x-slack-signature"] == expected
    assert "wrong signature" in browser.page("/deliveries")[1]


def test_a_product_that_fails_makes_slacks_warning(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    product.answer = lambda _: (500, "broken")
    browser, message = card(desk)
    browser.press(message, "approve")
    assert "responded with Status Code 500" in browser.page("/c/C0APPROVALS")[1]
    assert "Status Code 500" not in desk.browser("U0BOB").page("/c/C0APPROVALS")[1]
    product.answer = lambda _: (200, "")
    browser.press(message, "approve")
    assert "Status Code 500" not in browser.page("/c/C0APPROVALS")[1]


def test_a_product_that_is_down_or_too_slow_makes_slacks_warning(
    start_desk: Callable[..., Desk], product: Product
) -> None:
    held = threading.Event()
    product.answer = lambda _: (200, str(held.wait(20)))
    for url in ("http://127.0.0.1:9/slack/events", product.url):
        desk = start_desk(url)
        slack = WebClient(token=BOT_TOKEN, base_url=desk.api_base)
        post(slack)
        browser, message = card(desk)
        begun = time.monotonic()
        browser.press(message, "approve")
        assert time.monotonic() - begun < 4
        assert "respond in time" in browser.state()["notices"]["U0ALICE"]
        desk.stop()
    held.set()


def test_cards_survive_a_crash_of_the_desk(desk: Desk, slack: WebClient, product: Product) -> None:
    post(slack)
    before, address = desk.browser().state(), desk.base_url
    desk.restart()
    assert desk.base_url == address
    assert desk.browser().state() == before


def test_a_page_drawn_for_somebody_else_does_not_act_for_you(desk: Desk, slack: WebClient, product: Product) -> None:
    """Two tabs share the cookie: the older tab must not press as the newer person."""
    post(slack)
    _, message = card(desk, "U0ALICE")
    form = f"as=U0BOB&channel=C0APPROVALS&ts={message['ts']}&press=%7B%22type%22%3A%22button%22%2C%22block_id%22%3A%22b%22%7D"
    status, text = raw(desk, "POST", "/click", form, Cookie="desk_persona=U0ALICE")
    assert (status, "Nothing was sent" in text) == (409, True)
    assert product.deliveries == []


def test_only_loopback_names_and_own_forms_are_served(desk: Desk) -> None:
    """A website in the same browser can neither press a button nor read a page by another name."""
    assert raw(desk, "GET", "/", Host="desk.example:80")[0] == 421
    assert raw(desk, "POST", "/persona", "persona=U0BOB", Origin="http://evil.example")[0] == 403
    assert raw(desk, "POST", "/persona", "persona=U0BOB", Origin=desk.base_url)[0] == 303
    assert raw(desk, "POST", "/persona", "persona=U0BOB&back=//evil.example")[0] == 303


def test_every_page_says_what_it_is_and_runs_no_script(desk: Desk, slack: WebClient) -> None:
    hostile = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    blocks = [
        {"type": "header", "text": plain(hostile)},
        {"type": "section", "text": {"type": "mrkdwn", "text": f"<javascript:alert(1)|x> `{hostile}` *{hostile}*"}},
        {
            "type": "rich_text",
            "elements": [{"type": "rich_text_section", "elements": [{"type": "text", "text": hostile}]}],
        },
        {"type": "actions", "elements": [{**button("a"), "text": plain(hostile), "value": hostile}]},
    ]
    slack.chat_postMessage(channel="C0APPROVALS", text=hostile, blocks=blocks)
    slack.chat_postMessage(channel="C0APPROVALS", text=hostile)
    for path in ("/c/C0APPROVALS", "/c/C0APPROVALS?compose", "/app-home", "/deliveries"):
        connection = http.client.HTTPConnection(LOOPBACK, int(desk.base_url.rpartition(":")[2]), timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read().decode()
        connection.close()
        assert answer.status == 200
        assert "This is not Slack." in page
        assert "<script" not in page.lower()
        assert "<img" not in page.lower()
        assert 'href="javascript' not in page
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; form-action 'self'")


def test_a_button_with_a_confirmation_asks_first(desk: Desk, slack: WebClient, product: Product) -> None:
    confirm = {"title": plain("Really?"), "text": plain("It is final."), "confirm": plain("Yes"), "deny": plain("No")}
    blocks = [{"type": "actions", "block_id": "buttons", "elements": [button("close", confirm=confirm)]}]
    slack.chat_postMessage(channel="C0APPROVALS", text="x", blocks=blocks)
    browser, message = card(desk)
    browser.press(message, "close", confirmed=False)
    assert product.deliveries == []
    browser.press(message, "close")
    assert len(product.deliveries) == 1
    assert "confirm" not in product.deliveries[0].payload["actions"][0]


def test_everybody_at_the_desk_is_offered(desk: Desk) -> None:
    page = desk.browser().page("/c/C0APPROVALS")[1]
    for person in PEOPLE:
        assert person.name in page
        assert person.note in page


def refusal(call: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(SlackApiError) as error:
        call(**arguments)
    return str(error.value.response["error"])


def send(url: str, body: str) -> tuple[int, str]:
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("POST", f"/{path}", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def raw(desk: Desk, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(desk.base_url.removeprefix("http://"), timeout=10)
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text
