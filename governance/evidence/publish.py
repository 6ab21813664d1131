"""Publishes each log to the bucket (tiles, entries, checkpoints), and stops a log that the bucket knows further or otherwise."""

from __future__ import annotations

import datetime
from typing import Protocol

from engine.errors import BrokenLedger, OperatorError
from engine.ledger.notes import read_checkpoint, read_note
from engine.ledger.tiles import entries_name, names, tile_name, tile_width, write_entries
from engine.ledger.tree import leaf_hash
from governance import clock, log, metrics
from governance.store import cosigned, published, trees
from governance.store.dispatch import Dispatch
from governance.store.entries import Checkpoint
from governance.store.unit import Database

_say = log.get("publish")
publish_seconds = 2.0  # between two checkpoints of one log in the bucket
partial_seconds = 60.0  # between two copies of a log's last tiles, which are not full yet


class Shelf(Protocol):
    """Write-once storage outside the database."""

    def keep(self, key: str, data: bytes, retain_until: datetime.datetime | None) -> str:
        """Store once, locked until a date or not at all."""

    def first(self, key: str) -> bytes | None:
        """The oldest version of a key."""

    def later(self, prefix: str, after: str) -> list[str]:
        """The next keys behind this one."""


def log_prefix(tenant: str) -> str:
    """Where a tenant's log stands in the bucket; a run's name is never `log`."""
    return f"{tenant}/log/0/"


def checkpoint_key(tenant: str, size: int) -> str:
    """Twenty digits, so that the order of names is the order of sizes."""
    return f"{log_prefix(tenant)}checkpoint/{size:020}"


class Publisher:
    """Any number of processes may run one: what is stored at a place is the same whoever stores it."""

    def __init__(
        self,
        database: Database,
        shelf: Shelf,
        *,
        retain_days: int,
        every: float = publish_seconds,
        partial: float = partial_seconds,
    ) -> None:
        """`every` and `partial` are the seconds between checkpoints and between copies of the tiles that are not full."""
        self._database = database
        self._dispatch = Dispatch(database)
        self._shelf = shelf
        self._retain = datetime.timedelta(days=retain_days)
        self._every, self._partial = every, partial
        self._met: set[str] = set()  # compared by this process, whatever others compared
        self._asked: dict[str, float] = {}
        self._stopped: set[str] = set()
        self._last: dict[str, float] = {}
        self._last_partial: dict[str, float] = {}

    def may_sign(self, tenant: str) -> bool:
        """Whether the bucket agrees with the database about this log.

        Each process asks before it signs: a database that was restored from a backup would fork the log. A bucket that
        does not answer is asked again, and nothing is signed until it has.
        """
        now = clock.monotonic()
        if tenant not in self._met and now - self._asked.get(tenant, now - self._every) >= self._every:
            self._asked[tenant] = now
            try:
                self._compare(tenant)
                self._met.add(tenant)
            except OperatorError as error:
                metrics.count("bucket_silent")
                _say.warning("bucket cannot be compared", tenant=tenant, reason=str(error))
            except BrokenLedger as error:
                self._stop(tenant, error)
        return tenant in self._met and tenant not in self._stopped

    def step(self) -> int:
        """One round over all logs; how many checkpoints were stored."""
        stored = 0
        for tenant in self._dispatch.tenants():
            now = clock.monotonic()
            if now - self._last.get(tenant, now - self._every) < self._every or not self.may_sign(tenant):
                continue
            try:
                stored += self._publish(tenant, now)
                self._last[tenant] = now
            except BrokenLedger as error:
                self._stop(tenant, error)
            except OperatorError as error:
                # Only what somebody else stored at our place is a disagreement; a bucket that is away is not.
                if error.code == "vault_conflict":
                    self._stop(tenant, error)
                else:
                    metrics.count("bucket_silent")
                    _say.warning("not published", tenant=tenant, reason=str(error))
        return stored

    def _stop(self, tenant: str, error: BrokenLedger | OperatorError) -> None:
        metrics.count("bucket_disagrees")
        self._met.add(tenant)
        self._stopped.add(tenant)
        _say.error("log stopped", tenant=tenant, reason=error.reason)

    def _compare(self, tenant: str) -> None:
        """Every checkpoint in the bucket from the newest that we know to be there is one of ours."""
        with self._database.unit(tenant, write=False) as unit:
            size, newest = published.size(unit), cosigned.newest_signed(unit)
        if size:
            self._same(tenant, checkpoint_key(tenant, size), size)
        self._agrees(tenant, size, 0 if newest is None else newest.size)

    def _agrees(self, tenant: str, since: int, newest: int) -> None:
        """Each checkpoint in the bucket behind this size is one of ours: another process may have stored it before us."""
        prefix = f"{log_prefix(tenant)}checkpoint/"
        after = checkpoint_key(tenant, since) if since else prefix
        while more := self._shelf.later(prefix, after):
            for key in more:
                at = int(key.rpartition("/")[2])
                if at > newest:
                    raise BrokenLedger(
                        f"the bucket has a checkpoint of {at} entries of this log and the database has {newest}: "
                        "it is older than its evidence",
                        code="log_behind",
                    )
                self._same(tenant, key, at)
            after = more[-1]

    def _same(self, tenant: str, key: str, size: int) -> None:
        there = self._shelf.first(key)
        with self._database.unit(tenant, write=False) as unit:
            here = published.exactly(unit, size)
        if there is None:
            raise BrokenLedger(
                f"the checkpoint of {size} entries was published and is not in the bucket: it is another one, or was emptied",
                code="bucket_emptied",
            )
        if here is None or there != here.note:
            raise BrokenLedger(f"the bucket has another history of this log at {size} entries", code="log_forked")

    def _publish(self, tenant: str, now: float) -> int:
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            newest, since = cosigned.newest_signed(unit), published.size(unit)
            if newest is None or newest.note is None or newest.size <= since:
                return 0
            until = (unit.now() + self._retain).replace(microsecond=0)
        read = read_checkpoint(read_note(newest.note).text)
        if (read.size, read.root) != (newest.size, newest.root):
            raise BrokenLedger("the signed note is about another tree", code="root_mismatch")
        partial = now - self._last_partial.get(tenant, now - self._partial) >= self._partial
        for level, n, width in names(since, newest.size):
            if width == tile_width or partial:
                self._tile(tenant, newest, (level, n, width), until if width == tile_width else None)
        if partial:
            self._last_partial[tenant] = now
        self._agrees(tenant, since, newest.size)
        self._shelf.keep(checkpoint_key(tenant, newest.size), newest.note, until)
        with self._database.unit(tenant) as unit:
            published.mark(unit, newest.size)
        return 1

    def _tile(
        self, tenant: str, newest: Checkpoint, place: tuple[int, int, int], until: datetime.datetime | None
    ) -> None:
        """A tile as the database has it; one of level 0 with its entries, each hashed again."""
        level, n, width = place
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            if level:
                hashes = list(trees.tiles_of(unit, newest.size).tile(level, n))
            else:
                entries = published.bodies(unit, n * tile_width, n * tile_width + width)
                hashes = [leaf_hash(body) for body in entries]
        if level == 0:
            self._shelf.keep(log_prefix(tenant) + entries_name(n, width), write_entries(entries), until)
        self._shelf.keep(log_prefix(tenant) + tile_name(level, n, width), b"".join(hashes), until)
