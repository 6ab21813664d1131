"""From one durable wait to the next: the same turns whether or not the run was stored and loaded in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import decode
from engine.errors import BrokenJournal, CallerError, StaleWake
from engine.kernel import opened, payload
from engine.program.definition import Definition
from engine.program.formula import Literal, parse
from engine.program.inputs import check_input
from engine.program.interpreter import begin, deliver, run_to_wait
from engine.program.kinds import ActionStep, AssignStep, CompleteStep, FailStep, Step
from engine.program.normalize import normalize
from engine.program.orders import Complete, Context, Fail, Outcome, Propose
from engine.program.snapshot import Frame, frame_from
from tests.engine.program.specs import CATALOG, INCIDENT

SAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/incident-triage.yaml"
INPUT = {
    "number": "INC0010001",
    "sys_id": "a" * 32,
    "short_description": "no printer",
    "priority": "2",
    "category": "network",
}
TEXT = "text, a whole number, true or false can stand here;"
KEY = "use 1-512 printable ASCII characters without spaces"
DEEP = {"a": {"b": {"c": "${input.eight}"}}}
RESULT = {name: f"the {name}" for name in INCIDENT}


def context(given: dict[str, Any]) -> Context:
    return Context(
        "acme", "ops", "f" * 32, "triage", "1", "2026-01-01T00:00:00.000000Z", {"type": "manual", "ref": "r1"}, given
    )


def program(*steps: Step) -> Definition:
    return Definition("triage", "1", "t", "", "manual", (), {"type": "object"}, (), (), 0, "high", steps)


def assign(ident: str, **values: Any) -> AssignStep:
    return AssignStep(ident, tuple((name, parse(values[name])) for name in sorted(values)))


def action(ident: str, result: str = "", **changes: Any) -> ActionStep:
    parts: dict[str, Any] = {
        "id": ident,
        "connector": "servicenow",
        "operation": "update",
        "target_type": Literal("incident"),
        "target_id": parse("${input.id}"),
        "fields": (),
        "risk": "low",
        "amount": None,
        "currency": "",
        "result": result,
        "key": None,
        "deadline_s": 60,
        "max_attempts": 4,
    }
    return ActionStep(**{**parts, **changes})


def complete(when: str = "", **result: Any) -> CompleteStep:
    return CompleteStep("done", when, parse(result))


def fail(when: str = "") -> FailStep:
    return FailStep("stop", when, "too_many", parse("there are ${input.n}"))


def stored(frame: Frame) -> Frame:
    """Out to bytes and back, as after a restart."""
    again = frame_from(decode(frame.body))
    assert again.body == frame.body
    return again


def test_the_sample_runs_from_end_to_end() -> None:
    """A read, three writes of rising risk, a message, a result."""
    definition = normalize(SAMPLE.read_bytes(), SAMPLE.name, CATALOG)
    assert check_input(definition, INPUT) == []
    frame, proposals = begin(), []
    while isinstance(outcome := (turn := run_to_wait(definition, frame, context(INPUT))).outcome, Propose):
        proposals.append(outcome)
        frame = deliver(definition, stored(turn.frame), True, RESULT)
    assert [(each.child, each.connector, each.operation, each.risk) for each in proposals] == [
        (0, "servicenow", "lookup", "low"),
        (1, "servicenow", "update", "low"),
        (2, "servicenow", "update", "med"),
        (3, "servicenow", "close", "high"),
        (4, "slack", "post", "low"),
    ]
    assert proposals[1].fields == {
        "assignment_group": "Network Operations",
        "work_notes": "Routed to Network Operations by triage 1.",
    }
    assert proposals[2].fields == {"impact": "1", "state": "2", "urgency": "1"}
    assert (
        proposals[3].fields["comments"].startswith("Your incident the number has been resolved by Network Operations.")
    )
    assert proposals[4].target == {"type": "channel", "id": "C0INCIDENTS"}
    assert outcome == Complete(
        {"group": "Network Operations", "impact_before": "the impact", "number": "INC0010001", "urgent": True}
    )


def test_the_end_of_the_steps_is_an_empty_result() -> None:
    """Nobody has to write `complete`."""
    turn = run_to_wait(program(assign("a", x=1)), begin(), context({}))
    assert turn.outcome == Complete({})
    assert turn.frame.state == {"x": 1}


def test_values_of_one_step_see_the_state_before_it() -> None:
    """So the order in which an author writes them means nothing."""
    definition = program(assign("a", x=1, y=2), assign("b", x="${state.y}", y="${state.x}"))
    assert run_to_wait(definition, begin(), context({})).frame.state == {"x": 2, "y": 1}


def test_conditions_choose_the_end() -> None:
    """The first end whose condition holds; ints stay exact."""
    definition = program(fail("input.n > 3"), complete("input.n == 3", three=True), complete(n="${input.n}"))
    outcomes = [run_to_wait(definition, begin(), context({"n": n})).outcome for n in (4, 3, 1 - 2**53)]
    assert outcomes == [Fail("too_many", "there are 4"), Complete({"three": True}), Complete({"n": 1 - 2**53})]


def test_a_failed_operation_ends_the_run_at_its_next_turn() -> None:
    """There is no failure branch yet, so the class and the message of the failure are those of the run."""
    definition = program(action("a", "r"), complete())
    waiting = run_to_wait(definition, begin(), context({"id": "X1"})).frame
    frame = stored(deliver(definition, waiting, False, None, "policy_denied", "the rule says no"))
    assert frame.waiting is None
    assert run_to_wait(definition, frame, context({"id": "X1"})).outcome == Fail("policy_denied", "the rule says no")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (assign("a", x="${input.missing}"), "step 'a': x: ${input.missing}: there is no \"missing\""),
        (assign("a", x="n: ${input.none}"), f"step 'a': x: {TEXT} this is null"),
        (action("a", target_id=parse("${input.spaced}")), "step 'a': target.id: 'a b' is not an id (use 1-128 of A-Z a-z 0-9 . _ : / @ -)"),
        (action("a", target_id=parse("${input.none}")), f"step 'a': target: {TEXT} this is null"),
        (action("a", fields=(("note", parse("${input.l}")),)), f"step 'a': fields.note: {TEXT} this is a list"),
        (action("a", amount=parse("${input.spaced}")), "step 'a': amount: a whole number of the smallest unit, 0 or more, can stand here"),
        (action("a", key=parse("${input.spaced}")), f"step 'a': key: 'a b' is not a key; {KEY}"),
        (complete("input.spaced"), "step 'done': when: a condition is true or false; this is string"),
        (complete(x=DEEP), "step 'done': result: nested deeper than 10"),
        (assign("a", x=DEEP), "step 'a': nested deeper than 10"),
        (FailStep("f", "", "x", parse("${input.missing}")), "step 'f': message: ${input.missing}: there is no \"missing\""),
    ],
)  # fmt: skip
def test_an_expression_that_gives_no_value_fails_the_run_and_names_its_step(step: Step, message: str) -> None:
    """And proposes nothing."""
    given = {"id": "X1", "none": None, "eight": [[[[[[[[]]]]]]]], "spaced": "a b", "l": [1]}
    turn = run_to_wait(program(step), begin(), context(given))
    assert turn.outcome == Fail("expression_error", message)
    assert turn.frame.waiting is None


def test_a_proposal_is_complete() -> None:
    """Every expression is evaluated; numbers and truth values are written as text; amounts stay numbers."""
    step = action(
        "pay",
        "paid",
        fields=(
            ("count", parse("${input.n}")),
            ("note", parse("for ${input.id}")),
            ("urgent", parse("${input.n > 1}")),
        ),
        amount=parse("${input.n * 100}"),
        currency="EUR",
        key=parse("pay:${input.id}"),
        max_attempts=2,
    )
    assert run_to_wait(program(step), begin(), context({"id": "X1", "n": 7})).outcome == Propose(
        child=0,
        step_id="pay",
        step_index=0,
        connector="servicenow",
        operation="update",
        target={"type": "incident", "id": "X1"},
        fields={"count": "7", "note": "for X1", "urgent": "true"},
        amount_minor=700,
        currency="EUR",
        risk="low",
        key="pay:X1",
        result="paid",
        deadline_s=60,
        max_attempts=2,
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "values are text, whole numbers, true, false, null, lists and maps; this is a fraction; pass it as text"),
        ({"a": "x\x00y"}, "text holds the character NUL"),
        ({"a": 2**60}, "an integer is below 2^53 in size; pass larger numbers as text"),
    ],
)
def test_a_result_that_cannot_be_read_fails_the_run(value: Any, why: str) -> None:
    """The effect has happened and is recorded; the program does not go on with a value it would misread."""
    definition = program(action("a", "r"), complete(x="${steps.r}"))
    waiting = run_to_wait(definition, begin(), context({"id": "X1"})).frame
    frame = deliver(definition, waiting, True, value)
    outcome = run_to_wait(definition, frame, context({"id": "X1"})).outcome
    assert outcome == Fail("bad_result", f"step 'a': the result cannot be used: {why}")


def test_the_deepest_value_fits_into_every_record() -> None:
    """Frames and payload files: a run never stops at a value that expressions were allowed to make."""
    deepest: Any = "x"
    for _ in range(10):
        deepest = {"Key": deepest}
    definition = program(assign("a", x="${input}"), action("b", "r"), complete(**deepest))
    assert check_input(definition, deepest) == []
    assert check_input(definition, {"Key": deepest}) == ["input: nested deeper than 10"]
    waiting = run_to_wait(
        program(assign("a", x="${input}"), action("b", "r", target_id=Literal("t"))), begin(), context(deepest)
    )
    frame = deliver(definition, stored(waiting.frame), True, deepest)
    last = run_to_wait(definition, stored(frame), context(deepest)).outcome
    assert last == Complete(deepest)
    assert opened(payload(b"key", "result", deepest).body) == deepest


def test_results_nobody_reads_are_not_kept() -> None:
    """An action without a result key."""
    definition = program(action("a"), complete())
    waiting = run_to_wait(definition, begin(), context({"id": "X1"})).frame
    assert deliver(definition, waiting, True, 1.5).steps == {}


def test_too_much_state_is_refused() -> None:
    """The limit is named; the step is named."""
    definition = program(assign("a", x="${input.t + input.t}"), assign("b", y="${state.x + state.x}"), complete())
    outcome = run_to_wait(definition, begin(), context({"t": "x" * 60_000})).outcome
    assert isinstance(outcome, Fail)
    assert outcome.message == "step 'done': input, state and results together are 420298 bytes; at most 262144"


def test_wakes_that_nobody_waits_for_are_stale() -> None:
    """A second delivery, and a turn before the first, change nothing."""
    definition = program(action("a"), complete())
    waiting = run_to_wait(definition, begin(), context({"id": "X1"})).frame
    with pytest.raises(StaleWake, match="the run waits for its operation 0"):
        run_to_wait(definition, waiting, context({"id": "X1"}))
    with pytest.raises(StaleWake, match="the run waits for no operation"):
        deliver(definition, deliver(definition, waiting, True), True)


def test_a_frame_of_another_program_is_broken() -> None:
    """Never guessed around."""
    definition = program(assign("a", x=1))
    with pytest.raises(BrokenJournal):
        run_to_wait(definition, Frame(step=5), context({}))
    with pytest.raises(BrokenJournal):
        deliver(definition, Frame(step=0, waiting=0), True)


@pytest.mark.parametrize(
    "change",
    [{"step": True}, {"step": -1}, {"state": []}, {"waiting": "0"}, {"error": None}, {"more": 1}, {"next_child": -1}],
)
def test_what_is_no_frame_is_refused(change: dict[str, Any]) -> None:
    """Exact keys, exact types."""
    with pytest.raises(CallerError):
        frame_from({**begin().to_value(), **change})


# --- the same turns with and without restarts ---------------------------------------------------------------------

_sources = st.sampled_from(
    [
        "${input.id}",
        "${input.n + 1}",
        "text ${input.n}",
        "${input}",
        "${items(input).map(i, i.key)}",
        7,
        None,
        {"a": ["${input.n}"]},
        "${state.x}",
        "${steps.r}",
        "${size(state)}",
        "${steps}",
        "${{'b': state, 'a': 1}}",
    ]
)
_steps = st.one_of(
    st.builds(assign, st.just("a"), x=_sources, y=_sources),
    st.builds(
        action, st.just("b"), st.sampled_from(["", "r", "q"]), fields=_sources.map(lambda each: (("f", parse(each)),))
    ),
    st.builds(complete, st.sampled_from(["", "input.n > 2", "state.x == 7"]), x=_sources),
    st.builds(fail, st.sampled_from(["", "input.n > 4"])),
)
_results = st.sampled_from([None, 1, "text", {"b": 1, "a": [True, {"c": "d"}]}, 1.5])


def _walk(
    definition: Definition, given: dict[str, Any], results: list[tuple[bool, Any]], restart: int
) -> tuple[list[Outcome], bytes]:
    """All outcomes; `restart` has a bit for every point at which the frame goes through storage."""
    frame, outcomes, point = begin(), [], 0
    queue = list(results)

    def between(each: Frame) -> Frame:
        nonlocal point
        point += 1
        return stored(each) if restart >> (point - 1) & 1 else each

    while True:
        turn = run_to_wait(definition, between(frame), context(given))
        outcomes.append(turn.outcome)
        if not isinstance(turn.outcome, Propose):
            return outcomes, turn.frame.body
        ok, value = queue.pop(0) if queue else (True, None)
        frame = deliver(definition, between(turn.frame), ok, value, "transport", "it broke")


@given(
    st.lists(_steps, max_size=6).map(lambda steps: program(*steps)),
    st.fixed_dictionaries({"id": st.sampled_from(["X1", "b c"]), "n": st.integers(0, 5)}),
    st.lists(st.tuples(st.sampled_from([True, True, True, False]), _results), max_size=6),
    st.integers(0, 2**14 - 1),
)
def test_restarts_change_nothing(
    definition: Definition, given: dict[str, Any], results: list[tuple[bool, Any]], restart: int
) -> None:
    """With and without storage at any subset of the points, and twice over: equal outcomes, byte-identical frames."""
    plain = _walk(definition, given, results, 0)
    assert _walk(definition, given, results, restart) == plain
    assert _walk(definition, given, results, 2**14 - 1) == plain
    last = plain[0][-1]
    assert isinstance(last, Complete | Fail)
    if isinstance(last, Complete):
        payload(b"key", "result", last.value)
    for outcome in plain[0]:
        if isinstance(outcome, Propose):
            assert all(type(text) is str for text in [*outcome.fields.values(), *outcome.target.values(), outcome.key])
