"""Every ordered pair of states, of runs and of operations: what may follow is listed, everything else is refused."""

from __future__ import annotations

from itertools import permutations

import pytest

from engine.errors import BrokenJournal
from engine.journal.moves import ENDED, RUN_MOVES, STEP_MOVES, check_run, check_step

# Seed 004 2.1 and 2.2, with the two states that the product added; what the diagrams draw as two arrows is one commit.
SEED_RUN = ("queued", "running", "waiting_approval", "failed_retryable", "succeeded", "failed_terminal", "canceled")
DRAWN_RUN = {
    ("queued", "running"), ("running", "waiting_approval"), ("waiting_approval", "running"), ("waiting_approval", "failed_terminal"),
    ("running", "succeeded"), ("running", "failed_retryable"), ("running", "failed_terminal"), ("queued", "canceled"),
    ("running", "canceled"),
}  # fmt: skip
DRAWN_STEP = {
    ("ready", "running"), ("running", "succeeded"), ("waiting_approval", "ready"), ("waiting_approval", "failed_terminal"),
    ("running", "failed_retryable"), ("running", "failed_terminal"), ("ready", "canceled"), ("running", "canceled"),
}  # fmt: skip
LEGAL_STEPS = {
    "ready": "running waiting_approval waiting_task failed_retryable succeeded failed_terminal canceled",
    "running": "failed_retryable unknown waiting_task succeeded failed_terminal canceled",
    "waiting_approval": "ready succeeded failed_terminal canceled",
    "waiting_task": "ready succeeded failed_terminal canceled",
    "failed_retryable": "running waiting_approval waiting_task succeeded failed_terminal canceled",
    "unknown": "failed_retryable succeeded failed_terminal canceled",
    "succeeded": "",
    "failed_terminal": "",
    "canceled": "",
}


def test_the_tables_know_every_state() -> None:
    assert set(RUN_MOVES) == {*SEED_RUN, "waiting_task"}
    assert len(list(permutations(SEED_RUN, 2))) == 42
    assert set(STEP_MOVES) == set(LEGAL_STEPS)
    assert all(set(RUN_MOVES[before]) >= {after} for before, after in DRAWN_RUN)
    assert all(set(STEP_MOVES[before]) >= {after} for before, after in DRAWN_STEP)


@pytest.mark.parametrize(("before", "after"), list(permutations(RUN_MOVES, 2)))
def test_a_run_moves_on_and_never_back_into_the_queue_or_out_of_its_end(before: str, after: str) -> None:
    if before in ENDED or after == "queued":
        with pytest.raises(BrokenJournal, match=f"run that is {before} cannot become {after}"):
            check_run(before, after)
    else:
        assert check_run(before, after) == after


@pytest.mark.parametrize(("before", "after"), list(permutations(STEP_MOVES, 2)))
def test_an_operation_moves_as_the_table_says(before: str, after: str) -> None:
    if after in LEGAL_STEPS[before].split():
        assert check_step(before, after) == after
    else:
        with pytest.raises(BrokenJournal, match=f"operation that is {before} cannot become {after}"):
            check_step(before, after)


@pytest.mark.parametrize("state", sorted({*RUN_MOVES} & {*STEP_MOVES}))
def test_to_stay_is_no_move(state: str) -> None:
    assert check_run(state, state) == check_step(state, state) == state


def test_a_word_that_is_no_state_is_refused() -> None:
    for before, after in (("done", "running"), ("running", "done")):
        for check in (check_run, check_step):
            with pytest.raises(BrokenJournal, match="is 'done'"):
                check(before, after)
