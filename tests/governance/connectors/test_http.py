"""One exchange with an outside that fails in every way: what it means is in one table, and what is lost is never guessed."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from governance.connectors import http as room
from governance.connectors.http import Answer, Exchange
from tests.governance.connectors.kit import Handler, Hostile

SECONDS = 0.4
BOMB = gzip.compress(b" " * 50_000_000)  # fifty megabytes in fifty kilobytes
LOST_READ = {"status": "error", "retryable": True}
LOST_WRITE = {"status": "unknown", "retryable": False}


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    with Hostile() as made:
        yield made


@pytest.fixture
def outside(server: Hostile) -> Hostile:
    server.requests.clear()
    return server


@pytest.fixture(scope="module")
def exchange(server: Hostile) -> Iterator[Exchange]:
    made = Exchange(server.base_url, "user", "s3cret-word", seconds=SECONDS)
    yield made
    made.close()


def read(exchange: Exchange) -> Answer:
    return exchange.call("GET", "/thing", changes=False)


def write(exchange: Exchange) -> Answer:
    return exchange.call("PATCH", "/thing", changes=True, json={"a": "b"})


def meant(answer: Answer) -> dict[str, Any]:
    assert answer.outcome is not None
    return {"status": answer.outcome.status, "retryable": answer.outcome.retryable}


def test_an_answer_is_read_strictly_and_whole(outside: Hostile, exchange: Exchange) -> None:
    outside.says = lambda it: it.answer(200, b'{"result": {"n": 1.5}}', X_Seen="yes")
    answer = read(exchange)
    assert (answer.status, answer.outcome, answer.headers["x-seen"]) == (200, None, "yes")
    assert answer.body == {"result": {"n": 1.5}}
    outside.says = lambda it: it.answer(200, gzip.compress(b'{"ok": true}'), Content_Encoding="gzip")
    assert read(exchange).body == {"ok": True}


REJECTED = ("rejected", False)
AGAIN = ("error", True)
NOBODY_KNOWS = ("unknown", False)


@pytest.mark.parametrize(
    ("status", "error_class", "reading", "writing"),
    [
        (400, "rejected", REJECTED, REJECTED),
        (401, "not_authorized", REJECTED, REJECTED),
        (403, "not_authorized", REJECTED, REJECTED),
        (404, "target_not_found", REJECTED, REJECTED),
        (409, "rejected", REJECTED, REJECTED),
        (422, "rejected", REJECTED, REJECTED),
        (429, "rate_limited", AGAIN, AGAIN),
        # After these a write may have been committed: a gateway gave up, or the answer failed and not the deed.
        (408, "server_error", AGAIN, NOBODY_KNOWS),
        (500, "server_error", AGAIN, NOBODY_KNOWS),
        (502, "server_error", AGAIN, NOBODY_KNOWS),
        (503, "server_error", AGAIN, NOBODY_KNOWS),
        (504, "server_error", AGAIN, NOBODY_KNOWS),
    ],
)
def test_what_a_status_means(
    outside: Hostile, exchange: Exchange, status: int, error_class: str, reading: tuple[str, bool],
    writing: tuple[str, bool],
) -> None:  # fmt: skip
    outside.says = lambda it: it.answer(status, b'{"error": {"message": "no"}}')
    for call, expected in ((read, reading), (write, writing)):
        found = call(exchange).outcome
        assert found is not None
        assert (found.status, found.retryable) == expected
        assert (found.error_class, found.response) == (error_class, {"status": status, "size": 28})
    assert len(outside.requests) == 2


def test_a_server_that_asks_to_come_back_has_done_nothing(outside: Hostile, exchange: Exchange) -> None:
    outside.says = lambda it: it.answer(503, b"", Retry_After="7")
    for call in (read, write):
        found = call(exchange).outcome
        assert found is not None
        assert (found.status, found.retryable, found.retry_after_seconds) == ("error", True, 7)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("99999", 99999), ("100000", 0), ("-1", 0), ("abc", 0), ("1.5", 0), ("", 0), ("²", 0),
     ("Wed, 21 Oct 2026 07:28:00 GMT", 0)],
)  # fmt: skip
def test_how_long_to_wait_is_taken_from_a_plain_number_only(
    outside: Hostile, exchange: Exchange, header: str, seconds: int
) -> None:
    outside.says = lambda it: it.answer(429, b"", Retry_After=header.encode().decode("latin-1"))
    answer = write(exchange)
    assert answer.outcome is not None
    assert answer.outcome.retry_after_seconds == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", [read, write])
def test_a_redirect_is_not_followed(
    outside: Hostile, exchange: Exchange, call: Callable[[Exchange], Answer], status: int
) -> None:
    """It would carry the credentials, and the write, to an address that nobody approved."""
    outside.says = lambda it: it.answer(status, b"", Location=f"{outside.base_url}/elsewhere")
    answer = call(exchange)
    assert meant(answer) == {"status": "rejected", "retryable": False}
    assert [request.rpartition(" ")[2] for request in outside.requests] == ["/thing"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>login</html>", b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1}x', b"\xff\xfe{}",
        b'{"a": "\\ud800"}', b"[" * 200 + b"]" * 200, b'{"result"',
    ],
)  # fmt: skip
def test_an_answer_that_is_not_strict_json_says_nothing(outside: Hostile, exchange: Exchange, body: bytes) -> None:
    outside.says = lambda it: it.answer(200, body)
    for call, expected in ((read, LOST_READ), (write, LOST_WRITE)):
        answer = call(exchange)
        assert meant(answer) == expected
        assert answer.outcome is not None
        assert answer.outcome.error_class == "malformed_answer"


def huge(it: Handler) -> None:
    it.send_response(200)
    it.end_headers()
    for _ in range(80):
        it.wfile.write(b" " * 65_536)
    it.close_connection = True


def bomb(it: Handler) -> None:
    it.answer(200, BOMB, Content_Encoding="gzip")


def cut(it: Handler) -> None:
    it.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def silent(it: Handler) -> None:
    it.raw(b"")


def nonsense(it: Handler) -> None:
    it.raw(b"ICY 200 OK\r\n\r\n{}")


def stalled(it: Handler) -> None:
    time.sleep(SECONDS * 2)
    it.answer(200, b"{}")


def trickle(it: Handler) -> None:
    it.send_response(200)
    it.send_header("Content-Length", "1000")
    it.end_headers()
    for _ in range(60):
        it.wfile.write(b" ")
        it.wfile.flush()
        time.sleep(SECONDS / 4)


@pytest.mark.parametrize(
    ("says", "error_class"),
    [
        (huge, "answer_too_large"),
        (bomb, "answer_too_large"),
        (cut, "connection_lost"),
        (silent, "connection_lost"),
        (nonsense, "connection_lost"),
        (stalled, "timeout"),
        (trickle, "timeout"),
    ],
)
def test_a_lost_answer_is_unknown_for_a_write_and_asked_again_for_a_read(
    outside: Hostile, exchange: Exchange, says: Callable[[Handler], None], error_class: str
) -> None:
    outside.says = says
    begun = time.monotonic()
    reading, writing = read(exchange), write(exchange)
    assert time.monotonic() - begun < 10 * SECONDS
    assert reading.outcome is not None
    assert writing.outcome is not None
    assert (reading.outcome.error_class, writing.outcome.error_class) == (error_class, error_class)
    assert meant(reading) == ({"status": "timeout", "retryable": True} if error_class == "timeout" else LOST_READ)
    assert meant(writing) == LOST_WRITE
    assert len(outside.requests) == 2, "nothing is sent twice by itself"


def test_nobody_there_is_certainly_nothing_done() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        exchange = Exchange(f"http://127.0.0.1:{taken.getsockname()[1]}", "user", "s3cret-word", seconds=SECONDS)
        for call in (read, write):
            answer = call(exchange)
            assert meant(answer) == {"status": "error", "retryable": True}
            assert answer.outcome is not None
            assert answer.outcome.error_class == "unreachable"
            assert "s3cret-word" not in repr(answer)
        exchange.close()


def test_a_connection_that_the_other_side_closed_meanwhile_is_not_an_unknown_write(
    outside: Hostile, exchange: Exchange
) -> None:
    """Kept-alive connections end at any time; a write is sent on a fresh one or says that it is not known."""
    outside.says = lambda it: it.answer(200, b"{}", Connection="close")
    for _ in range(3):
        assert write(exchange).outcome is None
    assert len(outside.requests) == 3


def test_no_proxy_of_the_environment_is_used(outside: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    outside.says = lambda it: it.answer(200, b"{}")
    exchange = Exchange(outside.base_url, "user", "s3cret-word", seconds=SECONDS)
    assert read(exchange).outcome is None
    exchange.close()


def test_the_cap_is_what_a_reader_can_hold() -> None:
    assert room.answer_bytes_max == 1_048_576
