"""replay(journal(run)) = run, at every place where a run could have been cut off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.canonical import encode
from engine.journal.events import decode_row, encode_row
from engine.journal.history import History
from engine.journal.replay import Recovery, recover
from tests.spec.prefixes import ALL_UP_TO, CUTS, Journal, cuts, digests, journals

JOURNALS = list(journals())


@pytest.mark.parametrize("journal", JOURNALS, ids=[name for name, _, _ in JOURNALS])
def test_every_prefix_replays_to_the_state_it_had_and_goes_on_to_the_same_end(journal: Journal) -> None:
    """P8, S003-C6, S003-I0: a crash at any event loses nothing, byte for byte: states, rows, heads and the index."""
    _, execution, entries = journal
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


def test_a_fresh_process_with_another_hash_seed_replays_the_same() -> None:
    """S003-C6: nothing of a replay hangs on the order of a set or of this process' memory."""
    here = list(digests())
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "tests.spec.prefixes"]
        run = subprocess.run(
            command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.splitlines() == here


def test_a_long_journal_is_cut_at_a_spread_of_places() -> None:
    """Above 200 events the prefixes are sampled, the first and the last among them."""
    assert cuts(ALL_UP_TO) == list(range(1, ALL_UP_TO + 1))
    found = cuts(1_200)
    assert (found[0], found[-1], len(found)) == (1, 1_200, CUTS + 1)
