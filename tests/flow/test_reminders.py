"""People are reminded at half and at four fifths of the time, and escalated to; quiet hours put that off and never the deadline."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from engine.errors import CallerError
from governance.stages.tick import Tick
from governance.store.approvals import Recorded
from governance.store.gates import Gate
from tests.flow.test_windows_and_stops import again, high
from tests.kit.policies import enforce, obliging
from tests.kit.world import World

ESCALATE = obliging('"type": "escalate", "group": "oncall", "after_s": 300', 'input.action.risk_tier == "high"')
UTC = datetime.UTC


def spend(world: World, found: Recorded, share: float, *kinds: str) -> None:
    """As if so much of the time to decide were over, and these clocks had rung."""
    length = found.asked.expires_at - found.asked.requested_at
    with world.parts.database.unit(world.tenant) as unit:
        now = unit.now()
        unit.run(
            "update approval set requested_at = :at, expires_at = :ends where tenant = :tenant and approval = :approval",
            at=now - length * share, ends=now + length * (1 - share), approval=found.asked.id,
        )  # fmt: skip
        for kind in kinds:
            unit.run(
                "update due set at = clock_timestamp() where tenant = :tenant and kind = :kind and ref = :ref",
                kind=kind, ref=found.asked.id,
            )  # fmt: skip
    Tick(world.parts.database).step()


def told(world: World, kind: str) -> list[dict[str, Any]]:
    rows = world.rows("select body from outbox where tenant = :tenant and kind = :kind order by id", kind=kind)
    return [json.loads(bytes(row["body"])) for row in rows]


def clocks(world: World, found: Recorded) -> set[str]:
    rows = world.rows("select kind from due where tenant = :tenant and ref = :ref", ref=found.asked.id)
    return {row["kind"] for row in rows}


def test_those_who_have_not_decided_are_reminded_twice(world: World) -> None:
    """At half in the thread, at four fifths to each of them too; whoever gave a key or is away is left alone, and it is an entry."""
    (team,) = world.rows("select team from installation where tenant = :tenant")
    world.parts.admit.link_slack(world.tenant, None, world.who["ana"], team["team"], "UANA9")
    run, found = high(world)
    world.press(found, "bo")
    world.parts.gate.absent.away(world.tenant, None, "cleo", found.asked.expires_at + datetime.timedelta(days=1))
    spend(world, found, 0.1, "remind")
    assert [one for one in told(world, "said") if "⏰" in one["text"]] == []
    assert "remind" in clocks(world, found)
    spend(world, found, 0.55, "remind")
    (first,) = [one["text"] for one in told(world, "said") if "⏰" in one["text"]]
    assert "50 %" in first
    assert "Not decided yet: ana." in first
    before = len(told(world, "dm"))
    spend(world, found, 0.85, "remind")
    said = [one["text"] for one in told(world, "said") if "⏰" in one["text"]]
    assert "80 %" in said[-1]
    assert [one["user"] for one in told(world, "dm")[before:]] == ["UANA9"]
    assert "remind" not in clocks(world, found)
    assert world.entries(run).count("approval.reminded") == 2
    assert again(world, found).asked.status == "requested"


def test_a_question_that_was_decided_reminds_nobody(world: World) -> None:
    run, found = high(world)
    world.approve(run, "ana", "bo")
    spend(world, found, 0.9, "remind")
    assert [one for one in told(world, "said") if "⏰" in one["text"]] == []
    assert "remind" not in clocks(world, found)


def test_quiet_hours_put_off_a_reminder_and_never_the_deadline(world: World) -> None:
    """All day quiet but for a minute that comes after the deadline: no reminder, and it expires in time all the same."""
    run, found = high(world)
    now = found.asked.requested_at.astimezone(UTC)
    minute = (now.hour * 60 + now.minute - 5) % 1440
    world.parts.gate.settings.set(world.tenant, None, {"quiet_from": (minute + 1) % 1440, "quiet_until": minute})
    spend(world, found, 0.6, "remind")
    assert [one for one in told(world, "said") if "⏰" in one["text"]] == []
    spend(world, found, 1.0, "approval")
    assert again(world, found).asked.status == "expired"
    world.until(run, "failed_terminal")


def test_escalation_tells_another_group_and_gives_it_no_key(world: World) -> None:
    """Policy names the group and the time; Low is told with the others of it and still may not decide."""
    enforce(world, ESCALATE)
    run, found = high(world)
    assert "escalate" in clocks(world, found)
    spend(world, found, 0.1, "escalate")
    assert world.entries(run).count("approval.escalated") == 0
    spend(world, found, 0.5, "escalate")
    (said,) = [one["text"] for one in told(world, "said") if "📣" in one["text"]]
    assert "also with @oncall" in said
    assert world.entries(run).count("approval.escalated") == 1
    assert world.press(found, "low").code == "level"


@pytest.mark.parametrize(
    ("at", "awake"),
    [
        ("21:59", "21:59"),
        ("22:00", "07:30"),
        ("03:00", "07:30"),
        ("07:29", "07:30"),
        ("07:30", "07:30"),
        ("12:00", "12:00"),
    ],
)
def test_quiet_hours_over_midnight_end_in_the_tenants_own_zone(at: str, awake: str) -> None:
    gate = Gate(zone="Europe/Berlin", quiet_from=22 * 60, quiet_until=7 * 60 + 30)
    hour, minute = map(int, at.split(":"))
    local = datetime.datetime.fromisoformat("2026-07-01T00:00+02:00").replace(hour=hour, minute=minute)
    found = gate.awake_at(local.astimezone(UTC)).astimezone(local.tzinfo)
    assert f"{found:%H:%M}" == awake
    assert datetime.timedelta() <= found - local < datetime.timedelta(hours=10)


@pytest.mark.parametrize("changes", [{"zone": "Nowhere/Land"}, {"quiet_from": 1440}, {"review_seconds": 5}])
def test_settings_that_mean_nothing_are_refused(world: World, changes: dict[str, Any]) -> None:
    with pytest.raises(CallerError) as info:
        world.parts.gate.settings.set(world.tenant, None, changes)
    assert info.value.field == next(iter(changes))
