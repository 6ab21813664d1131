"""How a tenant wants its gate: whether authors of rules may decide, when nobody is reminded, and how long a review may be owed."""

from __future__ import annotations

from dataclasses import dataclass

from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Gate:
    """The settings of one tenant; without any, these."""

    rule_author: bool = True  # the last author of the rule that set the tier holds no key
    zone: str = "UTC"
    quiet_from: int = 0  # minutes of the day; equal: no quiet hours
    quiet_until: int = 0
    review_seconds: int = 86_400


def of(unit: Unit) -> Gate:
    """The tenant's gate."""
    row = unit.one("select rule_author, zone, quiet_from, quiet_until, review_seconds from gate where tenant = :tenant")
    return Gate() if row is None else Gate(*row)


def put(unit: Unit, gate: Gate) -> None:
    """From now on it is this."""
    unit.run(
        "insert into gate (tenant, rule_author, zone, quiet_from, quiet_until, review_seconds) "
        "values (:tenant, :rule_author, :zone, :quiet_from, :quiet_until, :review_seconds) on conflict (tenant) do update set "
        "rule_author = excluded.rule_author, zone = excluded.zone, quiet_from = excluded.quiet_from, "
        "quiet_until = excluded.quiet_until, review_seconds = excluded.review_seconds",
        rule_author=gate.rule_author, zone=gate.zone, quiet_from=gate.quiet_from, quiet_until=gate.quiet_until,
        review_seconds=gate.review_seconds,
    )  # fmt: skip
