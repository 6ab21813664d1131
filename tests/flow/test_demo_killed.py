"""P5: the demo's worker is killed ten times while people press their buttons, and everything ends as if nothing had happened."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from governance import clock
from governance.local.desk.visitor import Visitor
from tests.flow.test_demo import ENVIRONMENT, ROOT, TWOKEYS, Running, state
from tests.kit.wait import until

__all__ = ["state"]

KILLS = 10
SEED = os.environ.get("TWOKEYS_TEST_SEED") or clock.random_hex(4)
WHO = {"Medium risk": ("U0ANA",), "High risk": ("U0BO", "U0CLEO")}


class Demo:
    """A running demo, its command line, and its people at the desk."""

    def __init__(self, running: Running, state: Path) -> None:
        self.running = running
        self.desk = Visitor(running.address("Slack desk"))
        self._state = state
        self._pressed: set[tuple[str, str]] = set()

    def twokeys(self, *words: str, who: str = "") -> subprocess.CompletedProcess[str]:
        """The command line as somebody, or as the operator."""
        environment = {"PATH": ENVIRONMENT["PATH"], "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
        environment["TWOKEYS_CONFIG"] = str(self._state / "twokeys.toml")
        if who:
            found = re.search(rf"tk_demo_{who}_\w+", self.running.said)
            assert found is not None
            environment["TWOKEYS_TOKEN"] = found.group()
        else:
            environment["TWOKEYS_TENANT"] = "demo"
        return subprocess.run(
            [*TWOKEYS, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    def json(self, *words: str) -> Any:
        done = self.twokeys(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def press(self) -> None:
        """Whoever is asked presses Approve, once for each card as it stands."""
        for message in self.desk.state()["messages"]:
            text = json.dumps(message["blocks"])
            for risk, people in WHO.items():
                for person in people if risk in text and "tk_approve" in str(message["presses"]) else ():
                    if (message["ts"], person) not in self._pressed:
                        self._pressed.add((message["ts"], person))
                        self.desk.become(person)
                        self.desk.press(message, "tk_approve")

    def tell(self, run: str, steps: list[dict[str, Any]]) -> int:
        """Cleo says what she sees in ServiceNow about each operation whose outcome nobody knows. How many."""
        unknown = [step for step in steps if step["state"] == "unknown"]
        for step in unknown:
            seen = self.record()
            happened = {
                "close": seen["state"] == "6",
                "raise": seen["impact"] == "1",
                "route": bool(seen["assignment_group"]),
            }
            how = "happened" if happened.get(step["step"], True) else "did-not"
            self.twokeys("run", "resolve", run, step["promise"], how, "--reason", "I looked", who="cleo")
        return len(unknown)

    def record(self) -> dict[str, Any]:
        """The incident that was written to, as ServiceNow has it."""
        touched = {one["documentkey"] for one in self.servicenow("/_control/changes")}
        found = self.servicenow("/api/now/table/incident")
        return next(
            (one for one in found if one["sys_id"] in touched), {"state": "", "impact": "", "assignment_group": ""}
        )

    def servicenow(self, path: str) -> Any:
        """An answer of the stand-in."""
        found = re.search(r"ServiceNow +(http://[0-9.:]+)/\S+ +(\S+) / (\S+)", self.running.said)
        assert found is not None
        pair = base64.b64encode(f"{found[2]}:{found[3]}".encode()).decode()
        asked = urllib.request.Request(found[1] + path, headers={"Authorization": f"Basic {pair}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)["result"]

    def written(self, field: str) -> list[str]:
        """What was written to a field by us, oldest first."""
        return [one["newvalue"] for one in self.servicenow("/_control/changes") if one["fieldname"] == field]


def restarts(running: Running) -> int:
    return running.said.count("worker ended with code -9; it is started again")


@pytest.mark.deep
def test_a_demo_whose_worker_is_killed_ten_times_ends_right(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed at any moment: both gates are passed, ServiceNow was written to once, and the evidence verifies."""
    chance, asked, killed = random.Random(SEED), 0, 0
    running = Running(state, tmp_path)
    try:
        demo = Demo(running, state)
        (run,) = [one["run"] for one in demo.json("run", "list")]

        def over() -> bool:
            nonlocal asked, killed
            demo.press()
            shown = demo.json("run", "show", run)
            asked += demo.tell(run, shown["steps"])
            if killed < KILLS and restarts(running) == killed:
                pause = clock.monotonic() + chance.uniform(0, 3)
                until(lambda: clock.monotonic() > pause, 5)
                os.kill(running.named("worker"), signal.SIGKILL)
                killed += 1
                until(lambda: restarts(running) == killed, 20)
            return killed == KILLS and shown["state"] == "succeeded"

        until(over, 600)
        assert demo.written("close_code") == ["Solved (Permanently)"]
        assert [len(demo.written(field)) for field in ("comments", "work_notes", "impact")] == [1, 1, 1]
        done = demo.twokeys("fsck")
        assert done.returncode == 0, done.stdout + done.stderr
        bundle, trust = tmp_path / "run.zip", tmp_path / "policy.txt"
        until(lambda: demo.twokeys("evidence", "download", run, "--to", str(bundle), who="aud").returncode == 0, 60)
        trust.write_text(demo.twokeys("evidence", "trust", who="aud").stdout)
        done = demo.twokeys("evidence", "verify", str(bundle), "--trust", str(trust))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        running.stop(signal.SIGINT)
    with capsys.disabled():
        sys.stdout.write(f"\nseed {SEED}: killed the demo's worker {killed} times, a person was asked {asked} times\n")
