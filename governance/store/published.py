"""How far a tenant's log is published and how far its oldest uncovered entry is behind."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from engine.errors import BrokenLedger
from engine.ledger.tree import leaf_hash
from governance.store.entries import Checkpoint, checkpoint_at
from governance.store.unit import Unit

# When the entry at a position was written; of one that is not placed yet, when the oldest of those was.
_written = """
select coalesce(extract(epoch from clock_timestamp() - (convert_from(body, 'UTF8')::jsonb ->> 'at')::timestamptz), 0)::float8 from (
  (select body from entry where tenant = :tenant and position = :position)
  union all
  (select body from entry_pending where tenant = :tenant order by id limit 1)) e limit 1
"""


@dataclass(frozen=True, slots=True)
class Lag:
    """For how many seconds the oldest entry has waited for a place, for a published checkpoint, for a witness."""

    place: float
    published: float
    witnessed: float


def size(unit: Unit) -> int:
    """The size of the newest published checkpoint; 0 for none."""
    row = unit.one("select max(size) from checkpoint where tenant = :tenant and published_at is not null")
    return 0 if row is None or row[0] is None else int(row[0])


def exactly(unit: Unit, at: int) -> Checkpoint | None:
    """The signed checkpoint of exactly this size."""
    found = checkpoint_at(unit, at)
    return found if found is not None and found.size == at else None


def mark(unit: Unit, at: int) -> None:
    """The bucket holds the checkpoint of this size."""
    unit.run(
        "update checkpoint set published_at = clock_timestamp() where tenant = :tenant and size = :size and published_at is null",
        size=at,
    )


def bodies(unit: Unit, since: int, until: int) -> list[bytes]:
    """The exact entries from one position to another, each as it was hashed."""
    rows = unit.all(
        "select position, body, leaf from entry where tenant = :tenant and position >= :since and position < :until order by position",
        since=since, until=until,
    )  # fmt: skip
    if [row[0] for row in rows] != list(range(since, until)) or any(
        leaf_hash(bytes(r[1])) != bytes(r[2]) for r in rows
    ):
        raise BrokenLedger(f"the stored entries of {unit.tenant} are not what was hashed", code="root_mismatch")
    return [bytes(row[1]) for row in rows]


def lag(unit: Unit, *, witnessed: bool) -> Lag:
    """How far everything is behind; the witnesses only where there are any."""
    seen = unit.one("select max(size) from cosignature where tenant = :tenant") if witnessed else None
    pending = unit.one(_written, position=-1)
    uncovered = unit.one(_written, position=size(unit))
    unseen = (
        unit.one(_written, position=(0 if seen is None or seen[0] is None else int(seen[0]))) if witnessed else None
    )
    return Lag(*(0.0 if row is None else float(row[0]) for row in (pending, uncovered, unseen)))


def newest_until(unit: Unit, moment: datetime.datetime) -> Checkpoint | None:
    """The newest checkpoint that was fixed until this moment."""
    row = unit.one(
        "select max(size) from checkpoint where tenant = :tenant and note is not null and at <= :moment", moment=moment
    )
    return None if row is None or row[0] is None else exactly(unit, int(row[0]))
