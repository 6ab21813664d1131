"""A policy engine that is shut, hangs, lies, has another bundle, points elsewhere or drips: no effect, and back without a restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.gate.verdict import PolicyFault
from governance import clock
from governance.local import postgres
from governance.policy import bundle
from governance.policy.bundle import signed
from governance.policy.managed import Managed
from governance.policy.shelf import Shelf
from governance.wiring import Parts
from tests.governance.policy.kit import opa_binary
from tests.kit.opa import OpaServer
from tests.kit.replaying import ReplayedCommits
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.wait import until
from tests.kit.world import World, settings_for, settle, without_bucket


class Front:
    """What stands before a real OPA on the way to it, and may turn on whoever comes."""

    def __init__(self) -> None:
        self.mode, self.to = "pass", 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while True:
                request = _message(connection)
                if not request:
                    return
                answer = self._answer(request, self.mode)
                if self.mode == "drip":
                    for n in range(len(answer)):
                        connection.sendall(answer[n : n + 1])
                        if self._over.wait(0.05):
                            return
                connection.sendall(answer)

    def _answer(self, request: bytes, mode: str) -> bytes:
        if mode == "silence":
            self._over.wait(5)
            return b""
        if mode == "garbage":
            return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\nnot json!"
        if mode == "redirect":
            return b"HTTP/1.1 307 No\r\nLocation: http://127.0.0.1:%d/v1/data\r\nContent-Length: 0\r\n\r\n" % self.to
        with socket.create_connection(("127.0.0.1", self.to), timeout=5) as opa:
            opa.sendall(request)
            answer = _message(opa)
        if mode == "allow":
            _, _, body = answer.partition(b"\r\n\r\n")
            value = json.loads(body)
            value["result"] = {"allow": True}
            body = json.dumps(value).encode()
            return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
        return answer


def _message(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(65_536)
        return data
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


class OnDisk:
    """A shelf that OPA reads from the disk."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def shelve(self, key: str, data: bytes) -> None:
        part = self.file.with_suffix(".part")
        part.write_bytes(data)
        part.replace(self.file)

    def shelved(self, key: str) -> str:
        return ""


class Served:
    """A world whose verdicts come from a real OPA server behind a front."""

    def __init__(self, world: World, front: Front, opa: OpaServer, store: OnDisk) -> None:
        self.world, self.front, self.opa, self.store = world, front, opa, store

    def place(self) -> None:
        """What is in force, as the worker puts it there."""
        parts = self.world.parts
        shelf = Shelf(
            self.store, tenants=lambda: [self.world.tenant], revision_of=lambda tenant: force(self.world),
            bundle_of=parts.bundle_of, signer_of=parts.policy_signer,
        )  # fmt: skip
        assert shelf.step() == 1


def force(world: World) -> str:
    row = world.row("select revision from policy where tenant = :tenant and state = 'active'")
    assert row is not None
    return str(row["revision"])


@pytest.fixture(scope="module")
def served(
    database: postgres.Database,
    slack_sink: SlackSink,
    servicenow_server: ServiceNow,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    front, directory = Front(), tmp_path_factory.mktemp("served")
    changes = {"policy_engine": "server", "opa_url": f"http://127.0.0.1:{front.port}"}
    parts = Parts(settings_for(database, slack_sink.api_base, **changes), "test", directory, ReplayedCommits())
    without_bucket(parts)
    world = settle(parts, slack_sink, servicenow_server)
    store = OnDisk(directory / "bundle.tar.gz")
    config = parts.policy_server_config(world.tenant, 1)
    config["bundles"]["twokeys"] |= {"resource": f"file://{store.file}"}  # type: ignore[index]
    del config["bundles"]["twokeys"]["service"], config["services"]  # type: ignore[attr-defined]
    opa = OpaServer(opa_binary(), config, directory)
    front.to = opa.port
    made = Served(world, front, opa, store)
    made.place()
    until(lambda: _is_ready(world), 15.0)
    yield made
    opa.stop()
    front.close()
    parts.close()


def _is_ready(world: World) -> bool:
    try:
        world.parts.policies.breaker(world.tenant, force(world))
    except PolicyFault:
        return False
    return True


def denied(world: World, code: str, *, retryable: bool) -> str:
    """A run whose first step cannot be judged: no effect, the code, and the wait for another try or the end of the step."""
    before = world.writes("assignment_group")
    run = world.start()
    world.drain()
    case = world.case(run)
    assert case.state == ("failed_retryable" if retryable else "failed_terminal"), world.steps(run)
    assert case.promises["0"].last_error.startswith(f"policy_fault: {code}"), world.steps(run)
    assert "effect.intended" not in world.entries(run)
    assert world.writes("assignment_group") == before
    return run


def recovered(world: World, run: str) -> None:
    """The step that waited goes on, or a new run does, with the process that was there."""
    if world.case(run).state == "failed_retryable":
        world.until(run, "waiting_approval")
    else:
        world.until(world.start(), "waiting_approval")


@pytest.fixture
def clean(served: Served, servicenow: ServiceNow) -> Iterator[Served]:
    served.front.mode = "pass"
    until(lambda: _is_ready(served.world), 15.0)
    served.world.parts.policies.close()  # what one test did to the breaker is not the next one's
    yield served
    served.front.mode = "pass"


@pytest.mark.parametrize(
    ("mode", "code", "retryable"),
    [
        ("silence", "timeout", True),
        ("drip", "timeout", True),
        ("garbage", "malformed_answer", False),
        ("redirect", "redirect", False),
        ("allow", "shape", False),
    ],
)
def test_a_server_that_turns_on_us_means_no_effect(clean: Served, mode: str, code: str, retryable: bool) -> None:
    """Must show: hang it, drip, feed it garbage, redirect it."""
    warm(clean.world)
    clean.front.mode = mode
    run = denied(clean.world, code, retryable=retryable)
    clean.front.mode = "pass"
    recovered(clean.world, run)


def warm(world: World) -> None:
    """The engine is loaded and proved, so that what follows meets a verdict and not the loading."""
    world.parts.policies.breaker(world.tenant, force(world))


def test_a_server_that_is_shut_or_stopped_means_no_effect(clean: Served) -> None:
    """Must show: shut OPA, hang it."""
    world = clean.world
    warm(world)
    clean.opa.hang()
    run = denied(world, "timeout", retryable=True)
    clean.opa.go_on()
    recovered(world, run)
    clean.opa.stop()
    run = denied(world, "refused", retryable=True)
    clean.opa.start_again()
    until(lambda: _answers(clean), 10.0)
    recovered(world, run)


def _answers(served: Served) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", served.opa.port), timeout=1):
        return True
    return False


def test_a_server_whose_bundle_was_swapped_means_no_effect(clean: Served) -> None:
    """Must show: swap its bundle. One that is signed and still another revision is not what is in force here."""
    world = clean.world
    warm(world)
    other = bundle.shipped({world.tenant: {"caps": {"max_writes_per_run": 1}}})
    clean.store.shelve("", signed(other, world.tenant, world.parts.policy_signer(world.tenant).sign))
    _restart(clean)
    run = denied(world, "revision_mismatch", retryable=True)
    clean.place()
    _restart(clean)
    recovered(world, run)


def _restart(served: Served) -> None:
    """OPA reads a file once; that a server which polls S3 takes a new bundle by itself is a test of the shelf's."""
    served.opa.stop()
    served.opa.start_again()
    until(lambda: _answers(served), 10.0)


# --- an opa of our own ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def managed_world(
    database: postgres.Database,
    slack_sink: SlackSink,
    servicenow_server: ServiceNow,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    changes = {"policy_engine": "managed", "opa_binary": str(opa_binary())}
    directory = tmp_path_factory.mktemp("managed")
    parts = Parts(settings_for(database, slack_sink.api_base, **changes), "test", directory, ReplayedCommits())
    without_bucket(parts)
    yield settle(parts, slack_sink, servicenow_server)
    parts.close()


def engine_of(world: World) -> Managed:
    warm(world)
    engine, _ = world.parts.policies._engines[force(world)]
    assert isinstance(engine, Managed)
    return engine


def test_a_managed_opa_that_was_killed_comes_back_by_itself(managed_world: World, servicenow: ServiceNow) -> None:
    """kill -9: the next question starts another, and whatever was asked meanwhile is a denial or waits."""
    engine = engine_of(managed_world)
    before = engine.pid
    os.kill(before, signal.SIGKILL)
    run = managed_world.start()
    managed_world.until(run, "waiting_approval")
    assert engine.pid not in (0, before)
    assert not managed_world.writes("close_code")


def test_a_managed_opa_that_hangs_is_replaced(managed_world: World, servicenow: ServiceNow) -> None:
    """It never goes on by itself; the question that met it is a fault, and the one after it starts another."""
    engine = engine_of(managed_world)
    before = engine.pid
    os.kill(before, signal.SIGSTOP)
    # A doubt is looked at once more with everything read afresh, so the same drive may meet the new one already.
    run = managed_world.start()
    managed_world.until(run, "waiting_approval")
    assert engine.pid not in (0, before)
    assert not Path(f"/proc/{before}/exe").exists()


def test_a_managed_opa_with_another_bundle_is_not_believed(managed_world: World, servicenow: ServiceNow) -> None:
    """Somebody changed the file that it starts from: its canaries and the revision in each answer tell."""
    engine = engine_of(managed_world)
    assert engine._archive is not None
    kept = engine._archive.read_bytes()
    engine._archive.write_bytes(bundle.shipped({managed_world.tenant: {"connectors": []}}).archive)
    os.kill(engine.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{engine.pid}/exe").exists())
    run = managed_world.start()
    begun = clock.monotonic()
    managed_world.drain()
    assert clock.monotonic() - begun < 30
    assert managed_world.case(run).promises["0"].last_error.startswith("policy_fault: revision_mismatch")
    assert "effect.intended" not in managed_world.entries(run)
    engine._archive.write_bytes(kept)
    recovered(managed_world, run)
