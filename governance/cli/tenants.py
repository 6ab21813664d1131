"""Orders about a tenant: add it, connect its systems, name its webhook sources and its Slack workspace."""

from __future__ import annotations

import re

import click

from governance.cli import frame

_tenant = click.option("--tenant", default="", metavar="TENANT", help="The tenant, or TWOKEYS_TENANT.")


@click.group("tenant")
def group() -> None:
    """Tenants: a company's own people, keys, policy, connections and log."""


@group.command("add")
@click.argument("tenant")
@click.option("--name", default="", help="What people call it.")
@click.option("--environment", type=click.Choice(["prod", "staging", "dev"]), default="prod", show_default=True)
@frame.output
def add(tenant: str, name: str, environment: str, form: str) -> None:
    """Add a tenant with its own keys and the shipped policy."""
    parts = frame.open_parts()
    parts.admit.tenant(tenant, name or tenant, environment)
    frame.show_one(form, {"tenant": tenant, "environment": environment})
    frame.say("next: `twokeys person add`, `twokeys group add`, `twokeys tenant slack`")


@group.command("connect")
@click.argument("connector", type=click.Choice(["servicenow"]))
@_tenant
@click.option("--instance", required=True, help="A short name of the instance; part of what is approved.")
@click.option("--url", required=True, help="Where the instance is, https://...")
@click.option("--user", required=True, help="The account that we use there.")
@click.option("--secret-file", required=True, metavar="FILE", help="Its password in a file, or - for stdin.")
@click.option(
    "--calls-per-min", type=int, help="The most calls in any minute; without it, what the connector declares."
)
def connect(
    connector: str, tenant: str, instance: str, url: str, user: str, secret_file: str, calls_per_min: int | None
) -> None:
    """Say where this tenant's instance of a connector is; its password is sealed."""
    seat = frame.seat(tenant, "", person=False)
    seat.parts.admit.connection(seat.tenant, connector, instance, url, user, secret_of(secret_file), calls_per_min)
    frame.say(f"{connector} of {seat.tenant} is {url} as {user}")


@group.command("source")
@click.argument("source")
@_tenant
@click.option("--kind", default="servicenow", show_default=True, help="What sends it.")
@click.option("--workflow", required=True, help="The workflow that it starts.")
@click.option("--as", "person", required=True, help="The service principal that it starts runs as.")
@click.option("--owner", required=True, help="Who answers for it, and so never holds a key for its runs.")
@click.option("--workspace", default="main", show_default=True, help="Where its runs belong.")
@click.option("--secret-file", required=True, metavar="FILE", help="Its signing secret in a file, or - for stdin.")
def source(
    source: str, tenant: str, kind: str, workflow: str, person: str, owner: str, workspace: str, secret_file: str
) -> None:
    """Name a signed webhook source and who answers for it."""
    seat = frame.seat(tenant, "", person=False)
    secret = secret_of(secret_file)
    seat.parts.admit.source(
        seat.tenant,
        source,
        kind=kind,
        secret=secret,
        workflow=workflow,
        person=person,
        owner=owner,
        workspace=workspace,
    )
    frame.say(
        f"{source} starts {workflow} at {seat.parts.settings.public_url.rstrip('/')}/hooks/{seat.tenant}/{source}"
    )


@group.command("slack")
@_tenant
@click.option("--team", required=True, help="The workspace's id, T...")
@click.option("--channel", required=True, help="Where cards are posted, C...")
@click.option("--bot-user", required=True, help="The bot's own user id, U...")
@click.option("--token-file", required=True, metavar="FILE", help="The bot token xoxb-... in a file, or - for stdin.")
def slack(tenant: str, team: str, channel: str, bot_user: str, token_file: str) -> None:
    """Name the Slack workspace and channel that this tenant's cards go to."""
    seat = frame.seat(tenant, "", person=False)
    app, token = seat.parts.settings.slack_app_id, secret_of(token_file)
    seat.parts.admit.slack(seat.tenant, team=team, app_id=app, bot_user=bot_user, token=token, channel=channel)
    frame.say(f"cards of {seat.tenant} go to {channel} in {team}; link people with `twokeys person link`")


@group.command("workspace")
@click.argument("workspace")
@frame.asking
@click.option("--name", default="", help="What people call it.")
@frame.output
def workspace(workspace: str, tenant: str, token: str, name: str, form: str) -> None:
    """Add a workspace: a part of the tenant whose runs have caps and turns of their own."""
    seat = frame.seat(tenant, token, person=False)
    seat.parts.admit.workspace(seat.tenant, seat.actor, workspace, name)
    frame.show_one(form, {"tenant": seat.tenant, "workspace": workspace})
    frame.say("next: `twokeys tenant caps --workspace`, and `--workspace` where runs are started")


@group.command("workspaces")
@frame.asking
@frame.output
def workspaces(tenant: str, token: str, form: str) -> None:
    """Every workspace of the tenant."""
    from governance.store import people

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = people.workspaces(unit)
    frame.show(form, [{"workspace": one, "name": name} for one, name in found.items()], empty="there is none")


@group.command("gate")
@frame.asking
@click.option(
    "--rule-author/--no-rule-author",
    default=None,
    help="Whether the last author of the rule that set the tier holds no key.",
)
@click.option("--quiet", metavar="HH:MM-HH:MM", help="When nobody is reminded; deadlines stay. `none` for never.")
@click.option("--zone", metavar="ZONE", help="The time zone of the quiet hours, for example Europe/Berlin.")
@click.option("--review-hours", type=click.IntRange(1, 720), help="How long the review of a broken glass may be owed.")
@frame.output
def gate(
    tenant: str,
    token: str,
    rule_author: bool | None,
    quiet: str | None,
    zone: str | None,
    review_hours: int | None,
    form: str,
) -> None:
    """Show how approvals are asked for, or change what is given."""
    from dataclasses import asdict

    from governance.store import gates as store

    seat = frame.seat(tenant, token, person=False)
    changes: dict[str, object] = {}
    if quiet is not None:
        changes["quiet_from"], changes["quiet_until"] = _quiet(quiet)
    given = {"rule_author": rule_author, "zone": zone, "review_seconds": review_hours and review_hours * 3600}
    changes |= {name: value for name, value in given.items() if value is not None}
    if changes:
        found = seat.parts.gate.settings.set(seat.tenant, seat.actor, changes)
    else:
        seat.require("read")
        with seat.parts.database.unit(seat.tenant, write=False) as unit:
            found = store.of(unit)
    frame.show_one(form, asdict(found))


def _quiet(text: str) -> tuple[int, int]:
    from engine.errors import CallerError

    found = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if text == "none":
        return 0, 0
    if found is None:
        raise CallerError("is not HH:MM-HH:MM", field="--quiet", next_step="for example 20:00-07:30, or none")
    hours = [int(part) for part in found.groups()]
    return hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]


@group.command("caps")
@frame.asking
@click.option("--workspace", default="", help="Of this workspace; without it, of the whole tenant.")
@click.option("--max-concurrency", metavar="N", help="Operations under way at the same moment.")
@click.option(
    "--max-concurrent-runs", metavar="N", help="Runs that have begun and not ended, those that wait included."
)
@click.option("--max-runs-per-min", metavar="N", help="Runs that begin within any sixty seconds.")
@click.option("--max-writes-per-run", metavar="N", help="Effects of a run and its children that are not reads.")
@click.option("--weight", metavar="N", help="Its share when others wait too: 3 has three turns where 1 has one.")
@frame.output
def caps(tenant: str, token: str, workspace: str, weight: str | None, form: str, **given: str | None) -> None:
    """Show the caps, or set those that are given; `none` takes one away. What is over a cap waits, and nothing is lost."""
    from engine.program.caps import NAMES
    from governance.store import caps as store

    seat = frame.seat(tenant, token, person=False)
    changes = {name: _cap(value, name) for name, value in given.items() if value is not None}
    share = None if weight is None else _cap(weight, "weight")
    if changes or share is not None:
        seat.parts.caps.set(seat.tenant, seat.actor, workspace, changes, share)
    else:
        seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = store.listed(unit)
    rows = [
        {
            "scope": each.scope,
            "of": each.of,
            "weight": each.weight,
            **{name: getattr(each.caps, name) for name in NAMES},
        }
        for each in found
    ]
    frame.show(form, rows, empty="no cap is set: whatever is started begins when its turn comes")


def _cap(value: str, name: str) -> int | None:
    from engine.errors import CallerError

    if value == "none" and name != "weight":
        return None
    try:
        return int(value)
    except ValueError:
        raise CallerError(f"is a whole number or `none`, not {value!r}", code="bad_cap", field=name) from None


def secret_of(path: str) -> str:
    """The one line of a secret's file."""
    from engine.errors import CallerError

    try:
        secret = frame.read_file(path).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise CallerError("is not text", field=path) from None
    if not secret or "\n" in secret:
        raise CallerError("holds no single line of text", field=path, next_step="put the secret alone into the file")
    return secret
