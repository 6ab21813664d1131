"""The names and small documents inside a bundle, written and read in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn

from engine.canonical import decode, encode, jcs, read_json, sha256, tagged
from engine.errors import BrokenLedger, CallerError

BUILDER = "twokeys/bundle/v1"
BAGIT = "bagit.txt"
BAGIT_TEXT = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
MANIFEST = "manifest-sha256.txt"
ATTESTATION = "attestation.intoto.jsonl"

# Below data/:
ENTRIES = "entries.jsonl"
PROOFS = "proofs.jsonl"
CHECKPOINT = "checkpoint"
WITHHELD = "withheld.json"
DEFINITION = "definition.cbor"
CODE_DIRECTORY = "code/"
DEFINITION_TAG, COMPONENT_TAG = "twokeys/definition/v1", "twokeys/component/v1"
JOURNAL = "journal.json"
POLICIES = "policies/index.json"
TRUST = "trust.txt"
VERIFIER = "verify.py"
README = "README.txt"
REPORT = "report.html"
REQUIRED = (ENTRIES, PROOFS, CHECKPOINT, WITHHELD, DEFINITION, JOURNAL, POLICIES, README, REPORT, TRUST, VERIFIER)
# Of a period instead of a run:
PERIOD_BUILDER = "twokeys/period/v1"
PERIOD = "period.json"
CHECKPOINT_BEFORE = "checkpoint-before"
COMPLETENESS = "completeness.json"
RECONCILED = "reconciled.json"
PERIOD_REQUIRED = (ENTRIES, PERIOD, CHECKPOINT, COMPLETENESS, RECONCILED, README, TRUST, VERIFIER)
PAYLOAD_DIRECTORY, RECEIPT_DIRECTORY, POLICY_DIRECTORY = "payloads/", "receipts/", "policies/"

document_bytes_max = 268_435_456
_hex_text = re.compile(r"(?:[0-9a-f]{2})*")
_hex_digest = re.compile(r"[0-9a-f]{64}")
_suffix = re.compile(r"\.[a-z0-9]{1,8}")
_manifest_line = re.compile(r"([0-9a-f]{64})  (data/[A-Za-z0-9][A-Za-z0-9._/-]*)")


def payload_name(digest: str) -> str:
    """A committed document travels under the hash of its own bytes."""
    return f"{PAYLOAD_DIRECTORY}{digest}.json"


def code_name(digest: str) -> str:
    """Code that a run was moved to travels under the digest that the run was pinned to."""
    return f"{CODE_DIRECTORY}{digest}.cbor"


def receipt_name(digest: str) -> str:
    """A receipt travels under the hash of its envelope."""
    return f"{RECEIPT_DIRECTORY}{digest}.json"


def policy_name(path: str, text: bytes) -> str:
    """A policy file travels under the hash of its text, with the ending that its author gave it."""
    ending = "." + path.rpartition(".")[2].lower() if "." in path else ""
    return f"{POLICY_DIRECTORY}{sha256(text).hex()}{ending if _suffix.fullmatch(ending) else '.txt'}"


def read_manifest(data: bytes) -> dict[str, str]:
    """The digests by file name; lines are sorted, each written one way."""
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        _bad_layout("manifest-parse", "the manifest is ASCII text")
    if lines.pop():
        _bad_layout("manifest-parse", "the manifest's last line does not end")
    found: dict[str, str] = {}
    before = ""
    for number, line in enumerate(lines, 1):
        match = _manifest_line.fullmatch(line)
        if not match or match[2] <= before:
            _bad_layout("manifest-parse", f"line {number} of the manifest is not `sha256  data/name` in sorted order")
        found[match[2]] = match[1]
        before = match[2]
    return found


def write_receipt(body: bytes, signature: bytes, key_id: str) -> bytes:
    """A receipt's file."""
    return jcs({"envelope": body.hex(), "key_id": key_id, "signature": signature.hex()})


def read_receipt(data: bytes) -> tuple[bytes, bytes, str, dict[str, Any]]:
    """A receipt's envelope, signature, key id and what the envelope says."""
    value = read_document(data, {"envelope", "key_id", "signature"}, "receipt-parse")
    body, signature = from_hex(value["envelope"], "receipt-parse"), from_hex(value["signature"], "receipt-parse")
    try:
        envelope = decode(body)
    except CallerError as error:
        _bad_layout("receipt-parse", f"the envelope is not canonical CBOR: {error.reason}")
    if type(envelope) is not dict or type(value["key_id"]) is not str:
        _bad_layout("receipt-parse", "the envelope is a map and its key has an id")
    return body, signature, value["key_id"], envelope


def receipt_signed_bytes(body: bytes) -> bytes:
    """What the executor signs: the stored envelope under its own tag."""
    return tagged("twokeys/receipt/v1", body)


def write_journal(rows: Iterable[bytes]) -> bytes:
    """The journal's file: its rows in hex, and the head that they chain to."""
    rows = tuple(rows)
    head, version = journal_head(journal_events(rows))
    return jcs({"head": head.hex(), "rows": [row.hex() for row in rows], "version": version})


def read_journal(data: bytes) -> tuple[tuple[bytes, ...], str, int]:
    """The rows, and the head and version that the file claims."""
    value = read_document(data, {"head", "rows", "version"}, "journal-parse")
    if type(value["rows"]) is not list or type(value["head"]) is not str or type(value["version"]) is not int:
        _bad_layout("journal-parse", "a journal has rows, a head and a version")
    return tuple(from_hex(row, "journal-parse") for row in value["rows"]), value["head"], value["version"]


def journal_events(rows: Iterable[bytes]) -> list[dict[str, Any]]:
    """Every journal entry of these rows; a row is the CBOR array of one commit's entries."""
    events: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            items = decode(row)
        except CallerError as error:
            _bad_layout("journal-parse", f"row {number} is not canonical CBOR: {error.reason}")
        if type(items) is not list or not items or any(type(item) is not dict for item in items):
            _bad_layout("journal-parse", f"row {number} is not a list of journal entries")
        events.extend(items)
    return events


def journal_head(events: Iterable[dict[str, Any]]) -> tuple[bytes, int]:
    """The leaf of the last journal entry and how many there are: each leaf chains the entry to the leaf before it."""
    head, version = bytes(32), 0
    for event in events:
        head = tagged("twokeys/journal/v1", head + encode(event))
        version += 1
    return head, version


def read_withheld(data: bytes) -> tuple[str, ...]:
    """The commitments whose documents are kept encrypted outside the bundle; sorted, each once."""
    value = read_document(data, {"withheld"}, "withheld-parse")["withheld"]
    if type(value) is not list or any(type(item) is not str or not _hex_digest.fullmatch(item) for item in value):
        _bad_layout("withheld-parse", "the withheld commitments are a list of digests")
    if value != sorted(set(value)):
        _bad_layout("withheld-parse", "the withheld commitments are sorted and stand once")
    return tuple(value)


def read_policies(data: bytes) -> dict[str, tuple[tuple[str, str], ...]]:
    """The files (path, digest) of each policy revision."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    value = read_document(data, {"revisions"}, "policies-parse")["revisions"]
    if type(value) is not list:
        _bad_layout("policies-parse", "the index of policies is a list")
    for item in value:
        revision, files = _index_entry(item, ("revision", "files"))
        if type(revision) is not str or type(files) is not list or revision in found:
            _bad_layout("policies-parse", "the index of policies lists revisions with their files")
        pairs = [_index_entry(one, ("path", "sha256")) for one in files]
        if any(type(part) is not str for pair in pairs for part in pair):
            _bad_layout("policies-parse", "a policy file has a path and a digest")
        found[revision] = tuple(pairs)
    return found


def _index_entry(item: Any, keys: tuple[str, str]) -> tuple[Any, Any]:
    if type(item) is not dict or set(item) != set(keys):
        _bad_layout("policies-parse", f"an item of the index of policies has exactly {' and '.join(keys)}")
    return item[keys[0]], item[keys[1]]


def policy_revision(files: Iterable[tuple[str, str]]) -> str:
    """The revision that these files (path, digest) make."""
    return tagged("twokeys/policy/v1", encode(sorted([path, digest] for path, digest in files))).hex()


def read_document(data: bytes, keys: set[str], code: str) -> dict[str, Any]:
    """A small canonical JSON object with exactly these keys."""
    try:
        value = read_json(data, bytes_max=document_bytes_max)
        canonical = jcs(value)
    except CallerError as error:
        _bad_layout(code, error.reason)
    if canonical != data:
        _bad_layout(code, "the bytes are not the canonical form of what they say")
    if type(value) is not dict or set(value) != keys:
        _bad_layout(code, f"the document has exactly {', '.join(sorted(keys))}")
    return value


def from_hex(value: Any, code: str) -> bytes:
    """Bytes in their one writing as text."""
    if type(value) is not str or not _hex_text.fullmatch(value):
        _bad_layout(code, "bytes are written as lower-case hexadecimal digits")
    return bytes.fromhex(value)


def _bad_layout(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
