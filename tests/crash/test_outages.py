"""P5: PostgreSQL killed under load, connections cut before the reply, a wrong clock, a full bucket, a crowd after an outage."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.errors import TwokeysError
from governance import clock
from governance.wiring import Parts
from tests.kit.mortal import Mortal, insist
from tests.kit.proxy import SEED, Proxy
from tests.kit.replaying import ReplayedCommits
from tests.kit.seams import another, notes
from tests.kit.servers import Bucket
from tests.kit.servicenow import INCIDENT, ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.stories import STORIES, check_record, hurry, people_act, play
from tests.kit.wait import until
from tests.kit.warm import Warm
from tests.kit.world import World, settle


@pytest.fixture(autouse=True)
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


@contextmanager
def working(*workers: Any) -> Iterator[None]:
    """These workers loop in threads of their own, as in a process, until the block is over."""
    threads = [threading.Thread(target=one.run, args=((),)) for one in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in workers:
            one.stop()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def settled(world: World) -> bool:
    """Whether every run is over; a person answers what nobody can know."""
    hurry(world)
    open_ones = world.rows("select run from run where tenant = :tenant and ended_at is null")
    for row in open_ones:
        if world.rows("select 1 from promise where tenant = :tenant and run = :run and state = 'unknown'", **row):
            people_act(world, world.case(row["run"]))
    return not open_ones


def once_each(world: World, runs: Iterable[str]) -> None:
    """Every run has left exactly its one note, every key has one success, and fsck is clean."""
    assert Counter(world.writes("work_notes")) == Counter(f"by {run}" for run in runs)
    ok = world.rows("select key, count(*) as n from receipt where tenant = :tenant and status = 'ok' group by key")
    assert [row["n"] for row in ok] == [1] * len(set(runs))
    assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []


# --- PostgreSQL dies ----------------------------------------------------------------------------------------------------


class Clients:
    """Four clients that start runs until they are stopped; every run that was acknowledged, by its reference."""

    def __init__(self, world: World, workflow: str) -> None:
        self.acknowledged: dict[str, str] = {}
        self.faults: list[TwokeysError] = []
        self._world, self._workflow = world, workflow
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._start, args=(number,)) for number in range(4)]
        for thread in self._threads:
            thread.start()

    def start(self, ref: str) -> str:
        run: str = insist(lambda: self._world.start(self._workflow, value={"sys_id": INCIDENT}, ref=ref), self.faults)
        return run

    def more(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + count, 30)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(40)

    def _start(self, number: int) -> None:
        for n in itertools.count():
            if self._over.is_set():
                return
            ref = f"{number}-{n}"
            self.acknowledged[ref] = self.start(ref)


def killed_under_load(kills: int, directory: Path, slack: SlackSink, servicenow: ServiceNow) -> str:
    """Kill the server so often while clients start runs and two workers drive them. What came of it."""
    away: list[float] = []
    with ExitStack() as stack:
        mortal = Mortal(stack, directory, slack, servicenow)
        world = mortal.world
        workers = [another(world, name, lease_seconds=5) for name in ("one", "two")]
        stack.enter_context(working(*workers))
        clients = Clients(world, world.apply(notes("load", "by ${run.id}")))
        try:
            for _ in range(kills):
                clients.more(40)
                killed = clock.monotonic()
                mortal.kill()
                clients.more(1)
                away.append(round(clock.monotonic() - killed, 1))
        finally:
            clients.stop()
        runs = set(clients.acknowledged.values())
        stored = {row["run"] for row in world.rows("select run from run where tenant = :tenant")}
        assert runs <= stored, f"{len(runs - stored)} acknowledged runs are lost"
        assert {ref: clients.start(ref) for ref in clients.acknowledged} == clients.acknowledged
        until(lambda: settled(world), 60)
        once_each(world, stored)
    assert max(away) < 15
    return f"\npgkill: {len(runs)} runs acknowledged, 0 lost, {len(clients.faults)} orders failed, writes away for {away} s\n"


def test_no_acknowledged_run_is_lost_when_postgresql_is_killed_under_load(
    place: Path, slack_sink: SlackSink, servicenow: ServiceNow, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients repeat what was not answered under the same reference, workers take up what was in hand, writes come back in seconds."""
    came = killed_under_load(2, place, slack_sink, servicenow)
    with capsys.disabled():
        sys.stdout.write(came)


@pytest.mark.deep
def test_no_acknowledged_run_is_lost_when_postgresql_is_killed_eight_times(
    place: Path, slack_sink: SlackSink, servicenow: ServiceNow, capsys: pytest.CaptureFixture[str]
) -> None:
    came = killed_under_load(8, place, slack_sink, servicenow)
    with capsys.disabled():
        sys.stdout.write(came)


# --- connections are cut between request and reply ----------------------------------------------------------------------


def test_a_commit_whose_answer_was_cut_off_is_neither_lost_nor_made_twice(
    world: World, through: tuple[World, Proxy]
) -> None:
    """Three of a hundred requests to the database reach it, and nobody learns the answer; most of these were committed."""
    behind, proxy = through
    proxied = behind.parts
    name = world.apply(notes("cut", "by ${run.id}"))
    faults: list[TwokeysError] = []
    runs = []
    proxy.cut = 0.03
    for n in range(15):
        runs.append(insist(lambda n=n: behind.start(name, value={"sys_id": INCIDENT}, ref=str(n)), faults))  # type: ignore[misc]
        insist(proxied.worker.drain, faults)
        world.expire_leases()

    def over() -> bool:
        world.expire_leases()
        insist(proxied.worker.drain, faults)
        return settled(world)

    until(over, 60)
    proxy.cut = 0.0
    assert proxy.cuts >= 3, f"TWOKEYS_TEST_SEED={SEED}: hardly anything was cut"
    assert len(set(runs)) == 15
    assert len(world.rows("select run from run where tenant = :tenant")) == 15
    once_each(world, runs)


def test_a_call_whose_answer_was_cut_off_is_not_made_twice(world: World) -> None:
    """A third of what ServiceNow answers never arrives: nothing is repeated blindly, and people say what they see."""
    with Proxy(world.servicenow.port, seed=SEED, cut=0.3) as proxy:
        world.parts.admit.connection(
            world.tenant, "servicenow", "dev1", f"http://127.0.0.1:{proxy.port}", world.servicenow.user, world.servicenow.password
        )  # fmt: skip
        name = world.apply(notes("cut", "by ${run.id}"))
        runs = [world.start(name, value={"sys_id": INCIDENT}, ref=str(n)) for n in range(20)]
        until(lambda: world.drain() >= 0 and settled(world), 60)
        assert proxy.cuts >= 3, f"TWOKEYS_TEST_SEED={SEED}: hardly anything was cut"
        unknown = world.rows("select 1 from receipt where tenant = :tenant and status = 'unknown'")
        assert unknown, f"TWOKEYS_TEST_SEED={SEED}: no write was cut"
    once_each(world, runs)


# --- the process clock is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [600, pytest.param(-600, marks=pytest.mark.deep)])
def test_a_worker_whose_clock_is_ten_minutes_off_does_what_others_do(
    sealing_world: World, sealing_warm: Warm, seconds: int
) -> None:
    """Leases, waits and deadlines are the database's; what a worker with another clock left is taken over as usual."""
    world, story = sealing_world, STORIES["retried"]
    story.publish(world)
    sealing_warm.warm(world.tenant)
    for fault in story.faults:
        world.servicenow.plan(**fault)
    assert sealing_warm.play(world, story.name, "killed", clock=seconds, only="after PATCH", at=2).killed
    (lease,) = world.rows(
        "select extract(epoch from lease_until - clock_timestamp())::float as left from work where tenant = :tenant and state = 'leased'"
    )
    assert 20 < lease["left"] <= 30
    world.expire_leases()
    assert sealing_warm.play(world, story.name, "whole", clock=seconds).code == 0
    for ref in ("killed", "whole"):
        check_record(world, play(world, story, ref))
    assert Counter(world.writes("work_notes")) == Counter(["first", "second"] * 2)
    early = world.rows(
        "select 1 from run where tenant = :tenant and abs(extract(epoch from ended_at - clock_timestamp())) > 300"
    )
    assert early == []


# --- a crowd after an outage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.deep)])
def test_a_crowd_that_waited_out_an_outage_is_done_one_by_one_and_each_once(world: World, count: int) -> None:
    """All are due at once when the workers come back: none is lost, none stays behind, no fault is anybody's."""
    name = world.apply(notes("crowd", "by ${run.id}"))
    runs = [world.start(name, value={"sys_id": INCIDENT}, ref=str(n)) for n in range(count)]
    with working(*(another(world, f"worker-{n}") for n in range(3))):
        until(lambda: settled(world), 120)
    once_each(world, runs)
    faults = world.rows("select run, error from run where tenant = :tenant and error <> ''")
    assert faults == []


# --- the bucket ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def full_bucket(
    sealing_parts: Parts, bucket: Bucket, slack_sink: SlackSink, servicenow: ServiceNow, tmp_path: Path
) -> Iterator[tuple[World, Proxy]]:
    """An installation whose way to the bucket leads through a proxy."""
    with Proxy(bucket.account.port, seed=SEED) as proxy:
        endpoint = {"s3_endpoint": f"http://127.0.0.1:{proxy.port}"}
        settings = sealing_parts.settings.model_copy(update=endpoint)
        made = Parts(settings, "full", tmp_path, ReplayedCommits())
        world = settle(made, slack_sink, servicenow)
        yield world, proxy
        world.forget()
        made.close()


@pytest.mark.parametrize(
    "status",
    [
        "507 Insufficient Storage",
        pytest.param("503 Slow Down", marks=pytest.mark.deep),
        pytest.param("500 Internal Error", marks=pytest.mark.deep),
    ],
)
def test_a_bucket_that_takes_nothing_holds_no_run_and_loses_no_evidence(
    full_bucket: tuple[World, Proxy], status: str
) -> None:
    """The bundle stays in the database with what the operator has to read, and is stored when there is room again."""
    world, proxy = full_bucket
    run = world.start(world.apply(notes("sealed", "only")), value={"sys_id": INCIDENT})
    world.until(run, "succeeded")
    while world.parts.log.step():
        pass
    assert world.parts.publisher.step() >= 1
    proxy.refuse = status
    world.hurry()
    world.drain()
    assert proxy.refused >= 1
    row = world.row(
        "select r.error, b.state, length(b.body) as size from run r join bundle b using (tenant, run) where r.tenant = :tenant"
    )
    assert row is not None
    assert (row["state"], row["size"] > 0) == ("built", True)
    assert status.partition(" ")[0] in row["error"]
    assert "was not stored in 3 attempts" in row["error"]
    proxy.refuse = ""
    assert world.seal(run)["state"] == "sealed"
    check_record(world, run)


def test_an_upload_whose_answer_was_cut_off_is_stored_once(full_bucket: tuple[World, Proxy]) -> None:
    """Key by content and a conditional put: the repeat finds its own bytes."""
    world, proxy = full_bucket
    name = world.apply(notes("sealed", "only"))
    runs = [world.start(name, value={"sys_id": INCIDENT}, ref=str(n)) for n in range(2)]
    for run in runs:
        world.until(run, "succeeded")
    while world.parts.log.step():
        pass
    world.parts.publisher.step()
    proxy.cut = 0.5
    until(lambda: world.drain() >= 0 and settled(world) and all(world.seal(run) for run in runs), 60)
    assert proxy.cuts >= 1, f"TWOKEYS_TEST_SEED={SEED}: nothing was cut"
    proxy.cut = 0.0
    for run in runs:
        check_record(world, run)
