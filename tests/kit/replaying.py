"""Checks on every commit of this process that the run, loaded again, is the run that was committed, and that it replays."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from engine.canonical import encode
from governance.cli.journal import first_difference
from governance.store import cases
from governance.store.case import Case
from governance.store.dispatch import Lease
from governance.store.unit import Unit


class ReplayedCommits:
    """How many commits were checked."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture(autouse=True)
def replayed_commits(monkeypatch: pytest.MonkeyPatch) -> ReplayedCommits:
    """P8: replay(journal(run)) = run, inside the transaction of each commit, before anybody else can see it."""
    written, seen = cases.commit, ReplayedCommits()

    def commit(unit: Unit, case: Case, leases: Iterable[Lease], keeper: tuple[str, float] = ("", 0)) -> None:
        written(unit, case, leases, keeper)
        again = cases.load(unit, case.origin.run)
        assert encode(again.history.state()) == encode(case.history.state()), "the journal replays to another state"
        assert again.frame == case.frame or again.frame is None, "the stored frame is not the committed one"
        assert first_difference(unit, case.origin.run) == ""
        seen.count += 1

    monkeypatch.setattr(cases, "commit", commit)
    return seen
