"""What was attempted, what happened and how to reverse it: a connector's outcome, and the signed receipt made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.canonical import decode, encode, sha256, tagged
from engine.errors import BrokenLedger, CallerError, TwokeysError
from engine.gate.action import Action
from engine.gate.permit import Permit

SENSITIVE, REDACTED = "sensitive", "[redacted]"
STATUSES = ("ok", "error", "timeout", "rejected", "unknown")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a connector says of one attempt; metadata only, with what the connector declares secret or personal already removed."""

    status: str
    request: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)  # what the program sees
    error_class: str = ""
    message: str = ""
    retryable: bool = False
    retry_after_seconds: int = 0
    how_to_reverse: Mapping[str, Any] = field(default_factory=dict)
    mend: str = ""  # what an operator must put right before it can be tried again; empty when that is not what is wrong

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise CallerError(f"{self.status!r} is not a receipt status", field="status")


class CannotLook(TwokeysError):
    """The operator or the author must act: the target could not be read before the effect; nothing was changed."""

    code = "cannot_look"

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message, code=outcome.error_class)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Origin:
    """Which run asked, recorded so that the answer goes back to exactly there."""

    run: str
    workflow: str
    version: str
    definition: str
    instance_key: str
    promise: str
    issuer: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The envelope of S002-3.4 as stored bytes, with the executor's signature over them."""

    tenant: str
    key_sha256: str
    attempt: int
    n: int
    status: str
    origin: Origin
    intent: str
    effect: str
    action_sha256: str
    executor: str
    at: str
    resolved_by: str
    how: str
    payload: bytes
    reversible: bool
    body: bytes
    signature: bytes
    key_id: str

    @property
    def sha256(self) -> bytes:
        """What entries and bundles name the receipt by."""
        return sha256(self.body)


_names = (
    "tenant key_sha256 attempt n status intent effect action_sha256 executor at resolved_by how payload reversible"
).split()
_origin = ("run", "workflow", "version", "definition", "instance_key", "promise", "issuer")


def signed_bytes(body: bytes) -> bytes:
    """What the executor signs: the stored envelope under its own tag."""
    return tagged("twokeys/receipt/v1", body)


def intent_hash(permit: Permit) -> str:
    """H(definition, execution, instance key, promise, effect, action): names one emission (S002, C-14)."""
    action = permit.action
    parts = [
        action.definition,
        action.run,
        "",
        action.promise,
        f"{action.connector}.{action.operation}",
        permit.action_sha256,
    ]
    return tagged("twokeys/intent/v1", encode(parts)).hex()


def write(
    permit: Permit,
    outcome: Outcome,
    *,
    n: int,
    at: str,
    executor: str,
    key_sha256: str,
    key_id: str,
    sign: Callable[[bytes], bytes],
    hashed: Callable[[str], str],
    resolved_by: str = "",
    how: str = "performed",
) -> Receipt:
    """Make and sign the receipt of one attempt; `how` is performed, looked or told (by a person).

    `key_sha256` is the effect key as outsiders may see it: an HMAC under the tenant's key, because a key names its target. Before
    and after stand there field by field in the same form; the value of a sensitive field is taken out of whatever the connector
    says of request and response.
    """
    action = permit.action
    origin = Origin(action.run, action.workflow, action.version, action.definition, "", action.promise, action.step)
    hidden = frozenset(f.value for f in action.fields if f.classification == SENSITIVE and f.value)
    payload = encode(
        {
            "request": without(dict(outcome.request), hidden),
            "response": without(dict(outcome.response), hidden),
            "fields": _fields(action, hashed),
            "error_class": outcome.error_class,
            "message": without(outcome.message, hidden),
            "how_to_reverse": dict(outcome.how_to_reverse),
        }
    )
    values: dict[str, Any] = {
        "tenant": action.tenant,
        "key_sha256": key_sha256,
        "attempt": permit.attempt,
        "n": n,
        "status": outcome.status,
        "intent": intent_hash(permit),
        "effect": f"{action.connector}.{action.operation}",
        "action_sha256": permit.action_sha256,
        "executor": executor,
        "at": at,
        "resolved_by": resolved_by,
        "how": how,
        "payload": payload,
        "reversible": action.reversible,
    }
    body = encode({**values, "origin": {name: getattr(origin, name) for name in _origin}})
    return Receipt(**values, origin=origin, body=body, signature=sign(signed_bytes(body)), key_id=key_id)


def without(value: Any, hidden: frozenset[str]) -> Any:
    """The same without these texts, wherever they stand: a receipt travels, and nobody may learn a sensitive value from it."""
    if type(value) is str:
        for text in sorted(hidden, key=len, reverse=True):
            value = value.replace(text, REDACTED)
        return value
    if isinstance(value, Mapping):
        return {name: without(item, hidden) for name, item in value.items()}
    if type(value) in (list, tuple):
        return [without(item, hidden) for item in value]
    return value


def _fields(action: Action, hashed: Callable[[str], str]) -> list[dict[str, str]]:
    """Each field with the digests of what it was and of what was sent, as policy saw them; what was not read before has none."""
    before = dict(action.preconditions)
    return [
        {
            "name": f.name, "op": f.op, "classification": f.classification,
            "before": hashed(before[f.name]) if f.name in before else "", "after": hashed(f.value),
        }
        for f in action.fields
    ]  # fmt: skip


def check_signature(body: bytes, signature: bytes, key_id: str, verify: Callable[[str, bytes, bytes], bool]) -> None:
    """Return when the signature over these stored bytes holds; raise otherwise."""
    if not verify(key_id, signed_bytes(body), signature):
        raise BrokenLedger(f"the signature of a receipt does not hold under key {key_id}", code="receipt_signature")


def read(body: bytes, signature: bytes, key_id: str, verify: Callable[[str, bytes, bytes], bool]) -> Receipt:
    """The receipt these stored bytes hold; a signature that does not hold is never settled."""
    check_signature(body, signature, key_id, verify)
    value = decode(body)
    if type(value) is not dict or set(value) != {*_names, "origin"}:
        raise BrokenLedger("not a receipt envelope", code="receipt_shape")
    origin = Origin(**value.pop("origin"))
    return Receipt(**value, origin=origin, body=body, signature=signature, key_id=key_id)
