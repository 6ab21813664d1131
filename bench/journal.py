"""How fast the journal is by itself: guarded append, rows, loading and checking, one core, no database, in one run.

Asserts the bounds of docs/decisions/0003 and that each cost grows with the number of events and no faster. Measured is
the processor's time of this process, the best of several runs, so that a busy machine changes little. Prints one JSON
object.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import Entry, decode_row, encode_row, to_json
from engine.journal.history import History
from engine.journal.replay import check_line, recover

ROOT = PromiseId("ab" * 16)
PAYLOAD = json.dumps({"commit": "cd" * 32, "size": 120})
SHORT, LONG = 12_500, 50_000
TIMES = 7
APPEND_MIN, CHECK_MIN = 50_000, 40_000
# The cost of an event in the long journal over that in the short one: 4 would be quadratic.
GROWTH_MAX = 1.6


def story(length: int) -> list[ev.Event]:
    """Calls with their waits, every tenth one retried, signals and random values between them."""
    events: list[ev.Event] = [ev.ExecutionStarted("sha256:" + "00" * 32, PAYLOAD, ROOT, "ef" * 32)]
    child = signals = 0
    while len(events) < length:
        promise = ROOT.child(child)
        events.append(ev.InvokeScheduled(promise, "Function", "servicenow.update", PAYLOAD, "attempts=4;deadline_s=60"))
        events.append(ev.ExecutionAwaiting(frozenset((promise,)), "Single"))
        events.append(ev.InvokeStarted(promise, 1))
        attempt = 1
        if child % 10 == 0:
            events += [ev.InvokeRetrying(promise, 1, "timeout", 9), ev.InvokeStarted(promise, 2)]
            attempt = 2
        signals += 1
        events.append(ev.SignalDelivered("s", PAYLOAD, signals))
        events.append(ev.InvokeCompleted(promise, PAYLOAD, attempt))
        events.append(ev.ExecutionResumed())
        events.append(ev.SignalReceived(ROOT.child(child + 1), "s", PAYLOAD, signals))
        events.append(ev.RandomGenerated(ROOT.child(child + 2), "7"))
        child += 3
    return events[:length]


def append(events: list[ev.Event]) -> History:
    history = History(ROOT)
    for event in events:
        history.append(event, 1)
    return history


def best(work: Callable[[], object]) -> float:
    found = []
    for _ in range(TIMES):
        gc.collect()
        gc.disable()  # as `twokeys journal check` does
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
        gc.enable()
    return min(found)


def rates(length: int) -> dict[str, float]:
    """Events per second of everything, over a journal of this many events."""
    events = story(length)
    entries = tuple(Entry(n, 1, event) for n, event in enumerate(events))
    row, line = encode_row(entries), to_json(ROOT, entries)
    works: dict[str, Callable[[], object]] = {
        "append": lambda: append(events),
        "row": lambda: encode_row(entries),
        "head": lambda: append(events).head,
        "decode": lambda: decode_row(row),
        "load": lambda: History.load(ROOT, entries, head=bytes(32)),
        "index": lambda: recover(entries),
        "check": lambda: check_line(line),
    }
    assert check_line(line)["valid"]
    return {name: length / best(work) for name, work in works.items()}


def main() -> int:
    short, long = rates(SHORT), rates(LONG)
    growth = {name: round(short[name] / long[name], 2) for name in long}
    faults = [f"{name} grows by {ratio}" for name, ratio in growth.items() if ratio > GROWTH_MAX]
    for name, least in (("append", APPEND_MIN), ("check", CHECK_MIN)):
        if long[name] < least:
            faults.append(f"{name} does {long[name]:.0f} events/s, not {least}")
    figures = {name: round(rate) for name, rate in long.items()}
    print(json.dumps({"events": LONG, "events_per_second": figures, "growth": growth, "faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
