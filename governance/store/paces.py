"""How often an outside system may be called: counted for each tenant and instance, whoever calls."""

from __future__ import annotations

from governance.store.unit import Database


def take(database: Database, tenant: str, connector: str, instance: str, calls_per_min: int) -> float:
    """Seconds until the next call may be made; 0 when it may be made now, and it is counted then."""
    rows = database.call(
        "select take_pace(%s, %s, %s, %s)", (tenant, connector, instance, calls_per_min), write=False
    )  # nothing that a run rests on: no commit of its budget
    return float(rows[0][0])


def hold(database: Database, tenant: str, connector: str, instance: str, calls_per_min: int, seconds: float) -> None:
    """Nobody calls for so long, because the outside system has said so itself."""
    burst = max(1, calls_per_min // 10)
    ahead = seconds + 60.0 / max(1, calls_per_min - burst) * (burst - 1)
    with database.unit(tenant) as unit:
        unit.run(
            "insert into pace as p (tenant, connector, instance, free_at) "
            "values (:tenant, :connector, :instance, clock_timestamp() + make_interval(secs => :s)) "
            "on conflict (tenant, connector, instance) do update set free_at = greatest(p.free_at, excluded.free_at)",
            connector=connector, instance=instance, s=ahead,
        )  # fmt: skip
