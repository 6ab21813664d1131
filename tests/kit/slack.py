"""The outermost seam towards Slack for flow tests: takes every Web API call, remembers it, answers as told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class SlackSink:
    """`calls` is (method, arguments) in order; `answer` may be replaced to refuse, stall or fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.down = False
        self.headers: dict[str, str] = {}
        self._count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/"

    def __enter__(self) -> SlackSink:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def texts(self, method: str) -> list[str]:
        return [str(arguments.get("text", "")) for name, arguments in self.calls if name == method]

    def _take(self, method: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append((method, arguments))
        if self.down:
            return 503, {"ok": False, "error": "service_unavailable"}
        self._count += 1
        return 200, {"ok": True, "channel": arguments.get("channel", "C1"), "ts": f"1700000000.{self._count:06d}"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(sink.calls).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                if "json" in self.headers.get("Content-Type", ""):
                    arguments = json.loads(raw or "{}")
                else:
                    arguments = {name: values[0] for name, values in parse_qs(raw, keep_blank_values=True).items()}
                status, answer = sink._take(self.path.rpartition("/")[2], arguments)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                for name, value in sink.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        return Handler
