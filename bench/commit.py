"""Where the result commit stands: the real worker on the real tables beside DBOS, on one durable PostgreSQL, in one run.

A run is five effects that policy allows. Ours has an in-process connector that answers at once, with policy asked of the
embedded OPA (`opa`) or answered in process (`floor`); DBOS has five steps that return at once. What is measured, and what
it showed, stands in docs/decisions/0002. Prints one JSON object; `--profile` prints where our time goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from engine.canonical import jcs, read_json
from engine.gate.action import Action, FieldSpec, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.gate.verdict import Answer
from governance import clock
from governance.commands.authority import Actor, token_ref
from governance.connectors.registry import Registry
from governance.drive import Drive
from governance.local import postgres
from governance.local.children import Children
from governance.settings import Settings
from governance.store import migrate
from governance.store.dispatch import Lease
from governance.wiring import Parts
from governance.worker import Worker

TENANT, TOKEN = "bench", "tk_bench"
EFFECTS = 5
ROUNDS = 3
WARM = 10
RUNS = {1: 60, 8: 160}
SYSTEMS = ("opa", "floor", "dbos")
STEP = (
    "  - {{id: s{n}, kind: action, connector: instant, operation: touch, target: thing, risk: low, "
    'fields: {{text: "{n} ${{run.id}}"}}}}\n'
)
WORKFLOW = """
name: five
version: "1"
title: Five
description: Five effects that policy allows.
trigger: {kind: manual}
inputs: {type: object, additionalProperties: false, properties: {}}
connectors: [instant]
effects: [instant.touch]
risk_ceiling: low
steps:
""" + "".join(STEP.format(n=n) for n in range(EFFECTS))


# --- our side ---------------------------------------------------------------------------------------------------------


class Instant:
    """An outside that does everything at once."""

    specs = (
        OperationSpec(
            "instant", "touch", "write", "thing", (FieldSpec("text"),), reversible=True, reversal="inverse", summary="Touch",
            result_fields=("done",),
        ),
    )  # fmt: skip

    def observe(self, action: Action) -> Mapping[str, str]:
        return {"version": "1"}

    def perform(self, permit: Permit) -> Outcome:
        return Outcome("ok", {"method": "touch"}, {"status": 200}, {"done": "yes"})

    def look(self, permit: Permit) -> Outcome | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class Allows:
    """A policy that is answered in this process: what is left when the engine costs nothing."""

    def __init__(self, revision: str) -> None:
        self._revision = revision

    def evaluate(self, input_bytes: bytes) -> Answer:
        asked = read_json(input_bytes)
        findings = {
            "schema": "twokeys.policy.findings/v1",
            "echo": {"request_id": asked["request"]["id"], "action_sha256": asked["action"]["sha256"]},
            "policy": {"package": "twokeys.main", "revision": self._revision},
            "denials": [],
            "holds": [],
            "grants": [{"code": "listed_write", "message": "the operation is on the tenant's list"}],
            "obligations": [{"type": "receipt", "level": "full"}],
        }
        return Answer(jcs(findings), self._revision, "in-process", "1")


class Unsealed:
    """Bundles are outside the budget and DBOS has nothing like them: a seal stays leased and is not made."""

    def run(self, lease: Lease) -> None:
        """Nothing."""


class Watched(Worker):
    """The worker, telling how many runs have ended."""

    ended = 0
    wanted = 0
    commits = 0
    done = threading.Event()

    def _in_hand(self, lease: Lease) -> Drive:
        drive = super()._in_hand(lease)
        commit = drive.commit

        def counted() -> None:
            commit()
            Watched.commits += 1
            if drive.case.ended:
                Watched.ended += 1
                if Watched.ended == Watched.wanted:
                    Watched.done.set()

        drive.commit = counted  # type: ignore[method-assign]
        return drive


class Inline:
    """Judging in the driving thread, so that a profile sees it."""

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args))
        return future


def parts_for(url: str, system: str, directory: Path) -> Parts:
    settings = Settings(
        env="test", deployment="bench", database_url=url, master_key="5a" * 32, public_url="http://127.0.0.1:1",
        s3_bucket="unused", s3_access_key="unused", s3_secret_key="unused", policy_engine="embedded",
        slack_api_base="http://127.0.0.1:1/api/", slack_signing_secret="0123456789abcdef", slack_app_id="A0BENCH", lease_seconds=3600,
    )  # fmt: skip
    parts = Parts(settings, "bench", directory)
    parts.__dict__["registry"] = Registry({"instant": Instant()})
    if system == "floor":
        parts.__dict__["policies"] = type("InProcess", (), {"of": lambda _, t, r: Allows(r), "close": lambda _: None})()
    return parts


def set_up(parts: Parts) -> None:
    """A tenant whose policy lists the operation, with one person and the workflow."""
    parts.admit.tenant(TENANT, "Bench", "prod")
    parts.admit.policy(TENANT, {"connectors": ["instant"], "allowed_operations": {"instant": ["touch"]}})
    person = parts.admit.person(TENANT, None, name="Author", level=6)
    parts.admit.token_known(TENANT, person, TOKEN, "bench")
    parts.admit.connection(TENANT, "instant", "here", "http://127.0.0.1:1", "user", "secret")
    parts.publish.apply(TENANT, Actor("token", token_ref(TOKEN)), WORKFLOW.encode(), "five.yaml")


def worker_of(parts: Parts, threads: int) -> Watched:
    hands = replace(parts.worker._tools.hands, seal=Unsealed())
    return Watched(parts.database, hands, name=f"bench-{clock.random_hex(4)}", lease_seconds=3600, threads=threads)


def start(parts: Parts) -> None:
    parts.start.by_hand(TENANT, Actor("token", token_ref(TOKEN)), "five", {}, "")


def drive(parts: Parts, worker: Watched) -> None:
    """Take up what is runnable, as the worker's loop does, in this thread."""
    for lease in worker._dispatch.claim(worker._name, 16, 3600):
        worker._guarded(lease)


def ours_alone(parts: Parts, runs: int, worker: Watched) -> None:
    for _ in range(runs):
        start(parts)
        drive(parts, worker)


def ours(url: str, system: str, concurrent: int, runs: int, directory: Path) -> dict[str, float]:
    """One measurement in this process: start, claim, five effects, end; at 8 with the log's sequencer beside it."""
    parts = parts_for(url, system, directory)
    worker = worker_of(parts, max(concurrent, 1))
    Watched.wanted = -1
    ours_alone(parts, WARM, worker)
    engine = next(iter(parts.policies._engines.values()))[0].pid if system == "opa" else 0
    Watched.ended, Watched.wanted, Watched.commits = 0, runs, 0
    cpu, child, begun = time.process_time(), cpu_of(engine), time.perf_counter()
    thread = threading.Thread(target=worker.run, args=((("log", 0.1, parts.log.step),),))
    if concurrent == 1:
        ours_alone(parts, runs, worker)
    else:
        with ThreadPoolExecutor(concurrent) as pool:
            list(pool.map(lambda _: start(parts), range(runs)))
        thread.start()
        assert Watched.done.wait(120), f"{Watched.ended} of {runs} runs ended"
    took, cpu, child = time.perf_counter() - begun, time.process_time() - cpu, cpu_of(engine) - child
    if concurrent > 1:
        worker.stop()
        thread.join()
    states = run_states(parts)
    assert states == {"succeeded"}, states
    parts.close()
    return {
        "runs_per_s": runs / took, "client_cpu_ms": 1000 * cpu / runs, "opa_cpu_ms": 1000 * child / runs,
        "commits_per_run": Watched.commits / runs,
    }  # fmt: skip


def run_states(parts: Parts) -> set[str]:
    """How the runs of the tenant stand."""
    with parts.database.unit(TENANT, write=False) as unit:
        return {row[0] for row in unit.all("select distinct state from run where tenant = :tenant")}


# --- DBOS -------------------------------------------------------------------------------------------------------------


def theirs(url: str, concurrent: int, runs: int) -> dict[str, float]:
    """The same shape in DBOS: a workflow of five steps, started and awaited by as many threads."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False})

    @DBOS.step()
    def touch(n: int) -> str:
        return f"done {n}"

    @DBOS.workflow()
    def five() -> str:
        return "".join(touch(n) for n in range(EFFECTS))

    DBOS.launch()
    for _ in range(WARM):
        five()
    cpu, begun = time.process_time(), time.perf_counter()
    if concurrent == 1:
        for _ in range(runs):
            five()
    else:
        with ThreadPoolExecutor(concurrent) as pool:
            list(pool.map(lambda _: five(), range(runs)))
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    DBOS.destroy()
    return {"runs_per_s": runs / took, "client_cpu_ms": 1000 * cpu / runs}


# --- measuring --------------------------------------------------------------------------------------------------------


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_counts(url: str, database: str) -> tuple[int, int, int]:
    """Transactions of one database, flushes of the WAL, and bytes of it; other processes have ended, so nothing is pending."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select (select xact_commit from pg_stat_database where datname = %s), "
            "(select coalesce(sum(fsyncs), 0)::bigint from pg_stat_io where object = 'wal'), "
            "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
            (database,),
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def measured(
    server: postgres.Postgres, database: postgres.Database, system: str, concurrent: int, directory: Path
) -> dict[str, float]:
    """One cell of one round in a process of its own, with what the server counted meanwhile."""
    url = database.owner_url if system == "dbos" else database.app_url
    order = {
        "system": system,
        "concurrent": concurrent,
        "runs": RUNS[concurrent],
        "url": url,
        "directory": str(directory),
    }
    time.sleep(0.2)
    before = server_counts(server.superuser_url, database.name)
    done = subprocess.run(
        [sys.executable, __file__, "--cell", json.dumps(order)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise SystemExit(f"{system} at {concurrent} failed:\n{done.stderr[-4000:]}")
    time.sleep(0.2)
    after = server_counts(server.superuser_url, database.name)
    runs = RUNS[concurrent] + WARM
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {
        **found,
        "server_transactions": (after[0] - before[0]) / runs,
        "wal_flushes": (after[1] - before[1]) / runs,
        "wal_kb": (after[2] - before[2]) / runs / 1000,
    }


def durable(url: str) -> dict[str, str]:
    """The settings without which the numbers mean nothing; the bench refuses to run on others."""
    names = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
    with psycopg.connect(url) as connection:
        found = {name: str(connection.execute(f"show {name}").fetchone()[0]) for name in names}  # type: ignore[index]
    assert found["fsync"] == found["synchronous_commit"] == found["full_page_writes"] == "on", found
    return found


def medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
    found["runs_per_s_range"] = [round(f(one["runs_per_s"] for one in rounds), 1) for f in (min, max)]
    return found


def bench(directory: Path) -> dict[str, Any]:
    with Children(directory / "logs") as children:
        server = postgres.start(children, directory)
        settings = durable(server.superuser_url)
        application, other = server.create_application("bench"), server.create_application("dbos")
        migrate.upgrade(application.owner_url, postgres.APP_ROLE)
        parts = parts_for(application.app_url, "floor", directory)
        set_up(parts)
        parts.close()
        rounds: dict[str, list[dict[str, float]]] = {}
        for n in range(ROUNDS):
            for concurrent in RUNS:
                for system in SYSTEMS[n % 3 :] + SYSTEMS[: n % 3]:
                    database = other if system == "dbos" else application
                    cell = measured(server, database, system, concurrent, directory)
                    rounds.setdefault(f"{system} c{concurrent}", []).append(cell)
                    sys.stderr.write(f"round {n + 1} {system} c{concurrent}: {cell['runs_per_s']:.0f} runs/s\n")
    cells = {name: medians(rounds[name]) for name in sorted(rounds)}
    ratios = {}
    for system in ("floor", "opa"):
        for concurrent in RUNS:
            pairs = zip(rounds[f"{system} c{concurrent}"], rounds[f"dbos c{concurrent}"], strict=True)
            per_round = [a["runs_per_s"] / b["runs_per_s"] for a, b in pairs]
            ratios[f"{system} c{concurrent}"] = {
                "runs_per_s": round(statistics.median(per_round), 2),
                "each_round": [round(one, 2) for one in per_round],
                "client_cpu": round(
                    cells[f"{system} c{concurrent}"]["client_cpu_ms"] / cells[f"dbos c{concurrent}"]["client_cpu_ms"], 2
                ),
            }
    return {
        "bench": "commit", "effects_per_run": EFFECTS, "rounds": ROUNDS, "processors": os.cpu_count(), "load_average": os.getloadavg()[0],
        "postgres": settings, "cells": cells, "ratios_to_dbos": ratios,
    }  # fmt: skip


def profile(directory: Path) -> None:
    """Where the time of our runs goes, alone, policy in process."""
    with Children(directory / "logs") as children:
        server = postgres.start(children, directory)
        durable(server.superuser_url)
        application = server.create_application("bench")
        migrate.upgrade(application.owner_url, postgres.APP_ROLE)
        parts = parts_for(application.app_url, "floor", directory)
        set_up(parts)
        worker = worker_of(parts, 1)
        worker._tools.side = Inline()
        Watched.wanted = -1
        ours_alone(parts, WARM, worker)
        for _ in range(RUNS[1]):
            start(parts)
        profiler = cProfile.Profile()
        profiler.enable()
        while Watched.ended < RUNS[1] + WARM:
            drive(parts, worker)
        profiler.disable()
        parts.close()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler).strip_dirs().sort_stats(order).print_stats(15 if order == "tottime" else 45)


def main() -> None:
    options = argparse.ArgumentParser(description="Our result commit beside DBOS, on one durable PostgreSQL.")
    options.add_argument("--cell", default="", help=argparse.SUPPRESS)
    options.add_argument("--profile", action="store_true", help="print where our own time goes instead")
    given = options.parse_args()
    if given.cell:
        order = json.loads(given.cell)
        args = (order["concurrent"], order["runs"])
        if order["system"] == "dbos":
            found = theirs(order["url"], *args)
        else:
            found = ours(order["url"], order["system"], *args, Path(order["directory"]))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as place:
        Path(place).chmod(0o711)
        if given.profile:
            profile(Path(place))
        else:
            print(json.dumps(bench(Path(place)), indent=1))


if __name__ == "__main__":
    main()
