"""Turns authored steps into canonical ones and notes what is wrong: kinds, operations, fields, risks, and the order of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.errors import CallerError
from engine.gate.action import TIERS, OperationSpec
from engine.ids import check_ident
from engine.limits import approval_seconds_max, attempts_max, steps_max
from engine.program.faults import hint, step_into
from engine.program.formula import Formula, Literal
from engine.program.kinds import ActionStep, AssignStep, CompleteStep, FailStep, Step
from engine.program.places import Ledger
from engine.program.shape import Reader, kind_of
from engine.program.values import NAME, Names, ValueReader

deadline_seconds_default = 86_400
branches_nested_max = 4
_id = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_error_class = re.compile(r"[a-z][a-z0-9_]{0,62}")
_currency = re.compile(r"[A-Z]{3}")


class StepReader:
    """Reads the steps of one file in order, knowing what the earlier ones have made."""

    def __init__(
        self,
        ledger: Ledger,
        catalog: Mapping[tuple[str, str], OperationSpec],
        effects: tuple[str, ...],
        ceiling: str,
        inputs: dict[str, Any],
    ) -> None:
        self._ledger = ledger
        self._reader = Reader(ledger)
        self._catalog = catalog
        self._effects = effects
        self._ceiling = ceiling
        self._names = Names(inputs)
        self._values = ValueReader(ledger, self._names)
        self._ids: dict[str, str] = {}
        self._ended_by = ""
        self._depth = 0
        self._lane = 0  # how many parallel steps are around
        self._undoes = ""  # where a step says `on_failure: reverse`

    def read(self, values: list[Any]) -> tuple[Step, ...]:
        """The steps that are in order; every other one has left a fault."""
        found = list(all_steps("/steps", values))
        if len(found) > steps_max:
            message = f"a definition has at most {steps_max} steps; with its branches this one has {len(found)}"
            self._ledger.at_value("/steps", message)
            return ()
        self._names.look_ahead([(step, place.count("/") > 2) for place, step in found])
        # How an operation is undone is written down only where some step undoes: then for all of them.
        self._undoes = next((f"{place}/on_failure" for place, step in found if _says_reverse(step)), "")
        return self._list("/steps", values)

    def _list(self, pointer: str, values: list[Any]) -> tuple[Step, ...]:
        steps = [self._step(step_into(pointer, number), value) for number, value in enumerate(values)]
        return tuple(step for step in steps if step is not None)

    def _kinds(self) -> dict[str, Callable[[str, str, dict[str, Any]], Step | None]]:
        """What reads each kind of step."""
        return {"assign": self._assign, "action": self._action, "complete": self._complete, "fail": self._fail}

    def _step(self, pointer: str, value: Any) -> Step | None:
        readers = self._kinds()
        if type(value) is not dict:
            self._ledger.at_value(pointer, f"a step is a map, not {kind_of(value)}")
            return None
        kind = value.get("kind")
        if kind is None:
            self._ledger.at_value(pointer, f"a step needs the key 'kind'{hint('', readers)}")
            return None
        if type(kind) is not str or kind not in readers:
            self._ledger.at_value(f"{pointer}/kind", f"unknown kind of step {kind!r}{hint(str(kind), readers)}")
            return None
        ident = self._ident(pointer, value.get("id"))
        if self._ended_by:
            message = f"step {ident!r} is never reached: the run always ends at step {self._ended_by!r}"
            self._ledger.at_value(pointer, message)
        return readers[kind](pointer, ident, value)

    def _ident(self, pointer: str, value: Any) -> str:
        if type(value) is not str:
            return "" if value is None else str(value)
        if not _id.fullmatch(value):
            self._ledger.at_value(f"{pointer}/id", f"{value[:40]!r} is not a step id; use 1-63 of a-z 0-9 _ -")
        elif value in self._ids:
            line = self._ledger.line(self._ids[value])
            self._ledger.at_value(f"{pointer}/id", f"the step id {value!r} stands twice; first in line {line}")
        else:
            self._ids[value] = f"{pointer}/id"
        return value

    # --- steps without an effect ----------------------------------------------------------------------------------

    def _assign(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "values": dict}
        parts = self._reader.shape(pointer, value, kinds, ("id", "values"), "an assign step")
        read = []
        for name, each in sorted(parts.get("values", {}).items()):
            below = step_into(f"{pointer}/values", name)
            if not NAME.fullmatch(name):
                self._ledger.at_key(below, f"{name[:40]!r} is not a name; use 1-63 of a-z 0-9 _, first a letter")
            read.append((name, self._values.any(below, each)))
        # Only now: a value sees the state as it was before the step.
        self._names.state.update(name for name, _ in read)
        return AssignStep(ident, tuple(read))

    def _complete(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "when": str, "result": None}
        parts = self._reader.shape(pointer, value, kinds, ("id",), "a complete step")
        result = self._values.any(f"{pointer}/result", parts.get("result", {}))
        return CompleteStep(ident, self._when(pointer, ident, parts), result)

    def _fail(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "when": str, "error_class": str, "message": str}
        parts = self._reader.shape(pointer, value, kinds, ("id", "error_class", "message"), "a fail step")
        error_class = parts.get("error_class", "")
        if "error_class" in parts and not _error_class.fullmatch(error_class):
            wrong = f"{error_class[:40]!r} is not an error class; use 1-63 of a-z 0-9 _, first a letter"
            self._ledger.at_value(f"{pointer}/error_class", wrong)
        message = self._values.text(f"{pointer}/message", parts.get("message", ""))
        return FailStep(ident, self._when(pointer, ident, parts), error_class, message)

    def _when(self, pointer: str, ident: str, parts: dict[str, Any]) -> str:
        if "when" in parts:
            return self._values.condition(f"{pointer}/when", parts["when"])
        self._ended_by = self._ended_by or ident
        return ""

    # --- actions --------------------------------------------------------------------------------------------------

    def _action(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds: dict[str, type | None] = {
            "id": str,
            "kind": str,
            "connector": str,
            "operation": str,
            "target": None,
            "fields": dict,
            "risk": str,
            "amount": None,
            "currency": str,
            "result": str,
            "key": str,
            "deadline_s": int,
            "retry": dict,
            "on_success": list,
            "on_failure": None,
            "on_timeout": list,
        }
        required = ("id", "connector", "operation", "target")
        parts = self._reader.shape(pointer, value, kinds, required, "an action step")
        spec = self._spec(pointer, parts)
        target_type, target_id = self._target(pointer, parts.get("target"), spec)
        amount, currency = self._amount(pointer, parts, spec)
        result = self._result(pointer, parts, spec)
        success = self._branch(pointer, "on_success", parts, result="")
        undoes = parts.get("on_failure") == "reverse"
        if undoes and self._lane:
            self._ledger.at_value(
                f"{pointer}/on_failure", "reverse stands outside of parallel steps; name the steps instead"
            )
        failure = () if undoes else self._branch(pointer, "on_failure", parts, result=result)
        return ActionStep(
            on_success=success,
            on_failure=failure,
            on_timeout=self._branch(pointer, "on_timeout", parts, result=result),
            undoes=undoes,
            reversal=self._reversal(pointer, spec) if self._undoes else "",
            id=ident,
            connector=parts.get("connector", ""),
            operation=parts.get("operation", ""),
            target_type=target_type,
            target_id=target_id,
            fields=self._fields(pointer, parts, spec),
            risk=self._risk(pointer, parts, spec),
            amount=amount,
            currency=currency,
            result=result,
            key=self._values.text(f"{pointer}/key", parts["key"]) if "key" in parts else None,
            deadline_s=self._number(pointer, parts, "deadline_s", deadline_seconds_default, approval_seconds_max),
            max_attempts=self._attempts(pointer, parts),
        )

    def _branch(self, pointer: str, name: str, parts: dict[str, Any], *, result: str) -> tuple[Step, ...]:
        """The steps of a branch. What only it makes is not there behind it; neither is a result whose failure it lets pass."""
        if name not in parts:
            return ()
        before = self._names.fork()
        self._names.in_failure = before.in_failure or name != "on_success"
        if result:
            self._names.results.pop(result, None)
        word = " or the word reverse" if name == "on_failure" and self._may_reverse(parts) else ""
        steps, falls_through = self._inside(f"{pointer}/{name}", name, parts[name], word)
        self._names.restore(before)
        if result and steps and falls_through:
            self._names.lose(result, name)
        return steps

    def _may_reverse(self, parts: dict[str, Any]) -> bool:
        return parts.get("kind") == "action"

    def _inside(self, below: str, name: str, value: Any, word: str = "") -> tuple[tuple[Step, ...], bool]:
        """A line of steps inside a step, and whether the run may go on behind it. What it makes is in the names afterwards."""
        if type(value) is not list or not value:
            self._ledger.at_value(below, f"{name} is a list of steps{word}, not {kind_of(value)}")
            return (), True
        if self._depth >= branches_nested_max:
            self._ledger.at_value(below, f"branches stand at most {branches_nested_max} deep in each other")
            return (), True
        ended, self._ended_by = self._ended_by, ""
        self._depth += 1
        steps = self._list(below, value)
        self._depth -= 1
        falls_through = not self._ended_by
        self._ended_by = ended
        return steps, falls_through

    def _reversal(self, pointer: str, spec: OperationSpec | None) -> str:
        """How what this step does is undone, as its connector declares it at this moment."""
        if spec is None or spec.kind == "read":
            return "skip"
        if spec.reversal != "inverse" or not spec.inverse:
            return "person"
        effect = f"{spec.connector}.{spec.inverse}"
        if effect not in self._effects:
            self._ledger.at_value(self._undoes, f"undoing this needs the effect {effect!r}; add it to effects")
        return f"by:{spec.inverse}"

    def _spec(self, pointer: str, parts: dict[str, Any]) -> OperationSpec | None:
        if "connector" not in parts or "operation" not in parts:
            return None
        connector, operation = parts["connector"], parts["operation"]
        known = {owner for owner, _ in self._catalog}
        if connector not in known:
            self._ledger.at_value(f"{pointer}/connector", f"unknown connector {connector!r}{hint(connector, known)}")
            return None
        spec = self._catalog.get((connector, operation))
        if spec is None:
            near = hint(operation, (each for owner, each in self._catalog if owner == connector))
            self._ledger.at_value(f"{pointer}/operation", f"{connector} has no operation {operation!r}{near}")
            return None
        effect = f"{connector}.{operation}"
        if effect not in self._effects:
            message = f"{effect!r} is not declared; add it to effects"
            self._ledger.at_value(f"{pointer}/operation", message)
        return spec

    def _target(self, pointer: str, value: Any, spec: OperationSpec | None) -> tuple[Formula, Formula]:
        below = f"{pointer}/target"
        expected = spec.target_type if spec else ""
        given: Formula = Literal(expected)
        if type(value) is dict:
            parts = self._reader.shape(below, value, {"type": str, "id": None}, ("id",))
            if "type" in parts:
                given = self._values.text(f"{below}/type", parts["type"])
                if isinstance(given, Literal) and spec and given.value != expected:
                    effect = f"{spec.connector}.{spec.operation}"
                    message = f"{effect} changes a target of type {expected!r}, not {given.value!r}"
                    self._ledger.at_value(f"{below}/type", message)
            below, value = f"{below}/id", parts.get("id", "-")
        target = self._values.text(below, "-" if value is None else value)
        if isinstance(target, Literal) and type(target.value) is str:
            try:
                check_ident(target.value, "target")
            except CallerError as error:
                self._ledger.at_value(below, f"target: {error.reason}; {error.next_step}")
        return given, target

    def _fields(
        self, pointer: str, parts: dict[str, Any], spec: OperationSpec | None
    ) -> tuple[tuple[str, Formula], ...]:
        given = parts.get("fields", {})
        below = f"{pointer}/fields" if "fields" in parts else pointer
        known = {field.name: field for field in spec.fields} if spec else {}
        read = []
        for name in sorted(given):
            place = step_into(below, name)
            if spec and name not in known:
                message = f"{spec.connector}.{spec.operation} has no field {name!r}{hint(name, known)}"
                self._ledger.at_key(place, message)
            each = self._values.text(place, given[name])
            if name in known and isinstance(each, Literal) and len(str(each.value)) > known[name].chars_max:
                chars = f"{len(str(each.value))} characters; at most {known[name].chars_max}"
                self._ledger.at_value(place, f"{name} has {chars}")
            read.append((name, each))
        for name, field in known.items():
            if field.required and name not in given and spec:
                self._ledger.at_value(below, f"{spec.connector}.{spec.operation} needs the field {name!r}")
        return tuple(read)

    def _risk(self, pointer: str, parts: dict[str, Any], spec: OperationSpec | None) -> str:
        least = spec.risk if spec else "low"
        place = f"{pointer}/risk" if "risk" in parts else pointer
        risk = self._reader.choice(place, parts["risk"], TIERS, least) if "risk" in parts else least
        if spec and TIERS.index(risk) < TIERS.index(least):
            effect = f"{spec.connector}.{spec.operation}"
            self._ledger.at_value(place, f"risk {risk!r} is below {least!r}, the least for {effect}")
        if TIERS.index(risk) > TIERS.index(self._ceiling):
            message = f"risk {risk!r} is above the definition's risk_ceiling {self._ceiling!r}"
            self._ledger.at_value(place, message)
        return risk

    def _amount(self, pointer: str, parts: dict[str, Any], spec: OperationSpec | None) -> tuple[Formula | None, str]:
        currency: str = parts.get("currency", "")
        if "currency" in parts and not _currency.fullmatch(currency):
            self._ledger.at_value(f"{pointer}/currency", f"{currency[:40]!r} is not a currency; write it as EUR")
        if ("amount" in parts) != ("currency" in parts):
            self._ledger.at_value(pointer, "amount and currency stand together")
        if spec and spec.kind == "payment" and "amount" not in parts:
            self._ledger.at_value(pointer, f"{spec.connector}.{spec.operation} is a payment and needs an amount")
        if "amount" not in parts:
            return None, currency
        return self._values.number(f"{pointer}/amount", parts["amount"]), currency

    def _result(self, pointer: str, parts: dict[str, Any], spec: OperationSpec | None) -> str:
        result: str = parts.get("result", "")
        if "result" not in parts:
            return ""
        if not NAME.fullmatch(result):
            message = f"{result[:40]!r} is not a name; use 1-63 of a-z 0-9 _, first a letter"
            self._ledger.at_value(f"{pointer}/result", message)
        else:
            self._makes(pointer, result, spec.result_fields if spec else ())
        return result

    def _makes(self, pointer: str, result: str, fields: tuple[str, ...]) -> None:
        """From here on there is a result of this name."""
        if result in self._names.results:
            self._ledger.at_value(f"{pointer}/result", f"the result {result!r} is made by an earlier step already")
        else:
            self._names.results[result] = fields

    def _attempts(self, pointer: str, parts: dict[str, Any]) -> int:
        if "retry" not in parts:
            return attempts_max
        below = f"{pointer}/retry"
        retry = self._reader.shape(below, parts["retry"], {"max_attempts": int}, ("max_attempts",))
        return self._number(below, retry, "max_attempts", attempts_max, attempts_max)

    def _number(self, pointer: str, parts: dict[str, Any], name: str, default: int, high: int) -> int:
        if name not in parts:
            return default
        return self._reader.between(f"{pointer}/{name}", parts[name], 1, high)


def all_steps(pointer: str, values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that may be a step, with its place, inside other steps too."""
    for number, value in enumerate(values if type(values) is list else ()):
        place = step_into(pointer, number)
        if type(value) is not dict:
            continue
        yield place, value
        for name in ("on_success", "on_failure", "on_timeout", "otherwise", "steps"):
            yield from all_steps(f"{place}/{name}", value.get(name))
        for name in ("arms", "lanes"):
            inner = value.get(name)
            for n, each in enumerate(inner if type(inner) is list else ()):
                if type(each) is dict:
                    yield from all_steps(f"{place}/{name}/{n}/steps", each.get("steps"))


def _says_reverse(step: dict[str, Any]) -> bool:
    return step.get("kind") == "action" and step.get("on_failure") == "reverse"
