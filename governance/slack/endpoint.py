"""POST /slack/events: the guard, then Bolt in a thread, then our handlers; every request that Slack signed gets an answer.

Bolt's own Starlette adapter blocks the event loop and its lazy listeners can be called past their checks, so neither is
used. One Bolt app per signing secret keeps Bolt's own verification as the second lock while a secret is rotated.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slack_bolt import App, BoltRequest, BoltResponse
from slack_bolt.authorization import AuthorizeResult
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import TwokeysError
from governance.slack.api import client, slack_bases
from governance.slack.clicks import EVENTS, Clicks, Outcome, Payload, nothing_recorded
from governance.slack.guard import Guard, Turned
from governance.slack.slash import COMMAND

PATH = "/slack/events"

_anything = re.compile(r".*", re.DOTALL)
_log = logging.getLogger("twokeys.slack.endpoint")
_bolt_log = logging.getLogger("twokeys.slack.bolt")
_bolt_log.setLevel(logging.CRITICAL)  # Bolt logs whole bodies, with tokens and response addresses
_plain_headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}


def slack_routes(
    clicks: Clicks, signing_secrets: Sequence[str], now: Callable[[], int], count: Callable[[str], None]
) -> list[Route]:
    """The one route that Slack calls: clicks, modals, the slash command and events."""
    guard = Guard(signing_secrets, now)
    apps = [bolt_app(clicks, secret, count) for secret in signing_secrets]

    async def receive(request: Request) -> Response:
        try:
            body = await _read(request, guard)
            admitted = guard.admit(request.headers.raw, body)
        except Turned as turned:
            count(f"slack_turned_{turned.code}")
            return Response(turned.code, turned.status, _plain_headers)
        except ClientDisconnect:
            return Response("", 400, _plain_headers)
        return await run_in_threadpool(_dispatch, apps[admitted.secret], admitted.body, admitted.headers, count)

    return [Route(PATH, receive, methods=["POST"])]


async def _read(request: Request, guard: Guard) -> bytes:
    guard.check_length(request.headers.raw)
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        guard.check_size(len(received))
    return bytes(received)


def _dispatch(app: App, body: str, headers: dict[str, str], count: Callable[[str], None]) -> Response:
    try:
        asked = BoltRequest(body=body, headers={name: [value] for name, value in headers.items()})
    except Exception:  # a signed body that Bolt cannot read, in whatever way
        count("slack_turned_not_readable")
        return Response("not_readable", 400, _plain_headers)
    answer = app.dispatch(asked)
    return Response(answer.body, answer.status, {name: values[0] for name, values in answer.headers.items()})


def bolt_app(clicks: Clicks, signing_secret: str, count: Callable[[str], None]) -> App:
    """Bolt with everything given, so that no SLACK_* variable of the environment has an effect."""
    app = App(
        name="twokeys",
        logger=_bolt_log,
        client=client(slack_bases[0], None, 1),
        signing_secret=signing_secret,
        authorize=_authorize,
        process_before_response=True,
        request_verification_enabled=True,
        ssl_check_enabled=False,
        token_verification_enabled=False,
        attaching_function_token_enabled=False,
        listener_executor=ThreadPoolExecutor(max_workers=1, thread_name_prefix="bolt-unused"),
    )
    # SLACK_CLIENT_ID and SLACK_CLIENT_SECRET alone switch on an OAuth flow that keeps tokens in files; there is no
    # argument against it.
    app._oauth_flow = None
    app._installation_store = None
    handlers: dict[str, Callable[[Payload], Outcome]] = {
        "action": clicks.action,
        "submission": clicks.submission,
        "closed": clicks.closed,
        "command": clicks.command,
        "other": clicks.other,
        "event": clicks.event,
    }
    answers = {kind: _listener(kind, handler, count) for kind, handler in handlers.items()}
    app.action(_anything)(answers["action"])
    app.view_submission(_anything)(answers["submission"])
    app.view_closed(_anything)(answers["closed"])
    app.command(COMMAND)(answers["command"])
    app.command(_anything)(answers["command"])
    for name in EVENTS:
        app.event(name)(answers["event"])
    app.event(_anything)(answers["event"])
    app.shortcut(_anything)(answers["other"])
    app.options(_anything)(answers["other"])
    return app


def _listener(
    kind: str, handler: Callable[[Payload], Outcome], count: Callable[[str], None]
) -> Callable[..., BoltResponse]:
    def answer(body: dict[str, Any]) -> BoltResponse:
        try:
            outcome = handler(body)
        except Exception as error:
            _log.error("a Slack %s failed: %s", kind, _named(error))
            count(f"slack_failed_{kind}")
            outcome = nothing_recorded(kind, body)
        text = outcome.body if isinstance(outcome.body, str) else json.dumps(outcome.body)
        kind_of_body = "text/plain" if isinstance(outcome.body, str) else "application/json"
        return BoltResponse(
            status=outcome.status, body=text, headers={"content-type": f"{kind_of_body}; charset=utf-8"}
        )

    return answer


def _named(error: Exception) -> str:
    """What may stand in a log: never a payload."""
    return f"{type(error).__name__} {error.code}" if isinstance(error, TwokeysError) else type(error).__name__


def _authorize(enterprise_id: str | None, team_id: str | None, user_id: str | None) -> AuthorizeResult:
    """No token and no call: which tenant it is, and whether at all, is decided in clicks."""
    return AuthorizeResult(enterprise_id=enterprise_id, team_id=team_id, user_id=user_id)
