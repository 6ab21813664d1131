"""Short words for journals: one constructor per event, the examples of document 003, and what to do with a story."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitKind, AwaitSignal, Entry, Event
from engine.journal.history import History

ROOT = PromiseId(1)
FIRE_AT = 50


def p(*path: int) -> PromiseId:
    return PromiseId(1, path)


def start() -> Event:
    return ev.ExecutionStarted("sha256:00", "in", ROOT, "key")


def ok() -> Event:
    return ev.ExecutionCompleted("out")


def fail() -> Event:
    return ev.ExecutionFailed("error")


def cancel() -> Event:
    return ev.CancelRequested("why")


def cancelled() -> Event:
    return ev.ExecutionCancelled("why")


def sched(n: int) -> Event:
    return ev.InvokeScheduled(p(n), "Http", "fn", "in", "{}")


def begin(n: int, attempt: int = 1) -> Event:
    return ev.InvokeStarted(p(n), attempt)


def done(n: int, attempt: int = 1, result: str = "r") -> Event:
    return ev.InvokeCompleted(p(n), result, attempt)


def retry(n: int, attempt: int = 1) -> Event:
    return ev.InvokeRetrying(p(n), attempt, "error", 9)


def rnd(n: int) -> Event:
    return ev.RandomGenerated(p(n), "7")


def now(n: int) -> Event:
    return ev.TimeRecorded(p(n), 7)


def sleep(n: int) -> Event:
    return ev.TimerScheduled(p(n), 5, FIRE_AT)


def fired(n: int) -> Event:
    return ev.TimerFired(p(n))


def sig(delivery: int = 1, name: str = "s", payload: str = "x") -> Event:
    return ev.SignalDelivered(name, payload, delivery)


def got(n: int, delivery: int = 1, name: str = "s", payload: str = "x") -> Event:
    return ev.SignalReceived(p(n), name, payload, delivery)


def wait(*children: int, kind: AwaitKind = "Single") -> Event:
    return ev.ExecutionAwaiting(frozenset(p(n) for n in children), kind)


def wait_signal(n: int, name: str = "s") -> Event:
    return ev.ExecutionAwaiting(frozenset({p(n)}), AwaitSignal(name, p(n)))


def resume() -> Event:
    return ev.ExecutionResumed()


def js(n: int) -> Event:
    return ev.JoinSetCreated(p(n))


def put(join_set: int, n: int) -> Event:
    return ev.JoinSetSubmitted(p(join_set), p(n))


def take(join_set: int, n: int, result: str = "r") -> Event:
    return ev.JoinSetAwaited(p(join_set), p(n), result)


def journal(events: Iterable[Event]) -> tuple[Entry, ...]:
    """The entries of a story, whether or not it keeps the rules; every timer is due."""
    return tuple(Entry(n, FIRE_AT + n, event) for n, event in enumerate(events))


def told(events: Sequence[Event]) -> History:
    """The history of a story that keeps the rules."""
    history = History(ROOT)
    for n, event in enumerate(events):
        history.append(event, FIRE_AT + n)
    return history


# The three journals that document 003 prints, with the state that it prints beside each entry.
EXAMPLE_FULL: tuple[tuple[Event, str], ...] = (
    (start(), "Running"),
    (rnd(0), "Running"),
    (sched(1), "Running"),
    (wait(1), "Blocked"),
    (begin(1), "Blocked"),
    (done(1), "Blocked"),
    (resume(), "Running"),
    (js(2), "Running"),
    (sched(3), "Running"),
    (put(2, 3), "Running"),
    (sched(4), "Running"),
    (put(2, 4), "Running"),
    (wait(3, 4, kind="Any"), "Blocked"),
    (begin(4), "Blocked"),
    (done(4), "Blocked"),
    (resume(), "Running"),
    (take(2, 4), "Running"),
    (wait(3, kind="Any"), "Blocked"),
    (begin(3), "Blocked"),
    (retry(3), "Blocked"),
    (begin(3, 2), "Blocked"),
    (done(3, 2), "Blocked"),
    (resume(), "Running"),
    (take(2, 3), "Running"),
    (ok(), "Completed"),
)
_ORDERED: tuple[tuple[Event, str], ...] = (
    (start(), "Running"),
    (sched(0), "Running"),
    (wait(0), "Blocked"),
    (begin(0), "Blocked"),
    (done(0), "Blocked"),
    (resume(), "Running"),
)
_APPROVED = '{"approved":true}'
EXAMPLE_BUFFERED: tuple[tuple[Event, str], ...] = (
    *_ORDERED,
    (sig(1, "user_approval", _APPROVED), "Running"),
    (got(1, 1, "user_approval", _APPROVED), "Running"),
    (ok(), "Completed"),
)
EXAMPLE_BLOCKING: tuple[tuple[Event, str], ...] = (
    *_ORDERED,
    (wait_signal(1, "user_approval"), "Blocked"),
    (sig(1, "user_approval", _APPROVED), "Blocked"),
    (got(1, 1, "user_approval", _APPROVED), "Blocked"),
    (resume(), "Running"),
    (ok(), "Completed"),
)
EXAMPLES = {"S003-X1": EXAMPLE_FULL, "S003-X2": EXAMPLE_BUFFERED, "S003-X3": EXAMPLE_BLOCKING}
