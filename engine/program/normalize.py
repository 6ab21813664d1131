"""Turns an authored YAML file into the canonical definition, or says everything that is wrong with it, at its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.errors import CallerError
from engine.gate.action import TIERS, OperationSpec
from engine.ids import check_ident, check_name
from engine.limits import steps_max
from engine.program.caps import NAMES, Caps, fault_of
from engine.program.definition import SCHEMA, TRIGGERS, Definition, Subscription
from engine.program.document import read_document
from engine.program.faults import hint
from engine.program.inputs import check_schema
from engine.program.kinds import Step
from engine.program.places import Ledger
from engine.program.shape import Reader
from engine.program.structure import StructureReader

Catalog = Mapping[tuple[str, str], OperationSpec]
_version = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_effect = re.compile(r"[a-z0-9][a-z0-9_-]*\.[a-z][a-z0-9_]*")
_top = {
    "schema": str,
    "name": str,
    "version": str,
    "title": str,
    "description": str,
    "trigger": dict,
    "inputs": dict,
    "connectors": list,
    "effects": list,
    "caps": dict,
    "risk_ceiling": str,
    "steps": list,
}
title_chars_max = 150
description_chars_max = 4_000


def normalize(
    text: bytes, filename: str, catalog: Catalog, above: Mapping[str, tuple[int, str]] | None = None
) -> Definition:
    """The definition in this file; DefinitionInvalid with every fault when there is any.

    `above` are the caps of whoever publishes it, each with its own words: a definition may only tighten them.
    """
    document = read_document(text, filename)
    ledger = Ledger(document, filename)
    reader = Reader(ledger)
    head = reader.shape("", document.value, _top, ("name", "version", "trigger", "effects", "steps"))
    if head.get("schema", SCHEMA) != SCHEMA:
        ledger.at_value("/schema", f"the schema of a definition is {SCHEMA}")
    name = _name(ledger, head)
    version = head.get("version", "")
    if version and not _version.fullmatch(version):
        ledger.at_value("/version", f"{version[:40]!r} is not a version; use 1-32 of A-Z a-z 0-9 . _ -")
    trigger, subscriptions = _trigger(reader, ledger, head.get("trigger"))
    inputs = head.get("inputs", {"type": "object"})
    for pointer, message in check_schema(inputs):
        ledger.at_value("/inputs" + pointer, f"inputs: {message}")
    effects = _effects(reader, ledger, head.get("effects", []), catalog)
    connectors = _connectors(reader, ledger, head.get("connectors"), effects, catalog)
    ceiling = reader.choice("/risk_ceiling", head.get("risk_ceiling", "high"), TIERS, "high")
    steps = _steps(StructureReader(ledger, catalog, effects, ceiling, inputs), ledger, head.get("steps"))
    definition = Definition(
        name=name,
        version=version,
        title=reader.limit("/title", head.get("title", name), title_chars_max),
        description=reader.limit("/description", head.get("description", ""), description_chars_max),
        trigger=trigger,
        subscriptions=subscriptions,
        inputs=inputs,
        connectors=connectors,
        effects=effects,
        caps=_caps(reader, ledger, head.get("caps", {}), above or {}),
        risk_ceiling=ceiling,
        steps=steps,
    )
    ledger.refuse()
    try:
        definition.body  # noqa: B018
    except CallerError as error:
        ledger.at_value("/steps", f"steps and their values are nested too deep or too large: {error.reason}")
        ledger.refuse()
    return definition


def _name(ledger: Ledger, head: Mapping[str, Any]) -> str:
    name: str = head.get("name", "")
    if "name" in head:
        try:
            check_name(name, "name")
        except CallerError as error:
            ledger.at_value("/name", f"{error.reason}; {error.next_step}")
    return name


def _trigger(reader: Reader, ledger: Ledger, value: Any) -> tuple[str, tuple[Subscription, ...]]:
    if value is None:
        return "", ()
    parts = reader.shape("/trigger", value, {"kind": str, "subscriptions": list}, ("kind",))
    kind = reader.choice("/trigger/kind", parts["kind"], TRIGGERS, "") if "kind" in parts else ""
    found = []
    for number, each in enumerate(parts.get("subscriptions", [])):
        pointer = f"/trigger/subscriptions/{number}"
        pair = reader.shape(pointer, each, {"source": str, "event": str}, ("source", "event"))
        for key in sorted(pair):
            try:
                check_ident(pair[key], key)
            except CallerError as error:
                ledger.at_value(f"{pointer}/{key}", f"{error.reason}; {error.next_step}")
        subscription = Subscription(pair.get("source", ""), pair.get("event", ""))
        if subscription in found:
            ledger.at_value(pointer, f"the subscription {subscription.source} {subscription.event} stands twice")
        found.append(subscription)
    if kind == "event" and not found:
        ledger.at_value("/trigger", "an event trigger needs at least one of subscriptions: {source, event}")
    if kind in ("manual", "scheduled") and found:
        ledger.at_value("/trigger/subscriptions", f"a {kind} trigger has no subscriptions; write kind: event")
    return kind, tuple(sorted(found, key=lambda each: (each.source, each.event)))


def _effects(reader: Reader, ledger: Ledger, value: Any, catalog: Catalog) -> tuple[str, ...]:
    known = {connector for connector, _ in catalog}
    found = []
    for pointer, effect in reader.texts("/effects", value):
        if not _effect.fullmatch(effect):
            ledger.at_value(pointer, f"{effect[:60]!r} is not an effect; write connector.operation")
            continue
        connector, _, operation = effect.rpartition(".")
        if connector not in known:
            ledger.at_value(pointer, f"unknown connector {connector!r}{hint(connector, known)}")
        elif (connector, operation) not in catalog:
            near = hint(operation, (each for owner, each in catalog if owner == connector))
            ledger.at_value(pointer, f"{connector} has no operation {operation!r}{near}")
        if effect in found:
            ledger.at_value(pointer, f"{effect!r} stands twice")
        found.append(effect)
    return tuple(sorted(found))


def _connectors(
    reader: Reader, ledger: Ledger, value: Any, effects: tuple[str, ...], catalog: Catalog
) -> tuple[str, ...]:
    used = sorted({effect.rpartition(".")[0] for effect in effects})
    if value is None:
        return tuple(used)
    known = {connector for connector, _ in catalog}
    given: list[str] = []
    for pointer, connector in reader.texts("/connectors", value):
        if connector not in known:
            ledger.at_value(pointer, f"unknown connector {connector!r}{hint(connector, known)}")
        if connector in given:
            ledger.at_value(pointer, f"{connector!r} stands twice")
        given.append(connector)
    for connector in used:
        if connector not in given and connector in known:
            ledger.at_value("/connectors", f"effects name {connector!r}, which is not among the connectors")
    return tuple(sorted(given))


def _caps(reader: Reader, ledger: Ledger, value: Any, above: Mapping[str, tuple[int, str]]) -> Caps:
    parts = reader.shape("/caps", value, dict.fromkeys(NAMES, int), ())
    for name, given in parts.items():
        most, whose = above.get(name, (given, ""))
        if fault := fault_of(given):
            ledger.at_value(f"/caps/{name}", f"{name} {fault}")
        elif given > most:
            ledger.at_value(f"/caps/{name}", f"{name} {given} is more than {whose}; a workflow may only tighten")
    return Caps(**parts)


def _steps(reader: StructureReader, ledger: Ledger, value: Any) -> tuple[Step, ...]:
    if value is None:
        return ()
    if not value:
        ledger.at_value("/steps", "a definition has at least one step")
    if len(value) > steps_max:
        ledger.at_value("/steps", f"a definition has at most {steps_max} steps; this one has {len(value)}")
        return ()
    return reader.read(value)
