"""What a published template holds: a definition that is interpreted, or a function that is replayed; read back by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.canonical import decode
from engine.errors import AuthorError
from engine.ids import check_name
from engine.program.caps import Caps
from engine.program.definition import Definition, Subscription, definition_from
from engine.program.function_code import Component, component_from, component_of

DEFINITION, FUNCTION = "definition", "function"
KINDS = (DEFINITION, FUNCTION)


@dataclass(frozen=True)
class Function:
    """A workflow in Python. It declares neither effects nor ceilings: policy judges each operation when it is proposed."""

    component: Component
    trigger: str = "manual"
    subscriptions: tuple[Subscription, ...] = ()
    inputs: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    caps: Caps = field(default_factory=Caps)  # it sets none: those of its tenant and workspace hold
    risk_ceiling: str = "high"

    @property
    def name(self) -> str:
        """How people start it: the function's name, with `-` for `_`."""
        return self.component.function.replace("_", "-")

    @property
    def version(self) -> str:
        """Its code names its version, so that another version is always other code and the other way round."""
        return self.component.digest.hex()[:12]

    @property
    def body(self) -> bytes:
        """The bytes that are stored and hashed."""
        return self.component.body

    @property
    def digest(self) -> bytes:
        """What a run is pinned to."""
        return self.component.digest


Program: TypeAlias = Definition | Function


def kind_of(program: Program) -> str:
    """The word that a template is stored with."""
    return FUNCTION if isinstance(program, Function) else DEFINITION


def program_from(kind: str, body: bytes) -> Program:
    """The program that stored bytes hold."""
    if kind not in KINDS:
        raise AuthorError(f"a stored template is of no known kind: {kind!r}")
    return Function(component_from(body)) if kind == FUNCTION else definition_from(decode(body))


def function_of(files: Mapping[str, bytes], entry: str = "") -> Function:
    """The function in an author's files; DefinitionInvalid with every fault."""
    found = Function(component_of(files, entry))
    check_name(found.name, "the workflow's name")
    return found
