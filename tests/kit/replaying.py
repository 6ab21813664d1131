"""What every test installation is held to: each commit replays in its own transaction, and each journal at every prefix after it."""

from __future__ import annotations

from engine.canonical import encode
from engine.errors import BrokenJournal
from engine.ids import PromiseId
from governance.cli.journal import first_difference
from governance.store import cases, journals
from governance.store.case import Case
from governance.store.unit import Database, Unit
from tests.spec import prefixes


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


def check_prefixes(database: Database, tenant: str) -> None:
    """P8: every journal that a test has left behind, cut at every place; those that it broke on purpose are passed over."""
    with database.unit(tenant, write=False) as unit:
        for (run,) in unit.all("select run from run where tenant = :tenant and events > 0 order by run"):
            try:
                stored = journals.read(unit, run)
            except BrokenJournal:
                continue
            prefixes.check(PromiseId(run), stored.entries)
