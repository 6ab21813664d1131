"""Expression bombs: what an expression may build is bounded before it runs, and ordinary expressions do not notice."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.program.expression import ExprError, Scope, compile_expression


def _tree(leaf: str, count: int) -> str:
    half = count // 2
    return leaf if count == 1 else f"({_tree(leaf, half)}+{_tree(leaf, count - half)})"


_text = "a" * 200_000

# What each took without the bound is in the identifiers.
BOMBS = {
    "a text in a loop, gigabytes": (
        "items(input.l).map(i, input.x + 'a').size()",
        {"l": list(range(5_000)), "x": _text},
    ),
    "a tree of sums, 511 MB": (_tree("input.x", 300) + " == ''", {"x": _text}),
    "loops that multiply, gigabytes": (
        f"[{_tree('input.x', 60)}].map(y, [{_tree('y', 60)}].map(z, {_tree('z', 60)}).size())",
        {"x": "a" * 1_000},
    ),
    "replace with itself, 40 GB": ("input.x.replace('', input.x).size()", {"x": _text}),
    "join with itself": ("input.x.split('').join(input.x).size()", {"x": _text}),
    "a map copied each turn, 1.3 GB": (
        "items(input.l).map(i, input.m).size()",
        {"l": list(range(9_000)), "m": {str(n): n for n in range(20_000)}},
    ),
    "a long list from a loop, 1.3 GB": ("items(input.l).map(i, i)", {"l": list(range(9_000))}),
    "an optional as a loop": (
        "optional.of(input.x + input.x).optMap(y, y + y + y + y + y + y + y + y + y + y).value().replace('a', input.x)",
        {"x": _text},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once(name: str) -> None:
    """The limit is named, and it takes no time."""
    source, given = BOMBS[name]
    expression = compile_expression(source)
    started = time.monotonic()
    with pytest.raises(ExprError, match=r"^this could build \d+ bytes from its input; at most 67108864$"):
        expression.evaluate(Scope({"input": given}))
    assert time.monotonic() - started < 1


PEOPLE = [{"name": f"n{n}", "tags": ["a", "b"], "age": n} for n in range(500)]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("items(input.l).map(i, i.name + input.p).size()", 500),
        ("items(input.l).filter(i, i.age > 490).map(i, i.name).join(', ').size()", 52),
        ("items(input.l).map(i, items(i.tags).map(t, t + '-' + i.name)).size()", 500),
        ("items(input.l).filter(i, i.age in input.some).size()", 100),
        ("input.t.replace('\\n', ' ').size()", 4_000),
        ("input.t.split('\\n').map(line, line + '!').size()", 401),
        ("items(items(input.l)[0]).map(e, e.key)", ["age", "name", "tags"]),
        ("items(input.l).exists(i, i.name.startsWith('n4'))", True),
        ("items(input.l).all(i, i.name.matches('^n[0-9]+$'))", True),
        ("items(input.many).all(i, i >= 0)", True),
    ],
)
def test_ordinary_loops_do_not_notice(source: str, wanted: Any) -> None:
    """Five hundred people, a page of text: what real workflows walk."""
    given = {"l": PEOPLE, "p": "prefix", "t": "some text\n" * 400, "some": list(range(100)), "many": list(range(9_999))}
    assert compile_expression(source).evaluate(Scope({"input": given})) == wanted


def test_a_step_gives_only_so_much() -> None:
    """Many plain expressions over the same large text are bounded together."""
    scope = Scope({"input": {"x": _text}})
    expression = compile_expression("input.x")
    expression.evaluate(scope)
    expression.evaluate(scope)
    with pytest.raises(ExprError, match="the expressions of one step give more than 524288 bytes"):
        expression.evaluate(scope)
