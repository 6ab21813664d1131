"""The log's rows: facts enter pending in the transaction they belong to; the sequencer gives each its position; checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from engine.errors import BrokenLedger
from engine.ledger.entries import GENESIS, Fact, build, read_entry
from engine.ledger.tiles import hashes_at
from engine.ledger.tree import Frontier, leaf_hash
from governance.store import trees
from governance.store.unit import Database, Row, Unit


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry with its place: its position in the tenant's tree is None while it is pending."""

    position: int | None
    chain: str
    chain_seq: int
    body: bytes
    leaf: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree size that was fixed, and its signed note once there is one."""

    size: int
    root: bytes
    note: bytes | None
    frontier: Frontier


_pending = "insert into entry_pending (tenant, chain, chain_seq, body, leaf) values (:tenant, :chain, :chain_seq, :body, :leaf)"


def put_built(unit: Unit, chain: str, built: Sequence[tuple[int, bytes, bytes]]) -> None:
    """Entries of a run's chain, already built under the run's lock: (chain_seq, body, leaf)."""
    unit.many(_pending, [{"chain": chain, "chain_seq": seq, "body": body, "leaf": leaf} for seq, body, leaf in built])


def note(unit: Unit, chain: str, fact: Fact) -> None:
    """One entry of an object's own chain (template/x, person/y): locks that chain, never the tenant."""
    unit.run(
        "insert into chain (tenant, chain, seq, head) values (:tenant, :chain, 0, :head) on conflict do nothing",
        chain=chain,
        head=GENESIS,
    )
    row = unit.one(
        "select seq, head, clock_timestamp() from chain where tenant = :tenant and chain = :chain for update",
        chain=chain,
    )
    assert row is not None
    body, leaf = build(fact, unit.tenant, chain, row[0], bytes(row[1]), row[2])
    unit.noted.append(fact.type)
    put_built(unit, chain, [(row[0], body, leaf)])
    unit.run(
        "update chain set seq = seq + 1, head = :head where tenant = :tenant and chain = :chain", chain=chain, head=leaf
    )


def note_run(unit: Unit, run: str, facts: Sequence[Fact]) -> None:
    """Entries of a run's chain when nothing else of the run changes: refusals, downloads, late clicks. Locks the run row."""
    row = unit.one(
        "select chain_seq, chain_head, clock_timestamp() from run where tenant = :tenant and run = :run for update",
        run=run,
    )
    if row is None or not facts:
        return
    seq, head = int(row[0]), bytes(row[1])
    built = []
    for fact in facts:
        body, leaf = build(fact, unit.tenant, run, seq, head, row[2])
        built.append((seq, body, leaf))
        seq, head = seq + 1, leaf
    put_built(unit, run, built)
    unit.noted += [fact.type for fact in facts]
    unit.run(
        "update run set chain_seq = :seq, chain_head = :head where tenant = :tenant and run = :run",
        run=run,
        seq=seq,
        head=head,
    )


def chain_of(unit: Unit, chain: str) -> list[Logged]:
    """Every entry of one chain in order, positioned or still pending."""
    rows = unit.all(
        "select position, chain, chain_seq, body, leaf from entry where tenant = :tenant and chain = :chain "
        "union all select null, chain, chain_seq, body, leaf from entry_pending where tenant = :tenant and chain = :chain order by 3",
        chain=chain,
    )
    return [Logged(row[0], row[1], row[2], bytes(row[3]), bytes(row[4])) for row in rows]


class Sequencer:
    """Assigns positions, always under the role tk_sequencer: head first, then rows, so that commit order is log order."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._grown: set[str] = set()  # tenants whose tree this process has seen complete

    def step(self, tenant: str, limit: int) -> int:
        """Move up to `limit` pending entries into the log; how many were moved."""
        with self._database.across("tk_sequencer", tenant) as connection:
            head = connection.execute(
                sa.text("select size, frontier from audit_head where tenant = :tenant for update skip locked"),
                {"tenant": tenant},
            ).first()
            if head is None:
                return 0
            rows = connection.execute(
                sa.text(
                    "select chain, chain_seq, body, leaf, id from entry_pending where tenant = :tenant order by id limit :limit"
                ),
                {"tenant": tenant, "limit": limit},
            ).all()
            if not rows:
                self._grow(connection, tenant, int(head[0]), int(head[0]))
                return 0
            self._check(connection, tenant, rows)
            frontier = Frontier(int(head[0]), tuple(bytes(node) for node in head[1]))
            # What was looked at is what moves: whoever may write here may not change a row, and only we may take one away.
            moved = connection.execute(
                sa.text(
                    "with taken as (delete from entry_pending where tenant = :tenant and id = any(:ids) "
                    "returning id, chain, chain_seq, body, leaf) "
                    "insert into entry (tenant, position, chain, chain_seq, body, leaf) "
                    "select :tenant, :size + row_number() over (order by id) - 1, chain, chain_seq, body, leaf from taken"
                ),
                {"tenant": tenant, "size": frontier.size, "ids": [row[4] for row in rows]},
            ).rowcount
            if moved != len(rows):
                raise BrokenLedger(f"{len(rows)} entries of {tenant} were to be placed, {moved} were", code="log_gap")
            before, frontier = frontier.size, frontier.extend(bytes(row[3]) for row in rows)
            connection.execute(
                sa.text(
                    "update audit_head set size = :size, frontier = :frontier, root = :root where tenant = :tenant"
                ),
                {"tenant": tenant, "size": frontier.size, "frontier": list(frontier.nodes), "root": frontier.root},
            )
            self._grow(connection, tenant, before, frontier.size)
            return len(rows)

    def _grow(self, connection: sa.Connection, tenant: str, before: int, size: int) -> None:
        # Asked once for each tenant, because an older release may have written the log, and whenever a tile became full.
        if tenant in self._grown and hashes_at(before, 1) == hashes_at(size, 1):
            return
        if trees.grow(connection, tenant, size):
            self._grown.discard(tenant)
        else:
            self._grown.add(tenant)

    def _check(self, connection: sa.Connection, tenant: str, rows: Sequence[Row]) -> None:
        # Each chain must go on exactly where the log left it: a gap or a fork stops the log, it is never papered over.
        chains = sorted({row[0] for row in rows})
        found = connection.execute(
            sa.text(
                "select c.chain, e.chain_seq, e.leaf from unnest(cast(:chains as text[])) as c (chain) cross join lateral "
                "(select chain_seq, leaf from entry where tenant = :tenant and chain = c.chain order by chain_seq desc limit 1) e"
            ),
            {"tenant": tenant, "chains": chains},
        ).all()
        last: dict[str, tuple[int, bytes]] = {row[0]: (row[1], bytes(row[2])) for row in found}
        for chain, seq, body, leaf, _ in rows:
            before, head = last.get(chain, (-1, GENESIS))
            entry = read_entry(bytes(body))
            if seq != before + 1 or entry.prev != head.hex() or entry.leaf != bytes(leaf):
                raise BrokenLedger(f"entry {seq} of {chain} does not follow entry {before}", code="chain_broken")
            last[chain] = (seq, bytes(leaf))

    def fix_checkpoint(self, tenant: str) -> Checkpoint | None:
        """Fix the present size and root as a checkpoint to be signed; the oldest unsigned one, None when all are signed."""
        with self._database.across("tk_sequencer", tenant) as connection:
            connection.execute(
                sa.text(
                    "insert into checkpoint (tenant, size, root, frontier) select tenant, size, root, frontier from audit_head "
                    "where tenant = :tenant and size > 0 on conflict do nothing"
                ),
                {"tenant": tenant},
            )
            row = connection.execute(
                sa.text(
                    "select size, root, note, frontier from checkpoint where tenant = :tenant and note is null order by size limit 1"
                ),
                {"tenant": tenant},
            ).first()
            return _checkpoint(row)


def _checkpoint(row: Row | None) -> Checkpoint | None:
    if row is None:
        return None
    note = bytes(row[2]) if row[2] is not None else None
    return Checkpoint(int(row[0]), bytes(row[1]), note, Frontier(int(row[0]), tuple(bytes(node) for node in row[3])))


def sign_checkpoint(unit: Unit, size: int, signed: bytes) -> None:
    """Store the signed note of a fixed size, once."""
    unit.run(
        "update checkpoint set note = :note where tenant = :tenant and size = :size and note is null",
        size=size,
        note=signed,
    )


def checkpoint_at(unit: Unit, size: int) -> Checkpoint | None:
    """The smallest signed checkpoint that covers `size` entries."""
    return _checkpoint(
        unit.one(
            "select size, root, note, frontier from checkpoint where tenant = :tenant and size >= :size and note is not null "
            "order by size limit 1",
            size=size,
        )
    )


def signed_before(unit: Unit, size: int) -> Checkpoint | None:
    """The newest signed checkpoint below this size."""
    return _checkpoint(
        unit.one(
            "select size, root, note, frontier from checkpoint where tenant = :tenant and size < :size and note is not null "
            "order by size desc limit 1",
            size=size,
        )
    )


def recomputed_root(unit: Unit, since: Frontier, size: int) -> bytes:
    """The root over the stored bytes of the first `size` entries, going on from a frontier that was signed before."""
    rows = unit.all(
        "select position, body from entry where tenant = :tenant and position >= :since and position < :size order by position",
        since=since.size, size=size,
    )  # fmt: skip
    if [row[0] for row in rows] != list(range(since.size, size)):
        raise BrokenLedger(f"the log of {unit.tenant} has a gap below {size}", code="log_gap")
    return since.extend(leaf_hash(bytes(row[1])) for row in rows).root
