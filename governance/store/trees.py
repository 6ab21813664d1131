"""The tree of a tenant's log as it is stored: leaves with the entries, the roots of full tiles above them, proofs from both."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from engine.errors import BrokenLedger
from engine.ledger.tiles import Tiles, hashes_at, tile_root, tile_width
from governance.store.unit import Unit

_leaves = "select position, leaf from entry where tenant = :tenant and position >= :since and position < :until order by position"
_nodes = (
    "select position, hash from node where tenant = :tenant and level = :level and position >= :since and position < :until "
    "order by position"
)
_reach = "select level, max(position) + 1 from node where tenant = :tenant group by level"
_put = sa.text("insert into node (tenant, level, position, hash) values (:tenant, :level, :position, :hash)")
grown_per_step_max = 64  # tiles: a log that an older release wrote is made up for in steps


def tiles_of(unit: Unit, size: int) -> Tiles:
    """Proofs of the first `size` entries; each costs a read of one tile to a level."""

    def read(level: int, since: int, count: int) -> Sequence[bytes]:
        rows = unit.all(
            _nodes if level else _leaves, since=since, until=since + count, **({"level": level} if level else {})
        )
        if [row[0] for row in rows] != list(range(since, since + len(rows))):
            raise BrokenLedger(f"level {level} of the tree of {unit.tenant} has a gap behind {since}", code="log_gap")
        return [bytes(row[1]) for row in rows]

    return Tiles(size, read)


def grow(connection: sa.Connection, tenant: str, size: int) -> int:
    """Store the roots of tiles that have become full, for the sequencer under its lock; how many."""
    reach = {row[0]: int(row[1]) for row in connection.execute(sa.text(_reach), {"tenant": tenant})}
    stored = 0
    level = 1
    while hashes_at(size, level):
        # A tile is only full when all of it is stored one level below.
        below = hashes_at(size, 0) if level == 1 else reach.get(level - 1, 0)
        for position in range(reach.get(level, 0), min(below // tile_width, reach.get(level, 0) + grown_per_step_max)):
            where = {"tenant": tenant, "since": position * tile_width, "until": (position + 1) * tile_width}
            read = sa.text(_leaves if level == 1 else _nodes)
            rows = connection.execute(read, where if level == 1 else {**where, "level": level - 1}).all()
            root = tile_root([bytes(row[1]) for row in rows])
            connection.execute(_put, {"tenant": tenant, "level": level, "position": position, "hash": root})
            reach[level] = position + 1
            stored += 1
        level += 1
    return stored
