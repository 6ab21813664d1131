"""The desk's Web API against slack_sdk: methods, error codes, and limits that equal the SDK's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import ActionsBlock, ButtonElement, ContextBlock, HeaderBlock, SectionBlock
from slack_sdk.models.blocks.basic_components import ConfirmObject, Option
from slack_sdk.models.views import View

from governance.local.desk.blocks import check_message, check_view, with_ids
from governance.local.desk.state import SlackError
from tests.kit.desk import BOT_TOKEN, Desk


@pytest.fixture
def slack(desk: Desk) -> WebClient:
    return WebClient(token=BOT_TOKEN, base_url=desk.api_base, retry_handlers=[], timeout=5)


def plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def section(text: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "section", "text": plain(text), **more}


def actions(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "actions", "elements": list(elements)}


def button(text: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "button", "text": plain(text), **more}


def modal(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "modal", "title": plain("t"), "blocks": list(blocks), **more}


def refused(blocks: Any) -> str:
    with pytest.raises(SlackError) as error:
        check_message(blocks)
    return f"{error.value.code} {' '.join(error.value.messages)}"


def error_of(call: Any, **arguments: Any) -> Any:
    with pytest.raises(SlackApiError) as error:
        call(**arguments)
    return error.value.response


def test_who_we_are(slack: WebClient, desk: Desk) -> None:
    answer = slack.auth_test()
    assert (answer["team_id"], answer["user_id"], answer["bot_id"]) == ("T0DEMO", "U0TWOKEYS", "B0TWOKEYS")


def test_a_message_is_posted_updated_and_deleted(slack: WebClient, desk: Desk) -> None:
    meta = {"event_type": "approval", "event_payload": {"id": "a1"}}
    posted = slack.chat_postMessage(channel="#approvals", text="one", blocks=[section()], metadata=meta)
    assert posted["channel"] == "C0APPROVALS"
    assert posted["message"]["bot_id"] == "B0TWOKEYS"
    assert posted["message"]["metadata"] == meta
    assert posted["message"]["blocks"][0]["block_id"]
    place = {"channel": posted["channel"], "ts": posted["ts"]}
    slack.chat_update(**place, text="two", blocks=[section("b")])
    [message] = desk.browser().state()["messages"]
    assert (message["text"], message["blocks"][0]["text"]["text"]) == ("two", "b")
    assert "edited" not in message
    slack.chat_update(**place, text="three")  # text alone removes the blocks
    [message] = desk.browser().state()["messages"]
    assert "blocks" not in message
    assert "edited" in message
    slack.chat_delete(**place)
    assert error_of(slack.chat_update, **place, text="x")["error"] == "message_not_found"
    assert error_of(slack.chat_delete, **place)["error"] == "message_not_found"


def test_a_reply_stands_in_its_thread(slack: WebClient, desk: Desk) -> None:
    parent = slack.chat_postMessage(channel="C0APPROVALS", text="parent")
    slack.chat_postMessage(channel="C0APPROVALS", text="reply", thread_ts=parent["ts"])
    assert "1 reply" in desk.browser().page("/c/C0APPROVALS")[1]


def test_a_person_is_reached_in_their_own_conversation_only(slack: WebClient, desk: Desk) -> None:
    place = slack.conversations_open(users="U0BOB")["channel"]["id"]
    assert slack.chat_postMessage(channel="U0BOB", text="psst")["channel"] == place
    assert "psst" in desk.browser("U0BOB").page(f"/c/{place}")[1]
    assert desk.browser("U0ALICE").page(f"/c/{place}")[0] == 303


def test_people_are_what_the_desk_was_told(slack: WebClient) -> None:
    frank = slack.users_info(user="U0FRANK")["user"]
    assert (frank["deleted"], frank["is_bot"], frank["team_id"]) == (True, False, "T0DEMO")
    assert slack.users_info(user="U0EVE")["user"]["team_id"] == "T0OTHER"


def test_errors_are_slacks_own(slack: WebClient, desk: Desk) -> None:
    def said(call: Any, **arguments: Any) -> str:
        return str(error_of(call, **arguments)["error"])

    stranger = WebClient(token="xoxb-other", base_url=desk.api_base)
    assert said(stranger.auth_test) == "invalid_auth"
    assert said(WebClient(base_url=desk.api_base).auth_test) == "not_authed"
    assert said(slack.api_call, api_method="chat.nonsense") == "unknown_method"
    assert said(slack.chat_postMessage, channel="C0NOWHERE", text="x") == "channel_not_found"
    assert said(slack.api_call, api_method="chat.postMessage", json={"channel": "C0APPROVALS"}) == "no_text"
    assert said(slack.users_info, user="U0NOBODY") == "user_not_found"
    assert said(slack.conversations_open, users="U0NOBODY") == "user_not_found"
    assert said(slack.chat_postEphemeral, channel="C0APPROVALS", user="U0FRANK", text="x") == "user_not_in_channel"
    assert said(slack.views_update, view_id="V0", view=modal(section())) == "not_found"
    assert said(slack.views_publish, user_id="U0BOB", view=modal(section())) == "invalid_arguments"
    assert said(slack.views_open, trigger_id="x", view=modal()) == "invalid_trigger_id"


def test_an_invalid_card_is_refused_with_the_place_of_its_fault(slack: WebClient, desk: Desk) -> None:
    answer = error_of(slack.chat_postMessage, channel="C0APPROVALS", text="x", blocks=[section(), {"type": "fancy"}])
    assert answer["error"] == "invalid_blocks"
    assert answer["response_metadata"]["messages"] == ["[ERROR] unsupported type: fancy [json-pointer:/blocks/1/type]"]
    assert desk.browser().state()["messages"] == []


def test_a_home_tab_updates_only_on_the_hash_it_was_read_with(slack: WebClient) -> None:
    home = {"type": "home", "blocks": [section()]}
    first = slack.views_publish(user_id="U0BOB", view=home)["view"]
    slack.views_publish(user_id="U0BOB", view=home, hash=first["hash"])
    assert error_of(slack.views_publish, user_id="U0BOB", view=home, hash=first["hash"])["error"] == "hash_conflict"


@pytest.mark.parametrize(
    ("most", "make"),
    [
        (HeaderBlock.text_max_length, lambda n: {"type": "header", "text": plain("x" * n)}),
        (3000, lambda n: section("x" * n)),
        (SectionBlock.fields_max_length, lambda n: {"type": "section", "fields": [plain("x")] * n}),
        (2000, lambda n: {"type": "section", "fields": [plain("x" * n)]}),
        (ContextBlock.elements_max_length, lambda n: {"type": "context", "elements": [plain("x")] * n}),
        (ActionsBlock.elements_max_length, lambda n: actions(*[button()] * n)),
        (ButtonElement.text_max_length, lambda n: actions(button("x" * n))),
        (ButtonElement.value_max_length, lambda n: actions(button(value="x" * n))),
        (255, lambda n: actions(button(action_id="x" * n))),
        (255, lambda n: section(block_id="x" * n)),
        (
            ConfirmObject.text_max_length,
            lambda n: actions(
                button(confirm={"title": plain("t"), "text": plain("x" * n), "confirm": plain("y"), "deny": plain("n")})
            ),
        ),
        (
            Option.value_max_length,
            lambda n: actions({"type": "static_select", "options": [{"text": plain("x"), "value": "x" * n}]}),
        ),
    ],
    ids="header section fields field context actions button value action-id block-id confirm option".split(),
)
def test_a_limit_is_where_the_sdk_has_it(most: int, make: Any) -> None:
    """The last allowed length passes, one more is refused; an SDK that moves a limit fails here."""
    check_message([make(most)])
    assert refused([make(most + 1)]).startswith("invalid_blocks")


def test_the_counts_and_the_total_are_limited() -> None:
    check_message([section()] * 50)
    assert refused([section()] * 51).startswith("invalid_blocks")
    assert refused([section("x" * 2900)] * 5) == "msg_blocks_too_long "
    check_message([section("x" * 2500)] * 5)


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "header", "text": {"type": "mrkdwn", "text": "x"}},
        {"type": "section"},
        {"type": "section", "text": plain("")},
        {"type": "section", "text": plain("x"), "colour": "red"},
        {"type": "section", "text": {**plain("x"), "verbatim": True}},
        {"type": "actions", "elements": []},
        actions({**button(), "style": "loud"}),
        actions({**button(), "confirm": {"title": plain("x")}}),
        actions(button(action_id="a"), button(action_id="a")),
        actions({"type": "plain_text_input"}),
        actions({"type": "static_select", "options": [], "placeholder": plain("x")}),
        {"type": "rich_text", "elements": [{"type": "text", "text": "x"}]},
        {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": ["x"]}]},
        {"type": "context", "elements": [button()]},
        {"type": ["header"]},
        "header",
        None,
    ],
)
def test_a_block_slack_would_refuse_is_refused(broken: Any) -> None:
    assert refused([broken]).startswith("invalid_blocks [ERROR]")


def test_ids_are_unique_and_given_when_missing() -> None:
    assert "already exists" in refused([section(block_id="a"), section(block_id="a")])
    [block] = with_ids([actions(button())])
    assert block["block_id"]
    assert block["elements"][0]["action_id"]


@pytest.mark.parametrize(
    ("view", "code"),
    [
        ("text", "invalid_arguments"),
        ({"type": "modal", "blocks": []}, "invalid_arguments"),
        (modal(title=plain("x" * (View.title_max_length + 1))), "invalid_arguments"),
        (modal(private_metadata="x" * (View.private_metadata_max_length + 1)), "invalid_arguments"),
        (modal(callback_id="x" * (View.callback_id_max_length + 1)), "invalid_arguments"),
        (modal(*[section()] * (View.blocks_max_length + 1)), "invalid_arguments"),
        (
            modal({"type": "input", "label": plain("x"), "element": {"type": "plain_text_input"}}),
            "invalid_arguments",
        ),
        (modal(*[section("x" * 2900)] * 90), "view_too_large"),
    ],
)
def test_a_view_slack_would_refuse_is_refused(view: Any, code: str) -> None:
    with pytest.raises(SlackError) as error:
        check_view(json.loads(json.dumps(view)), "modal")
    assert error.value.code == code
