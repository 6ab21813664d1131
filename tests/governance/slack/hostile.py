"""A Web API that misbehaves on the wire: drops, resets, half answers, floods, pages instead of JSON."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Hostile:
    """What arrived, and what the next answers are: a reply, or a way not to answer."""

    base: str = ""
    seen: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    answer: Reply | str = (200, {}, b"{}")


def ok(**more: Any) -> Reply:
    return json_reply(200, {"ok": True, "channel": "C0OPS", "ts": "1.2", **more})


def error(code: str, status: int = 200, **headers: str) -> Reply:
    return json_reply(status, {"ok": False, "error": code}, **headers)


def json_reply(status: int, body: Any, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/json", **named}, json.dumps(body).encode()


@contextmanager
def hostile() -> Iterator[Hostile]:
    there = Hostile()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            there.seen.append((self.path, json.loads(body), {k.lower(): v for k, v in self.headers.items()}))
            if isinstance(there.answer, str):
                getattr(self, there.answer)()
                return
            status, headers, text = there.answer
            self.send_response(status)
            for name, value in {"content-length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST

        def drop(self) -> None:
            self.close_connection = True

        def reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def half(self) -> None:
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n" + b'{"ok":'
            )
            self.close_connection = True

        def garbage(self) -> None:
            self.wfile.write(b"\x00\x01 what is this\r\n\r\n")
            self.close_connection = True

        def silence(self) -> None:
            threading.Event().wait(1.5)
            self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            # HTTPServer would ask the network for this machine's name.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

        def handle_error(self, *args: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    there.base = f"http://127.0.0.1:{server.server_address[1]}/api/"
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
