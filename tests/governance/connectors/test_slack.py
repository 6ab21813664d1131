"""Posting as an effect: what the one sender says of a call becomes an outcome, against a real HTTP server in Slack's place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.gate.receipt import Outcome
from governance.connectors.slack import Posted, SlackMessages
from governance.slack.outbox import Sender
from tests.governance.connectors.kit import Handler, Hostile, action, allowed


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    with Hostile() as made:
        yield made


@pytest.fixture
def slack(server: Hostile) -> Hostile:
    server.requests.clear()
    return server


def connector(slack: Hostile, token: str = "xoxb-test") -> SlackMessages:
    """The connector with the real sender, as wiring joins them."""
    sender = Sender(slack.base_url + "/api/", lambda tenant: token, allow_local=True)

    def post(tenant: str, channel: str, thread_ts: str, text: str, msg_id: str) -> Posted:
        job = {
            "kind": "message",
            "tenant": tenant,
            "channel": channel,
            "thread_ts": thread_ts,
            "text": text,
            "msg_id": msg_id,
        }
        sent = sender.send(job)
        return Posted(sent.kind, sent.channel, sent.ts, sent.error, sent.retry_after_s)

    return SlackMessages(post)


def perform(slack: Hostile, **more: str) -> Outcome:
    fields = {"text": "Checkout is back", **more}
    return connector(slack).perform(allowed(action("post", fields, target="C0INCIDENTS", connector="slack")))


def cut(it: Handler) -> None:
    it.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def test_a_posted_message_is_ok_and_says_how_to_take_it_back(slack: Hostile) -> None:
    slack.says = lambda it: it.answer(200, b'{"ok": true, "channel": "C0INCIDENTS", "ts": "17.01"}')
    outcome = perform(slack, thread_ts="16.99")
    assert outcome.status == "ok"
    assert outcome.result == {"channel": "C0INCIDENTS", "ts": "17.01"}
    assert outcome.how_to_reverse == {"operation": "delete", "channel": "C0INCIDENTS", "ts": "17.01"}
    assert slack.requests == ["POST /api/chat.postMessage"]


@pytest.mark.parametrize(
    ("status", "body", "headers", "expected", "after"),
    [
        (429, b'{"ok": false, "error": "ratelimited"}', {"Retry_After": "12"}, ("error", "rate_limited", True), 12),
        (200, b'{"ok": false, "error": "ratelimited"}', {}, ("error", "rate_limited", True), 30),
        (200, b'{"ok": false, "error": "channel_not_found"}', {}, ("rejected", "channel_not_found", False), 0),
        (200, b'{"ok": false, "error": "invalid_auth"}', {}, ("rejected", "invalid_auth", False), 0),
        (200, b'{"ok": false, "error": "msg_too_long"}', {}, ("rejected", "rejected", False), 0),
        (200, b'{"ok": false, "error": "internal_error"}', {}, ("unknown", "connection_lost", False), 0),
        (500, b"oops", {}, ("unknown", "connection_lost", False), 0),
        (200, b"not json", {}, ("unknown", "connection_lost", False), 0),
        (200, b'{"ok": true, "channel": "C1"}', {}, ("unknown", "connection_lost", False), 0),
    ],
)
def test_what_slack_says_becomes_an_outcome(
    slack: Hostile, status: int, body: bytes, headers: dict[str, str], expected: tuple[str, str, bool], after: int
) -> None:
    slack.says = lambda it: it.answer(status, body, Content_Type="application/json", **headers)
    outcome = perform(slack)
    assert (outcome.status, outcome.error_class, outcome.retryable) == expected
    assert outcome.retry_after_seconds == after
    assert len(slack.requests) == 1, "a message is sent once, whatever the answer"


def test_a_message_whose_answer_is_lost_is_unknown(slack: Hostile) -> None:
    slack.says = cut
    assert perform(slack).status == "unknown"
    assert len(slack.requests) == 1


def test_nobody_there_is_tried_again(slack: Hostile) -> None:
    with Hostile() as gone:
        pass
    outcome = connector(gone).perform(allowed(action("post", {"text": "x"}, target="C1", connector="slack")))
    assert (outcome.status, outcome.retryable) == ("error", True)


def test_a_workspace_that_is_not_installed_is_refused(slack: Hostile) -> None:
    outcome = connector(slack, token="").perform(allowed(action("post", {"text": "x"}, target="C1", connector="slack")))
    assert (outcome.status, outcome.message) == ("rejected", "not_installed")
    assert slack.requests == []


@pytest.mark.parametrize(
    ("posted", "expected"),
    [
        (Posted("ok", "C1", "1.2", "", 0), ("ok", "", False)),
        (Posted("later", "", "", "ratelimited", 9), ("error", "rate_limited", True)),
        (Posted("later", "", "", "connectionrefusederror", 0), ("error", "unreachable", True)),
        (Posted("unknown", "", "", "timeouterror", 0), ("unknown", "connection_lost", False)),
        (Posted("rejected", "", "", "is_archived", 0), ("rejected", "is_archived", False)),
        (Posted("something else", "", "", "?", 0), ("unknown", "connection_lost", False)),
    ],
)
def test_every_kind_of_answer_has_one_outcome(posted: Posted, expected: tuple[str, str, bool]) -> None:
    outcome = SlackMessages(lambda *_: posted).perform(
        allowed(action("post", {"text": "x"}, target="C1", connector="slack"))
    )
    assert (outcome.status, outcome.error_class, outcome.retryable) == expected


def test_nobody_can_look_after_a_message(slack: Hostile) -> None:
    made = connector(slack)
    proposed = action("post", {"text": "x"}, target="C1", connector="slack")
    assert made.look(allowed(proposed)) is None
    assert made.observe(proposed) == {}
    assert slack.requests == []


def test_a_receipt_of_it_says_how_much_and_not_what(slack: Hostile) -> None:
    slack.says = lambda it: it.answer(200, b'{"ok": true, "channel": "C1", "ts": "1.2"}')
    outcome = perform(slack)
    assert outcome.request == {"method": "chat.postMessage", "channel": "C0INCIDENTS", "bytes": 16}
    assert "Checkout" not in repr(outcome)
