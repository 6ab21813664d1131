"""How often an outside system may be called: counted for each tenant and instance, whoever calls."""

from __future__ import annotations

from governance.store.unit import Database


def take(database: Database, tenant: str, connector: str, instance: str, calls_per_min: int) -> float:
    """Seconds until the next call may be made; 0 when it may be made now, and it is counted then."""
    rows = database.call(
        "select take_pace(%s, %s, %s, %s)", (tenant, connector, instance, calls_per_min), write=False
    )  # nothing that a run rests on: no commit of its budget
    return float(rows[0][0])
