"""Retryable or terminal, and when again: the delays of seed 004 with jitter, inside the step's deadline."""

from __future__ import annotations

from engine.gate.receipt import Outcome
from engine.limits import fault_delay_first_seconds, fault_delay_max_seconds, retry_delays_seconds


def next_delay(outcome: Outcome, attempt: int, attempts_max: int, jitter: float, seconds_left: float) -> float | None:
    """Seconds until the next attempt, or None when there is none: terminal, attempts used up, or past the deadline.

    `jitter` is a chance in [0, 1): the delay grows by up to a fifth, so that a crowd does not come back together.
    """
    if not outcome.retryable or attempt >= attempts_max or attempt > len(retry_delays_seconds):
        return None
    delay = retry_delays_seconds[attempt - 1] * (1 + 0.2 * jitter)
    delay = max(delay, float(outcome.retry_after_seconds))
    return delay if delay < seconds_left else None


def fault_delay(faults: int, jitter: float) -> float:
    """Seconds until a policy fault or a full cap is tried again: 5 s doubling to 60 s."""
    delay = min(fault_delay_first_seconds * 2 ** min(faults, 10), fault_delay_max_seconds)
    return float(delay * (1 + 0.2 * jitter))
