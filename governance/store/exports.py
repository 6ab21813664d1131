"""Named exports of a tenant's log: where each goes, the one position that it has reached, and what it is sending now."""

from __future__ import annotations

from dataclasses import dataclass

from engine.ledger.lines import checked
from governance.store import published
from governance.store.unit import Row, Unit

batch_entries = 500
batch_bytes = 1_048_576
lease_seconds = 60.0  # of one delivery, which takes a third of it at most

_columns = (
    "name, target, form, url, secret_sealed, position, sending, epoch, state, tries, last_error, "
    "coalesce(to_char(delivered_at at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), '')"
)


@dataclass(frozen=True, slots=True)
class Export:
    """One named export. Everything below `position` was delivered; from there to `sending`, when it is set, may have been."""

    name: str
    target: str  # s3 | webhook
    form: str
    url: str
    secret_sealed: bytes
    position: int
    sending: int | None
    epoch: int
    state: str  # active | paused | stopped
    tries: int
    last_error: str
    delivered_at: str


@dataclass(frozen=True, slots=True)
class Shown:
    """An export with how far it is behind: entries and the seconds since the oldest of them was written."""

    export: Export
    behind: int
    behind_seconds: float


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries that follow each other, and why there are no more of them, if something is wrong with the next."""

    since: int
    bodies: tuple[bytes, ...]
    fault: str

    @property
    def until(self) -> int:
        return self.since + len(self.bodies)


def entries(unit: Unit, since: int, until: int) -> Slice:
    """The entries from one index to another, as many as fit into a batch, each with the bytes that were hashed."""
    rows = unit.all(
        "select position, body, leaf from (select position, body, leaf, sum(length(body)) over (order by position) - length(body) "
        "as before from entry where tenant = :tenant and position >= :since and position < :until order by position limit :most) e "
        "where before < :bytes order by position",
        since=since, until=until, most=batch_entries, bytes=batch_bytes,
    )  # fmt: skip
    good, fault = checked([(int(row[0]), bytes(row[1]), bytes(row[2])) for row in rows], since)
    if not rows and since < until:
        fault = f"index {since} is missing"
    return Slice(since, tuple(good), fault)


def set_up(unit: Unit, name: str, target: str, form: str, url: str, sealed: bytes, position: int | None) -> Export:
    """Make it, or let it go elsewhere from where it is; a `position` moves it. What was being sent is forgotten."""
    unit.run(
        "insert into export (tenant, name, target, form, url, secret_sealed, position) "
        "values (:tenant, :name, :target, :form, :url, :sealed, coalesce(:position, 0)) on conflict (tenant, name) do update set "
        "target = excluded.target, form = excluded.form, url = excluded.url, secret_sealed = excluded.secret_sealed, "
        "position = coalesce(:position, export.position), sending = null, epoch = export.epoch + 1, "
        "state = 'active', tries = 0, last_error = '', eligible_at = clock_timestamp()",
        name=name, target=target, form=form, url=url, sealed=sealed, position=position,
    )  # fmt: skip
    found = named(unit, name)
    assert found is not None
    return found


def set_state(unit: Unit, name: str, state: str) -> bool:
    """Pause it, or let it go on where it stands; False when there is none of that name."""
    return (
        unit.run(
            "update export set state = :state, epoch = epoch + 1, tries = 0, eligible_at = clock_timestamp() "
            "where tenant = :tenant and name = :name",
            name=name, state=state,
        ).rowcount
        == 1
    )  # fmt: skip


def remove(unit: Unit, name: str) -> bool:
    """Forget it and its position; False when there is none of that name."""
    return unit.run("delete from export where tenant = :tenant and name = :name", name=name).rowcount == 1


def named(unit: Unit, name: str) -> Export | None:
    """The export of this name."""
    return _export(unit.one(f"select {_columns} from export where tenant = :tenant and name = :name", name=name))


def shown(unit: Unit) -> list[Shown]:
    """Every export with how far it is behind what the bucket knows of the log."""
    size = published.size(unit)
    rows = unit.all(
        f"select {_columns}, (select greatest(0, extract(epoch from clock_timestamp() - "
        "(convert_from(body, 'UTF8')::jsonb ->> 'at')::timestamptz)) from entry e where e.tenant = x.tenant and "
        "e.position = x.position and e.position < :size) from export x where tenant = :tenant order by name",
        size=size,
    )
    found = []
    for row in rows:
        export = _export(row[:-1])
        assert export is not None
        found.append(Shown(export, max(0, size - export.position), float(row[-1] or 0)))
    return found


def due(unit: Unit) -> list[str]:
    """The names of those that have something to deliver now."""
    rows = unit.all(
        "select name from export where tenant = :tenant and state = 'active' and eligible_at <= clock_timestamp() "
        "and (position < :size or sending is not null) order by eligible_at",
        size=published.size(unit),
    )
    return [str(row[0]) for row in rows]


def take(unit: Unit, name: str, *, hurry: bool = False) -> tuple[Export, Slice] | None:
    """Lease it and fix what is sent next, so that whoever sends it again sends the very same; None when it is not to be had.

    In a `hurry` what rests, or waits after a fault, does not wait. A slice with a fault stands before what is wrong; when
    nothing stands before it, the export stops here.
    """
    found = _export(
        unit.one(
            f"select {_columns} from export where tenant = :tenant and name = :name and state = 'active' "
            "and (eligible_at <= clock_timestamp() or (:hurry and (sending is null or tries > 0))) for update skip locked",
            name=name,
            hurry=hurry,
        )
    )
    if found is None:
        return None
    until = found.sending if found.sending is not None else published.size(unit)
    if until <= found.position:
        return None
    part = entries(unit, found.position, until)
    if not part.bodies or (found.sending is not None and part.until != found.sending):
        stop(unit, name, part.fault or f"index {part.until} is missing")
        return found, Slice(found.position, (), part.fault or f"index {part.until} is missing")
    row = unit.one(
        "update export set sending = :sending, epoch = epoch + 1, eligible_at = clock_timestamp() + make_interval(secs => :lease) "
        f"where tenant = :tenant and name = :name returning {_columns}",
        name=name, sending=part.until, lease=lease_seconds,
    )  # fmt: skip
    taken = _export(row)
    assert taken is not None
    return taken, part


def delivered(unit: Unit, export: Export, rest_seconds: float) -> bool:
    """The slice that was taken has arrived; False when it is no longer ours."""
    return (
        unit.run(
            "update export set position = sending, sending = null, tries = 0, last_error = '', delivered_at = clock_timestamp(), "
            "eligible_at = clock_timestamp() + make_interval(secs => :rest) "
            "where tenant = :tenant and name = :name and epoch = :epoch and sending is not null",
            name=export.name, epoch=export.epoch, rest=rest_seconds,
        ).rowcount
        == 1
    )  # fmt: skip


def again(unit: Unit, export: Export, error: str, seconds: float) -> None:
    """It did not arrive, or nobody knows: the same slice once more after this long."""
    unit.run(
        "update export set tries = tries + 1, last_error = :error, eligible_at = clock_timestamp() + make_interval(secs => :s) "
        "where tenant = :tenant and name = :name and epoch = :epoch",
        name=export.name, epoch=export.epoch, error=error[:500], s=seconds,
    )  # fmt: skip


def stop(unit: Unit, name: str, error: str) -> None:
    """Nothing more is sent until a person has looked."""
    unit.run(
        "update export set state = 'stopped', epoch = epoch + 1, last_error = :error where tenant = :tenant and name = :name",
        name=name,
        error=error[:500],
    )


def _export(row: Row | None) -> Export | None:
    if row is None:
        return None
    return Export(
        name=row[0], target=row[1], form=row[2], url=row[3], secret_sealed=bytes(row[4]), position=int(row[5]),
        sending=None if row[6] is None else int(row[6]), epoch=int(row[7]), state=row[8], tries=int(row[9]), last_error=row[10],
        delivered_at=row[11],
    )  # fmt: skip
