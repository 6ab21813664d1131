"""replay(journal(run)) = run, at every place where a run could have been cut off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec.prefixes import ALL_UP_TO, CUTS, Journal, check, cuts, digests, journals

JOURNALS = list(journals())


@pytest.mark.parametrize("journal", JOURNALS, ids=[name for name, _, _ in JOURNALS])
def test_every_prefix_replays_to_the_state_it_had_and_goes_on_to_the_same_end(journal: Journal) -> None:
    """P8, S003-C6, S003-I0: a crash at any event loses nothing, byte for byte: states, rows, heads and the index."""
    _, execution, entries = journal
    check(execution, entries)


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
