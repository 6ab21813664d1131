"""Proves what each click, window, command and event does at the outermost seam, and that each of them is answered."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

import pytest

from engine.canonical import jcs, sha256
from engine.errors import CallerError
from governance.slack import clicks as clicks_module
from governance.slack import views
from governance.slack.api import Sent
from governance.store.home import Desk, Item
from tests.governance.slack.kit import ALICE, APPROVAL, TEAM, World, click, command, record, submission, value
from tests.governance.slack.rules import check_blocks, check_view

REPLY = {
    "channel": "C0OPS",
    "user": ALICE,
    "thread_ts": "",
    "response_url": "https://hooks.slack.com/actions/T0ACME/1/x",
}


def world(**changed: Any) -> World:
    return World(records={("acme", APPROVAL): record()}, **changed)


def opened(there: World, action_id: str) -> dict[str, Any]:
    there.clicks().action(click(action_id, value(action_id)))
    return there.opened[-1][2]


def test_approve_presses_a_key_with_everything_the_command_needs() -> None:
    there = world()
    outcome = there.clicks().action(click("tk_approve", value("tk_approve")))
    (press,) = there.pressed
    assert dataclasses.asdict(press) == {
        "tenant": "acme",
        "approval": APPROVAL,
        "actor_kind": "slack",
        "actor_ref": "T0ACME:U0ALICE",
        "kind": "key",
        "digest16": "ab" * 8,
        "card_rev": 1,
        "via": "slack_button",
        "reason": "",
        "dedupe_key": "1.2.trigger",
        "blocks_sha256": sha256(jcs([{"type": "divider"}])).hex(),
        "reply": REPLY,
        "ticket": "",
    }
    assert (outcome.status, outcome.body, there.told) == (200, "", [])


def test_a_click_in_a_thread_is_answered_in_the_thread() -> None:
    there = world()
    payload = click("tk_approve", value("tk_approve"), message={"ts": "2.3", "thread_ts": "1.2", "blocks": []})
    there.clicks().action(payload)
    assert there.pressed[0].reply["thread_ts"] == "1.2"


@pytest.mark.parametrize(
    ("action_id", "title", "submit"),
    [("tk_review", "Approve AP-1a2b3c", "Approve"), ("tk_reject", "Reject AP-1a2b3c", "Reject")],
)
def test_review_and_reject_open_a_window_and_decide_nothing(action_id: str, title: str, submit: str) -> None:
    there = world()
    view = opened(there, action_id)
    check_view(view)
    assert (view["title"]["text"], view["submit"]["text"], view["close"]["text"]) == (title, submit, "Back")
    assert there.opened[0][:2] == ("acme", "1.2.trigger")
    assert there.pressed == there.told == []


def odd(name: str) -> dict[str, Any]:
    other_mac = value("tk_approve")[:-16] + "0" * 16
    made = {
        "old_action": click("old_approve", value("tk_approve")),
        "no_action": click("tk_approve", value("tk_approve"), actions=[]),
        "two_actions": click("tk_approve", value("tk_approve"), actions=[{}, {}]),
        "no_value": click("tk_approve", ""),
        "json_value": click("tk_approve", '{"v":1,"ap":"x"}'),
        "value_is_a_number": click(
            "tk_approve", value("tk_approve"), actions=[{"action_id": "tk_approve", "value": 7}]
        ),
        "wrong_mac": click("tk_approve", other_mac),
        "value_of_reject_on_approve": click("tk_approve", value("tk_reject")),
        "value_of_review_on_approve": click("tk_approve", value("tk_review")),
        "changed_rev": click("tk_approve", value("tk_approve").replace(".1.ab", ".2.ab")),
        "changed_digest": click("tk_approve", value("tk_approve").replace("ab" * 8, "cd" * 8)),
        "changed_approval": click("tk_approve", value("tk_approve").replace("ap_1a", "ap_2b")),
        "other_tenant": click(
            "tk_approve", value("tk_approve"), team={"id": "T0OTHER"}, user={"id": ALICE, "team_id": "T0OTHER"}
        ),
        "outsider": click("tk_approve", value("tk_approve"), user={"id": "U0EVE", "team_id": "T0EVIL"}),
        "outsider_review": click("tk_review", value("tk_review"), user={"id": "U0EVE", "team_id": "T0EVIL"}),
    }
    return made[name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("old_action", clicks_module.old_card),
        ("no_action", clicks_module.old_card),
        ("two_actions", clicks_module.old_card),
        ("no_value", clicks_module.old_card),
        ("json_value", clicks_module.old_card),
        ("value_is_a_number", clicks_module.old_card),
        ("wrong_mac", clicks_module.not_here),
        ("value_of_reject_on_approve", clicks_module.not_here),
        ("value_of_review_on_approve", clicks_module.not_here),
        ("changed_rev", clicks_module.not_here),
        ("changed_digest", clicks_module.not_here),
        ("changed_approval", clicks_module.not_here),
        ("other_tenant", clicks_module.not_here),
        ("outsider", clicks_module.outsider),
        ("outsider_review", clicks_module.outsider),
    ],
)
def test_a_click_that_may_not_count_is_refused_with_a_sentence(name: str, sentence: str) -> None:
    there = world()
    outcome = there.clicks().action(odd(name))
    assert outcome.status == 200
    assert there.pressed == there.opened == []
    ((tenant, reply, told),) = there.told
    assert told == sentence
    assert tenant == ("other" if name == "other_tenant" else "acme")
    assert reply["channel"] == "C0OPS"
    assert there.counted


@pytest.mark.parametrize(
    ("changed", "counted"),
    [
        ({"api_app_id": "A0OTHER"}, "slack_wrong_app"),
        ({"api_app_id": None}, "slack_wrong_app"),
        ({"team": {"id": "T0NOBODY"}}, "slack_unknown_team"),
        ({"team": None}, "slack_unknown_team"),
        ({"team": {"id": ["T0ACME"]}}, "slack_unknown_team"),
        ({"user": None}, "slack_no_user"),
        ({"user": {"id": "alice"}}, "slack_no_user"),
        ({"user": {"id": {"$ne": ""}}}, "slack_no_user"),
    ],
)
def test_a_click_from_nowhere_is_dropped_and_counted(changed: dict[str, Any], counted: str) -> None:
    there = world()
    outcome = there.clicks().action(click("tk_approve", value("tk_approve"), **changed))
    assert (outcome.status, there.counted) == (200, [counted])
    assert there.pressed == there.told == there.opened == []


def test_the_click_of_a_second_installation_is_left_alone() -> None:
    there = world()
    outcome = there.clicks().action(click("tk_approve", value("tk_approve", deployment="staging")))
    assert (outcome.status, there.counted) == (200, ["slack_foreign_deployment"])
    assert there.pressed == there.told == []


def test_a_deployment_with_a_dot_in_its_name_refuses_to_start() -> None:
    with pytest.raises(CallerError, match="deployment"):
        World().clicks("prod.1")


def test_a_window_for_a_request_nobody_knows_is_refused_with_a_sentence() -> None:
    there = World()
    there.clicks().action(click("tk_review", value("tk_review")))
    assert [told for _, _, told in there.told] == [clicks_module.unknown_here]


def test_a_window_that_slack_does_not_open_is_told_with_the_console() -> None:
    there = world(modal=Sent("rejected", error="expired_trigger_id"))
    there.clicks().action(click("tk_reject", value("tk_reject")))
    ((_, _, told),) = there.told
    assert told.startswith("Slack did not open the window")
    assert "https://twokeys.example.com/approvals/" in told
    assert there.pressed == []


def test_a_settled_request_opens_a_window_without_approve() -> None:
    there = World(records={("acme", APPROVAL): record(phase="rejected", outcome="Rejected by Li: not today")})
    for action_id in ("tk_review", "tk_reject"):
        view = opened(there, action_id)
        assert "submit" not in view
        assert "Rejected by Li: not today" in json.dumps(view)


# --- windows --------------------------------------------------------------------------------------------------------


def test_reject_with_a_reason_rejects_and_the_window_shows_the_answer() -> None:
    there = world()
    view = opened(there, "tk_reject")
    outcome = there.clicks().submission(submission(view, "  the wrong incident \x00\ud800 "))
    (press,) = there.pressed
    assert (press.kind, press.via, press.reason) == ("reject", "slack_modal", "the wrong incident \ufffd?")
    assert (press.reply, press.dedupe_key) == ({}, "3.4.trigger")
    assert press.blocks_sha256 == views.blocks_digest(view["blocks"])
    assert isinstance(outcome.body, dict)
    assert outcome.body["response_action"] == "update"
    check_view(outcome.body["view"])
    assert there.answer.sentence in json.dumps(outcome.body["view"])
    assert there.told == []


def test_approve_in_the_window_needs_no_note() -> None:
    there = world()
    there.clicks().submission(submission(opened(there, "tk_review"), None))
    (press,) = there.pressed
    assert (press.kind, press.via, press.reason, press.digest16, press.card_rev) == (
        "key",
        "slack_modal",
        "",
        "ab" * 8,
        1,
    )


@pytest.mark.parametrize("reason", [None, "", "   ", "\n\t", "x" * 2_001])
def test_reject_without_a_usable_reason_keeps_the_window_open(reason: str | None) -> None:
    there = world()
    outcome = there.clicks().submission(submission(opened(there, "tk_reject"), reason))
    assert isinstance(outcome.body, dict)
    assert outcome.body["response_action"] == "errors"
    assert set(outcome.body["errors"]) == {"tk_reason"}
    assert there.pressed == []


def tampered(view: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = json.loads(view["private_metadata"])
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "another_person": ({}, {"user": {"id": "U0BOB", "team_id": TEAM}}),
        "forged_opener": (
            {"private_metadata": jcs({**metadata, "user": "U0BOB"}).decode()},
            {"user": {"id": "U0BOB", "team_id": TEAM}},
        ),
        "approve_made_of_reject": ({"callback_id": "tk_submit_approve"}, {}),
        "no_metadata": ({"private_metadata": ""}, {}),
        "broken_metadata": ({"private_metadata": "{"}, {}),
        "metadata_is_a_list": ({"private_metadata": "[]"}, {}),
        "metadata_with_more": ({"private_metadata": jcs({**metadata, "more": "x"}).decode()}, {}),
        "non_ascii_mac": ({"private_metadata": jcs({**metadata, "mac": "é" * 32}).decode()}, {}),
        "surrogate": ({"private_metadata": "\ud800"}, {}),
        "old_window": ({"callback_id": "another"}, {}),
        "outsider": ({}, {"user": {"id": ALICE, "team_id": "T0EVIL"}}),
        "other_tenant": (
            {"app_installed_team_id": "T0OTHER"},
            {"team": {"id": "T0OTHER"}, "user": {"id": ALICE, "team_id": "T0OTHER"}},
        ),
    }
    return changes[name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("another_person", clicks_module.not_yours),
        ("forged_opener", clicks_module.not_here),
        ("approve_made_of_reject", clicks_module.not_here),
        ("no_metadata", clicks_module.not_here),
        ("broken_metadata", clicks_module.not_here),
        ("metadata_is_a_list", clicks_module.not_here),
        ("metadata_with_more", clicks_module.not_here),
        ("non_ascii_mac", clicks_module.not_here),
        ("surrogate", clicks_module.not_here),
        ("old_window", clicks_module.old_card),
        ("outsider", clicks_module.outsider),
        ("other_tenant", clicks_module.not_here),
    ],
)
def test_a_window_that_was_tampered_with_decides_nothing_and_says_so(name: str, sentence: str) -> None:
    there = world()
    view = opened(there, "tk_reject")
    in_view, in_payload = tampered(view, name)
    payload = submission(view, "because", **in_payload)
    payload["view"] = {**payload["view"], **in_view}
    outcome = there.clicks().submission(payload)
    assert isinstance(outcome.body, dict)
    assert sentence in json.dumps(outcome.body["view"], ensure_ascii=False)
    assert there.pressed == []


def test_closing_a_window_decides_nothing() -> None:
    there = world()
    view = opened(there, "tk_reject")
    outcome = there.clicks().closed({**submission(view, "because"), "type": "view_closed"})
    assert (outcome.body, outcome.status, there.pressed, there.told) == ("", 200, [], [])


def test_two_windows_without_a_trigger_still_have_different_dedupe_keys() -> None:
    there = world()
    view = opened(there, "tk_review")
    first, second = (submission(view, "x", trigger_id=None) for _ in range(2))
    second["view"]["hash"] = "h2"
    for payload in (first, first, second):
        there.clicks().submission(payload)
    keys = [press.dedupe_key for press in there.pressed]
    assert keys[0] == keys[1] != keys[2]


# --- slash command and events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "help", "HELP", "  help  ", "dance", "<!channel> dance"])
def test_help_is_for_the_person_who_asks_only(text: str) -> None:
    outcome = World().clicks().command(command(text))
    assert isinstance(outcome.body, dict)
    assert outcome.body["response_type"] == "ephemeral"
    assert "/twokeys pending" in outcome.body["text"]
    assert "<" not in outcome.body["text"]


@dataclasses.dataclass
class Looking:
    """What there is to see, in place of slack/looks."""

    found: Any = None

    def desk(self, tenant: str, ref: str) -> Any:
        return self.found

    def asked(self, tenant: str, ref: str, name: str) -> Any:
        raise CallerError("AP-1 <!channel> is unknown here", next_step="give more digits")

    run = asked


def items(count: int, **changed: Any) -> tuple[Item, ...]:
    values: dict[str, Any] = {
        "summary": "<!channel> close\nApproved by @ana", "target": "INC1", "tier": "high", "given": 1, "needed": 2,
        "expires_at": datetime.datetime(2027, 1, 15, 9, tzinfo=datetime.UTC), "card_rev": 1, "digest16": "ab" * 8,
    }  # fmt: skip
    return tuple(Item(ref=f"ap_{n:016x}", **{**values, **changed}) for n in range(count))


def desk(count: int) -> tuple[str, Desk]:
    return "Ana", Desk(items(min(count, 20)), count, (), 0, (), ())


def test_pending_lists_what_waits_in_literal_text() -> None:
    outcome = World(looking=Looking(desk(25))).clicks().command(command("pending"))
    assert isinstance(outcome.body, dict)
    texts = [part["text"] for part in _texts(outcome.body["blocks"]) if part["type"] == "mrkdwn"]
    assert all("channel" not in text for text in texts)
    assert "Waiting for you (25)" in json.dumps(outcome.body)
    shown = json.dumps(outcome.body).count("Review and decide")
    assert 7 <= shown < 20
    assert f"and {25 - shown} more" in json.dumps(outcome.body)
    check_blocks(outcome.body["blocks"])


def _texts(part: Any) -> list[dict[str, Any]]:
    if isinstance(part, dict):
        own = [part] if isinstance(part.get("text"), str) else []
        return own + [text for inner in part.values() for text in _texts(inner)]
    return [text for inner in part for text in _texts(inner)] if isinstance(part, list) else []


def test_nothing_pending_is_an_answer_too() -> None:
    outcome = World(looking=Looking(desk(0))).clicks().command(command("pending"))
    assert isinstance(outcome.body, dict)
    assert outcome.body["text"] == "Nothing waits for you."


def test_somebody_who_is_linked_to_nobody_reads_what_to_ask_for() -> None:
    outcome = World(looking=Looking()).clicks().command(command("pending"))
    assert isinstance(outcome.body, dict)
    assert f"--team {TEAM} --user {ALICE}" in json.dumps(outcome.body)


@pytest.mark.parametrize("text", ["show", "why", "run", "show a b", "show AP-1", "why AP-1", "run 9f9f9f"])
def test_what_is_not_there_is_said_in_literal_text(text: str) -> None:
    outcome = World(looking=Looking()).clicks().command(command(text))
    assert isinstance(outcome.body, dict)
    assert outcome.body["response_type"] == "ephemeral"
    assert "<" not in outcome.body["text"]
    check_blocks(outcome.body["blocks"])
    assert "Say which" in outcome.body["text"] or "is unknown here" in outcome.body["text"]


def test_looking_at_the_home_tab_asks_for_it_and_a_messages_tab_does_not() -> None:
    there = World()
    for tab, user in (("home", ALICE), ("messages", ALICE), ("home", "not a user")):
        event = {"type": "app_home_opened", "user": user, "tab": tab}
        there.clicks().event({"team_id": TEAM, "api_app_id": "A0TWOKEYS", "event": event})
    assert there.homes == [("acme", f"{TEAM}:{ALICE}")]


def test_a_workspace_without_an_installation_is_told_so() -> None:
    outcome = World().clicks().command(command("pending", team_id="T0NOBODY"))
    assert isinstance(outcome.body, dict)
    assert "not set up" in outcome.body["text"]


@pytest.mark.parametrize("name", ["app_uninstalled", "tokens_revoked"])
def test_a_lost_installation_is_passed_on(name: str) -> None:
    there = World()
    there.clicks().event({"team_id": TEAM, "api_app_id": "A0TWOKEYS", "event": {"type": name}})
    assert there.lost == [("acme", name)]


@pytest.mark.parametrize(
    "changed", [{"team_id": "T0NOBODY"}, {"api_app_id": "A0OTHER"}, {"event": {"type": "message"}}, {"event": None}]
)
def test_other_events_are_answered_and_nothing_else(changed: dict[str, Any]) -> None:
    there = World()
    payload = {"team_id": TEAM, "api_app_id": "A0TWOKEYS", "event": {"type": "app_uninstalled"}, **changed}
    assert there.clicks().event(payload).status == 200
    assert there.lost == []
