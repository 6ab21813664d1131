"""Waiting for a fact, without guessing how long it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(fact: Callable[[], object], seconds: float = 10.0) -> None:
    """Return as soon as the fact holds; fail the test when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waits for counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] == "Z"
