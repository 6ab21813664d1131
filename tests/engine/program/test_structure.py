"""Steps that give a definition its shape: read with every fault at its place, and the same turns however often they are stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.canonical import decode
from engine.errors import AuthorError
from engine.limits import repeat_items_max, steps_per_turn_max
from engine.program.comparing import differences
from engine.program.definition import Definition, definition_from
from engine.program.interpreter import begin, deliver, run_to_wait
from engine.program.normalize import normalize
from engine.program.orders import Complete, Context, Fail, Listen, Outcome, Take
from engine.program.snapshot import Frame, frame_from
from governance.connectors.shipped import declared

CATALOG = declared().catalog
HEAD = """name: shape
version: "1"
trigger: {kind: manual}
inputs: {type: object}
effects: [servicenow.update]
steps:
"""
SYS = "a" * 32


def read(steps: str) -> Definition:
    return normalize((HEAD + steps).encode(), "w.yaml", CATALOG)


def faults(steps: str) -> str:
    with pytest.raises(AuthorError) as caught:
        read(steps)
    return str(caught.value)


def lanes(*written: str) -> str:
    return "- {id: fan, kind: parallel, lanes: [" + ", ".join(written) + "]}\n"


SET = "[{{id: {0}, kind: assign, values: {{{1}: 1}}}}]"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            lanes(
                "{id: a, needs: [b], steps: [{id: x, kind: complete}]}",
                "{id: b, needs: [a], steps: [{id: y, kind: complete}]}",
            ),
            "w.yaml:7:52: these lanes need each other and none could begin: a, b",
        ),
        (
            lanes(
                f"{{id: a, steps: {SET.format('x', 'n')}}}", "{id: b, needs: [aa], steps: [{id: y, kind: complete}]}"
            ),
            "there is no lane 'aa' here; did you mean 'a'?",
        ),
        (
            lanes(f"{{id: a, steps: {SET.format('x', 'n')}}}", f"{{id: b, steps: {SET.format('y', 'n')}}}"),
            "lanes 'a' and 'b' both make state.n",
        ),
        (
            "- {id: s, kind: assign, values: {n: 0}}\n"
            + lanes(f"{{id: a, steps: {SET.format('x', 'n')}}}", f"{{id: b, steps: {SET.format('y', 'm')}}}"),
            "state.n is set before the lanes begin and others may read it",
        ),
        (lanes(f"{{id: a, steps: {SET.format('x', 'n')}}}"), "a parallel step has 2 to 32 lanes"),
        (
            "- {id: r, kind: repeat, over: 7, steps: [{id: x, kind: complete}]}\n",
            "over is a list, or ${...} giving one",
        ),
        (
            "- {id: r, kind: repeat, over: '${1 + 1}', steps: [{id: x, kind: complete}]}\n",
            "over is a list, or ${...} giving one; this gives int",
        ),
        ("- {id: r, kind: repeat, steps: [{id: x, kind: complete}]}\n", "either over, a list, or until, a condition"),
        (
            "- {id: r, kind: repeat, over: [], most: 1001, steps: [{id: x, kind: complete}]}\n",
            "most is 1 to 1000, not 1001",
        ),
        (
            "- {id: t, kind: transform, value: '${each.item}', result: r}\n",
            "each.item is there inside a repeat with as: item only",
        ),
        ("- {id: b, kind: branch, arms: []}\n", "a branch has at least one arm"),
        ("- {id: b, kind: branch, arms: [{when: '${input.x}', steps: []}]}\n", "steps is a list of steps, not a list"),
        ("- {id: w, kind: wait}\n", "a wait step has exactly one of seconds, until and signal"),
        ("- {id: w, kind: wait, seconds: -1}\n", "seconds is a whole number from 0 to"),
        ("- {id: w, kind: wait, until: tomorrow}\n", "'tomorrow' is not a moment; write it as 2026-08-21T10:00:00Z"),
        ("- {id: w, kind: wait, signal: 'approval:x'}\n", "is no name that a signal can be sent under"),
        (
            "- {id: w, kind: wait, signal: go, on_timeout: [{id: e, kind: complete}]}\n",
            "on_timeout is never reached without a deadline_s",
        ),
        ("- {id: w, kind: wait, seconds: 1, result: r}\n", "result stands beside signal only"),
        (
            "- {id: a, kind: task, form: {title: T, groups: [g], fields: [{name: X}]}}\n",
            "fields[0].name is 1-40 of a-z 0-9 _",
        ),
        (
            "- {id: a, kind: task, form: {title: T, groups: [g], fields: [{name: x}]}, result: r}\n"
            "- {id: e, kind: complete, result: '${steps.r.y}'}\n",
            "the result 'r' has no 'y'",
        ),
        ("- {id: s, kind: subworkflow, workflow: 'A B'}\n", "'A B' is not a name"),
        ("- {id: s, kind: subworkflow, workflow: a, input: 7}\n", "input is a map, or ${...} giving one"),
        (
            "- {id: b, kind: branch, arms: [{when: '${true}', steps: [{id: x, kind: complete}]}], otherwise: [{id: y, kind: complete}]}\n"
            "- {id: z, kind: complete}\n",
            "step 'z' is never reached: the run always ends at step 'b'",
        ),
        ("- {id: b, kind: brunch}\n", "unknown kind of step 'brunch'; did you mean 'branch'?"),
    ],
)
def test_every_fault_of_a_shape_is_said(steps: str, said: str) -> None:
    assert said in faults(steps)


def test_what_every_way_makes_is_there_behind_the_branch_and_what_one_makes_is_not() -> None:
    arm = "{when: '${input.x}', steps: [{id: a, kind: assign, values: {both: 1, one: 1}}]}"
    branch = f"- {{id: b, kind: branch, arms: [{arm}], otherwise: [{{id: o, kind: assign, values: {{both: 2}}}}]}}\n"
    read(branch + "- {id: e, kind: complete, result: '${state.both}'}\n")
    assert "state.one may not be there" in faults(branch + "- {id: e, kind: complete, result: '${state.one}'}\n")


def nested(depth: int) -> str:
    inner = "{id: x, kind: complete}"
    for n in range(depth):
        inner = f"{{id: r{n}, kind: repeat, over: [1], as: n{n}, steps: [{inner}]}}"
    return f"- {inner}\n"


def test_what_is_too_much_is_refused_with_its_limit() -> None:
    assert len(read(nested(4)).flat) == 5
    assert "branches stand at most 4 deep in each other" in faults(nested(5))
    assert "nested deeper than 32" in faults(nested(100))
    many = "".join(f"- {{id: s{n}, kind: assign, values: {{x: 1}}}}\n" for n in range(1_001))
    assert "a definition has at most 1000 steps" in faults(many)
    assert "the file has more than 20000 values" in faults(
        "- {id: a, kind: assign, values: {x: [" + "1, " * 21_000 + "1]}}\n"
    )
    assert "at most 262144 are read" in faults("# " + "x" * 10_000_000 + "\n")
    bomb = "['x'].map(a, [a + a].map(b, [b + b].map(c, c + c)))"
    assert "loops stand at most 2 deep in each other" in faults(
        f'- {{id: a, kind: transform, value: "${{{bomb}}}", result: r}}\n'
    )


CONTEXT = Context("t", "main", "r", "shape", "1", "2026-01-01T00:00:00Z", {"type": "manual", "ref": "x"}, {})


def test_a_collection_of_too_many_items_and_loops_without_a_wait_end_the_run_with_the_limit() -> None:
    many = read(
        "- {id: r, kind: repeat, over: '${input.all}', steps: [{id: x, kind: transform, value: 1, result: v}]}\n"
    )
    context = Context(
        "t", "main", "r", "shape", "1", "2026-01-01T00:00:00Z", {"type": "m", "ref": "x"}, {"all": [1] * 1_001}
    )
    end = run_to_wait(many, begin(), context).outcome
    assert end == Fail("expression_error", f"step 'r': over: 1001 items; this step takes at most {repeat_items_max}")
    inner = "{id: i, kind: repeat, until: '${false}', most: 1000, steps: [{id: x, kind: assign, values: {n: 1}}]}"
    loops = read(f"- {{id: o, kind: repeat, until: '${{false}}', most: 1000, steps: [{inner}]}}\n")
    end = run_to_wait(loops, begin(), CONTEXT).outcome
    assert isinstance(end, Fail)
    assert "until does not hold after 1000 turns" in end.message
    body = "{id: x, kind: assign, values: {n: 1}}"
    inner = f"{{id: i, kind: repeat, as: turn, until: '${{each.turn_index > 998}}', most: 1000, steps: [{body}]}}"
    ends = read(f"- {{id: o, kind: repeat, over: {list(range(30))}, steps: [{inner}]}}\n")
    assert run_to_wait(ends, begin(), CONTEXT).outcome == Fail(
        "too_many_steps", f"step 'x': more than {steps_per_turn_max} steps without a wait"
    )


# --- any shape, with and without restarts ---------------------------------------------------------------------------------

ACT = {"kind": "action", "connector": "servicenow", "operation": "update", "target": SYS, "fields": {"urgency": "1"}}
_leaf = st.sampled_from(
    [
        {"kind": "assign", "values": {"x": 1}},
        {"kind": "transform", "value": "${1 + 1}"},
        {"kind": "wait", "seconds": 5},
        {"kind": "wait", "signal": "go"},
        {"kind": "wait", "signal": "go", "deadline_s": 60, "on_timeout": [{"kind": "assign", "values": {"x": 1}}]},
        ACT,
        {**ACT, "on_failure": [ACT]},
        {"kind": "subworkflow", "workflow": "other", "on_failure": [{"kind": "wait", "seconds": 1}]},
        {"kind": "continue_with", "workflow": "other"},
        {"kind": "task", "form": {"title": "T", "groups": ["g"], "fields": [{"name": "a"}]}},
        {"kind": "complete", "when": "${run.id == 'other'}"},
        {"kind": "fail", "when": "${run.id == 'other'}", "error_class": "no", "message": "no"},
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    steps = st.lists(inner, min_size=1, max_size=3)
    when = st.sampled_from(["${true}", "${false}", "${run.id == 'r'}"])
    return st.one_of(
        st.builds(
            lambda w, a, b: {"kind": "branch", "arms": [{"when": w, "steps": a}], "otherwise": b}, when, steps, steps
        ),
        st.builds(lambda a, n: {"kind": "repeat", "over": list(range(n)), "steps": a}, steps, st.integers(0, 3)),
        st.builds(lambda a: {"kind": "repeat", "until": "${true}", "steps": a}, steps),
        st.builds(
            lambda a, b, needs: {
                "kind": "parallel",
                "lanes": [{"id": "a", "steps": a}, {"id": "b", "needs": needs, "steps": b}],
            },
            steps,
            steps,
            st.sampled_from([[], ["a"]]),
        ),
    )


_shapes = st.lists(st.recursive(_leaf, _grown, max_leaves=8), min_size=1, max_size=4)


def _named(value: Any, count: list[int]) -> Any:
    """Every step with an id, every name its own."""
    if type(value) is list:
        return [_named(each, count) for each in value]
    if type(value) is not dict:
        return value
    found = {name: _named(each, count) for name, each in value.items()}
    if "kind" in value and "title" not in value and "name" not in value:
        count[0] += 1
        found["id"] = f"s{count[0]}"
        if value["kind"] == "assign":
            found["values"] = {f"x{count[0]}": 1}
        if value["kind"] == "transform":
            found["result"] = f"r{count[0]}"
        if value["kind"] == "repeat":
            found["as"] = f"i{count[0]}"
    return found


def _definition(shape: list[Any]) -> Definition | None:
    import json

    try:
        return read("".join(f"- {json.dumps(step)}\n" for step in _named(shape, [0])))
    except AuthorError as error:
        if "stand at most 4 deep" not in str(error):
            raise
        return None


def stored(frame: Frame) -> Frame:
    again = frame_from(decode(frame.body))
    assert again.body == frame.body
    return again


def _walk(definition: Definition, oks: list[bool], picks: list[int], restart: int) -> tuple[list[Outcome], bytes]:
    """Every outcome; `restart` has a bit for every place at which the frame goes through storage."""
    frame, outcomes, point = begin(), [], 0
    inbox: dict[str, list[Any]] = {}
    listening: dict[int, str] = {}

    def between(each: Frame) -> Frame:
        nonlocal point
        point += 1
        return stored(each) if restart >> (point - 1) & 1 else each

    for n in range(400):
        turn = run_to_wait(definition, between(frame), CONTEXT, inbox)
        outcomes.append(turn.outcome)
        for order in turn.orders:
            if isinstance(order, Take):
                inbox[order.name].pop(0)
            elif isinstance(order, Listen):
                listening[order.child] = order.name
        if isinstance(turn.outcome, Complete | Fail):
            return outcomes, turn.frame.body
        waiting = turn.frame.open
        child = waiting[picks[n % len(picks)] % len(waiting)]
        ok = oks[n % len(oks)]
        if ok and child in listening:
            inbox.setdefault(listening[child], []).append("word")
        frame = deliver(definition, between(turn.frame), ok, {"run": "x"}, "timeout", "no", child=child)
    raise AssertionError("it does not end")


@given(
    _shapes,
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 2**40 - 1),
)
@settings(deadline=None, max_examples=150)
def test_any_shape_gives_the_same_turns_however_often_it_is_stored(
    shape: list[Any], oks: list[bool], picks: list[int], restart: int
) -> None:
    definition = _definition(shape)
    if definition is None:
        return
    again = definition_from(decode(definition.body))
    assert (again, again.digest) == (definition, definition.digest)
    plain = _walk(definition, oks, picks, 0)
    assert _walk(again, oks, picks, restart) == plain
    assert _walk(definition, oks, picks, 2**400 - 1) == plain


def test_what_differs_is_named_by_step() -> None:
    one = read("- {id: a, kind: wait, seconds: 1}\n- {id: b, kind: complete}\n")
    two = read("- {id: a, kind: wait, seconds: 2}\n- {id: c, kind: complete}\n")
    assert [row["place"] for row in differences(one.to_value(), two.to_value())] == [
        "steps[a].seconds.literal", "steps[b]", "steps[c]",
    ]  # fmt: skip
    assert differences(one.to_value(), one.to_value()) == []
