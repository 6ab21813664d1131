"""The order that tells how an OPA server of one's own takes a tenant's policy from the shelf."""

from __future__ import annotations

import json

import click

from governance.cli import frame


@click.command("server-config")
@click.option("--poll", "poll_seconds", type=click.IntRange(1, 300), default=5, show_default=True, metavar="SECONDS")
@frame.asking
def server_config(poll_seconds: int, tenant: str, token: str) -> None:
    """The configuration of an OPA server for this tenant: where it polls the signed bundle, and the key that it checks it with."""
    seat = frame.seat(tenant, token, person=False)
    click.echo(json.dumps(seat.parts.policy_server_config(seat.tenant, poll_seconds), indent=2))
