"""The embedded engine: the OPA library in a child process of our own, with a deadline, replaced whenever it misbehaves."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate.verdict import Answer, PolicyFault
from engine.limits import policy_bytes_max, policy_deadline_seconds
from governance import clock
from governance.policy import canary, child
from governance.policy.bundle import Bundle

ENGINE = "opa-embedded"
CHILD_COMMAND = (sys.executable, "-I", "-m", child.__name__)
ready_seconds = 10.0
batch_max = 64
resident_bytes_max = 256 * 1024**2
evaluations_max = 100_000
_resident_every = 500  # evaluations between two looks at /proc
_page_bytes = os.sysconf("SC_PAGE_SIZE")
# GOMAXPROCS=1 halves the p99; the collector may be lazy because memory is bounded (docs of the Go runtime).
_environment = {"GOMAXPROCS": "1", "GOGC": "400", "GOMEMLIMIT": "128MiB"}
_request_id = re.compile(rb'"request":\{"id":"([0-9a-f-]{36})"\}')


class Child:
    """One process: one line in flight, and any surprise ends it."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        command = command or CHILD_COMMAND
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment,
                cwd="/",
                close_fds=True,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise PolicyFault("engine_not_ready", f"the engine's process does not start ({error.strerror})") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)
        self.lines = 0
        self.evaluations = 0
        self.version = ""

    def exchange(self, order: bytes, answer_bytes_max: int, seconds: float) -> dict[str, Any]:
        """Send one line and read exactly one; `order` is a JSON object without its id and braces."""
        self.lines += 1
        line = b'{"id":%d,%s}\n' % (self.lines, order)
        deadline = clock.monotonic() + seconds
        if _ready(self.stdout, select.POLLIN, 0):
            raise PolicyFault("engine_noise" if self._read() else "engine_exit", "the engine spoke without being asked")
        self._send(line, deadline)
        answer = self._receive(answer_bytes_max, deadline)
        try:
            value = read_json(answer, bytes_max=answer_bytes_max, depth_max=4)
        except CallerError as error:
            raise PolicyFault("engine_noise", f"the engine's line is not an answer: {error.reason}") from error
        if type(value) is not dict or type(value.get("id")) is not int or value["id"] != self.lines:
            raise PolicyFault("engine_noise", "the engine answered another line")
        return value

    def _send(self, line: bytes, deadline: float) -> None:
        rest = memoryview(line)
        while rest:
            self._wait(self.stdin, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self.stdin, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise PolicyFault("engine_exit", "the engine's process ended") from error

    def _receive(self, bytes_max: int, deadline: float) -> bytes:
        answer = bytearray()
        while not answer.endswith(b"\n"):
            self._wait(self.stdout, select.POLLIN, deadline)
            part = self._read()
            if not part:
                raise PolicyFault("engine_exit", "the engine's process ended before it answered")
            answer += part
            if len(answer) > bytes_max:
                raise PolicyFault("too_large", f"the engine's answer is above {bytes_max} bytes")
        if answer.count(b"\n") != 1:
            raise PolicyFault("engine_noise", "the engine answered more than one line")
        return bytes(answer)

    def _read(self) -> bytes:
        try:
            return os.read(self.stdout, 65_536)
        except BlockingIOError:
            return b""

    def _wait(self, pipe: int, event: int, deadline: float) -> None:
        left = deadline - clock.monotonic()
        if left <= 0 or not _ready(pipe, event, left):
            raise PolicyFault("timeout", "the engine did not answer inside its deadline")

    def worn(self) -> bool:
        """Whether it has done enough, or holds too much memory, to be replaced before the next request."""
        if self.evaluations >= evaluations_max:
            return True
        if self.evaluations % _resident_every:
            return False
        return resident_bytes(self.process.pid) > resident_bytes_max

    def end(self) -> None:
        """End it now: SIGKILL to exactly this process, and wait for it."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


def _ready(pipe: int, event: int, seconds: float) -> bool:
    # poll, because select() knows no descriptor above 1023 and a worker may hold more.
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(seconds * 1000))


@dataclass(frozen=True, slots=True)
class _Order:
    load: bytes
    revision: str


class Embedded:
    """The Policy that answers from a child process. Threads may share it: their questions wait for one another."""

    def __init__(
        self, *, deadline_seconds: float = policy_deadline_seconds, command: Sequence[str] | None = None
    ) -> None:
        """`command` is for tests that put something hostile in the child's place."""
        self._command = tuple(command or CHILD_COMMAND)
        self._deadline = deadline_seconds
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._order: _Order | None = None
        self._version = ""
        self._closed = False

    @property
    def version(self) -> str:
        """The version of OPA inside the library; empty before the first bundle."""
        return self._version

    @property
    def revision(self) -> str:
        """The revision that answers; empty before the first bundle."""
        return self._order.revision if self._order else ""

    @property
    def pid(self) -> int:
        """The child's process id, 0 while there is none: the next question starts one."""
        return self._child.process.pid if self._child else 0

    def load(self, bundle: Bundle) -> None:
        """Answer from this bundle as soon as a new child has passed its canaries; the old one answers until then."""
        modules = json.dumps(bundle.modules, ensure_ascii=False)
        order = _Order(
            f'"modules":{modules},"data":{json.dumps(bundle.data, ensure_ascii=False)}'.encode(), bundle.revision
        )
        fresh = self._start(order)
        with self._lock:
            old, self._child, self._order, self._version = self._child, fresh, order, fresh.version
            self._closed = False
        if old is not None:
            old.end()

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings about one input document."""
        answer = self.evaluate_many((input_bytes,))[0]
        if isinstance(answer, PolicyFault):
            raise answer
        return answer

    def evaluate_many(self, inputs: Sequence[bytes]) -> list[Answer | PolicyFault]:
        """The same for several documents in one line; each has its own findings or its own fault."""
        if not 1 <= len(inputs) <= batch_max:
            raise PolicyFault("batch_size", f"1 to {batch_max} documents are judged together")
        for one in inputs:
            if type(one) is not bytes or len(one) > policy_bytes_max or b"\n" in one:
                raise PolicyFault("input_rejected", "an input is one line of canonical bytes within the limit")
        # Waiting for another thread's question counts like waiting for the engine.
        if not self._lock.acquire(timeout=self._deadline):
            raise PolicyFault("timeout", "the engine is busy with other questions")
        try:
            return self._evaluate(inputs)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child; a later question is refused until a bundle is loaded again."""
        with self._lock:
            self._closed = True
            old, self._child = self._child, None
        if old is not None:
            old.end()

    def _evaluate(self, inputs: Sequence[bytes]) -> list[Answer | PolicyFault]:
        if self._order is None or self._closed:
            raise PolicyFault("engine_not_ready", "no policy bundle is loaded")
        if self._child is not None and self._child.worn():
            self._drop()
        if self._child is None:
            self._child = self._start(self._order)
        found: list[Answer | PolicyFault] | None = None
        try:
            found = _ask(self._child, inputs, self._order.revision, self._deadline)
        finally:
            # Whatever went wrong, a child in an unknown state answers nothing more.
            if found is None:
                self._drop()
        return found

    def _drop(self) -> None:
        old, self._child = self._child, None
        if old is not None:
            old.end()

    def _start(self, order: _Order) -> Child:
        fresh = Child(self._command)
        ready = False
        try:
            reply = fresh.exchange(order.load, policy_bytes_max, ready_seconds)
            _check_loaded(reply)
            fresh.version = reply["version"]
            canary.prove(_Proving(fresh, order.revision), order.revision)
            ready = True
        finally:
            if not ready:
                fresh.end()
        return fresh


class _Proving:
    """The Policy that canaries see: a child that is not in use yet."""

    def __init__(self, fresh: Child, revision: str) -> None:
        self._fresh = fresh
        self._revision = revision

    def evaluate(self, input_bytes: bytes) -> Answer:
        answer = _ask(self._fresh, (input_bytes,), self._revision, ready_seconds)[0]
        if isinstance(answer, PolicyFault):
            raise answer
        return answer


def _check_loaded(reply: dict[str, Any]) -> None:
    if (
        set(reply) != {"id", "fault", "version"}
        or type(reply["fault"]) is not list
        or type(reply["version"]) is not str
    ):
        raise PolicyFault("engine_noise", "the engine's first line is not one of ours")
    if reply["fault"]:
        raise PolicyFault("load_failed", str(reply["fault"][-1]))


def _ask(one: Child, inputs: Sequence[bytes], revision: str, seconds: float) -> list[Answer | PolicyFault]:
    # A finding as text inside a JSON string at most doubles, its control characters aside.
    answer_bytes_max = len(inputs) * policy_bytes_max * 2 + 1024
    reply = one.exchange(b'"inputs":[' + b",".join(inputs) + b"]", answer_bytes_max, seconds)
    answers = reply.get("answers")
    if len(reply) != 2 or type(answers) is not list or len(answers) != len(inputs):
        raise PolicyFault("engine_noise", "the engine did not answer every question once")
    one.evaluations += len(inputs)
    return [_item(item, asked, revision, one.version) for item, asked in zip(answers, inputs, strict=True)]


def _item(item: object, asked: bytes, revision: str, version: str) -> Answer | PolicyFault:
    if type(item) is not list or not all(type(part) is str for part in item):
        raise PolicyFault("engine_noise", "an answer is not one of ours")
    if len(item) == 3 and item[0] == "fault":
        return PolicyFault(item[1] if item[1] in ("undefined", "evaluation_failed") else "engine_noise", item[2])
    if len(item) != 2 or item[0] != "findings":
        raise PolicyFault("engine_noise", "an answer is not one of ours")
    request = _request_id.search(asked)
    if request is None or f'"request_id":"{request[1].decode()}"' not in item[1]:
        raise PolicyFault("echo_mismatch", "the engine answered another question")
    return Answer(item[1].encode("utf-8"), revision, ENGINE, version)


def resident_bytes(pid: int) -> int:
    """How much memory a process holds; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _page_bytes
    except (OSError, IndexError, ValueError):
        return 0
