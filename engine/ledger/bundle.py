"""The evidence bundle of one run: a BagIt directory in one deterministic zip, signed through its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.canonical import jcs, sha256, tagged
from engine.errors import BrokenLedger
from engine.ledger import layout
from engine.ledger.container import write_container
from engine.ledger.entries import Entry, read_entry
from engine.ledger.notes import read_checkpoint, read_note
from engine.ledger.report import render_readme, render_report
from engine.ledger.statement import write_envelope, write_statement


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt as stored: the exact envelope bytes (CBOR), their signature and the id of the key that made it."""

    body: bytes
    signature: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One file of a policy revision that some verdict of the run was given under.

    All files of the revision are named, because their digests give the revision; a file whose text is of other tenants
    too (data.json) stays outside.
    """

    revision: str
    path: str  # as in the policy bundle: twokeys/main.rego
    sha256: str
    text: bytes | None = None


@dataclass(frozen=True, slots=True)
class BundleContents:
    """All that a bundle is made of; the same contents give the same bytes."""

    entries: tuple[bytes, ...]  # the run's chain from run.queued to run.closed, exact bytes as stored
    indexes: tuple[int, ...]  # where each entry stands in the tenant's log
    proofs: tuple[tuple[bytes, ...], ...]  # each entry's inclusion proof in the checkpoint's tree (Tree.inclusion)
    checkpoint: bytes  # the signed note
    documents: tuple[bytes, ...]  # raw bytes whose sha256 stands in some entry's `commit` and that may travel
    receipts: tuple[SignedReceipt, ...]
    definition: bytes  # the canonical CBOR that the run was pinned to
    journal: tuple[bytes, ...]  # the journal's rows in order, exact bytes as stored
    policies: tuple[PolicySource, ...]
    trust: str  # a copy of the trust policy, for convenience only
    verifier: bytes  # a copy of verify.py
    public: bytes  # the bundle key's public half
    sign: Callable[[bytes], bytes]  # the bundle key
    moved_to: tuple[bytes, ...] = ()  # the code that the run was moved to later, in order


def build(contents: BundleContents) -> bytes:
    """The bundle's bytes."""
    if not len(contents.entries) == len(contents.indexes) == len(contents.proofs) > 0:
        raise BrokenLedger("a bundle has one index and one proof for each entry, and at least one entry")
    entries = [read_entry(data) for data in contents.entries]
    files = {f"data/{name}": data for name, data in _data_files(contents, entries).items()}
    manifest = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode()
    checkpoint = read_checkpoint(read_note(contents.checkpoint).text)
    predicate = {
        "builder": layout.BUILDER,
        "entries": len(entries),
        "origin": checkpoint.origin,
        "policy_revisions": sorted({source.revision for source in contents.policies}),
        "root": checkpoint.root.hex(),
        "run": entries[0].chain,
        "status": str(entries[-1].body.get("status", "")),
        "tenant": entries[0].tenant,
        "tree_size": checkpoint.size,
    }
    statement = write_statement(hashlib.sha256(manifest).hexdigest(), predicate)
    files[layout.BAGIT] = layout.BAGIT_TEXT
    files[layout.MANIFEST] = manifest
    files[layout.ATTESTATION] = write_envelope(statement, contents.public, contents.sign)
    return write_container(files)


def _data_files(contents: BundleContents, entries: list[Entry]) -> dict[str, bytes]:
    committed = {commitment for entry in entries for commitment in entry.commit}
    travelling = {sha256(document).hex(): document for document in contents.documents}
    foreign = sorted(travelling.keys() - committed)
    if foreign:
        raise BrokenLedger(f"document {foreign[0]} is committed to by no entry of this run", code="payload-foreign")
    withheld = sorted(committed - travelling.keys())
    files = {
        layout.ENTRIES: _lines(contents.entries),
        layout.PROOFS: _lines(
            jcs({"index": index, "hashes": [node.hex() for node in proof]})
            for index, proof in zip(contents.indexes, contents.proofs, strict=True)
        ),
        layout.CHECKPOINT: contents.checkpoint,
        layout.WITHHELD: jcs({"withheld": withheld}),
        layout.DEFINITION: contents.definition,
        layout.JOURNAL: layout.write_journal(contents.journal),
        layout.POLICIES: _policy_index(contents.policies),
        layout.TRUST: contents.trust.encode(),
        layout.VERIFIER: contents.verifier,
        layout.README: render_readme(entries).encode(),
    }
    files |= {layout.code_name(tagged(layout.COMPONENT_TAG, code).hex()): code for code in contents.moved_to}
    files |= {layout.payload_name(name): document for name, document in travelling.items()}
    files |= {
        layout.receipt_name(sha256(receipt.body).hex()): layout.write_receipt(
            receipt.body, receipt.signature, receipt.key_id
        )
        for receipt in contents.receipts
    }
    for source in contents.policies:
        if source.text is not None:
            files[layout.policy_name(source.path, source.text)] = source.text
    files[layout.REPORT] = render_report(entries, len(withheld), contents.indexes[-1]).encode()
    return files


def _policy_index(policies: tuple[PolicySource, ...]) -> bytes:
    revisions: dict[str, list[dict[str, str]]] = {}
    for source in sorted(policies, key=lambda one: (one.revision, one.path)):
        revisions.setdefault(source.revision, []).append({"path": source.path, "sha256": source.sha256})
    return jcs({"revisions": [{"revision": name, "files": files} for name, files in revisions.items()]})


def _lines(parts: Iterable[bytes]) -> bytes:
    return b"".join(part + b"\n" for part in parts)
