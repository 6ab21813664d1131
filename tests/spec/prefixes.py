"""Journals to cut at every place, and what each cut must give again. Run as `python -m tests.spec.prefixes` it prints the digests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.canonical import encode, sha256
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import Entry, decode_row, encode_row, from_json
from engine.journal.history import History
from engine.journal.replay import Recovery, recover
from tests.spec.traces import committed, replay

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "journals"
ALL_UP_TO = 200
CUTS = 40
LONG = 1_200

Journal = tuple[str, PromiseId, tuple[Entry, ...]]


def long_journal() -> tuple[Entry, ...]:
    """Calls, sleeps and signals in turn, with a wait for each."""
    root = PromiseId(1)
    history = History(root)
    history.append(ev.ExecutionStarted("sha256:00", "in", root, "key"), 0)
    while history.version < LONG:
        at, mine = history.version, history.next_promise()
        history.append(ev.InvokeScheduled(mine, "Http", "f", "x", ""), at)
        history.append(ev.ExecutionAwaiting(frozenset({mine}), "Single"), at)
        history.append(ev.InvokeStarted(mine, 1), at)
        history.append(ev.SignalDelivered("s", str(at), history.deliveries("s") + 1), at)
        history.append(ev.InvokeCompleted(mine, str(at), 1), at)
        history.append(ev.ExecutionResumed(), at)
        delivery, payload = history.buffered("s")[0]
        if at % 4:
            history.append(ev.SignalReceived(history.next_promise(), "s", payload, delivery), at)
    return history.pending()


def journals() -> Iterator[Journal]:
    """Every golden journal, every journal of the committed traces, and one that is long."""
    for file in sorted(GOLDEN.glob("*.json")):
        exported = from_json(json.dumps(json.loads(file.read_bytes())["line"]))
        yield file.stem, exported.execution, exported.entries
    for number, trace in enumerate(committed()):
        for execution, entries in replay(trace).journals():
            yield f"trace-{number}-{execution}", execution, entries
    yield "long", PromiseId(1), long_journal()


def cuts(length: int) -> list[int]:
    """Every prefix of a journal, or a spread of them when it is long: the first, the last, and even steps between."""
    if length <= ALL_UP_TO:
        return list(range(1, length + 1))
    return sorted({1, length, *(length * n // CUTS for n in range(1, CUTS))})


def check(execution: PromiseId, entries: tuple[Entry, ...]) -> None:
    """Cut at every place, the journal gives the state it had there, and goes on from there to the same end."""
    whole = encode(History.load(execution, entries).state())
    writer, index, taken = History(execution), Recovery(), 0
    for cut in cuts(len(entries)):
        for entry in entries[taken:cut]:
            assert writer.append(entry.event, entry.timestamp) == entry
        index.take(entries[taken:cut])
        taken = cut
        assert writer.row() == encode_row(entries[:cut])
        stored = decode_row(writer.row())
        again = History.load(execution, stored)
        assert encode(again.state()) == encode(writer.state())
        assert recover(stored) == index
        # The tail, appended to what was loaded, gives the rows and the state of the run that was never cut.
        for entry in entries[cut:]:
            again.append(entry.event, entry.timestamp)
        assert again.pending() == entries[cut:]
        if cut < len(entries):
            assert again.row() == encode_row(entries[cut:])
        assert encode(again.state()) == whole


def digests() -> Iterator[str]:
    """For each prefix: the state that a replay gives, and the row that stores it."""
    for name, execution, entries in journals():
        for cut in cuts(len(entries)):
            state = encode(History.load(execution, entries[:cut]).state())
            yield f"{name} {cut} {sha256(state).hex()} {sha256(encode_row(entries[:cut])).hex()}"


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in digests())
