"""P6, P10, P13: Slack being down decides nothing, tenants do not see each other, a new version leaves runs alone."""

from __future__ import annotations

import json

import pytest

from engine.errors import CallerError, Refused
from governance.wiring import Parts
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import SAMPLE, World, settle


def cards(world: World, method: str) -> list[str]:
    return [arguments["text"] for name, arguments in world.slack.calls if name == method]


def test_slack_being_down_never_approves_and_never_loses_a_decision(world: World) -> None:
    """P6: the question stands in the console, a key given there counts, and the card shows it once Slack is back."""
    run = world.start()
    world.slack.down = True
    world.until(run, "waiting_approval")
    world.post()
    found = world.waiting(run)
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "ana").code == "approved"
    world.until(run, "waiting_approval")
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
    world.slack.down = False
    world.slack.calls.clear()
    for _ in range(20):
        world.post()
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
        if not world.rows("select id from outbox where tenant = :tenant"):
            break
    assert world.rows("select id from outbox where tenant = :tenant") == []
    first = world.row(
        "select ts, rendered, wanted from card where tenant = :tenant and approval = :a", a=found.asked.id
    )
    assert first is not None
    assert first["ts"]
    last = [
        arguments for _, arguments in world.slack.calls if arguments.get("ts") == first["ts"] or "ana" in str(arguments)
    ]
    assert last, "the key that was given in the console is on the card"


def test_the_card_is_settled_when_the_step_is_over(world: World) -> None:
    """The phases go on to the end: asked, decided, done."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.post()
    assert len(cards(world, "chat.postMessage")) == 1
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.post()
    updates = [arguments for name, arguments in world.slack.calls if name == "chat.update"]
    assert updates
    blocks = updates[-1]["blocks"]
    shown = blocks if isinstance(blocks, str) else json.dumps(blocks)
    assert "tk_approve" not in shown
    assert "Done" in shown


def test_a_run_goes_on_under_the_definition_it_started_with(world: World) -> None:
    """P13: a new active version changes nothing for a run that waits."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.apply(
        SAMPLE.read_text()
        .replace('version: "1"', 'version: "2"')
        .replace("risk: high", "risk: high", 1)
        .replace("Solved (Permanently)", "Closed/Resolved by Caller")
    )
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    world.until(run, "succeeded")
    assert world.writes("close_code") == ["Solved (Permanently)"]
    assert world.case(world.start(ref="later")).origin.version == "2"


def test_one_tenant_cannot_see_or_decide_what_is_anothers(
    world: World, parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow
) -> None:
    """P10: another tenant's run, approval and token are unknown, not forbidden."""
    other = settle(parts, slack_sink, servicenow)
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    foreign = World(parts, other.tenant, slack_sink, servicenow, other.who)
    answer = foreign.press(found, "ana")
    assert answer.code == "unknown_approval"
    with pytest.raises(CallerError, match="unknown here"):
        foreign.case(run)
    with pytest.raises(Refused, match="belongs to nobody here"):
        parts.cancel.cancel(world.tenant, other.actor("ana"), run, "not mine")
    assert world.case(run).state == "waiting_approval"


def test_the_workflows_own_cap_on_writes_holds(world: World) -> None:
    """P15: a definition may tighten; the step that would pass it ends with the reason."""
    world.apply(
        SAMPLE.read_text()
        .replace("max_writes_per_run: 4", "max_writes_per_run: 1")
        .replace('version: "1"', 'version: "3"')
    )
    run = world.start(ref="capped")
    world.until(run, "failed_terminal")
    assert "cap_writes_per_run" in world.steps(run)["raise"]
    assert world.writes("close_code") == []
