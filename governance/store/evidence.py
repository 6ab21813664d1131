"""What a bundle is made of and how far it is: frozen, built, uploaded, sealed, each state its own commit."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class BundleRow:
    """The state of one run's bundle."""

    state: str
    checkpoint_size: int
    sha256: bytes | None
    size: int
    body: bytes | None
    object_key: str
    version_id: str
    retain_until: datetime.datetime | None


@dataclass(frozen=True, slots=True)
class Material:
    """The recorded facts of a finished run that travel in its bundle."""

    journal: tuple[bytes, ...]
    documents: tuple[bytes, ...]  # policy inputs and findings, exact bytes
    receipts: tuple[tuple[bytes, bytes, str], ...]
    revisions: tuple[str, ...]


def row(unit: Unit, run: str) -> BundleRow | None:
    """The bundle as recorded."""
    found = unit.one(
        "select state, checkpoint_size, sha256, coalesce(size, 0), body, object_key, version_id, retain_until from bundle "
        "where tenant = :tenant and run = :run",
        run=run,
    )
    if found is None:
        return None
    sha, body = found[2], found[4]
    return BundleRow(
        found[0],
        found[1],
        bytes(sha) if sha is not None else None,
        found[3],
        bytes(body) if body is not None else None,
        *found[5:8],
    )


def sealed_as(unit: Unit, sha256: bytes) -> tuple[str, BundleRow] | None:
    """The run whose sealed bundle has this digest."""
    found = unit.one("select run from bundle where tenant = :tenant and sha256 = :sha and state = 'sealed'", sha=sha256)
    known = row(unit, str(found[0])) if found is not None else None
    return None if found is None or known is None else (str(found[0]), known)


def freeze(unit: Unit, run: str, checkpoint_size: int) -> None:
    """Fix the inputs: from now on a repeat builds the same bytes."""
    unit.run(
        "insert into bundle (tenant, run, state, checkpoint_size) values (:tenant, :run, 'frozen', :size) on conflict do nothing",
        run=run, size=checkpoint_size,
    )  # fmt: skip


def built(unit: Unit, run: str, sha256: bytes, body: bytes, key: str, retain_until: datetime.datetime) -> None:
    """The bytes exist; they are kept here until they are uploaded."""
    unit.run(
        "update bundle set state = 'built', sha256 = :sha, size = :size, body = :body, object_key = :key, retain_until = :until "
        "where tenant = :tenant and run = :run and state = 'frozen'",
        run=run, sha=sha256, size=len(body), body=body, key=key, until=retain_until,
    )  # fmt: skip


def uploaded(unit: Unit, run: str, version_id: str) -> None:
    """The object is in the bucket under this version."""
    unit.run(
        "update bundle set state = 'uploaded', version_id = :version where tenant = :tenant and run = :run and state = 'built'",
        run=run, version=version_id,
    )  # fmt: skip


def sealed(unit: Unit, run: str) -> bool:
    """Read back, compared, and told; the bytes are no longer needed here. False when it was sealed before."""
    return (
        unit.run(
            "update bundle set state = 'sealed', body = null, sealed_at = clock_timestamp() "
            "where tenant = :tenant and run = :run and state = 'uploaded'",
            run=run,
        ).rowcount
        == 1
    )


def material(unit: Unit, run: str) -> Material:
    """Everything recorded about the run that its entries commit to or name."""
    journal = unit.all("select body from journal where tenant = :tenant and run = :run order by first_seq", run=run)
    verdicts = unit.all(
        "select input, findings, revision from verdict where tenant = :tenant and run = :run order by promise, n",
        run=run,
    )
    receipts = unit.all(
        "select body, signature, key_id from receipt where tenant = :tenant and run = :run order by key, attempt, n",
        run=run,
    )
    documents = {bytes(part): None for found in verdicts for part in (found[0], found[1])}
    return Material(
        journal=tuple(bytes(found[0]) for found in journal), documents=tuple(documents),
        receipts=tuple((bytes(r[0]), bytes(r[1]), r[2]) for r in receipts),
        revisions=tuple(sorted({found[2] for found in verdicts if found[2]})),
    )  # fmt: skip


def positions(unit: Unit, run: str, count: int) -> list[tuple[int, bytes]]:
    """(position, bytes) of the first `count` entries of the run's chain that have their place in the log."""
    rows = unit.all(
        "select position, body from entry where tenant = :tenant and chain = :run and chain_seq < :count order by chain_seq",
        run=run, count=count,
    )  # fmt: skip
    return [(int(found[0]), bytes(found[1])) for found in rows]


def closed_at(unit: Unit, run: str) -> tuple[int, bytes, datetime.datetime] | None:
    """(entries up to run.closed, pinned definition digest, end) of an ended run."""
    found = unit.one(
        "select definition, ended_at from run where tenant = :tenant and run = :run and ended_at is not null", run=run
    )
    if found is None:
        return None
    row_ = unit.one(
        "select chain_seq + 1 from (select chain_seq, body from entry where tenant = :tenant and chain = :run union all "
        "select chain_seq, body from entry_pending where tenant = :tenant and chain = :run) e "
        "where convert_from(body, 'UTF8')::jsonb ->> 'type' = 'run.closed' order by chain_seq limit 1",
        run=run,
    )
    return None if row_ is None else (int(row_[0]), bytes(found[0]), found[1])
