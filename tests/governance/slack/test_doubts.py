"""Doubts in Slack: a card with four answers, a window that asks for the reason, and nothing that lies when it is over."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from engine.gate.action import Action, Field, Target
from governance.local.desk.blocks import check_message
from governance.local.desk.blocks import check_view as desk_check_view
from governance.slack import doubts
from governance.slack.buttons import DOUBTS, SAY_DID_NOT, SAY_HAPPENED, SAY_PROBE, SAY_RETRY, Opened, value_for
from governance.store.doubts import DoubtRecord, Spoken
from tests.governance.slack.kit import ALICE, TEAM, World, click, mac, submission
from tests.governance.slack.nasty import words as nasty
from tests.governance.slack.rules import check_blocks, check_view

DOUBT = "un_1a2b3c4d5e6f7081"
AT = datetime.datetime(2027, 1, 15, 8, 0, tzinfo=datetime.UTC)
ACTION = Action(
    tenant="acme", workspace="main", run="9f" * 16, promise="0", step="close", workflow="incident-triage", version="3",
    definition="ab" * 32, connector="servicenow", operation="close", kind="write", risk="high", reversible=True, reversal="manual",
    target=Target("servicenow", "incident", "9d3f", "prod"), fields=(Field("state", "set", "7", "internal"),), amount_minor=0,
    currency="", preconditions=(("number", "INC1"), ("state", "2")), key="k", summary="Close incident", salt="ab" * 16,
)  # fmt: skip


def doubt(**changed: Any) -> DoubtRecord:
    made = DoubtRecord(
        tenant="acme", doubt=DOUBT, run="9f" * 16, promise="0", attempt=1, step="close", workflow="incident-triage", version="3",
        action=ACTION, state="open", found="connection_lost: the answer never came", asked_at=AT, words=(), given=0, needed=1,
        groups=("oncall",), excluded=("Rita",), resolved_by="", console_url="https://twokeys.example.com/runs/" + "9f" * 16,
    )  # fmt: skip
    return replace(made, **changed)


def world(**changed: Any) -> World:
    return World(doubts={("acme", DOUBT): doubt(**changed)})


def pressed(action_id: str, tenant: str = "acme", deployment: str = "prod-1") -> str:
    return value_for(doubts.named(doubt(), deployment), tenant, action_id, mac)


def texts(part: Any) -> str:
    if isinstance(part, dict):
        return " ".join(texts(value) for value in part.values())
    return " ".join(map(texts, part)) if isinstance(part, list) else str(part)


def test_an_open_doubt_has_four_buttons_and_says_what_may_have_happened() -> None:
    card = doubts.card(doubt(), "prod-1", mac)
    check_blocks(card.blocks)
    check_message(card.blocks)
    (row,) = [block for block in card.blocks if block["type"] == "actions"]
    assert [one["action_id"] for one in row["elements"]] == list(DOUBTS)
    shown = texts(card.blocks)
    for word in ("Close incident", "INC1", "attempt 1", "state → 7", "the answer never came", "@oncall", "UN-1a2b3c"):
        assert word in shown, word


@pytest.mark.parametrize(
    ("state", "word"),
    [("happened", "It happened"), ("did_not", "did not"), ("retried", "stays unknown"), ("canceled", "canceled")],
)
def test_one_that_is_over_has_no_buttons_and_says_what_it_came_to(state: str, word: str) -> None:
    said = (Spoken("per_1", "Bo", "retry", AT, "api", "again"), Spoken("per_2", "Cleo", "retry", AT, "api", "again"))
    card = doubts.card(doubt(state=state, words=said), "prod-1", mac)
    check_blocks(card.blocks)
    assert not [block for block in card.blocks if block["type"] == "actions"]
    assert word in texts(card.blocks)
    assert ("Bo and Cleo wanted it" in texts(card.blocks)) == (state == "retried")


@given(text=nasty)
def test_hostile_text_stays_text_within_slacks_limits(text: str) -> None:
    text = text.encode(
        "utf-8", "replace"
    ).decode()  # what is stored is Unicode; everything else was refused at its door
    nasty_action = replace(ACTION, summary=text, fields=(Field("state", "set", text * 2, "internal"),))
    for one in (
        doubt(found=text * 3, action=nasty_action, step=text, groups=(text,)),
        doubt(state="happened", resolved_by=text),
    ):
        card = doubts.card(one, "prod-1", mac)
        check_blocks(card.blocks)
        for action_id in (SAY_HAPPENED, SAY_RETRY):
            pressed_now = replace(doubts.named(one, "prod-1"), mac16="0" * 16)
            view = doubts.modal(one, action_id, Opened(pressed_now, ALICE, "C1", "1.1", ""), mac)
            check_view(view)
            desk_check_view(view, "modal")


def test_probing_is_ordered_at_once() -> None:
    there = world()
    there.clicks().action(click(SAY_PROBE, pressed(SAY_PROBE)))
    (said,) = there.said
    assert (said.how, said.doubt, said.via, said.reason) == ("probe", DOUBT, "slack_button", "")
    assert said.reply["user"] == ALICE
    assert said.dedupe_key
    assert not there.opened


@pytest.mark.parametrize(("action_id", "how"), [(SAY_HAPPENED, "happened"), (SAY_DID_NOT, "did_not"), (SAY_RETRY, "retry")])  # fmt: skip
def test_every_other_word_is_given_in_a_window_with_its_reason(action_id: str, how: str) -> None:
    there = world(needed=2, given=1)
    there.clicks().action(click(action_id, pressed(action_id)))
    ((tenant, _, view),) = there.opened
    check_view(view)
    assert (tenant, not there.said) == ("acme", True)
    assert ("1 of 2 different people" in texts(view)) == (how == "retry")
    empty = submission(view)
    empty["view"]["state"] = {"values": {}}
    assert "errors" in there.clicks().submission(empty).body
    payload = submission(view)
    payload["view"]["state"] = {"values": {"tk_reason": {"tk_reason": {"type": "plain_text_input", "value": "I looked"}}}}  # fmt: skip
    answer = there.clicks().submission(payload)
    (said,) = there.said
    assert (said.how, said.doubt, said.reason, said.via) == (how, DOUBT, "I looked", "slack_modal")
    assert said.actor.ref == f"{TEAM}:{ALICE}"
    assert "Recorded." in texts(answer.body)


def test_forged_and_foreign_buttons_say_nothing() -> None:
    there = world()
    for value in (pressed(SAY_PROBE, tenant="other"), pressed(SAY_RETRY), pressed(SAY_PROBE, deployment="elsewhere")):
        there.clicks().action(click(SAY_PROBE, value))
    assert not there.said
    assert not there.opened


def test_a_doubt_that_is_not_known_here_is_answered() -> None:
    there = World()
    there.clicks().action(click(SAY_PROBE, pressed(SAY_PROBE)))
    assert "not known here" in there.told[0][2]


def test_a_window_on_a_doubt_that_is_over_has_no_input() -> None:
    there = world(state="happened", resolved_by="Bo")
    there.clicks().action(click(SAY_DID_NOT, pressed(SAY_DID_NOT)))
    view = there.opened[0][2]
    assert not [block for block in view["blocks"] if block["type"] == "input"]
    assert "Bo said so" in texts(view)
