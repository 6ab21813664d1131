"""Rego text and its syntax tree: where each thing stands in the file, and every expression in the order of the text.

The tree comes from OPA's own parser, which tells no places. They are found again: the third `not` of the tree is the
third `not` of the text, and the second use of `input.action.kind` is the second one there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]
Chain: TypeAlias = "tuple[str | None, ...]"

_token = re.compile(
    r'(?P<comment>\#[^\n]*)|(?P<template>\$["`])|(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)'
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)|(?P<sign>:=|==|!=|<=|>=|[^\s\w])"
)
_escape = re.compile(r"\\(.)")
COMPARISONS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
ARITHMETIC = {"plus": "+", "minus": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|"}


@dataclass(frozen=True, slots=True)
class Token:
    """One word or sign of the text and where it begins."""

    kind: str
    text: str
    at: int


class Text:
    """A module's text, in which places can be asked for."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tokens = [
            Token(match.lastgroup or "", match[0], match.start())
            for match in _token.finditer(text)
            if match.lastgroup != "comment"
        ]
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._chains: dict[Chain, list[int]] = defaultdict(list)
        self._signs: dict[str, list[int]] = defaultdict(list)
        self._index()

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, from 1."""
        line = bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1

    def line(self, number: int) -> str:
        """A line without its end; empty past the last one."""
        lines = self.text.split("\n")
        return lines[number - 1] if 1 <= number <= len(lines) else ""

    def nth_sign(self, sign: str, n: int) -> int:
        """Where a word or sign stands for the nth time, from 0; the last one, or the beginning, when it stands less often."""
        return _nth(self._signs.get(sign, ()), n)

    def nth_chain(self, chain: Chain, n: int) -> int:
        """The same for a reference such as ("input", "action", "kind"); None stands for a part that is computed."""
        return _nth(self._chains.get(chain, ()), n)

    def first_name(self, name: str, line: int = 0) -> int:
        """Where a name stands first, on a line if one is given; the first word of that line when it is not there."""
        start = self._lines[line - 1] if 0 < line <= len(self._lines) else 0
        end = start + len(self.line(line)) if line else len(self.text)
        inside = [token for token in self.tokens if start <= token.at <= end]
        for token in inside:
            if token.text == name:
                return token.at
        return inside[0].at if inside else start

    def rule_name(self, name: str) -> int:
        """Where a rule of this name begins: its first word on a line."""
        line = 0
        for token in self.tokens:
            here = bisect_right(self._lines, token.at)
            if token.text == name and here != line:
                return token.at
            line = here if token.text != "default" else 0
        return self.first_name(name)

    def _index(self) -> None:
        tokens = self.tokens
        for n, token in enumerate(tokens):
            if token.kind in ("sign", "template") or token.text in ("not", "with"):
                self._signs[token.text].append(token.at)
            if token.kind != "name" or (n and tokens[n - 1].text == "." and tokens[n - 1].at + 1 == token.at):
                continue
            chain, after = self._chain(n)
            self._chains[chain].append(token.at)
            if after < len(tokens) and tokens[after].text == "(":
                self._chains[(*chain, "(")].append(token.at)

    def _chain(self, n: int) -> tuple[Chain, int]:
        tokens = self.tokens
        parts: list[str | None] = [tokens[n].text]
        n += 1
        while n + 1 < len(tokens) and tokens[n].at == tokens[n - 1].at + len(tokens[n - 1].text):
            if tokens[n].text == "." and tokens[n + 1].kind == "name":
                parts.append(tokens[n + 1].text)
                n += 2
            elif tokens[n].text == "[":
                if tokens[n + 1].kind == "string" and n + 2 < len(tokens) and tokens[n + 2].text == "]":
                    parts.append(_plain(tokens[n + 1].text))
                    n += 3
                    continue
                parts.append(None)
                depth = 1
                n += 1
                while n < len(tokens) and depth:
                    depth += {"[": 1, "]": -1}.get(tokens[n].text, 0)
                    n += 1
            else:
                break
        return tuple(parts), n


def _plain(literal: str) -> str:
    return literal[1:-1] if literal[0] == "`" else _escape.sub(r"\1", literal[1:-1])


def _nth(places: Any, n: int) -> int:
    return places[min(n, len(places) - 1)] if places else 0


# --- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Found:
    """Something in a module: what it is, its node, the rule it stands in, and its place in the text."""

    kind: str  # ref | call | function | negation | with
    node: Node
    rule: Node | None
    at: int


@dataclass(slots=True)
class Module:
    """A parsed module."""

    text: Text
    tree: Node
    found: list[Found] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.text.path

    @property
    def package(self) -> tuple[str, ...]:
        """The package without `data`."""
        return tuple(part["value"] for part in self.tree["package"]["path"][1:])

    @property
    def rules(self) -> list[Node]:
        """Its rules, each body of a rule one of them."""
        rules: list[Node] = self.tree.get("rules") or []
        return rules

    @property
    def imports(self) -> dict[str, Chain]:
        """What each imported name stands for."""
        found = {}
        for one in self.tree.get("imports") or []:
            chain = chain_of(one["path"])
            found[one.get("alias") or str(chain[-1])] = chain
        return found

    def names(self) -> set[str]:
        """The names of its rules."""
        return {rule_name(rule) for rule in self.rules}


def module(path: str, text: str, tree: Node) -> Module:
    """A module with everything in it in the order of the text, each with its place."""
    made = Module(Text(path, text), tree)
    seen: dict[tuple[Any, ...], int] = defaultdict(int)
    for one in tree.get("imports") or []:
        seen["chain", chain_of(one["path"])] += 1
    for rule in made.rules:
        for kind, node in _in_rule(rule):
            made.found.append(Found(kind, node, rule, _at(made.text, seen, kind, node)))
    return made


def _at(text: Text, seen: dict[tuple[Any, ...], int], kind: str, node: Node) -> int:
    def nth(key: tuple[Any, ...]) -> int:
        seen[key] += 1
        return seen[key] - 1

    if kind == "negation":
        return text.nth_sign("not", nth(("not",)))
    if kind == "with":
        return text.nth_sign("with", nth(("with",)))
    if kind in ("call", "function"):
        name = operator(node) if kind == "call" else (rule_name(node),)
        sign = COMPARISONS.get(str(name[0])) or ARITHMETIC.get(str(name[0])) if len(name) == 1 else None
        if sign is not None:
            return text.nth_sign(sign, nth(("sign", sign)))
        if len(name) > 1:
            seen["chain", name] += 1  # its name is a chain in the text too
        return text.nth_chain((*name, "("), nth(("call", name)))
    chain = chain_of(node)
    return text.nth_chain(chain, nth(("chain", chain)))


def _in_rule(rule: Node | None) -> Iterator[tuple[str, Node]]:
    while rule is not None:
        head = rule["head"]
        if "args" in head:
            yield "function", rule
        for part in ("args", "ref"):
            for term in head.get(part, ())[part == "ref" :]:
                yield from _in_term(term)
        for part in ("key", "value"):
            if part in head and not (part == "key" and len(head["ref"]) > 1):
                yield from _in_term(head[part])
        yield from _in_body(rule["body"])
        rule = rule.get("else")


def _in_body(body: list[Node]) -> Iterator[tuple[str, Node]]:
    for expression in body:
        if expression.get("negated"):
            yield "negation", expression
        terms = expression["terms"]
        if isinstance(terms, list):
            yield from _in_call(terms)
        elif "symbols" in terms:
            for symbol in terms["symbols"]:
                yield from _in_term(symbol)
        elif "domain" in terms:
            yield from _in_term(terms["domain"])
            yield from _in_body(terms["body"])
        else:
            yield from _in_term(terms)
        for one in expression.get("with", ()):
            yield "with", one
            yield from _in_term(one["target"])
            yield from _in_term(one["value"])


def _in_call(terms: list[Node]) -> Iterator[tuple[str, Node]]:
    yield "call", {"type": "call", "value": terms}
    for term in terms[1:]:
        yield from _in_term(term)


def _in_term(term: Node) -> Iterator[tuple[str, Node]]:
    kind, value = term["type"], term["value"]
    if kind == "ref":
        yield "ref", term
        for part in value:
            if part["type"] not in ("var", "string"):
                yield from _in_term(part)
    elif kind == "call":
        yield from _in_call(value)
    elif kind in ("array", "set"):
        for item in value:
            yield from _in_term(item)
    elif kind == "object":
        for key, item in value:
            yield from _in_term(key)
            yield from _in_term(item)
    elif kind.endswith("comprehension"):
        for name in ("key", "value", "term"):
            if name in value:
                yield from _in_term(value[name])
        yield from _in_body(value["body"])


def bodies(rule: Node) -> Iterator[list[Node]]:
    """Every body in a rule: its own, those of `else`, of comprehensions and of `every`."""
    at: Node | None = rule
    while at is not None:
        yield from _bodies_of(at["body"])
        yield from _bodies_in(at["head"])
        at = at.get("else")


def _bodies_of(body: list[Node]) -> Iterator[list[Node]]:
    yield body
    yield from _bodies_in(body)


def _bodies_in(value: Any) -> Iterator[list[Node]]:
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "body":
                yield from _bodies_of(part)
            else:
                yield from _bodies_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _bodies_in(part)


def rule_name(rule: Node) -> str:
    """The name of a rule, the first part when it has several."""
    return str(rule["head"]["ref"][0]["value"])


def chain_of(term: Node) -> Chain:
    """A reference as its parts; None for a part that is computed."""
    if term["type"] != "ref":
        return (str(term["value"]),)
    first, *rest = term["value"]
    head = str(first["value"]) if first["type"] == "var" else None
    return (head, *(part["value"] if part["type"] == "string" else None for part in rest))


def operator(call: Node) -> Chain:
    """What a call calls."""
    return chain_of(call["value"][0])
