"""A listener in the product's place: it keeps every delivery and answers what the test put down for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


@dataclass(frozen=True)
class Delivery:
    """One request as it arrived."""

    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode(), keep_blank_values=True).items()}

    @property
    def payload(self) -> Any:
        """The interaction's JSON, or the event's when the body is JSON itself."""
        if self.headers["content-type"] == "application/json":
            return json.loads(self.body)
        return json.loads(self.form["payload"])


class Product:
    """`with Product() as product`: `product.deliveries` in order, `product.answer` decides what goes back."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.answer: Callable[[Delivery], tuple[int, str]] = lambda _: (200, "")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/slack/events"

    def __enter__(self) -> Product:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        product = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                delivery = Delivery({name.lower(): value for name, value in self.headers.items()}, body)
                product.deliveries.append(delivery)
                status, text = product.answer(delivery)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        return Handler
