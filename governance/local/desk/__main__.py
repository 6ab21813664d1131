"""The desk's own process: `python -m governance.local.desk CONFIG.json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from governance.local import standin
from governance.local.children import LOOPBACK
from governance.local.desk import pages, webapi, workspace_from
from governance.local.desk.render import Renderer
from governance.local.desk.state import Desk

MOST_BODY_BYTES = 1_000_000
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class LoopbackOnly:
    """Answers only to its own loopback names and to forms of its own pages, so no website can press a button here."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin")
        size = headers.get("content-length", "0")
        if headers.get("host") not in self.names:
            await PlainTextResponse("this desk answers on loopback only", 421)(scope, receive, send_hardened)
        elif origin is not None and origin.removeprefix("http://") not in self.names:
            await PlainTextResponse("a form of another site", 403)(scope, receive, send_hardened)
        elif not size.isdigit() or int(size) > MOST_BODY_BYTES or "transfer-encoding" in headers:
            await PlainTextResponse("too large", 413)(scope, receive, send_hardened)
        else:
            await self.app(scope, receive, send_hardened)


def application(desk: Desk, port: int) -> Starlette:
    """All routes of the desk over one memory."""
    desk.base_url = f"http://{LOOPBACK}:{port}"
    routes = [
        Route("/", pages.front),
        Route("/_ready", pages.ready),
        Route("/_state", pages.state),
        Route("/desk.css", pages.style),
        Route("/c/{channel}", pages.channel),
        Route("/app-home", pages.home),
        Route("/app-home", pages.open_home, methods=["POST"]),
        Route("/deliveries", pages.deliveries),
        Route("/faults", pages.plan_fault, methods=["POST"]),
        Route("/deliveries/{id:int}", pages.send_again, methods=["POST"]),
        Route("/persona", pages.switch, methods=["POST"]),
        Route("/click", pages.click, methods=["POST"]),
        Route("/submit", pages.submit, methods=["POST"]),
        Route("/close", pages.close, methods=["POST"]),
        Route("/command", pages.command, methods=["POST"]),
        Route("/dismiss", pages.dismiss, methods=["POST"]),
        Route("/api/{method}", webapi.call, methods=["GET", "POST"]),
        Route("/response/{key}", webapi.respond, methods=["POST"]),
    ]
    names = frozenset({f"{LOOPBACK}:{port}", f"localhost:{port}"})
    handlers: Any = {pages.WrongForm: pages.wrong_form}
    app = Starlette(routes=routes, middleware=[Middleware(LoopbackOnly, names=names)], exception_handlers=handlers)
    app.state.desk = desk
    app.state.renderer = Renderer(desk.workspace)
    return app


def main(arguments: list[str]) -> None:
    """Serve until a signal ends the process."""
    config = standin.read_config(arguments)
    desk = Desk(workspace_from(config["workspace"]), Path(config["home"]) / "state.json")
    opened = standin.open_port(config)
    app = application(desk, opened.getsockname()[1])
    settings = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(settings).run(sockets=[opened])


if __name__ == "__main__":
    main(sys.argv[1:])
