"""What surrounds a run is read once for all drives, and never makes yes of what is no by now."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from governance.stages.judge import Judge
from governance.store import around
from governance.store.around import Remembered
from tests.kit.seams import before_commit, begin, intends, notes
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]


class Stored:
    """Receipts of writes, as seconds; a statement is counted by how many of them it looks at."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.looked_at = 0

    def all(self, sql: str, *, bucket: int, since: int) -> list[tuple[int, int]]:
        found = [at for at in self.at if at >= since]
        self.looked_at = len(found)
        return list(Counter(int(at // bucket) for at in found).items())


@given(st.lists(st.tuples(st.integers(0, 2_000), st.lists(st.floats(0, 5), max_size=4)), max_size=12))
def test_the_writes_of_the_last_hour_are_all_counted_and_hardly_any_older(steps: list[tuple[int, list[float]]]) -> None:
    """Receipts become visible up to five seconds after their moment: a statement may not take longer."""
    stored, known, now = Stored(), {}, 1_000_000.0
    unit: Any = stored
    for seconds, ages in steps:
        now += seconds
        stored.at += [now - age for age in ages]
        counted = around._writes(unit, known, datetime.datetime.fromtimestamp(now, datetime.UTC))
        assert counted >= sum(1 for at in stored.at if at > now - 3_600)
        assert counted <= sum(1 for at in stored.at if at > now - 3_620)


def test_what_is_settled_is_not_counted_again() -> None:
    stored, known, now = Stored(), {}, 1_000_000.0
    unit: Any = stored
    stored.at = [now - age for age in range(40, 3_000)]
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    assert around._writes(unit, known, moment) == 2_960
    assert around._writes(unit, known, moment + datetime.timedelta(seconds=1)) == 2_960
    assert stored.looked_at == 0


def test_all_drives_of_a_worker_share_one_read(world: World) -> None:
    remembered, case = Remembered(world.parts.database), world.case(world.start())
    first = remembered.of(case)
    statements: list[str] = []

    def heard(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    event.listen(world.parts.database._engine, "before_cursor_execute", heard)
    try:
        assert remembered.of(case) == first
        assert statements == []
        assert remembered.of(case, fresh=True).read_at > first.read_at
        assert statements
    finally:
        event.remove(world.parts.database._engine, "before_cursor_execute", heard)


def test_what_is_older_than_a_second_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered, case = Remembered(world.parts.database), world.case(world.start())
    first = remembered.of(case)
    monkeypatch.setattr(around, "around_seconds_max", -1.0)
    assert remembered.of(case).read_at > first.read_at


def switch(world: World, on: bool) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = :on where tenant = :tenant", on=on)


def test_a_switch_that_falls_after_it_was_read_stops_the_intent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict was yes on what was remembered; the intent's commit looks again."""
    begin(world, notes("warm", "before"))
    world.drain()
    fallen = before_commit(monkeypatch, lambda: switch(world, True), when=intends)
    run = begin(world, notes("switched", "never"))
    world.drain()
    assert fallen
    assert world.writes("work_notes") == ["before"]
    assert "effect.intended" not in world.entries(run)


def test_a_no_is_never_given_on_what_is_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch was on when it was last read and is off by now: the run goes on as if it had never been on."""
    switch(world, True)
    world.parts.worker._tools.remembered.of(world.case(world.start()), fresh=True)
    switch(world, False)
    asked: list[bool] = []
    opinion = Judge.opinion

    def heard(judge: Judge, case: Any, surroundings: Any, *rest: Any, **how: Any) -> Any:
        asked.append(surroundings.tenant.kill_switch)
        return opinion(judge, case, surroundings, *rest, **how)

    monkeypatch.setattr(Judge, "opinion", heard)
    monkeypatch.setattr(around, "around_seconds_max", 3_600.0)
    run = begin(world, notes("goes-on", "done"))
    world.drain()
    assert asked[0], "the first verdict was given on what was remembered"
    assert not any(asked[1:])
    assert world.case(run).state == "succeeded"
