"""Every kind of step of a definition on the real database: branches, repeats, lanes, waits, people and other workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.journal.events import ExecutionAwaiting, SignalReceived, TimerFired
from engine.kernel import Files
from governance.evidence.sequence import trust_text
from governance.stages.tick import Tick
from governance.store import approvals
from tests.flow.test_a_governed_run import verify
from tests.flow.test_tasks import move_deadline
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

HEAD = """
name: {name}
version: "1"
trigger: {{kind: manual}}
inputs: {{type: object}}
effects: [servicenow.update, servicenow.lookup]
steps:
{steps}
"""


def note(ident: str, text: str, more: str = "") -> str:
    return (
        f"{{id: {ident}, kind: action, connector: servicenow, operation: update, target: {INCIDENT}, risk: low, "
        f'fields: {{work_notes: "{text}"}}{more}}}'
    )


def begin(world: World, name: str, steps: str, value: dict[str, Any] | None = None) -> str:
    world.apply(HEAD.format(name=name, steps=steps))
    return world.start(name, value=value or {})


def turn(world: World) -> None:
    """Everything that can go on goes on, and every clock that has run out is heard."""
    for _ in range(30):
        if not world.drain() + Tick(world.parts.database).step():
            return


def ended(world: World, run: str) -> tuple[str, Any]:
    """How a run ended, and with what."""
    case = world.case(run)
    event = case.stored[-1].event
    found = Files(case.origin.salt_key, case.payloads).result(
        getattr(event, "result", "") or getattr(event, "error", "")
    )
    return case.state, found.value if found.ok else (found.error_class, found.message)


def test_a_branch_takes_the_first_way_that_holds(world: World) -> None:
    steps = f"""
  - id: which
    kind: branch
    arms:
      - when: ${{input.n > 10}}
        steps: [{note("big", "big")}]
      - when: ${{input.n > 5}}
        steps: [{note("middle", "middle")}, {{id: m, kind: transform, value: "${{input.n * 2}}", result: twice}}]
    otherwise: [{{id: none, kind: complete, result: none}}]
  - {{id: end, kind: complete, result: some}}
"""
    assert ended_with(world, begin(world, "ways", steps, {"n": 7})) == ("succeeded", "some")
    assert world.writes("work_notes") == ["middle"]
    assert ended_with(world, world.start("ways", value={"n": 1})) == ("succeeded", "none")
    assert world.writes("work_notes") == ["middle"]


def ended_with(world: World, run: str) -> tuple[str, Any]:
    turn(world)
    return ended(world, run)


def test_a_repeat_waits_inside_and_finds_its_place_again(world: World) -> None:
    steps = f"""
  - {{id: none, kind: assign, values: {{said: []}}}}
  - id: each
    kind: repeat
    over: ${{input.words}}
    as: word
    steps:
      - id: inner
        kind: repeat
        over: "${{[1, 2]}}"
        as: n
        steps:
          - {note("say", "${each.word} ${each.n} ${each.word_index}")}
          - {{id: keep, kind: assign, values: {{said: "${{state.said + [each.word + string(each.n)]}}"}}}}
  - {{id: end, kind: complete, result: "${{state.said}}"}}
"""
    run = begin(world, "loops", steps, {"words": ["a", "b"]})
    assert ended_with(world, run) == ("succeeded", ["a1", "a2", "b1", "b2"])
    assert world.writes("work_notes") == ["a 1 0", "a 2 0", "b 1 1", "b 2 1"]
    empty = world.start("loops", value={"words": []})
    assert ended_with(world, empty) == ("succeeded", [])


def test_a_repeat_until_something_holds_stops_at_its_most(world: World) -> None:
    steps = f"""
  - {{id: zero, kind: assign, values: {{n: 0}}}}
  - id: again
    kind: repeat
    until: ${{state.n >= input.least}}
    most: 3
    steps:
      - {note("say", "turn ${each.item_index}")}
      - {{id: more, kind: assign, values: {{n: "${{state.n + 1}}"}}}}
  - {{id: end, kind: complete, result: "${{state.n}}"}}
"""
    assert ended_with(world, begin(world, "until", steps, {"least": 2})) == ("succeeded", 2)
    state, why = ended_with(world, world.start("until", value={"least": 9}))
    assert state == "failed_terminal"
    assert why == (
        "expression_error",
        "step 'again': until does not hold after 3 turns, which is the most that the step allows",
    )


def test_lanes_go_on_at_once_and_a_lane_begins_behind_what_it_needs(world: World) -> None:
    steps = f"""
  - id: fan
    kind: parallel
    lanes:
      - {{id: left, steps: [{{id: hear, kind: wait, signal: left, result: word}}, {note("l", "left ${steps.word}")}]}}
      - {{id: right, steps: [{note("r", "right", ", result: seen")}, {{id: r2, kind: assign, values: {{side: right}}}}]}}
      - id: both
        needs: [left, right]
        steps: [{note("b", "both after ${state.side} and ${steps.word}")}]
  - {{id: end, kind: complete, result: "${{state.side}}"}}
"""
    run = begin(world, "lanes", steps)
    turn(world)
    assert world.case(run).state == "running"
    assert world.writes("work_notes") == ["right"], "one lane waits and the other does not"
    assert world.row("select waits_for from run where tenant = :tenant and run = :run", run=run) == {
        "waits_for": "left"
    }
    world.parts.signal.send(world.tenant, world.actor("rita"), run, "left", "hello")
    assert ended_with(world, run) == ("succeeded", "right")
    assert world.writes("work_notes") == ["right", "left hello", "both after right and hello"]
    kinds = [entry.event.kind for entry in world.case(run).stored if isinstance(entry.event, ExecutionAwaiting)]
    assert "Any" in kinds


def test_two_lanes_wait_for_people_at_the_same_time_and_one_no_ends_both(world: World) -> None:
    risky = ", risk: med"
    steps = f"""
  - id: fan
    kind: parallel
    lanes:
      - {{id: one, steps: [{note("a", "one").replace(", risk: low", risky)}]}}
      - {{id: two, steps: [{note("b", "two").replace(", risk: low", risky)}]}}
"""
    run = begin(world, "both", steps.replace("work_notes", "impact").replace('"one"', '"1"').replace('"two"', '"2"'))
    turn(world)
    with world.parts.database.unit(world.tenant, write=False) as unit:
        first, second = (approvals.load(unit, one) for one in approvals.open_of_run(unit, run))
    assert world.press(first, "ana", kind="reject", reason="no").ok
    turn(world)
    assert world.case(run).state == "failed_terminal"
    assert world.entries(run).count("approval.canceled") == 1
    assert not world.press(second, "ana").ok
    assert world.writes("impact") == []


def test_a_timer_ends_by_the_clock_and_a_moment_that_is_over_ends_at_once(world: World) -> None:
    steps = """
  - {id: nap, kind: wait, seconds: "${input.s}"}
  - {id: past, kind: wait, until: "2020-01-01T00:00:00Z"}
  - {id: end, kind: complete, result: awake}
"""
    run = begin(world, "naps", steps, {"s": 0})
    assert ended_with(world, run) == ("succeeded", "awake")
    assert sum(isinstance(entry.event, TimerFired) for entry in world.case(run).stored) == 2
    long = world.start("naps", value={"s": 86_400})
    turn(world)
    assert world.case(long).state == "running"
    assert world.row("select waits_until is not null as waits from run where tenant = :tenant and run = :run", run=long)


LISTEN = """
  - id: hear
    kind: wait
    signal: go
    deadline_s: 60
    result: word
    on_timeout: [{id: late, kind: fail, error_class: nobody_called, message: "${run.error.message}"}]
  - {id: end, kind: complete, result: "${steps.word}"}
"""


def lapse(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'signal'")


def test_a_signal_in_time_is_the_result_and_its_clock_stops(world: World) -> None:
    run = begin(world, "hears", LISTEN)
    turn(world)
    world.parts.signal.send(world.tenant, world.actor("rita"), run, "go", {"n": 1})
    assert ended_with(world, run) == ("succeeded", {"n": 1})
    assert world.row("select count(*) as n from due where tenant = :tenant and kind = 'signal'") == {"n": 0}
    assert sum(isinstance(entry.event, SignalReceived) for entry in world.case(run).stored) == 1


def test_a_signal_that_came_before_the_wait_is_not_lost(world: World) -> None:
    run = begin(world, "early", "\n  - {id: nap, kind: wait, signal: first}\n" + LISTEN.lstrip("\n"))
    turn(world)
    world.parts.signal.send(world.tenant, world.actor("rita"), run, "go", "early")
    turn(world)
    world.parts.signal.send(world.tenant, world.actor("rita"), run, "first", None)
    assert ended_with(world, run) == ("succeeded", "early")


def test_a_signal_that_does_not_come_takes_the_branch_and_a_late_one_changes_nothing(world: World) -> None:
    run = begin(world, "late", LISTEN)
    turn(world)
    lapse(world)
    Tick(world.parts.database).step()
    world.parts.signal.send(world.tenant, world.actor("rita"), run, "go", "late")
    lapse(world)
    assert ended_with(world, run) == ("failed_terminal", ("nobody_called", "no signal came in time"))


def test_a_task_asks_people_and_its_answer_is_the_result(world: World) -> None:
    steps = """
  - id: ask
    kind: task
    form:
      title: "What of ${input.number}?"
      groups: [oncall]
      fields: [{name: cause, label: The cause}, {name: again, kind: yes_no}]
    result: answer
  - {id: end, kind: complete, result: "${steps.answer}"}
"""
    run = begin(world, "asks", steps, {"number": "INC1"})
    turn(world)
    task = world.task(run)
    assert task.form.title == "What of INC1?"
    assert world.fill(task, "ana", {"cause": "a cable", "again": "no"}).ok
    assert ended_with(world, run) == ("succeeded", {"cause": "a cable", "again": False})


def test_a_task_that_nobody_answers_takes_its_timeout(world: World, database: Any) -> None:
    steps = """
  - id: ask
    kind: task
    form: {title: Anybody?, groups: [oncall], deadline_s: 60, fields: [{name: word}]}
    sign_off: [incident-managers]
    on_timeout: [{id: quiet, kind: complete, result: "${run.error.error_class}"}]
"""
    run = begin(world, "quiet", steps)
    turn(world)
    move_deadline(database, world, "task")
    assert ended_with(world, run) == ("succeeded", "expired")


def test_a_subworkflow_gives_its_result_and_a_failure_of_its_takes_the_branch(world: World) -> None:
    world.apply(HEAD.format(name="inner", steps='  - {id: end, kind: complete, result: "${input.n + 1}"}'))
    steps = """
  - {id: one, kind: subworkflow, workflow: inner, input: {n: 41}, result: got}
  - id: two
    kind: subworkflow
    workflow: nowhere
    on_failure: [{id: other, kind: complete, result: ["${steps.got}", "${run.error.error_class}"]}]
"""
    run = begin(world, "outer", steps)
    assert ended_with(world, run) == ("succeeded", [42, "unknown_workflow"])


def test_what_a_run_continues_with_goes_its_own_way_and_is_begun_once(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    world.apply(HEAD.format(name="next", steps="  - {id: w, kind: wait, signal: go}\n  - {id: e, kind: complete}"))
    steps = """
  - {id: ref, kind: business_reference, value: "case ${input.n}"}
  - {id: go-on, kind: continue_with, workflow: next, input: {from: "${run.business_reference}"}, result: went}
  - {id: end, kind: complete, result: "${steps.went.run}"}
"""
    run = begin(world, "first", steps, {"n": 7})
    state, other = ended_with(world, run)
    assert state == "succeeded"
    (row,) = world.rows("select run, parent, root, trigger_type, started_by from run where workflow = 'next'")
    assert row == {
        "run": other, "parent": "", "root": other, "trigger_type": "continued", "started_by": world.who["rita"],
    }  # fmt: skip
    assert world.case(other).state == "running", "the end of the first cancels nothing"
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_cancelling_a_run_with_lanes_withdraws_everything_it_asked(world: World) -> None:
    steps = """
  - id: fan
    kind: parallel
    lanes:
      - {id: a, steps: [{id: hear, kind: wait, signal: never, deadline_s: 600}]}
      - {id: b, steps: [{id: ask, kind: task, form: {title: Q, groups: [oncall], fields: [{name: x}]}}]}
      - {id: c, steps: [{id: nap, kind: wait, seconds: 600}]}
"""
    run = begin(world, "stops", steps)
    turn(world)
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    turn(world)
    assert world.case(run).state == "canceled"
    assert world.row("select count(*) as n from due where tenant = :tenant and kind <> 'refusals'") == {"n": 0}


def test_a_lost_snapshot_is_built_again_at_every_commit(world: World) -> None:
    """S001-8.1: the journal alone gives the frame, with every kind of wait under way at once."""
    steps = f"""
  - id: each
    kind: repeat
    over: "${{[1, 2]}}"
    steps:
      - id: fan
        kind: parallel
        lanes:
          - {{id: a, steps: [{{id: nap, kind: wait, seconds: 0}}, {note("x", "a ${each.item}")}]}}
          - {{id: b, steps: [{{id: hear, kind: wait, signal: go, result: got}}, {note("y", "b ${steps.got}")}]}}
"""
    run = begin(world, "loops-and-lanes", steps)
    for _ in range(12):
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update snapshot set events = 0 where tenant = :tenant")
        turn(world)
        if world.case(run).ended:
            break
        world.parts.signal.send(world.tenant, world.actor("rita"), run, "go", "word")
    assert world.case(run).state == "succeeded", world.steps(run)
    assert sorted(world.writes("work_notes")) == ["a 1", "a 2", "b word", "b word"]
