"""One governed action as a program: the definition of a single step that an action proposed from outside is run as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.canonical import digest
from engine.errors import CallerError
from engine.gate.action import TIERS, OperationSpec
from engine.ids import check_ident
from engine.program.definition import Definition
from engine.program.faults import hint
from engine.program.normalize import Catalog, normalize

NAME = "action"  # what every such definition is called; no author may take it
deadline_seconds_default = 86_400


@dataclass(frozen=True, slots=True)
class Proposal:
    """What somebody outside wants to have done: values, never expressions."""

    connector: str
    operation: str
    target: str
    fields: Mapping[str, str] = field(default_factory=dict)
    risk: str = ""  # empty: the least that the operation has
    amount_minor: int | None = None
    currency: str = ""
    deadline_s: int = deadline_seconds_default
    max_attempts: int = 4


def one_step(proposal: Proposal, catalog: Catalog) -> Definition:
    """The definition for proposals of this shape, without any of their values; every fault of the proposal is refused by name."""
    spec = _spec(proposal, catalog)
    risk = _check(proposal, spec)
    effect = f"{proposal.connector}.{proposal.operation}"
    text = {"type": "string"}
    properties: dict[str, object] = {
        "target": text,
        "fields": {
            "type": "object", "additionalProperties": False, "required": sorted(proposal.fields),
            "properties": dict.fromkeys(sorted(proposal.fields), text),
        },
    }  # fmt: skip
    step: dict[str, object] = {
        "id": proposal.operation, "kind": "action", "connector": proposal.connector, "operation": proposal.operation,
        "target": "${input.target}", "fields": {name: f"${{input.fields.{name}}}" for name in sorted(proposal.fields)},
        "risk": risk, "deadline_s": proposal.deadline_s, "retry": {"max_attempts": proposal.max_attempts},
    }  # fmt: skip
    if proposal.amount_minor is not None:
        properties["amount"] = {"type": "integer"}
        step |= {"amount": "${input.amount}", "currency": proposal.currency}
    authored = {
        "name": NAME, "title": effect, "description": f"One {effect}, proposed from outside and governed like any step.",
        "trigger": {"kind": "manual"}, "connectors": [proposal.connector], "effects": [effect], "steps": [step],
        "inputs": {"type": "object", "additionalProperties": False, "required": sorted(properties), "properties": properties},
    }  # fmt: skip
    version = digest("twokeys/one-step/v1", [json.dumps(authored, sort_keys=True)]).hex()[:16]
    return normalize(json.dumps({**authored, "version": version}).encode(), f"{effect}.yaml", catalog)


def input_of(proposal: Proposal) -> dict[str, object]:
    """The run's input: the values that the definition leaves open."""
    value: dict[str, object] = {"target": proposal.target, "fields": dict(proposal.fields)}
    return value if proposal.amount_minor is None else {**value, "amount": proposal.amount_minor}


def _spec(proposal: Proposal, catalog: Catalog) -> OperationSpec:
    known = {connector for connector, _ in catalog}
    if proposal.connector not in known:
        near = hint(proposal.connector, known)
        raise CallerError(
            f"there is no connector {proposal.connector!r}{near}", code="invalid_proposal", field="connector"
        )
    spec = catalog.get((proposal.connector, proposal.operation))
    if spec is None:
        near = hint(proposal.operation, (name for owner, name in catalog if owner == proposal.connector))
        reason = f"{proposal.connector} has no operation {proposal.operation!r}{near}"
        raise CallerError(reason, code="invalid_proposal", field="operation")
    return spec


def _check(proposal: Proposal, spec: OperationSpec) -> str:
    """The risk that the action has; raises for the first thing that does not fit the operation."""
    name, known = f"{spec.connector}.{spec.operation}", {one.name: one for one in spec.fields}
    check_ident(proposal.target, "target")
    for given, value in proposal.fields.items():
        if given not in known:
            raise CallerError(
                f"{name} has no such field{hint(given, known)}", code="invalid_proposal", field=f"fields.{given}"
            )
        if len(value) > known[given].chars_max:
            reason = f"has {len(value)} characters; at most {known[given].chars_max} may be sent"
            raise CallerError(reason, code="invalid_proposal", field=f"fields.{given}")
    for one in spec.fields:
        if one.required and one.name not in proposal.fields:
            raise CallerError(f"{name} needs this field", code="invalid_proposal", field=f"fields.{one.name}")
    risk = proposal.risk or spec.risk
    if risk not in TIERS or TIERS.index(risk) < TIERS.index(spec.risk):
        reason = f"{name} is at least {spec.risk}; {risk!r} is no risk of it"
        raise CallerError(
            reason, code="invalid_proposal", field="risk", next_step=f"one of {', '.join(TIERS)}, or leave it out"
        )
    if (spec.kind == "payment" or proposal.currency) and proposal.amount_minor is None:
        raise CallerError(
            f"{name} needs an amount, in the smallest unit of its currency",
            code="invalid_proposal",
            field="amount_minor",
        )
    if proposal.amount_minor is not None and not proposal.currency:
        raise CallerError("an amount needs its currency, as EUR", code="invalid_proposal", field="currency")
    return risk
