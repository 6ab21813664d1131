"""One call of Slack's Web API: once, with a deadline, past no proxy of the environment, and what its answer means.

slack_sdk would send a message twice when the answer is lost, follow redirects with the token, and use any proxy the
environment names even for a loopback address; all three are off here (slack.md 2.6).
"""

from __future__ import annotations

import http.client
import logging
import re
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from engine.errors import OperatorError

# Every method we call and the bot scope it needs; manifest.yml is tested against this.
SCOPES: Mapping[str, str] = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.delete": "chat:write",
    "views.open": "",
    "views.publish": "",
    "auth.test": "",
}
# Doing these twice does no harm, so an unknown outcome is simply tried again.
_repeatable = frozenset({"chat.update"})

slack_bases = ("https://slack.com/api/", "https://slack-gov.com/api/")
_local_hosts = frozenset({"127.0.0.1", "localhost", "::1"})
retry_after_default_seconds = 30
retry_after_max_seconds = 3_600
answer_bytes_max = 4_194_304

_later = frozenset(
    {"ratelimited", "rate_limited", "message_limit_exceeded", "service_unavailable", "team_added_to_org"}
)
# Slack's own words: some aspect of the operation may have succeeded before the error was raised.
_maybe = frozenset({"internal_error", "fatal_error", "request_timeout"})
# The installation is gone, not just this message.
INSTALLATION_LOST = frozenset(
    {
        "account_inactive",
        "invalid_auth",
        "missing_scope",
        "not_authed",
        "token_expired",
        "token_revoked",
        "not_installed",
    }
)
_code = re.compile(r"[a-z0-9_]{1,80}")
_log = logging.getLogger("twokeys.slack.api")
_log.setLevel(logging.CRITICAL)  # the SDK logs whole answers; what matters of them is in Sent


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one call: done, to be tried later, refused for good, or not to be known."""

    kind: str  # ok | later | rejected | unknown
    ts: str = ""
    channel: str = ""
    error: str = ""
    retry_after_s: int = 0
    blocks_sha256: str = ""


class _Once(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Client(WebClient):
    """slack_sdk's client with an opener of our own: no proxy but the one given, no redirects."""

    def _perform_urllib_http_request_internal(self, url: str, req: urllib.request.Request) -> dict[str, Any]:
        proxies = {"http": self.proxy, "https": self.proxy} if self.proxy else {}
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
            _Once(),
        )
        with opener.open(req, timeout=self.timeout) as answer:
            body = answer.read(answer_bytes_max)
            if answer.length and len(body) < answer_bytes_max:
                raise http.client.IncompleteRead(body, answer.length)
            return {"status": answer.status, "headers": answer.headers, "body": body.decode("utf-8")}


def client(base_url: str, token: str | None, timeout_seconds: int, proxy: str = "") -> WebClient:
    """A client that takes nothing from the environment."""
    made = _Client(token=token, base_url=base_url, timeout=timeout_seconds, retry_handlers=[], logger=_log)
    made.proxy = proxy or None  # the constructor has put the environment's proxy here
    return made


def check_base(base_url: str, *, allow_local: bool) -> str:
    """The base address of the Web API: Slack's, or one on this machine where demo and tests allow it."""
    base = base_url if base_url.endswith("/") else base_url + "/"
    parts = urlsplit(base)
    local = allow_local and parts.scheme in ("http", "https") and parts.hostname in _local_hosts
    if base in slack_bases or (local and not parts.username and not parts.query and not parts.fragment):
        return base
    raise OperatorError(
        f"{base_url!r} is not Slack",
        code="bad_setting",
        field="slack api base",
        next_step=f"use {slack_bases[0]}; another address must be on this machine and is for demo and test only",
    )


def answers(base_url: str, token: str, *, allow_local: bool) -> str:
    """Whether Slack knows this bot token: empty when it does, else its own word for why not."""
    sent = call(client(check_base(base_url, allow_local=allow_local), token, 5), "auth.test", {})
    return sent.error


def call(caller: WebClient, method: str, arguments: dict[str, Any]) -> Sent:
    """One call, never raising for what the other side or the road does."""
    assert method in SCOPES, method
    try:
        answer = caller.api_call(method, json=arguments)
        return Sent("ok", _text(answer.get("ts")), _text(answer.get("channel")))
    except SlackApiError as error:
        found = _from_answer(error)
    except SlackClientError as error:
        found = Sent("rejected", error=f"not_sent_{type(error).__name__.lower()}")
    except (OSError, http.client.HTTPException) as error:
        found = _from_road(error)
    except (ValueError, LookupError, AttributeError, TypeError):
        # The SDK could not make sense of what came back; the request itself went out.
        found = Sent("unknown", error="unreadable_answer")
    if found.kind == "unknown" and method in _repeatable:
        return Sent("later", error=found.error, retry_after_s=5)
    return found


def _from_answer(error: SlackApiError) -> Sent:
    response = error.response
    status = getattr(response, "status_code", 200)
    data = getattr(response, "data", None)
    said = data.get("error") if isinstance(data, dict) else None
    code = said if isinstance(said, str) and _code.fullmatch(said) else ""
    if status == 429 or code in _later:
        return Sent("later", error=code or "ratelimited", retry_after_s=_retry_after(getattr(response, "headers", {})))
    if code in _maybe or (not code and status < 400) or status >= 500 or status == 408:
        return Sent("unknown", error=code or f"http_{status}")
    return Sent("rejected", error=code or f"http_{status}")


def _from_road(error: Exception) -> Sent:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)):
        # Nothing was sent: nobody listened, nobody was found, or it was not Slack.
        return Sent("later", error=type(reason).__name__.lower(), retry_after_s=5)
    return Sent("unknown", error=type(reason).__name__.lower())


def _retry_after(headers: Mapping[str, Any]) -> int:
    given = next((str(value) for name, value in headers.items() if name.lower() == "retry-after"), "")
    seconds = int(given) if re.fullmatch(r"[0-9]{1,6}", given) else retry_after_default_seconds
    return max(1, min(seconds, retry_after_max_seconds))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
