"""What this process has counted and what it last measured, by name, readable as Prometheus text."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

# What the database says of all tenants together; docs/operations.md says what to do about each.
LEVELS = {
    "database_up": "1 while the database answers",
    "work_ready": "Work items that could be claimed now",
    "work_ready_seconds": "Age of the oldest work item that could be claimed now",
    "work_later": "Work items that wait for a later moment: another try, a free place",
    "work_leased": "Work items in the hands of a worker",
    "work_expired": "Work items whose worker is gone and that nobody has taken over yet",
    "work_parked": "Work items that wait for a person: an unknown outcome, or a fault that came back too often",
    "seal_failing": "Ended runs whose evidence could not be sealed yet, and that are tried again",
    "due_overdue_seconds": "How long the oldest clock has run out without being heard",
    "outbox_ready": "Messages to Slack that could be sent now",
    "outbox_ready_seconds": "Age of the oldest of them",
    "export_behind": "Published entries that the named export which is furthest behind has not delivered yet",
    "export_behind_seconds": "Age of the oldest published entry that a named export has not delivered yet",
    "export_failing": "Named exports whose last delivery failed and that are tried again",
    "export_stopped": "Named exports that stand still because an entry is missing or is not what was hashed",
    "log_caught_up_timestamp_seconds": "When the sequencer last had nothing left to do, in seconds since 1970",
}

disable_created_metrics()  # type: ignore[no-untyped-call]
_registry = CollectorRegistry()
_events = Counter("twokeys_events", "Things that happened in this process, by name", ("name",), registry=_registry)
_entries = Counter("twokeys_entries", "Entries that this process has committed, by type", ("type",), registry=_registry)
_levels: dict[str, Gauge] = {}  # what this process has measured; a 0 that nobody measured would ring an alarm


_entries_of = functools.cache(_entries.labels)  # as many as the catalogue of entries has types


def count(name: str) -> None:
    """One more of these."""
    _events.labels(name).inc()


def recorded(types: Mapping[str, int]) -> None:
    """So many entries of each type are committed."""
    for name, number in types.items():
        _entries_of(name).inc(number)


def level(name: str, value: float) -> None:
    """What was just measured."""
    if name not in _levels:
        _levels[name] = Gauge(f"twokeys_{name}", LEVELS[name], registry=_registry)
    _levels[name].set(value)


def text() -> bytes:
    """Everything counted and measured so far, in Prometheus' exposition format."""
    return generate_latest(_registry)
