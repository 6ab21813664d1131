"""A run goes on under other code only when its whole journal replays the same; and what is parked goes on when somebody says so."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from engine.errors import AuthorError, CallerError, Refused
from engine.journal.events import ExecutionStarted
from engine.program.faults import DefinitionInvalid
from governance.commands.migrate import DiffersFromJournal
from governance.evidence.sequence import trust_text
from governance.stages.hosts import Hosts
from governance.store import views
from tests.flow.test_a_governed_run import verify
from tests.flow.test_children import bodies
from tests.flow.test_workflows_in_python import HEAD, check_journal, publish, result
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

OLD = """async def talk(ctx, input):
    await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": "hello"}})
    word = await ctx.wait_signal("word")
    return {"word": word, "code": "old"}
"""
NEW = OLD.replace('"old"', '"new"')
OTHER = OLD.replace('"hello"', '"good day"')


def begin(world: World) -> str:
    """A run that waits for a word, of a workflow that was then published anew."""
    publish(world, OLD, "talk.py")
    run = world.start("talk", value={"sys_id": INCIDENT})
    world.drain()
    assert world.case(run).waits[0] == "word"
    return run


def standing(world: World, run: str) -> tuple[Any, ...]:
    """Everything that an order which is refused must leave alone."""
    row = world.row(
        "select events, head, chain_seq, chain_head, code, code_version, state, error from run "
        "where tenant = :tenant and run = :run", run=run,
    )  # fmt: skip
    assert row is not None
    drafts = world.rows("select name, version, state from template where tenant = :tenant order by 1, 2")
    work = world.rows("select item, stage, state, faults from work where tenant = :tenant and run = :run", run=run)
    return tuple(row.values()), drafts, work


def test_a_run_goes_on_under_new_code_whose_replay_is_the_same(sealing_world: World, tmp_path: Path) -> None:
    """The journal still names the code it started on; the entry, the page and the bundle name the other one too."""
    world = sealing_world
    run = begin(world)
    publish(world, NEW, "talk.py")
    old = world.case(run).code
    done = world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    case = world.case(run)
    assert case.code.hex() == done.digest != old.hex()
    start = case.stored[0].event
    assert isinstance(start, ExecutionStarted)
    assert start.component_digest == f"sha256:{old.hex()}"
    (body,) = bodies(world, run, "run.migrated")
    assert (body["person"], body["from_sha256"], body["definition_sha256"]) == (
        world.who["rita"],
        old.hex(),
        done.digest,
    )
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = views.run(unit, run)
    assert (found.version, found.definition, found.code) == (done.version, old, case.code)
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", "hi")
    world.until(run, "succeeded")
    assert result(world, run).value == {"word": "hi", "code": "new"}
    assert world.writes("work_notes")[-1:] == ["hello"]
    check_journal(world, run)
    sealed = world.seal(run)
    bundle = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    assert f"data/code/{done.digest}.cbor" in zipfile.ZipFile(BytesIO(bundle)).namelist()
    verified = verify(tmp_path, bundle, trust_text(world.parts.database, "test", world.tenant))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_other_history_is_refused_with_both_events_and_nothing_changes(world: World) -> None:
    run = begin(world)
    publish(world, OTHER, "talk.py")
    before = standing(world, run)
    with pytest.raises(DiffersFromJournal) as caught:
        world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    assert caught.value.sequence == 1
    assert caught.value.journal is not None
    assert caught.value.does is not None
    assert caught.value.journal["input"]["fields"] == {"work_notes": "hello"}
    assert caught.value.does["input"]["fields"] == {"work_notes": "good day"}
    assert standing(world, run) == before


@pytest.mark.parametrize(
    "text",
    [
        OLD.replace("    word =", "    await ctx.random()\n    word ="),  # more than the journal has
        'async def talk(ctx, input):\n    return "at once"\n',  # an end where the journal goes on
        OLD.replace('"word")', '"speech")'),  # another wait
        'async def talk(ctx, input):\n    raise Failed("no")\n',
    ],
)
def test_every_kind_of_difference_is_found(world: World, text: str) -> None:
    run = begin(world)
    publish(world, text, "talk.py")
    before = standing(world, run)
    with pytest.raises(DiffersFromJournal):
        world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    assert standing(world, run) == before


def test_a_file_need_not_be_published(world: World) -> None:
    """It is kept as a draft that starts nothing; code that differs leaves not even that."""
    run = begin(world)
    orders, rita = world.parts.migrate, world.actor("rita")
    before = standing(world, run)
    with pytest.raises(DiffersFromJournal):
        orders.to_file(world.tenant, rita, run, (HEAD + OTHER).encode(), "somewhere/talk.py", {})
    with pytest.raises(DefinitionInvalid):
        orders.to_file(world.tenant, rita, run, b"def talk(", "talk.py", {})
    with pytest.raises(AuthorError):
        orders.to_file(world.tenant, rita, run, (HEAD + NEW + "\n\nraise ValueError(1)\n").encode(), "talk.py", {})
    assert standing(world, run) == before
    done = orders.to_file(world.tenant, rita, run, (HEAD + NEW).encode(), "talk.py", {})
    rows = world.rows("select state from template where tenant = :tenant and version = :v", v=done.version)
    assert rows == [{"state": "draft"}]
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", 1)
    world.until(run, "succeeded")
    assert result(world, run).value["code"] == "new"
    assert world.parts.start.by_hand(world.tenant, rita, "talk", {"sys_id": INCIDENT}, "").new
    assert {row["state"] for row in world.rows("select state from template where tenant = :tenant and name = 'talk'")} == {
        "active", "draft"
    }  # fmt: skip


def test_only_authors_move_runs_and_only_where_it_makes_sense(world: World) -> None:
    """P11: level 5. Not to another workflow, not to what it runs on, not a definition, not when it is over."""
    run = begin(world)
    publish(world, NEW, "talk.py")
    orders, rita = world.parts.migrate, world.actor("rita")
    before = standing(world, run)
    for who in ("ana", "low", "aud", "dan"):
        with pytest.raises(Refused):
            orders.to_version(world.tenant, world.actor(who), run)
        with pytest.raises(Refused):
            orders.to_file(world.tenant, world.actor(who), run, b"raise SystemExit", "talk.py", {})
    same = world.case(run).code_version
    with pytest.raises(Refused, match="already"):
        orders.to_version(world.tenant, rita, run, same)
    with pytest.raises(CallerError, match="not published"):
        orders.to_version(world.tenant, rita, run, "0" * 12)
    with pytest.raises(Refused, match="this is chat"):
        orders.to_file(world.tenant, rita, run, (HEAD + OLD.replace("talk", "chat")).encode(), "chat.py", {})
    yaml = world.start()
    with pytest.raises(Refused, match="no workflow in Python"):
        orders.to_version(world.tenant, rita, yaml)
    with pytest.raises(CallerError, match="unknown"):
        orders.to_version(world.tenant, rita, "f" * 32)
    assert standing(world, run) == before
    world.parts.cancel.cancel(world.tenant, rita, run, "enough")
    with pytest.raises(Refused, match="over"):
        orders.to_version(world.tenant, rita, run)


def test_a_held_run_goes_on_after_it_was_moved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its item was parked when the code disagreed; the order takes it up again without anybody touching the database."""
    run = begin(world)
    hold(world, monkeypatch, run)
    done = world.parts.migrate.to_file(world.tenant, world.actor("rita"), run, (HEAD + NEW).encode(), "talk.py", {})
    world.until(run, "succeeded")
    assert result(world, run).value == {"word": "go", "code": "new"}
    assert world.case(run).code.hex() == done.digest
    assert world.row("select error from run where tenant = :tenant and run = :run", run=run) == {"error": ""}


def hold(world: World, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """The run is held: the code that its host has is not what its journal says."""
    turn = Hosts.turn

    def other(hosts: Hosts, component: Any, feed: Any, **how: Any) -> Any:
        text = dict(component.files)["talk.py"].replace("hello", "good day")
        return turn(hosts, replace(component, files=(("talk.py", text),)), feed, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Hosts, "turn", other)
        world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", "go")
        world.drain()
    work = world.rows("select stage, state from work where tenant = :tenant and run = :run", run=run)
    assert [(row["stage"], row["state"]) for row in work] == [("advance", "parked")]


def test_what_is_parked_goes_on_when_somebody_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that belongs to the journal is back, so the same run goes on; the entry says who let it."""
    run = begin(world)
    with pytest.raises(Refused, match="nothing of this run is parked"):
        world.parts.retry.retry(world.tenant, world.actor("ana"), run)
    hold(world, monkeypatch, run)
    for who in ("low", "aud", "dan"):
        with pytest.raises(Refused):
            world.parts.retry.retry(world.tenant, world.actor(who), run)
    with pytest.raises(CallerError):
        world.parts.retry.retry(world.tenant, world.actor("ana"), "f" * 32)
    assert world.parts.retry.retry(world.tenant, world.actor("ana"), run) == 1
    world.until(run, "succeeded")
    assert result(world, run).value == {"word": "go", "code": "old"}
    assert bodies(world, run, "run.retried") == [{"person": world.who["ana"], "count": 1}]


def test_an_unknown_outcome_is_no_parked_item_that_could_be_retried(world: World) -> None:
    """P5: it waits for a person's word, never for another try."""
    publish(world, OLD, "talk.py")
    run = world.start("talk", value={"sys_id": INCIDENT})
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    world.drain()
    world.servicenow.restart_if_down()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set state = 'parked' where tenant = :tenant and run = :run", run=run)
    with pytest.raises(Refused, match="run resolve"):
        world.parts.retry.retry(world.tenant, world.actor("ana"), run)


def test_a_worker_that_has_the_run_in_hand_does_not_commit_a_turn_of_the_old_code(world: World) -> None:
    """The order moves the run's chain, so what was decided under the old code is thrown away and decided again."""
    run = begin(world)
    publish(world, NEW, "talk.py")
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", "hi")
    lease = next(one for one in world.parts.dispatch.claim(world.parts.worker._name, 100, 30) if one.run == run)
    drive = world.parts.worker._in_hand(lease)
    drive.decide()
    world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    with pytest.raises(Exception, match="moved"):
        drive.commit()
    world.expire_leases()
    world.until(run, "succeeded")
    assert result(world, run).value == {"word": "hi", "code": "new"}


def test_a_run_that_has_not_begun_can_be_moved_too(world: World) -> None:
    publish(world, OLD, "talk.py")
    run = world.start("talk", value={"sys_id": INCIDENT})
    publish(world, NEW, "talk.py")
    assert world.parts.migrate.to_version(world.tenant, world.actor("rita"), run).events == 0
    world.drain()
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", 1)
    world.until(run, "succeeded")
    assert result(world, run).value["code"] == "new"
    check_journal(world, run)


def test_a_run_of_another_tenant_is_unknown_to_both_orders(world: World) -> None:
    from tests.kit.world import settle

    run = begin(world)
    other = settle(world.parts, world.slack, world.servicenow)
    with pytest.raises(CallerError, match="unknown"):
        other.parts.migrate.to_version(other.tenant, other.actor("rita"), run)
    with pytest.raises(CallerError, match="unknown"):
        other.parts.retry.retry(other.tenant, other.actor("rita"), run)


CLOSE = """async def close(ctx, input):
    await ctx.wait_signal("word")
    await ctx.invoke("servicenow.close", {
        "target": input["sys_id"], "fields": {"close_notes": "done", "close_code": "Solved (Permanently)"}, "risk": "high"})
    return "closed"
"""


def test_who_moved_a_run_holds_no_key_for_what_it_does_then(sealing_world: World, tmp_path: Path) -> None:
    """P2: they have edited what is asked for. A key that was given for the old card is asked for again."""
    world = sealing_world
    world.parts.admit.join(world.tenant, None, "incident-managers", world.who["rita"])
    publish(world, CLOSE, "close.py")
    run = world.start("close", value={"sys_id": INCIDENT}, by="bo")
    world.drain()
    world.parts.signal.send(world.tenant, world.actor("bo"), run, "word", 1)
    world.until(run, "waiting_approval")
    old = world.waiting(run)
    assert world.press(old, "ana").ok
    publish(world, CLOSE + "# said better\n", "close.py")
    world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    assert world.press(old, "cleo").ok
    world.drain()
    fresh = world.waiting(run)
    assert fresh.asked.id != old.asked.id, "what would run has another version than what the keys were given for"
    assert fresh.asked.lineage == {world.who["bo"]: "requester", world.who["rita"]: "editor"}
    assert not world.press(fresh, "rita").ok
    world.approve(run, "ana", "cleo")
    world.until(run, "succeeded")
    sealed = world.seal(run)
    bundle = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    verified = verify(tmp_path, bundle, trust_text(world.parts.database, "test", world.tenant))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_child_of_a_moved_run_has_its_editor_in_the_lineage(world: World) -> None:
    publish(world, CLOSE.replace('    await ctx.wait_signal("word")\n', ""), "close.py")
    text = (
        'async def above(ctx, input):\n    await ctx.wait_signal("word")\n    return await ctx.child("close", input)\n'
    )
    publish(world, text, "above.py")
    run = world.start("above", value={"sys_id": INCIDENT}, by="bo")
    world.drain()
    publish(world, text + "# said better\n", "above.py")
    world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "word", 1)
    world.drain()
    (row,) = world.rows("select run from run where tenant = :tenant and parent = :run", run=run)
    assert world.waiting(row["run"]).asked.lineage == {world.who["bo"]: "requester", world.who["rita"]: "editor"}
