"""Keeps each tenant's log moving: positions for pending entries, then a checkpoint, recomputed from stored bytes before it is signed."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import BrokenLedger
from engine.ledger.notes import ED25519, Checkpoint, key_hash, log_origin, sign_note, signature_line, write_vkey
from engine.ledger.tree import Frontier
from engine.ledger.trust import write_trust
from governance import clock, log, metrics
from governance.keys import Signer
from governance.store import entries, secrets
from governance.store.dispatch import Dispatch
from governance.store.entries import Sequencer
from governance.store.unit import Database

_say = log.get("log")
batch = 500


class Log:
    """The sequencer and signer of every tenant's log; any number of processes may run one."""

    def __init__(
        self,
        database: Database,
        *,
        deployment: str,
        signer: Callable[[str], Signer],
        may_sign: Callable[[str], bool] = lambda _: True,
        beside: Callable[[str], tuple[Signer, ...]] = lambda _: (),
    ) -> None:
        """`may_sign` says whether bucket and witnesses know nothing that speaks against going on with a tenant's log;
        `beside` gives retired keys that sign for those who pinned them.
        """
        self._database = database
        self._dispatch = Dispatch(database)
        self._sequencer = Sequencer(database)
        self._deployment = deployment
        self._signer = signer
        self._may_sign = may_sign
        self._beside = beside
        self._signed: dict[str, int] = {}  # the largest size that this process signed

    def step(self) -> int:
        """One round over all tenants; how many entries got their position."""
        moved, behind = 0, False
        for tenant in self._dispatch.tenants():
            try:
                placed = self._sequencer.step(tenant, batch)
                moved, behind = moved + placed, behind or placed == batch
                if self._may_sign(tenant):
                    self._sign(tenant)
                else:
                    behind = True
            except Exception as error:  # one tenant's broken log stops that log, and is said, and stops no other
                behind = True
                _say.error("log stopped", tenant=tenant, reason=str(error))
        if not behind:
            metrics.level("log_caught_up_timestamp_seconds", clock.epoch_seconds())
        return moved

    def _sign(self, tenant: str) -> None:
        fixed = self._sequencer.fix_checkpoint(tenant)
        if fixed is None:
            return
        if fixed.size < self._signed.get(tenant, 0):
            raise BrokenLedger(
                f"this process signed {self._signed[tenant]} entries of {tenant} and the database has {fixed.size}: "
                "it was restored from a backup beneath it",
                code="log_behind",
            )
        with self._database.unit(tenant, statement_seconds=30) as unit:
            before = entries.signed_before(unit, fixed.size)
            if before is not None and before.frontier.root != before.root:
                raise BrokenLedger(
                    f"the last checkpoint of {tenant} does not hash to its own root", code="root_mismatch"
                )
            since = before.frontier if before is not None else Frontier()
            if entries.recomputed_root(unit, since, fixed.size) != fixed.root:
                raise BrokenLedger(
                    f"the stored entries of {tenant} do not hash to the head of its log", code="root_mismatch"
                )
            origin = log_origin(self._deployment, tenant)
            signer = self._signer(tenant)
            text = Checkpoint(origin, fixed.size, fixed.root).text
            note = sign_note(text, origin, signer.public, signer.sign)
            for old in self._beside(tenant):
                note += signature_line(origin, key_hash(origin, ED25519, old.public) + old.sign(text))
            entries.sign_checkpoint(unit, fixed.size, note)
        self._signed[tenant] = fixed.size


def trust_text(database: Database, deployment: str, tenant: str, witnesses: tuple[str, ...] = ()) -> str:
    """The trust policy that an auditor of this tenant pins, from every key it ever had that is still believed."""
    with database.unit(tenant, write=False) as unit:
        keys = secrets.public_keys(unit)
    origin = log_origin(deployment, tenant)

    def of(purpose: str, name: str) -> tuple[str, ...]:
        return tuple(write_vkey(name, key.public) for key in keys if key.purpose == purpose and not key.compromised)

    return write_trust(
        of("log", origin),
        of("bundle", f"{deployment}/bundle/{tenant}"),
        of("receipt", f"{deployment}/receipt/{tenant}"),
        tenant,
        witnesses=witnesses,
    )
