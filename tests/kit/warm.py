"""The test's side of tests/kit/dying.py: orders a worker of its own process, and says how it ended and what it passed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from governance.wiring import Parts
from tests.kit.world import World

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a worker ended (None: it stands still), and every seam that it passed."""

    pid: int
    code: int | None
    seams: list[str]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def at(self) -> str:
        """The last seam: where it died."""
        return self.seams[-1] if self.seams else "nowhere"


class Warm:
    """`with Warm(parts, directory) as warm`: a process that forks a worker for each order."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        values = {name: getattr(parts.settings, name) for name in type(parts.settings).model_fields}
        self._directory = directory
        self._said = directory / "dying.out"
        self._count = 0
        self._homes = directory / "homes"
        self._homes.mkdir()
        command = [sys.executable, "-m", "tests.kit.dying", json.dumps(values), str(self._homes)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
            )

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        # Whatever stands still, or waits for somebody who is gone, is of this group.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._homes)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def warm(self, tenant: str) -> None:
        """Start the engine of this tenant's policy."""
        self._order({"do": "warm", "tenant": tenant})

    def drain(self, world: World, *, seals: bool = False, **how: Any) -> Ended:
        """Let a worker drain what is runnable: `at`, `only`, `signal`, `clock` as in tests/kit/dying.py."""
        return self.work({"do": "drain", "tenant": world.tenant, "seals": seals, **how})

    def play(self, world: World, story: str, ref: str, **how: Any) -> Ended:
        """Let a process play a whole story."""
        port = world.servicenow.port
        return self.work({"do": story, "tenant": world.tenant, "ref": ref, "servicenow": port, **how})

    def work(self, order: dict[str, Any]) -> Ended:
        self._count += 1
        seams = self._directory / f"seams-{self._count}"
        seams.touch()
        found = self._order({"seams": str(seams), **order})
        if found["code"] not in (0, -signal.SIGKILL, None):
            raise AssertionError(f"the worker failed ({found['code']}): {self.said[-3000:]}")
        return Ended(found["pid"], found["code"], seams.read_text().splitlines())

    def go_on(self, stopped: Ended) -> int:
        """SIGCONT, and how it ends then."""
        found = self._order({"do": "go on", "pid": stopped.pid})
        assert isinstance(found["code"], int)
        return found["code"]

    def _order(self, order: dict[str, Any], seconds: float = 60.0) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise AssertionError(f"the worker does not end within {seconds} s: {self.said[-3000:]}")
        line = self._process.stdout.readline()
        assert line, f"the warm process is gone: {self.said[-3000:]}"
        found: dict[str, Any] = json.loads(line)
        return found


@pytest.fixture(scope="module")
def warm(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A warm process over the installation without a bucket."""
    with Warm(parts, tmp_path_factory.mktemp("warm")) as made:
        yield made


@pytest.fixture(scope="module")
def sealing_warm(sealing_parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """The same over the installation whose runs can be sealed."""
    with Warm(sealing_parts, tmp_path_factory.mktemp("warm")) as made:
        yield made
