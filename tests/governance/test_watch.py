"""What is too slow does not hold up what may not wait: the late deed is done meanwhile, once, and its fault is told."""

from __future__ import annotations

import threading

import pytest

from engine.errors import Conflict
from governance.watch import Watch


def never() -> None:
    raise AssertionError("done although nothing was late")


def test_what_is_quick_is_returned_and_nothing_else_is_done() -> None:
    watch = Watch()
    assert [watch.within(30, lambda n=n: n, never) for n in range(100)] == [(n, False) for n in range(100)]


def test_what_is_slow_is_overtaken_by_what_may_not_wait() -> None:
    """The call goes on and its answer still counts."""
    done = threading.Event()

    def slow() -> str:
        assert done.wait(20), "nothing was done meanwhile"
        return "answer"

    assert Watch().within(0.001, slow, done.set) == ("answer", True)


def test_each_is_overtaken_at_its_own_time_although_another_late_deed_stands_still() -> None:
    watch, release, second = Watch(), threading.Event(), threading.Event()

    def first_call() -> None:
        watch.within(0.001, lambda: release.wait(20), lambda: release.wait(20) and None)

    blocked = threading.Thread(target=first_call)
    blocked.start()
    assert watch.within(0.002, lambda: second.wait(20), second.set) == (True, True)
    release.set()
    blocked.join(20)
    assert not blocked.is_alive()


def test_a_late_deed_that_has_begun_is_waited_for() -> None:
    """Two that write at the same time would be two writers."""
    begun, returned, seen = threading.Event(), threading.Event(), []

    def late() -> None:
        begun.set()
        seen.append(returned.wait(0.02))

    assert Watch().within(0.001, lambda: begun.wait(20), late) == (True, True)
    returned.set()
    assert seen == [False], "it had not returned while the late deed was being done"


def test_the_fault_of_a_late_deed_is_raised_where_the_call_was_made() -> None:
    begun = threading.Event()

    def late() -> None:
        begun.set()
        raise Conflict("the run moved", code="version")

    with pytest.raises(Conflict, match="the run moved"):
        Watch().within(0.001, lambda: begun.wait(20), late)


def test_the_fault_of_the_call_comes_first() -> None:
    def call() -> None:
        raise ValueError("the call")

    with pytest.raises(ValueError, match="the call"):
        Watch().within(30, call, never)
