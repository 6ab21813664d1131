"""How an authored value is meant: literally, as one expression `${...}`, as text with expressions in it, or a list or map of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import AuthorError
from engine.program.expression import ExprError, Scope, compile_expression


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that stands for itself."""

    value: Any


@dataclass(frozen=True, slots=True)
class Cel:
    """One expression; the value keeps the type the expression gives."""

    source: str


@dataclass(frozen=True, slots=True)
class Text:
    """Text with expressions in it; each of them must give text, a whole number, true or false."""

    parts: tuple[str | Cel, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list with an expression somewhere in it."""

    items: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A map with an expression somewhere in it; sorted by name."""

    items: tuple[tuple[str, Formula], ...]


Formula = Literal | Cel | Text | Listed | Mapped


def parse(value: Any) -> Formula:
    """What an authored value means; ExprError when a `${` has no end or nothing in it."""
    if type(value) is str:
        return _parse_text(value)
    if type(value) is list:
        items = [parse(item) for item in value]
        if all(isinstance(item, Literal) for item in items):
            return Literal([item.value for item in items if isinstance(item, Literal)])
        return Listed(tuple(items))
    if type(value) is dict:
        pairs = [(name, parse(value[name])) for name in sorted(value)]
        if all(isinstance(item, Literal) for _, item in pairs):
            return Literal({name: item.value for name, item in pairs if isinstance(item, Literal)})
        return Mapped(tuple(pairs))
    return Literal(value)


def _parse_text(text: str) -> Formula:
    parts: list[str | Cel] = []
    plain, at = "", 0
    while at < len(text):
        mark = text.find("${", at)
        if mark < 0:
            plain += text[at:]
            break
        if mark > 0 and text[mark - 1] == "$" and mark > at:
            # `$${` is how an author writes `${` itself.
            plain += text[at : mark - 1] + "${"
            at = mark + 2
            continue
        plain += text[at:mark]
        end = _end(text, mark + 2)
        source = text[mark + 2 : end].strip()
        if not source:
            raise ExprError("there is no expression inside ${...}")
        if plain:
            parts.append(plain)
            plain = ""
        parts.append(Cel(source))
        at = end + 1
    if not any(isinstance(part, Cel) for part in parts):
        return Literal(plain)
    if plain:
        parts.append(plain)
    if len(parts) == 1 and isinstance(parts[0], Cel):
        return parts[0]
    return Text(tuple(parts))


def _end(text: str, at: int) -> int:
    """Where the brace that closes this expression stands; braces inside its own maps and texts do not count."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "'\"":
            at = _after_quoted(text, at)
            continue
        if text.startswith("//", at):
            line_end = text.find("\n", at)
            at = len(text) if line_end < 0 else line_end
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            if depth == 0:
                return at
            depth -= 1
        at += 1
    raise ExprError("${ has no closing }")


def _after_quoted(text: str, at: int) -> int:
    quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
    raw = at > 0 and text[at - 1] in "rR" and not text[max(0, at - 2) : at - 1].isidentifier()
    at += len(quote)
    while at < len(text):
        if text.startswith(quote, at):
            return at + len(quote)
        at += 2 if text[at] == "\\" and not raw else 1
    raise ExprError("${ has no closing }: a quoted text inside it does not end")


def expressions(formula: Formula) -> list[Cel]:
    """Every expression in it, in order."""
    if isinstance(formula, Cel):
        return [formula]
    if isinstance(formula, Text):
        return [part for part in formula.parts if isinstance(part, Cel)]
    if isinstance(formula, Listed):
        return [each for item in formula.items for each in expressions(item)]
    if isinstance(formula, Mapped):
        return [each for _, item in formula.items for each in expressions(item)]
    return []


def evaluate(formula: Formula, scope: Scope) -> Any:
    """The value; ExprError when an expression in it gives none."""
    if isinstance(formula, Literal):
        return formula.value
    if isinstance(formula, Cel):
        return _evaluate_cel(formula, scope)
    if isinstance(formula, Text):
        parts = [part if isinstance(part, str) else as_text(_evaluate_cel(part, scope)) for part in formula.parts]
        return "".join(parts)
    if isinstance(formula, Listed):
        return [evaluate(item, scope) for item in formula.items]
    return {name: evaluate(item, scope) for name, item in formula.items}


def as_text(value: Any) -> str:
    """How a value is written where only text can stand: a field of a connector, a part of a sentence."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    kind = {"NoneType": "null", "list": "a list", "dict": "a map"}.get(type(value).__name__, type(value).__name__)
    raise ExprError(f"text, a whole number, true or false can stand here; this is {kind}")


def _evaluate_cel(formula: Cel, scope: Scope) -> Any:
    try:
        return compile_expression(formula.source).evaluate(scope)
    except ExprError as error:
        raise ExprError(f"${{{_short(formula.source)}}}: {error.message}", error.line, error.col) from None


def _short(source: str) -> str:
    one_line = " ".join(source.split())
    return one_line if len(one_line) <= 80 else one_line[:79] + "…"


def to_value(formula: Formula) -> dict[str, Any]:
    """The canonical form: one key says what it is."""
    if isinstance(formula, Literal):
        return {"literal": formula.value}
    if isinstance(formula, Cel):
        return {"cel": formula.source}
    if isinstance(formula, Text):
        return {"text": [part if isinstance(part, str) else {"cel": part.source} for part in formula.parts]}
    if isinstance(formula, Listed):
        return {"list": [to_value(item) for item in formula.items]}
    return {"map": {name: to_value(item) for name, item in formula.items}}


def formula_from(value: Any) -> Formula:
    """The formula that this canonical form holds."""
    if type(value) is not dict or len(value) != 1:
        raise AuthorError("a value of a stored definition has exactly one kind")
    [(kind, body)] = value.items()
    if kind == "literal":
        return Literal(body)
    if kind == "cel" and type(body) is str:
        return Cel(body)
    if kind == "text" and type(body) is list:
        return Text(tuple(part if type(part) is str else _cel_from(part) for part in body))
    if kind == "list" and type(body) is list:
        return Listed(tuple(formula_from(item) for item in body))
    if kind == "map" and type(body) is dict:
        return Mapped(tuple((name, formula_from(body[name])) for name in sorted(body)))
    raise AuthorError(f"a value of a stored definition is of no known kind: {kind!r}")


def _cel_from(value: Any) -> Cel:
    formula = formula_from(value)
    if not isinstance(formula, Cel):
        raise AuthorError("a part of a text is text or an expression")
    return formula
