"""Workflows in Python on real parts: published, started, replayed turn by turn, and sealed like every other run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import AuthorError, CallerError, Refused
from engine.journal.history import History
from engine.journal.invariants import guards, violations
from engine.kernel import Files
from engine.program.faults import DefinitionInvalid
from governance.evidence.sequence import trust_text
from governance.stages.hosts import Hosts
from governance.stages.tick import Tick
from governance.store import approvals
from tests.flow.test_a_governed_run import verify
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

OTHER = "9" * 32
HEAD = "from twokeys import Failed, InvokeFailed, workflow\n\n\n@workflow\n"
NOTE = """async def note_twice(ctx, input):
    \"\"\"Two notes, one after the other.\"\"\"
    first = await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": "one"}})
    await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": "two"}, "step": "second"})
    return {"id": await ctx.uuid(), "at": (await ctx.now()).isoformat(), "chance": str(await ctx.random()), "n": first["number"]}
"""
FAN = """async def fan_out(ctx, input):
    calls = await ctx.join_set()
    for n, risk in enumerate(["low", "med", "high"]):
        fields = {"work_notes": f"{risk} note"} if n < 2 else {"close_notes": "closed", "close_code": "Solved (Permanently)"}
        operation = "servicenow.update" if n < 2 else "servicenow.close"
        await calls.submit(operation, {"target": input["sys_id"], "fields": fields, "risk": risk, "step": f"ask-{risk}"})
    first = await calls.next()
    second = await calls.next()
    return {"members": [first.member, second.member], "ok": [first.ok, second.ok]}
"""
WAIT = """async def wait_for_word(ctx, input):
    await ctx.sleep(input["seconds"])
    word = await ctx.wait_signal("word")
    again = await ctx.wait_signal("word")
    return {"word": word, "again": again}
"""


def publish(world: World, text: str, name: str = "flow.py", **more: bytes) -> str:
    found = world.parts.publish.apply(
        world.tenant,
        world.actor("rita"),
        (HEAD + text).encode(),
        name,
        {f"{each}.py": body for each, body in more.items()},
    )
    return found.name


def result(world: World, run: str) -> Any:
    """What the workflow returned, or how it failed."""
    case = world.case(run)
    event = case.stored[-1].event
    files = Files(case.origin.salt_key, case.payloads)
    return files.result(getattr(event, "result", "") or getattr(event, "error", ""))


def check_journal(world: World, run: str) -> None:
    """P8: the stored journal obeys every rule, and replaying it gives the same state."""
    case = world.case(run)
    assert violations(case.stored) == []
    assert guards(case.stored, case.history.execution) == []
    assert History.load(case.history.execution, case.stored).state() == case.history.state()


def due(world: World, kind: str = "timer") -> list[dict[str, Any]]:
    return world.rows("select ref, at from due where tenant = :tenant and kind = :kind", kind=kind)


def test_a_function_runs_step_by_step_and_verifies_offline(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    assert publish(world, NOTE) == "note-twice"
    run = world.start("note-twice", value={"sys_id": INCIDENT})
    world.until(run, "succeeded")
    assert world.writes("work_notes")[-2:] == ["one", "two"]
    ended = result(world, run)
    assert ended.ok
    assert ended.value["n"] == "INC0010001"
    assert len(ended.value["id"]) == 36
    check_journal(world, run)
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_operations_at_once_wait_for_their_own_approvals_and_the_end_withdraws_what_is_left(
    sealing_world: World, tmp_path: Path
) -> None:
    """Three members: one is allowed, one waits for a key, the third is not needed any more when the other two have come."""
    world = sealing_world
    publish(world, FAN)
    run = world.start("fan-out", value={"sys_id": INCIDENT})
    world.until(run, "waiting_approval")
    steps = world.steps(run)
    assert steps == {"ask-low": "succeeded", "ask-med": "waiting_approval", "ask-high": "waiting_approval"}
    asked = {
        row["promise"]: row["approval"]
        for row in world.rows("select promise, approval from approval where tenant = :tenant and run = :run", run=run)
    }
    med = next(p.promise for p in world.case(run).promises.values() if p.step == "ask-med")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = approvals.load(unit, asked[med])
    assert world.press(found, "ana").code == "approved"
    world.until(run, "succeeded")
    assert result(world, run).value == {"members": [0, 1], "ok": [True, True]}
    assert world.steps(run)["ask-high"] == "canceled"
    assert "closed" not in world.writes("close_notes")
    rows = world.rows("select status from approval where tenant = :tenant and run = :run", run=run)
    assert sorted(row["status"] for row in rows) == ["approved", "canceled"]
    assert due(world, "approval") == []
    check_journal(world, run)
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sleep_ends_by_the_clock_of_the_database_and_signals_are_kept_in_order(world: World) -> None:
    publish(world, WAIT)
    run = world.start("wait-for-word", value={"seconds": 3600})
    world.drain()
    (timer,) = due(world)
    assert timer["ref"] == f"{run}/0"
    send = world.parts.signal.send
    assert send(world.tenant, world.actor("ana"), run, "word", {"say": "early"}).delivery == 1
    tick = Tick(world.parts.database)
    while tick.step():
        pass
    world.drain()
    assert world.case(run).history.open_timers
    assert len(list(world.case(run).history.open_timers())) == 1
    # A clock that rings too early is not believed: the timer's own time stands in the journal.
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'timer'")
    tick.step()
    assert len(list(world.case(run).history.open_timers())) == 1
    assert due(world), "the clock is put right, not forgotten"

    short = world.start("wait-for-word", value={"seconds": 0})
    for _ in range(50):
        world.drain()
        tick.step()
        if not list(world.case(short).history.open_timers()) and world.case(short).history.started:
            break
    world.drain()
    assert send(world.tenant, world.actor("ana"), short, "word", "one").delivery == 1
    assert send(world.tenant, world.actor("ana"), short, "other", "unheard").delivery == 1
    world.drain()
    assert send(world.tenant, world.actor("ana"), short, "word", "two").delivery == 2
    world.until(short, "succeeded")
    assert result(world, short).value == {"word": "one", "again": "two"}
    check_journal(world, short)
    assert "signal.sent" in world.entries(short)
    with pytest.raises(Refused, match="over"):
        send(world.tenant, world.actor("ana"), short, "word", "late")


def test_signals_are_refused_to_whom_and_where_they_do_not_belong(world: World) -> None:
    publish(world, WAIT)
    run = world.start("wait-for-word", value={"seconds": 3600})
    send = world.parts.signal.send
    with pytest.raises(Refused, match="not begun"):
        send(world.tenant, world.actor("ana"), run, "word", 1)
    world.drain()
    for name in ("task:0:ab", "approval:ap_1", "", "a b"):
        with pytest.raises(CallerError):
            send(world.tenant, world.actor("ana"), run, name, 1)
    with pytest.raises(CallerError):
        send(world.tenant, world.actor("ana"), run, "word", 1.5)
    for who in ("low", "aud", "dan"):
        with pytest.raises(Refused):
            send(world.tenant, world.actor(who), run, "word", 1)
    assert world.case(run).history.deliveries("word") == 0
    assert world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough") == "canceled"
    assert due(world) == []


def test_an_operation_that_is_refused_raises_in_the_workflow(world: World) -> None:
    """Denied, unknown or used wrongly: InvokeFailed, at once and without an effect."""
    publish(
        world,
        """async def refused(ctx, input):
    found = []
    for operation, params in (
        ("servicenow.explode", {"target": input["sys_id"]}),
        ("servicenow.update", {"target": input["sys_id"], "fields": {"colour": "red"}}),
        ("servicenow.close", {"target": input["sys_id"], "fields": {"close_notes": "x"}, "risk": "low"}),
        ("servicenow.update", {"target": {"type": "cat", "id": input["sys_id"]}}),
    ):
        try:
            await ctx.invoke(operation, params)
        except InvokeFailed as error:
            found.append(error.error_class)
    for n in range(40):
        try:
            await ctx.invoke("servicenow.update", {"target": "nowhere", "fields": {"work_notes": str(n)}})
        except InvokeFailed as error:
            pass
    raise Failed("no_stock", ",".join(found))
""",
    )
    run = world.start("refused", value={"sys_id": INCIDENT})
    world.until(run, "failed_terminal")
    ended = result(world, run)
    assert (ended.ok, ended.error_class) == (False, "no_stock")
    assert ended.message.split(",")[1:] == ["invalid_proposal"] * 3
    assert world.writes("work_notes") == []
    check_journal(world, run)


def test_publishing_says_what_is_wrong_at_its_line(world: World) -> None:
    with pytest.raises(DefinitionInvalid, match=r"flow\.py:6:"):
        publish(world, "async def clock(ctx, input):\n    import time\n    return time.time()\n")
    with pytest.raises(AuthorError):
        publish(world, "async def fails(ctx, input):\n    return 1\n\n\nraise ValueError('at import')\n")
    with pytest.raises(Refused):
        world.parts.publish.apply(world.tenant, world.actor("ana"), (HEAD + NOTE).encode(), "flow.py")
    with pytest.raises(CallerError, match="no active version"):
        world.start("clock", value={})


def test_a_new_version_leaves_runs_alone_and_modules_travel_along(world: World) -> None:
    """P13: the code of a run is pinned; another file of the author is part of it."""
    text = "async def pinned(ctx, input):\n    from helper import word\n    await ctx.wait_signal('go')\n    return word()\n"
    publish(world, text, helper=b"def word():\n    return 'old'\n")
    run = world.start("pinned", value={})
    world.drain()
    publish(world, text, helper=b"def word():\n    return 'new'\n")
    states = world.rows(
        "select state, kind from template where tenant = :tenant and name = 'pinned' order by created_at"
    )
    assert [(row["state"], row["kind"]) for row in states] == [("archived", "function"), ("active", "function")]
    newer = world.start("pinned", value={})
    world.drain()
    for each in (run, newer):
        world.parts.signal.send(world.tenant, world.actor("ana"), each, "go", None)
        world.until(each, "succeeded")
    assert (result(world, run).value, result(world, newer).value) == ("old", "new")


def test_code_that_does_not_do_what_its_journal_says_holds_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, the reason is shown, and the run goes on when the right code is back."""
    publish(world, WAIT)
    run = world.start("wait-for-word", value={"seconds": 0})
    world.drain()
    version = world.case(run).history.version
    turn = Hosts.turn

    def other(hosts: Hosts, component: Any, feed: Any, **how: Any) -> Any:
        text = dict(component.files)["flow.py"].replace('await ctx.sleep(input["seconds"])', "await ctx.random()")
        return turn(hosts, replace(component, files=(("flow.py", text),)), feed, **how)

    monkeypatch.setattr(Hosts, "turn", other)
    Tick(world.parts.database).step()
    world.drain()
    held = world.row("select error, state from run where tenant = :tenant and run = :run", run=run)
    assert held is not None
    assert "the journal has Sleep" in held["error"]
    assert "the code does Random" in held["error"]
    work = world.rows("select stage, state from work where tenant = :tenant and run = :run", run=run)
    assert [(row["stage"], row["state"]) for row in work] == [("advance", "parked")]
    assert world.case(run).history.version == version + 1, "the timer fired; the turn wrote nothing"
    monkeypatch.setattr(Hosts, "turn", turn)
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", "a")
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", "b")
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set state = 'ready' where tenant = :tenant and state = 'parked'")
    world.until(run, "succeeded")
    held = world.row("select error from run where tenant = :tenant and run = :run", run=run)
    assert held == {"error": ""}


MANY = """async def many(ctx, input):
    calls = await ctx.join_set()
    for n in range(12):
        await calls.submit("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": f"n{n} {input['word']}"}})
    found = await calls.all()
    return [each.ok for each in found]
"""


def test_workers_that_share_the_operations_of_one_run_lose_and_repeat_nothing(world: World) -> None:
    """P5, P15: four threads drive twelve operations of one run; each happens once and one turn ends the run."""
    publish(world, MANY)
    run = world.start("many", value={"sys_id": INCIDENT, "word": world.tenant})
    with ThreadPoolExecutor(4) as pool:
        for _ in range(60):
            for done in [pool.submit(world.drain) for _ in range(4)]:
                done.result()
            if world.case(run).ended:
                break
            world.hurry()
    assert result(world, run).value == [True] * 12
    notes = [note for note in world.writes("work_notes") if world.tenant in note]
    assert sorted(notes) == sorted(f"n{n} {world.tenant}" for n in range(12))
    assert world.entries(run).count("run.closed") == 1
    check_journal(world, run)


def test_a_cancelled_run_begins_nothing_more(world: World) -> None:
    """One operation waits for people, another was never looked at: the end withdraws the one and leaves the other."""
    publish(world, FAN)
    run = world.start("fan-out", value={"sys_id": INCIDENT})
    world.until(run, "waiting_approval")
    before = len(world.writes("work_notes"))
    assert world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough") == "canceled"
    world.hurry()
    world.drain()
    assert len(world.writes("work_notes")) == before
    assert world.case(run).state == "canceled"
    assert world.rows("select item from work where tenant = :tenant and run = :run and stage <> 'seal'", run=run) == []
    check_journal(world, run)


RACE = """async def race(ctx, input):
    calls = await ctx.join_set()
    for n in range(2):
        await calls.submit("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": f"race {n} {input['word']}"}})
    while not (taken := await calls.next()).ok:
        pass
    return taken.member
"""


def test_a_run_does_not_end_while_an_effect_of_it_may_have_happened(world: World) -> None:
    """P5: the workflow has what it wants, but nobody knows yet whether its other effect happened: no receipt comes after the end."""
    publish(world, RACE)
    run = world.start("race", value={"sys_id": INCIDENT, "word": world.tenant})
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    world.drain()
    world.servicenow.restart_if_down()
    for _ in range(3):
        world.hurry()
        world.drain()
    case = world.case(run)
    assert sorted(promise.state for promise in case.promises.values()) == ["succeeded", "unknown"]
    assert not case.ended
    unknown = next(p for p in case.promises.values() if p.state == "unknown")
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, unknown.promise, "happened", "I read it there")
    world.until(run, "succeeded")
    assert result(world, run).ok
    assert world.entries(run)[-1] == "run.closed"
    check_journal(world, run)
