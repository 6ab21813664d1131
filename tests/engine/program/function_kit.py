"""A small world for Python workflows: a journal in memory, answers to what is asked, and one commit after the other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import Entry
from engine.journal.history import History
from engine.journal.invariants import guards, violations
from engine.journal.status import Blocked
from engine.program.function import Main, Mismatch, Turn, replay
from engine.program.function_journal import Applied, Feed, ReplayMismatch, Result, apply, can_turn

ROOT = PromiseId("run")
ENTROPY = b"entropy of a test, 32 bytes long"
Turns = Callable[[Feed, int], Turn]


class Plain:
    """Payloads that are their own texts."""

    def keep(self, place: str, value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    def keep_result(self, place: str, result: Result) -> str:
        return json.dumps([result.ok, result.value, result.error_class, result.message], sort_keys=True)

    def value(self, text: str) -> Any:
        return json.loads(text)

    def result(self, text: str) -> Result:
        return Result(*json.loads(text))


PLAIN = Plain()


def in_process(main: Main) -> Turns:
    """Turns by replaying here, from a feed."""

    def turn(feed: Feed, now: int) -> Turn:
        found = replay(main, feed.index(), now=now, entropy=ENTROPY)
        if isinstance(found, Mismatch):
            raise ReplayMismatch(found.sequence, found.expected, found.got)
        return found

    return turn


class World:
    """One run with everything around it. What happens next is drawn from `chance`, or told by the test."""

    def __init__(self, turns: Turns, given: Any = None, *, seed: int = 0, fails: Iterable[str] = ()) -> None:
        self.turns = turns
        self.chance = random.Random(seed)
        self.fails = frozenset(fails)
        self.clock = 1_700_000_000_000_000
        self.journal: list[Entry] = []
        self.applied: list[Applied] = []
        self.history = History(ROOT)
        self.feed = Feed(PLAIN)
        self.history.append(ev.ExecutionStarted("sha256:00", PLAIN.keep("input", given), ROOT, "key"), self.clock)
        self.commit()

    @classmethod
    def load(cls, turns: Turns, journal: Iterable[Entry]) -> World:
        """The world after somebody else has written this journal."""
        world = cls(turns)
        world.journal = list(journal)
        world.history = History.load(ROOT, world.journal)
        world.feed = Feed(PLAIN).take(world.journal)
        world.clock = world.journal[-1].timestamp
        return world

    def commit(self) -> None:
        pending = self.history.pending()
        self.journal += pending
        self.history.saved()
        self.feed.take(pending)

    def turn(self) -> Applied | None:
        """One turn and its commit; nothing of it stays when it raises."""
        if not can_turn(self.history):
            return None
        self.clock += 1
        found = self.turns(self.feed, self.clock)
        fork = self.history.fork()
        applied = apply(fork, found.commands, PLAIN, now=self.clock, entropy=ENTROPY)
        self.history = fork
        self.commit()
        self.applied.append(applied)
        return applied

    def happen(self) -> bool:
        """Something outside happens: an operation starts, fails, ends; a timer fires; a signal comes."""
        choices: list[Callable[[], None]] = [
            lambda each=each.scheduled.promise_id: self.move(each) for each in self.history.open_invokes()
        ]
        choices += [lambda each=each: self.fire(each) for each in self.history.open_timers()]
        status = self.history.status
        if isinstance(status, Blocked) and isinstance(status.kind, ev.AwaitSignal):
            name = status.kind.name
            choices.append(lambda: self.signal(name, {"said": self.clock}))
        if not choices:
            return False
        self.chance.choice(choices)()
        return True

    def move(self, promise: PromiseId) -> None:
        """An operation goes one step on."""
        self.clock += 1
        invoke = self.history.invoke(promise)
        assert invoke is not None
        attempt = invoke.attempt
        if invoke.phase != "started":
            self.history.append(ev.InvokeStarted(promise, attempt + 1), self.clock)
        elif attempt < 3 and self.chance.random() < 0.2:
            self.history.append(ev.InvokeRetrying(promise, attempt, "busy", self.clock), self.clock)
        else:
            name = invoke.scheduled.function_name
            result = Result(True, {"of": name, "at": promise.path[-1]})
            if name in self.fails:
                result = Result(False, None, "denied", f"{name} is not allowed")
            self.history.append(ev.InvokeCompleted(promise, PLAIN.keep_result("", result), attempt), self.clock)
        self.commit()

    def complete(self, child: int) -> None:
        """An operation runs to its end."""
        promise = ROOT.child(child)
        while (invoke := self.history.invoke(promise)) is not None and invoke.phase != "completed":
            self.move(promise)

    def fire(self, timer: ev.TimerScheduled) -> None:
        """The clock goes to a timer and it fires."""
        self.clock = max(self.clock + 1, timer.fire_at)
        self.history.append(ev.TimerFired(timer.promise_id), self.clock)
        self.commit()

    def signal(self, name: str, value: Any) -> None:
        """A signal comes, whether anybody waits or not."""
        self.clock += 1
        self.history.append(
            ev.SignalDelivered(name, PLAIN.keep("", value), self.history.deliveries(name) + 1), self.clock
        )
        self.commit()

    def live(self) -> Result:
        """To the end, which is returned."""
        for _ in range(20_000):
            if self.history.ended:
                last = self.journal[-1].event
                assert isinstance(last, ev.ExecutionCompleted | ev.ExecutionFailed)
                assert not violations(self.journal)
                assert not guards(self.journal, ROOT)
                return PLAIN.result(last.result if isinstance(last, ev.ExecutionCompleted) else last.error)
            can = can_turn(self.history)
            # Other things may happen before the worker takes its turn.
            if (not can or self.chance.random() < 0.3) and self.happen():
                continue
            assert can, "the run waits for something that never comes"
            self.turn()
        raise AssertionError("the run does not end")


OUTSIDE = (
    ev.InvokeStarted, ev.InvokeRetrying, ev.InvokeCompleted, ev.TimerFired, ev.SignalDelivered, ev.CancelRequested,
)  # fmt: skip


def check_prefix(turns: Turns, journal: list[Entry], size: int) -> None:
    """A turn over this prefix writes what the journal has next, event for event."""
    world = World.load(turns, journal[:size])
    after = journal[size:]
    now = after[0].timestamp if after else world.clock
    found = turns(world.feed, now)
    if not can_turn(world.history):
        assert found.commands == ()
        return
    if not after or isinstance(after[0].event, OUTSIDE):
        return
    apply(world.history, found.commands, PLAIN, now=now, entropy=ENTROPY)
    written = world.history.pending()
    assert list(written) == after[: len(written)]
    assert len(written) == len(after) or isinstance(after[len(written)].event, OUTSIDE)
