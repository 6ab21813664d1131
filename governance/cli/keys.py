"""Orders about signing keys: list, rotate, distrust, and print the policy that auditors pin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governance.cli import frame

if TYPE_CHECKING:
    from governance.commands.keys import Rotate


@click.group("keys")
def group() -> None:
    """A tenant's signing keys; from the operator's shell, which holds the master key."""


def _rotate(seat: frame.Seat) -> Rotate:
    from governance.commands.keys import Rotate

    return Rotate(seat.parts.database, seat.parts.secrets)


_tenant = click.option("--tenant", default="", metavar="TENANT", help="The tenant, or TWOKEYS_TENANT.")


@group.command("list")
@_tenant
@frame.output
def listed(tenant: str, form: str) -> None:
    """Every signing key that the tenant ever had; private halves are never shown."""
    seat = frame.seat(tenant, "", person=False)
    frame.show(
        form,
        [
            {
                "purpose": key.purpose, "key": key.key_id, "state": "compromised" if key.compromised else key.state,
                "signs_until": key.signs_until.isoformat(timespec="seconds") if key.signs_until else "",
                "public": key.public.hex(),
            }
            for key in _rotate(seat).listed(seat.tenant)
        ],
    )  # fmt: skip


@group.command("rotate")
@click.argument("purpose", type=click.Choice(["log", "bundle", "receipt"]))
@_tenant
@click.option(
    "--overlap-days", type=int, default=30, show_default=True, help="So long a log's old key signs beside the new one."
)
def rotate(purpose: str, tenant: str, overlap_days: int) -> None:
    """Let a new key sign from now on; running processes follow within half a minute."""
    seat = frame.seat(tenant, "", person=False)
    click.echo(_rotate(seat).rotate(seat.tenant, purpose, overlap_days))
    frame.say(
        "next: `twokeys keys export-policy`, and give it to auditors and witnesses by another way than the bundles"
    )


@group.command("compromised")
@click.argument("key")
@_tenant
def compromised(key: str, tenant: str) -> None:
    """Believe this key no more: the trust policy leaves it out from now on."""
    seat = frame.seat(tenant, "", person=False)
    _rotate(seat).compromised(seat.tenant, key)
    frame.say("next: `twokeys keys export-policy`; docs/operations.md says what auditors do with older evidence")


@group.command("export-policy")
@_tenant
def export_policy(tenant: str) -> None:
    """Print the trust policy: every key that is believed, and the witnesses."""
    seat = frame.seat(tenant, "", person=False)
    click.echo(seat.parts.trust(seat.tenant), nl=False)
