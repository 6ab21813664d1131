"""What our sender makes of everything that can go wrong on the road, at the desk: never twice, never lost, never a guess."""

from __future__ import annotations

import pytest

from governance.local.desk.faults import KINDS
from governance.slack.cards import render
from governance.slack.outbox import Job, Sender, card_job
from tests.governance.slack.kit import mac, record
from tests.kit.desk import BOT_TOKEN, Desk

# The fault, what our client says of a new card that meets it, and how many cards the channel has afterwards.
OUTCOMES = {
    "ratelimited": ("later", 0),
    "server_error": ("unknown", 0),
    "hang": ("unknown", 0),
    "accept_then_drop": ("unknown", 1),
    "is_archived": ("rejected", 0),
    "token_revoked": ("rejected", 0),
}


def card(ts: str = "") -> Job:
    return card_job("acme", "C0APPROVALS", render(record(), "prod-1", mac), ts=ts)


def test_every_fault_has_an_outcome() -> None:
    assert set(OUTCOMES) == set(KINDS)


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_card_that_meets_a_fault_is_sent_once_and_the_next_one_arrives(
    desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("governance.slack.outbox.send_seconds_max", 1)
    sender = Sender(desk.api_base, lambda _: BOT_TOKEN, allow_local=True)
    outcome, cards = OUTCOMES[kind]
    visitor = desk.browser()
    visitor.fault(kind)
    sent = sender.send(card())
    assert sent.kind == outcome
    assert len(visitor.state()["messages"]) == cards
    assert visitor.state()["fault"] == {}
    assert sender.send(card()).kind == "ok"
    assert len(visitor.state()["messages"]) == cards + 1


def test_an_update_whose_answer_was_lost_is_simply_made_again(desk: Desk) -> None:
    sender = Sender(desk.api_base, lambda _: BOT_TOKEN, allow_local=True)
    posted = sender.send(card())
    desk.browser().fault("accept_then_drop", 2)
    assert [sender.send(card(posted.ts)).kind for _ in range(3)] == ["later", "later", "ok"]
    assert len(desk.browser().state()["messages"]) == 1


def test_slacks_wait_is_taken_from_its_answer(desk: Desk) -> None:
    desk.browser().fault("ratelimited")
    sent = Sender(desk.api_base, lambda _: BOT_TOKEN, allow_local=True).send(card())
    assert (sent.error, sent.retry_after_s) == ("ratelimited", 1)
