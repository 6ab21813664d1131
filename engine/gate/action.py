"""A proposed side effect: what would be done to which target, its digest, and what a connector declares about an operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.canonical import decode, encode, sha256, tagged
from engine.errors import CallerError

KINDS = ("read", "write", "delete", "message", "payment")
TIERS = ("low", "med", "high")
FIELD_OPS = ("set", "clear", "append")
CLASSES = ("public", "internal", "sensitive")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What a connector declares about one field of an operation."""

    name: str
    required: bool = False
    op: str = "set"
    classification: str = "internal"
    chars_max: int = 8_000


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """What a connector declares about one operation, so that authoring, policy and cards need not ask it."""

    connector: str
    operation: str
    kind: str
    target_type: str
    fields: tuple[FieldSpec, ...]
    reversible: bool
    reversal: str = "none"  # inverse | manual | none
    inverse: str = ""  # the operation of the same connector that sets the fields back to what they were
    risk: str = "low"  # the least tier an author may declare
    key_template: str = ""  # a named effect key that an author may choose instead of the one by position
    settles_seconds: int = 300  # the longest an attempt may still be on the road: "unchanged" proves nothing before
    summary: str = ""  # what people read: "Update incident"
    result_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The thing that would be changed."""

    system: str
    type: str
    id: str
    instance: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field and what would be done to it; the value is text, as every connector's wire is."""

    name: str
    op: str
    value: str
    classification: str


@dataclass(frozen=True)
class Action:
    """A side effect as proposed, complete: what keys bind to and what runs. `body` is stored; the digest is over it."""

    tenant: str
    workspace: str
    run: str
    promise: str
    step: str
    workflow: str
    version: str
    definition: str
    connector: str
    operation: str
    kind: str
    risk: str
    reversible: bool
    reversal: str
    target: Target
    fields: tuple[Field, ...]
    amount_minor: int
    currency: str
    preconditions: tuple[tuple[str, str], ...]
    key: str
    summary: str
    salt: str  # unguessable outside, so that the digest of guessable values tells nothing

    def to_value(self) -> dict[str, Any]:
        """The canonical value: every key present."""
        value: dict[str, Any] = {name: getattr(self, name) for name in _plain}
        value["target"] = {name: getattr(self.target, name) for name in _target}
        value["fields"] = [{name: getattr(field, name) for name in _field} for field in self.fields]
        value["preconditions"] = [list(pair) for pair in self.preconditions]
        return value

    @cached_property
    def body(self) -> bytes:
        """The bytes that are stored and hashed."""
        return encode(self.to_value())

    @cached_property
    def digest(self) -> bytes:
        """What keys, verdicts, intents and permits are bound to."""
        return action_digest(self.body)

    def payload_bytes(self) -> int:
        """How much text the fields carry."""
        return sum(len(field.value.encode()) for field in self.fields)


_plain = (
    "tenant workspace run promise step workflow version definition connector operation kind risk "
    "reversible reversal amount_minor currency key summary salt"
).split()
_target = ("system", "type", "id", "instance")
_field = ("name", "op", "value", "classification")


def action_digest(body: bytes) -> bytes:
    """sha256(tag, CBOR bytes as stored)."""
    return tagged("twokeys/action/v1", body)


def action_from(body: bytes) -> Action:
    """The action that these stored bytes hold."""
    value = decode(body)
    if type(value) is not dict or set(value) != {*_plain, "target", "fields", "preconditions"}:
        raise CallerError("not an action", code="not_an_action")
    parts: dict[str, Any] = {name: value[name] for name in _plain}
    return Action(
        **parts,
        target=Target(**value["target"]),
        fields=tuple(Field(**field) for field in value["fields"]),
        preconditions=tuple((name, text) for name, text in value["preconditions"]),
    )


def fields_hash(fields: tuple[Field, ...]) -> str:
    """A short name of exactly these field changes, for effect keys."""
    return sha256(encode([[f.name, f.op, f.value] for f in sorted(fields, key=lambda f: f.name)])).hex()[:32]


def effect_key(spec: OperationSpec, target: Target, fields: tuple[Field, ...], promise: str, given: str) -> str:
    """The one key under which this effect may happen at most once.

    By position, unless the author gave a key, or named the connector's template: `sn:incident:update` stands for
    `sn:incident:update:{instance}:{target}:{fields_hash}`, under which a repeat by another run is the same effect.
    """
    parts = {
        "instance": target.instance,
        "target": target.id,
        "fields_hash": fields_hash(fields),
        "thread": next((f.value for f in fields if f.name == "thread_ts"), ""),
        "promise": promise,
    }
    if spec.key_template and given == template_name(spec):
        return spec.key_template.format(**parts)
    return given or f"{spec.connector}:{spec.operation}:{target.id}:{fields_hash(fields)}:{promise}"


def template_name(spec: OperationSpec) -> str:
    """What an author writes as `key` to choose the connector's template."""
    return spec.key_template.partition(":{")[0]


def same_effect(one: Action, other: Action) -> bool:
    """Whether two proposals would do exactly the same to exactly the same target."""
    return (one.connector, one.operation, one.target, one.fields) == (
        other.connector,
        other.operation,
        other.target,
        other.fields,
    )
