"""Proves that any record becomes a card that Slack takes and nobody can lie with, and what its digest covers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from engine.canonical import jcs
from engine.gate.card import PHASES, CardRecord, card_digest
from governance.slack import body, views
from governance.slack.buttons import Opened, read_value
from governance.slack.cards import body_digest, render
from tests.governance.slack.kit import ALICE, mac, record, value
from tests.governance.slack.nasty import records
from tests.governance.slack.rules import check_blocks, check_view, walk

BODY_IDS = ("tk_what", "tk_title", "tk_needs", "tk_facts", "tk_why", "tk_change", "tk_rule", "tk_holders")
many = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def card_of(shown: CardRecord) -> Any:
    return render(shown, "prod-1", mac)


def ids(shown: CardRecord) -> list[str]:
    return [block["block_id"] for block in card_of(shown).blocks]


def said(shown: CardRecord, block_id: str) -> str:
    blocks = {block["block_id"]: block for block in card_of(shown).blocks}
    return " ".join(body.texts(blocks[block_id]))


def buttons_of(shown: CardRecord) -> dict[str, dict[str, Any]]:
    found = [block for block in card_of(shown).blocks if block["type"] == "actions"]
    return {part["action_id"]: part for block in found for part in block["elements"]}


@many
@given(records())
def test_any_record_becomes_a_card_that_slack_takes(shown: CardRecord) -> None:
    card = card_of(shown)
    check_blocks(card.blocks)
    assert card.text
    assert len(card.text.encode("utf-16-le")) <= 600
    assert "\n" not in card.text
    assert "<" not in card.text
    assert ">" not in card.text
    pressable = {part["action_id"] for part in walk(card.blocks) if "action_id" in part}
    assert ("tk_approve" in pressable) == (shown.is_open and not card.cut)
    assert any(block["type"] == "actions" for block in card.blocks) == shown.is_open


@many
@given(records())
def test_a_card_that_is_not_cut_holds_the_whole_body_word_for_word(shown: CardRecord) -> None:
    card = card_of(shown)
    posted = [block for block in card.blocks if block["block_id"] in BODY_IDS]
    if not card.cut:
        assert card.body_digest == card_digest(shown.action_sha256, jcs(posted))
    else:
        assert jcs(posted) != jcs(body.whole(shown))


@many
@given(records(phase="asked"))
def test_the_digest_is_the_same_in_every_phase(shown: CardRecord) -> None:
    other = dataclasses.replace(shown, phase="done", outcome="over", given=(), card_rev=9, requested_by="somebody")
    assert jcs(body.whole(other)) == jcs(body.whole(shown))


@many
@given(records())
def test_review_all_and_reject_are_windows_that_slack_takes(shown: CardRecord) -> None:
    pressed = read_value(value("tk_review"))
    assert pressed
    opened = Opened(pressed, ALICE, "C0OPS", "", "")
    for make in (views.review, views.reject):
        check_view(make(shown, opened, mac))


@pytest.mark.parametrize(
    "changed",
    [
        {"summary": "Close incident and page everybody"},
        {"tier": "med"},
        {"keys": 3},
        {"counts": (("change-managers", 2),)},
        {"groups": ("change-managers",)},
        {"kind": "delete"},
        {"reversible": True, "reversal": "inverse"},
        {"target": {"system": "servicenow", "type": "incident", "id": "INC0099999", "instance": "dev1234"}},
        {"target": {"system": "servicenow", "type": "incident", "id": "INC0012345", "instance": "prod"}},
        {"changes": (("state", "New", "Closed"),)},
        {"changes": (("state", "In progress", "Canceled"),)},
        {"amount": "1 240.00 EUR"},
        {"why": "Because."},
        {"reasons": (("another.rule", "a note that customers see needs two different people"),)},
        {"reasons": (("tier.high.two_person", "another text"),)},
        {"workflow": "other"},
        {"version": "4"},
        {"step": "other"},
        {"connector": "other"},
        {"operation": "other"},
        {"environment": "staging"},
        {"action_sha256": "cd" * 32},
    ],
)
def test_the_digest_changes_with_whatever_an_approver_decides_on(changed: dict[str, Any]) -> None:
    assert body_digest(record(**changed)) != body_digest(record())


@pytest.mark.parametrize(
    "changed",
    [
        {"phase": "done"},
        {"status": "approved"},
        {"given": (("Ana", "2027-01-15T08:00:00.000000Z", "ok"),)},
        {"outcome": "closed"},
        {"expires_at": "2027-01-16T09:00:00.000000Z", "expires_epoch": 1_800_090_000},
        {"card_rev": 7},
        {"requested_by": "Rita Renamed"},
        {"excluded": ()},
        {"policy_revision": "00" * 32},
        {"console_url": "https://elsewhere.example.com/a"},
        {"approval": "ap_ffffffffffffffff"},
    ],
)
def test_the_digest_does_not_change_with_phase_time_keys_or_names(changed: dict[str, Any]) -> None:
    assert body_digest(record(**changed)) == body_digest(record())


def test_the_digest_covers_the_tail_that_a_clipped_card_hides() -> None:
    long = record(changes=(("note", "", "harmless " * 2_000),))
    tail = record(changes=(("note", "", "harmless " * 1_999 + "and drop the table"),))
    assert card_of(long).cut
    assert card_of(tail).cut
    assert card_of(long).blocks[:6] == card_of(tail).blocks[:6]
    assert body_digest(long) != body_digest(tail)


def test_the_digest_is_pinned() -> None:
    # A change here voids the keys of every open request: that must be a decision, not an accident.
    assert body_digest(record()).hex() == "d1d2ae2c3331a57c6a67847722988ade25d0ea6bd3f3f3adf80181aa8d982eda"


def test_the_order_is_what_requirement_status_people_facts_why_change_rule_buttons() -> None:
    assert ids(record()) == [
        "tk_what",
        "tk_needs",
        "tk_status",
        "tk_who",
        "tk_facts",
        "tk_why",
        "tk_change",
        "tk_rule",
        "tk_holders",
        "tk_not",
        "tk_buttons",
        "tk_more",
    ]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "asked"])
def test_a_settled_card_keeps_the_request_and_shows_the_outcome_instead_of_buttons(phase: str) -> None:
    asked, settled = ids(record()), ids(record(phase=phase, outcome="the incident is closed"))
    assert settled == [name if name != "tk_buttons" else "tk_outcome" for name in asked]
    assert "the incident is closed" in said(record(phase=phase, outcome="the incident is closed"), "tk_outcome")


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("decided", "Approved by Ana and Bo"),
        ("running", "Approved by Ana and Bo · running…"),
        ("done", "✅ Done"),
        ("failed", "❌ Failed"),
        ("unknown", "❓ Outcome unknown"),
        ("rejected", "❌ Rejected"),
        ("expired", "⌛ Expired"),
        ("canceled", "🚫 Canceled"),
    ],
)
def test_each_phase_says_its_own_word(phase: str, words: str) -> None:
    given = (("Ana", "2027-01-15T08:00:00.000000Z", ""), ("Bo", "2027-01-15T08:01:00.000000Z", ""))
    assert words in said(record(phase=phase, given=given), "tk_outcome")
    assert "2 of 2 keys" in said(record(phase=phase, given=given), "tk_status")


@pytest.mark.parametrize("phase", ["rejected", "expired", "canceled"])
def test_what_was_refused_says_that_nothing_was_executed(phase: str) -> None:
    assert "Nothing was executed." in said(record(phase=phase), "tk_outcome")


def test_one_of_two_keys_shows_who_when_and_why_and_keeps_the_buttons() -> None:
    half = record(given=(("Ana", "2027-01-15T08:02:00.000000Z", "checked the array"),))
    assert "1 of 2 keys" in said(half, "tk_status")
    assert said(half, "tk_keys").split() == "🔑 Ana gave key 1 · 2027-01-15 08:02 UTC · “checked the array”".split()
    assert set(buttons_of(half)) == {"tk_approve", "tk_reject", "tk_review"}


def test_money_and_recipients_are_read_first() -> None:
    shown = record(changes=(("note", "", "x"), ("payee", "a", "b"), ("amount", "1", "2")))
    text = said(shown, "tk_change")
    assert text.index("amount") < text.index("payee") < text.index("note")


@pytest.mark.parametrize(
    ("changed", "asks"),
    [
        ({"tier": "low", "reversible": True, "reversal": "inverse"}, False),
        ({"tier": "med", "reversible": True, "reversal": "inverse"}, False),
        ({"tier": "med", "reversible": True, "reversal": "manual"}, False),
        ({"tier": "high", "reversible": True, "reversal": "inverse"}, True),
        ({"tier": "low"}, True),
        ({"tier": "low", "kind": "read"}, False),
    ],
)
def test_approve_asks_once_more_when_it_is_high_or_cannot_be_taken_back(changed: dict[str, Any], asks: bool) -> None:
    approve = buttons_of(record(**changed))["tk_approve"]
    assert ("confirm" in approve) is asks
    assert approve["style"] == "primary"


@pytest.mark.parametrize(
    "changed",
    [
        {"changes": (("note", "", "x" * 20_000),)},
        {"changes": (("note", "", "\n" * 60),)},
        {"changes": tuple((f"f{n}", "a", "b") for n in range(13))},
        {"why": "x" * 9_000},
        {"summary": "x" * 9_000},
        {"reasons": tuple((f"r{n}", "m") for n in range(12))},
        {"groups": tuple(f"group-{n}" * 10 for n in range(200))},
    ],
)
def test_a_cut_card_has_no_approve_but_review_all_with_its_length(changed: dict[str, Any]) -> None:
    card = card_of(record(**changed))
    assert card.cut
    assert set(buttons_of(record(**changed))) == {"tk_reject", "tk_review"}
    assert "characters)" in buttons_of(record(**changed))["tk_review"]["text"]["text"]
    assert "tk_approve" not in json.dumps(card.blocks)


@pytest.mark.parametrize(
    "changed",
    [
        {"changes": tuple((f"f{n}", "a", "b") for n in range(12))},
        {"changes": (("note", "", "x" * 2_500),)},
        {"summary": "A title that is longer than a header can be. " * 8},
    ],
)
def test_a_card_that_fits_is_not_cut(changed: dict[str, Any]) -> None:
    assert not card_of(record(**changed)).cut


def test_review_all_shows_what_the_card_had_to_cut_and_has_approve() -> None:
    tail = "harmless " * 2_000 + "and drop the table"
    pressed = read_value(value("tk_review"))
    assert pressed
    view = views.review(record(changes=(("note", "", tail),)), Opened(pressed, ALICE, "C0OPS", "", ""), mac)
    assert "".join(text for block in view["blocks"] for text in body.texts(block)).count("and drop the table") == 1
    assert view["submit"]["text"] == "Approve"


def test_what_slack_cannot_show_whole_cannot_be_approved_in_slack() -> None:
    pressed = read_value(value("tk_review"))
    assert pressed
    view = views.review(record(changes=(("note", "", "x" * 400_000),)), Opened(pressed, ALICE, "C0OPS", "", ""), mac)
    assert "submit" not in view
    assert "decide in the console" in json.dumps(view)


def test_a_settled_request_can_be_read_but_not_approved_in_the_window() -> None:
    pressed = read_value(value("tk_review"))
    assert pressed
    for make in (views.review, views.reject):
        assert "submit" not in make(record(phase="expired"), Opened(pressed, ALICE, "C0OPS", "", ""), mac)


def test_the_fallback_text_says_verdict_summary_and_who() -> None:
    assert card_of(record()).text == (
        "Approval AP-1a2b3c needs 2 keys (high risk, irreversible, until 2027-01-15 09:00 UTC): "
        "Close incident on INC0012345, requested by Rita Requester."
    )
    done = card_of(record(phase="done", outcome="the incident is closed")).text
    assert done.startswith("Approval AP-1a2b3c: done.")
    assert "the incident is closed" in done


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://x.example/a|b>", "https://x.example/<!channel>", "", "https://x y/"]
)
def test_an_odd_console_address_is_left_out(url: str) -> None:
    links = [part for part in walk(card_of(record(console_url=url)).blocks) if part.get("type") == "mrkdwn"]
    assert not any("console" in part["text"] for part in links)


def test_our_limits_are_those_of_the_sdk() -> None:
    from slack_sdk.models.blocks import (
        ActionsBlock,
        ButtonElement,
        ConfirmObject,
        ContextBlock,
        HeaderBlock,
        SectionBlock,
    )
    from slack_sdk.models.views import View

    from engine import limits
    from governance.slack import blocks

    assert HeaderBlock.text_max_length == limits.slack_header_chars_max
    assert limits.slack_text_chars_max == 3_000
    assert SectionBlock.fields_max_length == blocks.fields_max
    assert ContextBlock.elements_max_length == blocks.context_elements_max
    assert ActionsBlock.elements_max_length == 25
    assert ButtonElement.text_max_length == blocks.button_text_chars_max
    assert ButtonElement.value_max_length == blocks.button_value_chars_max
    assert ConfirmObject.title_max_length == blocks.confirm_title_chars_max
    assert ConfirmObject.text_max_length == blocks.confirm_text_chars_max
    assert ConfirmObject.confirm_max_length == blocks.confirm_button_chars_max
    assert View.title_max_length == blocks.view_title_chars_max
    assert View.blocks_max_length == blocks.view_blocks_max
    assert View.private_metadata_max_length == blocks.private_metadata_chars_max


@pytest.mark.parametrize("char", ["a", "é", "🔴", '"', "\n", "\ud800", "\u0301"])
@pytest.mark.parametrize("phase", ["asked", "running", "failed"])
def test_the_largest_record_of_the_heaviest_text_still_fits(char: str, phase: str) -> None:
    text = char * 1_500
    shown = record(
        phase=phase,
        tier=text,
        keys=20,
        counts=((text, 9),) * 12,
        groups=(text,) * 40,
        requested_by=text,
        on_behalf_of=text,
        workflow=text,
        version=text,
        step=text,
        run=text,
        connector=text,
        operation=text,
        summary=text,
        kind=text,
        target=dict.fromkeys(("system", "type", "id", "instance"), text),
        changes=((text, text, text),) * 30,
        amount=text,
        why=text,
        reasons=((text, text),) * 15,
        policy_revision=text,
        given=((text, text, text),) * 12,
        excluded=((text, text),) * 12,
        outcome=text,
        environment=text,
        console_url="https://twokeys.example.com/" + "a" * 300,
    )
    card = card_of(shown)
    check_blocks(card.blocks)
    assert card.cut
    surroundings = [block for block in card.blocks if block["block_id"] not in BODY_IDS]
    assert len(json.dumps(surroundings)) + body.body_chars_max <= 13_000


def test_the_heaviest_surroundings_of_a_card_that_is_not_cut_leave_room_for_the_longest_body() -> None:
    heavy = "🔴" * 500
    shown = record(
        requested_by=heavy,
        on_behalf_of=heavy,
        given=((heavy, heavy, heavy),) * 9,
        excluded=((heavy, heavy),) * 9,
        summary="🔴" * 60,
        target={"id": "🔴" * 24},
        console_url="https://twokeys.example.com/" + "a" * 300,
    )
    card = card_of(shown)
    assert not card.cut
    surroundings = [block for block in card.blocks if block["block_id"] not in BODY_IDS]
    assert len(json.dumps(surroundings)) + body.body_chars_max <= 13_000


def test_a_card_says_what_each_rule_asks_for() -> None:
    """Two holds with groups of their own; the count grows when the key that came does not meet both."""
    needs = (
        {"keys": 1, "counts": [], "groups": ["oncall"]},
        {"keys": 2, "counts": [["it", 1]], "groups": ["it", "managers"]},
    )
    shown = record(keys=2, counts=(("it", 1),), groups=("it", "managers", "oncall"), needs=needs)
    assert "Needs at least 2 keys from 2 different people" in said(shown, "tk_needs")
    holders = "Keys: 1 of oncall; and 2 of it or managers, at least 1 of it. Whoever is in several groups"
    assert holders in said(shown, "tk_holders")
    given_keys = (("Olga", "10:00", ""), ("Paul", "10:01", ""))
    assert "2 of 3 keys" in said(dataclasses.replace(shown, given=given_keys, wanted=3), "tk_status")
