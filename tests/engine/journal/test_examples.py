"""The journals that document 003 prints fold to the states that it prints."""

from __future__ import annotations

import json

import pytest

from engine.journal.events import to_json
from engine.journal.history import History
from engine.journal.replay import check_line, recover
from engine.journal.status import name
from tests.engine.journal.stories import EXAMPLES, FIRE_AT, ROOT, journal, p


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_folds_as_printed(example: str) -> None:
    """S003-X1, S003-X2, S003-X3, S003-St3: the state beside each entry, from the writer and from the checker."""
    events, states = zip(*EXAMPLES[example], strict=True)
    history = History(ROOT)
    seen = []
    for event in events:
        history.append(event, FIRE_AT)
        seen.append(name(history.status))
    assert seen == list(states)
    assert check_line(to_json(ROOT, journal(events))) == {
        "valid": True,
        "violates": [],
        "guards": [],
        "status": "Completed",
        "statuses": list(states),
    }


def test_the_full_example_has_25_entries_and_takes_results_in_the_order_of_its_journal() -> None:
    """S003-X1, S003-C5, S003-K2: the member that completed first is taken first on every replay."""
    events = [event for event, _ in EXAMPLES["S003-X1"]]
    assert len(events) == 25
    assert recover(journal(events)).join_sets[p(2)].awaited == [p(4), p(3)]


@pytest.mark.parametrize("example", ["S003-X2", "S003-X3"])
def test_both_signal_examples_give_replay_the_same_answer(example: str) -> None:
    """S003-G3, S003-G4, S003-G5: buffered or blocking, replay finds the payload under the promise."""
    events = [event for event, _ in EXAMPLES[example]]
    found = recover(journal(events))
    assert json.loads(str(found.cached[p(1)])) == {"approved": True}
    assert found.buffered == {}
