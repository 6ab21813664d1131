"""What a witness is sent and when it may cosign (C2SP tlog-witness): only ever a longer log that continues the one it saw before."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.errors import BrokenLedger
from engine.ledger.notes import (
    COSIGNATURE,
    Checkpoint,
    Note,
    VerifierKey,
    key_hash,
    note_bytes_max,
    read_base64,
    read_checkpoint,
    read_note,
    signature_line,
    signed_by_log,
)
from engine.ledger.tree import empty_root, hash_bytes, size_max, verify_consistency

proof_lines_max = 63
submission_bytes_max = note_bytes_max + proof_lines_max * 64 + 64
_old = re.compile(r"old (0|[1-9][0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest checkpoint of a log that this witness has cosigned."""

    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to cosign: the size that the sender believes the witness has seen, the proof from there, and the checkpoint."""

    old: int
    proof: tuple[bytes, ...]
    note: Note
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Refused:
    """Why nothing is cosigned: an HTTP status of tlog-witness, a word, and for 409 the size that was seen."""

    status: int
    reason: str
    seen: int | None = None


def write_submission(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """The body of add-checkpoint."""
    lines = [f"old {old}", *(base64.b64encode(one).decode("ascii") for one in proof), ""]
    return "\n".join(lines).encode() + b"\n" + note


def read_submission(body: bytes) -> Submission:
    """The request in this body, strictly; BrokenLedger names what is wrong with it."""
    if len(body) > submission_bytes_max:
        raise BrokenLedger(f"a submission has at most {submission_bytes_max} bytes", code="submission")
    head, empty, note = body.partition(b"\n\n")
    try:
        first, *lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise BrokenLedger("the lines before the checkpoint are ASCII", code="submission") from None
    match = _old.fullmatch(first)
    if match is None or not empty or int(match[1]) > size_max:
        raise BrokenLedger(
            "a submission begins with `old SIZE` and has an empty line before the checkpoint", code="submission"
        )
    if len(lines) > proof_lines_max:
        raise BrokenLedger(f"a proof has at most {proof_lines_max} lines", code="submission")
    proof = []
    for line in lines:
        raw = read_base64(line)
        if raw is None or len(raw) != hash_bytes:
            raise BrokenLedger("a line of a proof is 32 bytes in base64", code="submission")
        proof.append(raw)
    read = read_note(note)
    return Submission(int(match[1]), tuple(proof), read, read_checkpoint(read.text))


def refusal(submission: Submission, keys: Collection[VerifierKey], seen: Seen | None) -> Refused | None:
    """None when this checkpoint may be cosigned, given what was cosigned before; it has to be persisted first."""
    new, old = submission.checkpoint, seen.size if seen else 0
    if not keys:
        return Refused(404, "this log is unknown here")
    try:
        if not any(signed_by_log(submission.note, key) for key in keys):
            return Refused(403, "the checkpoint is not signed by a key of this log")
    except BrokenLedger as error:
        return Refused(403, error.reason)
    if submission.old > new.size:
        return Refused(400, "the old size is larger than the checkpoint's")
    if submission.old != old:
        return Refused(409, "another size was cosigned last", old)
    if seen is not None and new.size == seen.size and new.root != seen.root:
        return Refused(409, "another root was cosigned at this size", old)
    if new.size == 0 and new.root != empty_root():
        return Refused(422, "an empty log has the root of nothing")
    if old in (0, new.size):
        # Nothing to prove: whoever saw nothing is content with anything, and the same is the same.
        return Refused(422, "no proof is needed here, and one was sent") if submission.proof else None
    assert seen is not None
    try:
        verify_consistency(old, new.size, seen.root, new.root, submission.proof)
    except BrokenLedger as error:
        return Refused(422, error.reason)
    return None


def cosignature(name: str, public: bytes, signed: bytes, seconds: int) -> bytes:
    """The line that a witness answers with; `signed` is its signature over `cosigned_text(seconds, text)`."""
    return signature_line(name, key_hash(name, COSIGNATURE, public) + seconds.to_bytes(8, "big") + signed)
