"""What an author says should happen when an action fails or time is up: a branch, or what was done before is undone, newest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governance.evidence.sequence import trust_text
from governance.store import doubts
from tests.flow.test_a_governed_run import verify
from tests.governance.stages.kit import begin
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

HEAD = """
name: {name}
version: "1"
title: Branches
description: Branches.
trigger: {{kind: manual}}
inputs: {{type: object, additionalProperties: false, properties: {{}}}}
connectors: [servicenow, slack]
effects: [servicenow.update, servicenow.lookup, servicenow.close, slack.post]
risk_ceiling: high
steps:
"""
SET = """
  - {{id: {id}, kind: action, connector: servicenow, operation: update, target: {target}, risk: low,
     fields: {{{field}: "{value}"}}{more}}}
"""


def step(ident: str, field: str, value: str, more: str = "", *, target: str = INCIDENT) -> str:
    return SET.format(id=ident, field=field, value=value, more=more, target=f'"{target}"')


def workflow(name: str, *steps: str) -> str:
    return HEAD.format(name=name) + "".join(steps)


GONE = "0" * 32
CAUGHT = (
    ", on_failure: [{id: note, kind: action, connector: servicenow, operation: update, risk: low, "
    f'target: "{INCIDENT}", fields: {{work_notes: "${{run.error.step}} met ${{run.error.error_class}}"}}}}]'
)


def test_a_failure_branch_deals_with_it_and_the_run_goes_on(world: World) -> None:
    run = begin(
        world, workflow("caught", step("first", "urgency", "1", CAUGHT, target=GONE), step("last", "impact", "1"))
    )
    case = world.until(run, "succeeded", "failed_terminal")
    assert case.state == "succeeded", world.steps(run)
    assert world.writes("work_notes") == ["first met target_not_found"]
    assert world.writes("impact") == ["1"]


def test_a_success_branch_runs_only_after_success(world: World) -> None:
    branch = ", on_success: [{id: well, kind: complete, result: {how: well}}]"
    run = begin(world, workflow("well", step("first", "urgency", "1", branch), step("last", "impact", "1")))
    world.until(run, "succeeded")
    assert list(world.steps(run)) == ["first"]


def test_time_that_is_up_takes_the_timeout_branch_and_other_failures_do_not(world: World) -> None:
    branch = (
        ', deadline_s: 60, on_timeout: [{id: late, kind: fail, error_class: too_late, message: "${run.error.message}"}],'
        ' on_failure: [{id: other, kind: fail, error_class: other, message: "${run.error.message}"}]'
    )
    world.apply(workflow("late", step("first", "urgency", "1", branch)))
    run = world.start("late", value={})
    world.servicenow.plan("too_many_requests", method="PATCH", times=9, seconds=600)
    world.until(run, "failed_terminal")
    assert "deadline: rate_limited: asked to slow down" in world.steps(run)["first"]
    assert result(world, run) == "too_late"
    other = begin(world, workflow("other", step("first", "urgency", "1", branch, target=GONE)))
    world.until(other, "failed_terminal")
    assert result(world, other) == "other"


def result(world: World, run: str) -> str:
    """The class that the run failed with."""
    frame = world.case(run).stored[-1].event
    return str(frame.error).partition('"class":"')[2].partition('"')[0]  # type: ignore[union-attr]


REVERSE = ", on_failure: reverse"


def test_what_was_done_is_undone_newest_first_each_as_a_governed_action(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    before = world.servicenow.record()
    steps = (
        step("one", "urgency", "1"), step("two", "impact", "1"), step("two-again", "impact", "3"),
        step("bad", "state", "2", REVERSE, target=GONE),
    )  # fmt: skip
    run = begin(world, workflow("undo", *steps))
    case = world.until(run, "failed_terminal")
    assert list(world.steps(run)) == ["one", "two", "two-again", "bad", "undo-two-again", "undo-two", "undo-one"]
    assert {world.steps(run)[f"undo-{name}"] for name in ("one", "two", "two-again")} == {"succeeded"}
    assert world.writes("impact") == ["1", "3", "1", before["impact"]]
    assert world.writes("urgency") == ["1", before["urgency"]]
    assert world.entries(run).count("reversal.proposed") == 3
    verdicts = world.rows("select distinct promise from verdict where tenant = :tenant and run = :run", run=run)
    assert {row["promise"] for row in verdicts} >= {"4", "5", "6"}, "each is judged"
    assert result(world, run) == "target_not_found"
    assert case.promises["4"].attempt == 1
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failed_reversal_stops_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = world.parts._judge
    recorded = judge._recorded

    def moved(case: Any, promise: str) -> Any:
        world.servicenow.change(INCIDENT, {"impact": "2"})
        return recorded(case, promise)

    monkeypatch.setattr(judge, "_recorded", moved)
    steps = (step("one", "urgency", "1"), step("two", "impact", "1"), step("bad", "state", "2", REVERSE, target=GONE))
    run = begin(world, workflow("stops", *steps))
    world.until(run, "failed_terminal")
    assert result(world, run) == "reversal_failed"
    assert world.steps(run)["undo-two"].startswith(
        "failed_terminal reversal_conflict: impact was changed by somebody else"
    )
    assert "undo-one" not in world.steps(run)
    assert world.writes("urgency") == ["1"], "what stands behind it is not undone"


def test_what_no_connector_can_undo_is_asked_of_a_person(world: World) -> None:
    post = "\n  - {id: tell, kind: action, connector: slack, operation: post, target: C0DESK, fields: {text: hello}}\n"
    run = begin(
        world, workflow("by-hand", step("one", "urgency", "1"), post, step("bad", "state", "2", REVERSE, target=GONE))
    )
    world.until(run, "waiting_task", "failed_terminal")
    task = world.task(run)
    assert task.form.title == "Undo “tell” by hand"
    assert world.fill(task, "low", {"what_now": "It is undone"}).code == "not_answerer"
    assert world.fill(task, "olga", {"what_now": "It is undone"}).ok
    world.until(run, "failed_terminal")
    assert world.steps(run)["undo-one"] == "succeeded"
    assert result(world, run) == "target_not_found"


def test_a_person_who_cannot_undo_it_stops_the_reversal(world: World) -> None:
    post = "\n  - {id: tell, kind: action, connector: slack, operation: post, target: C0DESK, fields: {text: hello}}\n"
    run = begin(
        world, workflow("cannot", step("one", "urgency", "1"), post, step("bad", "state", "2", REVERSE, target=GONE))
    )
    world.until(run, "waiting_task", "failed_terminal")
    assert world.fill(world.task(run), "olga", {"what_now": "It cannot be undone"}).ok
    world.until(run, "failed_terminal")
    assert result(world, run) == "reversal_failed"
    assert "undo-one" not in world.steps(run)


def test_after_a_cancel_nothing_is_undone(world: World) -> None:
    """Design 14.35: undo after a cancel is a new run."""
    run = begin(world, workflow("no-undo", step("one", "urgency", "1"), step("bad", "state", "2", REVERSE)))
    world.servicenow.plan("drop_connection", method="PATCH", times=2)
    world.drain()
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = doubts.of_run(unit, run)
    assert found
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    world.parts.resolve.resolve(
        world.tenant, world.actor("bo"), run, found[0].promise, "did_not", "no request in its log"
    )
    assert world.case(run).state == "canceled"
    assert "reversal.proposed" not in world.entries(run)
