"""Asks Slack, one question at a time, whether an installation can do its duty, and says what to do about each no."""

from __future__ import annotations

import email.utils
import hashlib
import hmac
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slack_sdk.errors import SlackApiError, SlackClientError

from governance.slack.api import SCOPES, check_base, client
from governance.store.templates import Installation

OK, WARN, FAIL = "ok", "warn", "fail"
PATH = "/slack/events"
BOT_SCOPES = frozenset({scope for scope in SCOPES.values() if scope} | {"commands"})
skew_seconds_warn, skew_seconds_fail = 30, 150  # what Slack signs holds for 300 s
answer_seconds_warn = 1.0
probe = "Twokeys checks whether it can post here. This message is deleted at once."
_calls_for_round_trip = 3
_public_seconds_max = 5

_help = {
    "invalid_auth": "the token is not one of Slack's: copy the Bot User OAuth Token (xoxb-...) again, `twokeys tenant slack`",
    "not_authed": "no token was sent: `twokeys tenant slack` stores one",
    "token_revoked": "the app was removed or its tokens were revoked: install it again, then `twokeys tenant slack`",
    "account_inactive": "the app's bot was deactivated: install the app again",
    "token_expired": "token rotation is on: install by `twokeys slack invite`, which keeps the refresh token",
    "missing_scope": "paste the manifest again and reinstall the app: Slack asks for the missing permission then",
    "channel_not_found": "no such channel, or a private one without the app: copy the channel's id again, then /invite @Twokeys there",
    "not_in_channel": "type /invite @Twokeys in that channel",
    "is_archived": "that channel is archived: name another one with `twokeys tenant slack`",
    "restricted_action": "an admin of the workspace has limited who posts there: let the app post, or name another channel",
    "ratelimited": "Slack asks for less: run this again in a minute",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One question and its answer."""

    check: str
    state: str
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a call came to: Slack's own data and headers, or its word for why not."""

    data: dict[str, Any]
    headers: dict[str, str]
    error: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked, as settings and the record have it."""

    installed: Installation
    token: str
    api_base: str
    local: bool
    app_id: str
    public_url: str
    signing_secret: str


class Check:
    """The questions, over one installation."""

    def __init__(self, subject: Subject, *, now: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._subject = subject
        self._now = now
        self._monotonic = monotonic
        self._web = client(check_base(subject.api_base, allow_local=subject.local), subject.token, 5)

    def findings(self, *, posts: bool, manifest: str = "") -> Iterator[Finding]:
        """Every finding as it is found; nothing is asked with a token that Slack does not know."""
        first = self._call("auth.test", {})
        if first.error:
            yield Finding(
                "token", FAIL, f"Slack answers {first.error}", _help.get(first.error, "see Slack's own word for it")
            )
            return
        yield self._token(first)
        yield self._scopes(first)
        yield self._clock(first)
        yield self._round_trip(first)
        yield self._answers()
        if manifest:
            yield self._manifest(manifest)
        if posts:
            yield from self._posting()

    def _token(self, answer: _Answer) -> Finding:
        team, user = str(answer.data.get("team_id", "")), str(answer.data.get("user_id", ""))
        installed = self._subject.installed
        if team != installed.team:
            step = "give the token of that workspace, or its team id, to `twokeys tenant slack`"
            return Finding(
                "token", FAIL, f"it belongs to workspace {team}, the installation says {installed.team}", step
            )
        if user != installed.bot_user:
            step = f"`twokeys tenant slack --bot-user {user}`"
            return Finding("token", WARN, f"the app's user is {user}, the installation says {installed.bot_user}", step)
        return Finding(
            "token",
            OK,
            f"Slack knows it: {answer.data.get('user', 'the app')} in {answer.data.get('team', team)} ({team})",
        )

    def _scopes(self, answer: _Answer) -> Finding:
        """By the header that Slack sends with every answer."""
        given = answer.headers.get("x-oauth-scopes")
        if given is None:
            return Finding(
                "scopes", WARN, "the answer does not say which permissions the token has", "Slack itself always does"
            )
        has = {scope.strip() for scope in given.split(",") if scope.strip()}
        missing, extra = sorted(BOT_SCOPES - has), sorted(has - BOT_SCOPES)
        if missing:
            return Finding("scopes", FAIL, f"missing: {', '.join(missing)}", _help["missing_scope"])
        if extra:
            step = "paste the manifest again and reinstall the app; Twokeys uses none of them"
            return Finding("scopes", WARN, f"more than needed: {', '.join(extra)}", step)
        return Finding("scopes", OK, ", ".join(sorted(has)))

    def _clock(self, answer: _Answer) -> Finding:
        try:
            said = email.utils.parsedate_to_datetime(answer.headers.get("date", ""))
        except ValueError:
            return Finding("clock", WARN, "the answer carries no time", "Slack itself always says it")
        skew = abs(self._now() - int(said.timestamp()))
        text = f"this machine's clock and Slack's differ by {skew} s"
        if skew <= skew_seconds_warn:
            return Finding("clock", OK, text)
        step = "let this machine follow a time service: from 300 s on every click is refused"
        return Finding("clock", FAIL if skew > skew_seconds_fail else WARN, text, step)

    def _round_trip(self, first: _Answer) -> Finding:
        more = [self._call("auth.test", {}).seconds for _ in range(_calls_for_round_trip - 1)]
        middle = sorted([first.seconds, *more])[_calls_for_round_trip // 2]
        text = f"an answer takes {middle * 1000:.0f} ms"
        if middle > answer_seconds_warn:
            return Finding(
                "round trip",
                WARN,
                text,
                "a window must open within three seconds of its click: look at the road to Slack",
            )
        return Finding("round trip", OK, text)

    def _answers(self) -> Finding:
        """Signs a question as Slack would and sends it to our own public address: the same road, guard and secret."""
        subject = self._subject
        url = subject.public_url.rstrip("/") + PATH
        body = json.dumps({"type": "url_verification", "challenge": "twokeys-check", "token": ""}).encode()
        moment = str(self._now())
        signed = hmac.new(subject.signing_secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "X-Slack-Request-Timestamp": moment,
            "X-Slack-Signature": f"v0={signed}",
        }
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(urllib.request.Request(url, body, headers), timeout=_public_seconds_max) as answer:  # noqa: S310
                said = answer.read(10_000).decode("utf-8", "replace")
        except (OSError, ValueError) as error:
            step = "see that `twokeys serve` runs and that TWOKEYS_PUBLIC_URL leads to it; not needed for Socket Mode"
            return Finding("address", WARN, f"{url} does not answer what Slack would send: {error}", step)
        if "twokeys-check" not in said:
            step = "a proxy before it must hand on the body byte for byte, and the signing secret must be this app's"
            return Finding("address", WARN, f"{url} answers, and not as Twokeys does", step)
        return Finding("address", OK, f"{url} takes what Slack signs")

    def _manifest(self, text: str) -> Finding:
        """The addresses and permissions of the manifest that the app was made from."""
        want = self._subject.public_url.rstrip("/") + PATH
        urls = set(re.findall(r"^\s*(?:-\s*)?(?:request_)?url:\s*(\S+)", text, re.MULTILINE))
        wrong = sorted(url for url in urls if url.strip("\"'") != want)
        if wrong:
            return Finding(
                "manifest", FAIL, f"it names {wrong[0]}, not {want}", "put your own address into all of its url lines"
            )
        block = re.search(r"^    bot:\n((?:      - \S+\n)+)", text, re.MULTILINE)
        scopes = set(re.findall(r"- (\S+)", block[1])) if block else set()
        if scopes != BOT_SCOPES:
            return Finding(
                "manifest",
                FAIL,
                f"it asks for {', '.join(sorted(scopes)) or 'nothing'}",
                f"it should be {', '.join(sorted(BOT_SCOPES))}",
            )
        return Finding("manifest", OK, "its addresses and permissions are those of this installation")

    def _posting(self) -> Iterator[Finding]:
        channel = self._subject.installed.channel
        sent = self._call("chat.postMessage", {"channel": channel, "text": probe})
        if sent.error:
            yield Finding(
                "posting", FAIL, f"to {channel}: {sent.error}", _help.get(sent.error, "see Slack's own word for it")
            )
            return
        gone = self._call("chat.delete", {"channel": sent.data.get("channel", channel), "ts": sent.data.get("ts", "")})
        if gone.error:
            step = "delete that message by hand"
            yield Finding("posting", WARN, f"posted to {channel}, and could not delete it: {gone.error}", step)
            return
        yield Finding("posting", OK, f"a message to {channel} was posted and deleted")

    def _call(self, method: str, arguments: dict[str, Any]) -> _Answer:
        assert method in SCOPES, method
        begun = self._monotonic()
        data: dict[str, Any] = {}
        headers: dict[str, str] = {}
        error = ""
        try:
            answer = self._web.api_call(method, json=arguments)
            data, headers = (
                answer.data if isinstance(answer.data, dict) else {},
                {name.lower(): str(value) for name, value in answer.headers.items()},
            )
        except SlackApiError as fault:
            found = getattr(fault.response, "data", None)
            error = str(found.get("error", "an error")) if isinstance(found, dict) else "an answer that is not Slack's"
        except (SlackClientError, OSError, ValueError) as fault:
            error = f"nothing: {fault}"
        return _Answer(data, headers, re.sub(r"[^ -~]", "?", error)[:200], self._monotonic() - begun)
