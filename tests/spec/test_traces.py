"""Traces of the model (journal.qnt), given to the writer: both must accept and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.errors import BrokenJournal
from engine.journal import events as ev
from engine.journal.events import Entry, Event
from engine.journal.history import History
from engine.journal.invariants import guards, violations
from tests.spec.traces import SAMPLE_TRACES, Trace, committed, replay

TRACES = committed()


@pytest.mark.parametrize("trace", TRACES, ids=range(len(TRACES)))
def test_the_writer_answers_every_attempt_as_the_model_does(trace: Trace) -> None:
    """S003-A01..A21, S003-I0: accepted by both, or refused by the writer with a rule that the model names too."""
    for execution, entries in replay(trace).journals():
        assert violations(entries) == guards(entries, execution) == []
        assert History.load(execution, entries).version == len(entries)


def test_the_committed_sample_is_a_real_one() -> None:
    """All twenty events are accepted somewhere, and most rules are what an attempt was refused for."""
    done = [replay(trace) for trace in TRACES]
    assert len(done) == SAMPLE_TRACES
    assert {event for one in done for event in one.accepted} == set(ev.EVENT_TYPES)
    assert sum(one.accepted.total() for one in done) > 1_500
    assert sum(one.refused.total() for one in done) > 1_500
    assert len({rule for one in done for rule in one.refused}) > 25


def variations(events: list[Event]) -> Iterator[list[Event]]:
    """Each event of a true journal left out, doubled, and exchanged with the one after it."""
    for n, event in enumerate(events):
        yield [*events[:n], *events[n + 1 :]]
        yield [*events[: n + 1], event, *events[n + 1 :]]
        if n + 1 < len(events):
            yield [*events[:n], events[n + 1], event, *events[n + 2 :]]


@pytest.mark.parametrize("trace", TRACES[::6], ids=range(0, len(TRACES), 6))
def test_a_varied_trace_is_refused_exactly_when_the_checker_finds_something(trace: Trace) -> None:
    """S003-I0: the writer over every prefix and the checker over the whole journal say the same of each variation."""
    refused = 0
    for execution, entries in replay(trace).journals():
        for story in variations([entry.event for entry in entries]):
            varied = tuple(Entry(n, n, event) for n, event in enumerate(story))
            if not varied or not (violations(varied) or guards(varied, execution)):
                History.load(execution, varied)
                continue
            refused += 1
            with pytest.raises(BrokenJournal) as refusal:
                History.load(execution, varied)
            assert refusal.value.sequence is not None
            prefix = varied[: refusal.value.sequence + 1]
            assert refusal.value.rule in (violations(prefix) or guards(prefix, execution))
    assert refused
