"""Expressions: every trap of the engine behind them has a test that says what it did and what it does not do here."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import encode
from engine.program.expression import (
    ExprError,
    Reference,
    Scope,
    admit,
    check_size,
    compile_condition,
    compile_expression,
)


def value_of(source: str, **roots: Any) -> Any:
    return compile_expression(source).evaluate(Scope(roots))


def refusal_of(source: str, **roots: Any) -> tuple[str, int, int]:
    with pytest.raises(ExprError) as caught:
        value_of(source, **roots)
    return caught.value.message, caught.value.line, caught.value.col


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("input.n + 1", 8),
        ("'%d of %s'.format([input.n, input.s])", "7 of x"),
        ("input.?missing.orValue('none')", "none"),
        ("has(input.missing)", False),
        ("items(input.m).map(i, i.key)", ["a", "b"]),
        ("items(input.l).filter(i, i > 1)", [2, 3]),
        ("{'b': 1, 'a': [null, true]}", {"a": [None, True], "b": 1}),
        ("'a,b'.split(',').join('-')", "a-b"),
        ("string(timestamp('2026-01-01T00:00:00Z') + duration('1h'))", "2026-01-01T01:00:00Z"),
        ("string(1.0 / 4.0)", "0.25"),
        ("2u", 2),
        ("input.s in ['x', 'y'] ? 'yes' : 'no'", "yes"),
        ("input.s.matches('^(a+)+x$') || input.s == 'x'", True),
    ],
)
def test_expressions_give_exact_values(source: str, wanted: Any) -> None:
    """Text, whole numbers, truth values, null, lists and maps come out as themselves."""
    found = value_of(source, input={"n": 7, "s": "x", "m": {"b": 1, "a": 2}, "l": [1, 2, 3]})
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("source", "message", "line", "col"),
    [
        (
            "inptu.x",
            "unknown name 'inptu'; did you mean 'input'? (known: input, state, steps, run, trigger, each)",
            1,
            1,
        ),
        ("1 +\n  foo", "unknown name 'foo' (known: input, state, steps, run, trigger, each)", 2, 3),
        ("1 +", "syntax error: the expression ends too early", 1, 4),
        ("'a' 'b'", "syntax error: not expected here: 'b'", 1, 5),
        ("1 + 'a'", "'+' does not work on (int, string)", 1, 3),
        ("greatest(1)", "no function 'greatest' takes these arguments", 1, 1),
        ("now()", "no function 'now' takes these arguments", 1, 1),
        ("1.5", "the result is a fraction; make it text with string(...)", 1, 1),
        ("b'x'", "the result is bytes; make them text with string(...)", 1, 1),
        ("optional.of(3)", "the result is an optional; end it with .orValue(...)", 1, 1),
        ("duration('3s')", "the result is a duration; make it text with string(...)", 1, 1),
        ("timestamp('2026-01-01T00:00:00Z')", "the result is a time; make it text with string(...)", 1, 1),
        ("type(1)", "the result is a type; that is not a value", 1, 1),
        ("(" * 40 + "1" + ")" * 40, "the expression is nested deeper than 32", 1, 1),
        ("input" + ".a" * 1500, "the expression is nested deeper than 32", 1, 1),
        ("'" + "x" * 4100 + "'", "the expression is 4102 bytes; at most 4096", 1, 1),
    ],
)
def test_what_does_not_compile_says_where(source: str, message: str, line: int, col: int) -> None:
    """Line and column from 1 inside the expression."""
    assert refusal_of(source) == (message, line, col)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("input.x", 'there is no "x"'),
        ("[1].all(i, input.x)", 'there is no "x"'),
        ("1 / 0", "divide by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("input.n < 2", "No matching overloads found : _<_(string, int64)"),
        ("input.n ? 1 : 2", "No matching overloads found : <jump_condition>"),
        ("{'a': 1, 'a': 2}", "duplicate key in map [ALREADY_EXISTS]"),
        ("items(input.n)", "'items(...) takes a list or a map with text keys'"),
    ],
)
def test_an_evaluation_error_is_raised_and_never_a_value(source: str, message: str) -> None:
    """The library returns an error as a value whose plain form is a non-empty, truthy text."""
    found, line, col = refusal_of(source, input={"n": "text"})
    assert message.strip("'") in found
    assert (line, col) == (0, 0)


def test_an_error_is_not_truth() -> None:
    """A condition over a missing key raises; it neither holds nor fails to hold."""
    with pytest.raises(ExprError, match='there is no "approved"'):
        compile_condition("input.approved").holds(Scope({"input": {}}))


@pytest.mark.parametrize("value", ["true", "yes", 1, [True], {"a": True}, None])
def test_only_true_is_true(value: Any) -> None:
    """Whatever is not a truth value is an error, however truthy it looks."""
    with pytest.raises(ExprError, match=r"a condition is true or false; this is \w+"):
        compile_condition("input.x").holds(Scope({"input": {"x": value}}))


def test_conditions_hold_or_do_not() -> None:
    """True and false, typed or not known before the run."""
    assert compile_condition("input.x").holds(Scope({"input": {"x": True}})) is True
    assert compile_condition("input.x == 'a'").holds(Scope({"input": {"x": "b"}})) is False
    with pytest.raises(ExprError, match="a condition is true or false; this is string"):
        compile_condition("'true'")


@pytest.mark.parametrize("source", ["input.x == 1", "input.x == 1.0", "input.x in [1]"])
def test_true_is_not_one(source: str) -> None:
    """In Python a bool is an int, and bound to a typed integer variable it would equal 1."""
    assert value_of(source, input={"x": True}) is False


@pytest.mark.parametrize(
    ("source", "col"),
    [
        ("input.map(k, k)", 10),
        ("input.x.map(k, k)", 12),
        ("input.x.all(k, true)", 12),
        ("{'a': 1}.exists(k, true)", 16),
        ("items(input).map(i, i.value.map(j, j))", 32),
        ("input.x.filter(k, k == 'a').size()", 15),
    ],
)
def test_loops_over_maps_are_refused_before_they_run(source: str, col: int) -> None:
    """A map is walked in an order that changes from process to process, and what is dyn may be a map."""
    message = "this loop may walk a map, whose order is not fixed; write items(...) around it"
    assert refusal_of(source) == (message, 1, col)


def test_the_order_of_maps_is_the_same_in_every_process() -> None:
    """Two processes with different hash seeds give byte-identical values for maps, items and printed maps."""
    script = (
        "from engine.canonical import encode\n"
        "from engine.program.expression import Scope, compile_expression\n"
        "names = [chr(c) for c in range(97, 123)]\n"
        "scope = Scope({'input': {'m': {n: n + '1' for n in names}}})\n"
        "out = [compile_expression(s).evaluate(scope) for s in ('input.m', \"items(input.m).map(i, i.key + i.value)\","
        " \"'%s'.format([input.m])\", \"{'z': 1, 'a': 2, 'k': 3}\")]\n"
        "print(list(out[0]), list(out[3]), encode(out).hex())\n"
    )
    runs = {subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout for _ in range(4)}
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("source", "message", "col"),
    [
        ("[1].map(input, input)", "a loop variable may not be called 'input'", 8),
        ("[1].map(a, [1].map(b, [1].map(c, c)))", "loops stand at most 2 deep in each other", 30),
        ("cel.bind(x, 1, x)", "unknown name 'x' (known: input, state, steps, run, trigger, each)", 10),
    ],
)
def test_loops_are_bounded_and_bind_is_off(source: str, message: str, col: int) -> None:
    """Two levels of loops; no name of a root is hidden; no cel.bind."""
    assert refusal_of(source) == (message, 1, col)


@pytest.mark.parametrize("zone", ["'Europe/Berlin'", "'localtime'", "input.zone", "'+2'"])
def test_named_time_zones_are_refused(zone: str) -> None:
    """They come from the machine's own table, so that a replay elsewhere could give another hour."""
    message, _, col = refusal_of(f"timestamp(run.started_at).getHours({zone})")
    assert message == "a named time zone differs from machine to machine; write UTC or an offset as '+02:00'"
    assert col >= 36
    run = {"started_at": "2026-07-01T00:00:00Z"}
    assert value_of("timestamp(run.started_at).getHours('+02:00')", run=run) == 2
    assert value_of("timestamp(run.started_at).getHours()", run=run) == 0


def test_loops_end() -> None:
    """The library's own budget of turns is an error of ours."""
    message = "the loops of this expression take more than 10000 turns"
    assert refusal_of("items(input.l).all(i, i >= 0)", input={"l": list(range(10_001))})[0] == message
    nested = "items(input.l).all(i, items(input.l).all(j, j >= 0))"
    assert refusal_of(nested, input={"l": list(range(101))})[0] == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a\x00b", "text holds the character NUL"),
        ("\ud800", "text holds a lone surrogate"),
        (1.5, "values are text, whole numbers, true, false, null, lists and maps; this is a fraction; pass it as text"),
        (
            float("nan"),
            "values are text, whole numbers, true, false, null, lists and maps; this is a fraction; pass it as text",
        ),
        ((1,), "values are text, whole numbers, true, false, null, lists and maps; this is tuple"),
        (b"x", "values are text, whole numbers, true, false, null, lists and maps; this is bytes"),
        (2**53, "an integer is below 2^53 in size; pass larger numbers as text"),
        ({1: 2}, "a map key is text"),
    ],
)
def test_what_the_engine_would_misread_is_not_admitted(value: Any, message: str) -> None:
    """Behind CEL a text silently ends at NUL, 2^63 changes its type, and a surrogate raises something else."""
    with pytest.raises(ExprError) as caught:
        admit({"x": [value]})
    assert caught.value.message == message


def test_depth_and_size_are_bounded() -> None:
    """Ten levels and 256 KiB."""
    deep: Any = 1
    for _ in range(10):
        deep = [deep]
    admit(deep)
    with pytest.raises(ExprError, match="nested deeper than 10"):
        admit([deep])
    with pytest.raises(ExprError, match="together are 262145 bytes; at most 262144"):
        check_size(262_145)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("'\\u0000'", "the result holds the character NUL"),
        ("9007199254740992", "the result is an integer beyond 2^53; make it text with string(...)"),
        ("{1: 2}", "the result is a map with a key that is not text"),
        ("[dyn(1.5)]", "the result is a fraction; make it text with string(...)"),
        ("[dyn(b'x')]", "the result is bytes; make them text with string(...)"),
    ],
)
def test_results_that_are_no_values_are_refused(source: str, message: str) -> None:
    """Only what deterministic CBOR and JSON both keep exactly leaves an expression."""
    assert refusal_of(source)[0] == message


def test_references_name_what_is_read_and_where() -> None:
    """Dots, constant indexes and optional selects are paths; everything else is the root."""
    source = "input.a.b + state['c'].d +\n steps.?e.orValue('') + string(size(run))"
    assert compile_expression(source).references == (
        Reference("input", ("a", "b"), 1, 1),
        Reference("state", ("c", "d"), 1, 13),
        Reference("steps", ("e",), 2, 2),
        Reference("run", (), 2, 37),
    )


_texts = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(_values)
def test_every_admitted_value_passes_through_unchanged(value: Any) -> None:
    """Out of CEL comes what went in, byte for byte."""
    assert encode(value_of("input.x", input={"x": value})) == encode(value)


@given(st.text("inputsae.[]{}()+-*/!&|?:'\"\\0123456789, \n", max_size=60))
def test_the_door_answers_any_source(source: str) -> None:
    """Any text either gives an exact value or an ExprError; nothing else is raised."""
    with suppress(ExprError):
        encode(value_of(source, input={"a": 1}, state={}))
