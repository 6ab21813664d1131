"""The canonical definition: what an author published, complete and unmistakable, with the digest that runs are pinned to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from engine.canonical import encode, tagged
from engine.errors import AuthorError
from engine.program.caps import NAMES, Caps
from engine.program.formula import Formula, formula_from, to_value

SCHEMA = "twokeys.definition/v1"
TRIGGERS = ("manual", "event")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subscription:
    """An event of a source that starts a run."""

    source: str
    event: str


@dataclass(frozen=True, slots=True)
class AssignStep:
    """Writes business state; every value sees the state as it was before the step."""

    id: str
    values: tuple[tuple[str, Formula], ...]


@dataclass(frozen=True, slots=True)
class ActionStep:
    """Proposes one side effect (or read) and waits for its outcome."""

    id: str
    connector: str
    operation: str
    target_type: Formula
    target_id: Formula
    fields: tuple[tuple[str, Formula], ...]
    risk: str
    amount: Formula | None  # in the smallest unit of the currency
    currency: str
    result: str  # the name under `steps`, empty when nobody reads it
    key: Formula | None  # the effect key, when the author gives one
    deadline_s: int
    max_attempts: int
    on_success: tuple[Step, ...] = ()
    on_failure: tuple[Step, ...] = ()  # after it the run goes on behind this step, unless the branch ends it
    on_timeout: tuple[Step, ...] = ()
    undoes: bool = False  # on_failure: reverse
    reversal: str = ""  # skip | by:<operation> | person; only in a definition that undoes


@dataclass(frozen=True, slots=True)
class CompleteStep:
    """Ends the run as succeeded; with a condition, only when it holds."""

    id: str
    when: str
    result: Formula


@dataclass(frozen=True, slots=True)
class FailStep:
    """Ends the run as failed; with a condition, only when it holds."""

    id: str
    when: str
    error_class: str
    message: Formula


Step = AssignStep | ActionStep | CompleteStep | FailStep


@dataclass(frozen=True, slots=True)
class Placed:
    """A step at its place in the program, and where the program goes on: behind it, or into a branch (-1: there is none)."""

    step: Step
    next: int
    success: int = -1
    failure: int = -1
    timeout: int = -1


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
            "steps": [_step_value(step) for step in self.steps],
        }

    @cached_property
    def flat(self) -> tuple[Placed, ...]:
        """Every step at its place: those of the definition first, those of branches behind them; its length is the end."""
        placed: list[Placed] = []
        _lay_out(self.steps, _count(self.steps), placed)
        return tuple(placed)

    @cached_property
    def reverses(self) -> bool:
        """Whether some step undoes what earlier ones did."""
        return any(isinstance(each.step, ActionStep) and each.step.undoes for each in self.flat)

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
    parts = _exact(value, f"max_writes {names}", "caps")
    first = {"max_writes_per_run": _of(parts["max_writes"], int) or None}
    return Caps(**first, **{name: _of(parts[name], int) for name in names.split()})


def _branches(step: Step) -> tuple[tuple[Step, ...], ...]:
    return (step.on_success, step.on_failure, step.on_timeout) if isinstance(step, ActionStep) else ()


def _count(steps: tuple[Step, ...]) -> int:
    return sum(1 + sum(map(_count, _branches(step))) for step in steps)


def _lay_out(steps: tuple[Step, ...], after: int, placed: list[Placed]) -> int:
    """Put steps behind what is placed already; `after` is where the last of them goes on. The place of the first, -1 for none."""
    if not steps:
        return -1
    start = len(placed)
    placed.extend(Placed(step, start + n + 1 if n + 1 < len(steps) else after) for n, step in enumerate(steps))
    for at, step in enumerate(steps, start):
        follows = placed[at].next
        placed[at] = Placed(step, follows, *(_lay_out(branch, follows, placed) for branch in _branches(step)))
    return start


def _step_value(step: Step) -> dict[str, Any]:
    if isinstance(step, AssignStep):
        return {"id": step.id, "kind": "assign", "values": {name: to_value(each) for name, each in step.values}}
    if isinstance(step, CompleteStep):
        return {"id": step.id, "kind": "complete", "when": step.when, "result": to_value(step.result)}
    if isinstance(step, FailStep):
        message = to_value(step.message)
        return {
            "id": step.id,
            "kind": "fail",
            "when": step.when,
            "error_class": step.error_class,
            "message": message,
        }
    # Keys that a definition without branches does not have, so that its digest is what it always was.
    more: dict[str, Any] = {
        name: [_step_value(each) for each in getattr(step, name)]
        for name in ("on_success", "on_failure", "on_timeout")
        if getattr(step, name)
    }
    if step.undoes:
        more["on_failure"] = "reverse"
    if step.reversal:
        more["reversal"] = step.reversal
    return {
        **more,
        "id": step.id,
        "kind": "action",
        "connector": step.connector,
        "operation": step.operation,
        "target": {"type": to_value(step.target_type), "id": to_value(step.target_id)},
        "fields": {name: to_value(each) for name, each in step.fields},
        "risk": step.risk,
        "amount": None if step.amount is None else to_value(step.amount),
        "currency": step.currency,
        "result": step.result,
        "key": None if step.key is None else to_value(step.key),
        "deadline_s": step.deadline_s,
        "retry": {"max_attempts": step.max_attempts},
    }


def definition_from(value: Any) -> Definition:
    """The definition that a stored canonical value holds; AuthorError for anything else, so that it is shown as unavailable."""
    head = _exact(
        value,
        "schema name version title description trigger inputs connectors effects caps risk_ceiling steps",
        "a definition",
    )
    if head["schema"] != SCHEMA:
        raise AuthorError(f"a stored definition has the schema {SCHEMA}, not {head['schema']!r}")
    trigger = _exact(head["trigger"], "kind subscriptions", "a trigger")
    subscriptions = []
    for each in _of(trigger["subscriptions"], list):
        pair = _exact(each, "source event", "a subscription")
        subscriptions.append(Subscription(_of(pair["source"], str), _of(pair["event"], str)))
    return Definition(
        name=_of(head["name"], str),
        version=_of(head["version"], str),
        title=_of(head["title"], str),
        description=_of(head["description"], str),
        trigger=_of(trigger["kind"], str),
        subscriptions=tuple(subscriptions),
        inputs=_of(head["inputs"], dict),
        connectors=tuple(_of(name, str) for name in _of(head["connectors"], list)),
        effects=tuple(_of(name, str) for name in _of(head["effects"], list)),
        caps=_caps_from(head["caps"]),
        risk_ceiling=_of(head["risk_ceiling"], str),
        steps=tuple(_step_from(each) for each in _of(head["steps"], list)),
    )


def _step_from(value: Any) -> Step:
    kind = value.get("kind") if type(value) is dict else None
    if kind == "assign":
        parts = _exact(value, "id kind values", "an assign step")
        return AssignStep(_of(parts["id"], str), _formulas(parts["values"]))
    if kind == "complete":
        parts = _exact(value, "id kind when result", "a complete step")
        return CompleteStep(_of(parts["id"], str), _of(parts["when"], str), formula_from(parts["result"]))
    if kind == "fail":
        parts = _exact(value, "id kind when error_class message", "a fail step")
        return FailStep(
            _of(parts["id"], str),
            _of(parts["when"], str),
            _of(parts["error_class"], str),
            formula_from(parts["message"]),
        )
    if kind != "action":
        raise AuthorError(f"a step of a stored definition is of no known kind: {kind!r}")
    return _action_from(value)


def _action_from(value: Any) -> ActionStep:
    more = {name: value[name] for name in ("on_success", "on_failure", "on_timeout", "reversal") if name in value}
    parts = _exact(
        {name: each for name, each in value.items() if name not in more},
        "id kind connector operation target fields risk amount currency result key deadline_s retry",
        "an action step",
    )
    undoes = more.get("on_failure") == "reverse"
    branches = {
        name: tuple(_step_from(each) for each in _of(more[name], list))
        for name in ("on_success", "on_failure", "on_timeout")
        if name in more and not (undoes and name == "on_failure")
    }
    target = _exact(parts["target"], "type id", "a target")
    return ActionStep(
        id=_of(parts["id"], str),
        connector=_of(parts["connector"], str),
        operation=_of(parts["operation"], str),
        target_type=formula_from(target["type"]),
        target_id=formula_from(target["id"]),
        fields=_formulas(parts["fields"]),
        risk=_of(parts["risk"], str),
        amount=None if parts["amount"] is None else formula_from(parts["amount"]),
        currency=_of(parts["currency"], str),
        result=_of(parts["result"], str),
        key=None if parts["key"] is None else formula_from(parts["key"]),
        deadline_s=_of(parts["deadline_s"], int),
        max_attempts=_of(_exact(parts["retry"], "max_attempts", "retry")["max_attempts"], int),
        **branches,
        undoes=undoes,
        reversal=_of(more.get("reversal", ""), str),
    )


def _formulas(value: Any) -> tuple[tuple[str, Formula], ...]:
    body = _of(value, dict)
    return tuple((name, formula_from(body[name])) for name in sorted(body))


def _exact(value: Any, names: str, what: str) -> dict[str, Any]:
    if type(value) is not dict or set(value) != set(names.split()):
        raise AuthorError(f"{what} of a stored definition has exactly these keys: {names}")
    return value


def _of(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise AuthorError(f"a stored definition holds {type(value).__name__} where {kind.__name__} belongs")
    return value
