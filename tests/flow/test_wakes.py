"""Wake-ups arrive with the poll switched off: none is lost between a look and a rest, nor with a connection that somebody cuts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from structlog.testing import capture_logs

from engine.errors import Conflict
from engine.limits import poll_idle_seconds
from governance.local import postgres
from governance.stages.tick import Tick
from governance.store.dispatch import Lease
from governance.store.unit import Database
from governance.store.wakes import Listener, Notifier, channel, pause_seconds
from governance.wiring import Parts
from governance.worker import Worker
from tests.kit.wait import until

INSERT = "insert into work (tenant, run, item, stage, workspace, state, rank) values (:tenant, :run, '', 'advance', 'main', 'ready', 1)"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


class Office:
    """A worker that only takes its items away, woken through the database by a process that is not its own."""

    def __init__(self, parts: Parts, superuser: str) -> None:
        self.parts, self.url = parts, parts.settings.database_url
        self.notifier = Notifier(self.url)
        self.web = Database(self.url, pool=8, ring=self.notifier.ring)
        self.worker = Worker(parts.database, parts.worker._tools.hands, name="woken", lease_seconds=60)
        self.worker._guarded = self.take  # type: ignore[method-assign]
        self.worker._seals = lambda: 0  # type: ignore[method-assign]
        self.listener = Listener(self.url, self.worker.wake)
        self.owner = psycopg.connect(superuser, autocommit=True)
        self.taken: set[str] = set()
        self.heard = threading.Condition()

    def take(self, lease: Lease) -> None:
        with self.web.unit(lease.tenant) as unit:
            unit.run("delete from work where tenant = :tenant and run = :run", run=lease.run)
        with self.heard:
            self.taken.add(lease.run)
            self.heard.notify_all()

    def put(self, run: str) -> None:
        with self.web.unit("office") as unit:
            unit.run(INSERT, run=run)
            unit.ring()

    def is_taken(self, run: str, seconds: float = 10) -> bool:
        with self.heard:
            return self.heard.wait_for(lambda: run in self.taken, seconds)

    def backends(self, name: str) -> list[int]:
        rows = self.owner.execute(
            "select pid from pg_stat_activity where application_name = %s and datname = current_database()", (name,)
        )
        return [row[0] for row in rows]

    def cut(self, name: str) -> None:
        """Whoever holds this connection learns of it with the next byte."""
        until(lambda: bool(self.backends(name)))  # after the last cut it comes back with some delay
        gone = self.backends(name)
        for pid in gone:
            self.owner.execute("select pg_terminate_backend(%s)", (pid,))
        until(lambda: not set(self.backends(name)) & set(gone))

    @contextmanager
    def open(self, *, poll: bool) -> Iterator[None]:
        self.listener.start()
        until(lambda: self.listener.hears)
        how = {"hears": lambda: self.listener.hears, "poll": poll}
        thread = threading.Thread(target=self.worker.run, args=((),), kwargs=how)
        thread.start()
        try:
            yield
        finally:
            self.worker.stop()
            thread.join(20)
            assert not thread.is_alive()

    def close(self) -> None:
        self.listener.close()
        self.notifier.close()
        self.web.close()
        self.owner.close()


@pytest.fixture
def office(parts: Parts, database: postgres.Database, postgres_server: postgres.Postgres) -> Iterator[Office]:
    made = Office(parts, postgres_server.url(postgres.SUPERUSER, database.name))
    yield made
    made.close()


def test_of_a_thousand_wake_ups_none_is_lost_with_the_poll_switched_off(office: Office) -> None:
    """Each is the only one under way in its thread, so one that is lost is one that never comes."""

    def person(name: int) -> list[str]:
        lost = []
        for n in range(250):
            office.put(f"{name}-{n}")
            if not office.is_taken(f"{name}-{n}"):
                lost.append(f"{name}-{n}")
        return lost

    with office.open(poll=False), ThreadPoolExecutor(4) as pool:
        assert [lost for part in pool.map(person, range(4)) for lost in part] == []


def test_after_its_connection_was_cut_the_listener_connects_again_and_looks_once(office: Office) -> None:
    """What was told while nobody listened is found by that look; the poll is off."""
    with office.open(poll=False):
        office.put("before")
        assert office.is_taken("before")
        for n in range(3):
            office.cut("twokeys listener")
            office.put(f"meanwhile-{n}")
            assert office.is_taken(f"meanwhile-{n}")
        until(lambda: office.listener.hears)
        office.put("after")
        assert office.is_taken("after")


def test_after_its_connection_was_cut_the_notifier_tells_again(office: Office) -> None:
    with office.open(poll=False):
        office.put("before")
        assert office.is_taken("before")
        office.cut("twokeys notifier")
        office.put("after")
        assert office.is_taken("after")


def test_without_any_wake_up_the_poll_finds_the_work(office: Office) -> None:
    office.notifier.ring = lambda: None  # type: ignore[method-assign]
    silent = Database(office.url, pool=1)
    with office.open(poll=True):
        with silent.unit("office") as unit:
            unit.run(INSERT, run="silent")
            unit.ring()
        assert office.is_taken("silent", 3 * poll_idle_seconds)
    silent.close()


@contextmanager
def ears(url: str) -> Iterator[Callable[[float], int]]:
    """How many notifications arrive until so many seconds were silent."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"listen {channel}")

        def count(silent: float) -> int:
            found = 0
            while batch := list(connection.notifies(timeout=silent, stop_after=1)):
                found += len(batch)
            return found

        yield count


def test_what_is_told_at_once_is_told_with_few_notifications(office: Office) -> None:
    """At most one in two milliseconds, whatever the writers do, and at least one after the last of them."""
    with ears(office.url) as count:
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: [office.notifier.ring() for _ in range(500)], range(8)))
        most = (time.monotonic() - begun) / pause_seconds + 2
        assert 1 <= count(0.5) <= most


def test_only_what_is_committed_wakes_anybody(office: Office) -> None:
    with ears(office.url) as count:
        office.put("one")
        assert count(0.3) == 1
        with pytest.raises(Conflict):
            office.put("one")
        assert count(0.1) == 0
        with office.web.unit("office") as unit:
            unit.run("delete from work where tenant = :tenant")
        assert count(0.1) == 0, "nothing was left for anybody"


def test_a_process_that_ends_tells_what_it_has_not_told(office: Office) -> None:
    """A command at the shell commits once and is gone."""
    with ears(office.url) as count:
        short = Notifier(office.url)
        short.ring()
        short.close()
        assert count(0.3) == 1


def test_an_idle_worker_uses_less_than_one_percent_of_a_processor(office: Office) -> None:
    """With its clocks, its log and its outbox; the stand-ins that run in this process too are taken off."""
    parts = office.parts
    tasks = (
        ("log", 0.1, parts.log.step),
        ("tick", 1.0, Tick(parts.database).step),
        ("outbox", 0.1, parts.delivery.step),
    )

    def used(seconds: float) -> float:
        begun, cpu = time.monotonic(), time.process_time()
        threading.Event().wait(seconds)
        return (time.process_time() - cpu) / (time.monotonic() - begun)

    without = used(2)
    office.listener.start()
    until(lambda: office.listener.hears)
    thread = threading.Thread(target=office.worker.run, args=(tasks,), kwargs={"hears": lambda: office.listener.hears})
    thread.start()
    used(1)
    share = used(6) - without
    office.worker.stop()
    thread.join(20)
    assert share < 0.01, f"{share:.2%}"
