"""Caps: how much a tenant, a workspace or a workflow may have under way at once; of several that hold, the smallest does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import CallerError
from engine.limits import weight_max
from engine.program.caps import NAMES, Caps, fault_of

# The three that a cap is of, the widest first: each may only tighten what those before it allow.
TENANT, WORKSPACE, WORKFLOW = "tenant", "workspace", "workflow"
SCOPES = (TENANT, WORKSPACE, WORKFLOW)


@dataclass(frozen=True, slots=True)
class Cap:
    """One number and whose it is."""

    name: str
    value: int
    scope: str
    of: str

    def __str__(self) -> str:
        return f"{self.name} {self.value} of {self.scope} {self.of}"


@dataclass(frozen=True, slots=True)
class Scoped:
    """The caps of one scope."""

    scope: str
    of: str
    caps: Caps


@dataclass(frozen=True, slots=True)
class Usage:
    """What is under way in one scope."""

    concurrency: int = 0
    runs: int = 0
    runs_this_minute: int = 0


def caps_from(values: Mapping[str, object]) -> Caps:
    """Caps as somebody gave them, every number checked; None unsets one. The error names the first that cannot be a cap."""
    for name, value in values.items():
        if name not in NAMES:
            raise CallerError("is not a cap", field=name, next_step=f"there are {', '.join(NAMES)}")
        if value is not None and (fault := fault_of(value)):
            raise CallerError(fault, code="bad_cap", field=name, next_step="a cap can be taken away, but is never 0")
    return Caps(**{name: value for name, value in values.items() if type(value) is int})


def check_weight(value: object) -> int:
    """The units of a share, or an error that names the setting."""
    if type(value) is not int or not 1 <= value <= weight_max:
        raise CallerError(f"is a whole number from 1 to {weight_max}, not {value!r}", code="bad_cap", field="weight")
    return value


def tightest(name: str, scoped: Iterable[Scoped]) -> Cap | None:
    """The smallest of one cap over several scopes; the widest scope's when two are equal, None when none is set."""
    found = [
        Cap(name, value, each.scope, each.of) for each in scoped if (value := getattr(each.caps, name)) is not None
    ]
    return min(found, key=lambda cap: (cap.value, SCOPES.index(cap.scope)), default=None)


def looser(own: Caps, above: Iterable[Scoped]) -> list[tuple[str, Cap]]:
    """The caps that would allow more than one above them does, each with that one: an override may only tighten."""
    held = tuple(above)
    found = []
    for name in NAMES:
        value, least = getattr(own, name), tightest(name, held)
        if value is not None and least is not None and value > least.value:
            found.append((name, least))
    return found


def full(each: Scoped, used: Usage, *, begins: bool) -> Cap | None:
    """The cap of this scope that leaves no place for one more item; those of runs hold for items that begin one."""
    kinds = [("max_concurrency", used.concurrency)]
    if begins:
        kinds += [("max_concurrent_runs", used.runs), ("max_runs_per_min", used.runs_this_minute)]
    for name, count in kinds:
        value = getattr(each.caps, name)
        if value is not None and count >= value:
            return Cap(name, value, each.scope, each.of)
    return None
