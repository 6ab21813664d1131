"""C-44: what an operator can mend stops no run for good: they are told what to do, say go on, and it is judged again."""

from __future__ import annotations

import pytest

from governance.local.postgres import Database
from governance.stages.tick import Tick
from tests.flow.test_tasks import move_deadline
from tests.governance.stages.kit import attempts, begin, one_step, receipts
from tests.kit.world import World

POST = """
name: {name}
version: "1"
title: Post
description: Post.
trigger: {{kind: manual}}
inputs: {{type: object, additionalProperties: false, properties: {{}}}}
connectors: [slack]
effects: [slack.post]
risk_ceiling: low
steps:
  - {{id: only, kind: action, connector: slack, operation: post, target: C0NOWHERE, fields: {{text: hello}}}}
"""


def spoil(world: World) -> None:
    sn = world.servicenow
    world.parts.admit.connection(world.tenant, "servicenow", "dev1", sn.base_url, sn.user, "wrong")
    world.parts.reach.forget()


def mend(world: World) -> None:
    sn = world.servicenow
    world.parts.admit.connection(world.tenant, "servicenow", "dev1", sn.base_url, sn.user, sn.password)
    world.parts.reach.forget()


def stuck(world: World, name: str) -> str:
    spoil(world)
    run = begin(world, one_step(name))
    world.drain()
    return run


def test_an_operator_mends_the_credentials_and_the_run_goes_on(world: World) -> None:
    run = stuck(world, "spoiled")
    case = world.case(run)
    assert (case.shown, case.promises["0"].state) == ("waiting_task", "waiting_task")
    task = world.task(run)
    assert (task.is_operators, task.error_class) == (True, "not_authorized")
    assert "twokeys tenant connect" in task.form.text
    world.post()
    assert any("waits for operators" in text for text in world.slack.texts("chat.postMessage"))
    assert world.drain() == 0
    mend(world)
    told = world.fill(task, "olga", {"what_now": "Go on"})  # of no group, but an operator
    assert told.ok, told
    world.until(run, "succeeded")
    assert world.writes("urgency") == ["1"]
    kinds = world.entries(run)
    assert kinds.index("operator.asked") < kinds.index("operator.answered") < kinds.index("effect.intended")


def test_what_is_not_mended_is_asked_again_as_often_as_it_takes(world: World) -> None:
    run = stuck(world, "again")
    seen = set()
    for _ in range(3):
        task = world.task(run)
        seen.add(task.task)
        assert world.fill(task, "bo", {"what_now": "Go on"}).ok
        world.drain()
    assert len(seen) == 3
    mend(world)
    assert world.fill(world.task(run), "bo", {"what_now": "Go on"}).ok
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "ok")], "looking for nothing uses no attempt"


def test_an_operator_may_give_up(world: World) -> None:
    run = stuck(world, "given-up")
    assert world.fill(world.task(run), "bo", {"what_now": "Give up"}).ok
    case = world.until(run, "failed_terminal")
    assert case.promises["0"].last_error.startswith("not_authorized: ")
    assert world.writes("urgency") == []


@pytest.mark.parametrize(("name", "code"), [("low", "not_answerer"), ("aud", "auditor"), ("robot", "not_human")])
def test_only_operators_say_that_it_is_mended(world: World, name: str, code: str) -> None:
    run = stuck(world, "operators-only")
    told = world.fill(world.task(run), name, {"what_now": "Go on"})
    assert (told.ok, told.code) == (False, code)
    assert world.case(run).promises["0"].state == "waiting_task"


def test_nobody_mends_it_in_time(world: World, database: Database) -> None:
    run = stuck(world, "late")
    move_deadline(database, world, "task")
    Tick(world.parts.database).step()
    case = world.until(run, "failed_terminal")
    assert case.promises["0"].last_error.startswith("not_authorized: nobody mended it in time")
    assert "operator.expired" in world.entries(run)


def test_a_cancelled_run_asks_for_nothing(world: World) -> None:
    run = stuck(world, "cancelled")
    task = world.task(run)
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "no")
    assert world.case(run).state == "canceled"
    assert world.entries(run).count("operator.canceled") == 1
    late = world.fill(task, "bo", {"what_now": "Go on"})
    assert (late.ok, late.code) == (False, "decided")


def test_an_attempt_that_was_turned_away_is_receipted_and_made_again_when_it_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["not_in_channel", ""])
    post = world.slack._take

    def take(method: str, arguments: dict[str, object]) -> tuple[int, dict[str, object]]:
        if arguments.get("channel") == "C0NOWHERE" and (error := next(answers)):
            return 200, {"ok": False, "error": error}
        return post(method, arguments)

    monkeypatch.setattr(world.slack, "_take", take)
    run = begin(world, POST.format(name="invite"))
    world.drain()
    task = world.task(run)
    assert "invite the bot" in task.form.text
    assert receipts(world, run) == [(1, 1, "rejected")]
    assert world.fill(task, "bo", {"what_now": "Go on"}).ok
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "rejected"), (2, 1, "ok")]
    assert attempts(world, run) == [("Started", 1), ("Retrying", 1), ("Started", 2), ("Completed", 2)]
