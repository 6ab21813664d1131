"""What proofs and checkpoints cost in a log of a million entries: real rows in PostgreSQL, wall time.

Asserts that an inclusion proof takes 5 ms at most, that a new entry is under a checkpoint within a second, and that one
entry's encoding with its leaf costs at most twelve bare SHA-256; on a machine that does nothing else. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.ledger.entries import GENESIS, Fact, build
from engine.ledger.tree import Frontier, leaf_hash, verify_inclusion
from governance import clock
from governance.evidence.sequence import Log
from governance.keys import signer_of
from governance.local import postgres
from governance.local.children import Children
from governance.store import entries, migrate, people, trees
from governance.store.entries import Sequencer
from governance.store.unit import Database

TENANT = "bench"
PROOF_SECONDS_MAX = 0.005
CHECKPOINT_SECONDS_MAX = 1.0
ENCODE_MAX = 12.0
FILL = """
insert into entry (tenant, position, chain, chain_seq, body, leaf)
select 'bench', n, 'old/' || n / 1000, n %% 1000, body, sha256('\\x00'::bytea || body)
  from (select n, convert_to('an entry of an older time, number ' || n || repeat('.', 500), 'UTF8') as body
          from generate_series(0, %s - 1) n) rows
"""
FACT = Fact(
    "evidence.downloaded",
    {"type": "person", "id": "per_0123456789abcdef"},
    {"sha256": "ab" * 32, "person": "per_0123456789abcdef"},
)


def filled(superuser: str, size: int) -> bytes:
    """So many entries, and the head that they have."""
    with psycopg.connect(superuser) as connection:
        connection.execute(FILL, (size,))
        frontier = Frontier()
        with connection.cursor(name="leaves") as cursor:
            cursor.itersize = 50_000
            cursor.execute("select leaf from entry where tenant = 'bench' order by position")
            frontier = frontier.extend(bytes(row[0]) for row in cursor)
        connection.execute(
            "update audit_head set size = %s, frontier = %s, root = %s where tenant = 'bench'",
            (frontier.size, list(frontier.nodes), frontier.root),
        )
        connection.execute(
            "insert into checkpoint (tenant, size, root, frontier, note) values ('bench', %s, %s, %s, 'before')",
            (frontier.size, frontier.root, list(frontier.nodes)),
        )
        connection.execute("analyze entry")
    return frontier.root


def seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def proofs(database: Database, size: int, root: bytes, count: int = 60) -> list[float]:
    """Each in a transaction of its own, with nothing remembered from the one before."""
    times = []
    for n in range(count):
        index = int.from_bytes(hashlib.sha256(b"%d" % n).digest()[:8], "big") % size

        def prove(index: int = index) -> None:
            with database.unit(TENANT, write=False, statement_seconds=60) as unit:
                path = trees.tiles_of(unit, size).inclusion(index)
                row = unit.one("select leaf from entry where tenant = :tenant and position = :at", at=index)
            assert row is not None
            verify_inclusion(bytes(row[0]), index, size, path, root)

        times.append(seconds(prove))
    return times


def checkpoints(database: Database) -> list[float]:
    """From the commit of an entry to the signed note over it."""
    signer = signer_of(bytes(range(32)))
    log = Log(database, deployment="bench", signer=lambda _: signer)
    times = []
    for _ in range(20):
        with database.unit(TENANT) as unit:
            entries.note(unit, "person/one", FACT)
        times.append(seconds(log.step))
        with database.unit(TENANT, write=False) as unit:
            row = unit.one(
                "select h.size, max(c.size) filter (where c.note is not null) from audit_head h join checkpoint c using (tenant) "
                "where tenant = :tenant group by h.size"
            )
        assert row is not None
        assert row[0] == row[1], "the newest entry is under a signed checkpoint"
    return times


def encoding() -> float:
    """How many bare hashes of its bytes the encoding of an entry with its leaf costs."""
    at = clock.now_utc()
    body, _ = build(FACT, TENANT, "person/one", 7, GENESIS, at)

    def best(work: Callable[[], Any]) -> float:
        def many() -> None:
            for _ in range(3000):
                work()

        return min(seconds(many) for _ in range(7))

    return best(lambda: build(FACT, TENANT, "person/one", 7, GENESIS, at)) / best(lambda: leaf_hash(body))


def bench_all(application: postgres.Database, superuser: str, size: int) -> dict[str, Any]:
    database = Database(application.app_url)
    with database.unit(TENANT) as unit:
        people.add_tenant(unit, name="Bench", environment="dev", salt_key=b"")
    root = filled(superuser, size)
    (cold,) = proofs(database, size, root, 1)
    sequencer, steps = Sequencer(database), 0
    begun = time.perf_counter()
    while TENANT not in sequencer._grown:
        sequencer.step(TENANT, 500)
        steps += 1
    grown = time.perf_counter() - begun
    proved, signed, ratio = proofs(database, size, root), checkpoints(database), encoding()
    database.close()
    found = {
        "bench": "evidence", "processors": os.cpu_count(), "load_average": os.getloadavg()[0], "entries": size,
        "proof_ms": {"median": round(median(proved) * 1000, 2), "most": round(max(proved) * 1000, 2)},
        "proof_without_stored_nodes_ms": round(cold * 1000, 1),
        "nodes_made_up_for_s": round(grown, 2), "nodes_steps": steps,
        "checkpoint_ms": {"median": round(median(signed) * 1000, 2), "most": round(max(signed) * 1000, 2)},
        "encode_in_hashes": round(ratio, 1),
    }  # fmt: skip
    faults = []
    if median(proved) > PROOF_SECONDS_MAX:
        faults.append(f"an inclusion proof takes {median(proved) * 1000:.1f} ms")
    if max(signed) > CHECKPOINT_SECONDS_MAX:
        faults.append(f"a checkpoint takes {max(signed):.2f} s")
    if ratio > ENCODE_MAX:
        faults.append(f"an entry costs {ratio:.1f} hashes")
    return {**found, "faults": faults}


def main() -> int:
    options = argparse.ArgumentParser(description="What proofs and checkpoints cost in a long log.")
    options.add_argument("--entries", type=int, default=1_000_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as place:
        directory = Path(place)
        directory.chmod(0o711)
        with Children(directory / "logs") as children:
            server = postgres.start(children, directory)
            application = server.create_application("bench")
            migrate.upgrade(application.owner_url, postgres.APP_ROLE)
            found = bench_all(application, server.url(postgres.SUPERUSER, "bench"), given.entries)
    print(json.dumps(found, indent=1))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
