"""Starts the servers of a demo or a test as foreground children and leaves none of them behind."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from engine.errors import OperatorError
from governance import clock

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"
GRPC_OFFSET = 10_000
TAIL_LINES = 20
OLD_LOG_BYTES = 2_000_000

# The guard outlives a supervisor that was killed without a chance to clean up: its standard input ends,
# and it stops the process groups that are still on its list.
GUARD = """
trap '' INT TERM HUP
while read -r word pid; do
  case "$word" in
    start) set -- "$@" "-$pid" ;;
    end) kept=; for one; do [ "$one" = "-$pid" ] || kept="$kept $one"; done; set -- $kept ;;
  esac
done
[ $# -eq 0 ] && exit 0
kill -s INT -- "$@" 2>/dev/null
sleep 2
kill -s KILL -- "$@" 2>/dev/null
"""


class ComponentFailed(OperatorError):
    """The operator must act: a component did not start or died; its last lines say why."""

    code = "component_failed"

    def __init__(self, component: str, reason: str, last_lines: Sequence[str] = ()) -> None:
        shown = "".join(f"\n  | {line}" for line in last_lines)
        super().__init__(f"{component} {reason}{shown}")
        self.component = component
        self.last_lines = tuple(last_lines)


@dataclass(frozen=True)
class OsUser:
    """An operating system account that a child runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    """What to start: every word of it explicit, nothing inherited from this process's environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    user: OsUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_seconds: float = 5.0
    leftovers: Sequence[Path] = ()  # files it is known to leave behind when it is killed


def python_module(
    name: str,
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    grace_seconds: float = 5.0,
) -> Command:
    """The command that runs a module of this product in a fresh interpreter."""
    # The package comes first on the path, so that a child runs the same code as its supervisor.
    surroundings = {"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8", **(env or {})}
    argv = [sys.executable, "-m", module, *arguments]
    return Command(name, argv, surroundings, cwd=cwd, grace_seconds=grace_seconds)


class Child:
    """One process we started, the leader of its own session, with its output in a file."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes], log_path: Path, log_start: int) -> None:
        self.command = command
        self.log_path = log_path
        self._process = process
        self._log_start = log_start

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._process.poll()

    def alive(self) -> bool:
        return self._process.poll() is None

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines this child wrote since it was started."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - 64_000))
            return log.read().decode("utf-8", "replace").splitlines()[-lines:]

    def signal(self, number: signal.Signals) -> None:
        """Signal the child's whole process group, as long as the child itself has not been waited for."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None when it still runs after this time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=seconds)
        return None


class Children:
    """A supervisor: `with Children(logs) as children`, and on the way out all of them stop, last one first."""

    def __init__(self, log_directory: Path, *, handle_signals: bool = False) -> None:
        self._logs = log_directory
        self._running: list[Child] = []
        self._handle_signals = handle_signals
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._deaf = False
        self._heard: int | None = None

    def __enter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        if self._handle_signals:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._old_handlers[number] = signal.signal(number, self._on_signal)
        with self._undisturbed():
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
            )
        return self

    def __exit__(self, *_: object) -> None:
        # From here a second Ctrl-C is not heard: what was started is stopped, and that takes bounded time.
        self._deaf = True
        try:
            self.stop_all()
        finally:
            if self._guard is not None:
                with suppress(BrokenPipeError):
                    self._guard.communicate(timeout=5)
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            self._deaf = False

    def start(self, command: Command, *, ready: Callable[[Child], bool], seconds: float = 30.0) -> Child:
        """Start it and return when it answers and is still the process we started; else say what it said."""
        with self._undisturbed():
            child = self._spawn(command)
        deadline = clock.monotonic() + seconds
        pause = 0.005
        while True:
            answered = ready(child)
            if not child.alive():
                self.kill(child)
                raise ComponentFailed(command.name, f"ended with code {child.exit_code} while starting", child.tail())
            if answered:
                return child
            if clock.monotonic() > deadline:
                self.stop(child)
                raise ComponentFailed(command.name, f"did not answer within {seconds:.0f} s", child.tail())
            clock.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def stop(self, child: Child) -> None:
        """Ask it to end, wait its grace, then insist; nothing of its process group stays."""
        if child.alive():
            child.signal(child.command.stop_signal)
            child.wait(child.command.grace_seconds)
        self.kill(child)

    def kill(self, child: Child) -> None:
        """End it as a crash would, without a chance to clean up."""
        # The leader may be gone already; what is left of its group is not spared either.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(10.0)
        for leftover in child.command.leftovers:
            leftover.unlink(missing_ok=True)
        self._forget(child)

    def stop_all(self) -> None:
        """Stop what still runs, the last started first."""
        for child in reversed(self._running.copy()):
            self.stop(child)

    def running(self) -> list[Child]:
        return [child for child in self._running if child.alive()]

    def ended(self) -> list[Child]:
        """Children that ended although nobody stopped them."""
        return [child for child in self._running if not child.alive()]

    def check(self) -> None:
        """Raise for the first child that died under us."""
        for child in self.ended():
            raise ComponentFailed(child.name, f"ended with code {child.exit_code}", child.tail())

    def _spawn(self, command: Command) -> Child:
        log_path = self._logs / f"{command.name}.log"
        too_long = log_path.exists() and log_path.stat().st_size > OLD_LOG_BYTES
        with log_path.open("wb" if too_long else "ab") as log:
            log_start = log.tell()
            user = command.user
            try:
                process = subprocess.Popen(
                    list(command.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(command.env),
                    cwd=command.cwd,
                    start_new_session=True,
                    user=user.uid if user else None,
                    group=user.gid if user else None,
                    extra_groups=[] if user else None,
                )
            except OSError as error:
                raise ComponentFailed(command.name, f"could not be started: {error}") from error
        child = Child(command, process, log_path, log_start)
        self._running.append(child)
        self._tell_guard("start", child)
        return child

    def _forget(self, child: Child) -> None:
        if child in self._running:
            self._running.remove(child)
            self._tell_guard("end", child)

    def _tell_guard(self, word: str, child: Child) -> None:
        if self._guard is not None and self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{word} {child.pid}\n".encode())
                self._guard.stdin.flush()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._deaf:
            self._heard = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A signal that arrives between a child's start and its place on the list is heard after both."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False
        if self._heard is not None:
            number, self._heard = self._heard, None
            self._on_signal(number, None)


def free_port(preferred: int = 0, *, with_grpc: bool = False) -> int:
    """A loopback port nobody listens on: the preferred one if it is free, else another."""
    wanted = [preferred] if preferred else []
    # Below the range the system hands out by itself, and so is the gRPC twin 10,000 above.
    wanted += [10_000 + int.from_bytes(clock.random_bytes(4)) % 12_000 for _ in range(200)]
    for port in wanted:
        if _is_free(port) and not (with_grpc and not _is_free(port + GRPC_OFFSET)):
            return port
    raise OperatorError("no free loopback port was found", next_step="close programs that listen on many ports")


def listener(preferred: int = 0) -> socket.socket:
    """A listening loopback socket on the preferred port, or on another when that one is busy."""
    for port in (preferred, 0) if preferred else (0,):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((LOOPBACK, port))
        except OSError:
            opened.close()
            continue
        opened.listen(128)
        return opened
    raise OperatorError("no loopback port could be opened")


def answers(port: int, path: str = "/", seconds: float = 1.0) -> bool:
    """Whether an HTTP server on this loopback port answers the path without a server error."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
