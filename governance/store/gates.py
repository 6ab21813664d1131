"""How a tenant wants its gate: whether authors of rules may decide, when nobody is reminded, and how long a review may be owed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from governance.store.unit import Unit

SHARES = (50, 80)  # per cent of the time there is to decide, after which people are reminded


def reminded_at(
    requested_at: datetime.datetime, expires_at: datetime.datetime, share: int = SHARES[0]
) -> datetime.datetime:
    """When so much of the time is over; without a share, when people are reminded for the first time."""
    return requested_at + (expires_at - requested_at) * share / 100


@dataclass(frozen=True, slots=True)
class Gate:
    """The settings of one tenant; without any, these."""

    rule_author: bool = True  # the last author of the rule that set the tier holds no key
    zone: str = "UTC"
    quiet_from: int = 0  # minutes of the day; equal: no quiet hours
    quiet_until: int = 0
    review_seconds: int = 86_400

    def awake_at(self, now: datetime.datetime) -> datetime.datetime:
        """The first moment from now on that is not in quiet hours, by the clocks of the tenant's own zone."""
        if self.quiet_from == self.quiet_until:
            return now
        local = now.astimezone(ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        length = (self.quiet_until - self.quiet_from) % 1440
        if (minute - self.quiet_from) % 1440 >= length:
            return now
        ahead = (self.quiet_until - minute) % 1440
        return (local.replace(second=0, microsecond=0) + datetime.timedelta(minutes=ahead)).astimezone(datetime.UTC)


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
