"""The fold, and the words of the other documents as functions of it."""

from __future__ import annotations

import pytest

from engine.errors import BrokenJournal, CallerError
from engine.journal.events import EVENT_TYPES, AwaitSignal
from engine.journal.status import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    RUNNING,
    Blocked,
    OpenWork,
    Status,
    fold,
    instance_word,
    kernel_word,
    matches,
    model_word,
    run_word,
    step,
    to_value,
)
from tests.engine.journal.stories import (
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
    wait,
)

ON = frozenset({p(0)})
SETS = {
    start(): RUNNING,
    wait(0): Blocked(ON, "Single"),
    resume(): RUNNING,
    cancel(): CANCELLING,
    ok(): COMPLETED,
    fail(): FAILED,
    cancelled(): CANCELLED,
}
KEEPS = (sched(0), begin(0), done(0), retry(0), rnd(0), now(0), sleep(0), fired(0), sig(), got(0), js(0), put(0, 1))
KEEPS = (*KEEPS, take(0, 1))
EVERY = (RUNNING, Blocked(ON, "Single"), CANCELLING, COMPLETED, FAILED, CANCELLED)


def test_seven_types_set_the_status_and_thirteen_keep_it() -> None:
    """S003-St1, S003-St3, S003-D2."""
    assert {type(event) for event in (*SETS, *KEEPS)} == set(EVENT_TYPES.values())
    for before in EVERY:
        for event, after in SETS.items():
            assert step(before, event) == after
        for event in KEEPS:
            assert step(before, event) == before


def test_an_empty_journal_has_no_status() -> None:
    """S003-St4."""
    assert fold(journal((start(), sched(0), wait(0)))) == Blocked(ON, "Single")
    with pytest.raises(BrokenJournal):
        fold(())


def test_a_stored_status_is_compared_with_the_fold() -> None:
    """S003-INV4: by tag, and by the whole wait when the stored one says it."""
    blocked = Blocked(frozenset({p(0), p(1)}), "Any")
    for status in (*EVERY, blocked, Blocked(ON, AwaitSignal("s", p(0)))):
        assert matches(to_value(status), status)
        assert matches({"tag": to_value(status)["tag"]}, status)
        assert not matches({"tag": "Sleeping"}, status)
    assert not matches(to_value(blocked), Blocked(ON, "Any"))
    assert not matches({"tag": "Running"}, blocked)
    for wrong in ({}, {"tag": 1}, {"tag": "Running", "since": 1}, {"tag": "Blocked", "value": {"kind": "Any"}}):
        with pytest.raises(CallerError):
            matches(wrong, blocked)


SIGNAL = Blocked(ON, AwaitSignal("ready", p(0)))
TASK = Blocked(ON, AwaitSignal("task:7", p(0)))
BLOCKED = Blocked(ON, "Single")
ASKED = OpenWork(approvals=ON)
PROJECTIONS: dict[str, tuple[Status | None, OpenWork, tuple[str, str, str, str]]] = {
    "queued": (None, OpenWork(started=False), ("queued", "queued", "", "")),
    "cancelled in the queue": (
        None,
        OpenWork(started=False, cancel_requested=True),
        ("canceled", "cancelled", "Cancelled", "failed"),
    ),
    "running": (RUNNING, OpenWork(), ("running", "running", "Running", "running")),
    "approval": (BLOCKED, ASKED, ("waiting_approval", "running", "WaitingForTaskCompletion", "waiting")),
    "approval beside work": (
        BLOCKED,
        OpenWork(approvals=ON, ready_or_leased=True),
        ("running", "running", "WaitingForChild", "waiting"),
    ),
    "approval of another": (
        BLOCKED,
        OpenWork(approvals=frozenset({p(1)})),
        ("running", "running", "WaitingForChild", "waiting"),
    ),
    "approval before retry": (
        BLOCKED,
        OpenWork(approvals=ON, retry_ahead=True),
        ("waiting_approval", "running", "WaitingForTaskCompletion", "waiting"),
    ),
    "retry": (BLOCKED, OpenWork(retry_ahead=True), ("failed_retryable", "running", "WaitingForRetry", "waiting")),
    "retry beside work": (
        BLOCKED,
        OpenWork(retry_ahead=True, ready_or_leased=True),
        ("running", "running", "WaitingForChild", "waiting"),
    ),
    "child": (BLOCKED, OpenWork(), ("running", "running", "WaitingForChild", "waiting")),
    "timer": (BLOCKED, OpenWork(timers=ON), ("running", "running", "WaitingForTimer", "waiting")),
    "signal": (SIGNAL, OpenWork(), ("running", "running", "WaitingForSignal", "waiting")),
    "task": (TASK, OpenWork(), ("running", "running", "WaitingForTaskCompletion", "waiting")),
    "cancelling": (CANCELLING, OpenWork(cancel_requested=True), ("running", "running", "Cancelling", "waiting")),
    "completed": (COMPLETED, OpenWork(), ("succeeded", "completed", "Completed", "completed")),
    "failed": (FAILED, OpenWork(), ("failed_terminal", "failed", "Failed", "failed")),
    "cancelled": (CANCELLED, OpenWork(), ("canceled", "cancelled", "Cancelled", "failed")),
    "ended with leftovers": (COMPLETED, ASKED, ("succeeded", "completed", "Completed", "completed")),
}


@pytest.mark.parametrize(("status", "work", "words"), PROJECTIONS.values(), ids=PROJECTIONS)
def test_each_document_has_its_own_word_for_the_one_status(
    status: Status | None, work: OpenWork, words: tuple[str, str, str, str]
) -> None:
    """C-1, C-33, S004-1.1d: spec.md 3 as a table; 004, 000, 001, 002 in this order."""
    found = (run_word(status, work), instance_word(status, work), model_word(status, work), kernel_word(status, work))
    assert found == words
