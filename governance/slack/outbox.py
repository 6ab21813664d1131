"""The only sender: turns one outbox job into one Web API call and says what became of it.

Jobs are plain dicts, stored as rows and read by a worker that records the answer; `tenant` and `kind` are in each of them:
  card       channel, blocks, text, [ts: update this message], [thread_ts], [msg_id]
  reply      channel, thread_ts, text
  ephemeral  channel, user, text, [thread_ts], [url: our console]      without a channel it goes to the person's DM
  dm         user, text, [url]
  home       user, view      the Home tab of one person
  message    channel, text, [thread_ts], [msg_id]      an effect: its text is sent whole or not at all
Their texts are raw; here they become literal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.canonical import sha256
from engine.errors import CallerError
from engine.limits import slack_text_chars_max
from governance.slack.api import Sent, call, check_base, client
from governance.slack.blocks import Block, context, faults, link, section
from governance.slack.cards import Card
from governance.slack.text import clip, escaped, size, visible
from governance.slack.views import blocks_digest

Job = dict[str, Any]

send_seconds_max = 5
note_chars_max = 2_500
fallback_chars_max = 300
_quiet = {"parse": "none", "link_names": False}
_no_unfurl = {"unfurl_links": False, "unfurl_media": False}


class Sender:
    """Sends jobs, each once; whether to send again is the caller's business and stands in `Sent`."""

    def __init__(self, base_url: str, token_of: Callable[[str], str], *, allow_local: bool, proxy: str = "") -> None:
        self._base_url = check_base(base_url, allow_local=allow_local)
        self._token_of = token_of
        self._proxy = proxy

    def send(self, job: Job) -> Sent:
        """One job, one call, no retry, never raising for what Slack or the road does."""
        try:
            method, arguments = web_call(job)
        except CallerError as error:
            return Sent("rejected", error=error.code)
        token = self._token_of(job["tenant"])
        if not token:
            return Sent("rejected", error="not_installed")
        sent = call(client(self._base_url, token, send_seconds_max, self._proxy), method, arguments)
        if sent.kind == "ok" and method == "chat.postMessage" and not sent.ts:
            sent = replace(sent, kind="unknown", error="no_ts")
        return replace(sent, blocks_sha256=blocks_digest(arguments.get("blocks", [])))


def card_job(tenant: str, channel: str, card: Card, *, ts: str = "", thread_ts: str = "", msg_id: str = "") -> Job:
    """The job that posts this card, or puts it in the place of the message `ts`."""
    parts: Job = {"kind": "card", "tenant": tenant, "channel": channel, "blocks": card.blocks, "text": card.text}
    return {**parts, "ts": ts, "thread_ts": thread_ts, "msg_id": msg_id}


def web_call(job: Job) -> tuple[str, dict[str, Any]]:
    """The method and the arguments of a job."""
    kind = job.get("kind")
    if kind not in ("card", "reply", "ephemeral", "dm", "home", "message") or not _named(job, "tenant"):
        raise CallerError("is not an outbox job", code="bad_job", field="kind")
    if kind == "card":
        return _card(job)
    if kind == "home":
        return "views.publish", {"user_id": _want(job, "user"), "view": job["view"]}
    blocks = _note_blocks(job, whole=kind == "message")
    arguments = {"text": escaped(_want(job, "text"), fallback_chars_max), "blocks": blocks, **_quiet}
    if kind == "ephemeral" and _named(job, "channel"):
        return "chat.postEphemeral", {
            **arguments,
            "channel": job["channel"],
            "user": _want(job, "user"),
            **_thread(job),
        }
    if kind in ("ephemeral", "dm"):
        return "chat.postMessage", {**arguments, **_no_unfurl, "channel": _want(job, "user")}
    if kind == "reply":
        _want(job, "thread_ts")
    return "chat.postMessage", {
        **arguments,
        **_no_unfurl,
        "channel": _want(job, "channel"),
        **_thread(job),
        **_message_id(job),
    }


def instead(job: Job, sent: Sent, channel: str) -> Job | None:
    """What to send when this job was refused for good (slack.md cases 24, 26 and 27); None when there is nothing else.

    `channel` is where new cards go: one whose message is gone, or its whole channel, is posted there once more.
    """
    if sent.kind != "rejected":
        return None
    if (
        job["kind"] == "card"
        and job.get("ts")
        and sent.error in ("message_not_found", "channel_not_found", "is_archived")
    ):
        return {**job, "ts": "", "msg_id": "", "channel": channel}
    if job["kind"] == "card" and job.get("ts") and sent.error in ("cant_update_message", "edit_window_closed"):
        text = {"kind": "reply", "tenant": job["tenant"], "channel": job["channel"], "thread_ts": job["ts"]}
        return {**text, "text": _unescaped(job["text"])}
    if job["kind"] == "ephemeral" and sent.error in ("user_not_in_channel", "channel_not_found", "not_in_channel"):
        return {key: value for key, value in {**job, "kind": "dm"}.items() if key not in ("channel", "thread_ts")}
    return None


def _card(job: Job) -> tuple[str, dict[str, Any]]:
    blocks = job.get("blocks")
    if type(blocks) is not list or faults(blocks):
        raise CallerError("breaks a limit of Slack", code="invalid_card", field="blocks")
    arguments = {"channel": _want(job, "channel"), "blocks": blocks, "text": _want(job, "text"), **_quiet}
    if _named(job, "ts"):
        return "chat.update", {**arguments, "ts": job["ts"]}
    return "chat.postMessage", {**arguments, **_no_unfurl, **_thread(job), **_message_id(job)}


def _note_blocks(job: Job, *, whole: bool) -> list[Block]:
    text = visible(_want(job, "text"))
    if not whole:
        text = clip(text, note_chars_max, 2 * note_chars_max)[0]
    step = slack_text_chars_max // 2
    blocks = [section(f"tk_text_{n}", text[at : at + step]) for n, at in enumerate(range(0, len(text), step))]
    if size(text) <= slack_text_chars_max:
        blocks = [section("tk_text_0", text)]
    there = link(job.get("url", ""), "Open in the console")
    if there:
        blocks.append(context("tk_console", [there]))
    if faults(blocks):
        raise CallerError("is longer than a Slack message", code="too_long", field="text")
    return blocks


def _named(job: Job, key: str) -> bool:
    return isinstance(job.get(key), str) and bool(job[key])


def _want(job: Job, key: str) -> str:
    if not _named(job, key):
        raise CallerError("is missing", code="bad_job", field=key)
    return str(job[key])


def _thread(job: Job) -> dict[str, str]:
    return {"thread_ts": job["thread_ts"]} if _named(job, "thread_ts") else {}


def _message_id(job: Job) -> dict[str, str]:
    """A UUID made from what the message is about; not a documented argument, so nothing relies on it."""
    if not _named(job, "msg_id"):
        return {}
    raw = bytearray(sha256(b"twokeys/slack-message/v1\x00" + job["msg_id"].encode())[:16])
    raw[6], raw[8] = raw[6] & 0x0F | 0x50, raw[8] & 0x3F | 0x80
    text = raw.hex()
    return {"client_msg_id": "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))}


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
