"""How fast a long run of a workflow in Python goes on: real rows in PostgreSQL, a real component in a real host process.

Asserts that a journal of 10,000 events resumes within a bound of the time that an empty run takes its first turn in, that the
time grows with the events and no faster, and that a worker which still holds the run reads and sends new events only.
Wall time, the best of several, because the host is another process. Prints one JSON object; `--profile` says where our
side of it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.ids import PromiseId
from engine.kernel import Finished, Signalled, Started, input_payload
from engine.program import function_commands as do
from engine.program.function import Turn
from engine.program.function_code import component_of
from engine.program.programs import Function
from governance import clock
from governance.local import postgres
from governance.local.children import Children
from governance.stages.hosts import Hosts, _order
from governance.stages.turn import Asking, Turns
from governance.store import cases, migrate, people
from governance.store.case import Case, Origin
from governance.store.unit import Database

TENANT = "bench"
CODE = b"""
from twokeys import workflow


@workflow
async def many(ctx, input):
    total = 0
    for n in range(input["calls"]):
        await ctx.now()
        done = await ctx.invoke("bench.touch", {"target": "thing/%d" % n, "fields": {"n": n}})
        total += done["n"]
    while await ctx.wait_signal("more"):
        total += 1
    return total
"""
EVENTS_PER_CALL = 6
SHORT, LONG = 5_000, 10_000
TIMES = 12
SECONDS_MAX = 1.5  # of LONG events, where nothing else runs; about 1 s is what was asked for
EMPTY_RATIO_MAX = 250  # the resume of LONG events over an empty run's first turn
GROWTH_MAX = 2.4  # LONG over SHORT
HELD_GROWTH_MAX = 1.6  # of what may depend on new events only


class Bench:
    """One tenant, one component, and its host."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.program = Function(component_of({"many.py": CODE}))
        self.hosts = Hosts()
        self.turns = Turns(self.hosts, catalog=dict, random_bytes=clock.random_bytes)
        with self.database.unit(TENANT) as unit:
            people.add_tenant(unit, name="Bench", environment="dev", salt_key=b"")

    def run(self, calls: int) -> str:
        """A new run with its input and no journal."""
        run, salt_key = clock.random_hex(16), bytes(32)
        kept = input_payload(salt_key, {"calls": calls})
        origin = Origin(
            tenant=TENANT, run=run, workspace="main", workflow="many", version="1", definition=self.program.digest,
            trigger_type="manual", trigger_ref=run, started_by="p", on_behalf_of="", owner="p", salt_key=salt_key,
            execution_key=run, input=kept.commit, created_at=clock.now_utc(), root=run,
        )  # fmt: skip
        with self.database.unit(TENANT) as unit:
            assert cases.insert(unit, origin, "running")
            insert = "insert into payload (tenant, run, digest, body) values (:tenant, :run, :digest, :body)"
            unit.run(insert, run=run, digest=kept.commit, body=kept.body)
        return run

    def load(self, run: str) -> Case:
        with self.database.unit(TENANT, write=False, statement_seconds=60) as unit:
            return cases.load(unit, run)

    def turn(self, case: Case) -> Turn:
        """As the worker does it: ask the host, append what it says."""
        asking = self.turns.prepare(case, self.program)
        assert asking is not None
        turn = self.turns.ask(case, asking)
        self.turns.take(case, asking, turn)
        return turn

    def resume(self, run: str) -> Case:
        case = self.load(run)
        self.turn(case)
        return case

    def grown(self, events: int) -> str:
        """A stored run that has done this much and whose last result has just come; its code would do exactly that."""
        calls = events // EVENTS_PER_CALL
        run = self.run(calls)
        case = self.load(run)
        with self.database.unit(TENANT, statement_seconds=60) as unit:
            for n in range(calls):
                self._call(case, n)
                cases.commit(unit, case, ())
                case.committed()
        return run

    def _call(self, case: Case, n: int) -> None:
        asking = self.turns.prepare(case, self.program)
        assert asking is not None
        child = 2 * n + 1
        proposal = do.proposed(child, "bench.touch", {"target": f"thing/{n}", "fields": {"n": n}})
        commands = (do.Now(child - 1), do.Invoke(child, proposal), do.Await("Single", [child]))
        self.turns.take(case, asking, Turn(commands, commands[2]))
        promise = PromiseId(case.origin.run).child(child)
        case.accept(Started(promise, 1))
        case.accept(Finished(promise, 1, True, {"n": n}))


def best(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best time of each, taken in turn, so that a busy minute of the machine strikes them all."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(TIMES):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - begun)
    return {name: min(times) for name, times in found.items()}


class Held:
    """A run that the worker has in hand; each turn takes up one new signal."""

    def __init__(self, bench: Bench, run: str) -> None:
        self._bench = bench
        self._case = bench.resume(run)
        self._asking: Asking | None = None
        self.sent_bytes = 0

    def read(self) -> None:
        """What the worker does before it asks: one new event becomes one new item of the order to the host."""
        self._case.committed()
        self._case.accept(Signalled("more", True))
        feed = self._case.feed
        assert feed is not None
        known = len(feed.items)
        self._asking = self._bench.turns.prepare(self._case, self._bench.program)
        assert self._asking is not None
        self.sent_bytes = len(_order(feed, known, self._asking.now, self._asking.entropy))

    def turn(self) -> None:
        """The host's part, from the start of the author's code, and what follows from it."""
        assert self._asking is not None
        turn = self._bench.turns.ask(self._case, self._asking)
        self._bench.turns.take(self._case, self._asking, turn)


def measured(bench: Bench) -> tuple[float, dict[int, dict[str, float]]]:
    """An empty run's first turn, and everything about the short and the long run."""
    bench.resume(bench.run(1))  # the host is up
    fresh = bench.run(1)
    runs = {events: bench.grown(events) for events in (SHORT, LONG)}
    in_hand = {events: Held(bench, run) for events, run in runs.items()}
    works: dict[str, Callable[[], object]] = {"empty": lambda: bench.resume(fresh)}
    for events, run in runs.items():
        works[f"load_s {events}"] = partial(bench.load, run)
        works[f"resume_s {events}"] = partial(bench.resume, run)
        works[f"held_read_s {events}"] = in_hand[events].read
        works[f"held_turn_s {events}"] = in_hand[events].turn
    found = best(works)
    return found["empty"], {
        events: {
            "events": bench.load(run).history.version,
            **{name.split()[0]: value for name, value in found.items() if name.endswith(f" {events}")},
            "held_sent_bytes": in_hand[events].sent_bytes,
        }
        for events, run in runs.items()
    }


def faults_of(short: dict[str, float], long: dict[str, float], empty: float) -> list[str]:
    growth = {name: long[name] / short[name] for name in long}
    faults = [
        f"{name} grows by {growth[name]:.2f}" for name in ("resume_s", "held_turn_s") if growth[name] > GROWTH_MAX
    ]
    faults += [
        f"{name} grows by {growth[name]:.2f}"
        for name in ("held_read_s", "held_sent_bytes")
        if growth[name] > HELD_GROWTH_MAX
    ]
    if long["resume_s"] > SECONDS_MAX:
        faults.append(f"{LONG} events resume in {long['resume_s']:.2f} s")
    if long["resume_s"] > EMPTY_RATIO_MAX * empty:
        faults.append(f"{LONG} events resume in {long['resume_s'] / empty:.0f} times an empty run's first turn")
    return faults


def bench_all(url: str) -> dict[str, Any]:
    bench = Bench(url)
    empty, found = measured(bench)
    short, long = found[SHORT], found[LONG]
    bench.hosts.close()
    bench.database.close()
    rounded = [{name: round(value, 5) for name, value in one.items()} for one in (short, long)]
    return {
        "bench": "resume", "processors": os.cpu_count(), "load_average": os.getloadavg()[0], "empty_s": round(empty, 5),
        "times_empty": round(long["resume_s"] / empty, 1), "short": rounded[0], "long": rounded[1],
        "growth": {name: round(long[name] / short[name], 2) for name in long}, "faults": faults_of(short, long, empty),
    }  # fmt: skip


def profile(url: str) -> None:
    bench = Bench(url)
    run = bench.grown(LONG)
    bench.resume(run)
    profiler = cProfile.Profile()
    profiler.enable()
    bench.resume(run)
    profiler.disable()
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)
    bench.hosts.close()


def main() -> int:
    options = argparse.ArgumentParser(description="How fast a long run of a workflow in Python goes on.")
    options.add_argument("--profile", action="store_true", help="print where our side of the time goes instead")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as place:
        directory = Path(place)
        directory.chmod(0o711)
        with Children(directory / "logs") as children:
            server = postgres.start(children, directory)
            application = server.create_application("bench")
            migrate.upgrade(application.owner_url, postgres.APP_ROLE)
            if given.profile:
                profile(application.app_url)
                return 0
            found = bench_all(application.app_url)
    print(json.dumps(found, indent=1))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
