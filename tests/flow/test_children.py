"""Child runs: another workflow as a run of its own, begun once, judged by the same people's rules, and answered once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CallerError
from engine.ids import PromiseId, run_id
from engine.journal.events import ExecutionStarted, InvokeCompleted
from engine.limits import child_depth_max, family_runs_max
from governance.evidence.sequence import trust_text
from governance.store import views
from tests.flow.test_a_governed_run import verify
from tests.flow.test_workflows_in_python import check_journal, publish, result
from tests.kit.servicenow import INCIDENT
from tests.kit.world import INPUT, World, settle

ROOT = Path(__file__).parents[2]
CHILD = """async def note_once(ctx, input):
    found = await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": input["note"]}})
    return {"number": found["number"], "note": input["note"]}
"""
PARENT = """async def ask_another(ctx, input):
    return await ctx.child("note-once", input)
"""
CLOSER = """async def close_it(ctx, input):
    await ctx.invoke("servicenow.close", {
        "target": input["sys_id"], "fields": {"close_notes": "done", "close_code": "Solved (Permanently)"}, "risk": "high"})
    return "closed"
"""
WAITER = """async def wait_here(ctx, input):
    return await ctx.wait_signal("word")
"""
CATCH = """async def catch(ctx, input):
    try:
        return await ctx.child(input["workflow"], input.get("given"))
    except InvokeFailed as error:
        return [error.error_class, error.message]
"""


def children(world: World, run: str) -> list[str]:
    """The child runs of a run in the order of their promises."""
    rows = world.rows("select run from run where tenant = :tenant and parent = :run order by parent_promise", run=run)
    return [row["run"] for row in rows]


def child(world: World, run: str) -> str:
    (found,) = children(world, run)
    return found


def together(world: World, run: str) -> None:
    """Four threads work until the run has succeeded."""
    with ThreadPoolExecutor(4) as pool:
        for _ in range(200):
            for done in [pool.submit(world.drain) for _ in range(4)]:
                done.result()
            if world.case(run).ended:
                break
            world.hurry()
    assert world.case(run).state == "succeeded"


def bodies(world: World, run: str, kind: str) -> list[dict[str, Any]]:
    """The bodies of a run's entries of one type."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return [one.entry.body for one in views.happened(unit, run) if one.entry.type == kind]


def verified(world: World, run: str, directory: Path) -> None:
    directory.mkdir()
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(directory, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_child_is_a_run_of_its_own_and_its_result_comes_once(sealing_world: World, tmp_path: Path) -> None:
    """Its own journal, chain and bundle; pinned; named in the parent's journal and entries, and the other way round."""
    world = sealing_world
    publish(world, CHILD)
    publish(world, PARENT)
    run = world.start("ask-another", value={"sys_id": INCIDENT, "note": f"by a child {world.tenant}"})
    world.until(run, "succeeded")
    mine = child(world, run)
    assert result(world, run).value == {"number": "INC0010001", "note": f"by a child {world.tenant}"}
    assert result(world, mine).value == result(world, run).value
    assert len([note for note in world.writes("work_notes") if world.tenant in note]) == 1
    check_journal(world, run)
    check_journal(world, mine)
    ours, theirs = world.case(run), world.case(mine)
    start = theirs.stored[0].event
    assert isinstance(start, ExecutionStarted)
    assert start.parent_id == PromiseId(run, (0,))
    assert mine == run_id(theirs.origin.definition, str(PromiseId(run, (0,))), start.idempotency_key)
    ends = [entry for entry in ours.stored if isinstance(entry.event, InvokeCompleted)]
    assert len(ends) == 1
    assert (theirs.origin.started_by, theirs.origin.owner) == (ours.origin.started_by, ours.origin.owner)
    assert [one["run"] for one in bodies(world, run, "child.started")] == [mine]
    (ended,) = bodies(world, run, "child.ended")
    assert ended["journal_head"] == theirs.history.head.hex()
    assert bodies(world, mine, "parent.named") == [{"run": run, "promise": "0", "depth": 1}]
    assert world.steps(run) == {"note-once": "succeeded"}
    verified(world, run, tmp_path / "parent")
    verified(world, mine, tmp_path / "child")


def test_a_child_may_be_a_definition_too(world: World) -> None:
    """The sample in YAML, with its two approvals, as a child of a function."""
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "incident-triage", "given": INPUT})
    world.drain()
    mine = child(world, run)
    world.until(mine, "waiting_approval")
    world.approve(mine, "ana")
    world.until(mine, "waiting_approval")
    world.approve(mine, "bo", "cleo")
    world.until(run, "succeeded")
    assert world.case(mine).origin.trigger_type == "child"
    check_journal(world, mine)
    check_journal(world, run)


def test_a_new_version_leaves_open_children_alone(world: World) -> None:
    publish(world, WAITER)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "wait-here"})
    world.drain()
    mine = child(world, run)
    before = world.case(mine).origin.definition
    publish(world, WAITER.replace("return await", "return 1, await"))
    world.parts.signal.send(world.tenant, world.actor("ana"), mine, "word", "old")
    world.until(run, "succeeded")
    assert world.case(mine).origin.definition == before
    assert result(world, run).value == "old"


def test_the_two_person_rule_cannot_be_washed_through_a_child(world: World) -> None:
    """P2: rita asked for the parent, so rita turns no key in the child, however deep."""
    publish(world, CLOSER)
    publish(world, CATCH)
    inner = {"workflow": "close-it", "given": {"sys_id": INCIDENT}}
    run = world.start("catch", value={"workflow": "catch", "given": inner}, by="bo")
    world.drain()
    deep = child(world, child(world, run))
    world.until(deep, "waiting_approval")
    found = world.waiting(deep)
    assert found.asked.lineage == {world.who["bo"]: "requester"}
    refused = world.press(found, "bo")
    assert not refused.ok
    world.approve(deep, "ana", "cleo") if found.asked.keys > 1 else world.approve(deep, "ana")
    for _ in range(3):
        if world.case(deep).state == "waiting_approval":
            world.approve(deep, "cleo")
        world.drain()
    world.until(run, "succeeded")
    assert result(world, run).value == "closed"


@pytest.mark.parametrize(
    ("given", "error_class"),
    [
        ({"workflow": "nobody-published-this"}, "unknown_workflow"),
        ({"workflow": "note-once", "given": ["no map"]}, "invalid_input"),
    ],
)
def test_what_cannot_begin_fails_for_good_and_can_be_caught(
    world: World, given: dict[str, Any], error_class: str
) -> None:
    publish(world, CHILD)
    publish(world, CATCH)
    run = world.start("catch", value=given)
    world.until(run, "succeeded")
    assert result(world, run).value[0] == error_class
    assert children(world, run) == []
    check_journal(world, run)


def test_an_input_that_is_too_big_begins_nothing(world: World) -> None:
    publish(world, CHILD)
    publish(world, 'async def big(ctx, input):\n    return await ctx.child("note-once", {"x": "y" * 300_000})\n')
    run = world.start("big", value={})
    world.until(run, "failed_terminal")
    assert result(world, run).error_class == "invalid_input"
    assert children(world, run) == []


@pytest.mark.parametrize("given", ["1", "None", '""', '"a b"', '"../x"', '"x" * 64', 'b"x"', '"x", {1: 2}', '"x", 0.5'])
def test_a_child_of_the_wrong_form_is_the_authors_error(world: World, given: str) -> None:
    publish(world, f"async def odd(ctx, input):\n    return await ctx.child({given})\n")
    run = world.start("odd", value={})
    world.until(run, "failed_terminal")
    assert result(world, run).error_class == "author_error"
    assert children(world, run) == []


def test_a_workflow_of_another_tenant_is_unknown(world: World) -> None:
    """P10: a name is looked up among one's own."""
    other = settle(world.parts, world.slack, world.servicenow)
    publish(other, CHILD)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "note-once", "given": {}})
    world.until(run, "succeeded")
    assert result(world, run).value[0] == "unknown_workflow"


def test_a_paused_workflow_starts_no_child(world: World) -> None:
    publish(world, CHILD)
    publish(world, CATCH)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update template set state = 'paused' where tenant = :tenant and name = 'note-once'")
    run = world.start("catch", value={"workflow": "note-once", "given": {}})
    world.until(run, "succeeded")
    assert result(world, run).value[0] == "workflow_paused"


def test_a_recursion_ends_at_the_named_depth(world: World) -> None:
    publish(
        world,
        'async def deeper(ctx, input):\n    try:\n        return await ctx.child("deeper", {})\n'
        "    except InvokeFailed as error:\n        return error.error_class\n",
    )
    run = world.start("deeper", value={})
    world.until(run, "succeeded")
    assert result(world, run).value == "too_deep"
    rows = world.rows("select depth from run where tenant = :tenant and root = :run order by depth", run=run)
    assert [row["depth"] for row in rows] == list(range(child_depth_max + 1))


def test_a_family_has_at_most_so_many_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fan-out that starts fan-outs meets the same bound, counted when it commits and not only when it is decided."""
    monkeypatch.setattr("governance.stages.child.family_runs_max", 8)
    monkeypatch.setattr("governance.store.cases.family_runs_max", 8)
    publish(
        world,
        "async def bomb(ctx, input):\n    calls = await ctx.join_set()\n    for n in range(3):\n"
        '        await calls.submit_child("bomb", {})\n'
        "    return sorted(each.error_class or 'ok' for each in await calls.all())\n",
    )
    run = world.start("bomb", value={})
    together(world, run)
    rows = world.rows("select run, state from run where tenant = :tenant and root = :run", run=run)
    assert 4 <= len(rows) <= 8
    refused = [one for row in rows for one in result(world, row["run"]).value if one != "ok"]
    assert set(refused) == {"too_many_runs"}
    assert family_runs_max > 8


def test_a_join_set_takes_children_and_operations_as_they_come(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    publish(world, CHILD)
    publish(world, WAITER)
    publish(
        world,
        'async def mixed(ctx, input):\n    calls = await ctx.join_set()\n    await calls.submit_child("wait-here", {})\n'
        '    await calls.submit_child("note-once", input)\n    await calls.submit_child("nobody", {})\n'
        '    await calls.submit("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": "direct"}})\n'
        "    first = [await calls.next() for _ in range(3)]\n    rest = await calls.all()\n"
        "    return [sorted([each.member, each.ok] for each in first), [each.result() for each in rest]]\n",
    )
    run = world.start("mixed", value={"sys_id": INCIDENT, "note": "from the set"})
    world.drain()
    waiting, done = children(world, run)
    assert world.case(done).state == "succeeded"
    assert not world.case(run).ended
    world.parts.signal.send(world.tenant, world.actor("ana"), waiting, "word", "at last")
    world.until(run, "succeeded")
    assert result(world, run).value == [[[1, True], [2, False], [3, True]], ["at last"]]
    check_journal(world, run)
    verified(world, run, tmp_path / "parent")


def test_cancelling_the_parent_cancels_its_open_children_and_waits_for_them(
    sealing_world: World, tmp_path: Path
) -> None:
    world = sealing_world
    publish(world, WAITER)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "catch", "given": {"workflow": "wait-here"}})
    world.drain()
    middle = child(world, run)
    deep = child(world, middle)
    assert world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough") == "running"
    assert not world.case(run).ended, "a child is in flight until it has ended"
    world.drain()
    assert [world.case(each).state for each in (deep, middle, run)] == ["canceled"] * 3
    assert bodies(world, deep, "cancel.inherited") == [{"run": middle, "promise": "0"}]
    assert [one["status"] for one in bodies(world, run, "child.ended")] == ["canceled"]
    for each in (run, middle, deep):
        check_journal(world, each)
        verified(world, each, tmp_path / each)


def test_a_child_that_never_began_is_cancelled_with_its_parent(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    publish(world, WAITER)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "wait-here"})
    lease = next(one for one in world.parts.dispatch.claim(world.parts.worker._name, 100, 30) if one.run == run)
    world.parts.worker._guarded(lease)
    mine = child(world, run)
    assert not world.case(mine).history.started
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    world.drain()
    assert (world.case(mine).state, world.case(run).state) == ("canceled", "canceled")
    verified(world, mine, tmp_path / "child")
    verified(world, run, tmp_path / "parent")


def test_a_child_that_a_person_cancels_is_an_error_that_the_parent_can_catch(world: World) -> None:
    publish(world, WAITER)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "wait-here"})
    world.drain()
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), child(world, run), "not this one")
    world.until(run, "succeeded")
    assert result(world, run).value[0] == "canceled"


def test_a_parent_that_ends_first_lets_no_child_run_on(world: World) -> None:
    """What nobody waits for any more is cancelled, and the parent's end waits for that."""
    publish(world, CHILD)
    publish(world, WAITER)
    publish(
        world,
        'async def race(ctx, input):\n    calls = await ctx.join_set()\n    await calls.submit_child("wait-here", {})\n'
        '    await calls.submit_child("note-once", input)\n    return (await calls.next()).member\n',
    )
    run = world.start("race", value={"sys_id": INCIDENT, "note": "first"})
    world.until(run, "succeeded")
    assert result(world, run).value == 1
    assert sorted(world.case(each).state for each in children(world, run)) == ["canceled", "succeeded"]
    check_journal(world, run)


def test_a_failed_child_gives_its_class_and_its_words(world: World) -> None:
    publish(world, 'async def fails(ctx, input):\n    raise Failed("no_stock", "none left")\n')
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "fails"})
    world.until(run, "succeeded")
    assert result(world, run).value == ["no_stock", "none left"]


def test_the_cap_on_writes_holds_over_parent_and_children(world: World) -> None:
    """P15: splitting effects among children is no way around the tenant's cap on writes per run, also when many write at once."""
    publish(
        world,
        "async def some(ctx, input):\n    calls = await ctx.join_set()\n    for n in range(15):\n"
        "        fields = {'work_notes': f\"{n} {input['word']}\"}\n"
        "        await calls.submit('servicenow.update', {'target': input['sys_id'], 'fields': fields})\n"
        "    return sum(each.ok for each in await calls.all())\n",
    )
    publish(
        world,
        "async def many(ctx, input):\n    calls = await ctx.join_set()\n    for n in range(4):\n"
        "        await calls.submit_child('some', {**input, 'word': f\"{n} {input['word']}\"})\n"
        "    return sum(each.result() for each in await calls.all())\n",
    )
    run = world.start("many", value={"sys_id": INCIDENT, "word": world.tenant})
    together(world, run)
    written = len([note for note in world.writes("work_notes") if world.tenant in note])
    assert written == result(world, run).value == 50


def test_pages_link_parent_and_child(world: World) -> None:
    publish(world, WAITER)
    publish(world, CATCH)
    run = world.start("catch", value={"workflow": "wait-here"})
    world.drain()
    mine = child(world, run)
    with world.parts.database.unit(world.tenant, write=False) as unit:
        (step,) = views.steps(unit, run)
        assert (step.kind, step.child, step.tool) == ("child", mine, "workflow:wait-here")
        found = views.run(unit, mine)
    assert (found.parent, found.parent_promise) == (run, "0")


def test_no_source_can_take_the_place_of_a_child(world: World) -> None:
    """A trigger's name is part of what a start is about, so a source cannot be called as our own triggers are."""
    for name in ("child", "manual"):
        with pytest.raises(CallerError, match="reserved"):
            world.parts.admit.source(
                world.tenant,
                name,
                kind="x",
                secret="s" * 20,
                workflow="w",
                person=world.who["ana"],
                owner=world.who["ana"],
            )


def test_a_cancellation_in_the_middle_of_a_fan_out_ends_everything(world: World) -> None:
    """Parents, children and the order to stop, all at once: no deadlock, no child that is left over, each end told."""
    publish(world, WAITER)
    publish(
        world,
        "async def tree(ctx, input):\n    calls = await ctx.join_set()\n    for n in range(3):\n"
        "        await calls.submit_child('tree' if input['deep'] else 'wait-here', {'deep': input['deep'] - 1})\n"
        "    return [each.ok for each in await calls.all()]\n",
    )
    run = world.start("tree", value={"deep": 1})
    lease = next(one for one in world.parts.dispatch.claim(world.parts.worker._name, 100, 30) if one.run == run)
    world.parts.worker._guarded(lease)
    with ThreadPoolExecutor(4) as pool:
        drives = [pool.submit(world.drain) for _ in range(3)]
        pool.submit(world.parts.cancel.cancel, world.tenant, world.actor("rita"), run, "enough").result()
        for each in drives:
            each.result()
    for _ in range(20):
        world.drain()
        world.hurry()
    rows = world.rows("select run, state from run where tenant = :tenant and root = :run", run=run)
    assert {row["state"] for row in rows} == {"canceled"}
    for row in rows:
        # A child that the order to stop met before its first turn never began, and so has no journal.
        if row["run"] == run or world.case(row["run"]).stored:
            check_journal(world, row["run"])
    assert world.rows("select item from work where tenant = :tenant and stage <> 'seal'") == []


def test_every_example_of_the_documentation_can_be_published(world: World) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "workflows.md").read_text(), flags=re.DOTALL)
    assert len(examples) > 1
    for text in examples:
        done = world.parts.publish.apply(world.tenant, world.actor("rita"), text.encode(), "example.py")
        assert done.state == "active"
