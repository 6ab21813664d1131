"""Orders of whoever runs an installation: is it set up right, could it do its duty, and does what it stored agree."""

from __future__ import annotations

import click

from governance.cli import frame


@click.command("fsck")
@click.option("--tenant", default="", metavar="TENANT", help="Only this tenant; every tenant when not given.")
@frame.output
def fsck(tenant: str, form: str) -> int:
    """Check every invariant of the live database and list what does not agree; reads only, 1 when anything was found.

    Journals, what pages show of them, proposals, verdicts, keys, intents, receipts and their signatures, the chains of
    entries, the log's tree and its checkpoints. Work goes on meanwhile.
    """
    from governance.store import people

    parts = frame.open_parts()
    if tenant:
        with parts.database.unit(tenant, write=False) as unit:
            people.tenant(unit)
    tenants = [tenant] if tenant else list(parts.dispatch.tenants())
    with frame.progress("checking", sum(parts.fsck.size(name) for name in tenants)) as stepped:
        found = [one for name in tenants for one in parts.fsck.check(name, stepped)]
    rows = [{"tenant": one.tenant, "place": one.place, "rule": one.rule, "what": one.what} for one in found]
    if rows or form != "table":
        frame.show(form, rows)
    frame.say(f"{len(tenants)} tenants, {len(found)} findings")
    return frame.FAILED if found else frame.OK


@click.command("doctor")
@click.option("--tenant", default="", metavar="TENANT", help="Only this tenant; every tenant when not given.")
@frame.output
def doctor(tenant: str, form: str) -> int:
    """Ask every part of this installation whether it could do its duty now; changes nothing, 1 when something fails.

    Database, role and schema, the bucket and its Object Lock, clocks, what waits and for how long, and for each tenant
    its keys, its policy, its Slack workspace and its connections.
    """
    from governance import doctor

    rows, failed = [], 0
    for one in doctor.examine(frame.open_parts(tested=False), tenant):
        failed += one.state == doctor.FAIL
        rows.append({"check": one.check, "state": one.state, "what": one.what, "next": one.next_step})
    frame.show(form, rows)
    frame.say(f"{len(rows)} checks, {failed} failed")
    return frame.FAILED if failed else frame.OK


@click.group("config")
def config() -> None:
    """The settings of this installation."""


@config.command("check")
@frame.output
def check(form: str) -> int:
    """Show every setting with where it comes from, and everything that is wrong with them; touches no service.

    Secrets are shown as their length.
    """
    from governance import settings

    rows = [
        {"setting": one.variable, "value": one.value, "from": one.source or "default", "fault": one.fault}
        for one in settings.inspected()
    ]
    wrong = [row for row in rows if row["fault"]]
    frame.show(form, rows)
    frame.say(f"{len(wrong)} of {len(rows)} settings are wrong" if wrong else "the settings are complete")
    return frame.UNAVAILABLE if wrong else frame.OK


COMMANDS = (fsck, doctor, config)
