"""The check that tests put on every commit of a run: it sees each one before anybody else does, and nothing outside tests has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import BrokenJournal, OperatorError
from engine.journal.events import Entry, SignalDelivered, encode_row
from engine.kernel import Signalled
from governance.store import cases
from governance.wiring import Parts
from tests.kit.replaying import ReplayedCommits
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]


def test_every_row_of_a_journal_was_replayed_in_its_own_transaction(world: World) -> None:
    """Issue 3: an option checks replay(journal(run)) = run on every commit in tests."""
    check = world.parts.check_commit
    assert isinstance(check, ReplayedCommits)
    before = check.count
    run = world.start()
    world.until(run, "waiting_approval")
    rows = world.row("select count(*) as n from journal where tenant = :tenant and run = :run", run=run)
    assert rows is not None
    assert check.count - before >= rows["n"] > 1


def test_a_commit_that_does_not_replay_is_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not the events of the run in hand never become visible."""
    run = world.start()
    case = world.until(run, "waiting_approval")
    case.accept(Signalled("extra", "x"))
    (entry,) = case.history.pending()
    assert isinstance(entry.event, SignalDelivered)
    forged = encode_row([Entry(entry.sequence, entry.timestamp + 1, entry.event)])
    monkeypatch.setattr(type(case.history), "row", lambda _: forged)
    with pytest.raises(BrokenJournal, match="does not hash"), world.parts.database.unit(world.tenant) as unit:
        cases.commit(unit, case, ())
    assert world.case(run).history.version == entry.sequence


def test_the_check_is_refused_outside_tests(tmp_path: Path, world: World) -> None:
    """It costs a second load of the run at each commit."""
    settings = world.parts.settings.model_copy(update={"env": "production"})
    with pytest.raises(OperatorError, match="in tests only"):
        _ = Parts(settings, "test", tmp_path, ReplayedCommits()).database
