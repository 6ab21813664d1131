"""Cosignatures: which checkpoints the witnesses have seen, and what they added to them."""

from __future__ import annotations

from collections.abc import Sequence

from governance.store import entries
from governance.store.entries import Checkpoint
from governance.store.unit import Unit


def newest_signed(unit: Unit) -> Checkpoint | None:
    """The newest checkpoint that is signed."""
    return entries.signed_before(unit, 2**62)


def seen_by(unit: Unit, witness: str) -> int:
    """The largest size that this witness has cosigned; 0 for none."""
    row = unit.one("select max(size) from cosignature where tenant = :tenant and witness = :witness", witness=witness)
    return 0 if row is None or row[0] is None else int(row[0])


def was_signed(unit: Unit, size: int) -> bool:
    """Whether this log ever had a checkpoint of this size; one that it had not was seen of another database."""
    return (
        size == 0 or unit.one("select 1 from checkpoint where tenant = :tenant and size = :size", size=size) is not None
    )


def keep(unit: Unit, size: int, witness: str, line: bytes) -> bool:
    """Store a cosignature; False when this witness has cosigned this size before."""
    return (
        unit.run(
            "insert into cosignature (tenant, size, witness, line) values (:tenant, :size, :witness, :line) on conflict do nothing",
            size=size, witness=witness, line=line,
        ).rowcount
        == 1
    )  # fmt: skip


def lines(unit: Unit, size: int) -> tuple[bytes, ...]:
    """What the witnesses added to the checkpoint of this size."""
    rows = unit.all("select line from cosignature where tenant = :tenant and size = :size order by witness", size=size)
    return tuple(bytes(row[0]) for row in rows)


def checkpoint_at(unit: Unit, size: int, witnesses: Sequence[str]) -> Checkpoint | None:
    """The smallest checkpoint that covers `size` entries and that all of these have cosigned."""
    row = unit.one(
        "select size from cosignature where tenant = :tenant and size >= :size and witness = any(:witnesses) "
        "group by size having count(*) = :count order by size limit 1",
        size=size, witnesses=list(witnesses), count=len(witnesses),
    )  # fmt: skip
    return None if row is None else entries.checkpoint_at(unit, int(row[0]))
