"""Orders about a tenant's Slack workspace: check that everything works, and say what to do where it does not."""

from __future__ import annotations

import click

from governance.cli import frame

_tenant = click.option("--tenant", default="", metavar="TENANT", help="The tenant, or TWOKEYS_TENANT.")


@click.group("slack")
def group() -> None:
    """A tenant's Slack workspace."""


@group.command("check")
@_tenant
@click.option("--manifest", default="", metavar="FILE", help="Compare the manifest that the app was made from as well.")
@click.option("--no-post", is_flag=True, help="Do not post (and delete) a message in the channel.")
@frame.output
def check(tenant: str, manifest: str, no_post: bool, form: str) -> int:
    """Ask Slack for token, permissions, clock, round trip and channel, and our own address for what Slack would send."""
    from engine.errors import OperatorError
    from governance import clock
    from governance.slack.check import FAIL, Check, Subject
    from governance.store import templates

    seat = frame.seat(tenant, "", person=False)
    settings = seat.parts.settings
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        installed = templates.installation(unit)
    if installed is None:
        raise OperatorError(
            "no Slack workspace is installed", field=seat.tenant, next_step="`twokeys tenant slack`; docs/slack.md"
        )
    subject = Subject(
        installed=installed, token=seat.parts.reach.slack_token(seat.tenant), api_base=settings.slack_api_base, local=settings.local,
        app_id=settings.slack_app_id, public_url=settings.public_url, signing_secret=settings.slack_signing_secret,
    )  # fmt: skip
    text = frame.read_file(manifest).decode("utf-8", "replace") if manifest else ""
    asking = Check(subject, now=clock.epoch_seconds, monotonic=clock.monotonic)
    rows = []
    for one in asking.findings(posts=not no_post, manifest=text):
        rows.append({"check": one.check, "state": one.state, "what": one.what, "next": one.next_step})
    frame.show(form, rows)
    return frame.FAILED if any(row["state"] == FAIL for row in rows) else frame.OK
