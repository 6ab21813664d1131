"""What every bundle is checked for before its kind matters: steps (0) to (5), from the stamp to the signed checkpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.errors import BrokenLedger
from engine.ledger.container import check_canonical, read_container
from engine.ledger.layout import (
    ATTESTATION,
    BAGIT,
    BAGIT_TEXT,
    BUILDER,
    CHECKPOINT,
    MANIFEST,
    PERIOD,
    PERIOD_BUILDER,
    PERIOD_REQUIRED,
    REQUIRED,
    read_manifest,
)
from engine.ledger.notes import Checkpoint, read_checkpoint, read_note, signed_by_log, tenant_of
from engine.ledger.statement import PERIOD_TYPE, PREDICATE_TYPE, read_envelope, read_statement, signer_of
from engine.ledger.trust import Trust

VALID, INVALID, INCOMPLETE, MALFORMED = 0, 1, 2, 3
OUTCOMES = ("valid", "invalid", "incomplete", "malformed")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a bundle is the evidence of: what signs it as such, and the files that it has."""

    predicate: str
    builder: str
    required: tuple[str, ...]


OF_RUN = Kind(PREDICATE_TYPE, BUILDER, REQUIRED)
OF_PERIOD = Kind(PERIOD_TYPE, PERIOD_BUILDER, PERIOD_REQUIRED)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: the step, a code for machines, the record and why."""

    step: int
    code: str
    record: str
    reason: str
    outcome: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the person who verifies knows already and wants to see confirmed."""

    run: str = ""
    sha256: str = ""


@dataclass(slots=True)
class Verified:
    """The result: the outcome, what each step found, and the facts of the run."""

    titles: tuple[str, ...] = ()
    steps: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> int:
        """The worst of what was found; 0 when nothing was."""
        for outcome in (MALFORMED, INVALID, INCOMPLETE):
            if any(finding.outcome == outcome for finding in self.findings):
                return outcome
        return VALID


class Sealed:
    """An opened bundle, checked step by step."""

    def __init__(self, data: bytes, trust: Trust | None, expected: Expectation) -> None:
        self.data, self.trust, self.expected = data, trust, expected
        self.kind = OF_RUN
        self.result = Verified()
        self.step, self.record = 0, ""
        self.files: dict[str, memoryview] = {}
        self.predicate: dict[str, Any] = {}
        self.checkpoint = Checkpoint("", 0, b"")

    def broken(self, code: str, reason: str, outcome: int) -> None:
        self.result.findings.append(Finding(self.step, code, self.record or "bundle", reason, outcome))

    def file(self, name: str) -> bytes:
        self.record = f"data/{name}"
        return bytes(self.files[f"data/{name}"])

    def below(self, directory: str) -> dict[str, memoryview]:
        start = f"data/{directory}"
        return {name[len(start) :]: body for name, body in self.files.items() if name.startswith(start)}

    def lines(self, name: str) -> list[bytes]:
        parts = self.file(name).split(b"\n")
        if parts.pop():
            wrong("lines", "the last line does not end")
        return parts

    # (0) stamp
    def stamp(self) -> str:
        digest = hashlib.sha256(self.data).hexdigest()
        self.result.facts["sha256"] = digest
        if self.expected.sha256 and self.expected.sha256 != digest:
            wrong("stamp", f"the file's sha256 is {digest}, expected was {self.expected.sha256}")
        return "is the expected one" if self.expected.sha256 else "no sha256 was given to compare with"

    # (1) strict zip
    def container(self) -> str:
        self.files = read_container(self.data)
        self.kind = OF_PERIOD if f"data/{PERIOD}" in self.files else OF_RUN
        return f"{len(self.files)} files, stored, nothing before, between or behind them"

    # (2) the same bytes again
    def rewriting(self) -> str:
        check_canonical(self.data, self.files)
        return f"all {len(self.data)} bytes are the one writing of these files"

    # (3) manifest
    def manifest(self) -> str:
        for name in (BAGIT, MANIFEST, ATTESTATION):
            self.record = name
            if name not in self.files:
                wrong("manifest-set", "is missing")
        self.record = BAGIT
        if self.files[BAGIT] != BAGIT_TEXT:
            wrong("manifest-set", "is not BagIt's declaration")
        self.record = MANIFEST
        listed = read_manifest(bytes(self.files[MANIFEST]))
        there = {name for name in self.files if name not in (BAGIT, MANIFEST, ATTESTATION)}
        odd = sorted(there ^ listed.keys())
        if odd:
            self.record = odd[0]
            wrong("manifest-set", "is in the archive and not in the manifest" if odd[0] in there else "is missing")
        for name, digest in listed.items():
            self.record = name
            if hashlib.sha256(self.files[name]).hexdigest() != digest:
                wrong("manifest-hash", "does not have the digest that the manifest says")
        for name in self.kind.required:
            self.record = f"data/{name}"
            if self.record not in there:
                wrong("manifest-set", "is missing")
        return f"{len(listed)} files, none missing, none beside"

    # (4) attestation
    def attestation(self) -> str:
        self.record = ATTESTATION
        payload, signatures = read_envelope(bytes(self.files[ATTESTATION]))
        subject, self.predicate = read_statement(payload, self.kind.predicate)
        if subject != hashlib.sha256(self.files[MANIFEST]).hexdigest():
            wrong("stmt-subject", "the statement is about another manifest")
        if self.predicate["builder"] != self.kind.builder:
            wrong("stmt-type", f"this verifier reads {self.kind.builder}, not {str(self.predicate['builder'])[:40]!r}")
        run = self.predicate.get("run", "")
        if self.expected.run and run != self.expected.run:
            wrong("wrong-run", f"this is the evidence of run {str(run)[:40]}, expected was {self.expected.run}")
        if self.trust is None:
            self.broken("no-trust", "no trust policy was given, so no signature was checked", INCOMPLETE)
            return "read; no trust policy, so its signature was not checked"
        return f"signed by {signer_of(payload, signatures, self.trust.bundles).name}"

    # (5) checkpoint
    def note(self) -> str:
        note = read_note(self.file(CHECKPOINT))
        self.checkpoint = read_checkpoint(note.text)
        cp, said = self.checkpoint, self.predicate
        tenant = tenant_of(cp.origin)
        if (cp.origin, cp.size, cp.root.hex(), tenant) != (
            said["origin"],
            said["tree_size"],
            said["root"],
            said["tenant"],
        ):
            wrong("cp-origin", "the checkpoint is not the one that the statement names, or of another tenant")
        self.result.facts |= {"origin": cp.origin, "tree_size": cp.size, "root": cp.root.hex(), "tenant": tenant}
        if self.trust is None:
            return f"read; size {cp.size}; no trust policy, so no signature was checked"
        if self.trust.tenant and self.trust.tenant != tenant:
            wrong("cp-origin", f"the policy is for tenant {self.trust.tenant}, the checkpoint of {tenant}")
        logs = [key for key in self.trust.logs if key.name == cp.origin]
        if not logs:
            wrong("cp-origin", f"the log {cp.origin} is not in the trust policy")
        signed = [key for key in logs if signed_by_log(note, key)]
        if not signed:
            wrong("note-nosig", f"no pinned key of {cp.origin} signed the checkpoint")
        if cp.size < self.trust.size_min:
            wrong("cp-rollback", f"the tree has {cp.size} entries; the policy pins at least {self.trust.size_min}")
        seen = self.trust.witnessed(note)
        self.result.facts["witnesses"] = sorted(seen)
        if not self.trust.has_quorum(seen):
            self.broken("cp-quorum", "fewer witnesses cosigned than the trust policy asks for", INCOMPLETE)
            return f"signed by the log, cosigned by {len(seen)}: below the quorum"
        if not seen:
            self.result.remarks.append(
                "unwitnessed: nobody but the log's own key vouches that this is the only history; whoever holds that "
                "key could have written another"
            )
            return f"signed by {cp.origin}, size {cp.size}, UNWITNESSED"
        return f"signed by {cp.origin}, size {cp.size}, witnessed by {', '.join(sorted(seen))}"


def wrong(code: str, reason: str) -> NoReturn:
    """This record is not as it was recorded."""
    raise BrokenLedger(reason, code=code)
