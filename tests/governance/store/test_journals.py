"""The twenty actions against PostgreSQL: each batch is written by the store, loaded again byte for byte, and written once only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from engine.canonical import encode
from engine.errors import BrokenJournal, Conflict
from engine.ids import PromiseId
from engine.journal.events import FIRST_PREV, AwaitSignal, Entry, Event, encode_row, entry_bytes, link
from governance import clock
from governance.local import postgres
from governance.store import cases, journals, people
from governance.store.case import Case, Origin
from governance.store.unit import Database
from tests.engine.journal.stories import FIRE_AT, start
from tests.engine.journal.test_machine import Journals

TENANT = "journals"
# A fifth of what a pure machine is given: each step here is a transaction or two.
EXAMPLES = max(10, settings.default.max_examples // 5) if settings.default else 10


@dataclass
class Place:
    """The tenant whose runs the machines are, each of them a new one."""

    database: Database
    made: int = 0

    def run(self) -> Case:
        self.made += 1
        run = f"{self.made:032x}"
        origin = Origin(
            tenant=TENANT, run=run, workspace="main", workflow="w", version="1", definition=bytes(32), trigger_type="manual",
            trigger_ref=run, started_by="p", on_behalf_of="", owner="p", salt_key=bytes(32), execution_key="k", input=bytes(32),
            created_at=clock.now_utc(), root=run,
        )  # fmt: skip
        with self.database.unit(TENANT) as unit:
            assert cases.insert(unit, origin, "queued")
        return self.load(run)

    def load(self, run: str) -> Case:
        with self.database.unit(TENANT, write=False) as unit:
            return cases.load(unit, run)

    def rows(self, run: str) -> list[tuple[int, bytes, bytes]]:
        with self.database.unit(TENANT, write=False) as unit:
            return journals.rows(unit, run)

    def commit(self, case: Case) -> None:
        with self.database.unit(TENANT) as unit:
            cases.commit(unit, case, ())


@pytest.fixture(scope="module")
def place(database: postgres.Database) -> Iterator[Place]:
    store = Database(database.app_url)
    with store.unit(TENANT) as unit:
        people.add_tenant(unit, name="Journals", environment="dev", salt_key=b"")
    yield Place(store)
    store.close()


def moved(event: Event, run: str) -> Event:
    """The same event in a run of this name."""

    def at(value: Any) -> Any:
        if isinstance(value, PromiseId):
            return PromiseId(run, value.path)
        if isinstance(value, frozenset):
            return frozenset(map(at, value))
        return AwaitSignal(value.name, at(value.promise_id)) if isinstance(value, AwaitSignal) else value

    return replace(event, **{field.name: at(getattr(event, field.name)) for field in fields(event)})


class StoredJournals(Journals):
    """Whatever the pure writer accepts is accepted here too and stored in batches; what it refuses is refused by the same rule."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.case = place.run()
        self.run = self.case.origin.run
        self.rival = place.load(self.run)
        self.stored: list[tuple[int, bytes, bytes]] = []
        self.head = FIRST_PREV
        self.batch = 1

    @initialize(batch=st.integers(1, 4))
    def start_execution(self, batch: int = 1) -> None:
        self.batch = batch
        self.act(start())

    def act(self, event: Event, timestamp: int = FIRE_AT) -> None:
        known, before = len(self.entries), encode(self.case.history.state())
        super().act(event, timestamp)
        if len(self.entries) > known:
            self.case.history.append(moved(event, self.run), timestamp)
            if len(self.case.history.pending()) >= self.batch:
                self.write()
            return
        with pytest.raises(BrokenJournal):
            self.case.history.append(moved(event, self.run), timestamp)
        assert encode(self.case.history.state()) == before

    def write(self) -> None:
        """One commit, what it left behind, and a second writer at the same version, who is refused."""
        batch = self.case.history.pending()
        for entry in batch:
            self.head = link(self.head, entry_bytes(entry))
        self.stored.append((batch[0].sequence, encode_row(batch), self.head))
        self.place.commit(self.case)
        self.case.committed()
        assert self.place.rows(self.run) == self.stored
        self.check_stored()
        self.refuse_rival(batch)
        self.rival = self.place.load(self.run)

    def check_stored(self) -> None:
        loaded = self.place.load(self.run)
        assert encode(loaded.history.state()) == encode(self.case.history.state())
        assert loaded.history.head == self.head
        assert loaded.stored == [
            Entry(entry.sequence, entry.timestamp, moved(entry.event, self.run)) for entry in self.entries
        ]

    def refuse_rival(self, batch: tuple[Entry, ...]) -> None:
        """S003-J2: the run's version refuses the second writer; were it not for that, the journal's own key would."""
        for entry in batch:
            self.rival.history.append(entry.event, entry.timestamp + 1)
        with pytest.raises(Conflict) as moved_on:
            self.place.commit(self.rival)
        assert moved_on.value.code == "version"
        self.rival.base_events = self.case.base_events
        with pytest.raises(Conflict) as taken:
            self.place.commit(self.rival)
        assert taken.value.code == "journal_pkey"
        assert self.place.rows(self.run) == self.stored

    def teardown(self) -> None:
        if self.case.history.pending():
            self.write()


def test_the_twenty_actions_are_stored_as_the_pure_writer_has_them(place: Place) -> None:
    """P8, S003-A01..A21, S003-I0: rows, heads and states byte for byte after every commit, and one writer at each version."""
    chosen = settings(deadline=None, max_examples=EXAMPLES, stateful_step_count=40)
    run_state_machine_as_test(lambda: StoredJournals(place), settings=chosen)
    with place.database.unit(TENANT, write=False) as unit:
        row = unit.one("select count(*), count(*) filter (where events > 1) from journal where tenant = :tenant")
    assert row is not None
    assert row[0] > 2 * EXAMPLES
    assert row[1] > 0
