"""Tasks: people fill in a form, others sign it where the author says so, and the workflow goes on with what they said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from governance.evidence.sequence import trust_text
from governance.stages.tick import Tick
from governance.store import tasks
from tests.flow.test_a_governed_run import verify
from tests.flow.test_workflows_in_python import check_journal, due, publish, result
from tests.kit.world import World, settle

TASK = """async def ask_people(ctx, input):
    form = {
        "title": f"What happened to {input['number']}?",
        "text": "Write what you know.",
        "groups": ["oncall"],
        "deadline_s": 3600,
        "fields": [
            {"name": "cause", "label": "Cause", "max_chars": 40},
            {"name": "count", "kind": "integer", "required": False},
            {"name": "again", "kind": "yes_no"},
        ],
    }
    form.update(input.get("form", {}))
    try:
        return {"said": await ctx.task(form, sign_off=input.get("sign_off"))}
    except InvokeFailed as error:
        return {"failed": error.error_class, "why": error.message}
"""
GOOD = {"cause": "the qrx-77 disk", "count": "3", "again": "no"}
SAID = {"cause": "the qrx-77 disk", "count": 3, "again": False}


def begin(world: World, **given: Any) -> str:
    """A run whose task waits for people, unless its form is refused."""
    publish(world, TASK)
    run = world.start("ask-people", value={"number": "INC0010001", **given})
    world.drain()
    return run


def row(world: World, run: str) -> dict[str, Any]:
    found = world.row(
        "select status, answered_by, via, decided_at from task where tenant = :tenant and run = :run", run=run
    )
    assert found is not None
    return found


def test_people_are_asked_and_the_first_answer_is_the_result(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    run = begin(world)
    assert world.case(run).state == "waiting_task"
    assert world.steps(run) == {"task-0": "waiting_task"}
    found = world.task(run)
    assert (found.form.title, found.requested_by) == ("What happened to INC0010001?", "rita")
    (clock,) = due(world, "task")
    assert (clock["ref"], clock["at"]) == (found.task, found.expires_at)
    told = world.fill(found, "ana", GOOD)
    assert (told.code, told.ok) == ("answered", True)
    assert due(world, "task") == []
    assert (row(world, run)["status"], row(world, run)["answered_by"]) == ("answered", world.who["ana"])
    world.until(run, "succeeded")
    assert result(world, run).value == {"said": SAID}
    assert world.entries(run)[2:] == ["task.asked", "task.answered", "step.completed", "run.closed"]
    check_journal(world, run)
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    assert b"the qrx-77 disk" not in body, "evidence carries commitments, not what people wrote"
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_later_answer_is_told_who_was_first_and_when(world: World) -> None:
    run = begin(world)
    found = world.task(run)
    assert world.fill(found, "ana", GOOD, dedupe="d1").ok
    again = world.fill(found, "ana", GOOD, dedupe="d1")
    assert again.ok, "the same click again gets the same answer"
    late = world.fill(found, "cleo", {**GOOD, "cause": "a cable"})
    assert (late.code, late.ok) == ("decided", False)
    assert late.sentence.startswith("This was answered by ana at 20")
    assert world.fill(found, "ana", GOOD).sentence.startswith("This was answered by you at 20")
    world.until(run, "succeeded")
    assert result(world, run).value == {"said": SAID}


def test_of_two_answers_at_once_exactly_one_counts(world: World) -> None:
    run = begin(world)
    found = world.task(run)
    with ThreadPoolExecutor(4) as pool:
        told = list(
            pool.map(lambda name: world.fill(found, name, {**GOOD, "cause": name}), ["ana", "cleo", "rita", "ana"])
        )
    (first,) = [one for one in told if one.ok]
    assert first.code == "answered"
    assert {one.code for one in told if not one.ok} <= {"decided", "try_again"}
    world.until(run, "succeeded")
    assert world.entries(run).count("task.answered") == 1
    who = {person: name for name, person in world.who.items()}[row(world, run)["answered_by"]]
    assert result(world, run).value["said"]["cause"] == who


@pytest.mark.parametrize(
    ("name", "code"),
    [("bo", "not_answerer"), ("olga", "not_answerer"), ("dan", "inactive"), ("aud", "auditor"), ("robot", "not_human")],
)
def test_who_may_not_answer_is_refused_and_nothing_changes(world: World, name: str, code: str) -> None:
    run = begin(world)
    found = world.task(run)
    world.parts.admit.join(world.tenant, None, "incident-managers", world.who["robot"])
    told = world.fill(found, name, GOOD)
    assert (told.code, told.ok) == (code, False)
    assert world.task(run).is_open
    assert "task.answered" not in world.entries(run)


def test_a_member_of_level_3_answers_and_somebody_unknown_does_not(world: World) -> None:
    run = begin(world)
    found = world.task(run)
    assert world.fill(found, "nobody", GOOD).code == "unknown_person"
    world.parts.admit.deactivate(world.tenant, None, world.who["ana"])
    assert world.fill(found, "ana", GOOD).code == "inactive"
    assert world.fill(found, "low", GOOD).ok


def test_an_answer_that_does_not_fit_is_told_by_field_and_may_be_sent_again(world: World) -> None:
    run = begin(world)
    found = world.task(run)
    told = world.fill(found, "ana", {"cause": "x" * 41, "count": "many", "colour": "red", "again": None}, dedupe="d1")
    assert (told.code, told.ok) == ("invalid_answer", False)
    assert sorted(told.faults) == ["again", "cause", "colour", "count"]
    assert world.fill(found, "ana", GOOD, digest16="0" * 16).code == "stale_card"
    assert world.fill(found, "ana", GOOD, dedupe="d1").ok


def test_another_tenants_task_is_not_there(world: World, parts: Any, slack_sink: Any, servicenow: Any) -> None:
    run = begin(world)
    found = world.task(run)
    other = settle(parts, slack_sink, servicenow)
    told = other.fill(found, "ana", GOOD)
    assert (told.code, told.ok) == ("unknown_task", False)
    with other.parts.database.unit(other.tenant, write=False) as unit:
        assert tasks.waiting(unit, ["oncall"], None, 10) == ()
    assert world.task(run).is_open


@pytest.mark.parametrize(
    ("form", "sign_off", "why"),
    [
        ({"title": ""}, None, "title: is a text of 1 to 150 characters"),
        ({"colour": "red"}, None, "form.colour: is not known"),
        ({"fields": [{"name": "a", "kind": "choice"}]}, None, "fields[0].options: is a list of 1 to 50"),
        ({"groups": ["nobody-here"]}, None, "groups: there is no group 'nobody-here' here"),
        ({}, ["nobody-here"], "sign_off.groups: there is no group"),
        ({}, "oncall", "sign_off: is a map"),
    ],
)
def test_a_form_that_nobody_could_be_shown_fails_its_operation(
    world: World, form: Any, sign_off: Any, why: str
) -> None:
    run = begin(world, form=form, sign_off=sign_off)
    world.until(run, "succeeded")
    said = result(world, run).value
    assert said["failed"] == "invalid_form"
    assert said["why"].startswith(why)
    assert world.rows("select task from task where tenant = :tenant and run = :run", run=run) == []
    check_journal(world, run)


def test_a_deadline_that_has_passed_fails_the_task(world: World, database: Any) -> None:
    run = begin(world)
    found = world.task(run)
    tick = Tick(world.parts.database)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'task'")
    tick.step()
    assert world.task(run).is_open, "a clock that rings too early is not believed"
    assert due(world, "task")[0]["at"] == found.expires_at, "and it is put right"
    move_deadline(database, world, "task")
    late = world.fill(found, "ana", GOOD)
    assert late.code == "expired", "nobody answers after the deadline, even before its clock was heard"
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'task'")
    tick.step()
    assert row(world, run)["status"] == "expired"
    world.until(run, "succeeded")
    assert result(world, run).value == {"failed": "expired", "why": "nobody answered in time"}
    assert "task.expired" in world.entries(run)
    check_journal(world, run)


def move_deadline(database: Any, world: World, table: str) -> None:
    """Past every grant, as the owner of the schema: the deadline was a second ago, and the clock rings."""
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("select set_config('tk.tenant', %s, true)", (world.tenant,))
        connection.execute(f"update {table} set expires_at = clock_timestamp() - interval '1 second'")
        connection.execute("update due set at = clock_timestamp()")


def test_a_cancelled_run_withdraws_its_task(world: World) -> None:
    run = begin(world)
    found = world.task(run)
    assert world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough") == "canceled"
    assert row(world, run)["status"] == "canceled"
    assert due(world, "task") == []
    assert "task.canceled" in world.entries(run)
    told = world.fill(found, "ana", GOOD)
    assert (told.code, told.ok) == ("decided", False)
    check_journal(world, run)


def shown(world: World, run: str) -> list[tuple[str, str]]:
    """What Slack was sent about this run: (method, blocks) in order."""
    world.post()
    sent = [(method, str(arguments["blocks"])) for method, arguments in world.slack.calls]
    return [(method, blocks) for method, blocks in sent if f"run {run[:12]}" in blocks]


def test_the_card_is_posted_with_its_button_and_settled_by_the_answer_or_the_end(world: World) -> None:
    run = begin(world)
    ((posted, blocks),) = shown(world, run)
    assert posted == "chat.postMessage"
    assert "tk_fill" in blocks
    assert "What happened to INC0010001?" in blocks
    assert world.fill(world.task(run), "ana", GOOD).ok
    settled, blocks = shown(world, run)[-1]
    assert settled == "chat.update"
    assert "Answered by ana" in blocks
    assert "tk_fill" not in blocks
    assert "qrx-77" not in blocks, "the channel does not read what was answered"
    other = world.start("ask-people", value={"number": "2"})
    world.drain()
    assert len(shown(world, other)) == 1
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), other, "enough")
    settled, blocks = shown(world, other)[-1]
    assert settled == "chat.update"
    assert "Withdrawn" in blocks
    assert world.rows("select id from outbox where tenant = :tenant") == []


def test_slack_being_down_loses_no_task(world: World) -> None:
    world.slack.down = True
    run = begin(world)
    world.post()
    assert world.fill(world.task(run), "ana", GOOD).ok
    world.until(run, "succeeded")
    assert result(world, run).value == {"said": SAID}


def test_signatures_are_of_others_and_the_answer_is_the_result_only_then(sealing_world: World, tmp_path: Path) -> None:
    """Two different persons: neither who answered nor who started the run counts."""
    world = sealing_world
    run = begin(world, sign_off={"groups": ["incident-managers"], "counts": {"incident-managers": 2}})
    assert "others have to sign" in world.fill(world.task(run), "ana", GOOD).sentence.lower()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert found.is_sign_off
    assert dict(found.asked.lineage) == {world.who["rita"]: "requester", world.who["ana"]: "answerer"}
    assert {f.name: f.value for f in found.action.fields} == {
        "Cause": "the qrx-77 disk",
        "count": "3",
        "again": "no",
    }
    assert world.press(found, "rita").code == "self"
    assert world.press(found, "ana").code == "lineage"
    assert world.press(found, "low").code == "level"
    assert world.press(found, "bo", digest16="0" * 16).code == "stale_card"
    assert world.press(found, "bo").code == "key_given"
    world.drain()
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "bo").code == "same_person"
    last = world.press(found, "cleo")
    assert (last.code, last.sentence) == ("approved", "Signed. The run goes on with this answer.")
    world.until(run, "succeeded")
    assert result(world, run).value == {"said": SAID}
    check_journal(world, run)
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rejected_signature_fails_the_task_with_its_reason(world: World) -> None:
    run = begin(world, sign_off=["incident-managers"])
    assert world.fill(world.task(run), "ana", GOOD).ok
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert world.press(found, "bo", kind="reject").code == "reason_required"
    assert world.press(found, "bo", kind="reject", reason="not a disk").code == "rejected"
    world.until(run, "succeeded")
    assert result(world, run).value == {"failed": "rejected", "why": "rejected: not a disk"}
    check_journal(world, run)


def test_an_unsigned_answer_expires_and_a_cancel_withdraws_the_question(world: World, database: Any) -> None:
    run = begin(world, sign_off=["incident-managers"])
    assert world.fill(world.task(run), "ana", GOOD).ok
    world.until(run, "waiting_approval")
    move_deadline(database, world, "approval")
    Tick(world.parts.database).step()
    world.until(run, "succeeded")
    assert result(world, run).value["failed"] == "expired"
    other = world.start("ask-people", value={"number": "2", "sign_off": ["incident-managers"]})
    world.drain()
    assert world.fill(world.task(other), "ana", GOOD).ok
    world.until(other, "waiting_approval")
    assert world.parts.cancel.cancel(world.tenant, world.actor("rita"), other, "enough") == "canceled"
    assert world.rows("select 1 from approval where tenant = :tenant and status = 'requested'") == []
    check_journal(world, other)
