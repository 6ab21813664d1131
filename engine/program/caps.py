"""The four caps, as a definition may override them for its own runs; engine.catalog says what they hold for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from engine.limits import cap_max


@dataclass(frozen=True, slots=True)
class Caps:
    """What is set for one scope; None where nothing is set."""

    max_concurrency: int | None = None  # operations in a worker's hands, or about to be
    max_concurrent_runs: int | None = None  # runs that have begun and not ended, those that wait included
    max_runs_per_min: int | None = None  # runs that begin within any sixty seconds
    max_writes_per_run: int | None = None  # effects of a run and its children that are not reads


NAMES = tuple(each.name for each in fields(Caps))


def fault_of(value: object) -> str:
    """Why this is no cap; empty when it is one."""
    if type(value) is not int:
        return f"is a whole number from 1 to {cap_max}, not {value!r}"
    return "" if 1 <= value <= cap_max else f"is 1 to {cap_max}, not {value}"
