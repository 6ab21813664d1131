"""Rotate a tenant's signing keys and say which are not to be believed any more; orders of the operator's shell."""

from __future__ import annotations

import datetime

from engine.errors import CallerError, Refused
from engine.ledger.entries import Fact
from governance.keys import SIGNING
from governance.store import entries, people, secrets
from governance.store.secrets import PublicKey, Secrets
from governance.store.unit import Database

OPERATOR = {"type": "system", "id": "operator"}
overlap_days_max = 400


class Rotate:
    """The orders about keys."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database = database
        self._secrets = secrets

    def listed(self, tenant: str) -> list[PublicKey]:
        """Every signing key that this tenant ever had."""
        with self._database.unit(tenant, write=False) as unit:
            people.tenant(unit)
            return secrets.public_keys(unit)

    def rotate(self, tenant: str, purpose: str, overlap_days: int = 30) -> str:
        """A new key takes over; a log's old one signs beside it for the overlap, for those who pinned it. The new key's id."""
        if purpose not in SIGNING:
            raise CallerError(
                f"{purpose!r} is no purpose of a key that signs",
                field="purpose",
                next_step=f"one of {', '.join(SIGNING)}",
            )
        if not 0 <= overlap_days <= overlap_days_max:
            raise CallerError(f"0 to {overlap_days_max} days", field="--overlap-days")
        with self._database.unit(tenant) as unit:
            people.tenant(unit)
            before = secrets.active_id(unit, purpose)
            until = unit.now() + datetime.timedelta(days=overlap_days) if purpose == "log" and overlap_days else None
            key = self._secrets.keyring.create(tenant, purpose)
            secrets.put(unit, key, until)
            body = {"purpose": purpose, "key_id": key.key_id, "before": before, "signs_until": str(until or "")}
            entries.note(unit, f"key/{purpose}", Fact("key.rotated", OPERATOR, body))
        self._secrets.forget()
        return key.key_id

    def compromised(self, tenant: str, key_id: str) -> None:
        """Somebody else may have this key: it signs nothing more, and the trust policy does not name it."""
        with self._database.unit(tenant) as unit:
            people.tenant(unit)
            found = next((one for one in secrets.public_keys(unit) if one.key_id == key_id), None)
            if found is None:
                raise CallerError(
                    f"{key_id} is no signing key of {tenant}", field="key", next_step="`twokeys keys list`"
                )
            if found.state == "active":
                raise Refused(
                    "this key signs what is happening now", code="key_active", field="key",
                    next_step=f"`twokeys keys rotate {found.purpose} --overlap-days 0` first",
                )  # fmt: skip
            if not found.compromised:
                secrets.distrust(unit, key_id)
                fact = Fact("key.compromised", OPERATOR, {"purpose": found.purpose, "key_id": key_id})
                entries.note(unit, f"key/{found.purpose}", fact)
        self._secrets.forget()
