"""What a fault means, by the one table of its connector: again later, never, for an operator to mend, or nobody knows; and when again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.gate.receipt import Outcome
from engine.limits import fault_delay_first_seconds, fault_delay_max_seconds, retry_delays_seconds

AGAIN, NEVER, MEND, UNKNOWN = "again", "never", "mend", "unknown"
MEANINGS = (AGAIN, NEVER, MEND, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Fault:
    """What one error class means when something was read, and when something would have been changed."""

    read: str
    write: str
    mend: str = ""  # what an operator must do; only where one of the two is `mend`

    def __post_init__(self) -> None:
        if self.read not in MEANINGS or self.write not in MEANINGS:
            raise ValueError(f"a fault means one of {', '.join(MEANINGS)}")
        if bool(self.mend) != (MEND in (self.read, self.write)):
            raise ValueError("exactly the faults that an operator mends say what there is to do")


Faults = Mapping[str, Fault]
# What is found out on our side, before anything is sent, and is not simply tried again or over.
OURS: Faults = {
    "not_connected": Fault(MEND, MEND, "connect it: `twokeys tenant connect`, or `twokeys tenant slack` for Slack"),
}
# A class that its table does not name: nobody has thought about it, so a write may have happened and a read is over.
UNLISTED = Fault(NEVER, UNKNOWN)


def outcome_of(
    faults: Faults,
    error_class: str,
    message: str,
    *,
    changes: bool,
    response: Mapping[str, Any] | None = None,
    retry_after_seconds: int = 0,
) -> Outcome:
    """The outcome of an attempt that met this fault."""
    fault = faults.get(error_class, UNLISTED)
    meaning = fault.write if changes else fault.read
    status = {AGAIN: "error", NEVER: "rejected", MEND: "rejected", UNKNOWN: "unknown"}[meaning]
    return Outcome(
        "timeout" if meaning == AGAIN and error_class == "timeout" else status, response=dict(response or {}), error_class=error_class,
        message=message, retryable=meaning == AGAIN, retry_after_seconds=retry_after_seconds if meaning == AGAIN else 0,
        mend=fault.mend if meaning == MEND else "",
    )  # fmt: skip


def ours(error_class: str, message: str, *, again: bool) -> Outcome:
    """The outcome when nothing was sent because of a fault on our side; `again` for those that its table does not name."""
    if error_class in OURS:
        return outcome_of(OURS, error_class, message, changes=False)
    return Outcome("error" if again else "rejected", error_class=error_class, message=message, retryable=again)


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
