"""Counters by name, kept in this process and readable as Prometheus text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

_registry = CollectorRegistry()
_events = Counter("twokeys_events", "Things that happened, by name", ("name",), registry=_registry)


def count(name: str) -> None:
    """One more of these."""
    _events.labels(name).inc()


def text() -> bytes:
    """Everything counted so far, in Prometheus' exposition format."""
    return generate_latest(_registry)
