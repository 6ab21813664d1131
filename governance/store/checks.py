"""What `fsck` reads: the stored rows of one run, one chain or one tenant's log, as they are and unchecked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run's own row, without what its journal says."""

    status: str
    ended: bool
    chain_seq: int
    chain_head: bytes
    waits_for: str
    definition: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """The rows about one run that other rows must agree with; each is the columns its field names."""

    actions: Sequence[Any]  # promise, rev, digest, body
    verdicts: Sequence[Any]  # promise, n, action_digest, body, input, findings
    intents: Sequence[Any]  # key, turn, promise, action_digest
    receipts: Sequence[Any]  # key, attempt, n, promise, status, action_digest, body, signature, key_id
    work: Sequence[Any]  # item, stage, state
    due: Sequence[Any]  # kind, ref
    bundle: Any | None  # state, sha256, size
    doubts: Sequence[Any]  # doubt, promise, attempt
    words: Sequence[Any]  # doubt, person, of those that have an entry of their own
    children: int  # runs that it started and that go on


def runs(unit: Unit, after: str, limit: int) -> list[str]:
    """Runs in the order of their names."""
    rows = unit.all(
        "select run from run where tenant = :tenant and run > :after order by run limit :n", after=after, n=limit
    )
    return [row[0] for row in rows]


def count(unit: Unit) -> int:
    """How many runs there are."""
    row = unit.one("select count(*) from run where tenant = :tenant")
    assert row is not None
    return int(row[0])


def run_row(unit: Unit, run: str) -> RunRow:
    """The run's own row."""
    row = unit.one(
        "select status, ended_at is not null, chain_seq, chain_head, waits_for, definition from run "
        "where tenant = :tenant and run = :run",
        run=run,
    )
    assert row is not None
    return RunRow(row[0], row[1], row[2], bytes(row[3]), row[4], bytes(row[5]))


def held(unit: Unit, run: str) -> Held:
    """Everything that the gate and the queue hold about a run."""
    of_run = "where tenant = :tenant and run = :run"
    return Held(
        actions=unit.all(f"select promise, rev, digest, body from action {of_run} order by promise, rev", run=run),
        verdicts=unit.all(
            f"select promise, n, action_digest, body, input, findings from verdict {of_run} order by promise, n",
            run=run,
        ),
        intents=unit.all(
            f"select key, turn, promise, action_digest from intent {of_run} order by promise, turn", run=run
        ),
        receipts=unit.all(
            "select key, attempt, n, promise, status, action_digest, body, signature, key_id from receipt "
            f"{of_run} order by promise, attempt, n",
            run=run,
        ),
        work=unit.all(f"select item, stage, state from work {of_run} order by item, stage", run=run),
        due=unit.all(f"select kind, ref from due {of_run} order by kind, ref", run=run),
        bundle=unit.one(f"select state, sha256, size from bundle {of_run}", run=run),
        doubts=unit.all(f"select doubt, promise, attempt from doubt {of_run} order by promise, attempt", run=run),
        words=unit.all(
            f"select doubt, person from word {of_run} and how in ('probe', 'retry') order by doubt, n", run=run
        ),
        children=len(
            unit.all("select 1 from run where tenant = :tenant and parent = :run and ended_at is null", run=run)
        ),
    )


def chains(unit: Unit) -> list[tuple[str, int, bytes]]:
    """(chain, entries, head) of every object with a chain of its own."""
    rows = unit.all("select chain, seq, head from chain where tenant = :tenant order by chain")
    return [(row[0], int(row[1]), bytes(row[2])) for row in rows]


def log_head(unit: Unit) -> tuple[int, bytes, bool]:
    """(size, root, whether there is a log) of the tenant."""
    row = unit.one("select size, root from audit_head where tenant = :tenant")
    return (0, b"", False) if row is None else (int(row[0]), bytes(row[1]), True)


def checkpoints(unit: Unit) -> list[tuple[int, bytes, bytes]]:
    """(size, root, note) of the signed checkpoints, smallest first."""
    rows = unit.all("select size, root, note from checkpoint where tenant = :tenant and note is not null order by size")
    return [(int(row[0]), bytes(row[1]), bytes(row[2])) for row in rows]


def bodies(unit: Unit, since: int, limit: int) -> list[tuple[int, bytes, bytes]]:
    """(position, body, leaf) of entries in the log, from a position on."""
    rows = unit.all(
        "select position, body, leaf from entry where tenant = :tenant and position >= :since order by position limit :n",
        since=since, n=limit,
    )  # fmt: skip
    return [(int(row[0]), bytes(row[1]), bytes(row[2])) for row in rows]


def nodes(unit: Unit, level: int) -> list[bytes]:
    """The stored roots of full tiles at one level, by their place; a missing place ends the list."""
    rows = unit.all(
        "select position, hash from node where tenant = :tenant and level = :level order by position", level=level
    )
    return [bytes(row[1]) for at, row in enumerate(rows) if row[0] == at]
