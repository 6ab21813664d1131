"""P5: minutes of random work while workers, PostgreSQL and ServiceNow are killed: nothing twice, nothing lost, no memory grows."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CallerError, Conflict, OperatorError, Refused
from governance import clock
from governance.policy.embedded import resident_bytes
from tests.kit.mortal import Mortal, insist
from tests.kit.seams import notes
from tests.kit.servers import Bucket
from tests.kit.servicenow import INCIDENT, ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.stories import CHILD, HEAD, TASK, cases_of, hurry, people_act
from tests.kit.wait import until
from tests.kit.warm import ROOT

SECONDS = float(os.environ.get("TWOKEYS_TEST_SOAK_SECONDS") or 600)
SEED = os.environ.get("TWOKEYS_TEST_SEED") or clock.random_hex(4)
OPEN_MAX = 12
# Each of a worker's nine threads has a heap of its own that fills up at its own pace. A bundle that stayed in memory would be
# 0.3 MB per run, and there are hundreds of runs.
GROWTH_BYTES_MAX = 48 * 1024 * 1024
WORKER = [sys.executable, "-c", "from governance.cli import main; main()", "worker"]
# Every note says whose it is, so that whoever is asked what happened can see it.
KEYS = """
  - {id: raise, kind: action, connector: servicenow, operation: update, target: "${input.sys_id}", risk: med,
     fields: {work_notes: "raised ${run.id}"}}
  - {id: close, kind: action, connector: servicenow, operation: close, target: "${input.sys_id}", risk: high,
     fields: {close_code: Solved (Permanently), close_notes: closed, comments: "closed ${run.id}"}}
"""
FAMILY = """async def two_children(ctx, input):
    calls = await ctx.join_set()
    for n in range(2):
        await calls.submit_child("note-it", {"sys_id": input["sys_id"], "note": f"child {n} of {input['word']}"})
    return [each.value if each.ok else each.error_class for each in await calls.all()]
"""
MINE = {
    "three-notes": notes("three-notes", *(f"{n} ${{run.id}}" for n in range(3))),
    "keyed": notes("keyed", "0 ${run.id}")
    .replace("risk_ceiling: low", "risk_ceiling: high")
    .replace("effects: [", "effects: [servicenow.close, ")
    + KEYS,
    "note-it": HEAD + CHILD,
    "two-children": HEAD + FAMILY,
    "ask-somebody": HEAD + TASK,
}
WORKFLOWS = ("three-notes", "keyed", "two-children", "ask-somebody")
# What a person may be told while the world moves: nothing is wrong with any of it, they try again.
MOVED = (OperatorError, Conflict, Refused, CallerError)


class Workers:
    """Two worker processes as an installation has them: one is killed now and then, the other one only has to live."""

    def __init__(self, mortal: Mortal, directory: Path) -> None:
        values = {k: v for k, v in mortal.settings.model_dump().items() if v not in ("", None)}
        self._environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        self._environment |= {f"TWOKEYS_{name.upper()}": str(value) for name, value in values.items()}
        self._directory = directory
        self.steady, self.mortal = self._start("steady"), self._start("mortal")
        self.killed = 0

    def kill(self) -> None:
        self.mortal.kill()
        self.mortal.wait()
        self.killed += 1
        self.mortal = self._start("mortal")

    def stop(self) -> None:
        for one in (self.steady, self.mortal):
            one.terminate()
        for one in (self.steady, self.mortal):
            with suppress(subprocess.TimeoutExpired):
                one.wait(30)
            one.kill()
            one.wait()

    def said(self, name: str) -> str:
        return (self._directory / f"{name}.out").read_text(errors="replace")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.out").open("ab") as out:
            return subprocess.Popen(WORKER, cwd=ROOT, env=self._environment, stdout=out, stderr=out)


class Soak:
    """Random work, random deaths, and the people who answer what the runs ask."""

    def __init__(self, mortal: Mortal, workers: Workers, servicenow: ServiceNow) -> None:
        self.mortal, self.workers, self.world = mortal, workers, mortal.world
        self.servicenow = servicenow
        self.chance = random.Random(SEED)
        self.runs: list[str] = []
        self.did: Counter[str] = Counter()
        self.memory: list[int] = []
        for name, text in MINE.items():
            file = f"{name}.yaml" if text.lstrip().startswith("name:") else f"{name.replace('-', '_')}.py"
            self.world.parts.publish.apply(self.world.tenant, self.world.actor("rita"), text.encode(), file)

    def go(self, seconds: float) -> None:
        begun = clock.monotonic()
        next_deed = begun + 5
        while clock.monotonic() < begun + seconds:
            assert self.workers.steady.poll() is None, self.workers.said("steady")[-3000:]
            if len(self.open_runs()) < OPEN_MAX:
                self.start()
            self.people()
            if clock.monotonic() > begun + min(60.0, seconds / 3):  # by then it has done everything once
                self.memory.append(resident_bytes(self.workers.steady.pid))
            if clock.monotonic() > next_deed:
                self.deed()
                next_deed = clock.monotonic() + self.chance.uniform(1, 8)

    def start(self) -> None:
        number = len(self.runs)
        value: dict[str, Any] = {"sys_id": INCIDENT}
        workflow = self.chance.choice(WORKFLOWS)
        if workflow == "two-children":
            value["word"] = f"run {number}"
        self.runs.append(insist(lambda: self.world.start(workflow, value=value, ref=str(number)), []))

    def open_runs(self) -> list[str]:
        sql = "select run from run where tenant = :tenant and ended_at is null and parent = ''"
        return [row["run"] for row in insist(lambda: self.world.rows(sql), [])]

    def people(self) -> None:
        """They look at everything that is open and do what they can; what fails, they do again in the next round."""
        self.servicenow.restart_if_down()  # a planned crash comes with the next write, whenever that is
        for run in self.open_runs():
            with suppress(*MOVED, OSError):
                for case in cases_of(self.world, run):
                    people_act(self.world, case, cause=f"a disk of {run}")

    def deed(self) -> None:
        """One death, or one fault of the outside."""
        what: Callable[[], object] = self.chance.choice(
            [self.kill_worker] * 4
            + [self.kill_postgres, self.kill_servicenow, self.crash_servicenow]
            + [self.fault] * 3
        )
        what()
        self.did[what.__name__] += 1

    def kill_worker(self) -> None:
        self.workers.kill()

    def kill_postgres(self) -> None:
        self.mortal.kill()

    def kill_servicenow(self) -> None:
        self.servicenow.kill()
        self.servicenow.restart_if_down()

    def crash_servicenow(self) -> None:
        self.servicenow.restart_if_down()
        self.servicenow.plan("crash_before_answer", method="PATCH", times=1)

    def fault(self) -> None:
        self.servicenow.restart_if_down()
        fault = self.chance.choice(["drop_connection", "error_500", "too_many_requests"])
        self.servicenow.plan(fault, times=self.chance.randint(1, 3), seconds=0)

    def finish(self) -> None:
        """Nothing dies any more: everything comes to its end, and is sealed."""
        self.servicenow.restart_if_down()
        self.servicenow.call("DELETE", "/_control/faults")

        def over() -> bool:
            self.people()
            insist(lambda: hurry(self.world), [])
            sealed = "select count(*) as n from bundle where tenant = :tenant and state = 'sealed'"
            runs = "select count(*) as n from run where tenant = :tenant"
            return not self.open_runs() and self.world.rows(sealed) == self.world.rows(runs)

        until(over, 180)

    def check(self) -> str:
        """What it came to."""
        world = self.world
        written = Counter(world.writes("work_notes") + world.writes("comments"))
        twice = {note: count for note, count in written.items() if count > 1}
        assert twice == {}, twice
        states = Counter(world.case(run).state for run in self.runs)
        ok = world.rows(
            "select count(*) as n from receipt r join promise p on p.tenant = r.tenant and p.run = r.run and p.promise = r.promise "
            "where r.tenant = :tenant and r.status = 'ok' and p.kind <> 'read'"
        )
        assert ok[0]["n"] == len(written), "a success for each note that was written, and for no other"
        assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []
        third = len(self.memory) // 3
        first, last = statistics.median(self.memory[:third]), statistics.median(self.memory[-third:])
        assert last - first < GROWTH_BYTES_MAX, f"from {first / 2**20:.0f} to {last / 2**20:.0f} MB"
        return (
            f"\nsoak, seed {SEED}: {len(self.runs)} runs {dict(states)}, {len(written)} effects, none twice, fsck clean; "
            f"{dict(self.did)}; memory of a worker {first / 2**20:.0f} -> {last / 2**20:.0f} MB\n"
        )


@pytest.fixture
def soak(place: Path, bucket: Bucket, slack_sink: SlackSink, servicenow: ServiceNow, tmp_path: Path) -> Iterator[Soak]:
    with ExitStack() as stack:
        mortal = Mortal(stack, place, slack_sink, servicenow, bucket)
        workers = Workers(mortal, tmp_path)
        stack.callback(workers.stop)
        yield Soak(mortal, workers, servicenow)


@pytest.mark.deep
def test_minutes_of_random_work_and_random_deaths_end_right(soak: Soak, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten minutes; TWOKEYS_TEST_SOAK_SECONDS makes it longer, TWOKEYS_TEST_SEED plays the same deaths again."""
    try:
        soak.go(SECONDS)
        soak.finish()
        summary = soak.check()
    except Exception as error:
        raise AssertionError(f"TWOKEYS_TEST_SEED={SEED}; {dict(soak.did)}") from error
    assert sum(soak.did.values()) >= SECONDS / 30
    with capsys.disabled():
        sys.stdout.write(summary)
