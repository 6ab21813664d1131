"""Stored journals: read row by row, each found to be what its own chain says."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import BrokenJournal
from engine.journal.events import FIRST_PREV, Entry, decode_row, entry_bytes, link
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Stored:
    """A journal out of the database."""

    entries: tuple[Entry, ...]
    commits: int
    head: bytes


def rows(unit: Unit, run: str) -> list[tuple[int, bytes, bytes]]:
    """(first sequence, stored bytes, head after it) of each commit."""
    found = unit.all(
        "select first_seq, body, head from journal where tenant = :tenant and run = :run order by first_seq", run=run
    )
    return [(int(row[0]), bytes(row[1]), bytes(row[2])) for row in found]


def read(unit: Unit, run: str) -> Stored:
    """The stored journal of a run; a row that is not what was written is named by its first sequence."""
    return chained(rows(unit, run))


def chained(found: list[tuple[int, bytes, bytes]]) -> Stored:
    """These rows as one journal."""
    entries: list[Entry] = []
    head = FIRST_PREV
    for first, body, after in found:
        if first != len(entries):
            raise BrokenJournal("S-1", f"the row that follows starts at {first}", sequence=len(entries))
        try:
            taken = decode_row(body)
        except BrokenJournal as error:
            raise BrokenJournal(error.rule, f"the stored row cannot be read: {error.reason}", sequence=first) from error
        for entry in taken:
            head = link(head, entry_bytes(entry))
        if head != after or taken[0].sequence != first:
            last = first + len(taken) - 1
            raise BrokenJournal("J-2", f"the row of events {first}-{last} does not hash to its head", sequence=first)
        entries += taken
    return Stored(tuple(entries), len(found), head)


def whole(unit: Unit, run: str) -> Stored:
    """The same, when it is also all that the run's own row says was written."""
    stored = read(unit, run)
    row = unit.one("select events, head from run where tenant = :tenant and run = :run", run=run)
    assert row is not None
    check_end(stored, int(row[0]), bytes(row[1]))
    return stored


def check_end(stored: Stored, events: int, head: bytes) -> None:
    """Refuse a journal that lost its newest rows: the run's own row says how many events there are and how they end."""
    if (events, head) != (len(stored.entries), stored.head):
        reason = f"the run says {events} events with head {head.hex()[:16]}, its journal ends otherwise"
        raise BrokenJournal("J-1", reason, sequence=len(stored.entries))
