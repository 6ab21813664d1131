"""`twokeys demo` as a newcomer types it: it plays through to a verified bundle, survives, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governance.local.children import answers
from governance.local.desk.visitor import Visitor
from tests.kit.wait import is_gone, until

ROOT = Path(__file__).parents[2]
TWOKEYS = [sys.executable, "-c", "from governance.cli import main; main()"]
# What a developer's shell may hold must not reach the demo.
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(ROOT),
    "TWOKEYS_DATABASE_URL": "postgresql://elsewhere",
    "COLUMNS": "40",
}


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory of this test, that one start after the other uses."""
    directory = Path(tempfile.mkdtemp(prefix="tk-demo-"))
    directory.chmod(0o711)
    yield directory
    note = directory / "postgres.path"
    if note.exists():
        shutil.rmtree(note.read_text().strip(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def play(state: Path) -> tuple[dict[str, Any], str]:
    """`make demo AUTO=1` without the installation: its last line, and everything it said."""
    command = [*TWOKEYS, "demo", "--auto", "--state", str(state)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stderr


class Running:
    """A demo that waits for people."""

    def __init__(self, state: Path, directory: Path) -> None:
        self._said = directory / "demo.out"
        with self._said.open("wb") as out:
            command = [*TWOKEYS, "demo", "--state", str(state)]
            self.process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=out)
        until(lambda: "Ctrl-C stops everything" in self.said or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def address(self, name: str) -> str:
        found = re.search(rf"^  {name} +(http://[0-9.:]+)/", self.said, flags=re.MULTILINE)
        assert found, self.said
        return found.group(1)

    def family(self) -> list[int]:
        """Every process that descends from it."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(stat.parent.name)] = int(fields[1])
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def named(self, word: str) -> int:
        """The one process of ours with this word at the end of its command line."""
        [pid] = [
            p for p in self.family() if Path(f"/proc/{p}/cmdline").read_bytes().rstrip(b"\0").endswith(word.encode())
        ]
        return pid

    def stop(self, number: signal.Signals) -> int:
        family = self.family()
        assert len(family) > 6
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        until(lambda: all(map(is_gone, family)), 15)
        return code


@pytest.fixture
def running(state: Path, tmp_path: Path) -> Iterator[Running]:
    demo = Running(state, tmp_path)
    yield demo
    if demo.process.poll() is None:
        demo.stop(signal.SIGINT)


def test_the_people_are_played_to_a_verified_bundle(state: Path) -> None:
    """One JSON object last; on the way everybody who must be refused was, through the desk's own forms."""
    result, said = play(state)
    assert list(result) == ["run", "status", "approvals", "bundle_sha256", "verified", "seconds"]
    assert (result["status"], result["verified"]) == ("succeeded", True)
    assert [len(one["keys"]) for one in result["approvals"]] == [1, 2]
    assert re.fullmatch(r"[0-9a-f]{64}", result["bundle_sha256"])
    assert result["seconds"] < 90
    for sentence in (
        "the same event again: the same run",
        "Rita Requester presses Approve: You are in no group that may give this key; it takes @oncall. Nothing changed.",
        "Adi Admin presses Approve: You own what asked for this",
        "Dan Deactivated presses Approve: Your account is switched off",
        "Bo Brandt presses Approve: You already gave key 1",
        f"sha256  {result['bundle_sha256']}",
        "RESULT: valid",
    ):
        assert sentence in said, sentence
    for secret in ("demo.json", "twokeys.toml"):
        assert (state / secret).stat().st_mode & 0o777 == 0o600


def test_it_says_that_it_runs_already_and_stops_with_everything(running: Running, state: Path) -> None:
    """A second demo does not start; Ctrl-C ends what the first one started, all of it, with 0."""
    again = subprocess.run([*TWOKEYS, "demo", "--state", str(state)], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip  # noqa: E501
    assert again.returncode == 3
    assert f"a demo is running here already (process {running.process.pid})" in again.stderr
    assert "--state" in again.stderr
    shell = {"PATH": os.environ["PATH"], "TWOKEYS_CONFIG": str(state / "twokeys.toml"), "TWOKEYS_TENANT": "demo"}
    listed = subprocess.run(
        [*TWOKEYS, "run", "list", "-o", "json"], cwd=ROOT, env=shell, capture_output=True, text=True, check=True
    )
    assert [run["workflow"] for run in json.loads(listed.stdout)] == ["incident-triage"]
    assert running.stop(signal.SIGINT) == 0
    assert "nothing is left running" in running.said


def test_a_worker_that_dies_is_started_again_and_the_run_goes_on(state: Path, tmp_path: Path) -> None:
    """The run of the start before is still there; a killed worker is said and replaced, and a key moves the run."""
    Running(state, tmp_path).stop(signal.SIGINT)
    running = Running(state, tmp_path)
    try:
        check_a_killed_worker(running)
    finally:
        running.stop(signal.SIGINT)


def check_a_killed_worker(running: Running) -> None:
    assert "of an earlier start went on" in running.said
    os.kill(running.named("worker"), signal.SIGKILL)
    until(lambda: "worker ended with code -9; it is started again" in running.said, 20)
    ana = Visitor(running.address("Slack desk"))
    ana.become("U0ANA")
    card = next(
        m for m in reversed(ana.state()["messages"]) if any(b["action_id"] == "tk_approve" for b in m["presses"])
    )
    ana.press(card, "tk_approve")
    until(
        lambda: any("High risk" in json.dumps(m["blocks"]) for m in ana.state()["messages"] if m["ts"] > card["ts"]), 60
    )


def test_a_demo_that_is_killed_leaves_nothing_and_a_busy_port_is_replaced(state: Path, tmp_path: Path) -> None:
    """SIGKILL gives no chance to clean up, and still no process stays; the next start finds another port."""
    demo = Running(state, tmp_path)
    web = demo.address("Console")
    demo.stop(signal.SIGKILL)
    port = int(web.rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        again = Running(state, tmp_path)
        try:
            other = again.address("Console")
            assert other != web
            assert answers(int(other.rpartition(":")[2]), "/readyz")
        finally:
            assert again.stop(signal.SIGTERM) == 143


def test_what_fails_is_named_with_its_last_lines(state: Path) -> None:
    """A component that does not start: which one, what it said, exit 3, and nothing left running."""
    broken = state / "broken"
    (broken / "postgres").mkdir(parents=True)
    (broken / "postgres" / "data").mkdir()
    command = [*TWOKEYS, "demo", "--state", str(broken)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "postgres ended with code" in done.stderr
    assert "  | " in done.stderr
    assert "Traceback" not in done.stderr
