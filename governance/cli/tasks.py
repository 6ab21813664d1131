"""Orders about tasks: which forms wait for you, what one asks, and your answer to it."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from governance.cli import frame

if TYPE_CHECKING:
    from governance.store.tasks import TaskRecord


@click.group("task")
def group() -> None:
    """Forms that workflows ask people to fill in."""


@group.command("list")
@frame.asking
@frame.output
def list_(tenant: str, token: str, form: str) -> None:
    """What waits for your answer (for anybody's, at the operator's shell), the nearest deadline first."""
    from governance.commands.authority import who
    from governance.store import tasks

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        groups = who(unit, seat.actor).groups if seat.actor is not None else None
        found = tasks.waiting(unit, groups, None, 1_000)
    frame.show(form, [_row(task) for task in found], empty="nothing waits for your answer")


@group.command("answer")
@click.argument("task")
@frame.asking
@click.option(
    "--field", "-f", "given", multiple=True, metavar="NAME=VALUE", help="One field of the form; repeat it for each."
)
@click.option(
    "--digest", default="", metavar="DIGEST16", help="Answer only a form that has this digest (from `task list`)."
)
@frame.output
def answer(task: str, tenant: str, token: str, given: tuple[str, ...], digest: str, form: str) -> int:
    """Fill in a form. Without --field it shows what is asked and asks you."""
    from governance.commands.answer import Filled

    seat = frame.seat(tenant, token, person=True)
    seat.require("read")
    record = seat.parts.records.task(seat.tenant, task)
    values = _values(given) if given else _asked(record)
    told = seat.parts.answers.answer(Filled(seat.tenant, task, seat.person, digest or record.digest16, values, "cli"))
    if form == "table":
        click.echo(frame.printable(told.sentence))
        for name, fault in told.faults.items():
            frame.say(f"  {name}: {fault}")
    else:
        frame.show_one(
            form,
            {
                "task": task,
                "code": told.code,
                "ok": told.ok,
                "sentence": told.sentence,
                "status": told.status,
                "errors": dict(told.faults),
            },
        )
    return frame.OK if told.ok else frame.FAILED


def _row(task: TaskRecord) -> dict[str, Any]:
    until = task.expires_at.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "task": task.task, "title": task.form.title, "fields": [f"{one.name} ({one.kind})" for one in task.form.fields],
        "groups": list(task.form.groups), "expires_at": until, "run": task.run, "digest16": task.digest16,
    }  # fmt: skip


def _values(given: tuple[str, ...]) -> dict[str, str]:
    from engine.errors import CallerError

    pairs = [one.partition("=") for one in given]
    for name, sign, _ in pairs:
        if not sign or [pair[0] for pair in pairs].count(name) > 1:
            raise CallerError(
                f"{name[:40]!r} is given twice or has no value", field="--field", next_step="write each as NAME=VALUE"
            )
    return {name: value for name, _, value in pairs}


def _asked(record: TaskRecord) -> dict[str, str]:
    """Ask at the terminal, field by field; what does not fit is told when all of it is there."""
    frame.say(record.form.title)
    if record.form.text:
        frame.say(record.form.text)
    values = {}
    for one in record.form.fields:
        hint = " / ".join(one.options) or {"yes_no": "yes / no", "date": "year-month-day"}.get(
            one.kind, one.kind.replace("_", " ")
        )
        optional = "" if one.required else ", optional"
        values[one.name] = click.prompt(
            frame.printable(f"{one.label} ({hint}{optional})"),
            default="" if not one.required else None,
            show_default=False,
            err=True,
        )
    return values
