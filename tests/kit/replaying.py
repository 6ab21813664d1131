"""The check on every commit of a test installation: the run, loaded again, is the run that was committed, and it replays."""

from __future__ import annotations

from engine.canonical import encode
from governance.cli.journal import first_difference
from governance.store import cases
from governance.store.case import Case
from governance.store.unit import Unit


class ReplayedCommits:
    """P8: replay(journal(run)) = run, inside the transaction of each commit, before anybody else can see it."""

    def __init__(self) -> None:
        self.count = 0  # commits looked at

    def __call__(self, unit: Unit, case: Case) -> None:
        again = cases.load(unit, case.origin.run)
        assert encode(again.history.state()) == encode(case.history.state()), "the journal replays to another state"
        assert again.stored == [*case.stored, *case.history.pending()], "the stored events are not the committed ones"
        assert again.frame == case.frame or again.frame is None, "the stored frame is not the committed one"
        assert first_difference(unit, case.origin.run) == ""
        self.count += 1
