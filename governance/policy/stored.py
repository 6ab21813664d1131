"""A policy bundle back from its stored archive, and refused when its content does not give the revision it was stored under."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping

from engine.canonical import read_json
from engine.catalog.draft import Draft
from engine.errors import BrokenLedger
from engine.ledger.bundle import PolicySource
from governance.policy.bundle import CANARY_TENANT, Bundle, build, source_bytes_max
from governance.policy.files import shipped_tests, starting_draft
from governance.store import drafts, templates
from governance.store.unit import Database


class Kept:
    """The revisions of every tenant as they were activated, with what they were published with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def in_force(self, tenant: str) -> str:
        """The revision in force; empty when there is none."""
        with self._database.unit(tenant, write=False) as unit:
            return templates.active_revision(unit)

    def bundle_of(self, tenant: str, revision: str) -> Bundle:
        """A revision as it was activated."""
        with self._database.unit(tenant, write=False) as unit:
            return opened(templates.policy(unit, revision).bundle, revision)

    def tests_of(self, tenant: str, revision: str) -> Mapping[str, str]:
        """The tests that a revision was published with; the product's own for one that came with the product."""
        with self._database.unit(tenant, write=False) as unit:
            found = drafts.published_as(unit, revision)
        return shipped_tests() if found is None else found.draft.tests

    def starting(self, tenant: str, revision: str) -> Draft:
        """A draft that says what this revision says."""
        return starting_draft(self.bundle_of(tenant, revision), tenant, self.tests_of(tenant, revision))

    def files(self, tenant: str, revision: str) -> tuple[PolicySource, ...]:
        """Its files as evidence names them."""
        bundle = self.bundle_of(tenant, revision)
        return tuple(PolicySource(revision, path, digest, text) for path, digest, text in bundle.files())


def opened(archive: bytes, revision: str) -> Bundle:
    """The bundle of these bytes, rebuilt and compared: what runs is what was activated, to the byte."""
    modules: dict[str, str] = {}
    data: dict[str, object] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
            for member in files.getmembers():
                stream = files.extractfile(member)
                raw = stream.read() if stream is not None else b""
                if member.name.endswith(".rego"):
                    modules[member.name] = raw.decode("utf-8")
                elif member.name == "data.json":
                    data = read_json(raw, bytes_max=source_bytes_max)
    except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
        raise BrokenLedger(f"policy revision {revision[:16]} cannot be read: {error}", code="broken_policy") from None
    tenants = data.get("tenants")
    if type(tenants) is not dict:
        raise BrokenLedger(f"policy revision {revision[:16]} holds no tenants", code="broken_policy")
    own = {name: value for name, value in tenants.items() if name != CANARY_TENANT}
    rebuilt = build(modules, {"defaults": {}, "tenants": {}}, own)
    if rebuilt.revision != revision or rebuilt.archive != archive:
        raise BrokenLedger(
            f"policy revision {revision[:16]} does not have the content it was activated with "
            f"({hashlib.sha256(archive).hexdigest()[:16]})",
            code="broken_policy",
        )
    return rebuilt
