"""Branches of an action: read with every fault at its place, run as a program, and the same bytes as ever where there are none."""

from __future__ import annotations

from typing import Any

import pytest

from engine.canonical import decode
from engine.errors import AuthorError
from engine.program.definition import Definition, definition_from
from engine.program.interpreter import begin, deliver, run_to_wait
from engine.program.normalize import normalize
from engine.program.orders import AskPerson, Complete, Context, Fail, Propose, Turn
from engine.program.snapshot import Frame, frame_from
from governance.connectors.shipped import declared

CATALOG = declared().catalog
HEAD = """name: branches
version: "1"
trigger: {kind: manual}
inputs: {type: object, additionalProperties: false, properties: {}}
effects: [servicenow.update, servicenow.lookup, slack.post]
steps:
"""
ACT = (
    '- {{id: {0}, kind: action, connector: servicenow, operation: update, target: {1}, fields: {{urgency: "1"}}{2}}}\n'
)
SYS = "a" * 32
CONTEXT = Context("t", "main", "r", "branches", "1", "2026-01-01T00:00:00Z", {"type": "manual", "ref": "x"}, {})


def act(ident: str, more: str = "") -> str:
    return ACT.format(ident, SYS, more)


def read(steps: str) -> Definition:
    return normalize((HEAD + steps).encode(), "w.yaml", CATALOG)


def faults(steps: str) -> str:
    with pytest.raises(AuthorError) as caught:
        read(steps)
    return str(caught.value)


def go(definition: Definition, frame: Frame, *ends: tuple[Any, ...]) -> Turn:
    """Run on; each end is (ok, ...) of what the run then waits for. Every frame survives being stored."""
    turn = run_to_wait(definition, frame_from(decode(frame.body)), CONTEXT)
    for end in ends:
        turn = run_to_wait(definition, frame_from(decode(deliver(definition, turn.frame, *end).body)), CONTEXT)
    return turn


OK, GONE, LATE = (True, {}), (False, None, "target_not_found", "gone"), (False, None, "timeout", "no answer")
FAIL = "[{{id: {0}, kind: fail, error_class: {0}, message: '${{run.error.error_class}} of ${{run.error.step}}'}}]"
EACH = f", on_success: [{{id: s, kind: complete, result: {{x: s}}}}], on_failure: {FAIL.format('f')}, on_timeout: {FAIL.format('t')}"


@pytest.mark.parametrize(
    ("end", "expected"),
    [(OK, Complete({"x": "s"})), (GONE, Fail("f", "target_not_found of a")), (LATE, Fail("t", "timeout of a"))],
)
def test_the_outcome_chooses_the_branch(end: tuple[Any, ...], expected: object) -> None:
    definition = read(act("a", EACH) + act("b"))
    assert go(definition, begin(), end).outcome == expected


def test_without_a_timeout_branch_time_that_is_up_is_a_failure() -> None:
    assert go(read(act("a", f", on_failure: {FAIL.format('f')}")), begin(), LATE).outcome == Fail("f", "timeout of a")


def test_behind_a_branch_the_run_goes_on_after_its_action_and_nested_ones_find_back() -> None:
    inner = act("c", f", on_failure: [{act('d').strip()[2:]}]").strip()[2:]
    definition = read(act("a", f", on_failure: [{inner}, {act('e').strip()[2:]}]") + act("b"))
    assert [placed.step.id for placed in definition.flat] == ["a", "b", "c", "e", "d"]
    names = []
    turn = run_to_wait(definition, begin(), CONTEXT)
    for end in (GONE, GONE, OK, OK, OK):
        assert isinstance(turn.outcome, Propose)
        names.append(turn.outcome.step_id)
        turn = run_to_wait(definition, deliver(definition, turn.frame, *end), CONTEXT)
    assert names == ["a", "c", "d", "e", "b"]
    assert turn.outcome == Complete({})


def test_a_definition_without_branches_has_the_bytes_that_it_always_had() -> None:
    plain = read(act("a"))
    (step,) = plain.to_value()["steps"]
    assert not {"on_success", "on_failure", "on_timeout", "reversal"} & set(step)
    stored = set(decode(go(plain, begin()).frame.body))
    assert stored == {"step", "state", "steps", "next_child", "waiting", "error_class", "error"}


@pytest.mark.parametrize("more", [", on_failure: reverse", EACH])
def test_branches_survive_being_stored(more: str) -> None:
    definition = read(act("a", more))
    again = definition_from(decode(definition.body))
    assert (again, again.digest) == (definition, definition.digest)


LOOK = f"- {{id: look, kind: action, connector: servicenow, operation: lookup, target: {SYS}}}\n"
POST = "- {id: post, kind: action, connector: slack, operation: post, target: C1, fields: {text: hello}}\n"


def test_what_was_done_is_undone_newest_first_and_reads_are_left() -> None:
    definition = read(act("one") + LOOK + act("two") + act("bad", ", on_failure: reverse"))
    turn = go(definition, begin(), OK, OK, OK, GONE)
    assert isinstance(turn.outcome, Propose)
    assert (turn.outcome.step_id, turn.outcome.reverses, turn.outcome.operation) == ("undo-two", "2", "update")
    turn = go(definition, deliver(definition, turn.frame, *OK))
    assert isinstance(turn.outcome, Propose)
    assert (turn.outcome.step_id, turn.outcome.reverses) == ("undo-one", "0")
    assert go(definition, deliver(definition, turn.frame, *OK)).outcome == Fail("target_not_found", "gone")


def test_a_reversal_that_fails_stops_and_names_what_is_still_done() -> None:
    definition = read(act("one") + act("two") + act("bad", ", on_failure: reverse"))
    end = go(definition, begin(), OK, OK, GONE, GONE).outcome
    assert isinstance(end, Fail)
    assert end.error_class == "reversal_failed"
    assert "undoing stopped at step 'two'" in end.message
    assert "still done: two, one" in end.message


@pytest.mark.parametrize(
    ("said", "error_class"), [("It is undone", "target_not_found"), ("It cannot be undone", "reversal_failed")]
)
def test_what_no_connector_undoes_is_asked_of_a_person(said: str, error_class: str) -> None:
    definition = read(POST + act("bad", ", on_failure: reverse"))
    turn = go(definition, begin(), OK, GONE)
    assert isinstance(turn.outcome, AskPerson)
    assert turn.outcome.form["title"] == "Undo “post” by hand"
    end = go(definition, deliver(definition, turn.frame, True, {"what_now": said})).outcome
    assert isinstance(end, Fail)
    assert end.error_class == error_class


def test_nothing_done_is_nothing_to_undo() -> None:
    assert go(read(act("bad", ", on_failure: reverse")), begin(), GONE).outcome == Fail("target_not_found", "gone")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (act("a", ", on_failure: undo"), "w.yaml:7:145: on_failure is a list of steps or the word reverse, not text"),
        (act("a", ", on_failure: []"), "on_failure is a list of steps or the word reverse"),
        (act("a", ", on_timeout: reverse"), "on_timeout"),
        (act("a", ", on_failure: [{id: f, kind: nothing}]"), "unknown kind of step 'nothing'"),
        (act("a", ", on_failure: [{id: a, kind: complete}]"), "the step id 'a' stands twice"),
        (act("a", ", on_success: [{id: s, kind: complete, result: '${run.error.message}'}]"), "run.error is there in a branch"),
        (act("a", ", on_failure: [{id: s, kind: complete, result: '${run.error.cause}'}]"), "run.error has no 'cause'"),
        (
            act("a", ", result: r, on_failure: [{id: s, kind: complete, result: '${steps.r}'}]"),
            "steps.r is not there before step 'a' has run",
        ),
        (
            act("a", ", result: r, on_failure: [{id: s, kind: assign, values: {x: 1}}]")
            + "- {id: e, kind: complete, result: '${steps.r}'}\n",
            "steps.r may not be there",
        ),
        (
            act("a", ", on_failure: [{id: s, kind: assign, values: {x: 1}}]") + "- {id: e, kind: complete, result: '${state.x}'}\n",
            "state.x may not be there: step 's', which sets it, is not on every way here",
        ),
        (
            act("a", ", on_failure: [{id: s, kind: complete}, {id: t, kind: complete}]"),
            "step 't' is never reached: the run always ends at step 's'",
        ),
        (
            act("a", ", on_failure: reverse").replace("servicenow, operation: update", "slack, operation: post"),
            "slack.post has no field 'urgency'",
        ),
    ],
)  # fmt: skip
def test_every_fault_of_a_branch_is_said_at_its_place(steps: str, said: str) -> None:
    assert said in faults(steps)


def test_a_branch_that_ends_the_run_leaves_what_follows_reachable() -> None:
    definition = read(act("a", f", on_failure: {FAIL.format('f')}") + "- {id: e, kind: complete}\n")
    assert go(definition, begin(), OK).outcome == Complete({})


def test_branches_nest_four_deep_and_no_deeper() -> None:
    def nested(n: int) -> str:
        more = f", on_failure: [{nested(n - 1)}]" if n else ""
        return act(f"n{n}", more).strip()[2:]

    assert len(read(f"- {nested(4)}\n").flat) == 5
    assert "branches stand at most 4 deep" in faults(f"- {nested(5)}\n")


def test_undoing_needs_the_effect_that_undoes() -> None:
    text = HEAD.replace("servicenow.update, ", "") + act("a", ", on_failure: reverse")
    with pytest.raises(AuthorError, match=r"undoing this needs the effect 'servicenow\.update'"):
        normalize(text.encode(), "w.yaml", CATALOG)
