"""The only reader of time and chance; everything else takes them as arguments."""

from __future__ import annotations

import datetime
import secrets
import time


def now_utc() -> datetime.datetime:
    """The process clock in UTC: for log lines and for what people read, never for leases, expiry or timers."""
    return datetime.datetime.now(datetime.UTC)


def epoch_seconds() -> int:
    """Whole seconds since 1970 by the process clock: for signatures that a peer checks against its own clock."""
    return int(time.time())


def monotonic() -> float:
    """Seconds that never go back: for durations and deadlines inside one process."""
    return time.monotonic()


def boottime() -> float:
    """Seconds that never go back and count while the machine sleeps: a lease goes on running out during a suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def sleep(seconds: float) -> None:
    """Pause this thread."""
    time.sleep(seconds)


def random_bytes(size: int) -> bytes:
    """Bytes nobody can guess."""
    return secrets.token_bytes(size)


def random_hex(size: int) -> str:
    """The same as hexadecimal text, two digits a byte."""
    return secrets.token_hex(size)
