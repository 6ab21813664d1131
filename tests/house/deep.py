"""The pytest plugin of `make deep`: property tests get a hundred times the examples, and tests marked deep run too."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def pytest_configure() -> None:
    settings.register_profile("deep", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("deep")
