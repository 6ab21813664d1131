"""What a history knows after each append, what it gives the store to write, and what a fork may not disturb."""

from __future__ import annotations

import sys

import pytest

from engine.canonical import encode
from engine.errors import BrokenJournal, CallerError
from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitSignal, decode_row, entry_bytes, link
from engine.journal.history import History
from engine.journal.promises import Invoke, Wait
from engine.journal.status import RUNNING, Blocked
from tests.engine.journal.stories import (
    EXAMPLES,
    FIRE_AT,
    ROOT,
    begin,
    done,
    fired,
    got,
    js,
    now,
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


def test_an_empty_history_has_not_started() -> None:
    """S003-A01, S003-J3: version 0, the first leaf's predecessor as head, nothing to write."""
    history = History(ROOT)
    assert (history.started, history.version, history.next_child, history.pending()) == (False, 0, 0, ())
    assert history.head == bytes(32)
    with pytest.raises(CallerError):
        history.row()
    history.append(start(), 0)
    assert (history.started, history.version, history.status, history.ended) == (True, 1, RUNNING, False)


def test_an_invocation_is_followed_from_intent_to_result() -> None:
    """S003-Y1, S003-A06..A09: one promise over all attempts; open until its result is there."""
    history = told((start(), sched(0)))
    assert history.invoke(p(0)) == Invoke(sched(0))  # type: ignore[arg-type]
    history.append(begin(0), 0)
    history.append(retry(0), 0)
    held = history.invoke(p(0))
    assert held is not None
    assert (held.phase, held.attempt, held.retry_at) == ("retrying", 1, 9)
    history.append(begin(0, 2), 0)
    assert [held.attempt for held in history.open_invokes()] == [2]
    assert history.result(p(0)) is None
    history.append(done(0, 2, "seven"), 0)
    assert list(history.open_invokes()) == []
    assert history.result(p(0)) == "seven"
    assert history.invoke(p(1)) is None


def test_replay_gets_every_kind_of_recorded_value() -> None:
    """S003-C2, S003-C3, S003-C4: results, random values, times, timers and signals."""
    history = told((start(), rnd(0), now(1), sleep(2), fired(2), sig(), got(3), js(4), sleep(5)))
    assert [history.result(p(n)) for n in range(7)] == ["7", 7, "", "x", None, None, None]
    assert [timer.promise_id for timer in history.open_timers()] == [p(5)]
    assert history.next_promise() == p(6)


def test_signals_are_buffered_in_order_per_name() -> None:
    """S003-G1, S003-G2, S003-T6: deliveries wait until they are consumed, the oldest first."""
    history = told((start(), sig(1, payload="a"), sig(2, payload="b"), sig(1, "t"), got(0, 1, payload="a")))
    assert history.buffered("s") == ((2, "b"),)
    assert history.buffered("t") == ((1, "x"),)
    assert history.buffered("u") == ()
    assert (history.deliveries("s"), history.deliveries("u")) == (2, 0)


def test_a_wait_has_an_identity_and_ends_by_its_kind() -> None:
    """S003-R1..R4, C-3, S001-8.3b: the version of a wait is the sequence of its ExecutionAwaiting."""
    history = told((start(), sched(0), sched(1), begin(0), begin(1), wait(0, 1, kind="All")))
    both = frozenset({p(0), p(1)})
    assert history.wait == Wait(both, "All", 5, False)
    assert history.status == Blocked(both, "All")
    history.append(sig(), 0)
    history.append(done(0), 0)
    assert history.wait == Wait(both, "All", 5, False)
    history.append(done(1), 0)
    assert history.wait == Wait(both, "All", 5, True)
    assert history.can_resume()
    history.append(resume(), 0)
    assert history.wait is None
    assert not history.can_resume()


def test_any_ends_by_the_first_and_a_signal_only_by_its_own_receipt() -> None:
    """S003-R2, S003-R3: completing an invocation does not end a wait for a signal under the same promise."""
    history = told((start(), sched(0), sched(1), begin(0), begin(1), wait(0, 1, kind="Any"), done(1)))
    assert history.can_resume()
    history = told((start(), sched(0), begin(0), wait_signal(0), done(0)))
    assert not history.can_resume()
    history = told((start(), wait_signal(0), sig()))
    assert not history.can_resume()
    history.append(got(0), 0)
    assert history.wait == Wait(frozenset({p(0)}), AwaitSignal("s", p(0)), 1, True)


def test_a_wait_on_a_random_value_never_ends() -> None:
    """S003-R4: only results, timers and signals resolve; the run can still be cancelled."""
    history = told((start(), rnd(0), wait(0)))
    assert not history.can_resume()
    history.append(ev.CancelRequested("stuck"), 0)


def test_a_join_set_knows_its_members() -> None:
    """S003-K1, S003-A18..A20: ids are children of the run, members keep their owner."""
    history = told((start(), js(0), sched(1), put(0, 1), sched(2), put(0, 2), begin(2), done(2), take(0, 2)))
    assert [(held.scheduled.promise_id, held.consumed) for held in history.members(p(0))] == [
        (p(1), False),
        (p(2), True),
    ]
    assert history.members(p(9)) == history.members(PromiseId(2, (0,))) == ()


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_pending_is_one_row_and_the_head_is_the_last_leaf(example: str) -> None:
    """S003-J2, S003-J4, P8: rows of any cut give the same journal, state and head."""
    events = [event for event, _ in EXAMPLES[example]]
    whole = told(events)
    for cut in range(1, len(events)):
        history = History(ROOT)
        rows = []
        for n, event in enumerate(events):
            if n == cut:
                rows.append(history.row())
                history.saved()
                assert history.pending() == ()
            history.append(event, FIRE_AT + n)
        rows.append(history.row())
        entries = [entry for row in rows for entry in decode_row(row)]
        assert tuple(entries) == whole.pending()
        head = bytes(32)
        for entry in entries:
            head = link(head, entry_bytes(entry))
        loaded = History.load(ROOT, entries)
        assert loaded.head == history.head == whole.head == head
        assert encode(loaded.state()) == encode(whole.state())
        assert loaded.pending() == ()


def test_a_stored_head_is_believed_and_carried_on() -> None:
    """The store keeps the head of a run, so a stage need not hash what it loads."""
    events = [event for event, _ in EXAMPLES["S003-X2"]]
    whole = told(events)
    part = told(events[:4])
    loaded = History.load(ROOT, part.pending(), head=part.head)
    for n, event in enumerate(events[4:], 4):
        loaded.append(event, FIRE_AT + n)
    assert loaded.head == whole.head


def test_a_fork_and_its_origin_do_not_disturb_each_other() -> None:
    """A stage tries on a fork and throws it away; what was known stays known on both sides."""
    history = told((start(), sched(0), begin(0), sleep(1), sig(), js(2)))
    before = encode(history.state())
    fork = history.fork()
    for event in (done(0), put(2, 0), take(2, 0), fired(1), got(3), sig(2), sched(4), wait(4)):
        fork.append(event, FIRE_AT)
    assert fork.result(p(0)) == "r"
    assert encode(history.state()) == before
    assert len(history.pending()) == 6
    assert len(fork.pending()) == 14
    history.append(begin_of_another(history), 0)
    assert len(fork.pending()) == 14
    assert decode_row(fork.row()) == fork.pending()


def begin_of_another(history: History) -> ev.Event:
    return ev.InvokeScheduled(history.next_promise(), "Function", "other", "in", "{}")


def test_a_run_may_be_rooted_below_another_promise() -> None:
    """S003-T1: child ids continue whatever path the execution id has."""
    execution = PromiseId("ab" * 16, (3, 1))
    history = History(execution)
    history.append(ev.ExecutionStarted("d", "in", execution, "k"), 0)
    history.append(ev.InvokeScheduled(execution.child(0), "Function", "f", "in", "{}"), 0)
    history.append(ev.InvokeStarted(execution.child(0), 1), 0)
    with pytest.raises(BrokenJournal, match="SE-1"):
        history.append(ev.InvokeStarted(PromiseId("ab" * 16, (3, 0)), 1), 0)
    with pytest.raises(BrokenJournal, match="SE-1"):
        history.append(ev.InvokeStarted(execution, 1), 0)


def test_a_guarded_append_costs_the_same_at_any_length() -> None:
    """No scan that grows with the journal: the number of calls is the same at event 2,000 and at event 22,000. Speed is in bench/."""

    def calls(history: History, steps: int) -> int:
        count = 0

        def seen(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            for _ in range(steps):
                promise = history.next_promise()
                history.append(ev.InvokeScheduled(promise, "Http", "fn", "in", "{}"), 1)
                history.append(ev.ExecutionAwaiting(frozenset((promise,)), "Single"), 1)
                history.append(ev.InvokeStarted(promise, 1), 1)
                history.append(ev.InvokeCompleted(promise, "r", 1), 1)
                history.append(ev.ExecutionResumed(), 1)
        finally:
            sys.setprofile(None)
        return count

    history = told((start(),))
    first = calls(history, 400)
    calls(history, 4_000)
    # A collector's run in between adds a handful of calls; one scan a step would add twenty thousand to each.
    assert abs(calls(history, 400) - first) < first / 100
