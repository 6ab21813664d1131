"""Verifies the evidence bundle of one run: steps (0) to (9), each numbered as in docs/auditor.md.

Each step returns what it found or raises; the first broken record is named. Trust comes from a policy that was pinned
outside the bundle; the copies inside are not read. Without a pinned policy the structure is still checked, and the
result is at best incomplete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.canonical import read_json, tagged
from engine.errors import BrokenLedger, CallerError, TwokeysError
from engine.ledger.container import check_canonical, read_container
from engine.ledger.ed25519 import verify_signature
from engine.ledger.entries import CATALOGUE, Entry, read_entry
from engine.ledger.layout import (
    ATTESTATION,
    BAGIT,
    BAGIT_TEXT,
    BUILDER,
    CHECKPOINT,
    CODE_DIRECTORY,
    COMPONENT_TAG,
    DEFINITION,
    DEFINITION_TAG,
    ENTRIES,
    JOURNAL,
    MANIFEST,
    PAYLOAD_DIRECTORY,
    POLICIES,
    POLICY_DIRECTORY,
    PROOFS,
    RECEIPT_DIRECTORY,
    REQUIRED,
    WITHHELD,
    journal_events,
    journal_head,
    payload_name,
    policy_revision,
    read_journal,
    read_manifest,
    read_policies,
    read_receipt,
    read_withheld,
    receipt_name,
    receipt_signed_bytes,
)
from engine.ledger.lineage import check_moves, check_parent
from engine.ledger.notes import Checkpoint, read_checkpoint, read_note, signed_by_log, tenant_of
from engine.ledger.statement import read_envelope, read_statement, signer_of
from engine.ledger.story import Story, nothing_sha256
from engine.ledger.tree import verify_inclusion
from engine.ledger.trust import Trust

VALID, INVALID, INCOMPLETE, MALFORMED = 0, 1, 2, 3
OUTCOMES = ("valid", "invalid", "incomplete", "malformed")
STEPS = (
    "stamp: the file is the one that was expected",
    "container: one plain archive and nothing beside it",
    "container: writing its members again gives the same bytes",
    "manifest: every file is listed and has its digest",
    "attestation: a pinned bundle key signed this manifest",
    "checkpoint: a pinned log, and enough witnesses, signed the tree",
    "entries: canonical, chained, in time, included in the tree",
    "run: from its first entry to its closing count",
    "records: commitments, receipts, definition and journal hold",
    "rules: every effect was proposed, judged, released and receipted",
)
_run_ends = ("ExecutionCompleted", "ExecutionFailed", "ExecutionCancelled")


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


def verify(data: bytes, trust: Trust | None, expected: Expectation = Expectation()) -> Verified:
    """Run all steps; the first broken record ends them, what is only missing is noted and the rest is still checked."""
    check = _Check(data, trust, expected)
    for number, step in enumerate(check.steps):
        check.step, check.record = number, ""
        try:
            check.result.steps.append(step())
        except TwokeysError as error:
            check.broken(error.code, error.reason, MALFORMED if number in (1, 2) else INVALID)
            break
        except RecursionError:
            check.broken("too-deep", "nested deeper than anything this product writes", MALFORMED)
            break
    return check.result


class _Check:
    def __init__(self, data: bytes, trust: Trust | None, expected: Expectation) -> None:
        self.data, self.trust, self.expected = data, trust, expected
        self.result = Verified()
        self.step, self.record = 0, ""
        self.files: dict[str, memoryview] = {}
        self.predicate: dict[str, Any] = {}
        self.checkpoint = Checkpoint("", 0, b"")
        self.entries: list[Entry] = []
        self.receipts: dict[str, dict[str, Any]] = {}
        self.started: frozenset[tuple[str, int]] = frozenset()
        self.steps: tuple[Callable[[], str], ...] = (
            self.stamp,
            self.container,
            self.rewriting,
            self.manifest,
            self.attestation,
            self.note,
            self.chain,
            self.ends,
            self.records,
            self.rules,
        )

    def broken(self, code: str, reason: str, outcome: int) -> None:
        self.result.findings.append(Finding(self.step, code, self.record or "bundle", reason, outcome))

    def file(self, name: str) -> bytes:
        self.record = f"data/{name}"
        return bytes(self.files[f"data/{name}"])

    def below(self, directory: str) -> dict[str, memoryview]:
        start = f"data/{directory}"
        return {name[len(start) :]: body for name, body in self.files.items() if name.startswith(start)}

    # (0) stamp
    def stamp(self) -> str:
        digest = hashlib.sha256(self.data).hexdigest()
        self.result.facts["sha256"] = digest
        if self.expected.sha256 and self.expected.sha256 != digest:
            _wrong("stamp", f"the file's sha256 is {digest}, expected was {self.expected.sha256}")
        return "is the expected one" if self.expected.sha256 else "no sha256 was given to compare with"

    # (1) strict zip
    def container(self) -> str:
        self.files = read_container(self.data)
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
                _wrong("manifest-set", "is missing")
        self.record = BAGIT
        if self.files[BAGIT] != BAGIT_TEXT:
            _wrong("manifest-set", "is not BagIt's declaration")
        self.record = MANIFEST
        listed = read_manifest(bytes(self.files[MANIFEST]))
        there = {name for name in self.files if name not in (BAGIT, MANIFEST, ATTESTATION)}
        odd = sorted(there ^ listed.keys())
        if odd:
            self.record = odd[0]
            _wrong("manifest-set", "is in the archive and not in the manifest" if odd[0] in there else "is missing")
        for name, digest in listed.items():
            self.record = name
            if hashlib.sha256(self.files[name]).hexdigest() != digest:
                _wrong("manifest-hash", "does not have the digest that the manifest says")
        for name in REQUIRED:
            self.record = f"data/{name}"
            if self.record not in there:
                _wrong("manifest-set", "is missing")
        return f"{len(listed)} files, none missing, none beside"

    # (4) attestation
    def attestation(self) -> str:
        self.record = ATTESTATION
        payload, signatures = read_envelope(bytes(self.files[ATTESTATION]))
        subject, self.predicate = read_statement(payload)
        if subject != hashlib.sha256(self.files[MANIFEST]).hexdigest():
            _wrong("stmt-subject", "the statement is about another manifest")
        if self.predicate["builder"] != BUILDER:
            _wrong("stmt-type", f"this verifier reads {BUILDER}, not {str(self.predicate['builder'])[:40]!r}")
        run = self.predicate["run"]
        if self.expected.run and run != self.expected.run:
            _wrong("wrong-run", f"this is the evidence of run {str(run)[:40]}, expected was {self.expected.run}")
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
            _wrong("cp-origin", "the checkpoint is not the one that the statement names, or of another tenant")
        self.result.facts |= {"origin": cp.origin, "tree_size": cp.size, "root": cp.root.hex(), "tenant": tenant}
        if self.trust is None:
            return f"read; size {cp.size}; no trust policy, so no signature was checked"
        if self.trust.tenant and self.trust.tenant != tenant:
            _wrong("cp-origin", f"the policy is for tenant {self.trust.tenant}, the checkpoint of {tenant}")
        logs = [key for key in self.trust.logs if key.name == cp.origin]
        if not logs:
            _wrong("cp-origin", f"the log {cp.origin} is not in the trust policy")
        signed = [key for key in logs if signed_by_log(note, key)]
        if not signed:
            _wrong("note-nosig", f"no pinned key of {cp.origin} signed the checkpoint")
        if cp.size < self.trust.size_min:
            _wrong("cp-rollback", f"the tree has {cp.size} entries; the policy pins at least {self.trust.size_min}")
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

    # (6) entries
    def chain(self) -> str:
        proofs = self._lines(PROOFS)
        lines = self._lines(ENTRIES)
        if len(proofs) != len(lines) or not lines:
            _wrong("entry-count", f"{len(lines)} entries and {len(proofs)} proofs")
        before, at, last_index = "0" * 64, "", -1
        for number, (line, proof) in enumerate(zip(lines, proofs, strict=True)):
            self.record = f"entry {number}"
            entry = read_entry(line)
            self.record = f"entry {number} ({entry.type})"
            if (entry.tenant, entry.chain) != (self.predicate["tenant"], self.predicate["run"]):
                _wrong("entry-chain", f"belongs to {entry.tenant}/{entry.chain}, not to this run")
            if entry.chain_seq != number or entry.prev != before:
                _wrong("entry-chain", "does not follow the entry before it")
            if entry.at < at:
                _wrong("time-order", f"is of {entry.at}, before the entry that it follows")
            index, hashes = _read_proof(proof)
            if index <= last_index:
                _wrong("entry-index", f"stands at {index} of the log, the entry before it at {last_index}")
            verify_inclusion(entry.leaf, index, self.checkpoint.size, hashes, self.checkpoint.root)
            self.entries.append(entry)
            before, at, last_index = entry.leaf.hex(), entry.at, index
        return f"{len(self.entries)} entries, all in the tree of {self.checkpoint.size}"

    # (7) run
    def ends(self) -> str:
        first, last = self.entries[0], self.entries[-1]
        self.record = "entry 0"
        if first.type != "run.queued" or first.prev != "0" * 64:
            _wrong("no-genesis", f"a run begins with run.queued, not with {first.type}")
        again = [entry for entry in self.entries[1:] if entry.type == "run.queued"]
        early = [entry for entry in self.entries[:-1] if entry.type == "run.closed"]
        for entry in (*again, *early):
            self.record = f"entry {entry.chain_seq} ({entry.type})"
            _wrong("run-order", "stands in the middle of the run")
        self.record = f"entry {last.chain_seq} ({last.type})"
        facts = {"run": first.chain, "entries": len(self.entries), "from": first.at, "to": last.at}
        self.result.facts |= facts
        if self.predicate["entries"] != len(self.entries):
            _wrong(
                "entry-count", f"the statement says {self.predicate['entries']} entries, here are {len(self.entries)}"
            )
        if last.type != "run.closed":
            self.result.facts["status"] = "open"
            self.broken(
                "no-terminal", "the run has no closing entry: it is still open, or its end was cut off", INCOMPLETE
            )
            return "begins with run.queued and does not end"
        if last.body["entries"] != len(self.entries):
            _wrong("entry-count", f"the closing entry counts {last.body['entries']}, here are {len(self.entries)}")
        if last.body["status"] != self.predicate["status"]:
            _wrong("run-status", f"closed as {last.body['status']}, the statement says {self.predicate['status']}")
        self.result.facts["status"] = last.body["status"]
        return f"run.queued to run.closed, {last.body['entries']} entries, {last.body['status']}"

    # (8) records
    def records(self) -> str:
        payloads = self._commitments()
        named = {entry.body.get("receipt_sha256") for entry in self.entries}
        for name, body in self.below(RECEIPT_DIRECTORY).items():
            self.record = f"data/{RECEIPT_DIRECTORY}{name}"
            self._receipt(name, bytes(body), named)
        self._definition_and_journal()
        self.record = f"data/{CODE_DIRECTORY}"
        check_moves(self.entries, self.below(CODE_DIRECTORY))
        policies = self._policies()
        signed = "signed by pinned keys" if self.trust else "not checked against a key"
        return f"{payloads} documents, {len(self.receipts)} receipts {signed}, {policies}"

    def _commitments(self) -> str:
        withheld = set(read_withheld(self.file(WITHHELD)))
        here = {}
        for name, body in self.below(PAYLOAD_DIRECTORY).items():
            self.record = f"data/{PAYLOAD_DIRECTORY}{name}"
            digest = hashlib.sha256(body).hexdigest()
            if payload_name(digest) != PAYLOAD_DIRECTORY + name:
                _wrong("payload-hash", f"is named after another document than it holds ({digest[:16]})")
            here[digest] = body
        both = sorted(withheld & here.keys())
        if both:
            _wrong("payload-withheld", f"{both[0][:16]} is here and said to be withheld")
        committed: set[str] = set()
        for entry in self.entries:
            for commitment in entry.commit:
                self.record = f"entry {entry.chain_seq} ({entry.type})"
                if commitment not in here and commitment not in withheld and commitment != nothing_sha256:
                    _wrong("payload-missing", f"commits to {commitment[:16]}, which is neither here nor withheld")
                committed.add(commitment)
        foreign = sorted((withheld | here.keys()) - committed)
        if foreign:
            self.record = f"data/{payload_name(foreign[0])}"
            _wrong("payload-foreign", "no entry commits to this document")
        self.result.facts["withheld"] = len(withheld)
        return f"{len(here)} here and {len(withheld)} withheld"

    def _receipt(self, name: str, data: bytes, named: set[Any]) -> None:
        body, signature, key_id, envelope = read_receipt(data)
        digest = hashlib.sha256(body).hexdigest()
        if receipt_name(digest) != RECEIPT_DIRECTORY + name:
            _wrong("receipt-hash", f"is named after another receipt than it holds ({digest[:16]})")
        if digest not in named:
            _wrong("receipt-foreign", "no entry names this receipt")
        if self.trust is not None:
            key = self.trust.receipts.get(key_id)
            if key is None:
                _wrong("receipt-sig", f"the key {key_id} is not a receipt key of the trust policy")
            if not verify_signature(key.public, receipt_signed_bytes(body), signature):
                _wrong("receipt-sig", f"the signature of {key.name} does not hold over this receipt")
        self.receipts[digest] = {**envelope, "signed_by": key_id}

    def _definition_and_journal(self) -> None:
        first, last = self.entries[0], self.entries[-1]
        # A definition that is interpreted, or the component of a function that is replayed.
        tags = (DEFINITION_TAG, COMPONENT_TAG)
        if first.body["definition_sha256"] not in [tagged(tag, self.file(DEFINITION)).hex() for tag in tags]:
            _wrong("definition", "is not the definition that the run was pinned to")
        rows, head, version = read_journal(self.file(JOURNAL))
        events = journal_events(rows)
        leaf, count = journal_head(events)
        # A run that was cancelled before it began has no journal; every other one has.
        unbegun = last.type == "run.closed" and last.body["status"] == "canceled" and last.body["journal_version"] == 0
        if (head, version) != (leaf.hex(), count) or (not count and not unbegun):
            _wrong("journal-head", "its rows do not chain to the head that it names")
        if last.type == "run.closed":
            if (head, version) != (last.body["journal_head"], last.body["journal_version"]):
                _wrong("journal-head", "is not the journal that the run was closed with")
            if events and _event_type(events[-1]) not in _run_ends:
                _wrong("journal-end", f"ends with {_event_type(events[-1])}")
        places = set()
        for number, event in enumerate(events):
            if type(event.get("sequence")) is not int or event["sequence"] - events[0]["sequence"] != number:
                _wrong("journal-order", f"event {number} is out of sequence")
            if _event_type(event) == "InvokeStarted":
                places.add(_started_place(event["event"]))
        self.started = frozenset(places)
        if events:
            check_parent(events[0], self.entries)

    def _policies(self) -> str:
        revisions = read_policies(self.file(POLICIES))
        here = {}
        for name, body in self.below(POLICY_DIRECTORY).items():
            if POLICY_DIRECTORY + name != POLICIES:
                self.record = f"data/{POLICY_DIRECTORY}{name}"
                digest = hashlib.sha256(body).hexdigest()
                if name.partition(".")[0] != digest:
                    _wrong("policy-hash", "is named after another text than it holds")
                here[digest] = name
        self.record = f"data/{POLICIES}"
        for revision, files in revisions.items():
            if policy_revision(files) != revision:
                _wrong("policy-revision", f"the files listed do not make revision {revision[:16]}")
        listed = {digest for files in revisions.values() for _, digest in files}
        if here.keys() - listed:
            _wrong("policy-set", "a policy file belongs to no listed revision")
        if sorted(revisions) != self.predicate["policy_revisions"]:
            _wrong("policy-set", "has other revisions than the statement names")
        used = {entry.body["policy_revision"] for entry in self.entries if entry.type == "verdict.given"} - {""}
        self.result.remarks += [
            f"the policy files of revision {name[:16]} are not in the bundle"
            for name in sorted(used - revisions.keys())
        ]
        return f"{len(here)} of {len(listed)} policy files"

    # (9) rules
    def rules(self) -> str:
        documents = {name.removesuffix(".json"): bytes(body) for name, body in self.below(PAYLOAD_DIRECTORY).items()}
        story = Story(documents, self.receipts, self.started)
        for entry in self.entries:
            self.record = f"entry {entry.chain_seq} ({entry.type})"
            story.take(entry)
        self.result.remarks += story.remarks
        self.result.facts["approvals"] = {
            name: {"state": asked.state, "persons": sorted(asked.persons)} for name, asked in story.approvals.items()
        }
        counted = {kind: story.counts[kind] for kind in CATALOGUE if kind in story.counts}
        self.result.facts["counts"] = counted
        released = sum(asked.state == "released" for asked in story.approvals.values())
        return (
            f"{counted.get('verdict.given', 0)} verdicts derived again, {released} approvals counted again, "
            f"{counted.get('effect.intended', 0)} effects permitted"
        )

    def _lines(self, name: str) -> list[bytes]:
        parts = self.file(name).split(b"\n")
        if parts.pop():
            _wrong("lines", "the last line does not end")
        return parts


def _read_proof(line: bytes) -> tuple[int, tuple[bytes, ...]]:
    try:
        value = read_json(line, bytes_max=16_384)
    except CallerError as error:
        raise BrokenLedger(error.reason, code="proof-parse") from None
    shaped = type(value) is dict and set(value) == {"index", "hashes"} and type(value["index"]) is int
    if not shaped or type(value["hashes"]) is not list:
        _wrong("proof-parse", "a proof is an index and hashes")
    hashes = []
    for item in value["hashes"]:
        if type(item) is not str or len(item) != 64 or item.strip("0123456789abcdef"):
            _wrong("proof-parse", "a proof's hashes are 64 hexadecimal digits")
        hashes.append(bytes.fromhex(item))
    return value["index"], tuple(hashes)


def _event_type(event: dict[str, Any]) -> str:
    inner = event.get("event")
    return str(inner.get("type")) if type(inner) is dict else ""


def _started_place(event: dict[str, Any]) -> tuple[str, int]:
    promise, attempt = event.get("promise_id"), event.get("attempt")
    if type(promise) is not list or type(attempt) is not int:
        _wrong("journal-parse", "an InvokeStarted names its promise and its attempt")
    return ".".join(str(part) for part in promise[1:]), attempt


def _wrong(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
