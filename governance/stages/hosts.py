"""Runs turns of Python workflows in processes of their own: journal in, commands out, a deadline, and a new process after any surprise."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.canonical import read_json
from engine.errors import AuthorError, CallerError, OperatorError
from engine.program.function import Turn
from engine.program.function_code import Component
from engine.program.function_commands import Await, AwaitSignal, command_from
from engine.program.function_journal import Feed, ReplayMismatch
from governance import clock

deadline_seconds_default = 10.0
ready_seconds = 10.0
memory_bytes_default = 512 * 1024**2
hosts_max_default = 8
feeds_max = 4_096
answer_bytes_max = 16 * 1024**2
answer_depth_max = 64
_root = str(Path(__file__).resolve().parents[2])
# The host puts our own directory on the path for its imports and takes everything off it before it sees an author's code.
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from governance.stages.host import main; main(int(sys.argv[2]))"


class CodeRefused(AuthorError):
    """The author must act: the code reaches for something that would differ at every replay; the run loses nothing."""

    code = "code_refused"


class HostFault(OperatorError):
    """The operator must act if it stays: the host's process did not answer; the run loses nothing and may be tried again."""

    code = "host_fault"


class _Process:
    """One process with one component loaded: one line in flight, and any surprise ends it."""

    def __init__(self, command: Sequence[str], hash_seed: int) -> None:
        # Not -I, which would ignore the seed with the rest of an environment that is ours alone anyway.
        environment = {"PYTHONHASHSEED": str(hash_seed), "TZ": "UTC0"}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                close_fds=True,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise HostFault(f"the host's process does not start ({error.strerror})") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._lines = 0
        self.sent: dict[int, int] = {}  # items of each feed that the process has

    def exchange(self, order: bytes, seconds: float) -> dict[str, Any]:
        """Send one line and read exactly one; `order` is a JSON object without its id and braces."""
        self._lines += 1
        deadline = clock.monotonic() + seconds
        self._send(b'{"id":%d,%s}\n' % (self._lines, order), deadline)
        answer = self._receive(deadline)
        try:
            value = read_json(answer, bytes_max=answer_bytes_max, depth_max=answer_depth_max)
        except CallerError as error:
            raise HostFault(f"the host's line is not an answer: {error.reason}") from error
        if type(value) is not dict or type(value.get("id")) is not int or value.pop("id") != self._lines:
            raise HostFault("the host answered another line")
        return value

    def _send(self, line: bytes, deadline: float) -> None:
        rest = memoryview(line)
        while rest:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._in, rest[:65_536]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise HostFault("the host's process ended") from error

    def _receive(self, deadline: float) -> bytes:
        answer = bytearray()
        while not answer.endswith(b"\n"):
            self._wait(self._out, select.POLLIN, deadline)
            try:
                part = os.read(self._out, 65_536)
            except BlockingIOError:
                continue
            if not part:
                raise HostFault("the host's process ended before it answered")
            answer += part
            if len(answer) > answer_bytes_max:
                raise HostFault(f"the host's answer is above {answer_bytes_max} bytes")
        if answer.count(b"\n") != 1:
            raise HostFault("the host answered more than one line")
        return bytes(answer)

    def _wait(self, pipe: int, event: int, deadline: float) -> None:
        left = deadline - clock.monotonic()
        # poll, because select() knows no descriptor above 1023 and a worker may hold more.
        poll = select.poll()
        poll.register(pipe, event)
        if left <= 0 or not poll.poll(left * 1000):
            raise HostFault(
                "the workflow's code did not come to its next wait inside the deadline", code="host_timeout"
            )

    def end(self) -> None:
        """End it now: SIGKILL to exactly this process, and wait for it."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


class _Slot:
    """The place of one component's process; threads that need it wait for one another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: _Process | None = None
        self.is_gone = False  # taken out of the table while somebody waited for the lock

    def drop(self) -> None:
        old, self.process = self.process, None
        if old is not None:
            old.end()


class Hosts:
    """The hosts of one worker: at most so many processes, each for the code of one tenant's component."""

    def __init__(
        self,
        *,
        deadline_seconds: float = deadline_seconds_default,
        memory_bytes: int = memory_bytes_default,
        hosts_max: int = hosts_max_default,
        hash_seed: int = 0,
        boot: str = BOOT,
    ) -> None:
        """`hash_seed` and `boot` are for tests: another order of sets, and processes that die where they are told to."""
        # -P and -s keep the working directory and the user's packages off the path, -S every installed package.
        self._command = (sys.executable, "-P", "-s", "-S", "-B", "-c", boot, _root, str(memory_bytes))
        self._deadline = deadline_seconds
        self._hosts_max = hosts_max
        self._hash_seed = hash_seed
        self._slots: OrderedDict[tuple[str, bytes], _Slot] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, component: Component, *, tenant: str = "") -> None:
        """Load the code once, as a run would: CodeRefused when it cannot be loaded."""
        slot = self._locked(tenant, component)
        try:
            slot.drop()
            self._ready(slot, component)
        finally:
            slot.lock.release()

    def turn(self, component: Component, feed: Feed, *, now: int, entropy: bytes, tenant: str = "") -> Turn:
        """One turn of a run over what its feed has taken. Asking again with the same arguments gives the same turn.

        Raises ReplayMismatch, CodeRefused, HostFault; none of them has changed anything.
        """
        slot = self._locked(tenant, component)
        answer: dict[str, Any] | None = None
        try:
            process = self._ready(slot, component)
            answer = self._ask(process, feed, now, entropy)
            return _turn(answer)
        except HostFault:
            answer = None
            raise
        finally:
            # Whatever went wrong, a process in an unknown state answers nothing more.
            if answer is None:
                slot.drop()
            slot.lock.release()

    def pid(self, component: Component, *, tenant: str = "") -> int:
        """The process id of a component's host, 0 while there is none."""
        slot = self._slots.get((tenant, component.digest))
        return slot.process.process.pid if slot is not None and slot.process is not None else 0

    def close(self) -> None:
        """End every host."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), OrderedDict()
        for slot in slots:
            with slot.lock:
                slot.is_gone = True
                slot.drop()

    def _locked(self, tenant: str, component: Component) -> _Slot:
        while True:
            slot = self._slot(tenant, component)
            # Waiting for another thread's turn counts like waiting for the host.
            if not slot.lock.acquire(timeout=self._deadline):
                raise HostFault("the host is busy with other runs of this workflow", code="host_timeout")
            if not slot.is_gone:
                return slot
            slot.lock.release()

    def _slot(self, tenant: str, component: Component) -> _Slot:
        key = (tenant, component.digest)
        gone: list[_Slot] = []
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            for other in list(self._slots):
                if len(self._slots) <= self._hosts_max:
                    break
                if other != key and not self._slots[other].lock.locked():
                    gone.append(self._slots.pop(other))
        for old in gone:
            with old.lock:
                old.is_gone = True
                old.drop()
        return slot

    def _ready(self, slot: _Slot, component: Component) -> _Process:
        if slot.process is not None:
            return slot.process
        fresh = _Process(self._command, self._hash_seed)
        is_ready = False
        try:
            files = [(name, path, dict(component.files)[path]) for name, path in component.modules.items()]
            load = {"module": component.module, "function": component.function, "files": files}
            answer = fresh.exchange(b'"load":' + json.dumps(load).encode("ascii"), ready_seconds)
            _check_refused(answer)
            if set(answer) != {"ready"}:
                raise HostFault("the host's first line is not one of ours")
            is_ready = True
        finally:
            if not is_ready:
                fresh.end()
        slot.process = fresh
        return fresh

    def _ask(self, process: _Process, feed: Feed, now: int, entropy: bytes) -> dict[str, Any]:
        sent = process.sent.get(feed.token, 0)
        answer = process.exchange(_order(feed, sent, now, entropy), self._deadline)
        if answer == {"behind": True}:
            answer = process.exchange(_order(feed, 0, now, entropy), self._deadline)
        if len(process.sent) >= feeds_max:
            process.sent.clear()  # a feed that is unknown is sent from its start
        process.sent[feed.token] = len(feed.items)
        return answer


def _order(feed: Feed, sent: int, now: int, entropy: bytes) -> bytes:
    head = b'"turn":{"run":%d,"from":%d,"now":%d,"entropy":"%s","items":['
    return head % (feed.token, sent, now, entropy.hex().encode()) + b",".join(feed.items[sent:]) + b"]}"


def _check_refused(answer: dict[str, Any]) -> None:
    match answer:
        case {"refused": str(reason)} if len(answer) == 1:
            raise CodeRefused(reason)
        case {"exhausted": str(reason)} if len(answer) == 1:
            raise HostFault(f"the workflow took {reason}", code="host_memory")


def _turn(answer: dict[str, Any]) -> Turn:
    _check_refused(answer)
    match answer:
        case {"mismatch": [int(sequence), dict() | None as expected, dict() | None as got]} if len(answer) == 1:
            raise ReplayMismatch(sequence, expected, got)
        case {"commands": list(commands), "waits": dict() | None as waits} if len(answer) == 2:
            try:
                found = tuple(command_from(each) for each in commands)
                wait = None if waits is None else command_from(waits)
            except CallerError as error:
                raise HostFault(f"the host's answer {error.reason}") from error
            if isinstance(wait, Await | AwaitSignal | None):
                return Turn(found, wait)
    raise HostFault("the host's answer is not one of ours")
