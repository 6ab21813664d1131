"""Traps that other products fell into, and that no other file holds us out of (docs/slack-traps.md has all thirty)."""

from __future__ import annotations

import json

from governance.slack import buttons
from governance.slack.clicks import Clicks
from governance.slack.endpoint import PATH
from governance.stages.tick import Tick
from governance.store import templates
from tests.governance.slack.kit import click
from tests.kit.world import World


def asked(world: World, ref: str = "") -> str:
    run = world.start(ref=ref)
    world.until(run, "waiting_approval")
    return run


def past_the_deadline(world: World) -> None:
    """As if everything that waits had been asked long ago."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update approval set expires_at = clock_timestamp() - interval '1 second' where tenant = :tenant and status = 'requested'"
        )
        unit.run(
            "update due set at = clock_timestamp() - interval '1 second' where tenant = :tenant and kind = 'approval'"
        )


def test_one_key_of_two_and_silence_is_a_no(world: World) -> None:
    """Trap 3 and 12: nothing is decided by the first key, and the deadline never counts as yes."""
    run = asked(world)
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    assert world.press(world.waiting(run), "ana").code == "key_given"
    assert world.writes("close_code") == []
    past_the_deadline(world)
    Tick(world.parts.database).step()
    world.until(run, "failed_terminal", "failed", "succeeded")
    assert world.writes("close_code") == []
    assert "approval.expired" in world.entries(run)


def test_a_deadline_that_passes_after_the_decision_changes_nothing(world: World) -> None:
    """Trap 5: the clock of a decided request rings once more, and neither decides nor runs anything again."""
    run = asked(world)
    found = world.approve(run, "ana")
    world.until(run, "waiting_approval")
    writes, entries = world.writes("impact"), len(world.entries(run))
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "insert into due (tenant, kind, ref, at) values (:tenant, 'approval', :ref, clock_timestamp() - interval '1 hour') "
            "on conflict (tenant, kind, ref) do update set at = excluded.at",
            ref=found.asked.id,
        )
    Tick(world.parts.database).step()
    world.drain()
    assert (world.writes("impact"), len(world.entries(run))) == (writes, entries)
    assert "approval.expired" not in world.entries(run)


def test_each_button_decides_its_own_request_only(world: World) -> None:
    """Trap 21: two open requests in one channel, a press through the very handlers on the second of them."""
    first, second = asked(world, "a"), asked(world, "b")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        installed = templates.installation(unit)
    assert installed is not None
    world.parts.admit.link_slack(world.tenant, None, world.who["ana"], installed.team, "U0ANA")
    card = world.parts.records.approval(world.tenant, world.waiting(second).asked.id)
    value = buttons.value_of(card, buttons.APPROVE, "test", world.parts.button_mac)
    payload = click(
        buttons.APPROVE,
        value,
        team={"id": installed.team},
        api_app_id="A0DESK",
        user={"id": "U0ANA", "team_id": installed.team},
    )
    assert Clicks(world.parts.doors.seams()).action(payload).status == 200
    assert world.waiting(first).votes == ()
    assert world.rows("select approval from vote where tenant = :tenant") == [{"approval": card.approval}]


def test_no_link_decides(world: World) -> None:
    """Trap 6: whoever fetches what a card holds, a scanner or a preview, changes nothing; Slack's door takes POST alone."""
    run = asked(world)
    world.post()
    (route,) = world.parts.doors.routes()
    assert route.path == PATH
    assert route.methods == {"POST"}
    (card,) = [arguments for method, arguments in world.slack.calls if method == "chat.postMessage"]
    assert '"url"' not in json.dumps(card["blocks"]), "no button of a card is a link"
    assert world.waiting(run).asked.status == "requested"
