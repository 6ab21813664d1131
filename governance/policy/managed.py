"""The managed engine: a local `opa` binary that we start, watch and end ourselves, on a loopback port nobody else chose."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

from engine.gate.verdict import Answer, PolicyFault
from governance import clock
from governance.policy import canary
from governance.policy.bundle import Bundle
from governance.policy.server import OLDEST, Server

ENGINE = "opa-managed"
ready_seconds = 10.0
stop_seconds = 1.0
starts_max = 3

_version_line = re.compile(r"^Version:\s*((\d+)\.(\d+)\.(\d+)\S*)", re.MULTILINE)


class _Run:
    """One `opa run` and the client that talks to it."""

    def __init__(self, opa: Path, archive: Path) -> None:
        self.port = _free_port()
        self.process = subprocess.Popen(
            [
                str(opa),
                "run",
                "--server",
                f"--addr=127.0.0.1:{self.port}",
                "--log-level=error",
                "--skip-version-check",
                "--bundle",
                str(archive),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self.server = Server("127.0.0.1", self.port, bundle_name=str(archive), engine=ENGINE)

    def wait_ready(self, revision: str) -> None:
        """Return when our own child answers its canaries; PolicyFault when it ended or took too long."""
        deadline = clock.monotonic() + ready_seconds
        while True:
            try:
                canary.prove(self.server, revision)
            except PolicyFault as fault:
                if self.process.poll() is not None:
                    raise PolicyFault("engine_exit", "the local opa ended while it started") from fault
                if fault.code not in ("refused", "timeout") or clock.monotonic() > deadline:
                    raise
                clock.sleep(0.02)
                continue
            # Whoever answered has the right revision; that it is ours is known only while our child lives.
            if self.process.poll() is not None:
                raise PolicyFault("engine_exit", "the local opa ended while it started")
            return

    def kill(self) -> None:
        """End exactly this process now."""
        self.server.close()
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ask it to stop, wait a moment, then end exactly this process."""
        self.server.close()
        self.process.terminate()
        try:
            self.process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Managed:
    """The Policy that answers from a local opa. A child that ended or did not answer in time is replaced by the next question."""

    def __init__(self, opa: Path, directory: Path, *, oldest: tuple[int, int, int] = OLDEST) -> None:
        """`opa` is the binary's path; `directory` belongs to this process alone and holds the bundle that it serves."""
        self._opa = opa.resolve()
        self._directory = directory
        self._version = binary_version(self._opa, oldest)
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._archive: Path | None = None
        self._revision = ""

    @property
    def version(self) -> str:
        """The binary's version."""
        return self._version

    @property
    def pid(self) -> int:
        """The child's process id, 0 while there is none."""
        return self._run.process.pid if self._run else 0

    def load(self, bundle: Bundle) -> None:
        """Serve this bundle from a new child as soon as it passed its canaries; the old one answers until then."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = self._directory / f"{bundle.revision}.tar.gz"
        part = archive.with_suffix(".part")
        part.write_bytes(bundle.archive)
        part.replace(archive)
        with self._lock:
            if self._run is None:
                _end_orphan(self._directory)
            fresh = self._start(archive, bundle.revision)
            old, self._run = self._run, fresh
            self._archive, self._revision = archive, bundle.revision
            if old is not None:
                old.end()
        for file in self._directory.glob("*.tar.gz"):
            if file != archive:
                file.unlink(missing_ok=True)

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings about one input document."""
        run = self._running()
        try:
            return run.server.evaluate(input_bytes)
        except PolicyFault as fault:
            if fault.code == "timeout":
                # One that hangs may hang for ever, and a process that still lives is not started again.
                self._give_up(run)
            raise

    def close(self) -> None:
        """End the child; a later question is refused until a bundle is loaded again."""
        with self._lock:
            old, self._run, self._archive = self._run, None, None
        if old is not None:
            old.end()
            (self._directory / "opa.pid").unlink(missing_ok=True)

    def _give_up(self, run: _Run) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
        run.kill()

    def _running(self) -> _Run:
        with self._lock:
            if self._archive is None:
                raise PolicyFault("engine_not_ready", "no policy bundle is loaded")
            if self._run is not None and self._run.process.poll() is None:
                return self._run
            self._run = None
            self._run = self._start(self._archive, self._revision)
            return self._run

    def _start(self, archive: Path, revision: str) -> _Run:
        last: PolicyFault | None = None
        for _ in range(starts_max):
            try:
                run = _Run(self._opa, archive)
            except OSError as error:
                raise PolicyFault("engine_not_ready", f"{self._opa.name} does not start ({error.strerror})") from error
            try:
                run.wait_ready(revision)
            except PolicyFault as fault:
                run.end()
                last = fault
                if fault.code != "engine_exit":
                    break
                continue  # most likely somebody took the port between our choice and its start
            (self._directory / "opa.pid").write_text(str(run.process.pid), encoding="ascii")
            return run
        assert last is not None, "every start either returns or leaves its fault"
        raise last


def binary_version(opa: Path, oldest: tuple[int, int, int] = OLDEST) -> str:
    """The version of a local opa binary; PolicyFault when it is none or too old."""
    try:
        shown = subprocess.run([str(opa), "version"], capture_output=True, env={}, timeout=ready_seconds, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PolicyFault("engine_not_ready", f"{opa} is not an opa that runs ({type(error).__name__})") from error
    found = _version_line.search(shown.stdout.decode("utf-8", "replace"))
    if found is None:
        raise PolicyFault("engine_not_ready", f"{opa} does not say which version it is")
    if tuple(int(found[n]) for n in (2, 3, 4)) < oldest:
        raise PolicyFault("engine_too_old", f"opa {found[1]} is older than {'.'.join(str(n) for n in oldest)}")
    return found[1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_orphan(directory: Path) -> None:
    """A worker that was killed leaves its opa behind; the next one ends it, if the process is still that opa."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((directory / "opa.pid").read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if f"\0--bundle\0{directory}/".encode() in command:
            os.kill(pid, signal.SIGKILL)
