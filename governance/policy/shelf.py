"""The shelf: each tenant's policy in force as a signed bundle under a name that stays, where that tenant's OPA server polls it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from governance import clock, log, metrics
from governance.keys import TokenSigner
from governance.policy.bundle import Bundle, signed

look_seconds = 60.0  # how often it is looked whether the shelf still has what was put there

_say = log.get("shelf")


class Store(Protocol):
    """Where the shelf is."""

    def shelve(self, key: str, data: bytes) -> None:
        """Put these bytes under this name, over what was there."""

    def shelved(self, key: str) -> str:
        """The digest of what stands there; empty when nothing does."""


@dataclass(slots=True)
class _Placed:
    revision: str
    sha256: str
    looked_at: float


def shelf_key(tenant: str) -> str:
    """The resource of a tenant's OPA server."""
    return f"policies/{tenant}/bundle.tar.gz"


class Shelf:
    """Keeps the shelf as the database says; several workers may, because all put the same bytes for the same revision."""

    def __init__(
        self,
        store: Store,
        *,
        tenants: Callable[[], Sequence[str]],
        revision_of: Callable[[str], str],
        bundle_of: Callable[[str, str], Bundle],
        signer_of: Callable[[str], TokenSigner],
    ) -> None:
        """`revision_of` reads which revision is in force, empty for none."""
        self._store = store
        self._tenants = tenants
        self._revision_of = revision_of
        self._bundle_of = bundle_of
        self._signer_of = signer_of
        self._placed: dict[str, _Placed] = {}

    def step(self) -> int:
        """Put what changed since the last step; how many tenants had something put."""
        count = 0
        for tenant in self._tenants():
            revision = self._revision_of(tenant)
            if revision:
                count += self.place(tenant, revision)
        return count

    def place(self, tenant: str, revision: str) -> bool:
        """Make the shelf hold this revision; False when it does already."""
        known, now = self._placed.get(tenant), clock.monotonic()
        if known is not None and known.revision == revision and now - known.looked_at < look_seconds:
            return False
        archive = signed(self._bundle_of(tenant, revision), tenant, self._signer_of(tenant).sign)
        sha256 = hashlib.sha256(archive).hexdigest()
        # Bytes that are there already stay untouched: a server that asks with its ETag is told that nothing changed.
        put = self._store.shelved(shelf_key(tenant)) != sha256
        if put:
            self._store.shelve(shelf_key(tenant), archive)
            metrics.count("policy_shelved")
            _say.info("policy shelved", tenant=tenant, revision=revision[:16], sha256=sha256[:16])
        self._placed[tenant] = _Placed(revision, sha256, now)
        return put


def server_config(
    tenant: str, *, endpoint: str, bucket: str, region: str, public_pem: str, poll_seconds: int
) -> dict[str, object]:
    """The configuration with which an OPA server takes this tenant's bundle, and no other, from the shelf."""
    url = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"https://{bucket}.s3.{region}.amazonaws.com"
    return {
        "services": {
            "shelf": {"url": url, "credentials": {"s3_signing": {"environment_credentials": {}}}},
        },
        "keys": {"twokeys": {"algorithm": "ES256", "key": public_pem}},
        "bundles": {
            "twokeys": {
                "service": "shelf",
                "resource": shelf_key(tenant),
                "polling": {"min_delay_seconds": poll_seconds, "max_delay_seconds": poll_seconds},
                "signing": {"keyid": "twokeys", "scope": tenant},
            }
        },
        "status": {"console": True},
    }
