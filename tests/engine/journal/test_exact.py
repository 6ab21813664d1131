"""What the journal says to the letter: the reason of every refusal, an empty history, and the words about bad input."""

from __future__ import annotations

import json

import pytest

from engine.errors import BrokenJournal, CallerError
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import Exported
from engine.journal.history import History
from engine.journal.invariants import violations
from engine.journal.replay import check, check_line, recover
from engine.journal.status import RUNNING, Blocked, fold, matches, statuses
from tests.engine.journal.stories import (
    FIRE_AT,
    ROOT,
    begin,
    done,
    fired,
    journal,
    js,
    p,
    put,
    rnd,
    sched,
    sig,
    sleep,
    start,
    take,
    told,
)
from tests.engine.journal.test_rules import RULES

REASONS = {
    "S-2": "S-2: entry 0: a journal starts with ExecutionStarted",
    "S-3": "S-4: entry 2: nothing follows the end of a run that is Completed",
    "S-4": "S-4: entry 2: nothing follows the end of a run that is Completed",
    "S-5": "S-5: entry 1: no cancellation was requested",
    "SE-1": "SE-1: entry 2: 1.0 was never scheduled",
    "SE-2": "SE-2: entry 2: 1.0 was never started",
    "SE-3": "SE-3: entry 3: attempt 2 of 1.0 was never started",
    "SE-4": "SE-4: entry 4: 1.0 is completed",
    "SE-4 retry": "SE-4: entry 4: 1.0 is completed",
    "SE-5": "SE-5: entry 9: 1.0 was retried 3 times",
    "CF-1": "CF-1: entry 2: 1.0 is not a timer",
    "CF-2": "CF-2: entry 2: delivery 1 of 's' has another payload",
    "CF-2 none": "CF-2: entry 2: delivery 2 of 's' never arrived",
    "CF-3": "CF-3: entry 3: delivery 1 of 's' is consumed",
    "CF-4": "CF-4: entry 1: a wait for a signal waits for exactly its promise",
    "JS-1": "JS-1: entry 2: join set 1.1 was never created",
    "JS-2": "JS-2: entry 8: a result of join set 1.0 was taken",
    "JS-3": "JS-3: entry 5: 1.0 is not in join set 1.1",
    "JS-4": "JS-4: entry 4: 1.1 is not completed",
    "JS-5": "JS-5: entry 7: the result of 1.1 was taken",
    "JS-6": "JS-5: entry 7: the result of 1.1 was taken",
    "JS-7": "JS-7: entry 5: 1.1 is in another join set",
    "G-01": "G-01: entry 4: there is no wait that is satisfied",
    "G-01 timer": "G-01: entry 2: there is no wait that is satisfied",
    "G-01 running": "G-01: entry 4: there is no wait that is satisfied",
    "G-01 cancel": "G-01: entry 5: there is no wait that is satisfied",
    "G-02": "G-02: entry 4: only a running program can wait",
    "G-03": "G-03: entry 4: only a running program does this",
    "G-03 timer": "G-03: entry 2: only a running program does this",
    "G-03 set": "G-03: entry 7: only a running program does this",
    "G-03 put": "G-03: entry 4: only a running program does this",
    "G-04": "G-04: entry 2: 1.0 is taken",
    "G-04 set": "G-04: entry 2: 1.0 is taken",
    "G-05": "G-05: entry 3: 1.0 has fired",
    "G-07": "G-07: entry 4: attempt 3 does not follow attempt 1 (retrying)",
    "G-07 first": "G-07: entry 2: attempt 2 does not follow attempt 0 (scheduled)",
    "G-07 twice": "G-07: entry 3: attempt 2 does not follow attempt 1 (started)",
    "G-07 end": "G-07: entry 3: attempt 2 is not in flight",
    "G-07 idle": "G-07: entry 4: attempt 1 is not in flight",
    "G-07 retry": "G-07: entry 4: attempt 1 is not in flight",
    "G-08": "G-08: entry 4: 1.0 is completed already",
    "G-09": "G-09: entry 2: join set 1.0 exists",
    "G-10": "G-10: entry 3: 1.1 is not an invocation that can be submitted",
    "G-10 twice": "G-10: entry 4: 1.1 is not an invocation that can be submitted",
    "G-11": "G-11: entry 6: 1.1 has another result",
    "G-12": "G-12: entry 2: delivery 2 of 's' comes next, not 3",
    "G-13": "G-13: entry 3: delivery 1 of 's' is older",
    "G-14": "G-14: entry 3: the program is blocked on something else",
    "G-14 place": "G-14: entry 3: the program is blocked on something else",
    "G-14 other": "G-14: entry 5: the program is blocked on something else",
    "G-14 cancel": "G-14: entry 3: the program is not waiting for a signal",
    "G-15": "G-15: entry 2: cancellation was requested already",
    "G-17": "G-17: entry 4: only a running program ends",
    "G-17 cancel": "G-17: entry 2: only a running program ends",
    "G-18": "G-18: entry 1: the run has started already",
    "G-19 empty": "G-19: entry 1: a wait of kind All cannot be for 0 promises",
    "G-19 two": "G-19: entry 4: a wait of kind Single cannot be for 2 promises",
    "G-19 done": "G-19: entry 4: the wait is satisfied before it begins",
    "G-19 any": "G-19: entry 5: the wait is satisfied before it begins",
    "G-19 got": "G-19: entry 3: the wait is satisfied before it begins",
    "G-20": "G-20: entry 2: the next child is 1.1, not 1.2",
    "G-20 timer": "G-20: entry 1: the next child is 1.0, not 1.1",
    "G-20 got": "G-20: entry 2: the next child is 1.0, not 1.1",
    "G-20 foreign": "G-20: entry 1: the next child is 1.0, not 2.0",
}


def test_every_refusal_says_its_rule_its_place_and_why() -> None:
    """Issue 3: refused with position and reason; a person reads this beside a run that has stopped."""
    said = {}
    for name, story in RULES.items():
        with pytest.raises(BrokenJournal) as refusal:
            told(story.before).append(story.breaks, FIRE_AT + 99)
        said[name] = refusal.value.reason
    assert said == REASONS


def test_the_refusals_that_no_story_of_the_rules_meets_say_theirs() -> None:
    """G-06 is the writer's alone, S-1 the loader's, and E21 is about what is not an event at all."""
    with pytest.raises(BrokenJournal) as early:
        told((start(), sleep(0))).append(fired(0), FIRE_AT - 1)
    assert early.value.reason == "G-06: entry 2: 1.0 is due at 50, not at 49"
    with pytest.raises(BrokenJournal) as foreign:
        told((start(),)).append(7, 0)  # type: ignore[arg-type]
    assert (foreign.value.rule, foreign.value.reason) == ("E21", "E21: entry 1: int is not an event")
    with pytest.raises(BrokenJournal) as empty:
        fold(())
    assert (empty.value.rule, empty.value.reason) == ("S-2", "S-2: an empty journal has no status")


def test_a_history_without_events_has_this_state() -> None:
    """Stored bytes hang on it: nothing is waited for and nothing is missing."""
    assert History(ROOT).state() == {
        "execution": [1], "version": 0, "status": {"tag": "Running"}, "awaited_at": -1, "missing": 0, "held": [],
        "open_invokes": [], "open_timers": [], "delivered": {}, "received": {}, "buffered": [], "head": bytes(32),
    }  # fmt: skip


def test_a_promise_of_another_run_is_not_taken_for_the_newest_of_this_one() -> None:
    """G-10: the last thing held is an invocation that could be submitted; a stranger must not stand for it."""
    history = told((start(), js(0), sched(1)))
    for stranger in (PromiseId(2, (1,)), p(7), p()):
        with pytest.raises(BrokenJournal) as refusal:
            history.append(ev.JoinSetSubmitted(p(0), stranger), 0)
        assert refusal.value.rule == "G-10"
    assert history.invoke(p(1)) is not None


def test_only_an_invocation_is_given_as_one() -> None:
    history = told((start(), sleep(0), js(1), rnd(2), sched(3)))
    assert [history.invoke(p(n)) is not None for n in range(5)] == [False, False, False, True, False]


def test_a_member_taken_from_two_sets_is_not_one_consumed_twice() -> None:
    """JS-5 is about the pair of set and promise; the foreign set breaks JS-3."""
    story = (start(), js(0), sched(1), put(0, 1), begin(1), done(1), take(0, 1), js(2), take(2, 1))
    assert violations(journal(story)) == ["JS-3", "JS-6"]


def test_a_journal_that_does_not_start_has_the_status_of_one_that_runs() -> None:
    """S003-St3: thirteen types keep the status, and before the first event it is Running."""
    assert statuses(journal((sig(),))) == [RUNNING]
    line = {"execution_id": [1], "journal": [ev.to_value(journal((sig(),))[0])]}
    assert check_line(json.dumps(line))["statuses"] == ["Running"]


def test_the_checker_looks_at_guards_unless_told_otherwise() -> None:
    twice = journal((start(), start()))
    assert check(Exported(ROOT, twice))["guards"] == ["G-18"]
    assert check(Exported(ROOT, twice), named_only=True)["guards"] == []


def test_a_line_that_cannot_be_read_has_every_key_of_a_finding() -> None:
    found = check_line("[")
    assert found.pop("error")
    assert found == {"valid": False, "violates": [], "guards": [], "status": None, "statuses": []}


@pytest.mark.parametrize(
    ("stored", "field", "reason"),
    [
        ({}, "stored_status", "is an object with a tag"),
        ({"tag": 7}, "stored_status", "is an object with a tag"),
        ({"tag": "Blocked", "more": 1}, "stored_status", "is an object with a tag"),
        ({"tag": "Blocked", "value": ["waiting_on", "kind"]}, "stored_status.value", "has waiting_on and kind"),
        ({"tag": "Blocked", "value": {"waiting_on": []}}, "stored_status.value", "has waiting_on and kind"),
        (
            {"tag": "Blocked", "value": {"waiting_on": [], "kind": "Any", "more": 1}},
            "stored_status.value",
            "has waiting_on and kind",
        ),
        (
            {"tag": "Blocked", "value": {"waiting_on": 7, "kind": "Any"}},
            "stored_status.value.waiting_on",
            "is a list of promise ids, not int",
        ),
    ],
)
def test_a_stored_status_that_is_none_is_refused_with_its_place(stored: dict, field: str, reason: str) -> None:
    """INV-4 compares; what cannot be compared is refused, never called different."""
    with pytest.raises(CallerError) as refusal:
        matches(stored, Blocked(frozenset({p(0)}), "Single"))
    assert (refusal.value.code, refusal.value.field, refusal.value.reason) == ("journal_format", field, reason)


@pytest.mark.parametrize("name", RULES)
def test_the_index_follows_the_history_and_takes_what_breaks_a_rule(name: str) -> None:
    """S003-C2..C5: what replay looks up is what the history holds; the index checks nothing, so it never stops a check."""
    story = RULES[name]
    recover(journal((*story.before, story.breaks)))
    entries = journal(story.good)
    history, index = History.load(ROOT, entries), recover(entries)
    held = [(n, history.result(p(n))) for n in range(history.next_child)]
    assert index.cached == {p(n): value for n, value in held if value is not None}
    assert list(index.open_invokes.values()) == [invoke.scheduled for invoke in history.open_invokes()]
    assert list(index.open_timers.values()) == list(history.open_timers())
    assert (index.next_child, index.version, index.can_resume) == (
        history.next_child,
        history.version,
        history.can_resume(),
    )
    for join_set, members in index.join_sets.items():
        assert set(members.submitted) == {invoke.scheduled.promise_id for invoke in history.members(join_set)}


def test_the_index_says_that_a_wait_for_a_timer_or_a_signal_is_over() -> None:
    """S003-R1, S003-R2, S003-R4: a fired timer ends a wait, and so does a signal that was received."""
    waits = ev.ExecutionAwaiting(frozenset({p(0)}), "Single")
    assert recover(journal((start(), sleep(0), waits, fired(0)))).can_resume
    assert not recover(journal((start(), sleep(0), waits))).can_resume
    first = (start(), sched(0), sig(), ev.SignalReceived(p(1), "s", "x", 1))
    late = ev.ExecutionAwaiting(frozenset({p(0), p(1)}), "All")
    assert recover(journal((*first, late, begin(0), done(0)))).can_resume
    assert not recover(journal((*first, late))).can_resume


def test_the_index_counts_every_child() -> None:
    """Each of the six kinds of child moves the number of the next one."""
    kinds = (sched(0), rnd(1), ev.TimeRecorded(p(2), 7), sleep(3), js(4), sig(), ev.SignalReceived(p(5), "s", "x", 1))
    counts = [recover(journal((start(), *kinds[:n]))).next_child for n in range(len(kinds) + 1)]
    assert counts == [0, 1, 2, 3, 4, 5, 5, 6]


def test_the_index_takes_a_result_from_a_set_that_never_was() -> None:
    """The checker has named that already (JS-3); looking at the rest of the journal must still be possible."""
    assert recover(journal((start(), take(0, 1)))).join_sets[p(0)].awaited == [p(1)]
