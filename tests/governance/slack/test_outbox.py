"""Proves that a job becomes one call with literal text, sent once, and that every fault on the way is classified."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import slack_sdk.errors

from engine.errors import OperatorError
from governance.slack import api, outbox
from governance.slack.api import Sent
from governance.slack.cards import render
from governance.slack.modals import Modals
from governance.slack.outbox import Sender, card_job, instead, web_call
from governance.slack.views import answered, blocks_digest
from tests.governance.slack.hostile import Hostile, error, hostile, json_reply, ok
from tests.governance.slack.kit import mac, record
from tests.governance.slack.rules import check_blocks

NASTY = "<!channel> *bold* `x` & <https://evil.example|Approve>\nsecond \u202eline"


@pytest.fixture
def slack() -> Iterator[Hostile]:
    with hostile() as there:
        there.answer = ok()
        yield there


def sender(there: Hostile) -> Sender:
    return Sender(there.base, lambda tenant: f"xoxb-{tenant}", allow_local=True)


def job(kind: str = "message", **parts: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "tenant": "acme",
        "channel": "C0OPS",
        "user": "U0ALICE",
        "thread_ts": "1.1",
        "text": "hello",
        **parts,
    }


def card() -> dict[str, Any]:
    return card_job("acme", "C0OPS", render(record(), "prod-1", mac), msg_id="ap_1:1")


# --- what is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "method", "places"),
    [
        (card(), "chat.postMessage", {"channel": "C0OPS"}),
        ({**card(), "ts": "1.2"}, "chat.update", {"channel": "C0OPS", "ts": "1.2"}),
        (job("reply"), "chat.postMessage", {"channel": "C0OPS", "thread_ts": "1.1"}),
        (job("ephemeral"), "chat.postEphemeral", {"channel": "C0OPS", "user": "U0ALICE", "thread_ts": "1.1"}),
        (job("ephemeral", channel=""), "chat.postMessage", {"channel": "U0ALICE"}),
        (job("dm"), "chat.postMessage", {"channel": "U0ALICE"}),
        (job("message", thread_ts=""), "chat.postMessage", {"channel": "C0OPS"}),
    ],
)
def test_each_kind_of_job_is_one_call(
    slack: Hostile, given: dict[str, Any], method: str, places: dict[str, str]
) -> None:
    sent = sender(slack).send(given)
    ((path, arguments, headers),) = slack.seen
    assert path == f"/api/{method}"
    assert headers["authorization"] == "Bearer xoxb-acme"
    assert {name: arguments[name] for name in ("channel", "ts", "thread_ts", "user") if name in arguments} == places
    assert (arguments["parse"], arguments["link_names"]) == ("none", False)
    check_blocks(arguments["blocks"])
    assert sent == Sent("ok", "1.2", "C0OPS", blocks_sha256=blocks_digest(arguments["blocks"]))
    assert "token" not in arguments


@pytest.mark.parametrize("kind", ["reply", "ephemeral", "dm", "message"])
def test_text_of_others_arrives_as_literal_text(slack: Hostile, kind: str) -> None:
    sender(slack).send(job(kind, text=NASTY, url="https://twokeys.example.com/a"))
    ((_, arguments, _),) = slack.seen
    check_blocks(arguments["blocks"])
    assert arguments["blocks"][0]["text"]["text"] == NASTY.replace("\u202e", "\\u{202e}")
    assert "<" not in arguments["text"]
    assert "\n" not in arguments["text"]


def test_the_same_card_has_the_same_message_id_and_it_is_a_uuid() -> None:
    _, first = web_call(card())
    _, again = web_call(card())
    _, other = web_call({**card(), "msg_id": "ap_1:2"})
    assert first["client_msg_id"] == again["client_msg_id"] != other["client_msg_id"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first["client_msg_id"])


@pytest.mark.parametrize("size", [1, 2_999, 3_000, 3_001, 9_000])
def test_a_message_is_sent_whole(size: int) -> None:
    _, arguments = web_call(job("message", text="x" * size))
    assert "".join(block["text"]["text"] for block in arguments["blocks"]) == "x" * size


def test_a_message_too_long_for_slack_is_refused_and_not_cut(slack: Hostile) -> None:
    assert sender(slack).send(job("message", text="x" * 20_000)) == Sent("rejected", error="too_long")
    assert slack.seen == []


@pytest.mark.parametrize("kind", ["reply", "ephemeral", "dm"])
@pytest.mark.parametrize("text", ["x" * 90_000, "🔴" * 9_000, "\ud800" * 5_000])
def test_a_note_too_long_for_slack_is_clipped(slack: Hostile, kind: str, text: str) -> None:
    assert sender(slack).send(job(kind, text=text)).kind == "ok"
    check_blocks(slack.seen[0][1]["blocks"])


@pytest.mark.parametrize(
    "bad",
    [
        {},
        job("poem"),
        job(tenant=""),
        job(text=""),
        job(text=None),
        job(channel=""),
        job("dm", user=""),
        job("reply", thread_ts=""),
        {**card(), "blocks": []},
        {**card(), "blocks": card()["blocks"] * 9},
        {**card(), "text": ""},
    ],
)
def test_a_job_that_makes_no_sense_is_refused_before_anything_is_sent(slack: Hostile, bad: dict[str, Any]) -> None:
    sent = sender(slack).send(bad)
    assert (sent.kind, slack.seen) == ("rejected", [])
    assert sent.error in ("bad_job", "invalid_card")


def test_a_tenant_without_an_installation_sends_nothing(slack: Hostile) -> None:
    quiet = Sender(slack.base, lambda tenant: "", allow_local=True)
    assert quiet.send(job()) == Sent("rejected", error="not_installed")
    assert Modals(slack.base, lambda tenant: "", allow_local=True).open("acme", "1.2", {}).error == "not_installed"
    assert slack.seen == []


# --- what comes back ------------------------------------------------------------------------------------------------

PAGE = (200, {"content-type": "text/html"}, b"<html>Sign in to the hotel network</html>")


@pytest.mark.parametrize(
    ("answer", "kind", "code", "seconds"),
    [
        (error("ratelimited", 429, retry_after="17"), "later", "ratelimited", 17),
        ((429, {"retry-after": "3"}, b""), "later", "ratelimited", 3),
        ((429, {}, b"slow down"), "later", "ratelimited", 30),
        ((429, {"retry-after": "soon"}, b"{}"), "later", "ratelimited", 30),
        ((429, {"retry-after": "999999"}, b"{}"), "later", "ratelimited", 3_600),
        ((429, {"retry-after": "0"}, b"{}"), "later", "ratelimited", 1),
        (error("service_unavailable", 503), "later", "service_unavailable", 30),
        (error("internal_error"), "unknown", "internal_error", 0),
        (error("fatal_error"), "unknown", "fatal_error", 0),
        (error("request_timeout"), "unknown", "request_timeout", 0),
        ((500, {}, b"oops"), "unknown", "http_500", 0),
        ((502, {"content-type": "text/html"}, b"<html>"), "unknown", "http_502", 0),
        ((408, {}, b""), "unknown", "http_408", 0),
        (PAGE, "unknown", "http_200", 0),
        ((200, {}, b""), "unknown", "http_200", 0),
        ((200, {}, b"null"), "unknown", "http_200", 0),
        ((200, {}, b"[]"), "unknown", "http_200", 0),
        ((200, {}, b"[1]"), "unknown", "unreadable_answer", 0),
        ((200, {}, b'"ok"'), "unknown", "unreadable_answer", 0),
        ((200, {}, b"\xff\xfe"), "unknown", "unreadable_answer", 0),
        (json_reply(200, {"ok": False}), "unknown", "http_200", 0),
        (json_reply(200, {"ok": False, "error": "Hello <you>"}), "unknown", "http_200", 0),
        (json_reply(200, {"ok": True}), "unknown", "no_ts", 0),
        (json_reply(200, {"ok": True, "ts": 7}), "unknown", "no_ts", 0),
        (error("channel_not_found"), "rejected", "channel_not_found", 0),
        (error("is_archived"), "rejected", "is_archived", 0),
        (error("invalid_blocks"), "rejected", "invalid_blocks", 0),
        (error("token_revoked"), "rejected", "token_revoked", 0),
        ((403, {"content-type": "text/html"}, b"<html>proxy"), "rejected", "http_403", 0),
        ((302, {"location": "/api/elsewhere"}, b""), "unknown", "http_302", 0),
        ("drop", "unknown", "remotedisconnected", 0),
        ("reset", "unknown", "connectionreseterror", 0),
        ("half", "unknown", "incompleteread", 0),
        ("garbage", "unknown", "badstatusline", 0),
        ("silence", "unknown", "timeouterror", 0),
    ],
)
def test_every_answer_and_every_fault_is_classified_and_the_request_is_sent_once(
    slack: Hostile, monkeypatch: pytest.MonkeyPatch, answer: Any, kind: str, code: str, seconds: int
) -> None:
    monkeypatch.setattr(outbox, "send_seconds_max", 1)
    slack.answer = answer
    sent = sender(slack).send(job())
    assert (sent.kind, sent.error, sent.retry_after_s) == (kind, code, seconds)
    assert len(slack.seen) == 1


@pytest.mark.parametrize("answer", ["drop", "half", error("internal_error"), PAGE])
def test_an_update_whose_outcome_is_unknown_is_simply_tried_again(slack: Hostile, answer: Any) -> None:
    slack.answer = answer
    sent = sender(slack).send({**card(), "ts": "1.2"})
    assert (sent.kind, sent.retry_after_s) == ("later", 5)


def test_nobody_listening_means_that_nothing_was_sent() -> None:
    with hostile() as gone:
        pass
    assert sender(gone).send(job()).kind == "later"
    assert (
        Sender("http://localhost:1/api/", lambda tenant: "x", allow_local=True).send(job()).error
        == "connectionrefusederror"
    )


def test_every_error_class_of_the_sdk_is_classified(monkeypatch: pytest.MonkeyPatch, slack: Hostile) -> None:
    classes = [kind for _, kind in inspect.getmembers(slack_sdk.errors, inspect.isclass)]
    assert len(classes) >= 7
    for kind in classes:
        fault = kind("x", {"ok": False, "error": "x"}) if kind is slack_sdk.errors.SlackApiError else kind("x")

        def fail(*_: Any, fault: Exception = fault, **__: Any) -> None:
            raise fault

        monkeypatch.setattr(api._Client, "api_call", fail)
        assert sender(slack).send(job()).kind in ("later", "rejected", "unknown")


# --- what else could be sent ----------------------------------------------------------------------------------------


def test_a_card_that_was_deleted_is_posted_anew() -> None:
    old = {**card(), "ts": "1.2"}
    new = instead(old, Sent("rejected", error="message_not_found"), "C0NOW")
    assert new
    assert (new["ts"], new["blocks"]) == ("", old["blocks"])
    assert web_call(new)[0] == "chat.postMessage"


@pytest.mark.parametrize("code", ["cant_update_message", "edit_window_closed"])
def test_a_card_that_cannot_be_edited_gets_a_reply(code: str) -> None:
    reply = instead({**card(), "ts": "1.2"}, Sent("rejected", error=code), "C0NOW")
    assert reply
    method, arguments = web_call(reply)
    assert (method, arguments["thread_ts"]) == ("chat.postMessage", "1.2")


@pytest.mark.parametrize("code", ["user_not_in_channel", "channel_not_found", "not_in_channel"])
def test_a_note_that_cannot_be_shown_in_the_channel_is_sent_to_the_person(code: str) -> None:
    note = instead(job("ephemeral"), Sent("rejected", error=code), "C0NOW")
    assert note
    assert web_call(note)[1]["channel"] == "U0ALICE"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (job("message"), Sent("rejected", error="channel_not_found")),
        (card(), Sent("rejected", error="message_not_found")),
        ({**card(), "ts": "1.2"}, Sent("later", error="ratelimited")),
        (job("ephemeral"), Sent("unknown", error="timeouterror")),
    ],
)
def test_nothing_else_is_sent_otherwise(given: dict[str, Any], sent: Sent) -> None:
    assert instead(given, sent, "C0NOW") is None


# --- where it may go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["https://slack.com/api/", "https://slack.com/api", "https://slack-gov.com/api/"])
def test_slack_is_always_allowed(base: str) -> None:
    Sender(base, lambda tenant: "x", allow_local=False)


@pytest.mark.parametrize(
    "base",
    [
        "http://127.0.0.1:4000/api/",
        "http://slack.com/api/",
        "https://slack.com.evil.example/api/",
        "https://evil.example/https://slack.com/api/",
        "https://slack.com@evil.example/api/",
        "https://slack.com/api/?x=",
        "",
        "file:///etc/passwd",
    ],
)
def test_another_base_address_is_refused(base: str) -> None:
    for part in (Sender, Modals):
        with pytest.raises(OperatorError, match="is not Slack"):
            part(base, lambda tenant: "x", allow_local=False)


@pytest.mark.parametrize(
    "base", ["http://192.168.0.9/api/", "https://evil.example/api/", "http://u:p@127.0.0.1/api/", "ftp://127.0.0.1/"]
)
def test_demo_and_test_may_use_this_machine_only(base: str) -> None:
    with pytest.raises(OperatorError, match="is not Slack"):
        Sender(base, lambda tenant: "x", allow_local=True)


def test_no_proxy_of_the_environment_is_used(slack: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-environment")
    assert sender(slack).send(job()).kind == "ok"
    assert slack.seen[0][2]["authorization"] == "Bearer xoxb-acme"


def test_a_proxy_that_was_asked_for_is_used(slack: Hostile) -> None:
    through = Sender(
        "http://localhost:9/api/", lambda tenant: "x", allow_local=True, proxy=slack.base.removesuffix("/api/")
    )
    assert through.send(job()).kind == "ok"
    assert slack.seen[0][0] == "http://localhost:9/api/chat.postMessage"


def test_a_modal_is_opened_once_with_its_trigger(slack: Hostile) -> None:
    slack.answer = json_reply(200, {"ok": True, "view": {}})
    view = answered("AP-1a2b3c", "x")
    assert Modals(slack.base, lambda tenant: "xoxb", allow_local=True).open("acme", "1.2.t", view).kind == "ok"
    ((path, arguments, _),) = slack.seen
    assert (path, arguments) == ("/api/views.open", {"trigger_id": "1.2.t", "view": view})


@pytest.mark.parametrize(
    "answer", ["drop", error("expired_trigger_id"), error("invalid_arguments"), PAGE, (500, {}, b"")]
)
def test_a_modal_that_fails_is_not_tried_again(slack: Hostile, answer: Any) -> None:
    slack.answer = answer
    assert Modals(slack.base, lambda tenant: "xoxb", allow_local=True).open("acme", "1.2.t", {}).kind != "ok"
    assert len(slack.seen) == 1


def test_a_job_survives_being_stored_as_json() -> None:
    assert web_call(json.loads(json.dumps(card()))) == web_call(card())
