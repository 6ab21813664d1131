"""Verifies an evidence bundle: steps (0) to (9), each numbered as in docs/auditor.md; (6) to (9) of a run are here.

Each step returns what it found or raises; the first broken record is named. Trust comes from a policy that was pinned
outside the bundle; the copies inside are not read. Without a pinned policy the structure is still checked, and the
result is at best incomplete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from engine.canonical import read_json, tagged
from engine.errors import BrokenLedger, CallerError, TwokeysError
from engine.ledger.ed25519 import verify_signature
from engine.ledger.entries import CATALOGUE, Entry, read_entry
from engine.ledger.layout import (
    CODE_DIRECTORY,
    COMPONENT_TAG,
    DEFINITION,
    DEFINITION_TAG,
    ENTRIES,
    JOURNAL,
    PAYLOAD_DIRECTORY,
    POLICIES,
    POLICY_DIRECTORY,
    PROOFS,
    RECEIPT_DIRECTORY,
    WITHHELD,
    journal_events,
    journal_head,
    payload_name,
    policy_revision,
    read_journal,
    read_policies,
    read_receipt,
    read_withheld,
    receipt_name,
    receipt_signed_bytes,
)
from engine.ledger.lineage import check_moves, check_parent
from engine.ledger.period import PERIOD_STEPS, PeriodCheck
from engine.ledger.sealed import INCOMPLETE, INVALID, MALFORMED, OF_PERIOD, Expectation, Sealed, Verified, wrong
from engine.ledger.story import Story, nothing_sha256
from engine.ledger.tree import verify_inclusion
from engine.ledger.trust import Trust

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


def verify(data: bytes, trust: Trust | None, expected: Expectation = Expectation()) -> Verified:
    """Run all steps; the first broken record ends them, what is only missing is noted and the rest is still checked."""
    sealed = Sealed(data, trust, expected)
    sealed.result.titles = STEPS
    if not _run(sealed, 0, (sealed.stamp, sealed.container, sealed.rewriting, sealed.manifest)):
        return sealed.result
    if sealed.kind is OF_PERIOD:
        sealed.result.titles = PERIOD_STEPS
        later = PeriodCheck(sealed).steps
    else:
        later = _Check(sealed).steps
    _run(sealed, 4, (sealed.attestation, sealed.note, *later))
    return sealed.result


def _run(sealed: Sealed, first: int, steps: tuple[Callable[[], str], ...]) -> bool:
    for number, step in enumerate(steps, first):
        sealed.step, sealed.record = number, ""
        try:
            sealed.result.steps.append(step())
        except TwokeysError as error:
            sealed.broken(error.code, error.reason, MALFORMED if number in (1, 2) else INVALID)
            return False
        except RecursionError:
            sealed.broken("too-deep", "nested deeper than anything this product writes", MALFORMED)
            return False
    return True


class _Check:
    """The steps that only the evidence of one run has: (6) to (9)."""

    def __init__(self, sealed: Sealed) -> None:
        self.sealed = sealed
        self.result, self.trust = sealed.result, sealed.trust
        self.entries: list[Entry] = []
        self.receipts: dict[str, dict[str, Any]] = {}
        self.started: frozenset[tuple[str, int]] = frozenset()
        self.steps: tuple[Callable[[], str], ...] = (self.chain, self.ends, self.records, self.rules)

    # (6) entries
    def chain(self) -> str:
        proofs = self.sealed.lines(PROOFS)
        lines = self.sealed.lines(ENTRIES)
        if len(proofs) != len(lines) or not lines:
            wrong("entry-count", f"{len(lines)} entries and {len(proofs)} proofs")
        before, at, last_index = "0" * 64, "", -1
        for number, (line, proof) in enumerate(zip(lines, proofs, strict=True)):
            self.sealed.record = f"entry {number}"
            entry = read_entry(line)
            self.sealed.record = f"entry {number} ({entry.type})"
            if (entry.tenant, entry.chain) != (self.sealed.predicate["tenant"], self.sealed.predicate["run"]):
                wrong("entry-chain", f"belongs to {entry.tenant}/{entry.chain}, not to this run")
            if entry.chain_seq != number or entry.prev != before:
                wrong("entry-chain", "does not follow the entry before it")
            if entry.at < at:
                wrong("time-order", f"is of {entry.at}, before the entry that it follows")
            index, hashes = _read_proof(proof)
            if index <= last_index:
                wrong("entry-index", f"stands at {index} of the log, the entry before it at {last_index}")
            verify_inclusion(entry.leaf, index, self.sealed.checkpoint.size, hashes, self.sealed.checkpoint.root)
            self.entries.append(entry)
            before, at, last_index = entry.leaf.hex(), entry.at, index
        return f"{len(self.entries)} entries, all in the tree of {self.sealed.checkpoint.size}"

    # (7) run
    def ends(self) -> str:
        first, last = self.entries[0], self.entries[-1]
        self.sealed.record = "entry 0"
        if first.type != "run.queued" or first.prev != "0" * 64:
            wrong("no-genesis", f"a run begins with run.queued, not with {first.type}")
        again = [entry for entry in self.entries[1:] if entry.type == "run.queued"]
        early = [entry for entry in self.entries[:-1] if entry.type == "run.closed"]
        for entry in (*again, *early):
            self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
            wrong("run-order", "stands in the middle of the run")
        self.sealed.record = f"entry {last.chain_seq} ({last.type})"
        facts = {"run": first.chain, "entries": len(self.entries), "from": first.at, "to": last.at}
        self.result.facts |= facts
        if self.sealed.predicate["entries"] != len(self.entries):
            wrong(
                "entry-count",
                f"the statement says {self.sealed.predicate['entries']} entries, here are {len(self.entries)}",
            )
        if last.type != "run.closed":
            self.result.facts["status"] = "open"
            self.sealed.broken(
                "no-terminal", "the run has no closing entry: it is still open, or its end was cut off", INCOMPLETE
            )
            return "begins with run.queued and does not end"
        if last.body["entries"] != len(self.entries):
            wrong("entry-count", f"the closing entry counts {last.body['entries']}, here are {len(self.entries)}")
        if last.body["status"] != self.sealed.predicate["status"]:
            wrong(
                "run-status", f"closed as {last.body['status']}, the statement says {self.sealed.predicate['status']}"
            )
        self.result.facts["status"] = last.body["status"]
        return f"run.queued to run.closed, {last.body['entries']} entries, {last.body['status']}"

    # (8) records
    def records(self) -> str:
        payloads = self._commitments()
        named = {entry.body.get("receipt_sha256") for entry in self.entries}
        for name, body in self.sealed.below(RECEIPT_DIRECTORY).items():
            self.sealed.record = f"data/{RECEIPT_DIRECTORY}{name}"
            self._receipt(name, bytes(body), named)
        self._definition_and_journal()
        self.sealed.record = f"data/{CODE_DIRECTORY}"
        check_moves(self.entries, self.sealed.below(CODE_DIRECTORY))
        policies = self._policies()
        signed = "signed by pinned keys" if self.trust else "not checked against a key"
        return f"{payloads} documents, {len(self.receipts)} receipts {signed}, {policies}"

    def _commitments(self) -> str:
        withheld = set(read_withheld(self.sealed.file(WITHHELD)))
        here = {}
        for name, body in self.sealed.below(PAYLOAD_DIRECTORY).items():
            self.sealed.record = f"data/{PAYLOAD_DIRECTORY}{name}"
            digest = hashlib.sha256(body).hexdigest()
            if payload_name(digest) != PAYLOAD_DIRECTORY + name:
                wrong("payload-hash", f"is named after another document than it holds ({digest[:16]})")
            here[digest] = body
        both = sorted(withheld & here.keys())
        if both:
            wrong("payload-withheld", f"{both[0][:16]} is here and said to be withheld")
        committed: set[str] = set()
        for entry in self.entries:
            for commitment in entry.commit:
                self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
                if commitment not in here and commitment not in withheld and commitment != nothing_sha256:
                    wrong("payload-missing", f"commits to {commitment[:16]}, which is neither here nor withheld")
                committed.add(commitment)
        foreign = sorted((withheld | here.keys()) - committed)
        if foreign:
            self.sealed.record = f"data/{payload_name(foreign[0])}"
            wrong("payload-foreign", "no entry commits to this document")
        self.result.facts["withheld"] = len(withheld)
        return f"{len(here)} here and {len(withheld)} withheld"

    def _receipt(self, name: str, data: bytes, named: set[Any]) -> None:
        body, signature, key_id, envelope = read_receipt(data)
        digest = hashlib.sha256(body).hexdigest()
        if receipt_name(digest) != RECEIPT_DIRECTORY + name:
            wrong("receipt-hash", f"is named after another receipt than it holds ({digest[:16]})")
        if digest not in named:
            wrong("receipt-foreign", "no entry names this receipt")
        if self.trust is not None:
            key = self.trust.receipts.get(key_id)
            if key is None:
                wrong("receipt-sig", f"the key {key_id} is not a receipt key of the trust policy")
            if not verify_signature(key.public, receipt_signed_bytes(body), signature):
                wrong("receipt-sig", f"the signature of {key.name} does not hold over this receipt")
        self.receipts[digest] = {**envelope, "signed_by": key_id}

    def _definition_and_journal(self) -> None:
        first, last = self.entries[0], self.entries[-1]
        # A definition that is interpreted, or the component of a function that is replayed.
        tags = (DEFINITION_TAG, COMPONENT_TAG)
        if first.body["definition_sha256"] not in [tagged(tag, self.sealed.file(DEFINITION)).hex() for tag in tags]:
            wrong("definition", "is not the definition that the run was pinned to")
        rows, head, version = read_journal(self.sealed.file(JOURNAL))
        events = journal_events(rows)
        leaf, count = journal_head(events)
        # A run that was cancelled before it began has no journal; every other one has.
        unbegun = last.type == "run.closed" and last.body["status"] == "canceled" and last.body["journal_version"] == 0
        if (head, version) != (leaf.hex(), count) or (not count and not unbegun):
            wrong("journal-head", "its rows do not chain to the head that it names")
        if last.type == "run.closed":
            if (head, version) != (last.body["journal_head"], last.body["journal_version"]):
                wrong("journal-head", "is not the journal that the run was closed with")
            if events and _event_type(events[-1]) not in _run_ends:
                wrong("journal-end", f"ends with {_event_type(events[-1])}")
        places = set()
        for number, event in enumerate(events):
            if type(event.get("sequence")) is not int or event["sequence"] - events[0]["sequence"] != number:
                wrong("journal-order", f"event {number} is out of sequence")
            if _event_type(event) == "InvokeStarted":
                places.add(_started_place(event["event"]))
        self.started = frozenset(places)
        if events:
            check_parent(events[0], self.entries)

    def _policies(self) -> str:
        revisions = read_policies(self.sealed.file(POLICIES))
        here = {}
        for name, body in self.sealed.below(POLICY_DIRECTORY).items():
            if POLICY_DIRECTORY + name != POLICIES:
                self.sealed.record = f"data/{POLICY_DIRECTORY}{name}"
                digest = hashlib.sha256(body).hexdigest()
                if name.partition(".")[0] != digest:
                    wrong("policy-hash", "is named after another text than it holds")
                here[digest] = name
        self.sealed.record = f"data/{POLICIES}"
        for revision, files in revisions.items():
            if policy_revision(files) != revision:
                wrong("policy-revision", f"the files listed do not make revision {revision[:16]}")
        listed = {digest for files in revisions.values() for _, digest in files}
        if here.keys() - listed:
            wrong("policy-set", "a policy file belongs to no listed revision")
        if sorted(revisions) != self.sealed.predicate["policy_revisions"]:
            wrong("policy-set", "has other revisions than the statement names")
        used = {entry.body["policy_revision"] for entry in self.entries if entry.type == "verdict.given"} - {""}
        self.result.remarks += [
            f"the policy files of revision {name[:16]} are not in the bundle"
            for name in sorted(used - revisions.keys())
        ]
        return f"{len(here)} of {len(listed)} policy files"

    # (9) rules
    def rules(self) -> str:
        documents = {
            name.removesuffix(".json"): bytes(body) for name, body in self.sealed.below(PAYLOAD_DIRECTORY).items()
        }
        story = Story(documents, self.receipts, self.started)
        for entry in self.entries:
            self.sealed.record = f"entry {entry.chain_seq} ({entry.type})"
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


def _read_proof(line: bytes) -> tuple[int, tuple[bytes, ...]]:
    try:
        value = read_json(line, bytes_max=16_384)
    except CallerError as error:
        raise BrokenLedger(error.reason, code="proof-parse") from None
    shaped = type(value) is dict and set(value) == {"index", "hashes"} and type(value["index"]) is int
    if not shaped or type(value["hashes"]) is not list:
        wrong("proof-parse", "a proof is an index and hashes")
    hashes = []
    for item in value["hashes"]:
        if type(item) is not str or len(item) != 64 or item.strip("0123456789abcdef"):
            wrong("proof-parse", "a proof's hashes are 64 hexadecimal digits")
        hashes.append(bytes.fromhex(item))
    return value["index"], tuple(hashes)


def _event_type(event: dict[str, Any]) -> str:
    inner = event.get("event")
    return str(inner.get("type")) if type(inner) is dict else ""


def _started_place(event: dict[str, Any]) -> tuple[str, int]:
    promise, attempt = event.get("promise_id"), event.get("attempt")
    if type(promise) is not list or type(attempt) is not int:
        wrong("journal-parse", "an InvokeStarted names its promise and its attempt")
    return ".".join(str(part) for part in promise[1:]), attempt
