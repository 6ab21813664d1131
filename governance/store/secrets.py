"""The tenant's sealed keys and secrets: rows in, opened signers and secrets out, kept in memory only."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from engine.errors import BrokenLedger, OperatorError
from governance import clock
from governance.keys import Keyring, SealedKey, Signer, derive, seal, signed_by, unseal
from governance.store import people
from governance.store.unit import Database, Unit

known_seconds_max = 30.0  # a key that was rotated signs no longer than this


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key as trust files name it."""

    purpose: str
    key_id: str
    public: bytes
    state: str
    signs_until: datetime.datetime | None  # of a log's retired key: so long it signs beside its successor
    compromised: bool


def put(unit: Unit, key: SealedKey, signs_until: datetime.datetime | None = None) -> None:
    """Store a new key as the active one of its purpose; the one before may sign beside it until then."""
    unit.run(
        "update signing_key set state = 'retired', signs_until = :until where tenant = :tenant and purpose = :purpose and state = 'active'",
        purpose=key.purpose, until=signs_until,
    )  # fmt: skip
    unit.run(
        "insert into signing_key (tenant, purpose, key_id, public, sealed, state) values (:tenant, :purpose, :key_id, :public, "
        ":sealed, 'active')",
        purpose=key.purpose, key_id=key.key_id, public=key.public, sealed=key.sealed,
    )  # fmt: skip


def public_keys(unit: Unit) -> list[PublicKey]:
    """Every signing key this tenant ever had."""
    rows = unit.all(
        "select purpose, key_id, public, state, signs_until, compromised from signing_key "
        "where tenant = :tenant and public <> '' order by purpose, created_at"
    )
    return [PublicKey(row[0], row[1], bytes(row[2]), *row[3:]) for row in rows]


def active_id(unit: Unit, purpose: str) -> str:
    """The key that signs now, locked until the transaction ends; empty when there is none."""
    row = unit.one(
        "select key_id from signing_key where tenant = :tenant and purpose = :purpose and state = 'active' for update",
        purpose=purpose,
    )
    return "" if row is None else str(row[0])


def distrust(unit: Unit, key_id: str) -> None:
    """This key signs nothing more and stands in no trust policy."""
    unit.run(
        "update signing_key set compromised = true, signs_until = null where tenant = :tenant and key_id = :key_id",
        key_id=key_id,
    )


class Secrets:
    """Opens what is sealed at rest; one per process."""

    def __init__(self, database: Database, master: bytes) -> None:
        self.keyring = Keyring(master)
        self._database = database
        self._box = derive(master, "twokeys/secrets/v1")
        self._signers: dict[tuple[str, str], tuple[float, Signer]] = {}
        self._beside: dict[str, tuple[float, tuple[Signer, ...]]] = {}
        self._secrets: dict[tuple[str, str], bytes] = {}
        self._public: dict[tuple[str, str], bytes] = {}

    def _row(self, tenant: str, purpose: str) -> SealedKey:
        with self._database.unit(tenant, write=False) as unit:
            row = unit.one(
                "select key_id, public, sealed from signing_key where tenant = :tenant and purpose = :purpose and state = 'active'",
                purpose=purpose,
            )
            if row is None:
                people.tenant(unit)  # an unknown tenant is the caller's to mend, a missing key the operator's
        if row is None:
            raise OperatorError(
                f"tenant {tenant} has no {purpose} key", code="no_key", next_step="`twokeys tenant add` makes them"
            )
        return SealedKey(tenant, purpose, row[0], bytes(row[1]), bytes(row[2]))

    def signer(self, tenant: str, purpose: str) -> Signer:
        """The active signing key, as of half a minute ago at most: another process may have rotated it."""
        at, found = self._signers.get((tenant, purpose), (0.0, None))
        if found is None or clock.monotonic() - at > known_seconds_max:
            found = self.keyring.signer(self._row(tenant, purpose))
            self._signers[tenant, purpose] = clock.monotonic(), found
        return found

    def beside(self, tenant: str) -> tuple[Signer, ...]:
        """The log's keys that were retired and sign beside the active one for those who pinned them."""
        at, found = self._beside.get(tenant, (0.0, None))
        if found is None or clock.monotonic() - at > known_seconds_max:
            with self._database.unit(tenant, write=False) as unit:
                rows = unit.all(
                    "select key_id, public, sealed from signing_key where tenant = :tenant and purpose = 'log' and state = 'retired' "
                    "and not compromised and signs_until > clock_timestamp() order by created_at"
                )
            keys = [SealedKey(tenant, "log", row[0], bytes(row[1]), bytes(row[2])) for row in rows]
            found = tuple(map(self.keyring.signer, keys))
            self._beside[tenant] = clock.monotonic(), found
        return found

    def forget(self) -> None:
        """Look again which keys sign."""
        self._signers.clear()
        self._beside.clear()

    def secret(self, tenant: str, purpose: str) -> bytes:
        """The active HMAC or AES secret."""
        if (tenant, purpose) not in self._secrets:
            self._secrets[tenant, purpose] = self.keyring.secret(self._row(tenant, purpose))
        return self._secrets[tenant, purpose]

    def verify(self, tenant: str, key_id: str, data: bytes, signature: bytes) -> bool:
        """Whether one of the tenant's own keys signed this."""
        if (tenant, key_id) not in self._public:
            with self._database.unit(tenant, write=False) as unit:
                row = unit.one(
                    "select public from signing_key where tenant = :tenant and key_id = :key_id", key_id=key_id
                )
            if row is None or not bytes(row[0]):
                raise BrokenLedger(f"key {key_id} is not a key of {tenant}", code="unknown_key")
            self._public[tenant, key_id] = bytes(row[0])
        return signed_by(self._public[tenant, key_id], data, signature)

    def seal(self, tenant: str, purpose: str, text: str) -> bytes:
        """Seal a token or a password for the database."""
        return seal(self._box, text.encode(), tenant, purpose)

    def unseal(self, tenant: str, purpose: str, sealed: bytes) -> str:
        """Open it again."""
        return unseal(self._box, sealed, tenant, purpose).decode()
