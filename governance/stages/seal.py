"""Seal: freeze what is recorded, build the bundle, upload it, read it back, and tell the log; each step its own commit."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from engine.canonical import sha256
from engine.errors import BrokenLedger
from engine.ledger.bundle import BundleContents, PolicySource, SignedReceipt, build
from engine.ledger.entries import Fact, read_entry
from engine.ledger.tree import leaf_hash, verify_inclusion
from governance import log
from governance.keys import Signer
from governance.store import cosigned, entries, evidence, published, templates, trees
from governance.store.dispatch import Lease
from governance.store.unit import Database, Unit

_say = log.get("seal")
witness_seconds_max = 300  # so long a bundle waits for witnesses that do not answer


class Vault(Protocol):
    """Write-once storage outside the database."""

    def put(self, key: str, data: bytes, retain_until: datetime.datetime) -> str:
        """Store once; the version it got, also when a repeat finds its own bytes there."""

    def get(self, key: str, version_id: str) -> bytes:
        """The bytes of exactly this version."""


class Seal:
    """The hands of this stage: the vault, the bundle key, the trust text and the verifier's copy."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        *,
        signer: Callable[[str], Signer],
        trust: Callable[[str], str],
        verifier: bytes,
        policy_files: Callable[[str, str], tuple[PolicySource, ...]],
        retain_days: int,
        witnesses: tuple[str, ...] = (),
    ) -> None:
        """`witnesses` are the names of those whose cosignatures a bundle waits for."""
        self._database = database
        self._vault = vault
        self._signer = signer
        self._trust = trust
        self._verifier = verifier
        self._policy_files = policy_files
        self._witnesses = witnesses
        self._retain = datetime.timedelta(days=retain_days)

    def run(self, lease: Lease) -> None:
        """From wherever a crash left it to sealed; waits while the log has not yet covered the run."""
        tenant, run = lease.tenant, lease.run
        while True:
            with self._database.unit(tenant, write=False) as unit:
                row = evidence.row(unit, run)
            if row is None:
                if not self._freeze(lease):
                    return
            elif row.state == "frozen":
                self._build(tenant, run, row.checkpoint_size)
            elif row.state == "built":
                assert row.body is not None
                assert row.retain_until is not None
                version = self._vault.put(row.object_key, row.body, row.retain_until)
                with self._database.unit(tenant) as unit:
                    evidence.uploaded(unit, run, version)
            else:
                self._finish(lease, row)
                return

    def _freeze(self, lease: Lease) -> bool:
        with self._database.unit(lease.tenant) as unit:
            closed = evidence.closed_at(unit, lease.run)
            placed = evidence.positions(unit, lease.run, closed[0]) if closed else []
            covering = (
                self._covering(unit, placed[-1][0] + 1, closed[2]) if closed and len(placed) == closed[0] else None
            )
            if covering is None or published.size(unit) < covering.size:
                # The log covers every entry before a bundle is made, and the bucket knows of that log at least as much as
                # the bundle: a database that is restored from a backup behind a bundle is behind the bucket too.
                self._wait(unit, lease, 0.2)
                return False
            evidence.freeze(unit, lease.run, covering.size)
        return True

    def _covering(self, unit: Unit, size: int, ended: datetime.datetime) -> entries.Checkpoint | None:
        """A checkpoint with every witness under it; after five minutes one without, and the verifier will say so."""
        if not self._witnesses:
            return entries.checkpoint_at(unit, size)
        found = cosigned.checkpoint_at(unit, size, self._witnesses)
        if found is None and (unit.now() - ended).total_seconds() > witness_seconds_max:
            return entries.checkpoint_at(unit, size)
        return found

    def _wait(self, unit: Unit, lease: Lease, seconds: float) -> None:
        unit.run(
            "update work set state = 'ready', owner = '', lease_until = null, eligible_at = clock_timestamp() + make_interval(secs => :s) "
            "where tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner and epoch = :epoch",
            s=seconds, run=lease.run, item=lease.item, stage=lease.stage, owner=lease.owner, epoch=lease.epoch,
        )  # fmt: skip

    def _build(self, tenant: str, run: str, size: int) -> None:
        signer = self._signer(tenant)
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            closed = evidence.closed_at(unit, run)
            checkpoint = entries.checkpoint_at(unit, size)
            if closed is None or checkpoint is None or checkpoint.note is None or checkpoint.size != size:
                raise BrokenLedger(
                    f"the checkpoint of size {size} that {run} was frozen at is gone", code="checkpoint_gone"
                )
            placed = evidence.positions(unit, run, closed[0])
            note = checkpoint.note + b"".join(cosigned.lines(unit, size))
            tiles = trees.tiles_of(unit, size)
            proofs = tuple(tiles.inclusion(at) for at, _ in placed)
            found = evidence.material(unit, run)
            definition = templates.by_digest(unit, closed[1])
            moved_to = tuple(templates.by_digest(unit, digest).body for digest in _moved_to(placed))
        for (at, body), proof in zip(placed, proofs, strict=True):
            verify_inclusion(leaf_hash(body), at, size, proof, checkpoint.root)
        contents = BundleContents(
            entries=tuple(body for _, body in placed), indexes=tuple(at for at, _ in placed),
            proofs=proofs, checkpoint=note,
            documents=self._committed(placed, found),
            receipts=tuple(SignedReceipt(*one) for one in found.receipts), definition=definition.body, journal=found.journal,
            policies=tuple(one for revision in found.revisions for one in self._policy_files(tenant, revision)), trust=self._trust(tenant),
            verifier=self._verifier, public=signer.public, sign=signer.sign, moved_to=moved_to,
        )  # fmt: skip
        body = build(contents)
        digest = sha256(body)
        until = (closed[2] + self._retain).astimezone(datetime.UTC).replace(microsecond=0)
        with self._database.unit(tenant) as unit:
            evidence.built(unit, run, digest, body, f"{tenant}/{run}/{digest.hex()}.zip", until)

    def _committed(self, placed: list[tuple[int, bytes]], found: evidence.Material) -> tuple[bytes, ...]:
        # Only documents that an entry commits to travel; a late verdict after run.closed stays outside.
        text = b"".join(body for _, body in placed)
        return tuple(document for document in found.documents if sha256(document).hex().encode() in text)

    def _finish(self, lease: Lease, row: evidence.BundleRow) -> None:
        tenant, run = lease.tenant, lease.run
        assert row.sha256 is not None
        if row.state == "uploaded":
            back = self._vault.get(row.object_key, row.version_id)
            if sha256(back) != row.sha256:
                raise BrokenLedger(f"the bucket gives other bytes for {row.object_key}", code="vault_mismatch")
        with self._database.unit(tenant) as unit:
            if evidence.sealed(unit, run):
                body = {
                    "sha256": row.sha256.hex(),
                    "size": row.size,
                    "key": row.object_key,
                    "version_id": row.version_id,
                }
                entries.note_run(unit, run, [Fact("evidence.sealed", {"type": "system", "id": "twokeys"}, body)])
            unit.run(
                "delete from work where tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner "
                "and epoch = :epoch",
                run=run, item=lease.item, stage=lease.stage, owner=lease.owner, epoch=lease.epoch,
            )  # fmt: skip
        _say.info("sealed", sha256=row.sha256.hex(), size=row.size)


def _moved_to(placed: list[tuple[int, bytes]]) -> list[bytes]:
    """The digests of the code that people moved the run to, in order."""
    found = [read_entry(body) for _, body in placed if b'"run.migrated"' in body]
    return [bytes.fromhex(one.body["definition_sha256"]) for one in found if one.type == "run.migrated"]
