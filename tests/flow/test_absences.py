"""Out of office: somebody stands in, both names are told, and nobody becomes two people."""

from __future__ import annotations

import datetime

import pytest

from engine.errors import CallerError, Refused
from tests.flow.test_windows_and_stops import again, high, verified
from tests.kit.world import World


def soon(world: World, hours: int = 8) -> datetime.datetime:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return unit.now() + datetime.timedelta(hours=hours)


def test_a_delegate_gives_a_key_in_the_absent_persons_place_and_both_are_named(sealing_world: World) -> None:
    """Olga, in no group, for Bo; the record, the card, the thread and the bundle say so, and the bundle verifies."""
    world = sealing_world
    run, found = high(world)
    assert world.press(found, "olga").code == "not_approver"
    world.parts.gate.absent.away(world.tenant, world.actor("bo"), "", soon(world), delegate="olga")
    assert world.press(found, "olga").code == "key_given"
    assert world.press(found, "bo").code == "delegate"
    card = world.parts.records.approval(world.tenant, found.asked.id)
    assert [name for name, _, _ in card.given] == ["olga for bo"]
    assert again(world, found).votes[0].for_person == world.who["bo"]
    world.approve(run, "ana")
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1
    assert verified(world, run) == (0, [])


def test_somebody_who_is_back_or_was_never_away_has_no_delegate(world: World) -> None:
    """Only while the absence lasts; coming back ends it at once, and a key that was given stands."""
    run, found = high(world)
    until = soon(world)
    world.parts.gate.absent.away(
        world.tenant, None, "bo", until, delegate="olga", since=until - datetime.timedelta(hours=1)
    )
    assert world.press(found, "olga").code == "not_approver"
    world.parts.gate.absent.away(world.tenant, None, "bo", until, delegate="olga")
    assert world.press(found, "olga").code == "key_given"
    world.parts.gate.absent.back(world.tenant, world.actor("bo"), "")
    assert world.press(found, "bo").code == "delegate", "his key was given in his place"
    assert world.press(found, "cleo").code == "approved"
    world.until(run, "succeeded")


def test_who_may_say_it_and_for_whom(world: World) -> None:
    """Oneself, or an owner; never for a service, never oneself in one's own place, never without an end."""
    absent, until = world.parts.gate.absent, soon(world)
    absent.away(world.tenant, world.actor("rita"), "ana", until, delegate="cleo")
    with pytest.raises(Refused):
        absent.away(world.tenant, world.actor("ana"), "bo", until, delegate="ana")
    for person, delegate in (
        ("robot", "ana"),
        *(("bo", nobody) for nobody in ("bo", "dan", "low", "aud", "robot", "who")),
    ):
        with pytest.raises(CallerError):
            absent.away(world.tenant, None, person, until, delegate=delegate)
    with pytest.raises(CallerError):
        absent.away(world.tenant, None, "bo", until - datetime.timedelta(days=2))
    with pytest.raises(Refused):
        absent.back(world.tenant, None, "bo")
