"""The evidence bundle of a period: every entry of a log between two of its checkpoints, in one deterministic signed zip."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.canonical import jcs
from engine.ledger import layout
from engine.ledger.complete import Completeness
from engine.ledger.container import write_container
from engine.ledger.entries import read_entry
from engine.ledger.layout import CHECKPOINT_BEFORE, COMPLETENESS, ENTRIES, PERIOD, PERIOD_BUILDER, RECONCILED
from engine.ledger.notes import Checkpoint, read_checkpoint, read_note, tenant_of
from engine.ledger.statement import PERIOD_TYPE, write_envelope, write_statement
from engine.ledger.tree import Frontier


@dataclass(frozen=True, slots=True)
class PeriodContents:
    """All that the bundle of a period is made of; the same contents give the same bytes."""

    entries: tuple[bytes, ...]  # every entry of the log from one position to another, exact bytes
    before: Frontier  # of the tree at the begin
    note_before: bytes  # its signed checkpoint; empty when the log began here
    note: bytes  # the signed checkpoint at the end, with cosignatures
    proof: tuple[bytes, ...]  # that the one tree is a prefix of the other
    reconciled: tuple[dict[str, Any], ...]  # what the targets' own change logs say, as read when this was made
    trust: str
    verifier: bytes
    public: bytes
    sign: Callable[[bytes], bytes] = field(repr=False)


def build_period(contents: PeriodContents) -> bytes:
    """The bundle's bytes."""
    checkpoint = read_checkpoint(read_note(contents.note).text)
    complete = Completeness(contents.before.size)
    for data in contents.entries:
        complete.take(read_entry(data))
    files = {
        ENTRIES: b"".join(data + b"\n" for data in contents.entries),
        PERIOD: jcs(
            {
                "frontier": [node.hex() for node in contents.before.nodes],
                "from_size": contents.before.size,
                "proof": [node.hex() for node in contents.proof],
            }
        ),
        layout.CHECKPOINT: contents.note,
        COMPLETENESS: jcs(complete.report()),
        RECONCILED: jcs({"systems": list(contents.reconciled)}),
        layout.README: _readme(checkpoint, contents.before.size).encode(),
        layout.TRUST: contents.trust.encode(),
        layout.VERIFIER: contents.verifier,
    }
    if contents.before.size:
        files[CHECKPOINT_BEFORE] = contents.note_before
    placed = {f"data/{name}": data for name, data in files.items()}
    manifest = "".join(f"{hashlib.sha256(placed[name]).hexdigest()}  {name}\n" for name in sorted(placed)).encode()
    predicate = {
        "builder": PERIOD_BUILDER,
        "entries": len(contents.entries),
        "from_size": contents.before.size,
        "origin": checkpoint.origin,
        "root": checkpoint.root.hex(),
        "tenant": tenant_of(checkpoint.origin),
        "tree_size": checkpoint.size,
    }
    placed[layout.BAGIT] = layout.BAGIT_TEXT
    placed[layout.MANIFEST] = manifest
    statement = write_statement(hashlib.sha256(manifest).hexdigest(), predicate, PERIOD_TYPE)
    placed[layout.ATTESTATION] = write_envelope(statement, contents.public, contents.sign)
    return write_container(placed)


def _readme(checkpoint: Checkpoint, since: int) -> str:
    return f"""Every entry of the log {checkpoint.origin} from {since} up to {checkpoint.size}.

Do not trust this bundle because of what it says about itself. Get verify.py and the trust policy from
somebody you trust, not from here, then:

    python verify.py BUNDLE.zip --trust policy.txt

entries.jsonl       every entry, the exact bytes that were hashed, in the order of the log
checkpoint          the log's signed tree head at the end
checkpoint-before   the one at the begin, when the log is older than that
period.json         the complete subtrees at the begin, and the consistency proof
completeness.json   derived from the entries, and checked by the verifier against them
reconciled.json     what the outside systems' own change logs said when this was made; not provable from the log
"""
