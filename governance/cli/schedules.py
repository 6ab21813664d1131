"""Orders about schedules: start a workflow at a moment or by cron, see when it is due next, take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from governance.cli import frame

if TYPE_CHECKING:
    import datetime

    from governance.store.schedules import Schedule


@click.group("schedule")
def group() -> None:
    """Schedules: workflows that are started at a moment, or again and again."""


@group.command("add")
@click.argument("workflow")
@click.option("--at", default="", metavar="MOMENT", help="Once: 2026-08-21T10:00, in --zone unless it says an offset.")
@click.option("--cron", default="", metavar="'M H D M W'", help="Again and again: five fields of cron, in --zone.")
@click.option("--zone", default="UTC", show_default=True, help="A time zone as Europe/Berlin.")
@click.option("--catch-up", default="one", show_default=True, help="Of moments that were missed: skip, one or all.")
@click.option("--most", type=int, default=0, help="With --catch-up all: at most so many runs.")
@click.option(
    "--overlap", default="skip", show_default=True, help="While the run before goes on: skip, queue or cancel."
)
@click.option("--input", "given", default="{}", metavar="JSON", help="The input of every run.")
@frame.asking
@frame.output
def add(workflow: str, given: str, tenant: str, token: str, form: str, **how: Any) -> None:
    """Schedule a workflow; its runs start as you, and your level is asked again each time."""
    from engine.canonical import read_json
    from engine.catalog.schedule import plan
    from engine.errors import CallerError

    value = read_json(given.encode(), floats=True)
    if type(value) is not dict:
        raise CallerError("is not a JSON object", field="--input", next_step="give one JSON object")
    found = plan(**how)
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.schedules.put(seat.tenant, seat.person, workflow, found, value)
    frame.show_one(form, {"schedule": done.schedule, "next": _stamps(done.next)})


@group.command("list")
@click.option("--workflow", default="", help="Only schedules of this workflow.")
@click.option("--all", "everything", is_flag=True, help="Those that are over too.")
@frame.asking
@frame.output
def list_(workflow: str, everything: bool, tenant: str, token: str, form: str) -> None:
    """The schedules, the next to be due first, with why one waits."""
    from governance.store import schedules

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = schedules.listed(unit, workflow=workflow, everything=everything)
    frame.show(form, [_row(each) for each in found], empty="nothing is scheduled: `twokeys schedule add WORKFLOW`")


@group.command("show")
@click.argument("schedule")
@frame.asking
@frame.output
def show(schedule: str, tenant: str, token: str, form: str) -> None:
    """One schedule and its next ten moments."""
    from governance.commands.schedule import upcoming
    from governance.store import schedules

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant) as unit:
        found = schedules.load(unit, schedule)
        moments = upcoming(found, unit.now())
    frame.show_one(form, {**_row(found), "input": found.input, "next": _stamps(moments)})


@group.command("drop")
@click.argument("schedule")
@frame.asking
@frame.output
def drop(schedule: str, tenant: str, token: str, form: str) -> None:
    """It starts nothing any more; runs that it has started go on."""
    seat = frame.seat(tenant, token, person=True)
    seat.parts.schedules.drop(seat.tenant, seat.person, schedule)
    frame.show_one(form, {"schedule": schedule, "state": "dropped"})


def _stamps(moments: list[datetime.datetime] | tuple[datetime.datetime, ...]) -> list[str]:
    return [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments]


def _row(found: Schedule) -> dict[str, Any]:
    plan = found.plan
    return {
        "schedule": found.schedule, "workflow": found.workflow, "state": found.state, "when": plan.when, "zone": plan.zone,
        "next_at": _stamps([found.next_at])[0] if found.next_at else "", "catch_up": f"{plan.catch_up} {plan.most}",
        "overlap": plan.overlap, "person": found.person, "waits": found.waits,
    }  # fmt: skip
