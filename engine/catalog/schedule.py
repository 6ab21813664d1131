"""When a schedule is due: once or by cron in a time zone, what becomes of moments that were missed, and which come next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from engine.errors import CallerError
from engine.limits import catch_up_max, schedule_late_seconds, schedule_missed_max
from engine.program.faults import hint

ONCE, CRON = "once", "cron"
CATCH_UP = ("skip", "one", "all")
OVERLAP = ("skip", "queue", "cancel")
_cron = re.compile(r"[0-9A-Za-z*/,#? L-]{1,100}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody has scheduled, apart from what and with which input."""

    kind: str
    when: str  # a moment in UTC, or five fields of cron
    zone: str
    catch_up: str  # of moments that were missed: none, the newest, or up to `most`
    most: int
    overlap: str  # while the run before still goes on: none, one behind it, or one in its place


@dataclass(frozen=True, slots=True)
class Due:
    """What follows at one look: the moments to start a run for, those that are passed over, and the one that comes next."""

    fire: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    next: datetime | None


def plan(
    *, at: str = "", cron: str = "", zone: str = "UTC", catch_up: str = "one", most: int = 0, overlap: str = "skip"
) -> Plan:
    """A plan as somebody gave it, every part checked; the error names the first that cannot be."""
    if bool(at) == bool(cron):
        raise CallerError("give either a moment or a cron expression", code="bad_schedule", field="at")
    if catch_up not in CATCH_UP:
        raise CallerError(f"{catch_up!r} is not known{hint(catch_up, CATCH_UP)}", code="bad_schedule", field="catch_up")
    if overlap not in OVERLAP:
        raise CallerError(f"{overlap!r} is not known{hint(overlap, OVERLAP)}", code="bad_schedule", field="overlap")
    most = most or (catch_up_max if catch_up == "all" else 1)
    if type(most) is not int or not 1 <= most <= catch_up_max:
        raise CallerError(f"is 1 to {catch_up_max}, not {most!r}", code="bad_schedule", field="most")
    place = _zone(zone)
    if cron:
        found = Plan(CRON, " ".join(cron.split()), zone, catch_up, most, overlap)
        _check_cron(found.when)
        return found
    return Plan(ONCE, _moment(at, place).isoformat(), zone, catch_up, most, overlap)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = hint(name, available_timezones()) if name else ""
        said = near if near.startswith("; did") else "; write it as Europe/Berlin or UTC"
        raise CallerError(f"{name[:40]!r} is not a time zone{said}", code="bad_schedule", field="zone") from None


def _moment(written: str, place: ZoneInfo) -> datetime:
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        raise CallerError(
            f"{written[:40]!r} is not a moment", code="bad_schedule", field="at",
            next_step="write it as 2026-08-21T10:00 in the schedule's zone, or with its own offset",
        ) from None  # fmt: skip
    return (found if found.tzinfo else found.replace(tzinfo=place)).astimezone(UTC)


def _check_cron(written: str) -> None:
    if not _cron.fullmatch(written) or len(written.split()) != 5:
        raise CallerError(
            f"{written[:60]!r} is not a cron expression", code="bad_schedule", field="cron",
            next_step="five fields: minute, hour, day of month, month, day of week, as in '30 2 * * 1-5'",
        )  # fmt: skip
    try:
        next(CronSim(written, datetime(2026, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as error:
        reason = str(error) or "it names no moment within the next fifty years"
        raise CallerError(f"{written!r}: {reason}", code="bad_schedule", field="cron") from None


def after(found: Plan, moment: datetime) -> Iterator[datetime]:
    """The moments after this one, in UTC."""
    if found.kind == ONCE:
        once = datetime.fromisoformat(found.when)
        if once > moment:
            yield once
        return
    # Inside the hour that comes twice the library may begin with a moment that is over: nothing at or before it counts.
    last = moment
    for each in CronSim(found.when, moment.astimezone(_zone(found.zone))):
        at = each.astimezone(UTC)
        if at > last:
            last = at
            yield at


def next_times(found: Plan, moment: datetime, count: int = 10) -> list[datetime]:
    """The next moments, at most so many."""
    return [at for _, at in zip(range(count), after(found, moment), strict=False)]


def due(found: Plan, since: datetime, now: datetime) -> Due:
    """What a schedule whose next moment is `since` wants at `now`."""
    if since > now:
        return Due((), (), since)
    moments = [since]
    coming: datetime | None = None
    for at in after(found, since):
        if at > now:
            coming = at
            break
        moments.append(at)
        if len(moments) > schedule_missed_max:  # a schedule that slept for years: only the newest matter
            moments = [since]
            for again in after(found, now - timedelta(days=1)):
                if again > now:
                    coming = again
                    break
                moments.append(again)
            break
    late = timedelta(seconds=schedule_late_seconds)
    fire = {
        "skip": [at for at in moments if now - at <= late][-1:],
        "one": moments[-1:],
        "all": moments[-found.most :],
    }[found.catch_up]
    return Due(tuple(fire), tuple(at for at in moments if at not in fire), coming)
