"""One run per trigger, however often and however parallel it comes; and everything that a start refuses, by name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import CallerError, Refused, TwokeysError
from governance.commands import start as room
from governance.commands.start import Begun
from governance.store import templates
from tests.governance.commands.kit import small, staff, stored, unique
from tests.kit.servicenow import INCIDENT
from tests.kit.world import INPUT, World

SECRET = "a webhook's signing secret"


def subscribe(
    world: World, *, workflow: str = "incident-triage", person: str = "robot", source: str = "servicenow"
) -> None:
    world.parts.admit.source(
        world.tenant, source, kind="servicenow", secret=SECRET, workflow=workflow,
        person=world.who[person], owner=world.who["rita"],
    )  # fmt: skip


def rows_of(world: World, ref: str) -> list[dict[str, Any]]:
    return world.rows(
        "select run, version, started_by, owner from run where tenant = :tenant and trigger_ref = :ref", ref=ref
    )


def twenty(world: World, how: Any) -> list[Begun]:
    barrier = threading.Barrier(20)

    def go(_: int) -> Begun:
        barrier.wait()
        return how()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(20) as pool:
        return list(pool.map(go, range(20)))


def test_twenty_starts_of_one_trigger_are_one_run(company: World) -> None:
    begun = twenty(
        company,
        lambda: company.parts.start.by_hand(company.tenant, company.actor("ana"), "incident-triage", INPUT, "once"),
    )
    assert len({one.run for one in begun}) == 1
    assert sum(one.new for one in begun) == 1
    found = rows_of(company, "once")
    assert [row["run"] for row in found] == [begun[0].run]
    assert company.entries(begun[0].run) == ["run.queued"]
    assert len(company.rows("select 1 from work where tenant = :tenant and run = :run", run=begun[0].run)) == 1
    assert len(company.rows("select 1 from payload where tenant = :tenant and run = :run", run=begun[0].run)) == 1


def test_twenty_posts_of_one_webhook_are_one_run(company: World) -> None:
    subscribe(company)
    begun = twenty(company, lambda: company.parts.start.by_event(company.tenant, "servicenow", "INC1:1", INPUT))
    assert len({one.run for one in begun}) == 1
    assert sum(one.new for one in begun) == 1
    (row,) = rows_of(company, "INC1:1")
    assert (row["started_by"], row["owner"]) == (company.who["robot"], company.who["rita"])


def test_the_same_trigger_after_the_run_has_ended_finds_that_run(world: World) -> None:
    world.apply(small())
    first = world.start("small", value={"number": "INC1"}, ref="a")
    world.until(first, "succeeded")
    again = world.parts.start.by_hand(world.tenant, world.actor("bo"), "small", {"number": "INC2"}, "a")
    assert (again.run, again.new) == (first, False)
    world.drain()
    assert world.entries(first).count("run.closed") == 1


def test_a_reference_belongs_to_its_workflow_and_its_door(company: World) -> None:
    subscribe(company)
    runs = {
        company.start("small", value={"number": "INC1"}, ref="shared"),
        company.start(ref="shared"),
        company.parts.start.by_event(company.tenant, "servicenow", "shared", INPUT).run,
    }
    assert len(runs) == 3


def test_starts_by_hand_without_a_reference_are_different_runs(company: World) -> None:
    assert company.start() != company.start()


def test_one_trigger_is_one_run_while_a_new_version_is_published(
    company: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser of the race computed another id from the older version; it is told the run that there is."""
    name = company.apply(small(unique()))
    insert = room.cases.insert
    inner: list[Begun] = []

    def overtaken(unit: Any, origin: Any, state: str) -> bool:
        monkeypatch.setattr(room.cases, "insert", insert)
        company.apply(small(name, "2", "Changed."))
        inner.append(
            company.parts.start.by_hand(company.tenant, company.actor("ana"), name, {"number": "INC1"}, "race")
        )
        return insert(unit, origin, state)

    monkeypatch.setattr(room.cases, "insert", overtaken)
    outer = company.parts.start.by_hand(company.tenant, company.actor("ana"), name, {"number": "INC1"}, "race")
    assert inner[0].new
    assert (outer.run, outer.new) == (inner[0].run, False)
    assert [row["version"] for row in rows_of(company, "race")] == ["2"]


# --- what a start refuses ---------------------------------------------------------------------------------------------


def refusal(how: Any) -> TwokeysError:
    with pytest.raises(TwokeysError) as caught:
        how()
    return caught.value


def test_an_unknown_tenant_is_named_with_what_to_do(company: World) -> None:
    for how in (
        lambda: company.parts.start.by_hand("nowhere", company.actor("ana"), "small", {}, ""),
        lambda: company.parts.start.by_event("nowhere", "servicenow", "1", {}),
        lambda: company.parts.admit.token("nowhere", None, "per_1", "laptop"),
        lambda: company.parts.admit.person("nowhere", None, name="Nina", level=4),
    ):
        error = refusal(how)
        assert isinstance(error, CallerError)
        assert (error.code, error.field) == ("unknown_tenant", "tenant")
        assert "nowhere" in str(error)
        assert "twokeys tenant add" in error.next_step


@pytest.mark.parametrize("workflow", ["nothing", "small-", "a" * 63])
def test_an_unknown_workflow_is_named_with_what_to_do(company: World, workflow: str) -> None:
    error = refusal(lambda: company.start(workflow, value={}))
    assert (error.code, error.field) == ("unknown_workflow", "workflow")
    assert workflow in str(error)
    assert "twokeys workflow apply" in error.next_step


@pytest.mark.parametrize("workflow", ["", "../etc", "Big", "a b", "a" * 64, "small\n", "'; drop table run; --"])
def test_a_workflow_that_is_no_name_is_refused(company: World, workflow: str) -> None:
    assert refusal(lambda: company.start(workflow, value={})).field == "workflow"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({}, "sys_id"),
        ({**INPUT, "priority": "9"}, "priority"),
        ({**INPUT, "priority": 1}, "priority"),
        ({**INPUT, "sys_id": "not hex"}, "sys_id"),
        ({**INPUT, "short_description": ""}, "short_description"),
        ({**INPUT, "surprise": 1}, "surprise"),
        ({**INPUT, "description": "x" * 4001}, "description"),
        ({**INPUT, "description": "a\x00b"}, "input"),
        ({**INPUT, "number": None}, "number"),
        ({**INPUT, "number": {"$gt": ""}}, "number"),
        ({**INPUT, "description": float("nan")}, "input"),
        ({**INPUT, "description": 2**70}, "input"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_its_field_and_nothing_is_begun(
    company: World, value: dict[str, Any], named: str
) -> None:
    before = stored(company)
    error = refusal(lambda: company.start(value=value, ref=unique()))
    assert (error.code, error.field) == ("invalid_input", "input")
    assert named in error.reason
    assert "incident-triage" in error.next_step
    assert stored(company) == before


def test_every_fault_of_an_input_is_told_at_once(company: World) -> None:
    error = refusal(lambda: company.start(value={"number": "7", "sys_id": INCIDENT, "priority": "9"}))
    assert all(field in error.reason for field in ("number", "priority", "short_description"))


def test_a_paused_workflow_starts_nothing_and_says_so(company: World) -> None:
    name = company.apply(small(unique()))
    with company.parts.database.unit(company.tenant) as unit:
        templates.set_state(unit, name, "1", "paused")
    before = stored(company)
    error = refusal(lambda: company.start(name, value={"number": "INC1"}))
    assert isinstance(error, Refused)
    assert error.code == "paused"
    assert "paused" in str(error)
    assert stored(company) == before


def test_an_archived_workflow_starts_nothing(company: World) -> None:
    name = company.apply(small(unique()))
    begun = company.start(name, value={"number": "INC1"}, ref="before")
    company.parts.publish.archive(company.tenant, company.actor("l5"), name, "1")
    assert refusal(lambda: company.start(name, value={"number": "INC1"})).code == "unknown_workflow"
    # What had begun goes on: a run is pinned to its definition, not to the template's state.
    company.until(begun, "succeeded")


# --- events -----------------------------------------------------------------------------------------------------------


def test_an_unknown_source_is_refused_by_name(company: World, rival: World) -> None:
    subscribe(rival, source="their-source")
    for source in ("unheard-of", "their-source"):
        error = refusal(lambda source=source: company.parts.start.by_event(company.tenant, source, "1", INPUT))
        assert (error.code, error.field) == ("unknown_source", "source")
        assert source in str(error)


def test_a_source_that_the_workflow_does_not_subscribe_to_starts_nothing(company: World) -> None:
    subscribe(company, source="pagerduty")
    before = stored(company)
    error = refusal(lambda: company.parts.start.by_event(company.tenant, "pagerduty", "1", INPUT))
    assert isinstance(error, Refused)
    assert error.code == "not_subscribed"
    assert str(error) == "incident-triage does not subscribe to pagerduty"
    assert stored(company) == before


def test_a_source_of_a_workflow_that_is_not_there_starts_nothing(company: World) -> None:
    subscribe(company, source="early", workflow="later")
    assert refusal(lambda: company.parts.start.by_event(company.tenant, "early", "1", INPUT)).code == "unknown_workflow"


def test_a_source_acts_with_its_principals_rights_and_no_others(world: World) -> None:
    """Deactivated, or of too low a level: the webhook starts nothing, although its signature holds."""
    weak = staff(world, "weak", 3)
    world.who["weak"] = weak
    subscribe(world, person="weak", source="servicenow")
    assert refusal(lambda: world.parts.start.by_event(world.tenant, "servicenow", "1", INPUT)).code == "level"
    subscribe(world)
    world.parts.admit.deactivate(world.tenant, None, world.who["robot"])
    assert refusal(lambda: world.parts.start.by_event(world.tenant, "servicenow", "1", INPUT)).code == "level"


def test_an_event_with_a_bad_input_is_refused_by_its_field(company: World) -> None:
    subscribe(company)
    error = refusal(
        lambda: company.parts.start.by_event(company.tenant, "servicenow", unique(), {**INPUT, "priority": "high"})
    )
    assert "priority" in error.reason
