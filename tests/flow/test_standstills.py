"""One person stops things at once, for a tenant, a workspace, a connector or everything; going on takes two others."""

from __future__ import annotations

import pytest

from engine.errors import CallerError, Refused
from engine.gate.own import CONNECTOR, THAW
from engine.program.one_step import Proposal
from governance.store import standstills
from tests.flow.test_one_action import NOTE, READ, propose, seen
from tests.kit.world import World


def freeze(world: World, *, scope: str = "tenant", name: str = "", by: str = "olga") -> str:
    return world.parts.freezes.freeze(
        world.tenant, world.actor(by), "something is wrong", scope=scope, name=name
    ).freeze


def ended(world: World, action: str) -> tuple[str, list[str]]:
    world.until(action, "succeeded", "failed_terminal")
    found = seen(world, action)
    return found.state, [code for code, _ in found.reasons]


def test_a_freeze_of_one_person_stops_writes_and_lets_reads_pass(world: World) -> None:
    freeze(world)
    assert ended(world, propose(world, NOTE, "k-1")) == ("denied", ["freeze"])
    assert ended(world, propose(world, READ, "k-2"))[0] == "done"


def test_a_freeze_of_a_connector_is_about_that_connector(world: World) -> None:
    freeze(world, scope="connector", name="slack")
    assert ended(world, propose(world, NOTE, "k-1"))[0] == "done"
    freeze(world, scope="connector", name="servicenow")
    assert ended(world, propose(world, NOTE, "k-2")) == ("denied", ["freeze"])


def test_a_freeze_of_a_workspace_is_about_that_workspace(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("insert into workspace (tenant, workspace, name) values (:tenant, 'other', 'Other')")
    freeze(world, scope="workspace", name="other")
    assert ended(world, propose(world, NOTE, "k-1"))[0] == "done"
    freeze(world, scope="workspace", name="main")
    assert ended(world, propose(world, NOTE, "k-2")) == ("denied", ["freeze"])


def test_the_kill_switch_stops_reads_too(world: World) -> None:
    world.parts.freezes.kill_switch(world.tenant, world.actor("olga"), "all of it")
    assert ended(world, propose(world, READ, "k-1")) == ("denied", ["kill_switch"])


def test_a_freeze_that_falls_after_the_verdict_stops_the_intent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of the intent sees the mark, however young the verdict is."""
    action = propose(world, NOTE)
    intend = type(world.parts.execute).intend
    frozen: list[str] = []

    def frozen_first(*args: object, **more: object) -> object:
        if not frozen:
            frozen.append(freeze(world, scope="connector", name="servicenow"))
        return intend(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.parts.execute), "intend", frozen_first)
    assert ended(world, action) == ("denied", ["freeze"])
    assert not world.writes("work_notes")


@pytest.mark.parametrize("scope", ["tenant", "kill_switch"])
def test_thawing_takes_two_others_while_everything_stands_still(world: World, scope: str) -> None:
    found = freeze(world, scope=scope)
    run = world.parts.changes.thaw(world.tenant, world.actor("olga"), found, "it was a false alarm").run
    world.until(run, "waiting_approval")
    assert world.waiting(run).asked.keys == 2
    assert not world.press(world.waiting(run), "olga").ok
    world.approve(run, "ana")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert [one.freeze for one in standstills.open_ones(unit)] == [found]
    world.approve(run, "bo")
    world.until(run, "succeeded")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert standstills.open_ones(unit) == ()
    assert ended(world, propose(world, NOTE, "k-9"))[0] == "done"
    again = world.row("select kill_switch, freeze_id from tenant where tenant = :tenant")
    assert again == {"kill_switch": False, "freeze_id": ""}


def test_lifting_one_freeze_leaves_the_others(world: World) -> None:
    first, second = freeze(world, scope="connector", name="slack"), freeze(world, scope="connector", name="servicenow")
    run = world.parts.changes.thaw(world.tenant, world.actor("olga"), first, "slack is fine").run
    world.until(run, "waiting_approval")
    world.approve(run, "ana", "bo")
    world.until(run, "succeeded")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert [one.freeze for one in standstills.open_ones(unit)] == [second]
    assert ended(world, propose(world, NOTE, "k-9")) == ("denied", ["freeze"])


def test_who_may_stop_and_what_must_be_said(world: World) -> None:
    with pytest.raises(Refused, match="takes level 4"):
        freeze(world, by="low")
    with pytest.raises(Refused, match="auditor"):
        freeze(world, by="aud")
    with pytest.raises(CallerError, match="say why"):
        world.parts.freezes.freeze(world.tenant, world.actor("olga"), " \n")
    with pytest.raises(CallerError, match="there is no connector 'jira'"):
        freeze(world, scope="connector", name="jira")
    with pytest.raises(CallerError, match="there is no connector 'twokeys'"):
        freeze(world, scope="connector", name=CONNECTOR)
    with pytest.raises(CallerError, match="there is no workspace 'moon'"):
        freeze(world, scope="workspace", name="moon")
    with pytest.raises(CallerError, match="which workspace or connector"):
        freeze(world, scope="connector")
    freeze(world)
    with pytest.raises(CallerError, match="stands still already"):
        freeze(world)


def test_a_freeze_set_by_an_operators_own_hand_stops_everything(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set freeze_id = 'year-end' where tenant = :tenant")
    assert ended(world, propose(world, NOTE, "k-1")) == ("denied", ["freeze"])
    with pytest.raises(CallerError, match="operator's own hand"):
        freeze(world, scope="connector", name="slack")


def test_no_agent_and_no_author_lifts_a_freeze(world: World) -> None:
    """The product's own operations are in nobody's catalogue; a run that was begun for something else does none of them."""
    found = freeze(world)
    with pytest.raises(CallerError, match="there is no connector 'twokeys'"):
        propose(world, Proposal(CONNECTOR, THAW, found, {"lifts": "all", "reason": "please"}))
