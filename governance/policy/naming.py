"""What a reference in a policy stands for: a fact of the input, a part of a tenant's data, a rule, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.gate.question import input_schema
from engine.program.faults import hint
from governance.policy import rego
from governance.policy.rego import Chain, Module, Node
from governance.policy.tenant_data import TENANT_SCHEMA

Schema: TypeAlias = "Mapping[str, Any] | None"  # None: not known

_text = {"type": "string"}
_roots: dict[str, Any] = {
    "input": input_schema(),
    "tenants": {"type": "object", "additionalProperties": TENANT_SCHEMA},
    "meta": {"type": "object", "properties": {"revision": _text}, "additionalProperties": False},
}


@dataclass(frozen=True, slots=True)
class Misnamed:
    """A reference that leads nowhere, and why."""

    message: str
    hint: str = ""


class Names:
    """The names of some modules together."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._by_package = {module.package: module for module in modules.values()}
        self._rules = {module.package: module.names() for module in modules.values()}
        self._resolving: set[tuple[tuple[str, ...], str]] = set()

    def is_rule(self, module: Module, term: Node) -> bool:
        """Whether a term is the bare name of a rule: here, or of another module."""
        if term["type"] == "var":
            return term["value"] in self._rules[module.package]
        if term["type"] != "ref":
            return False
        chain = self._absolute(module, rego.chain_of(term))
        if None in chain:
            return False
        package, rule = tuple(map(str, chain[1:-1])), str(chain[-1])
        return chain[0] == "data" and rule in self._rules.get(package, ())

    def is_function(self, module: Module, chain: Chain) -> bool:
        """Whether a call calls a function of these modules."""
        if len(chain) == 1:
            return chain[0] in self._rules[module.package]
        absolute = self._absolute(module, chain)
        return absolute[0] == "data" and absolute[-1] in self._rules.get(tuple(map(str, absolute[1:-1])), ())

    def schema_of(self, module: Module, term: Node, local: Mapping[str, Schema]) -> Schema | Misnamed:
        """What is known about the value of a term."""
        kind = term["type"]
        if kind == "var":
            return local[term["value"]] if term["value"] in local else self._of_rule(module, term["value"])
        if kind == "number":
            return {"type": "number"}
        if kind in ("string", "boolean"):
            return {"type": kind}
        if kind == "call" and rego.operator(term) == ("count",):
            return {"type": "integer"}
        return self._of_ref(module, term, local) if kind == "ref" else None

    def _of_ref(self, module: Module, term: Node, local: Mapping[str, Schema]) -> Schema | Misnamed:
        chain, terms = rego.chain_of(term), term["value"]
        name = chain[0]
        if name is None:
            return None
        if name in local:
            return _down(local[name], chain[1:], terms[1:], name)
        if name == "input":
            return _down(_roots["input"], chain[1:], terms[1:], "input")
        if name in self._rules[module.package]:
            return _down(self._of_rule(module, name), chain[1:], terms[1:], name)
        if name not in module.imports and name != "data":
            return None
        absolute = self._absolute(module, chain)
        added = len(absolute) - len(chain)
        if absolute[0] == "input":
            return _down(_roots["input"], absolute[1:], [*[{}] * added, *terms[1:]], "input")
        return self._of_data(absolute, [*[{}] * added, *terms])

    def _of_data(self, chain: Chain, terms: list[Node]) -> Schema | Misnamed:
        if len(chain) < 2 or chain[1] is None:
            return Misnamed("this reads all data at once", "name the part: data.tenants[input.tenant.id]")
        if chain[1] == "tenants":
            return _down(_roots["tenants"], chain[2:], terms[2:], "data.tenants")
        if chain[1:3] == ("twokeys", "meta"):
            return _down(_roots["meta"], chain[3:], terms[3:], "data.twokeys.meta")
        for size in range(len(chain), 1, -1):
            found = self._by_package.get(tuple(map(str, chain[1:size])))
            if found is None:
                continue
            if size == len(chain):
                return None
            rule = chain[size]
            if rule is None:
                return Misnamed(f"this reads every rule of data.{'.'.join(found.package)}", "name the rule")
            if rule not in self._rules[found.package]:
                names = sorted(self._rules[found.package])
                return Misnamed(f"there is no rule {rule!r} in {found.path}", _said(hint(rule, names)))
            return _down(self._of_rule(found, rule), chain[size + 1 :], terms[size + 1 :], rule)
        known = ["tenants", "twokeys", *(".".join(package) for package in self._by_package)]
        name = ".".join(str(part) for part in chain[1:])
        return Misnamed(f"nothing is called data.{name}", _said(hint(name, known)))

    def _of_rule(self, module: Module, name: str) -> Schema:
        """The schema of a rule that is only another name: `tenant := data.tenants[input.tenant.id]`."""
        rules = [rule for rule in module.rules if rego.rule_name(rule) == name]
        key = (module.package, name)
        if len(rules) != 1 or key in self._resolving or "else" in rules[0] or "args" in rules[0]["head"]:
            return None
        value = rules[0]["head"].get("value")
        if value is None or "key" in rules[0]["head"] or value["type"] != "ref":
            return None
        self._resolving.add(key)
        try:
            found = self.schema_of(module, value, self.local(module, rules[0]))
        finally:
            self._resolving.discard(key)
        return None if isinstance(found, Misnamed) else found

    def _absolute(self, module: Module, chain: Chain) -> Chain:
        stands_for = module.imports.get(str(chain[0]))
        return chain if stands_for is None else (*stands_for, *chain[1:])

    def local(self, module: Module, rule: Node) -> dict[str, Schema]:
        """What is known about the local names of a rule; every name it binds is in it."""
        found: dict[str, Schema] = {}
        at: Node | None = rule
        while at is not None:
            found.update({str(term["value"]): None for term in at["head"].get("args", ()) if term["type"] == "var"})
            at = at.get("else")
        for body in (*rego.bodies(rule), *rego.bodies(rule)):  # twice: a name may be used above the line that binds it
            for expression in body:
                for name, schema in self._bound(module, expression["terms"], found):
                    if found.get(name) is None:
                        found[name] = schema
        return found

    def _bound(self, module: Module, terms: Any, local: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
        if isinstance(terms, list):
            name = rego.operator({"value": terms})
            if name in (("assign",), ("eq",)) and len(terms) == 3 and terms[1]["type"] == "var":
                yield str(terms[1]["value"]), _known(self.schema_of(module, terms[2], local))
        elif "symbols" in terms:
            for symbol in terms["symbols"]:
                if symbol["type"] == "var":
                    yield str(symbol["value"]), None
                elif symbol["type"] == "call":
                    *names, whole = symbol["value"][1:]
                    yield from self._items(module, names, whole, local)
        elif "domain" in terms:
            names = [name for name in (terms.get("key"), terms["value"]) if name]
            yield from self._items(module, names, terms["domain"], local)

    def _items(
        self, module: Module, names: list[Node], whole: Node, local: Mapping[str, Schema]
    ) -> Iterator[tuple[str, Schema]]:
        schema = _known(self.schema_of(module, whole, local)) or {}
        item = schema.get("items", schema.get("additionalProperties") or None)
        for name, known in zip(reversed(names), (item, None), strict=False):
            if name["type"] == "var":
                yield str(name["value"]), known


def _known(found: Schema | Misnamed) -> Schema:
    return None if isinstance(found, Misnamed) else found


def _said(text: str) -> str:
    return text.lstrip("; ").strip().removeprefix("(").removesuffix(")")


def _down(schema: Schema, parts: Chain, terms: list[Node], where: str) -> Schema | Misnamed:
    """Follow the parts of a reference into a schema."""
    for part, term in zip(parts, terms, strict=True):
        if schema is None:
            return None
        kind = schema.get("type")
        if kind == "array":
            if part is not None:
                return Misnamed(f"{where} is a list and has no field {part!r}", "write `some item in ...`")
            schema = schema["items"]
        elif kind == "object" and schema.get("additionalProperties"):
            schema = schema["additionalProperties"]
        elif kind == "object":
            if part is None:
                is_name = term.get("type") == "var"
                return Misnamed(f"a field of {where} is named by {'a variable' if is_name else 'a value'}", "name it")
            if part not in schema["properties"]:
                return Misnamed(f"{where} has no field {part!r}", _said(hint(part, schema["properties"])))
            schema = schema["properties"][part]
        else:
            return Misnamed(f"{where} is a {'number' if kind == 'integer' else kind} and has no fields")
        where += f".{part}" if part is not None else "[_]"
    return schema
