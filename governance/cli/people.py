"""Orders about people and groups: who there is, what identities they have, who may hold keys."""

from __future__ import annotations

import click

from governance.cli import frame


@click.group("person")
def people() -> None:
    """People and service principals of a tenant.

    Without a token these orders come from the operator's shell; with one, from that person, who must be an owner.
    """


@people.command("add")
@click.argument("name")
@frame.asking
@click.option(
    "--level",
    type=click.IntRange(1, 6),
    required=True,
    help="1 auditor, 2 viewer, 3 member, 4 operator, 5 author, 6 owner.",
)
@click.option("--service", is_flag=True, help="A service principal, not a person: it never holds a key.")
@click.option("--read-only", is_flag=True, help="An auditor: reads everything, changes nothing.")
@frame.output
def add(name: str, tenant: str, token: str, level: int, service: bool, read_only: bool, form: str) -> None:
    """Add a person; prints the id that evidence will name."""
    seat = frame.seat(tenant, token, person=False)
    kind = "service" if service else "human"
    made = seat.parts.admit.person(seat.tenant, seat.actor, name=name, level=level, kind=kind, read_only=read_only)
    frame.show_one(form, {"person": made, "name": name, "level": level, "kind": kind})


@people.command("own")
@click.argument("service")
@frame.asking
@click.option(
    "--by", "owner", required=True, metavar="PERSON", help="Who answers for it, and holds no key for what it starts."
)
def own(service: str, tenant: str, token: str, owner: str) -> None:
    """Name who answers for a service principal (ids or exact names); without that it starts nothing."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.own(seat.tenant, seat.actor, service, owner)
    frame.say(f"{owner} answers for {service}")


@people.command("link")
@click.argument("person")
@frame.asking
@click.option(
    "--slack", "slack", required=True, metavar="TEAM:USER", help="Their Slack identity, for example T0ACME:U0ALICE."
)
def link(person: str, tenant: str, token: str, slack: str) -> None:
    """Link a Slack identity to a person (id or exact name)."""
    from engine.errors import CallerError

    team, colon, user = slack.partition(":")
    if not (team and colon and user):
        raise CallerError(
            "is not TEAM:USER", field="--slack", next_step="copy both ids from Slack, for example T0ACME:U0ALICE"
        )
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.link_slack(seat.tenant, seat.actor, person, team, user)
    frame.say(f"{slack} is {person}")


@people.command("token")
@click.argument("person")
@frame.asking
@click.option("--label", default="made at the shell", help="What it is for.")
def token_(person: str, tenant: str, token: str, label: str) -> None:
    """Make a personal token for a person; it is shown this once."""
    seat = frame.seat(tenant, token, person=False)
    click.echo(seat.parts.admit.token(seat.tenant, seat.actor, person, label))
    frame.say("this is shown once; only its hash is kept")


@people.command("deactivate")
@click.argument("person")
@frame.asking
def deactivate(person: str, tenant: str, token: str) -> None:
    """From now on nothing of this person opens a door or counts as a key."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.deactivate(seat.tenant, seat.actor, person)
    frame.say(f"{person} is deactivated")


@people.command("away")
@click.argument("person", default="")
@frame.asking
@click.option(
    "--until",
    required=True,
    metavar="TIME",
    help="When they are back: 2026-12-01 or 2026-12-01T08:00+01:00 (else UTC).",
)
@click.option("--from", "since", default="", metavar="TIME", help="From when; without it, from now.")
@click.option("--delegate", default="", metavar="PERSON", help="Who may turn keys in their place meanwhile.")
def away(person: str, tenant: str, token: str, until: str, since: str, delegate: str) -> None:
    """Say that a person is away, yourself without a name; whoever stands in for them never counts as a second person."""
    seat = frame.seat(tenant, token, person=False)
    begins = frame.moment(since, "--from") if since else None
    done = seat.parts.gate.absent.away(
        seat.tenant, seat.actor, person, frame.moment(until, "--until"), delegate=delegate, since=begins
    )
    stands = f"{delegate} stands in for them" if done.delegate else "nobody stands in for them"
    frame.say(f"{person or 'you'}: away until {done.until_at:%Y-%m-%d %H:%M} UTC; {stands}")


@people.command("back")
@click.argument("person", default="")
@frame.asking
def back(person: str, tenant: str, token: str) -> None:
    """Say that a person is back, yourself without a name."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.gate.absent.back(seat.tenant, seat.actor, person)
    frame.say(f"{person or 'you'}: not away any more")


@people.command("list")
@frame.asking
@frame.output
def list_(tenant: str, token: str, form: str) -> None:
    """Everybody in the tenant."""
    from governance.store import people as store

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = list(store.profiles(unit).values())
    rows = [
        {
            "person": p.person, "name": p.name, "level": p.level, "kind": p.kind, "active": p.active, "read_only": p.read_only,
            "groups": list(p.groups),
        }
        for p in found
    ]  # fmt: skip
    frame.show(form, rows, empty="nobody yet: `twokeys person add`")


@click.group("group")
def groups() -> None:
    """Groups of possible key holders, as policy names them."""


@groups.command("add")
@click.argument("group")
@frame.asking
@click.option("--name", default="", help="What people call it.")
def add_group(group: str, tenant: str, token: str, name: str) -> None:
    """Add a group."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.group(seat.tenant, seat.actor, group, name or group)
    frame.say(f"group {group} is there; `twokeys group join {group} PERSON`")


@groups.command("join")
@click.argument("group")
@click.argument("person")
@frame.asking
def join(group: str, person: str, tenant: str, token: str) -> None:
    """Put a person into a group."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.join(seat.tenant, seat.actor, group, person)
    frame.say(f"{person} is in {group}")


@groups.command("leave")
@click.argument("group")
@click.argument("person")
@frame.asking
def leave(group: str, person: str, tenant: str, token: str) -> None:
    """Take a person out of a group; their open keys no longer count."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.join(seat.tenant, seat.actor, group, person, leave=True)
    frame.say(f"{person} is not in {group}")


@groups.command("list")
@frame.asking
@frame.output
def list_groups(tenant: str, token: str, form: str) -> None:
    """Every group and who could hold a key through it now."""
    from governance.store import people as store

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        profiles, members = store.profiles(unit), store.group_members(unit)
    rows = [
        {"group": g, "key_holders": sorted(profiles[p].name for p in people)} for g, people in sorted(members.items())
    ]
    frame.show(form, rows, empty="no group yet: `twokeys group add`")
