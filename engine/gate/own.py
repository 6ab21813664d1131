"""What the product does to its own rules: the operations of the connector `twokeys`, and one such change as it is proposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.canonical import decode, encode
from engine.gate.action import FieldSpec, OperationSpec

CONNECTOR = "twokeys"
PUBLISH, ROLL_BACK, LOOSEN, THAW = "policy_publish", "policy_rollback", "policy_loosen", "thaw"
loosened_minutes_max = 240
text_chars_max = 60_000  # of a diff or an impact: a run's whole input is bounded, and so is what people can read

_policy_fields = (
    FieldSpec("impact", required=True, chars_max=text_chars_max),
    FieldSpec("weight", required=True, chars_max=text_chars_max),
    FieldSpec("diff", required=True, chars_max=text_chars_max),
    FieldSpec("edit", required=True, chars_max=100),
    FieldSpec("revision", required=True, chars_max=64),
    FieldSpec("bundle_sha256", required=True, chars_max=64),
    FieldSpec("reason", chars_max=2_000),
)


def _spec(
    operation: str, target: str, fields: tuple[FieldSpec, ...], risk: str, summary: str, *result: str
) -> OperationSpec:
    # Nothing leaves our own database, where no statement lasts longer than some seconds.
    return OperationSpec(
        CONNECTOR, operation, "write", target, fields, reversible=True, reversal="manual", risk=risk, summary=summary,
        result_fields=result, settles_seconds=30,
    )  # fmt: skip


# `med` is for what provably only tightens; the guard asks one person there and two everywhere else.
SPECS = (
    _spec(PUBLISH, "policy", _policy_fields, "med", "Publish a policy", "revision"),
    _spec(ROLL_BACK, "policy", _policy_fields, "med", "Go back to an earlier policy", "revision"),
    _spec(
        LOOSEN, "policy", (*_policy_fields, FieldSpec("minutes", required=True, chars_max=3)), "high", "Loosen the policy for a while",
        "revision", "until",
    ),
    _spec(
        THAW, "freeze", (FieldSpec("lifts", required=True, chars_max=300), FieldSpec("reason", required=True, chars_max=2_000)), "high",
        "Lift a freeze", "freeze",
    ),
)  # fmt: skip


def mends(connector: str, operation: str) -> bool:
    """Whether this works while everything stands still: what ends a standstill, or mends the policy behind it."""
    return connector == CONNECTOR and operation in (PUBLISH, ROLL_BACK, THAW)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the product's own rules, complete: what is shown to people, and what will be done, are the same record."""

    operation: str
    target: str  # the draft's or the freeze's name
    fields: Mapping[str, str]
    people: int  # besides the authors
    draft: str = ""
    n: int = 0
    base_revision: str = ""
    revision: str = ""
    bundle: bytes = b""
    bundle_sha256: str = ""
    minutes: int = 0
    authors: tuple[str, ...] = field(default=())

    @property
    def risk(self) -> str:
        """The tier it is proposed at; only what provably tightens is below high."""
        return "med" if self.people == 1 else "high"

    @property
    def body(self) -> bytes:
        """The fields as they are stored and as an action must say them again."""
        return encode(dict(sorted(self.fields.items())))


def fields_from(body: bytes) -> dict[str, str]:
    """The fields of stored bytes."""
    value = decode(body)
    assert type(value) is dict
    return {str(name): str(text) for name, text in value.items()}
