"""Each named invariant and each guard: a story that keeps it, and one that breaks it and is refused by its name."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from engine.canonical import encode
from engine.errors import BrokenJournal
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitSignal, Entry, Event
from engine.journal.history import History
from engine.journal.invariants import GUARDS, NAMED, guards, violations
from tests.engine.journal.stories import (
    FIRE_AT,
    ROOT,
    begin,
    cancel,
    cancelled,
    done,
    fail,
    fired,
    got,
    journal,
    js,
    now,
    ok,
    p,
    put,
    resume,
    retry,
    rnd,
    sched,
    sig,
    sleep,
    start,
    take,
    told,
    wait,
    wait_signal,
)


class Rule(NamedTuple):
    """What keeps a rule, one event that breaks it afterwards, and what is said: by the writer and by the checker."""

    good: tuple[Event, ...]
    before: tuple[Event, ...]
    breaks: Event
    writer: str
    named: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()


RUN = (start(), sched(0), begin(0))
DONE = (*RUN, done(0))
ONE = (start(), js(0), sched(1), put(0, 1))  # one set with one member
TAKEN = (*ONE, begin(1), done(1), take(0, 1))
ASKED = (start(), wait_signal(0))
RETRIED = (*RUN, retry(0), begin(0, 2), retry(0, 2), begin(0, 3), retry(0, 3), begin(0, 4))
FOREIGN = ev.InvokeScheduled(PromiseId(2, (0,)), "Http", "fn", "in", "{}")

RULES = {
    "S-2": Rule((start(),), (), sched(0), "S-2", ("S-2",), ()),
    "S-3": Rule((start(), ok()), (start(), ok()), fail(), "S-4", ("S-3", "S-4"), ("G-17",)),
    "S-4": Rule((start(), sig(), fail()), (start(), ok()), sig(), "S-4", ("S-4",)),
    "S-5": Rule((start(), cancel(), cancelled()), (start(),), cancelled(), "S-5", ("S-5",), ("G-16",)),
    "SE-1": Rule(RUN, (start(), sleep(0)), begin(0), "SE-1", ("SE-1",), ("G-07",)),
    "SE-2": Rule(DONE, (start(), sched(0)), done(0), "SE-2", ("SE-2",), ("G-07",)),
    "SE-3": Rule((*RUN, retry(0)), RUN, retry(0, 2), "SE-3", ("SE-3",), ("G-07",)),
    "SE-4": Rule(DONE, DONE, begin(0, 2), "SE-4", ("SE-4",), ("G-07",)),
    "SE-4 retry": Rule(DONE, DONE, retry(0), "SE-4", ("SE-4",), ("G-07",)),
    "SE-5": Rule((*RETRIED, done(0, 4)), RETRIED, retry(0, 4), "SE-5", ("SE-5",)),
    "CF-1": Rule((start(), sleep(0), fired(0)), (start(), sched(0)), fired(0), "CF-1", ("CF-1",)),
    "CF-2": Rule((start(), sig(), got(0)), (start(), sig()), got(0, payload="y"), "CF-2", ("CF-2",)),
    "CF-2 none": Rule((start(), sig(), got(0)), (start(), sig()), got(0, 2), "CF-2", ("CF-2",), ("G-13",)),
    "CF-3": Rule(
        (start(), sig(), sig(2), got(0), got(1, 2)), (start(), sig(), got(0)), got(1), "CF-3", ("CF-3",), ("G-13",)
    ),
    "CF-4": Rule(ASKED, (start(),), ev.ExecutionAwaiting(frozenset({p(0)}), AwaitSignal("s", p(1))), "CF-4", ("CF-4",)),
    "JS-1": Rule(ONE, (start(), sched(0)), put(1, 0), "JS-1", ("JS-1",)),
    "JS-2": Rule((*ONE, sched(2), put(0, 2)), (*TAKEN, sched(2)), put(0, 2), "JS-2", ("JS-2",)),
    "JS-3": Rule(TAKEN, (*DONE, js(1)), take(1, 0), "JS-3", ("JS-3", "JS-6")),
    "JS-4": Rule(TAKEN, ONE, take(0, 1), "JS-4", ("JS-4",)),
    "JS-5": Rule(TAKEN, TAKEN, take(0, 1), "JS-5", ("JS-5", "JS-6")),
    "JS-6": Rule(TAKEN, TAKEN, take(0, 1), "JS-5", ("JS-5", "JS-6")),
    "JS-7": Rule((*ONE, js(2)), (*ONE, js(2)), put(2, 1), "JS-7", ("JS-7",), ("G-10",)),
    "G-01": Rule((*RUN, wait(0), done(0), resume()), (*RUN, wait(0)), resume(), "G-01", (), ("G-01",)),
    "G-01 timer": Rule((start(), sleep(0), wait(0), fired(0), resume()), ASKED, resume(), "G-01", (), ("G-01",)),
    "G-01 running": Rule((start(), sig(), got(0)), DONE, resume(), "G-01", (), ("G-01",)),
    "G-01 cancel": Rule((*DONE, cancel(), cancelled()), (*DONE, cancel()), resume(), "G-01", (), ("G-01",)),
    "G-02": Rule((*RUN, wait(0)), (*RUN, wait(0)), wait(0), "G-02", (), ("G-02",)),
    "G-03": Rule((*RUN, wait(0), done(0), resume(), sched(1)), (*RUN, wait(0)), sched(1), "G-03", (), ("G-03",)),
    "G-03 timer": Rule((start(), sleep(0), cancel()), (start(), cancel()), sleep(0), "G-03", (), ("G-03",)),
    "G-03 set": Rule((*TAKEN, cancel()), (*ONE, begin(1), done(1), cancel()), take(0, 1), "G-03", (), ("G-03",)),
    "G-03 put": Rule((*ONE, cancel()), (start(), js(0), sched(1), cancel()), put(0, 1), "G-03", (), ("G-03",)),
    "G-04": Rule((start(), rnd(0), now(1)), (start(), rnd(0)), now(0), "G-04", (), ("G-04", "G-20")),
    "G-04 set": Rule((start(), rnd(0), js(1)), (start(), rnd(0)), js(0), "G-04", (), ("G-04", "G-20")),
    "G-05": Rule((start(), sleep(0), fired(0)), (start(), sleep(0), fired(0)), fired(0), "G-05", (), ("G-05",)),
    "G-07": Rule((*RUN, retry(0), begin(0, 2)), (*RUN, retry(0)), begin(0, 3), "G-07", (), ("G-07",)),
    "G-07 first": Rule(RUN, (start(), sched(0)), begin(0, 2), "G-07", (), ("G-07",)),
    "G-07 twice": Rule(RUN, RUN, begin(0, 2), "G-07", (), ("G-07",)),
    "G-07 end": Rule(DONE, RUN, done(0, 2), "G-07", (), ("G-07",)),
    "G-07 idle": Rule(DONE, (*RUN, retry(0)), done(0), "G-07", (), ("G-07",)),
    "G-07 retry": Rule((*RUN, retry(0)), (*RUN, retry(0)), retry(0), "G-07", (), ("G-07",)),
    "G-08": Rule(DONE, DONE, done(0, result="other"), "G-08", (), ("G-08",)),
    "G-09": Rule((start(), js(0), js(1)), (start(), js(0)), js(0), "G-09", (), ("G-04", "G-09", "G-20")),
    "G-10": Rule(ONE, (start(), js(0), sleep(1)), put(0, 1), "G-10", (), ("G-10",)),
    "G-10 twice": Rule(ONE, ONE, put(0, 1), "G-10", (), ("G-10",)),
    "G-11": Rule(TAKEN, (*ONE, begin(1), done(1)), take(0, 1, "other"), "G-11", (), ("G-11",)),
    "G-12": Rule((start(), sig(), sig(1, "t"), sig(2)), (start(), sig()), sig(3), "G-12", (), ("G-12",)),
    "G-13": Rule((start(), sig(), sig(2), got(0)), (start(), sig(), sig(2)), got(0, 2), "G-13", (), ("G-13",)),
    "G-14": Rule((*ASKED, sig(), got(0)), (*ASKED, sig(1, "t")), got(0, 1, "t"), "G-14", (), ("G-14",)),
    "G-14 place": Rule((*ASKED, sig(), got(0)), (*ASKED, sig()), got(1), "G-14", (), ("G-14", "G-20")),
    "G-14 other": Rule((start(), sig(), got(0)), (*RUN, wait(0), sig()), got(1), "G-14", (), ("G-14",)),
    "G-14 cancel": Rule((start(), sig(), got(0)), (start(), sig(), cancel()), got(0), "G-14", (), ("G-14",)),
    "G-15": Rule((*RUN, wait(0), cancel()), (start(), cancel()), cancel(), "G-15", (), ("G-15",)),
    "G-17": Rule((*RUN, ok()), (*RUN, wait(0)), ok(), "G-17", (), ("G-17",)),
    "G-17 cancel": Rule((start(), fail()), (start(), cancel()), fail(), "G-17", (), ("G-17",)),
    "G-18": Rule((start(),), (start(),), start(), "G-18", (), ("G-18",)),
    "G-19 empty": Rule((*RUN, wait(0, kind="All")), (start(),), wait(kind="All"), "G-19", (), ("G-19",)),
    "G-19 two": Rule((*RUN, sched(1), wait(0, 1, kind="Any")), (*RUN, sched(1)), wait(0, 1), "G-19", (), ("G-19",)),
    "G-19 done": Rule((*DONE, sched(1), wait(0, 1, kind="All")), DONE, wait(0), "G-19", (), ("G-19",)),
    "G-19 any": Rule(
        (*DONE, sched(1), wait(1, kind="Any")), (*DONE, sched(1)), wait(0, 1, kind="Any"), "G-19", (), ("G-19",)
    ),
    "G-19 got": Rule(ASKED, (start(), sig(), got(0)), wait_signal(0), "G-19", (), ("G-19",)),
    "G-20": Rule((start(), sched(0), sched(1)), (start(), sched(0)), sched(2), "G-20", (), ("G-20",)),
    "G-20 timer": Rule((start(), sleep(0)), (start(),), sleep(1), "G-20", (), ("G-20",)),
    "G-20 got": Rule((start(), sig(), got(0)), (start(), sig()), got(1), "G-20", (), ("G-20",)),
    "G-20 foreign": Rule((start(), sched(0)), (start(),), FOREIGN, "G-20", (), ("G-20",)),
}


@pytest.mark.parametrize("story", RULES.values(), ids=RULES)
def test_a_story_that_keeps_the_rule_is_accepted(story: Rule) -> None:
    """S003-S2..S5, S003-SE1..SE5, S003-CF1..CF4, S003-JS1..JS7, S003-A01..A21 and G-01..G-20, accepted."""
    history = told(story.good)
    assert violations(history.pending()) == []
    assert guards(history.pending(), ROOT) == []


@pytest.mark.parametrize("story", RULES.values(), ids=RULES)
def test_an_event_that_breaks_the_rule_is_refused_by_name_and_changes_nothing(story: Rule) -> None:
    """S003-S2..S5, S003-SE1..SE5, S003-CF1..CF4, S003-JS1..JS7, S003-A01..A21, S003-I0 and G-01..G-20, refused."""
    history = told(story.before)
    before = encode(history.state())
    with pytest.raises(BrokenJournal) as refusal:
        history.append(story.breaks, FIRE_AT + 99)
    assert refusal.value.rule == story.writer
    assert refusal.value.sequence == len(story.before)
    assert encode(history.state()) == before
    broken = journal((*story.before, story.breaks))
    assert violations(broken) == list(story.named)
    assert guards(broken, ROOT) == list(story.guards)
    with pytest.raises(BrokenJournal):
        History.load(ROOT, broken)


def test_every_rule_has_its_stories() -> None:
    """The tables of rules and of stories name the same rules; the three left out have tests of their own."""
    told_of = {name.split(" ")[0] for name in RULES}
    assert {*NAMED, *GUARDS, "G-20"} - told_of == {"S-1", "G-16"}


def test_a_sequence_number_is_the_place_of_its_entry() -> None:
    """S003-S1, S003-J3, C-40: sequence i at place i, the stricter reading of S-1."""
    entries = journal(DONE)
    assert violations(entries) == []
    gap = (*entries[:-1], Entry(9, 0, entries[-1].event))
    assert violations(gap) == ["S-1"]
    with pytest.raises(BrokenJournal, match="S-1: entry 3: sequence 9 stands at place 3"):
        History.load(ROOT, gap)


def test_a_cancel_that_was_undone_cannot_be_finished() -> None:
    """G-16 follows from S-5, G-01 and G-02, so only a journal that broke one of those can break it."""
    entries = journal((*RUN, wait(0), done(0), cancel(), resume(), cancelled()))
    assert violations(entries) == []
    assert guards(entries, ROOT) == ["G-01", "G-16"]


def test_a_timer_does_not_fire_early_for_its_writer() -> None:
    """G-06, S003-A13: the writer refuses an early fire; a stored journal is not judged by its timestamps (S003-T5)."""
    history = told((start(), sleep(0)))
    with pytest.raises(BrokenJournal, match="G-06"):
        history.append(fired(0), FIRE_AT - 1)
    history.append(fired(0), FIRE_AT)
    early = tuple(Entry(n, 0, event) for n, event in enumerate((start(), sleep(0), fired(0))))
    assert violations(early) == guards(early, ROOT) == []
    assert encode(History.load(ROOT, early).state()["held"]) == encode(history.state()["held"])


def test_work_in_flight_finishes_while_the_run_is_being_cancelled() -> None:
    """S003-A21, S003-D1, C-15: start, complete, retry, fire and deliver stay allowed in Cancelling."""
    history = told((*RUN, sched(1), sleep(2), wait(0), cancel(), retry(0), begin(0, 2), done(0, 2), begin(1), done(1)))
    history.append(fired(2), FIRE_AT)
    history.append(sig(), FIRE_AT)
    history.append(cancelled(), FIRE_AT)
    assert history.ended


def test_the_promises_of_two_runs_are_disjoint() -> None:
    """S003-INV6: every promise id starts with its run's own root, and a foreign one is refused wherever it stands."""
    other = PromiseId("ab" * 16)
    history = told(RUN)
    for event, rule in (
        (ev.InvokeScheduled(other.child(1), "Http", "fn", "", ""), "G-20"),
        (ev.InvokeStarted(other.child(0), 1), "SE-1"),
        (ev.InvokeCompleted(other.child(0), "r", 1), "SE-2"),
        (ev.InvokeRetrying(p(0, 0), 1, "e", 1), "SE-3"),
        (ev.TimerFired(p()), "CF-1"),
        (ev.JoinSetSubmitted(other.child(0), p(0)), "JS-1"),
    ):
        with pytest.raises(BrokenJournal) as refusal:
            history.append(event, 0)
        assert refusal.value.rule == rule


def test_what_is_not_an_event_is_refused() -> None:
    """S003-E21: exactly twenty types."""
    with pytest.raises(BrokenJournal, match="E21"):
        told((start(),)).append("ExecutionCompleted", 0)  # type: ignore[arg-type]
