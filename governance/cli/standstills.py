"""Orders to stop and to go on: freeze, the kill switch, and thaw, which asks others."""

from __future__ import annotations

import click

from governance.cli import frame


@click.command("freeze")
@click.option("--workspace", default="", help="Only what is done in this workspace.")
@click.option("--connector", default="", help="Only what this connector does.")
@click.option("--reason", required=True, help="Why; others read it.")
@frame.asking
@frame.output
def freeze(workspace: str, connector: str, reason: str, tenant: str, token: str, form: str) -> int:
    """Nothing is changed from now on; reads go on. One person does this; going on takes two others (`thaw`)."""
    if workspace and connector:
        raise click.UsageError("give --workspace or --connector, or neither")
    scope = "workspace" if workspace else "connector" if connector else "tenant"
    return _stop(scope, workspace or connector, reason, tenant, token, form)


@click.command("kill-switch")
@click.option("--reason", required=True, help="Why; others read it.")
@frame.asking
@frame.output
def kill_switch(reason: str, tenant: str, token: str, form: str) -> int:
    """Nothing runs from now on, reads neither. One person does this; going on takes two others (`thaw`)."""
    return _stop("kill_switch", "", reason, tenant, token, form)


def _stop(scope: str, name: str, reason: str, tenant: str, token: str, form: str) -> int:
    seat = frame.seat(tenant, token, person=True)
    made = seat.parts.freezes.freeze(seat.tenant, seat.person, reason, scope=scope, name=name)
    frame.show_one(form, {"freeze": made.freeze, "stops": str(made)})
    frame.say(f"next: `twokeys thaw {made.freeze} --reason ...` when it is over; two others decide")
    return frame.OK


@click.command("thaw")
@click.argument("found", metavar="[FREEZE]", required=False, default="")
@click.option("--reason", default="", help="Why it is over, for those who decide.")
@click.option("--list", "listing", is_flag=True, help="Show what stands still, and change nothing.")
@click.option(
    "--wait", type=click.IntRange(0, 86_400), default=0, show_default=True, metavar="SECONDS", help="Wait for its end."
)
@frame.asking
@frame.output
def thaw(found: str, reason: str, listing: bool, wait: int, tenant: str, token: str, form: str) -> int:
    """Ask for the end of a freeze or of the kill switch: two people besides you decide. Without FREEZE, of the only one."""
    from engine.errors import CallerError
    from governance.cli.actions import show_action
    from governance.store import people, standstills

    seat = frame.seat(tenant, token, person=not listing)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        still = standstills.open_ones(unit)
        names = {one.person: one.name for one in people.profiles(unit).values()}
    if listing:
        rows = [
            {"freeze": one.freeze, "stops": str(one), "by": names.get(one.by, one.by), "reason": one.reason}
            for one in still
        ]
        frame.show(form, rows, empty="nothing stands still")
        return frame.OK
    if not found and len(still) != 1:
        what = "nothing stands still" if not still else f"{len(still)} freezes are in force"
        raise CallerError(what, field="freeze", next_step="`twokeys thaw --list`")
    begun = seat.parts.changes.thaw(seat.tenant, seat.person, found or still[0].freeze, reason)
    frame.say(f"{'proposed as' if begun.new else 'asked already, in'} run {begun.run}")
    return show_action(seat, begun.run, wait, form)


COMMANDS = (freeze, kill_switch, thaw)
