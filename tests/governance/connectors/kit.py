"""Permits for a connector to act under, and an outside that answers whatever a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from engine.gate.action import Action, Field, Target
from engine.gate.permit import Judgement, Permit, permit
from tests.kit.servicenow import INCIDENT


def action(
    operation: str = "update",
    fields: dict[str, str] | None = None,
    *,
    target: str = INCIDENT,
    seen: dict[str, str] | None = None,
    connector: str = "servicenow",
    ops: dict[str, str] | None = None,
) -> Action:
    """A proposal of one operation on one target."""
    kind = {"lookup": "read", "post": "message"}.get(operation, "write")
    given = {} if kind == "read" else ({"state": "2"} if fields is None else fields)
    return Action(
        tenant="acme", workspace="main", run="r1", promise="0", step="step", workflow="w", version="1", definition="d",
        connector=connector, operation=operation, kind=kind, risk="low", reversible=True, reversal="inverse",
        target=Target(connector, "incident", target, "dev1"),
        fields=tuple(Field(name, (ops or {}).get(name, "set"), value, "internal") for name, value in given.items()),
        amount_minor=0, currency="", preconditions=tuple(sorted((seen or {}).items())), key="effect-key-1", summary="", salt="5a" * 16,

    )  # fmt: skip


def allowed(proposed: Action) -> Permit:
    """A permit as the gate gives it for a plain allow."""
    judgement = Judgement(1, "allow", proposed.digest.hex(), 0, "low", "0" * 64)
    return permit(proposed, judgement, None, attempt=1, deadline_seconds=15)


class Handler(BaseHTTPRequestHandler):
    """What an answer function gets: the request, and the raw wire to write to."""

    def raw(self, data: bytes) -> None:
        """Exactly these bytes, then the end."""
        self.close_connection = True
        self.wfile.write(data)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """A well-formed answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Hostile:
    """`with Hostile() as outside`: `outside.says` answers every request; `outside.requests` are what came in."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.says: Callable[[Handler], None] = lambda it: it.answer(200, b"{}")
        outside = self

        class Answering(Handler):
            def _handle(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outside.requests.append(f"{self.command} {self.path}")
                try:
                    outside.says(self)
                except ConnectionError:
                    self.close_connection = True  # the caller gave up, as it should

            do_GET = do_PATCH = do_POST = _handle

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hostile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
