"""What an authored value means: literal, expression, or text with expressions, never in doubt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.program.expression import ExprError, Scope
from engine.program.formula import Cel, Formula, Listed, Literal, Mapped, Text, evaluate, formula_from, parse, to_value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("plain", Literal("plain")),
        (7, Literal(7)),
        (None, Literal(None)),
        ({"b": [1, "x"]}, Literal({"b": [1, "x"]})),
        ("${input.x}", Cel("input.x")),
        ("${  input.x\n}", Cel("input.x")),
        ("a ${input.x} b", Text(("a ", Cel("input.x"), " b"))),
        ("${a}${b}", Text((Cel("a"), Cel("b")))),
        (" ${a}", Text((" ", Cel("a")))),
        ("$${input.x}", Literal("${input.x}")),
        ("costs $5 {really} $", Literal("costs $5 {really} $")),
        ("$${a} ${b}", Text(("${a} ", Cel("b")))),
        ("${ {'a': {'b': 1}} }", Cel("{'a': {'b': 1}}")),
        ("${'}' + \"}\"}", Cel("'}' + \"}\"")),
        (r"${'\'}'}", Cel(r"'\'}'")),
        (r"${r'\'}", Cel(r"r'\'")),
        ("${'''}'''}", Cel("'''}'''")),
        ("${1 // }\n}", Cel("1 // }")),
        ({"b": "${x}", "a": 1}, Mapped((("a", Literal(1)), ("b", Cel("x"))))),
        (["${x}", 1], Listed((Cel("x"), Literal(1)))),
    ],
)
def test_values_mean_one_thing(value: Any, wanted: Formula) -> None:
    """`${` starts an expression and its own brace ends it; `$${` is how to write `${`."""
    assert parse(value) == wanted
    assert formula_from(to_value(wanted)) == wanted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${input.x", "${ has no closing }"),
        ("${'}", "${ has no closing }: a quoted text inside it does not end"),
        ("${ }", "there is no expression inside ${...}"),
        ("a ${b} ${", "${ has no closing }"),
    ],
)
def test_an_open_expression_is_a_fault(value: str, message: str) -> None:
    """An expression that does not end is never taken for text."""
    with pytest.raises(ExprError) as caught:
        parse(value)
    assert caught.value.message == message


def test_text_takes_what_can_be_written() -> None:
    """Text, whole numbers and truth values; null, lists and maps are errors, not `None` in a ticket."""
    scope = Scope({"input": {"s": "x", "n": 7, "b": True, "none": None, "l": [1]}})
    assert evaluate(parse("${input.s}-${input.n}-${input.b}"), scope) == "x-7-true"
    with pytest.raises(ExprError, match=r"text, a whole number, true or false can stand here; this is null"):
        evaluate(parse("a ${input.none}"), scope)
    with pytest.raises(ExprError, match=r"this is a list"):
        evaluate(parse("a ${input.l}"), scope)


def test_an_error_names_its_expression() -> None:
    """Shortened to one line."""
    with pytest.raises(ExprError) as caught:
        evaluate(parse({"a": "${input.x\n + 1}"}), Scope({"input": {}}))
    assert caught.value.message == '${input.x + 1}: there is no "x"'


def test_nested_values_are_evaluated_in_place() -> None:
    """Lists and maps keep their shape."""
    scope = Scope({"input": {"x": 1}})
    assert evaluate(parse({"a": ["${input.x}", {"b": "n${input.x}"}], "c": None}), scope) == {
        "a": [1, {"b": "n1"}],
        "c": None,
    }


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_escaping_gives_back_any_text(text: str) -> None:
    """Every text can be written: with each `${` doubled it stands for itself."""
    escaped = text.replace("${", "$${")
    if "$$${" not in escaped:
        assert parse(escaped) == Literal(text)
