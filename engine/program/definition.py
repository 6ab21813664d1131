"""The canonical definition: what an author published, complete and unmistakable, with the digest that runs are pinned to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.canonical import encode, tagged
from engine.errors import AuthorError
from engine.program.caps import NAMES, Caps
from engine.program.kinds import ActionStep, Step, WaitStep
from engine.program.layout import Placed, laid_out
from engine.program.stored import exact, of, step_from, step_value

SCHEMA = "twokeys.definition/v1"
TRIGGERS = ("manual", "scheduled", "event")


@dataclass(frozen=True, slots=True)
class Subscription:
    """An event of a source that starts a run."""

    source: str
    event: str


@dataclass(frozen=True)
class Definition:
    """A workflow as it is interpreted; nothing in it depends on how its author laid out the file."""

    name: str
    version: str
    title: str
    description: str
    trigger: str
    subscriptions: tuple[Subscription, ...]
    inputs: dict[str, Any]
    connectors: tuple[str, ...]
    effects: tuple[str, ...]
    caps: Caps
    risk_ceiling: str
    steps: tuple[Step, ...]

    def to_value(self) -> dict[str, Any]:
        """The canonical value: every key present."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "title": self.title,
            "description": self.description,
            "trigger": {
                "kind": self.trigger,
                "subscriptions": [{"source": each.source, "event": each.event} for each in self.subscriptions],
            },
            "inputs": self.inputs,
            "connectors": list(self.connectors),
            "effects": list(self.effects),
            "caps": _caps_value(self.caps),
            "risk_ceiling": self.risk_ceiling,
            "steps": [step_value(step) for step in self.steps],
        }

    @cached_property
    def flat(self) -> tuple[Placed, ...]:
        """Every step at its place: those of the definition first, those of branches behind them; its length is the end."""
        return laid_out(self.steps)

    @cached_property
    def reverses(self) -> bool:
        """Whether some step undoes what earlier ones did."""
        return any(isinstance(each.step, ActionStep) and each.step.undoes for each in self.flat)

    @cached_property
    def signals(self) -> frozenset[str]:
        """The signals that some step waits for."""
        return frozenset(each.step.signal for each in self.flat if isinstance(each.step, WaitStep) and each.step.signal)

    @cached_property
    def body(self) -> bytes:
        """The bytes that are stored and hashed."""
        return encode(self.to_value())

    @cached_property
    def digest(self) -> bytes:
        """What a run is pinned to: sha256(tag, CBOR bytes)."""
        return tagged("twokeys/definition/v1", self.body)


def _caps_value(caps: Caps) -> dict[str, int]:
    # The one that there was first is always present and has its first name: a digest never changes with a release.
    later = {
        name: value for name in NAMES if name != "max_writes_per_run" and (value := getattr(caps, name)) is not None
    }
    return {"max_writes": caps.max_writes_per_run or 0, **later}


def _caps_from(value: Any) -> Caps:
    names = (
        " ".join(name for name in NAMES if name in value and name != "max_writes_per_run")
        if type(value) is dict
        else ""
    )
    parts = exact(value, f"max_writes {names}", "caps")
    first = {"max_writes_per_run": of(parts["max_writes"], int) or None}
    return Caps(**first, **{name: of(parts[name], int) for name in names.split()})


def definition_from(value: Any) -> Definition:
    """The definition that a stored canonical value holds; AuthorError for anything else, so that it is shown as unavailable."""
    head = exact(
        value,
        "schema name version title description trigger inputs connectors effects caps risk_ceiling steps",
        "a definition",
    )
    if head["schema"] != SCHEMA:
        raise AuthorError(f"a stored definition has the schema {SCHEMA}, not {head['schema']!r}")
    trigger = exact(head["trigger"], "kind subscriptions", "a trigger")
    subscriptions = []
    for each in of(trigger["subscriptions"], list):
        pair = exact(each, "source event", "a subscription")
        subscriptions.append(Subscription(of(pair["source"], str), of(pair["event"], str)))
    return Definition(
        name=of(head["name"], str),
        version=of(head["version"], str),
        title=of(head["title"], str),
        description=of(head["description"], str),
        trigger=of(trigger["kind"], str),
        subscriptions=tuple(subscriptions),
        inputs=of(head["inputs"], dict),
        connectors=tuple(of(name, str) for name in of(head["connectors"], list)),
        effects=tuple(of(name, str) for name in of(head["effects"], list)),
        caps=_caps_from(head["caps"]),
        risk_ceiling=of(head["risk_ceiling"], str),
        steps=tuple(step_from(each) for each in of(head["steps"], list)),
    )
