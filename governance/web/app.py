"""The web application: every door in one table, bounds and headers around all of them, and one shape of error behind all of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import TwokeysError
from engine.limits import json_bytes_max
from governance import clock, log, metrics
from governance.web import problems
from governance.web.api import Api
from governance.web.console import Console
from governance.web.hooks import Hooks
from governance.web.render import CSP, Pages
from governance.web.seams import Seams

_say = log.get("web")
_machine = ("/v1", "/hooks/", "/slack/", "/healthz", "/readyz", "/metrics")

Application = Starlette
Receiver = Callable[[Request], Awaitable[Response]]


def application(seams: Seams) -> Application:
    """The whole application over what wiring hands in."""
    pages = Pages(seams.deployment)
    console, api, hooks, errors = Console(seams, pages), Api(seams), Hooks(seams), _Errors(pages)
    routes: list[BaseRoute] = [
        *console.routes(),
        *api.routes(),
        Route("/hooks/{tenant}/{source}", hooks.receive, methods=["POST"]),
        *seams.slack,
        Route("/static/{name}", pages.asset, methods=["GET"]),
        Route("/verify.py", pages.verifier, methods=["GET"]),
        Route("/healthz", _health, methods=["GET"]),
        Route("/readyz", _ready(seams), methods=["GET"]),
        Route("/metrics", seams.scrape.answer, methods=["GET"]),
    ]
    made = Starlette(
        routes=routes,
        middleware=[
            Middleware(_Around, secure=seams.secure, errors=errors),
            Middleware(RequestBodyLimitMiddleware, max_body_size=json_bytes_max),
        ],
        exception_handlers={TwokeysError: errors.ours, HTTPException: errors.http},
        lifespan=_lifespan,
    )
    # /runs/ is not /runs: a redirect would repeat a form elsewhere.
    made.router.redirect_slashes = False
    return made


@contextlib.asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    _say.info("started")
    yield
    _say.info("stopped")


# --- health -----------------------------------------------------------------------------------------------------------


async def _health(_: Request) -> Response:
    return JSONResponse({"ok": True})


def _ready(seams: Seams) -> Receiver:
    """Ready means: the database answers, its role is safe and its schema is this release's."""

    async def ready(_: Request) -> Response:
        try:
            await run_in_threadpool(seams.database.self_test)
        except TwokeysError as error:
            _say.warning("not ready", code=error.code, reason=str(error))
            return JSONResponse({"ready": False, "code": error.code}, 503)
        return JSONResponse({"ready": True})

    return ready


# --- errors -----------------------------------------------------------------------------------------------------------


class _Errors:
    """A problem for machines, a page for people; the same words for both."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    async def ours(self, request: Request, error: Exception) -> Response:
        """An error that says who must act."""
        assert isinstance(error, TwokeysError)
        status = problems.status_of(error)
        if status >= 500:
            _say.error("request failed", path=request.url.path, code=error.code, reason=str(error))
        if _for_machines(request.url.path):
            return problems.answer(error)
        return self._page(status, problems.sentence(error))

    async def http(self, request: Request, error: Exception) -> Response:
        """No such address, no such method, a body beyond the bound."""
        assert isinstance(error, HTTPException)
        code = {404: "unknown_address", 405: "wrong_method", 413: "too_large"}.get(error.status_code, "http")
        said = {404: "there is nothing at this address", 405: "this address does not take that method"}
        said |= {413: f"at most {json_bytes_max} bytes are read"}
        answer = self._said(request.url.path, error.status_code, code, said.get(error.status_code, error.detail))
        answer.headers.update(error.headers or {})
        return answer

    def turned(self, scope: Scope) -> Response | None:
        """What is refused before anything looks at it: a length beyond every bound, a path that no database could hold."""
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > 12 or int(declared) > json_bytes_max:
            return self._said(scope["path"], 413, "too_large", f"at most {json_bytes_max} bytes are read")
        if "\x00" in scope["path"]:
            return self._said(scope["path"], 404, "unknown_address", "there is nothing at this address")
        return None

    def crashed(self, path: str, error_id: str) -> Response:
        """A fault of ours: nothing of it is shown but the id that the log has it under."""
        said = "something failed here that should not have"
        if _for_machines(path):
            return problems.plain(500, "internal", said, id=error_id, next_step=f"tell the operator the id {error_id}")
        return self._page(500, f"Something failed here that should not have. Tell the operator the id {error_id}.")

    def _said(self, path: str, status: int, code: str, detail: str) -> Response:
        if _for_machines(path):
            return problems.plain(status, code, detail)
        return self._page(status, detail[:1].upper() + detail[1:] + ".")

    def _page(self, status: int, said: str) -> Response:
        return self._pages.page(
            "error.html", {"title": problems.title_of(status), "said": said, "status": status}, status
        )


def _for_machines(path: str) -> bool:
    return any(path == start or path.startswith(start.rstrip("/") + "/") for start in _machine)


# --- around every request ---------------------------------------------------------------------------------------------


class _Around:
    """Headers on every answer, one log line per request, and the last place where anything is caught."""

    def __init__(self, app: ASGIApp, secure: bool, errors: _Errors) -> None:
        self._app = app
        self._errors = errors
        self._headers: Sequence[tuple[str, str]] = (
            ("content-security-policy", CSP),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
            ("cache-control", "no-store"),
            *([("strict-transport-security", "max-age=31536000")] if secure else []),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, seen = clock.monotonic(), {"status": 0}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                present = {name for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in self._headers if n.encode() not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            app = self._errors.turned(scope) or self._app
            await app(scope, receive, sending)
        except Exception:  # whatever was not foreseen has one shape too, and an id that the log knows
            error_id = clock.random_hex(8)
            _say.exception("request crashed", id=error_id, method=scope["method"], path=scope["path"])
            if seen["status"]:
                raise
            await self._errors.crashed(scope["path"], error_id)(scope, receive, sending)
        finally:
            _say.info(
                "request", method=scope["method"], path=scope["path"], status=seen["status"],
                ms=round((clock.monotonic() - begun) * 1000, 1), tenant=scope.get("state", {}).get("tenant", ""),
            )  # fmt: skip
            metrics.count(f"http_{seen['status'] // 100}xx")
