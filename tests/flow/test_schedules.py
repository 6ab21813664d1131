"""Schedules on the real database: once per moment, as the person who scheduled, and every reason why nothing is started."""

from __future__ import annotations

import datetime
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.catalog.schedule import plan
from engine.errors import CallerError, Refused
from governance.store import schedules, templates
from tests.kit.world import World

FLOW = """
name: {name}
version: "{version}"
trigger: {{kind: {kind}}}
inputs: {{type: object, properties: {{n: {{type: integer}}}}}}
effects: []
steps: [{{id: hold, kind: wait, signal: go}}]
"""
HOURLY = plan(cron="0 * * * *")


def publish(world: World, name: str, kind: str = "scheduled", version: str = "1") -> str:
    return world.apply(FLOW.format(name=name, kind=kind, version=version))


def put(world: World, name: str, by: str = "ana", **how: Any) -> str:
    found = plan(**how) if how else HOURLY
    return world.parts.schedules.put(world.tenant, world.actor(by), name, found, {"n": 1}).schedule


def back(world: World, schedule: str, **ago: float) -> None:
    """The next moment of the schedule was so long ago, and its clock rings."""
    with world.parts.database.unit(world.tenant) as unit:
        at = (unit.now() - datetime.timedelta(**ago)).replace(minute=0, second=0, microsecond=0)
        unit.run("update schedule set next_at = :at where tenant = :tenant and schedule = :s", at=at, s=schedule)
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'schedule'")


def ring(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'schedule'")
    world.parts.tick.step()


def runs(world: World, name: str) -> list[dict[str, Any]]:
    return world.rows(
        "select run, started_by, trigger_type, trigger_ref, state from run where tenant = :tenant and workflow = :w "
        "order by trigger_ref",
        w=name,
    )


def told(world: World, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Type and body of the workflow's own entries about schedules."""
    rows = world.rows(
        "select body from entry_pending where tenant = :tenant and chain = :c order by chain_seq", c=f"template/{name}"
    )
    read = [json.loads(bytes(row["body"])) for row in rows]
    return [(one["type"], one["body"]) for one in read if one["type"].startswith("schedule.")]


def test_a_due_schedule_starts_one_run_as_whoever_scheduled_it(world: World) -> None:
    publish(world, "nightly")
    schedule = put(world, "nightly")
    back(world, schedule, hours=0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: world.parts.tick.step(), range(8)))
    (run,) = runs(world, "nightly")
    assert (run["started_by"], run["trigger_type"]) == (world.who["ana"], "schedule")
    assert run["trigger_ref"].startswith(f"{schedule}/")
    kinds = [kind for kind, _ in told(world, "nightly")]
    assert kinds == ["schedule.set", "schedule.fired"]
    assert told(world, "nightly")[1][1]["run"] == run["run"]
    with world.parts.database.unit(world.tenant, write=False) as unit:
        (found,) = schedules.listed(unit)
        assert found.next_at is not None
        assert found.next_at > unit.now()


def test_the_same_schedule_again_is_one_schedule_and_a_second_entry(world: World) -> None:
    publish(world, "twice", "manual")
    assert put(world, "twice") == put(world, "twice", by="cleo")
    assert [kind for kind, _ in told(world, "twice")] == ["schedule.set", "schedule.set"]
    assert world.row("select count(*) as n from due where tenant = :tenant and kind = 'schedule'") == {"n": 1}


def test_whoever_lost_their_level_starts_nothing_and_the_log_says_why(world: World) -> None:
    publish(world, "lost")
    back(world, put(world, "lost", by="cleo"), hours=1)
    world.parts.admit.deactivate(world.tenant, None, world.who["cleo"])
    world.parts.tick.step()
    assert runs(world, "lost") == []
    kind, body = told(world, "lost")[-1]
    assert (kind, body["why"], body["person"]) == ("schedule.dropped", "level", world.who["cleo"])
    assert world.row("select count(*) as n from due where tenant = :tenant and kind = 'schedule'") == {"n": 0}


def test_an_archived_workflow_loses_its_schedules_and_a_paused_one_keeps_them(world: World) -> None:
    publish(world, "life")
    schedule = put(world, "life")
    world.parts.publish.pause(world.tenant, world.actor("rita"), "life", "1")
    back(world, schedule, hours=1)
    world.parts.tick.step()
    assert runs(world, "life") == []
    assert told(world, "life")[-1] == ("schedule.skipped", {
        "schedule": schedule, "workflow": "life", "count": told(world, "life")[-1][1]["count"], "why": "paused",
    })  # fmt: skip
    world.parts.publish.activate(world.tenant, world.actor("rita"), "life", "1")
    back(world, schedule, hours=1)
    world.parts.tick.step()
    assert len(runs(world, "life")) == 1
    world.parts.publish.archive(world.tenant, world.actor("rita"), "life", "1")
    assert told(world, "life")[-1][0] == "schedule.dropped"
    assert told(world, "life")[-1][1]["why"] == "archived"
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert schedules.listed(unit) == []
    assert world.case(runs(world, "life")[0]["run"]).ended is False, "what goes on finishes"


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_while_the_run_before_goes_on(world: World, overlap: str) -> None:
    name = f"over-{overlap}"
    publish(world, name)
    schedule = put(world, name, cron="0 * * * *", overlap=overlap)
    with world.parts.database.unit(world.tenant) as unit:
        active = templates.active(unit, name)
        assert active is not None
        world.parts.start.begin(
            unit, world.parts.hash_key(world.tenant), active[2], "main", "schedule", f"{schedule}/before", {}, world.who["ana"],
            world.who["ana"],
        )  # fmt: skip
    world.drain()
    (first,) = runs(world, name)
    back(world, schedule, hours=0)
    world.parts.tick.step()
    world.drain()
    if overlap == "cancel":
        ring(world)
        assert sorted(run["state"] for run in runs(world, name)) == ["canceled", "running"]
        return
    assert len(runs(world, name)) == 1
    if overlap == "skip":
        assert told(world, name)[-1][1]["why"] == "overlap"
        return
    assert "goes on" in str(world.row("select waits from schedule where schedule = :s", s=schedule))
    world.parts.signal.send(world.tenant, world.actor("rita"), first["run"], "go", None)
    world.drain()
    ring(world)
    assert len(runs(world, name)) == 2


def test_at_the_cap_a_schedule_keeps_its_moment_and_a_person_is_refused(world: World) -> None:
    publish(world, "full")
    world.parts.caps.set(world.tenant, world.actor("rita"), "", {"max_concurrent_runs": 1})
    first = world.start("full", value={})
    world.drain()
    with pytest.raises(Refused, match="max_concurrent_runs 1 of tenant") as caught:
        world.start("full", value={})
    assert caught.value.code == "runs_full"
    assert len(runs(world, "full")) == 1, "nothing was written"
    schedule = put(world, "full")
    back(world, schedule, hours=1)
    world.parts.tick.step()
    assert "is reached" in str(world.row("select waits from schedule where schedule = :s", s=schedule))
    assert len(runs(world, "full")) == 1
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), first, "")
    world.drain()
    ring(world)
    assert len(runs(world, "full")) == 2


def test_every_missed_moment_that_was_asked_for_is_started_once(world: World) -> None:
    publish(world, "missed")
    schedule = put(world, "missed", cron="0 * * * *", catch_up="all", most=3)
    back(world, schedule, hours=6)
    world.parts.tick.step()
    assert len(runs(world, "missed")) == 3
    skipped = [body["count"] for kind, body in told(world, "missed") if kind == "schedule.skipped"]
    assert skipped
    assert skipped[0] >= 3


@pytest.mark.parametrize("by", ["low", "aud", "dan"])
def test_who_may_not_start_may_not_schedule(world: World, by: str) -> None:
    publish(world, "may-not")
    with pytest.raises(Refused):
        put(world, "may-not", by=by)
    assert told(world, "may-not") == []


def test_what_cannot_be_scheduled_is_refused_by_name(world: World) -> None:
    publish(world, "fine")
    with pytest.raises(Refused, match="has no active version"):
        put(world, "nowhere")
    with pytest.raises(Refused, match="started by events"):
        put(world, "incident-triage")
    with pytest.raises(CallerError, match="this moment is over"):
        put(world, "fine", at="2020-01-01T00:00")
    with pytest.raises(CallerError, match="input"):
        world.parts.schedules.put(world.tenant, world.actor("ana"), "fine", HOURLY, {"n": "one"})
    schedule = put(world, "fine")
    with pytest.raises(Refused, match="level 4"):
        world.parts.schedules.drop(world.tenant, world.actor("low"), schedule)
    world.parts.schedules.drop(world.tenant, world.actor("cleo"), schedule)
    with pytest.raises(Refused, match="dropped already"):
        world.parts.schedules.drop(world.tenant, world.actor("cleo"), schedule)
    assert put(world, "fine") == schedule, "it can be set again"
