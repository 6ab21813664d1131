"""All ordered pairs of states against the database: the legal ones are stored, the others leave everything as it was."""

from __future__ import annotations

from itertools import permutations

import pytest

from engine.errors import BrokenJournal
from engine.journal.moves import ENDED, RUN_MOVES, STEP_MOVES
from governance.store import cases
from tests.kit.seams import begin, notes
from tests.kit.world import World

pytestmark = pytest.mark.inconsistent("states are set by hand")


@pytest.fixture
def run(world: World) -> str:
    """A run of one step that is ready, in nobody's hands."""
    made = begin(world, notes("moves", "only"))
    worker = world.parts.worker
    (lease,) = [one for one in worker._dispatch.claim("mover", 100, 60) if one.run == made]
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set state = 'parked', turn = null where tenant = :tenant and run = :run", run=lease.run)
    return made


def test_every_pair_of_run_states(world: World, run: str) -> None:
    """42 of seed 004, and those with the state that tasks added."""
    tried = 0
    for before, after in permutations(RUN_MOVES, 2):
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update run set state = :state where tenant = :tenant and run = :run", run=run, state=before)
        case = world.case(run)
        case.state, case.ended = after, after in ENDED
        if after in RUN_MOVES[before]:
            assert stored(world, case) == after
        else:
            with pytest.raises(BrokenJournal, match=f"{before} cannot become {after}"):
                stored(world, case)
            assert world.row("select state from run where tenant = :tenant and run = :run", run=run) == {
                "state": before
            }
        tried += 1
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update run set ended_at = null where tenant = :tenant and run = :run", run=run)
    assert tried == 56


def stored(world: World, case: cases.Case) -> str:
    with world.parts.database.unit(world.tenant) as unit:
        unit.check_commit = None
        cases.commit(unit, case, ())
    found = world.row("select state from run where tenant = :tenant and run = :run", run=case.origin.run)
    assert found is not None
    return str(found["state"])


def test_every_pair_of_step_states(world: World) -> None:
    run = begin(world, notes("moves", "only"))
    world.drain()
    tried = 0
    for before, after in permutations(STEP_MOVES, 2):
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update promise set state = :state where tenant = :tenant and run = :run", run=run, state=before)
            unit.run("update run set state = 'running', ended_at = null where tenant = :tenant and run = :run", run=run)
        case = world.case(run)
        legal = after in STEP_MOVES[before]
        if legal:
            case.touch("0", state=after)
            stored(world, case)
        else:
            with pytest.raises(BrokenJournal, match=f"{before} cannot become {after}"):
                case.touch("0", state=after)
        found = world.row("select state from promise where tenant = :tenant and run = :run", run=run)
        assert found == {"state": after if legal else before}
        tried += 1
    assert tried == 72
