"""Decisions of several runs in one call: each is whole or not at all, and nobody's trouble is anybody else's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import Conflict, OperatorError
from governance.drive import Drive
from governance.store import cases, orders, together
from governance.store.case import FenceLost
from governance.store.dispatch import Dispatch
from governance.store.orders import Order, answered, write_alone
from governance.store.together import Together
from governance.store.unit import ByteStrings, Database
from tests.kit.seams import notes
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]


@pytest.fixture
def single(world: World) -> Iterator[Database]:
    """As in production: nothing looks at a commit, so it is one statement."""
    made = Database(world.parts.settings.database_url)
    yield made
    made.close()


def decided(world: World, n: int) -> list[Drive]:
    """So many runs in hand, decided and not yet written."""
    name = world.apply(notes("together", "only"))
    runs = {world.start(name, value={"sys_id": "9" * 32}, ref=str(k)) for k in range(n)}
    leases = [one for one in Dispatch(world.parts.database).claim("together", 100, 30) if one.run in runs]
    drives = [world.parts.worker._in_hand(lease) for lease in leases]
    for drive in drives:
        assert drive.decide() is not None
    return sorted(drives, key=lambda drive: drive.lease.run)


def order(drive: Drive) -> Order:
    return Order(drive.case, (drive.lease,), ("together", 30.0))


def versions(world: World, drives: list[Drive]) -> list[int]:
    return [world.case(drive.lease.run).history.version for drive in drives]


def kill_switch(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")


def takes_over(world: World, drive: Drive) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set epoch = epoch + 1 where tenant = :tenant and run = :run", run=drive.lease.run)


def moves(world: World, drive: Drive) -> None:
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), drive.lease.run, "never mind")


@pytest.mark.parametrize(("deed", "expected"), [(moves, Conflict), (takes_over, FenceLost)])
def test_a_run_that_was_lost_is_refused_and_the_others_of_its_call_are_written(
    world: World, single: Database, deed: Callable[[World, Drive], None], expected: type[Exception]
) -> None:
    """Design 5: runs whose fence or version no longer holds are returned and nothing of theirs is written."""
    drives = decided(world, 3)
    deed(world, drives[1])
    before = versions(world, drives)
    answers = write_alone(single, world.tenant, [order(drive) for drive in drives])
    assert answered(order(drives[0]), answers) > 0
    assert answered(order(drives[2]), answers) > 0
    with pytest.raises(expected):
        answered(order(drives[1]), answers)
    after = versions(world, drives)
    assert after[1] == before[1]
    assert after[0] > before[0]
    assert after[2] > before[2]
    intents = world.rows("select run from intent where tenant = :tenant order by run")
    assert [row["run"] for row in intents] == [drives[0].lease.run, drives[2].lease.run]


def test_a_run_that_somebody_holds_keeps_nobody_else_of_the_call_waiting(world: World, single: Database) -> None:
    """A click holds the run's row while it counts keys: its run is decided again, the others are written at once."""
    drives = decided(world, 2)
    with world.parts.database.unit(world.tenant) as unit:
        cases.load(unit, drives[0].lease.run, lock=True)
        answers = write_alone(single, world.tenant, [order(drive) for drive in drives])
    assert answers[drives[0].lease.run][0] == "version"
    assert answers[drives[1].lease.run][0] == ""
    assert answered(order(drives[0]), write_alone(single, world.tenant, [order(drives[0])])) > 0


def test_an_intent_of_a_call_finds_the_switches_as_its_verdict_saw_them(world: World, single: Database) -> None:
    drives = decided(world, 2)
    kill_switch(world)
    answers = write_alone(single, world.tenant, [order(drive) for drive in drives])
    assert {refused for refused, _ in answers.values()} == {"seen"}
    assert versions(world, drives) == [0, 0]


def test_a_call_without_a_tenant_writes_nothing(world: World, single: Database) -> None:
    drives = decided(world, 1)
    assert write_alone(single, "", [order(drives[0])])[drives[0].lease.run][0] == "version"
    assert versions(world, drives) == [0]


def as_text(one: Order) -> dict[str, list[dict[str, Any]]]:
    """An order as earlier releases wrote it: bytes as hexadecimal digits among the other values."""

    def text(value: Any) -> str:
        return "\\x" + value.hex() if isinstance(value, bytes) else value.isoformat()

    return json.loads(json.dumps(orders._rows(one), default=text))  # type: ignore[no-any-return]


def test_the_release_that_sent_bytes_as_text_writes_the_same_rows(world: World, single: Database) -> None:
    """Its function is given what this release's is given beside the rows, and what looks like bytes in a text stays text."""
    (drive,) = decided(world, 1)
    one = order(drive)
    drive.case.promises["0"].last_error = "\\x41"
    facts = as_text(one)
    found = single.call("select * from commit_facts(%s, %s)", (world.tenant, json.dumps(facts)))
    assert [(row[0], row[1], row[2] > 0) for row in found] == [(drive.lease.run, "", True)]
    stored = cases.load_alone(single, world.tenant, drive.lease.run)
    assert (stored.history.head, stored.chain_head) == (drive.case.history.head, drive.case.chain_head)
    assert stored.payloads == drive.case.payloads
    assert stored.promises == drive.case.promises
    for table, names in (("verdict", ("body", "input", "findings")), ("action", ("digest", "body"))):
        row = world.row(f"select * from {table} where tenant = :tenant and run = :run", run=drive.lease.run)
        assert row is not None
        assert [bytes(row[name]) for name in names] == [drive.case.rows[table][0][name] for name in names]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.binary(max_size=300), max_size=20))
def test_byte_strings_reach_the_server_as_they_are(single: Database, values: list[bytes]) -> None:
    ((found,),) = single.call("select %s", (ByteStrings(values),), write=False)
    assert [bytes(one) for one in found] == values


def test_the_release_before_this_one_still_commits_and_is_still_refused(world: World) -> None:
    """Its function takes one run in an open transaction and raises; a worker of it may be at work while this one starts."""
    drives = decided(world, 2)
    for drive, lost in zip(drives, (False, True), strict=True):
        if lost:
            takes_over(world, drive)
        facts = as_text(order(drive))
        lease = facts["leases"][0]
        done = [row for row in facts.pop("work_done") if (row["item"], row["stage"]) != (lease["item"], lease["stage"])]
        facts["seen"] = [{name: row[name] for name in ("revision", "freeze", "persons")} for row in facts["seen"]]
        old = {**facts, "leases": [{**lease, "done": True}], "work_done": done}
        if lost:
            with (
                pytest.raises(Exception, match="was taken over") as caught,
                world.parts.database.unit(world.tenant) as unit,
            ):
                unit.run("select commit_facts(:facts)", facts=json.dumps(old))
            assert getattr(getattr(caught.value, "orig", None), "sqlstate", "") == "TK003"
        else:
            with world.parts.database.unit(world.tenant) as unit:
                assert unit.run("select commit_facts(:facts)", facts=json.dumps(old)).scalar_one() > 0
    assert [bool(version) for version in versions(world, drives)] == [True, False]


class Held:
    """The first call stands still until everybody else has come, so that what follows is one call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
        self.sizes: list[int] = []
        self.fail: Callable[[list[Order]], None] = lambda batch: None
        write, self.ready, self.wanted = together.write_alone, threading.Event(), wanted

        def held(database: Database, tenant: str, batch: list[Order]) -> Any:
            self.sizes.append(len(batch))
            if len(self.sizes) == 1:
                assert self.ready.wait(20)
            self.fail(batch)
            return write(database, tenant, batch)

        monkeypatch.setattr(together, "write_alone", held)

    def all_of(self, these: Together, drives: list[Drive]) -> list[object]:
        """What each was answered, given in at the same time."""
        answers: list[object] = [None] * len(drives)

        def give(n: int) -> None:
            try:
                answers[n] = these.commit(order(drives[n]))
            except Exception as error:
                answers[n] = error

        threads = [threading.Thread(target=give, args=(n,)) for n in range(len(drives))]
        for thread in threads:
            thread.start()
        tenant = drives[0].case.origin.tenant
        while len(self.sizes) < 1 or len(these._queues.get(tenant, ())) < self.wanted:
            threading.Event().wait(0.001)
        self.ready.set()
        for thread in threads:
            thread.join(20)
        return answers


def test_what_becomes_ready_during_a_call_goes_together_in_the_next(
    world: World, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives, held = decided(world, 5), Held(monkeypatch, 4)
    answers = held.all_of(Together(single), drives)
    assert held.sizes == [1, 4]
    assert all(isinstance(one, int) and one > 0 for one in answers)
    assert all(versions(world, drives))
    epochs = {row["run"]: row["epoch"] for row in world.rows("select run, epoch from work where tenant = :tenant")}
    assert [epochs[drive.lease.run] for drive in drives] == answers, "each was told its own fence"


def test_two_orders_of_one_run_never_share_a_call(
    world: World, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were decided on the same version: the second finds that the run has moved."""
    drives, held = decided(world, 2), Held(monkeypatch, 2)
    answers = held.all_of(Together(single), [drives[0], drives[1], drives[1]])
    assert max(held.sizes) <= 2
    assert sorted(type(one).__name__ for one in answers).count("Conflict") == 1
    assert all(versions(world, drives))


def test_a_violation_by_one_is_found_by_writing_each_alone(
    world: World, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs hold the same effect key: the call falls as a whole, then one of them is written and the other told."""
    drives, held = decided(world, 4), Held(monkeypatch, 3)
    for drive in drives[1:3]:
        drive.case.rows["intent"][0]["key"] = "the same"
    answers = held.all_of(Together(single), drives)
    refused = [one for one in answers if isinstance(one, Conflict)]
    assert [one.code for one in refused] == ["intent_pkey"]
    assert sum(1 for one in answers if isinstance(one, int)) == 3
    assert sum(1 for version in versions(world, drives) if version) == 3


def test_a_call_whose_answer_is_lost_is_lost_for_everyone_in_it(
    world: World, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was written nobody knows: no drive of it goes on, and the next call is not held up."""
    drives, held = decided(world, 4), Held(monkeypatch, 3)

    def lost(batch: list[Order]) -> None:
        if len(batch) == 3:
            raise OperatorError("the database does not answer", code="database")

    held.fail = lost
    these = Together(single)
    answers = held.all_of(these, drives)
    assert sum(1 for one in answers if isinstance(one, OperatorError)) == 3
    assert sum(1 for one in answers if isinstance(one, int)) == 1
    assert these._queues == {}


def test_a_connection_that_was_cut_costs_one_error_and_no_noise(
    single: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The next call has a connection of its own, bounded like the first."""
    name = single.call("select pg_backend_pid()", (), write=False)
    with pytest.raises(OperatorError, match="does not answer"):
        single.call("select pg_terminate_backend(pg_backend_pid())", (), write=False)
    assert single.call("select pg_backend_pid()", (), write=False) != name
    bounds = single.call("select current_setting('lock_timeout'), current_setting('statement_timeout')", ())
    assert list(bounds[0]) == ["4s", "5s"]
    assert caplog.records == []
