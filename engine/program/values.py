"""Checks the values that authors write in steps: every expression compiles, reads only what exists by then, and fits its place."""

from __future__ import annotations

import re
from typing import Any

from engine.program import formula
from engine.program.expression import ExprError, Reference, compile_condition, compile_expression
from engine.program.faults import hint, step_into
from engine.program.formula import Cel, Formula, Literal
from engine.program.orders import RUN_NAMES, TRIGGER_NAMES
from engine.program.places import Ledger

# What may follow `state.` and `steps.`: CEL keeps some words for itself.
NAME = re.compile(
    r"(?!(?:true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace"
    r"|return|var|void|while)$)[a-z][a-z0-9_]{0,62}"
)
nested_max = 8
_open_keywords = ("patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")


class Names:
    """What expressions may read at a step: the input's names, the state and the results that earlier steps have made."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        closed = inputs.get("additionalProperties") is False and not any(key in inputs for key in _open_keywords)
        properties = inputs.get("properties", {})
        self.inputs = set(properties) if closed and type(properties) is dict else None
        self.state: set[str] = set()
        self.results: dict[str, tuple[str, ...]] = {}
        self.in_failure = False  # of a branch that deals with a failure
        self.each: set[str] = set()  # of the repeats around
        self._lost: dict[str, str] = {}  # results that a branch may leave unmade
        self._inside: set[str] = set()
        self._later_state: dict[str, str] = {}
        self._later_results: dict[str, str] = {}

    def fork(self) -> Names:
        """What is known at this moment, to be given back to `restore` behind a branch."""
        kept = Names({})
        kept.state, kept.results, kept.in_failure = set(self.state), dict(self.results), self.in_failure
        kept._lost, kept.each = dict(self._lost), set(self.each)
        return kept

    def restore(self, kept: Names) -> None:
        """Behind a branch nothing is there that only it has made."""
        self.state, self.results, self.in_failure, self._lost = kept.state, kept.results, kept.in_failure, kept._lost
        self.each = kept.each

    def lose(self, result: str, branch: str) -> None:
        """The run may go on behind this branch without the result."""
        self.results.pop(result, None)
        self._lost[result] = branch

    def look_ahead(self, steps: list[tuple[dict[str, Any], bool]]) -> None:
        """Note which step will make what, so that a name used too early is told from one that never exists.

        Each step comes with whether it stands inside another one, so that the run may go on without it.
        """
        for step, inside in steps:
            ident = str(step.get("id"))
            if inside:
                self._inside.add(ident)
            if type(step.get("result")) is str and step.get("kind") != "complete":
                self._later_results.setdefault(step["result"], ident)
            if type(step.get("values")) is dict:
                for name in step["values"]:
                    self._later_state.setdefault(name, ident)

    def fault(self, reference: Reference) -> str:
        """Why this reference cannot be read here; empty when it can."""
        root, path = reference.root, reference.path
        if not path:
            return ""
        name = path[0]
        if root == "run" and name == "error":
            if not self.in_failure:
                return "run.error is there in a branch on_failure or on_timeout only"
            known = ("step", "error_class", "message")
            return "" if not path[1:] or path[1] in known else f"run.error has no {path[1]!r}{hint(path[1], known)}"
        if root == "run" and name not in RUN_NAMES:
            return f"run has no {name!r}{hint(name, RUN_NAMES)}"
        if root == "trigger" and name not in TRIGGER_NAMES:
            return f"trigger has no {name!r}{hint(name, TRIGGER_NAMES)}"
        if root == "input" and self.inputs is not None and name not in self.inputs:
            return f"the inputs schema has no {name!r}{hint(name, self.inputs)}"
        if root == "state" and name not in self.state:
            if self._later_state.get(name) in self._inside:
                return f"state.{name} may not be there: step {self._later_state[name]!r}, which sets it, is not on every way here"
            if name in self._later_state:
                return f"state.{name} is not set before step {self._later_state[name]!r} has run"
            return f"no step sets state.{name}{hint(name, self.state)}"
        if root == "each" and name not in self.each:
            return f"each.{name} is there inside a repeat with as: {name} only{hint(name, self.each)}"
        if root == "steps":
            return self._result_fault(name, path[1:])
        return ""

    def _result_fault(self, name: str, rest: tuple[str, ...]) -> str:
        if name not in self.results:
            if name in self._lost:
                return f"steps.{name} may not be there: the run goes on behind its {self._lost[name]}; read it in on_success"
            if self._later_results.get(name) in self._inside:
                return f"steps.{name} may not be there: step {self._later_results[name]!r}, which makes it, is not on every way here"
            if name in self._later_results:
                return f"steps.{name} is not there before step {self._later_results[name]!r} has run"
            return f"no step has the result {name!r}{hint(name, self.results)}"
        known = self.results[name]
        if rest and known and rest[0] not in known:
            return f"the result {name!r} has no {rest[0]!r}{hint(rest[0], known)}"
        return ""


class ValueReader:
    """Reads authored values; what is wrong goes into the ledger and something harmless comes back."""

    def __init__(self, ledger: Ledger, names: Names) -> None:
        self._ledger = ledger
        self._names = names

    def any(self, pointer: str, value: Any) -> Formula:
        """A value of any type."""
        before = self._check(pointer, value, 0, as_text=False)
        return formula.parse(value) if before else Literal(None)

    def text(self, pointer: str, value: Any) -> Formula:
        """A value that is written as text."""
        if type(value) in (list, dict) or value is None:
            try:
                formula.as_text(value)
            except ExprError as error:
                self._ledger.at_value(pointer, error.message)
            return Literal(None)
        if not self._check(pointer, value, 0, as_text=True):
            return Literal(None)
        read = formula.parse(value)
        return Literal(formula.as_text(read.value)) if isinstance(read, Literal) else read

    def number(self, pointer: str, value: Any) -> Formula:
        """A value that is a whole number, 0 or more."""
        if not self._check(pointer, value, 0, as_text=False):
            return Literal(0)
        read = formula.parse(value)
        if isinstance(read, Literal) and type(read.value) is int and read.value >= 0:
            return read
        if isinstance(read, Cel) and compile_expression(read.source).kind in ("INT", "UINT", "DYN"):
            return read
        self._ledger.at_value(pointer, "amount is a whole number of the smallest unit, 0 or more, or ${...} giving one")
        return Literal(0)

    def of_kind(self, pointer: str, value: Any, kinds: tuple[str, ...], what: str) -> Formula:
        """A value that is one expression giving one of these kinds, or stands for itself; `what` says which values can stand there."""
        if not self._check(pointer, value, 0, as_text=False):
            return Literal(None)
        read = formula.parse(value)
        if isinstance(read, Cel):
            kind = compile_expression(read.source).kind.split("<")[0]
            if kind not in (*kinds, "DYN"):
                self._ledger.in_expression(pointer, read.source, f"{what}; this gives {kind.lower()}", 1, 1)
        elif isinstance(read, Literal):
            kind = {int: "INT", list: "LIST", dict: "MAP", str: "STRING"}.get(type(read.value), "")
            if kind not in kinds:
                self._ledger.at_value(pointer, what)
        elif {formula.Listed: "LIST", formula.Mapped: "MAP", formula.Text: "STRING"}[type(read)] not in kinds:
            self._ledger.at_value(pointer, what)
        return read

    def condition(self, pointer: str, value: str) -> str:
        """The source of a condition."""
        try:
            read = formula.parse(value)
        except ExprError as error:
            self._ledger.at_value(pointer, error.message)
            return ""
        if not isinstance(read, Cel):
            self._ledger.at_value(pointer, "a condition is one expression: ${...}")
            return ""
        self._compile(pointer, read.source, as_text=False, as_condition=True)
        return read.source

    def _check(self, pointer: str, value: Any, depth: int, *, as_text: bool) -> bool:
        """Whether every expression in this value is in order."""
        if depth > nested_max:
            self._ledger.at_value(pointer, f"values nest at most {nested_max} deep")
            return False
        if type(value) is list:
            checks = [
                self._check(step_into(pointer, number), item, depth + 1, as_text=False)
                for number, item in enumerate(value)
            ]
            return all(checks)
        if type(value) is dict:
            checks = [
                self._check(step_into(pointer, name), item, depth + 1, as_text=False) for name, item in value.items()
            ]
            return all(checks)
        if type(value) is not str:
            return True
        try:
            read = formula.parse(value)
        except ExprError as error:
            self._ledger.at_value(pointer, error.message)
            return False
        part_of_text = as_text or isinstance(read, formula.Text)
        checks = [self._compile(pointer, each.source, as_text=part_of_text) for each in formula.expressions(read)]
        return all(checks)

    def _compile(self, pointer: str, source: str, *, as_text: bool, as_condition: bool = False) -> bool:
        try:
            expression = compile_condition(source) if as_condition else compile_expression(source)
        except ExprError as error:
            self._ledger.in_expression(pointer, source, error.message, error.line, error.col)
            return False
        good = True
        for reference in expression.references:
            if message := self._names.fault(reference):
                self._ledger.in_expression(pointer, source, message, reference.line, reference.col)
                good = False
        kind = expression.kind.split("<")[0]
        if as_text and kind in ("LIST", "MAP", "NULL"):
            message = f"text, a whole number, true or false can stand here; this gives {kind.lower()}"
            self._ledger.in_expression(pointer, source, message, 1, 1)
            good = False
        return good
