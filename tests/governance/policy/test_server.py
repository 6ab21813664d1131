"""Whatever a policy server does wrong is a denial inside the deadline, and nothing in the environment reroutes a question."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.gate.verdict import PolicyFault
from governance import clock
from governance.policy import server as room
from governance.policy.server import Server
from tests.governance.policy.kit import assert_fault, plain_question, ruled

REVISION = "a" * 64
Behaviour = Callable[[socket.socket, dict[str, Any]], None]


class Hostile:
    """A server on loopback that reads one whole request and then does what it was told with the connection."""

    def __init__(self) -> None:
        self.behave: Behaviour = lambda connection, asked: None
        self.heads: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        if self.stop.is_set():
            return
        self.stop.set()
        # A thread inside accept() is woken by shutdown, not by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self.stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                data = b""
                while b"\r\n\r\n" not in data:
                    part = connection.recv(65_536)
                    if not part:
                        return
                    data += part
                head, _, body = data.partition(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(body) < length:
                    body += connection.recv(65_536)
                self.heads.append(head)
                self.bodies.append(json.loads(body))
                self.behave(connection, self.bodies[-1]["input"])
            except OSError:
                return


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    one = Hostile()
    yield one
    one.close()


@pytest.fixture
def policy(hostile: Hostile) -> Iterator[Server]:
    one = Server("127.0.0.1", hostile.port, bundle_name="twokeys", token="t0ken", total_seconds=0.8)
    yield one
    one.close()


def envelope(asked: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a good OPA answers: a grant."""
    findings = {
        "schema": "twokeys.policy.findings/v1",
        "echo": {"request_id": asked["request"]["id"], "action_sha256": asked["action"]["sha256"]},
        "policy": {"package": "twokeys.main", "revision": REVISION},
        "denials": [],
        "holds": [],
        "grants": [{"code": "listed_write", "message": "on the list"}],
        "obligations": [],
    }
    good: dict[str, Any] = {
        "result": findings,
        "provenance": {"version": "1.20.2", "bundles": {"twokeys": {"revision": REVISION}}},
        "metrics": {"timer_rego_query_eval_ns": 1, "histogram": {"mean": 1.5}},
        "decision_id": "d",
    }
    return {name: part for name, part in {**good, **changes}.items() if part is not ...}


def reply(
    body: bytes, *, status: str = "200 OK", kind: str = "application/json", length: int | None = None, more: str = ""
) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{more}Connection: close\r\n\r\n"
    return head.encode() + body


def says(change: Callable[[dict[str, Any]], bytes]) -> Behaviour:
    return lambda connection, asked: connection.sendall(change(asked))


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def good(asked: dict[str, Any]) -> bytes:
    return encoded(envelope(asked))


def drip_body(connection: socket.socket, asked: dict[str, Any]) -> None:
    data = reply(good(asked))
    connection.sendall(data[:200])
    for n in range(200, len(data)):
        connection.sendall(data[n : n + 1])
        clock.sleep(0.2)


def drip_head(connection: socket.socket, asked: dict[str, Any]) -> None:
    for letter in reply(good(asked)):
        connection.sendall(bytes((letter,)))
        clock.sleep(0.1)


def hang(connection: socket.socket, asked: dict[str, Any]) -> None:
    clock.sleep(3)


def reset(connection: socket.socket, asked: dict[str, Any]) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def chunked(end: bytes) -> Behaviour:
    def behave(connection: socket.socket, asked: dict[str, Any]) -> None:
        body = good(asked)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"%x\r\n" % len(body) + body + b"\r\n" + end)

    return behave


def redirected(status: str) -> Behaviour:
    return says(lambda asked: reply(good(asked), status=status, more="Location: /v1/data/other\r\n"))


def enveloped(**changes: Any) -> Behaviour:
    return says(lambda asked: reply(encoded(envelope(asked, **changes))))


def old(version: str) -> Behaviour:
    return enveloped(provenance={"version": version, "bundles": {"twokeys": {"revision": REVISION}}})


def bundles(value: Any) -> Behaviour:
    return enveloped(provenance={"version": "1.20.2", "bundles": value})


DOUBLED = b'{"result":{"allow":true},"result":'
MISBEHAVIOURS: list[tuple[str, Behaviour, str, bool]] = [
    ("closes without a word", lambda connection, asked: None, "refused", True),
    ("resets", reset, "refused", True),
    ("hangs", hang, "timeout", True),
    ("drips its body", drip_body, "timeout", True),
    ("drips its head", drip_head, "timeout", True),
    ("is no HTTP", says(lambda asked: b"SSH-2.0-x\r\n\r\n"), "refused", True),
    ("redirects 301", redirected("301 Moved"), "redirect", False),
    ("redirects 302", redirected("302 Found"), "redirect", False),
    ("redirects 307", redirected("307 Temporary"), "redirect", False),
    ("redirects 308", redirected("308 Permanent"), "redirect", False),
    ("says 201", says(lambda asked: reply(good(asked), status="201 Created")), "http_status", False),
    ("says 204", says(lambda asked: b"HTTP/1.1 204 No Content\r\n\r\n"), "http_status", False),
    ("says 400", says(lambda asked: reply(good(asked), status="400 Bad")), "http_status", False),
    ("says 401", says(lambda asked: reply(good(asked), status="401 No")), "http_status", False),
    ("says 404", says(lambda asked: reply(good(asked), status="404 None")), "http_status", False),
    ("says 429", says(lambda asked: reply(good(asked), status="429 Slow")), "http_status", False),
    ("says 500", says(lambda asked: reply(good(asked), status="500 Conflict")), "evaluation_failed", False),
    ("says 502", says(lambda asked: reply(good(asked), status="502 Bad")), "unavailable", True),
    ("says 503", says(lambda asked: reply(good(asked), status="503 Busy")), "unavailable", True),
    ("says 504", says(lambda asked: reply(good(asked), status="504 Late")), "unavailable", True),
    ("sends HTML", says(lambda asked: reply(good(asked), kind="text/html")), "content_type", False),
    ("sends no type", says(lambda asked: reply(good(asked), kind="")), "content_type", False),
    (
        "compresses",
        says(lambda asked: reply(gzip.compress(good(asked)), more="Content-Encoding: gzip\r\n")),
        "content_encoding",
        False,
    ),
    ("sends a login page as JSON", says(lambda asked: reply(b"<html>")), "malformed_answer", False),
    ("sends nothing", says(lambda asked: reply(b"")), "malformed_answer", False),
    ("sends too little", says(lambda asked: reply(good(asked), length=9_999)), "refused", True),
    ("sends half", says(lambda asked: reply(good(asked)[:300])), "malformed_answer", False),
    ("breaks off a chunk", chunked(b""), "refused", True),
    ("sends too much", says(lambda asked: reply(good(asked) + b" " * 70_000)), "too_large", False),
    ("sends two documents", says(lambda asked: reply(good(asked) * 2)), "malformed_answer", False),
    ("doubles a key", says(lambda asked: reply(DOUBLED + good(asked)[10:])), "malformed_answer", False),
    ("sends NaN", says(lambda asked: reply(good(asked).replace(b"1.5", b"NaN"))), "malformed_answer", False),
    ("sends a BOM", says(lambda asked: reply(b"\xef\xbb\xbf" + good(asked))), "malformed_answer", False),
    ("sends bad UTF-8", says(lambda asked: reply(good(asked).replace(b"on the", b"\xff"))), "malformed_answer", False),
    ("sends a list", says(lambda asked: reply(b"[true]")), "wrong_envelope", False),
    ("sends true", says(lambda asked: reply(b"true")), "wrong_envelope", False),
    ("has nothing to say", enveloped(result=...), "undefined", False),
    ("is empty", says(lambda asked: reply(b"{}")), "undefined", False),
    ("warns", enveloped(warning={"code": "api_usage_warning"}), "wrong_envelope", False),
    ("sends more", enveloped(extra=1), "wrong_envelope", False),
    ("says null", enveloped(result=None), "shape", False),
    ("says true", enveloped(result=True), "shape", False),
    ("says a fraction", enveloped(result=1.5), "malformed_findings", False),
    ("hides where it comes from", enveloped(provenance=...), "wrong_envelope", False),
    ("is odd about where it comes from", enveloped(provenance=[]), "wrong_envelope", False),
    ("is old", old("1.9.0"), "engine_too_old", False),
    ("has no version", old("dev"), "engine_too_old", False),
    ("has no bundle", bundles({}), "revision_mismatch", True),
    ("has null for bundles", bundles(None), "revision_mismatch", True),
    ("has another bundle", bundles({"other": {"revision": REVISION}}), "revision_mismatch", True),
    ("has another revision", bundles({"twokeys": {"revision": "b" * 64}}), "revision_mismatch", True),
    ("has an empty revision", bundles({"twokeys": {"revision": ""}}), "revision_mismatch", True),
    ("has a number for a revision", bundles({"twokeys": {"revision": 1}}), "revision_mismatch", True),
]


@pytest.mark.parametrize(
    ("behave", "code", "retryable"),
    [case[1:] for case in MISBEHAVIOURS],
    ids=[case[0] for case in MISBEHAVIOURS],
)
def test_a_server_that_misbehaves_is_a_denial(
    hostile: Hostile, policy: Server, behave: Behaviour, code: str, retryable: bool
) -> None:
    """With its code, inside the deadline, and the next good answer is believed again."""
    hostile.behave = behave
    begun = clock.monotonic()
    assert_fault(ruled(policy, REVISION), code, retryable=retryable)
    assert clock.monotonic() - begun < 3
    hostile.behave = says(lambda asked: reply(good(asked)))
    assert ruled(policy, REVISION).verdict.effect == "allow"


@pytest.mark.parametrize(
    "behave", [says(lambda asked: reply(good(asked))), chunked(b"0\r\n\r\n")], ids=["plain", "chunked"]
)
def test_a_good_answer_is_believed(hostile: Hostile, policy: Server, behave: Behaviour) -> None:
    """The control of every other test here, and what was sent: one path, strict builtin errors, provenance, the token."""
    hostile.behave = behave
    result = ruled(policy, REVISION)
    assert result.verdict.effect == "allow"
    assert (result.verdict.engine, result.verdict.engine_version) == ("opa-server", "1.20.2")
    assert policy.version == "1.20.2"
    head = hostile.heads[0].decode()
    assert head.startswith(
        "POST /v1/data/twokeys/main/findings?strict-builtin-errors=true&provenance=true&metrics=true "
    )
    assert "Authorization: Bearer t0ken" in head
    assert "Accept-Encoding: identity" in head
    assert hostile.bodies[0] == {"input": json.loads(plain_question().input_bytes)}


def test_an_answer_to_another_question_is_a_denial(hostile: Hostile, policy: Server) -> None:
    """A cache or a proxy in between may hold somebody else's allow."""
    kept: list[bytes] = []

    def stale(asked: dict[str, Any]) -> bytes:
        kept.append(reply(good(asked)))
        return kept[0]

    hostile.behave = says(stale)
    assert ruled(policy, REVISION).verdict.effect == "allow"
    other = plain_question(request__id="00000000-0000-4000-8000-000000000009")
    assert_fault(ruled(policy, REVISION, other), "echo_mismatch", retryable=False)


def test_nobody_there_is_a_retryable_denial(policy: Server, hostile: Hostile) -> None:
    """Refused at once, tried once more inside the deadline, then a fault."""
    hostile.close()
    begun = clock.monotonic()
    assert_fault(ruled(policy, REVISION), "refused", retryable=True)
    assert clock.monotonic() - begun < 2


def test_a_name_that_does_not_resolve_is_a_denial() -> None:
    """Name resolution is outside the client's timeouts, not outside ours."""
    one = Server("nobody.invalid", 1, bundle_name="twokeys", total_seconds=0.6)
    begun = clock.monotonic()
    assert ruled(one, REVISION).verdict.deny_kind == "fault"
    assert clock.monotonic() - begun < 3


def test_proxies_and_netrc_of_the_environment_have_no_effect(
    hostile: Hostile, policy: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They would send the question and the token to somebody else."""
    elsewhere = Hostile()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    netrc.chmod(0o600)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{elsewhere.port}")
    monkeypatch.setenv("NETRC", str(netrc))
    hostile.behave = says(lambda asked: reply(good(asked)))
    try:
        assert ruled(policy, REVISION).verdict.effect == "allow"
        assert not elsewhere.heads
        assert "Authorization: Bearer t0ken" in hostile.heads[0].decode()
    finally:
        elsewhere.close()


def test_a_redirect_is_never_followed(hostile: Hostile, policy: Server) -> None:
    """Not even to a server that would give a good answer."""
    elsewhere = Hostile()
    elsewhere.behave = says(lambda asked: reply(good(asked)))
    where = f"Location: http://127.0.0.1:{elsewhere.port}/v1/data\r\n"
    hostile.behave = says(lambda asked: reply(b"", status="307 Go", more=where))
    try:
        assert_fault(ruled(policy, REVISION), "redirect")
        assert not elsewhere.heads
        assert len(hostile.heads) == 1
    finally:
        elsewhere.close()


def test_questions_without_an_answer_are_bounded(hostile: Hostile, policy: Server) -> None:
    """A thread that was given up counts as in flight until it ends; more than a few of them are refused at once."""
    hostile.behave = hang
    questions = [threading.Thread(target=ruled, args=(policy, REVISION)) for _ in range(room.in_flight_max)]
    for one in questions:
        one.start()
    clock.sleep(0.2)
    begun = clock.monotonic()
    assert_fault(ruled(policy, REVISION), "breaker_open", retryable=True)
    assert clock.monotonic() - begun < 0.6
    for one in questions:
        one.join()


def test_the_client_has_the_private_parts_that_we_hold_it_by(policy: Server) -> None:
    """opa-python-client 3 and requests 2: when these names move, this fails before a question does."""
    session = policy._client._session
    assert session.trust_env is False
    assert session.max_redirects == 0
    assert len(session.hooks["response"]) == 1
    assert {adapter.max_retries.total for adapter in session.adapters.values()} == {0}


def test_a_client_that_skips_the_check_is_a_denial(hostile: Hostile, policy: Server) -> None:
    """Without the hook the client's own reading of the answer would be taken; it is not."""
    hostile.behave = says(lambda asked: reply(good(asked)))
    policy._client._session.hooks["response"].clear()
    assert_fault(ruled(policy, REVISION), "client_error", retryable=False)


def test_tls_is_verified(hostile: Hostile) -> None:
    """A server that does not speak TLS where TLS is configured is no server."""
    one = Server("127.0.0.1", hostile.port, bundle_name="twokeys", tls=True, total_seconds=0.6)
    assert ruled(one, REVISION).verdict.deny_kind == "fault"
    one.close()


def test_the_canaries_decide_whether_a_server_is_used(hostile: Hostile, policy: Server) -> None:
    """A server that always grants is not ready."""

    class Loaded:
        revision = REVISION

    hostile.behave = says(lambda asked: reply(good(asked)) if "request" in asked else reply(b"{}"))
    with pytest.raises(PolicyFault) as refused:
        policy.load(Loaded())  # type: ignore[arg-type]
    assert refused.value.code == "canary_failed"
