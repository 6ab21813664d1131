"""Holds that ask for different people, in a bundle: each is satisfied by itself, and what was recorded before still reads as it was."""

from __future__ import annotations

from typing import Any

import pytest

from engine.ledger.trust import read_trust
from engine.ledger.verify import verify
from tests.engine.ledger.factory import OLGA, PAUL, Synthetic, hold, trust_text

TWO_HOLDS = [
    hold(groups=["managers"]),
    {**hold(groups=["oncall"], two_person=False), "code": "after_hours"},
]


def run(olga: list[str], paul: list[str], *, before: bool = False) -> Synthetic:
    """A high write that two people release, whose holds want two managers and somebody on call."""
    made = Synthetic()
    made.begin()
    high = made.action("0", risk="high")
    made.propose(high)
    made.judge(high, holds=TWO_HOLDS)
    if before:
        del made.verdicts["0"][-1]["needs"]
    made.ask(high, "ap_1")
    made.key(high, "ap_1", OLGA, 1, 2, groups=olga)
    made.key(high, "ap_1", PAUL, 2, 2, groups=paul)
    made.release(high, "ap_1", OLGA, PAUL)
    made.judge(high, holds=TWO_HOLDS, purpose="recheck")
    if before:
        del made.verdicts["0"][-1]["needs"]
    made.intend(high, "ap_1")
    made.settle(high)
    made.complete(high)
    made.close()
    return made


def said(made: Synthetic) -> tuple[list[str], list[str]]:
    """The codes of what is wrong, and the remarks."""
    result = verify(made.bundle(), read_trust(trust_text().encode()))
    return [finding.code for finding in result.findings], list(result.remarks)


def test_a_release_that_satisfies_every_hold_is_valid() -> None:
    """Two managers of whom one is on call."""
    codes, remarks = said(run(["managers", "oncall"], ["managers"]))
    assert (codes, [text for text in remarks if "verdict" in text]) == ([], [])


@pytest.mark.parametrize(
    ("olga", "paul"), [(["oncall"], ["oncall"]), (["managers"], ["managers"]), (["managers"], ["oncall"])]
)
def test_a_release_that_one_hold_does_not_satisfy_is_refused(olga: list[str], paul: list[str]) -> None:
    """Two keys are there each time, and two different people."""
    assert said(run(olga, paul))[0] in (["two-person"], ["key-count"])


@pytest.mark.parametrize("forged", ["verdict.given", "approval.asked"])
def test_demands_cannot_be_made_milder(forged: str) -> None:
    """Neither in the verdict, whose findings tell, nor in what was asked, whose verdict tells."""
    made = run(["managers", "oncall"], ["managers"])
    mild: list[dict[str, Any]] = [{"keys": 2, "counts": [], "groups": ["managers", "oncall"]}]
    made.change(forged, needs=mild)
    assert said(made)[0] == [{"verdict.given": "verdict-derived", "approval.asked": "approval-verdict"}[forged]]


def test_what_was_released_before_holds_kept_their_groups_is_valid_and_says_so() -> None:
    """One manager and one on call were enough then; the reader is told that they would not be now."""
    codes, remarks = said(run(["managers"], ["oncall"], before=True))
    assert codes == []
    assert sum("from before holds kept their own groups" in text for text in remarks) == 2
