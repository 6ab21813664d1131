"""What Prometheus scrapes, of the web process and of a worker: counters of this process and levels of the database, behind a token."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from engine.errors import TwokeysError
from governance import log, metrics

_say = log.get("scrape")
_closed = "metrics are off here; set TWOKEYS_METRICS_TOKEN and send it as a bearer token\n"


class Scrape:
    """Answers /metrics. Without a token it answers only where nothing but this machine can ask, which `open_` says."""

    def __init__(self, levels: Callable[[], Mapping[str, float]], *, token: str, open_: bool) -> None:
        self._levels = levels
        self._token = token
        self._open = open_

    async def answer(self, request: Request) -> Response:
        """The text, or why there is none."""
        if self._token:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                return PlainTextResponse("a bearer token is needed\n", 401, {"www-authenticate": "Bearer"})
        elif not self._open:
            return PlainTextResponse(_closed, 403)
        return await run_in_threadpool(self._measured)

    def _measured(self) -> Response:
        try:
            for name, value in self._levels().items():
                metrics.level(name, value)
            metrics.level("database_up", 1)
        except TwokeysError as error:
            # What was counted is told all the same: it is what explains the outage.
            _say.warning("not measured", code=error.code, reason=str(error))
            metrics.level("database_up", 0)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def alone(scrape: Scrape) -> Starlette:
    """The whole application of a process that has no other door."""
    return Starlette(
        routes=[
            Route("/metrics", scrape.answer, methods=["GET"]),
            Route("/healthz", lambda _: JSONResponse({"ok": True}), methods=["GET"]),
        ]
    )
