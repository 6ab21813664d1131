"""P10: a tenant's webhook reaches the open internet and nothing of ours, and what it is sent is signed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from engine.errors import CallerError, OperatorError
from governance import clock
from governance.evidence import outward
from governance.evidence.outward import check_url, is_public, post
from governance.keys import hook_signature

SECRET = "a-secret-of-the-receiver"
PUBLIC = "93.184.215.14"


@dataclass
class Receiver:
    """A web server that remembers what it was sent and answers as it is told."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.got.append((handler.path, {name.lower(): value for name, value in handler.headers.items()}, body))
        handler.send_response(self.status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(self.answer)))
        handler.end_headers()
        handler.wfile.write(self.answer)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.take(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/in?x=1"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
        "192.0.2.1", "198.18.0.1", "240.0.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_an_address_of_no_open_internet_is_refused(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(CallerError, match="no address of the open internet") as refused:
        check_url("https://siem.example.com/in", allow_local=False, resolve=lambda *_: [PUBLIC, address])
    assert refused.value.field == "url"
    check_url("https://siem.example.com/in", allow_local=True, resolve=lambda *_: [address])


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_an_address_of_the_open_internet_is_taken(address: str) -> None:
    assert is_public(address)
    check_url("https://siem.example.com/in", allow_local=False, resolve=lambda *_: [address])


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://siem.example.com/", "is not https"), ("ftp://siem.example.com/", "is not https"), ("siem.example.com", "is not https"),
        ("https://", "names no host"), ("https://:443/", "names no host"), ("https://a.example:0/", "names no host"),
        ("https://a.example:99999/", "is not a URL"), ("https://[::1/", "is not a URL"), ("https://a.example/\r\nX: 1", "is not a URL"),
        ("https://a.example/a b", "is not a URL"), ("https://exämple.com/", "is not a URL"),
        ("https://a.example/" + "x" * 2000, "is not a URL"),
        ("https://me:secret@a.example/", "password"), ("https://a.example/#x", "fragment"), ("https://gone.invalid/", "has no address"),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_name(url: str, reason: str) -> None:
    def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror("not known")

    with pytest.raises(CallerError, match=reason) as refused:
        check_url(url, allow_local=False, resolve=nowhere)
    assert refused.value.field == "url"


@pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f000001", "2130706433", "[::ffff:127.0.0.1]"])
def test_no_spelling_of_this_machine_passes(host: str) -> None:
    """Whatever the system's own resolver makes of it is what is judged."""
    with pytest.raises(CallerError, match="no address"):
        check_url(f"https://{host}/", allow_local=False)


def test_what_is_posted_is_signed_like_our_own_hooks(receiver: Receiver) -> None:
    post(receiver.url, b'{"a":1}\n', {"Content-Type": "application/x-ndjson"}, SECRET, allow_local=True)
    ((path, headers, body),) = receiver.got
    assert (path, body, headers["content-type"]) == ("/in?x=1", b'{"a":1}\n', "application/x-ndjson")
    assert headers["x-twokeys-signature"] == hook_signature(SECRET, headers["x-twokeys-timestamp"], body)
    assert abs(int(headers["x-twokeys-timestamp"]) - clock.epoch_seconds()) < 60


def test_it_goes_to_the_address_that_was_checked_and_to_no_other(receiver: Receiver) -> None:
    """A name that leads elsewhere on the second look leads nowhere: it is looked up once for each post."""
    looks = []

    def rebound(host: str, port: int) -> list[str]:
        looks.append(host)
        return ["127.0.0.1"]

    url = receiver.url.replace("127.0.0.1", "siem.example.com")
    post(url, b"x", {}, SECRET, allow_local=True, resolve=rebound)
    assert looks == ["siem.example.com"]
    assert receiver.got[0][1]["host"].startswith("siem.example.com:")
    with pytest.raises(CallerError, match="no address of the open internet"):
        post(url.replace("http:", "https:"), b"x", {}, SECRET, allow_local=False, resolve=rebound)
    assert len(receiver.got) == 1


def test_the_next_address_is_tried_when_one_does_not_take_us(receiver: Receiver) -> None:
    port = int(receiver.url.split(":")[2].split("/")[0])
    post(
        f"http://two.example:{port}/", b"x", {}, SECRET, allow_local=True, resolve=lambda *_: ["127.0.0.9", "127.0.0.1"]
    )
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 409, 429, 500, 503])
def test_only_a_yes_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.status, receiver.headers = status, {"Location": receiver.url}
    with pytest.raises(OperatorError, match=f"answered {status}"):
        post(receiver.url, b"x", {}, SECRET, allow_local=True)
    assert len(receiver.got) == 1, "no redirect is followed and nothing is sent twice"


def test_an_answer_without_an_end_is_no_delivery(receiver: Receiver) -> None:
    receiver.status, receiver.answer = 200, b"x" * (outward.answer_bytes_max + 1)
    with pytest.raises(OperatorError, match="passes"):
        post(receiver.url, b"x", {}, SECRET, allow_local=True)


def test_a_receiver_that_only_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outward, "seconds_max", 0.3)
    door = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def trickle() -> None:
        taken, _ = door.accept()
        with taken:
            taken.sendall(b"HTTP/1.1 200 OK\r\n")
            while not over.wait(0.05):
                try:
                    taken.sendall(b"X: y\r\n")
                except OSError:
                    return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(OperatorError):
            post(f"http://127.0.0.1:{door.getsockname()[1]}/", b"x", {}, SECRET, allow_local=True)
    finally:
        over.set()
        thread.join()
        door.close()


def test_nothing_is_sent_after_the_lease(receiver: Receiver) -> None:
    with pytest.raises(OperatorError, match="lease ran out"):
        post(receiver.url, b"x", {}, SECRET, allow_local=True, send_by=clock.boottime() - 1)
    assert receiver.got == []
