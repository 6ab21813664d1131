"""The signature over a bundle: a DSSE envelope around an in-toto statement about the bundle's manifest."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from engine.canonical import read_json
from engine.errors import BrokenLedger, CallerError
from engine.ledger.ed25519 import verify_signature
from engine.ledger.layout import MANIFEST
from engine.ledger.notes import VerifierKey, read_base64
from engine.ledger.trust import public_id

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://twokeys.example/attestation/run-evidence/v1"
PERIOD_TYPE = "https://twokeys.example/attestation/period-evidence/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_KEYS = ("builder", "entries", "origin", "policy_revisions", "root", "run", "status", "tenant", "tree_size")
PERIOD_KEYS = ("builder", "entries", "from_size", "origin", "root", "tenant", "tree_size")

_subject_digest = re.compile(r"[0-9a-f]{64}")


def write_statement(manifest_sha256: str, predicate: Mapping[str, Any], kind: str = PREDICATE_TYPE) -> bytes:
    """The in-toto statement: this manifest, and what it is the evidence of."""
    return _plain_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": MANIFEST, "digest": {"sha256": manifest_sha256}}],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: what is signed, so that a payload cannot be taken for one of another type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def write_envelope(payload: bytes, public: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """The envelope with one signature, as one line."""
    signature = sign(pre_authentication(PAYLOAD_TYPE, payload))
    value = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": public_id(public), "sig": base64.b64encode(signature).decode("ascii")}],
    }
    return _plain_json(value) + b"\n"


def read_envelope(data: bytes) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """The payload and its signatures (key id, bytes), not yet verified."""
    if not data.endswith(b"\n"):
        _bad_statement("dsse-parse", "the envelope is one line")
    value = _read_plain(data[:-1], "dsse-parse")
    if type(value) is not dict or set(value) != {"payloadType", "payload", "signatures"}:
        _bad_statement("dsse-parse", "an envelope has a payload, its type and signatures")
    if value["payloadType"] != PAYLOAD_TYPE:
        _bad_statement("dsse-type", f"the payload is of type {str(value['payloadType'])[:60]!r}, not {PAYLOAD_TYPE}")
    payload = read_base64(value["payload"]) if type(value["payload"]) is str else None
    if payload is None or type(value["signatures"]) is not list:
        _bad_statement("dsse-parse", "the payload is base64 and the signatures are a list")
    return payload, tuple(_envelope_signature(item) for item in value["signatures"])


def signer_of(payload: bytes, signatures: tuple[tuple[str, bytes], ...], keys: tuple[VerifierKey, ...]) -> VerifierKey:
    """The pinned key that signed; a signature that claims to be a pinned key's and is not breaks the envelope."""
    message = pre_authentication(PAYLOAD_TYPE, payload)
    pinned = {public_id(key.public): key for key in keys}
    found: VerifierKey | None = None
    for key_id, signature in signatures:
        if key_id in pinned:
            if not verify_signature(pinned[key_id].public, message, signature):
                _bad_statement("dsse-sig", f"the signature of {pinned[key_id].name} does not hold over this statement")
            found = pinned[key_id]
    if found is None:
        _bad_statement("dsse-sig", "no bundle key of the trust policy signed this statement")
    return found


def read_statement(payload: bytes, kind: str = PREDICATE_TYPE) -> tuple[str, dict[str, Any]]:
    """The manifest's digest and the predicate of this kind, strictly."""
    value = _read_plain(payload, "stmt-parse")
    if type(value) is not dict or set(value) != {"_type", "subject", "predicateType", "predicate"}:
        _bad_statement("stmt-parse", "a statement has a type, a subject, a predicate type and a predicate")
    if value["_type"] != STATEMENT_TYPE or value["predicateType"] != kind:
        _bad_statement("stmt-type", "the statement is about another kind of evidence")
    subject = value["subject"]
    shaped = type(subject) is list and len(subject) == 1 and type(subject[0]) is dict
    if not shaped or set(subject[0]) != {"name", "digest"} or subject[0]["name"] != MANIFEST:
        _bad_statement("stmt-subject", f"the statement's subject is {MANIFEST}")
    digest = subject[0]["digest"]
    if type(digest) is not dict or set(digest) != {"sha256"} or not _is_digest(digest["sha256"]):
        _bad_statement("stmt-subject", "the subject's digest is one SHA-256")
    predicate = value["predicate"]
    keys = PREDICATE_KEYS if kind == PREDICATE_TYPE else PERIOD_KEYS
    if type(predicate) is not dict or set(predicate) != set(keys):
        _bad_statement("stmt-parse", f"the predicate has exactly {', '.join(keys)}")
    return digest["sha256"], predicate


def _envelope_signature(item: Any) -> tuple[str, bytes]:
    if type(item) is not dict or set(item) != {"keyid", "sig"} or type(item["keyid"]) is not str:
        _bad_statement("dsse-parse", "a signature has a key id and its bytes")
    raw = read_base64(item["sig"]) if type(item["sig"]) is str else None
    if raw is None:
        _bad_statement("dsse-parse", "a signature is base64")
    return item["keyid"], raw


def _is_digest(value: Any) -> bool:
    return type(value) is str and _subject_digest.fullmatch(value) is not None


def _plain_json(value: Any) -> bytes:
    # These two documents have keys that their standards chose (payloadType), so they are outside the JCS profile;
    # sorted ASCII keys and no floats make this the RFC 8785 form all the same.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _read_plain(data: bytes, code: str) -> Any:
    try:
        value = read_json(data)
    except CallerError as error:
        _bad_statement(code, error.reason)
    if _plain_json(value) != data:
        _bad_statement(code, "the bytes are not the canonical form of what they say")
    return value


def _bad_statement(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
