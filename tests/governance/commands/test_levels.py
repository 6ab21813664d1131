"""P11: every command asks for its level at the one choke point, whoever comes through whichever door; a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import Refused
from governance.commands.authority import Actor, token_ref
from tests.governance.commands.kit import LEVELS, begin, small, staff, stored, unique
from tests.kit.world import World

Command = Callable[[World, Actor], object]


def start(world: World, actor: Actor) -> object:
    return world.parts.start.by_hand(world.tenant, actor, "small", {"number": "INC1"}, unique())


def cancel(world: World, actor: Actor) -> object:
    return world.parts.cancel.cancel(world.tenant, actor, begin(world), "not needed")


def resolve(world: World, actor: Actor) -> object:
    return world.parts.resolve.resolve(world.tenant, actor, begin(world), "0", "happened", "I saw it")


def publish(world: World, actor: Actor) -> object:
    return world.parts.publish.apply(world.tenant, actor, small(unique()), "small.yaml")


def archive(world: World, actor: Actor) -> object:
    name = world.apply(small(unique()))
    return world.parts.publish.archive(world.tenant, actor, name, "1")


def add_person(world: World, actor: Actor) -> object:
    return world.parts.admit.person(world.tenant, actor, name=unique(), level=6)


def link_slack(world: World, actor: Actor) -> object:
    return world.parts.admit.link_slack(world.tenant, actor, world.who["olga"], "T0DESK", unique("U"))


def make_token(world: World, actor: Actor) -> object:
    return world.parts.admit.token(world.tenant, actor, world.who["olga"], "laptop")


def deactivate(world: World, actor: Actor) -> object:
    return world.parts.admit.deactivate(world.tenant, actor, staff(world, unique(), 3))


def add_group(world: World, actor: Actor) -> object:
    return world.parts.admit.group(world.tenant, actor, unique(), "A group")


def join(world: World, actor: Actor) -> object:
    return world.parts.admit.join(world.tenant, actor, "oncall", world.who["olga"])


def leave(world: World, actor: Actor) -> object:
    return world.parts.admit.join(world.tenant, actor, "oncall", world.who["olga"], leave=True)


LEAST: dict[Command, int] = {
    start: 4, cancel: 4, resolve: 4, publish: 5, archive: 5,
    add_person: 6, link_slack: 6, make_token: 6, deactivate: 6, add_group: 6, join: 6, leave: 6,
}  # fmt: skip


def refusal(world: World, command: Command, actor: Actor) -> str:
    """The code it is refused with, empty when it is done."""
    try:
        command(world, actor)
    except Refused as refused:
        return refused.code
    return ""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("command", LEAST, ids=lambda command: command.__name__)
def test_each_command_takes_its_level(company: World, command: Command, level: int) -> None:
    code = refusal(company, command, company.actor(f"l{level}"))
    # Nothing is unknown in a run that has not begun: whoever may resolve is told so, the others do not get that far.
    done = "not_unknown" if command is resolve else ""
    assert code == (done if level >= LEAST[command] else "level")


@pytest.mark.parametrize("command", LEAST, ids=lambda command: command.__name__)
def test_an_auditor_reads_and_orders_nothing(company: World, command: Command) -> None:
    assert refusal(company, command, company.actor("aud")) == "auditor"


@pytest.mark.parametrize("command", LEAST, ids=lambda command: command.__name__)
def test_an_owner_who_was_deactivated_orders_nothing(company: World, command: Command) -> None:
    if "gone" not in company.who:
        company.parts.admit.deactivate(company.tenant, None, staff(company, "gone", 6))
    assert refusal(company, command, company.actor("gone")) == "inactive"


@pytest.mark.parametrize("command", LEAST, ids=lambda command: command.__name__)
def test_an_identity_of_nobody_orders_nothing(company: World, rival: World, command: Command) -> None:
    """Unknown, of another tenant, of another kind, or revoked: one answer, which tells a guesser nothing."""
    if "lost" not in company.who:
        staff(company, "lost", 6)
        with company.parts.database.unit(company.tenant) as unit:
            unit.run(
                "update identity set revoked_at = clock_timestamp() where tenant = :tenant and person = :person",
                person=company.who["lost"],
            )
    strangers = (
        Actor("token", token_ref("tk_made_up")),
        rival.actor("rita"),
        Actor("slack", company.actor("rita").ref),
        Actor("token", company.slack_ref("rita")),
        company.actor("lost"),
        Actor("person", company.who["rita"]),
        Actor("", ""),
    )
    assert [refusal(company, command, actor) for actor in strangers] == ["unknown_person"] * len(strangers)


@pytest.mark.parametrize(
    "command", [start, publish, add_person, link_slack, make_token, add_group, join, leave], ids=lambda c: c.__name__
)
def test_a_refusal_changes_nothing(company: World, command: Command) -> None:
    before = stored(company)
    for name in ("l1", "l3", "aud"):
        assert refusal(company, command, company.actor(name)) in ("level", "auditor")
    assert stored(company) == before


def test_a_refused_cancel_and_a_refused_archive_leave_everything_as_it_was(company: World) -> None:
    run, name = begin(company), company.apply(small(unique()))
    before = stored(company)
    for actor in (company.actor("l3"), company.actor("aud")):
        with pytest.raises(Refused):
            company.parts.cancel.cancel(company.tenant, actor, run, "no")
        with pytest.raises(Refused):
            company.parts.publish.archive(company.tenant, actor, name, "1")
    assert stored(company) == before


def test_the_same_person_has_the_same_level_through_slack(company: World) -> None:
    for name, expected in (("ana", ""), ("low", "level"), ("aud", "auditor")):
        actor = Actor("slack", company.slack_ref(name))
        assert refusal(company, start, actor) == expected
    assert refusal(company, publish, Actor("slack", company.slack_ref("ana"))) == "level"


def test_the_message_says_which_level_is_needed_and_which_one_there_is(company: World) -> None:
    with pytest.raises(Refused, match=r"takes level 5 \(author\); yours is 4"):
        publish(company, company.actor("l4"))


@pytest.mark.parametrize("level", LEVELS)
def test_a_key_takes_level_four(company: World, level: int) -> None:
    run = company.start(ref=unique())
    company.until(run, "waiting_approval")
    found = company.waiting(run)
    answer = company.press(found, f"l{level}")
    assert (answer.ok, answer.code) == ((True, "approved") if level >= 4 else (False, "level"))
    given = company.rows("select person from vote where tenant = :tenant and approval = :a", a=found.asked.id)
    assert given == ([{"person": company.who[f"l{level}"]}] if level >= 4 else [])
