"""What one process of bench/commit.py does: runs of ours with the real worker, the same in DBOS, or a bare loop of two commits."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from engine.canonical import jcs
from engine.gate.action import Action, FieldSpec, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.gate.verdict import Answer
from governance import clock
from governance.commands.authority import Actor, token_ref
from governance.connectors.registry import Registry
from governance.drive import Drive
from governance.settings import Settings
from governance.store.dispatch import Lease
from governance.wiring import Parts
from governance.worker import Worker

TENANT, TOKEN = "bench", "tk_bench"
EFFECTS = 5
WARM = 10
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
    calls_per_min = None

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
        findings = {
            "schema": "twokeys.policy.findings/v1",
            "echo": {"request_id": "?", "action_sha256": "?"},
            "policy": {"package": "twokeys.main", "revision": self._revision},
            "denials": [],
            "holds": [],
            "grants": [{"code": "listed_write", "message": "the operation is on the tenant's list"}],
            "obligations": [{"type": "receipt", "level": "full"}],
        }
        self._pieces = jcs(findings).split(b"?")

    def evaluate(self, input_bytes: bytes) -> Answer:
        asked = json.loads(input_bytes)
        before, between, after = self._pieces
        names = asked["action"]["sha256"].encode(), asked["request"]["id"].encode()
        return Answer(b"".join((before, names[0], between, names[1], after)), self._revision, "in-process", "1")


class Unsealed:
    """Bundles are outside the budget and DBOS has nothing like them: none is made."""

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


def parts_for(url: str, system: str, directory: Path) -> Parts:
    settings = Settings(
        env="test", deployment="bench", database_url=url, master_key="5a" * 32, public_url="http://127.0.0.1:1",
        s3_bucket="unused", s3_access_key="unused", s3_secret_key="unused", policy_engine="embedded",
        slack_api_base="http://127.0.0.1:1/api/", slack_signing_secret="0123456789abcdef", slack_app_id="A0BENCH", lease_seconds=3600,
    )  # fmt: skip
    parts = Parts(settings, "bench", directory)
    parts.__dict__["registry"] = Registry({"instant": Instant()})
    parts.publisher.may_sign = lambda _: True  # type: ignore[method-assign]  # there is no bucket here
    parts.budget.excess = lambda _: ""  # type: ignore[method-assign]  # and so nothing that a log could be behind of
    # The log is placed and signed, and not published: there is no bucket here, and DBOS has nothing like it.
    parts.__dict__["publisher"] = type("Unpublished", (), {"may_sign": lambda _, tenant: True})()
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
    Watched._seals = lambda _: 0  # type: ignore[method-assign,assignment]
    return Watched(parts.database, hands, name=f"bench-{clock.random_hex(4)}", lease_seconds=3600, threads=threads)


def start(parts: Parts) -> float:
    """Start one run; the seconds of processor time that it took."""
    begun = time.thread_time()
    parts.start.by_hand(TENANT, Actor("token", token_ref(TOKEN)), "five", {}, "")
    return time.thread_time() - begun


def drive(parts: Parts, worker: Watched) -> None:
    """Take up what is runnable, as the worker's loop does, in this thread."""
    for lease in worker._dispatch.claim(worker._name, 16, 3600):
        worker._guarded(lease)


def ours_alone(parts: Parts, runs: int, worker: Watched) -> float:
    started = 0.0
    for _ in range(runs):
        started += start(parts)
        drive(parts, worker)
    return started


def ours(url: str, system: str, concurrent: int, runs: int, directory: Path) -> dict[str, float]:
    """One process of ours: start its share, claim, five effects, end; where several are in hand, with the log's sequencer beside it."""
    parts = parts_for(url, system, directory)
    assert_durable(parts)
    worker = worker_of(parts, max(concurrent, 1))
    Watched.wanted = -1
    ours_alone(parts, WARM, worker)
    engine = next(iter(parts.policies._engines.values()))[0].pid if system == "opa" else 0
    go()
    Watched.commits, calls = 0, parts.database.commits
    cpu, child = time.process_time(), cpu_of(engine)
    thread = threading.Thread(target=worker.run, args=((("log", 0.1, parts.log.step),),))
    if concurrent == 1:
        started = ours_alone(parts, runs, worker)
    else:
        thread.start()
        with ThreadPoolExecutor(concurrent) as pool:
            started = sum(pool.map(lambda _: start(parts), range(runs)))
    stopped()
    cpu, child, calls = time.process_time() - cpu, cpu_of(engine) - child, parts.database.commits - calls
    if concurrent > 1:
        worker.stop()
        thread.join()
    parts.close()
    return {
        "client_cpu_ms": 1000 * (cpu - started) / runs, "start_cpu_ms": 1000 * started / runs, "opa_cpu_ms": 1000 * child / runs,
        "commits_per_run": Watched.commits / runs, "writing_calls_per_run": (calls - runs) / runs,
    }  # fmt: skip


def go() -> None:
    """Ready; begin when everybody else is."""
    print("ready", flush=True)
    sys.stdin.readline()


def stopped() -> None:
    """What was to be started is; go on until all runs of the cell have ended."""
    print("started", flush=True)
    sys.stdin.readline()


def assert_durable(parts: Parts) -> None:
    """Nothing is bought by a connection that waits for less."""
    with parts.database.unit(TENANT, write=False) as unit:
        assert unit.run("show synchronous_commit").scalar_one() == "on"
    assert parts.database.call("show synchronous_commit", (), write=False) == [("on",)]


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
    found = closed_loop(five, concurrent, runs)
    DBOS.destroy()
    return found


def bare(url: str, concurrent: int, runs: int) -> dict[str, float]:
    """The least that a durable effect costs: two commits of one row each, plain psycopg, nothing else."""
    mine = threading.local()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "create table if not exists bare (id bigint generated always as identity primary key, what text not null)"
        )

    def five() -> None:
        if not hasattr(mine, "connection"):
            mine.connection = psycopg.connect(url, autocommit=True)
        for n in range(EFFECTS):
            mine.connection.execute("insert into bare (what) values (%s)", (f"intent {n}",))
            mine.connection.execute("insert into bare (what) values (%s)", (f"receipt {n}",))

    return closed_loop(five, concurrent, runs)


def closed_loop(call: Callable[[], Any], concurrent: int, runs: int) -> dict[str, float]:
    go()
    cpu, begun = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(concurrent) as pool:
        list(pool.map(lambda _: call(), range(runs)))
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    stopped()
    return {"runs_per_s": runs / took, "client_cpu_ms": 1000 * cpu / runs}


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
