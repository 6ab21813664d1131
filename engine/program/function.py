"""Workflows in Python: an async function is run from its start over recorded results, and yields by raising out when one is missing.

Nothing of a coroutine is kept. What the function does is compared, event for event, with what the journal says it did;
what comes after the journal's last event are the commands of this turn.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

from engine.program import function_commands as do
from engine.program.function_commands import Command
from engine.program.function_guard import EPOCH, Forbidden

commands_max = 2_000  # of one turn
message_chars_max = 1_000
PLACE = "workflow/"  # the start of an author's file in tracebacks
_too_many = "too_many_operations"
_error_class = re.compile(r"[a-z][a-z0-9_]{0,62}")
_address = re.compile(r"0x[0-9a-fA-F]{4,}")
F = TypeVar("F", bound=Callable[..., Any])
Main: TypeAlias = Callable[..., Awaitable[Any]]
Step: TypeAlias = dict[str, Any]


def workflow(function: F) -> F:
    """Marks the async function (ctx, input) that a run executes."""
    return function


class Failed(Exception):
    """An author ends the run with an error class of their own by raising this."""

    def __init__(self, error_class: str, message: str = "") -> None:
        super().__init__(message or error_class)
        if not _error_class.fullmatch(error_class):
            raise ValueError(f"{error_class!r} is no error class; use 1-63 of a-z 0-9 _, first a letter")
        self.error_class = error_class
        self.message = message


class InvokeFailed(Failed):
    """An operation has failed for good: denied, rejected, expired, or out of attempts."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One result out of a join set: which member, counted from 0 in the order of submission, and how it ended."""

    member: int
    ok: bool
    value: Any = None
    error_class: str = ""
    message: str = ""

    def result(self) -> Any:
        """The value, or InvokeFailed."""
        if not self.ok:
            raise InvokeFailed(self.error_class, self.message)
        return self.value


# --- what the journal has -------------------------------------------------------------------------------------------------


class Index:
    """What a replay looks up: the program's own events in order, and the results by child number. Fed item by item.

    Results stay JSON text, so that each replay is given its own copy: what an author does to a value is gone with the turn.
    """

    __slots__ = ("count", "delivered", "input", "received", "results", "trace", "values")

    def __init__(self) -> None:
        self.count = 0  # items taken
        self.input = "null"
        self.trace: list[tuple[int, Step]] = []
        self.results: dict[int, tuple[int, bool, str, str]] = {}  # sequence, ok, text, error class
        self.values: dict[int, str | int] = {}
        self.delivered: dict[str, list[str]] = {}
        self.received: dict[str, int] = {}

    def take(self, items: Iterable[list[Any]]) -> Index:
        """Take up the items that follow those taken so far."""
        for item in items:
            match item:
                case ["step", sequence, step, given]:
                    self.trace.append((sequence, step))
                    if given is not None:
                        self.values[step["child"]] = given
                    if step["do"] == "Receive":
                        self.received[step["name"]] = self.received.get(step["name"], 0) + 1
                case ["done", sequence, child, ok, text, error_class]:
                    self.results[child] = (sequence, ok, text, error_class)
                case ["signal", name, text]:
                    self.delivered.setdefault(name, []).append(text)
                case ["input", text]:
                    self.input = text
                case _:
                    raise ValueError(f"unknown item {item!r}")
            self.count += 1
        return self


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows from the journal: the commands of this turn in order, and what the run waits for (None: it has ended)."""

    commands: tuple[Command, ...]
    waits: Command | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Replay and journal disagree here: the journal's event and the code's, either missing when its side has ended."""

    sequence: int
    expected: Step | None
    got: Step | None


class _Stop(BaseException):
    """Leaves the author's code: the turn is over. Not an Exception, so that `except Exception` lets it pass."""


def random_value(entropy: bytes, child: int) -> str:
    """The 128 bits that this child is given, from the turn's entropy; the journal's writer computes the same."""
    return hashlib.sha256(b"twokeys/function-random/v1\x00" + entropy + child.to_bytes(8, "big")).hexdigest()[:32]


# --- one turn -------------------------------------------------------------------------------------------------------------


class _Run:
    """The state of one turn: the place in the journal, then the commands."""

    __slots__ = ("at", "commands", "entropy", "index", "next_child", "now", "outcome", "received")

    def __init__(self, index: Index, now: int, entropy: bytes) -> None:
        self.index, self.now, self.entropy = index, now, entropy
        self.at = 0
        self.next_child = 0
        self.commands: list[Command] = []
        self.received: dict[str, int] = {}  # signals consumed by this turn's commands
        self.outcome: Command | Mismatch | None = None

    def check(self) -> None:
        """A turn that is over stays over, whatever the author's `finally` tries."""
        if self.outcome is not None:
            raise _Stop

    def stop(self, outcome: Command | Mismatch) -> NoReturn:
        self.outcome = outcome
        raise _Stop

    @property
    def recorded(self) -> tuple[int, Step] | None:
        """The journal's event at this place; None where new ground begins."""
        return self.index.trace[self.at] if self.at < len(self.index.trace) else None

    def allocate(self) -> int:
        self.next_child += 1
        return self.next_child - 1

    def step(self, command: Command) -> bool:
        """The program does this; True when the journal has it already."""
        if self.replayed(command):
            return True
        if len(self.commands) >= commands_max:
            self.commands.append(do.Fail(_too_many, f"more than {commands_max} operations in one turn"))
            self.stop(self.commands[-1])
        self.commands.append(command)
        return False

    def replayed(self, command: Command) -> bool:
        recorded = self.recorded
        if recorded is None:
            return False
        value = do.to_value(command)
        if recorded[1].get("error_class") == _too_many:  # where a turn was cut depends on the turn
            self.at += 1
            self.stop(do.Fail(_too_many, recorded[1]["message"]))
        if not do.same(recorded[1], value):
            self.stop(Mismatch(recorded[0], recorded[1], value))
        self.at += 1
        return True

    def wait(self, command: do.Await | do.AwaitSignal, satisfied_at: int | None) -> None:
        """Wait, unless what is waited for was there at this place of the journal."""
        recorded = self.recorded
        if recorded is not None and recorded[1]["do"] not in ("Await", "AwaitSignal"):
            if satisfied_at is None or satisfied_at > recorded[0]:
                self.stop(Mismatch(recorded[0], recorded[1], do.to_value(command)))
            return
        is_replayed = self.replayed(command)
        if satisfied_at is None:
            if not is_replayed:
                self.commands.append(command)
            elif (after := self.recorded) is not None:
                self.stop(Mismatch(after[0], after[1], do.to_value(command)))
            self.stop(command)

    def resolved_at(self, child: int) -> int | None:
        found = self.index.results.get(child)
        return found[0] if found else None

    def taken(self, child: int, member: int) -> Taken:
        _, ok, text, error_class = self.index.results[child]
        value = json.loads(text)
        return Taken(member, True, value) if ok else Taken(member, False, None, error_class, value)

    def receive(self, command: do.AwaitSignal) -> Any:
        """Consume the next signal of this name, waiting for it when there is none."""
        received = do.Receive(command.child, command.name)
        recorded = self.recorded
        is_waited = recorded is not None and recorded[1]["do"] in ("Await", "AwaitSignal")
        if is_waited:
            self.replayed(command)
        if self.recorded is not None:
            self.step(received)
            return json.loads(str(self.index.values[command.child]))
        text = self._buffered(command.name)
        if text is None:
            if not is_waited:
                self.commands.append(command)
            self.stop(command)
        self.step(received)
        self.received[command.name] = self.received.get(command.name, 0) + 1
        return json.loads(text)

    def _buffered(self, name: str) -> str | None:
        waiting = self.index.delivered.get(name, [])
        at = self.index.received.get(name, 0) + self.received.get(name, 0)
        return waiting[at] if at < len(waiting) else None


class JoinSet:
    """Operations that run at the same time; their results are taken in the order in which they came, or all together."""

    def __init__(self, run: _Run, number: int) -> None:
        self._run = run
        self._number = number
        self._members: dict[int, int] = {}  # child: member, those whose result was not taken
        self._count = 0
        self._closed = False

    async def submit(self, operation: str, params: dict[str, Any] | None = None) -> int:
        """Propose an operation without waiting for it; returns its member number, counted from 0."""
        self._run.check()
        self._open()
        proposal = do.proposed(self._run.next_child, operation, params)
        return self._submit(do.Invoke(self._run.allocate(), proposal))

    async def submit_child(self, workflow: str, input: Any = None) -> int:
        """Start a child run without waiting for it; returns its member number, counted from 0."""
        self._run.check()
        self._open()
        name, value = do.workflow_name(workflow), do.plain(input, "the input")
        return self._submit(do.StartChild(self._run.allocate(), name, value))

    async def next(self) -> Taken:
        """The next result to come; LookupError when every one was taken."""
        run = self._run
        run.check()
        if not self._members:
            raise LookupError("every result of this join set was taken")
        self._closed = True
        recorded = run.recorded
        if recorded is not None and recorded[1]["do"] == "Await":
            run.wait(do.Await("Any", sorted(self._members)), self._first()[0])
            recorded = run.recorded
        step = recorded[1] if recorded is not None else {}
        if step.get("do") == "Take" and step["join_set"] == self._number and step["member"] in self._members:
            # The journal says which came first; that it had come by then is a guard of the journal's.
            return self._take(step["member"])
        at, first = self._first()
        run.wait(do.Await("Any", sorted(self._members)), at)
        return self._take(first)

    async def all(self) -> list[Taken]:
        """Every result that was not taken, in the order of submission, when the last of them has come."""
        run = self._run
        run.check()
        self._closed = True
        if not self._members:
            return []
        times = [run.resolved_at(child) for child in self._members]
        known = [at for at in times if at is not None]
        run.wait(do.Await("All", sorted(self._members)), max(known) if len(known) == len(times) else None)
        return [self._take(child) for child in list(self._members)]

    def _open(self) -> None:
        if self._closed:
            raise ValueError("nothing is submitted to a join set after its first result was asked for")

    def _submit(self, command: do.Invoke | do.StartChild) -> int:
        self._run.step(command)
        self._run.step(do.Submit(self._number, command.child))
        self._members[command.child] = self._count
        self._count += 1
        return self._count - 1

    def _first(self) -> tuple[int | None, int]:
        """When the earliest open result came, and whose it is; (None, -1) while there is none."""
        results = self._run.index.results
        found = [(results[child][0], child) for child in self._members if child in results]
        return min(found) if found else (None, -1)

    def _take(self, child: int) -> Taken:
        self._run.step(do.Take(self._number, child))
        return self._run.taken(child, self._members.pop(child))


class Context:
    """What a workflow can do. Each of these is recorded; nothing else may reach outside the function."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    async def invoke(self, operation: str, params: dict[str, Any] | None = None) -> Any:
        """Propose a side effect (`connector.operation`) and wait for its result; InvokeFailed when it failed for good."""
        self._run.check()
        proposal = do.proposed(self._run.next_child, operation, params)
        return self._single(do.Invoke(self._run.allocate(), proposal)).result()

    async def child(self, workflow: str, input: Any = None) -> Any:
        """Run another workflow as a run of its own and wait for its result; InvokeFailed when it failed or could not begin."""
        self._run.check()
        name, value = do.workflow_name(workflow), do.plain(input, "the input")
        return self._single(do.StartChild(self._run.allocate(), name, value)).result()

    async def sleep(self, seconds: float | datetime.timedelta) -> None:
        """Wait, for as long as a year."""
        self._run.check()
        micros = do.micros_of(seconds)
        self._single(do.Sleep(self._run.allocate(), micros))

    async def now(self) -> datetime.datetime:
        """The time in UTC, as it was when this was first asked."""
        self._run.check()
        child = self._run.allocate()
        micros = int(self._run.index.values[child]) if self._run.step(do.Now(child)) else self._run.now
        return EPOCH + datetime.timedelta(microseconds=micros)

    async def random(self) -> float:
        """A number from 0 up to 1, the same at every replay."""
        return (int(self._bits()[:16], 16) >> 11) / 2**53

    async def uuid(self) -> str:
        """A random UUID (version 4) as text, the same at every replay."""
        bits = self._bits()
        text = f"{bits[:12]}4{bits[13:16]}{'89ab'[int(bits[16], 16) % 4]}{bits[17:]}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    async def wait_signal(self, name: str) -> Any:
        """The payload of the next signal of this name; signals that came earlier are taken first, each once."""
        self._run.check()
        checked = do.signal_name(name)
        return self._run.receive(do.AwaitSignal(self._run.allocate(), checked))

    async def task(self, form: dict[str, Any], *, sign_off: list[str] | dict[str, Any] | None = None) -> Any:
        """Ask people to fill in a form, and people of `sign_off` to sign it; returns what was answered, by the fields' names."""
        self._run.check()
        command = do.task_of(self._run.next_child, form, sign_off)
        self._run.allocate()
        return self._single(command).result()

    async def join_set(self) -> JoinSet:
        """A set of operations that run at the same time."""
        self._run.check()
        child = self._run.allocate()
        self._run.step(do.CreateSet(child))
        return JoinSet(self._run, child)

    def _bits(self) -> str:
        self._run.check()
        child = self._run.allocate()
        if self._run.step(do.Random(child)):
            return str(self._run.index.values[child])
        return random_value(self._run.entropy, child)

    def _single(self, command: do.Invoke | do.StartChild | do.Task | do.Sleep) -> Taken:
        self._run.step(command)
        self._run.wait(do.Await("Single", [command.child]), self._run.resolved_at(command.child))
        return self._run.taken(command.child, 0)


def replay(main: Main, index: Index, *, now: int, entropy: bytes) -> Turn | Mismatch:
    """Run the function from its start: the commands that follow the journal, or where the two disagree."""
    run = _Run(index, now, entropy)
    end = _drive(main, run)
    if run.outcome is None:
        with contextlib.suppress(_Stop):
            run.step(end)
    if isinstance(run.outcome, Mismatch):
        return run.outcome
    recorded = run.recorded
    if recorded is not None:
        return Mismatch(recorded[0], recorded[1], do.to_value(run.outcome or end))
    waits = run.outcome if isinstance(run.outcome, do.Await | do.AwaitSignal) else None
    return Turn(tuple(run.commands), waits)


def _drive(main: Main, run: _Run) -> Command:
    """Run the author's code until it returns, raises or yields; what it means is for the caller while the turn has no outcome."""
    try:
        coroutine: Any = main(Context(run), json.loads(run.index.input))
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return do.Complete(do.plain(ended.value, "the result"))
        coroutine.close()
        return do.Fail("author_error", "the workflow awaits something that is no operation of its context")
    except (MemoryError, Forbidden):
        raise
    except _Stop:
        return do.Fail("author_error", "the workflow swallowed the end of its turn")
    except Failed as error:
        return do.Fail(error.error_class, error.message[:message_chars_max])
    except BaseException as error:
        return do.Fail("author_error", _said(error))


def _said(error: BaseException) -> str:
    """An author's error in one line, with its place, and without addresses that differ from process to process."""
    try:
        words = str(error)
    except BaseException:
        words = "(its text cannot be made)"
    place, traceback = "", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name.startswith(PLACE):
            place = f" ({name.removeprefix(PLACE)}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    words = words.encode("utf-8", "replace").decode()
    return _address.sub("0x…", f"{type(error).__name__}: {words}")[:message_chars_max] + place
