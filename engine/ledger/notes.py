"""Signed checkpoints of a log: C2SP signed notes, tlog-checkpoints, vkeys and witness cosignatures."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from engine.errors import BrokenLedger
from engine.ledger.ed25519 import check_public, verify_signature
from engine.ledger.tree import hash_bytes, size_max

ED25519 = 1  # the signature type of a log
COSIGNATURE = 4  # the signature type of a witness: a time, then a signature
note_bytes_max = 65_536
note_signatures_max = 100

_decimal = re.compile(r"0|[1-9][0-9]{0,18}")
_key_name = re.compile(r"[^\s+\x00-\x20\x7f]{1,255}")
_signature_line = re.compile("— ([^ ]+) ([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A named public key as trust policies write it."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self) -> bytes:
        """The four bytes that a signature line carries for this key."""
        return key_hash(self.name, self.kind, self.public)


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: who claims to have signed, under which key id, and the bytes."""

    name: str
    id: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A text and its signatures, not yet verified."""

    text: bytes
    signatures: tuple[NoteSignature, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log says of itself: its name, how many entries it has, and their root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> bytes:
        """The exact text that is signed."""
        root = base64.b64encode(self.root).decode("ascii")
        return f"{self.origin}\n{self.size}\n{root}\n".encode()


def log_origin(deployment: str, tenant: str, shard: int = 0) -> str:
    """The name of one tenant's log: the verifier reads the tenant back from it."""
    return f"{deployment}/log/{tenant}/{shard}"


def tenant_of(origin: str) -> str:
    """The tenant that a log's name says it belongs to, empty when it says none."""
    parts = origin.split("/")
    return parts[-2] if len(parts) >= 4 and parts[-3] == "log" and _decimal.fullmatch(parts[-1]) else ""


def key_hash(name: str, kind: int, public: bytes) -> bytes:
    """sha256(name, newline, type, key), the first four bytes."""
    return hashlib.sha256(name.encode() + b"\n" + bytes((kind,)) + public).digest()[:4]


def write_vkey(name: str, public: bytes, kind: int = ED25519) -> str:
    """`name+hash+base64(type, key)`: how a public key is handed to those who verify."""
    if not _key_name.fullmatch(name):
        _bad_note("vkey", f"{name[:40]!r} is not a key's name: no spaces and no plus")
    check_public(public)
    key = base64.b64encode(bytes((kind,)) + public).decode("ascii")
    return f"{name}+{key_hash(name, kind, public).hex()}+{key}"


def read_vkey(text: str) -> VerifierKey:
    """The key of one vkey; another writing, another hash or a weak key is refused."""
    name, _, rest = text.partition("+")
    digits, _, key = rest.partition("+")
    raw = read_base64(key)
    if not _key_name.fullmatch(name) or not re.fullmatch(r"[0-9a-f]{8}", digits) or raw is None or len(raw) != 33:
        _bad_note("vkey", f"{text[:60]!r} is not written as name+hash+key")
    if raw[0] not in (ED25519, COSIGNATURE):
        _bad_note("vkey", f"the key {name} is of type {raw[0]}; 1 is a log's, 4 a witness's")
    if key_hash(name, raw[0], raw[1:]).hex() != digits:
        _bad_note("vkey", f"the hash of the key {name} is not its own")
    check_public(raw[1:])
    return VerifierKey(name, raw[0], raw[1:])


def sign_note(text: bytes, name: str, public: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """The note of this text with one signature; the same text and key give the same bytes."""
    return text + b"\n" + signature_line(name, key_hash(name, ED25519, public) + sign(text))


def signature_line(name: str, signed: bytes) -> bytes:
    """One signature as the line that ends a note."""
    return f"— {name} {base64.b64encode(signed).decode('ascii')}\n".encode()


def read_note(data: bytes) -> Note:
    """Split a note into text and signatures, strictly; nothing is verified here."""
    if len(data) > note_bytes_max:
        _bad_note("note", f"a note has at most {note_bytes_max} bytes")
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError:
        _bad_note("note", "a note is UTF-8")
    if re.search("[\x00-\x09\x0b-\x1f]", whole):
        _bad_note("note", "a note holds no control characters")
    at = whole.rfind("\n\n")
    if at < 0 or not whole.endswith("\n"):
        _bad_note("note", "a note is a text, an empty line and signature lines")
    text, lines = whole[: at + 1], whole[at + 2 :].split("\n")[:-1]
    if not 1 <= len(lines) <= note_signatures_max:
        _bad_note("note", f"a note has 1 to {note_signatures_max} signatures")
    return Note(text.encode(), tuple(_read_signature(line) for line in lines))


def _read_signature(line: str) -> NoteSignature:
    match = _signature_line.fullmatch(line)
    raw = read_base64(match[2]) if match else None
    if match is None or raw is None or len(raw) < 5 or not _key_name.fullmatch(match[1]):
        _bad_note("note", f"{line[:60]!r} is not a signature line")
    return NoteSignature(match[1], raw[:4], raw[4:])


def read_checkpoint(text: bytes) -> Checkpoint:
    """The checkpoint of a note's text: three lines, a decimal size, a hash of 32 bytes and nothing else."""
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        _bad_note("checkpoint", "a checkpoint is UTF-8")
    if len(lines) != 4 or lines[3]:
        _bad_note("checkpoint", "a checkpoint has exactly the lines origin, size and root")
    origin, digits, key = lines[:3]
    if not _key_name.fullmatch(origin):
        _bad_note("cp-origin", f"{origin[:60]!r} is not a log's name")
    if not _decimal.fullmatch(digits) or int(digits) > size_max:
        _bad_note("cp-size", f"{digits[:40]!r} is not a size in plain decimal")
    root = read_base64(key)
    if root is None or len(root) != hash_bytes:
        _bad_note("checkpoint", "the root is 32 bytes in base64")
    return Checkpoint(origin, int(digits), root)


def signed_by_log(note: Note, key: VerifierKey) -> bool:
    """Whether this log key signed the note; a signature that claims to be this key's and is not breaks the note."""
    found = False
    for signature in _signatures_of(note, key):
        if len(signature.raw) != 64 or not verify_signature(key.public, note.text, signature.raw):
            _bad_note("note-badsig", f"the signature of {key.name} does not hold over this text")
        found = True
    return found


def cosigned_at(note: Note, key: VerifierKey) -> int | None:
    """When this witness says it saw the checkpoint (POSIX seconds), or None when it did not sign."""
    seen: int | None = None
    for signature in _signatures_of(note, key):
        seconds = int.from_bytes(signature.raw[:8], "big")
        message = cosigned_text(seconds, note.text)
        if (
            len(signature.raw) != 72
            or seconds > size_max
            or not verify_signature(key.public, message, signature.raw[8:])
        ):
            _bad_note("note-badsig", f"the cosignature of {key.name} does not hold over this text")
        seen = seconds
    return seen


def cosigned_text(seconds: int, text: bytes) -> bytes:
    """What a witness signs: the time it saw the checkpoint, and the checkpoint."""
    return b"cosignature/v1\ntime %d\n" % seconds + text


def _signatures_of(note: Note, key: VerifierKey) -> list[NoteSignature]:
    return [signature for signature in note.signatures if (signature.name, signature.id) == (key.name, key.id)]


def read_base64(text: str) -> bytes | None:
    """Standard base64 in its one writing, else None."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode("ascii") == text else None


def _bad_note(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
