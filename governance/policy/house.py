"""The house profile: what the policies of an administrator may be made of, held against OPA's own syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.gate.reducer import hidden_character
from governance.policy import rego
from governance.policy.bundle import REQUIRED, source_bytes_max
from governance.policy.faults import Fault, PolicyInvalid
from governance.policy.naming import Misnamed, Names
from governance.policy.reader import Read, Reader
from governance.policy.rego import Found, Module, Node

# Everything a policy may call. What is not here is refused, whatever an OPA of the future learns.
BUILTINS = frozenset(
    "count startswith endswith contains concat format_int object.get internal.member_2 internal.member_3 "
    "is_array is_boolean is_null is_number is_object is_set is_string "
    "eq assign equal neq lt lte gt gte".split()
)
# What even a test may not call: the world outside, chance and the clock.
OUTSIDE = re.compile(r"(http|net|opa|rand|providers|rego)\..*|uuid\..*|time\.now_ns|trace|print|internal\.print")
OVERLAY = "twokeys/overlay.rego"
DATA_ROOTS = ("tenants", "twokeys", "meta", "data", "input")

_module_path = re.compile(r"twokeys/[a-z][a-z0-9_]{0,40}\.rego")
_test_path = re.compile(r"tests/[a-z][a-z0-9_]{0,60}\.rego")
_outside_hint = "a policy asks nobody: every fact comes in the input or the data"
_hints = (
    (re.compile(r"http\.|net\.|opa\.|providers\."), _outside_hint),
    (re.compile(r"time\."), "the moment is in input.time, computed before policy is asked"),
    (re.compile(r"rand|uuid"), "the same question must always have the same answer"),
    (re.compile(r"regex|glob"), "use startswith, endswith, contains, or a list in the data"),
    (re.compile(r"min|max|sort|sum|product"), "compare each item: `some x in xs` and a guarded comparison"),
    (re.compile(r"sprintf|strings|format"), "messages are fixed texts, joined with concat where a value belongs in"),
    (re.compile(r"object\.|json\."), "name the field, or use object.get with a default"),
    (
        re.compile(r"plus|minus|mul|div|rem"),
        "numbers are compared and never computed here: put the limit into the data",
    ),
    (re.compile(r"to_number|cast"), "facts have one type each: see policies/schema/input.json"),
)


def check(
    reader: Reader,
    files: Mapping[str, str],
    *,
    owned: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Read:
    """The files as OPA read them, or PolicyInvalid with every fault.

    `files` are modules (`twokeys/x.rego`) and tests (`tests/x.rego`); `owned` the product's own modules, which must be
    unchanged; with `data`, the whole data document, everything is compiled too.
    """
    found = list(shape_faults(files, owned or {}))
    if any(fault.rule == "size" for fault in found):
        raise PolicyInvalid(found)  # not worth a parser's time
    read = reader.read(files) if data is None else reader.tried(files, data, ())
    found += read.faults
    if all(fault.rule != "parse" for fault in read.faults):
        # What does not compile has faults of the profile as well; what does not parse would make others look wrong.
        found += lint(read.modules)
    if found:
        raise PolicyInvalid(found)
    return read


def shape_faults(files: Mapping[str, str], owned: Mapping[str, str]) -> Iterator[Fault]:
    """What can be seen without a parser: names, sizes, the product's own files, characters that nobody sees."""
    modules = {path: text for path, text in files.items() if path.startswith("twokeys/")}
    for path in (*REQUIRED, *owned):
        if path not in files:
            yield Fault(path, 1, 1, "missing", "this file is missing", "", "copy it back from the policy in force")
    for whole, what in ((modules, "the modules"), (files, "modules and tests")):
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in whole.values())
        if size > source_bytes_max * (1 if whole is modules else 2):
            yield Fault(min(whole), 1, 1, "size", f"{what} are {size} bytes; at most {source_bytes_max} together")
            return
    for path, text in files.items():
        if not _module_path.fullmatch(path) and not _test_path.fullmatch(path):
            yield Fault(path, 1, 1, "path", "a module is twokeys/<name>.rego, a test tests/<name>.rego")
        if path in owned and text != owned[path]:
            line = _first_difference(text, owned[path])
            shown = rego.Text(path, text).line(line)
            advice = "put your own rules into twokeys/overlay.rego or twokeys/base.rego"
            yield Fault(path, line, 1, "owned", "this file belongs to the product and stays as it is", shown, advice)
        for match in hidden_character.finditer(text):
            if match[0] not in "\n\t":
                text_ = rego.Text(path, text)
                line, column = text_.place(match.start())
                said = f"holds a character that nobody sees (U+{ord(match[0]):04X})"
                yield Fault(path, line, column, "hidden", said, "", "type the line again")
                break


def _first_difference(text: str, other: str) -> int:
    lines, others = text.split("\n"), other.split("\n")
    for n, (one, two) in enumerate(zip(lines, others, strict=False), 1):
        if one != two:
            return n
    return min(len(lines), len(others))


def lint(modules: Mapping[str, Module]) -> list[Fault]:
    """Every fault of modules that were parsed."""
    names_of_all = Names(modules)
    names_of_policy = Names({path: module for path, module in modules.items() if path.startswith("twokeys/")})
    found: list[Fault] = []
    for module in modules.values():
        say = _Say(module)
        is_test = module.path.startswith("tests/")
        names = names_of_all if is_test else names_of_policy
        _package(module, say)
        _imports(module, names, say)
        _rule_names(module, say)
        _tokens(module, is_test, say)
        for one in module.found:
            if one.kind == "call":
                _call(module, one, names, is_test, say)
            if is_test:
                continue
            if one.kind == "negation":
                _negation(module, one, names, say)
            elif one.kind == "with":
                say(one.at, "with", "`with` is for tests", "a rule judges the question that was asked")
        if not is_test:
            _references(module, names, say)
            _comparisons(module, names, say)
        found += say.faults
    return found


class _Say:
    """Collects the faults of one module."""

    def __init__(self, module: Module) -> None:
        self._text = module.text
        self.faults: list[Fault] = []

    def __call__(self, at: int, rule: str, message: str, hint: str = "") -> None:
        line, column = self._text.place(at)
        self.faults.append(Fault(self._text.path, line, column, rule, message, self._text.line(line), hint))


def _package(module: Module, say: _Say) -> None:
    name = ".".join(module.package)
    if module.path.startswith("twokeys/"):
        wanted = module.path.removesuffix(".rego").replace("/", ".")
        if name != wanted:
            say(module.text.first_name("package"), "package", f"says `package {name}`", f"write `package {wanted}`")
        if module.package[:2] == ("twokeys", "meta"):
            say(module.text.first_name("package"), "data_root", "the data has a root of this name", "choose another")
    elif not (name.startswith("tests.") or name.endswith("_test")):
        advice = "write `package twokeys.<name>_test`"
        say(module.text.first_name("package"), "package", f"says `package {name}`, which is no test's", advice)


def _imports(module: Module, names: Names, say: _Say) -> None:
    for chain in module.imports.values():
        at = module.text.nth_chain(chain, 0)
        if chain == ("rego", "v1"):
            continue
        if chain[0] in ("rego", "future"):
            say(
                at,
                "version",
                f"`import {'.'.join(map(str, chain))}` is not used here",
                "policies are written in Rego v1",
            )
        elif chain[0] != "input":
            parts = [{"type": "string", "value": part} for part in chain[1:]]
            term = {"type": "ref", "value": [{"type": "var", "value": chain[0]}, *parts]}
            if isinstance(wrong := names.schema_of(module, term, {}), Misnamed):
                say(at, "reference", wrong.message, wrong.hint)


def _rule_names(module: Module, say: _Say) -> None:
    if module.path.startswith("tests/"):
        return
    for rule in module.rules:
        name = rego.rule_name(rule)
        at = module.text.rule_name(name)
        if name in DATA_ROOTS:
            say(at, "data_root", f"a rule is named {name!r} like a root of the data", "choose another name")
        if len(rule["head"]["ref"]) > 1:
            say(at, "rule", f"the rule {name!r} has more than one part in its name", "use a plain name")
        if module.path == OVERLAY and name in ("grant", "obligations"):
            say(at, "overlay", f"the overlay can only tighten: it has no {name!r}", "grants belong into base.rego")


def _tokens(module: Module, is_test: bool, say: _Say) -> None:
    for token in module.text.tokens:
        if token.kind == "number" and not is_test and not token.text.isdigit():
            say(token.at, "float", f"{token.text} is not a whole number", "count in the smallest unit")
        if token.kind == "template":
            say(token.at, "builtin", "texts with values in them are not used here", "join with concat")


def _call(module: Module, one: Found, names: Names, is_test: bool, say: _Say) -> None:
    chain = rego.operator(one.node)
    name = ".".join(str(part) for part in chain)
    if names.is_function(module, chain) and name not in BUILTINS:
        return
    if (OUTSIDE.fullmatch(name) is None) if is_test else (name in BUILTINS):
        return
    shown = rego.ARITHMETIC.get(name, name)
    hint = next((advice for pattern, advice in _hints if pattern.match(name)), "")
    say(one.at, "builtin", f"`{shown}` is not for policies", hint or f"allowed are {', '.join(_offered)}")


_offered = sorted(name for name in BUILTINS if "internal" not in name and name not in ("eq", "assign", "equal"))


def _negation(module: Module, one: Found, names: Names, say: _Say) -> None:
    terms = one.node["terms"]
    if isinstance(terms, dict) and "type" in terms and names.is_rule(module, terms):
        return
    advice = "give the good case a rule of its own, `is_known if ...`, and write `not is_known`"
    say(
        one.at,
        "negation",
        "`not` stands before the bare name of a rule: over a missing fact it would be silent",
        advice,
    )


def _references(module: Module, names: Names, say: _Say) -> None:
    local = {id(rule): names.local(module, rule) for rule in module.rules}
    for one in module.found:
        if one.rule is None:
            continue
        known = local[id(one.rule)]
        if one.kind == "ref":
            chain = rego.chain_of(one.node)
            if chain == ("input",):
                continue
            wrong = names.schema_of(module, one.node, known)
            if isinstance(wrong, Misnamed):
                say(one.at, "reference", wrong.message, wrong.hint)
        elif one.kind == "call" and rego.operator(one.node) == ("object", "get"):
            _, whole, key, *_rest = one.node["value"]
            parts = key["value"] if key["type"] == "array" else [key]
            start = whole["value"] if whole["type"] == "ref" else [whole]
            made = {"type": "ref", "value": [*start, *parts]}
            if whole["type"] in ("ref", "var") and isinstance(wrong := names.schema_of(module, made, known), Misnamed):
                say(one.at, "reference", wrong.message, wrong.hint)


def _comparisons(module: Module, names: Names, say: _Say) -> None:
    local = {id(rule): names.local(module, rule) for rule in module.rules}
    guards: dict[int, set[str]] = {}
    for rule in module.rules:
        _note_guards(rule, set(), guards)
    for one in module.found:
        if one.kind != "call" or one.rule is None or rego.operator(one.node)[0] not in rego.COMPARISONS:
            continue
        guarded = guards.get(id(one.node["value"]), set())
        for term in one.node["value"][1:]:
            schema = names.schema_of(module, term, local[id(one.rule)])
            if isinstance(schema, Misnamed) or _key(term) in guarded:
                continue
            kind = schema.get("type") if schema else ""
            if kind not in ("integer", "number"):
                named = term["type"] in ("ref", "var")
                chain = rego.chain_of(term) if named else ()
                shown = ".".join(str(part) if part is not None else "[_]" for part in chain) or "a value"
                what = f"is {kind}" if kind else "may be anything"
                guard = (
                    f"write `is_number({shown})` above it" if named else "give it a name and a guard `is_number(...)`"
                )
                advice = "compare numbers with numbers" if kind else guard
                say(one.at, "comparison", f"{shown} {what}, and text is larger than every number", advice)


def _note_guards(value: Any, above: set[str], guards: dict[int, set[str]]) -> None:
    """For each call, the terms of which its own body, or one around it, makes sure that they are numbers."""
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and value[0].get("type") == "ref":
            guards[id(value)] = above
        for part in value:
            _note_guards(part, above, guards)
    elif isinstance(value, dict):
        own = above
        if isinstance(value.get("body"), list):
            own = above | {
                _key(expression["terms"][1])
                for expression in value["body"]
                if isinstance(expression["terms"], list)
                and not expression.get("negated")
                and rego.operator({"value": expression["terms"]}) == ("is_number",)
            }
        for name, part in value.items():
            # What `else` says is not said where the first body holds.
            _note_guards(part, above if name in ("else", "domain") else own, guards)


def _key(term: Node) -> str:
    return repr(term)


# --- what the publisher asks besides --------------------------------------------------------------------------------------


def named_groups(modules: Mapping[str, Module]) -> frozenset[str]:
    """The groups that rules name themselves, as texts under `groups`; those in the data are seen there."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("type") == "object" and isinstance(value.get("value"), list):
                for key, item in value["value"]:
                    if key.get("value") == "groups" and item["type"] == "array":
                        found.update(str(part["value"]) for part in item["value"] if part["type"] == "string")
            for part in value.values():
                walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)

    for module in modules.values():
        if module.path.startswith("twokeys/"):
            walk(module.rules)
    return frozenset(found)


def tests_of(modules: Mapping[str, Module]) -> tuple[str, ...]:
    """Every test of these files, `twokeys.base_test.test_x`, sorted."""
    found = {
        (*module.package, name) for module in modules.values() for name in module.names() if name.startswith("test_")
    }
    return tuple(sorted(".".join(parts) for parts in found))
