"""Which state of a run and of an operation may follow which: what people see moves along these tables or not at all."""

from __future__ import annotations

from engine.errors import BrokenJournal

ENDED = frozenset({"succeeded", "failed_terminal", "canceled"})
_OPEN = frozenset({"running", "waiting_approval", "waiting_task", "failed_retryable"})

# Of a run as it is stored. One commit may carry several deeds, from the queue straight to a question or to the end; so of
# what is not over everything may follow but the queue, and of what is over nothing.
RUN_MOVES: dict[str, frozenset[str]] = {
    **{state: (_OPEN | ENDED) - {state} for state in ("queued", *sorted(_OPEN))},
    **dict.fromkeys(sorted(ENDED), frozenset()),
}

# Of an operation, deed by deed. `running` is an intent without its receipt: so only from there can an outcome be unknown,
# and nobody is asked for a key while one is out. What nobody knows is settled, or proved not to have happened and tried again.
STEP_MOVES: dict[str, frozenset[str]] = {
    "ready": frozenset({"running", "waiting_approval", "waiting_task", "failed_retryable"}) | ENDED,
    "running": frozenset({"failed_retryable", "unknown", "waiting_task"}) | ENDED,
    "waiting_approval": frozenset({"ready"}) | ENDED,
    "waiting_task": frozenset({"ready"}) | ENDED,
    "failed_retryable": frozenset({"running", "waiting_approval", "waiting_task"}) | ENDED,
    "unknown": frozenset({"failed_retryable"}) | ENDED,
    **dict.fromkeys(sorted(ENDED), frozenset()),
}


def check_run(before: str, after: str) -> str:
    """The state that a run is stored in next; BrokenJournal when nothing leads there."""
    return _check("run", RUN_MOVES, before, after)


def check_step(before: str, after: str) -> str:
    """The state that an operation is in next; BrokenJournal when nothing leads there."""
    return _check("operation", STEP_MOVES, before, after)


def _check(what: str, moves: dict[str, frozenset[str]], before: str, after: str) -> str:
    if before not in moves or after not in moves:
        raise BrokenJournal("state", f"no {what} is {(after if before in moves else before)!r}")
    if after != before and after not in moves[before]:
        raise BrokenJournal("state", f"{what} that is {before} cannot become {after}")
    return after
