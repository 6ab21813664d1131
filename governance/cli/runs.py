"""Orders about runs: start, look, stop, and say what happened."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import click

from governance.cli import frame

if TYPE_CHECKING:
    from governance.store.views import RunView


@click.group("run")
def runs() -> None:
    """Runs of workflows."""


@runs.command("start")
@click.argument("workflow")
@frame.asking
@click.option("--input", "given", default="{}", metavar="JSON|@FILE|-", help="The input: JSON, @file or - for stdin.")
@click.option("--ref", default="", help="A reference of your own: the same one again finds the same run.")
@click.option("--workspace", default="main", show_default=True, help="Where it belongs: its caps and its share.")
@frame.output
def start(workflow: str, tenant: str, token: str, given: str, ref: str, workspace: str, form: str) -> None:
    """Start a run of a published workflow."""
    from engine.errors import CallerError

    value = _given(given, "--input", "give one JSON object")
    if type(value) is not dict:
        raise CallerError("is not a JSON object", field="--input", next_step="give one JSON object")
    seat = frame.seat(tenant, token, person=True)
    begun = seat.parts.start.by_hand(seat.tenant, seat.person, workflow, value, ref, workspace)
    frame.show_one(form, {"run": begun.run, "new": begun.new})


def _given(given: str, field: str, next_step: str) -> Any:
    """A value as JSON, @FILE, or - for stdin."""
    from engine.canonical import read_json
    from engine.errors import CallerError

    path = given[1:] or "-" if given.startswith("@") else given if given == "-" else ""
    try:
        return read_json(frame.read_file(path) if path else given.encode(), floats=True)
    except CallerError as error:
        raise CallerError(error.reason, code=error.code, field=field, next_step=next_step) from None


@runs.command("list")
@frame.asking
@click.option("--state", default="", help="Only these: queued, running, waiting_approval, unknown, succeeded, ...")
@click.option("--workflow", default="", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@frame.output
def list_(tenant: str, token: str, state: str, workflow: str, limit: int, form: str) -> None:
    """The newest runs first."""
    from engine.errors import CallerError
    from governance.store import views

    if state and state not in views.STATES:
        raise CallerError(f"{state!r} is not a state", field="--state", next_step=f"one of {', '.join(views.STATES)}")
    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = views.runs(unit, state=state, workflow=workflow, after=None, limit=limit)
    frame.show(form, [_run_row(run) for run in found], empty="no such run")


@runs.command("show")
@click.argument("run")
@frame.asking
@frame.output
def show(run: str, tenant: str, token: str, form: str) -> None:
    """One run: its steps, what it waits for, and its evidence."""
    from governance.store import views

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = views.run(unit, run)
        steps, bundle = views.steps(unit, run), views.bundle(unit, run)
    rows = [
        {
            "step": s.step, "promise": s.promise, "tool": s.tool, "state": s.state, "attempt": s.attempt, "approval": s.approval,
            "child": s.child, "error": s.last_error, "again_at": s.next_eligible_at.isoformat() if s.next_eligible_at else "",
            "waits_for": f"a free place: {s.held_up}" if s.held_up else "",
        }
        for s in steps
    ]  # fmt: skip
    evidence = {"state": bundle.state, "sha256": bundle.sha256, "size": bundle.size} if bundle else None
    if form != "table":
        whole = {**_run_row(found), "definition_sha256": found.definition.hex(), "code_sha256": found.code.hex()}
        frame.show_one(form, {**whole, "parent": found.parent, "steps": rows, "evidence": evidence})
        return
    sealed = f"{bundle.state} {bundle.sha256}" if bundle else "not yet"
    head = {**_run_row(found), "definition": found.definition.hex()[:16], "evidence": sealed}
    if found.code != found.definition:
        head["code"] = found.code.hex()[:16]
    if found.parent:
        head["parent"] = f"{found.parent} operation {found.parent_promise}"
    frame.show_one(form, head)
    click.echo()
    frame.show(form, rows, empty="no step yet")


@runs.command("cancel")
@click.argument("run")
@frame.asking
@click.option("--reason", default="", help="Why; the run's page shows it.")
@frame.output
def cancel(run: str, tenant: str, token: str, reason: str, form: str) -> None:
    """Ask a run to end: nothing new starts, what is in flight may finish."""
    seat = frame.seat(tenant, token, person=True)
    state = seat.parts.cancel.cancel(seat.tenant, seat.person, run, reason)
    frame.show_one(form, {"run": run, "state": state})


@runs.command("signal")
@click.argument("run")
@click.argument("name")
@frame.asking
@click.option(
    "--value", "given", default="null", metavar="JSON|@FILE|-", help="What it says: JSON, @file or - for stdin."
)
@frame.output
def signal(run: str, name: str, tenant: str, token: str, given: str, form: str) -> None:
    """Send a signal to a run; it is kept until the workflow waits for one of this name."""
    value = _given(given, "--value", "give one JSON value")
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.signal.send(seat.tenant, seat.person, run, name, value)
    frame.show_one(form, {"run": done.run, "signal": done.name, "delivery": done.delivery})


@runs.command("resolve")
@click.argument("run")
@click.argument("promise")
@click.argument("how", type=click.Choice(["probe", "happened", "did-not", "retry"]))
@frame.asking
@click.option(
    "--reason", default="", help="How you know, or why try again; it stands on the record. A probe needs none."
)
@frame.output
def resolve(run: str, promise: str, how: str, tenant: str, token: str, reason: str, form: str) -> None:
    """Say whether an operation of unknown outcome happened, have it looked at, or want it tried again under the same key."""
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.resolve.resolve(seat.tenant, seat.person, run, promise, how.replace("-", "_"), reason)
    shown = {"run": done.run, "promise": done.promise, "how": done.how, "state": done.state}
    frame.show_one(form, {**shown, "given": done.given, "needed": done.needed, "said": done.sentence})


@runs.command("retry")
@click.argument("run")
@frame.asking
@frame.output
def retry(run: str, tenant: str, token: str, form: str) -> None:
    """Go on with what is parked, when what was wrong has been put right."""
    seat = frame.seat(tenant, token, person=True)
    frame.show_one(form, {"run": run, "items": seat.parts.retry.retry(seat.tenant, seat.person, run)})


@runs.command("migrate")
@click.argument("run")
@click.option(
    "--to", "to", default="", metavar="VERSION|FILE.py", help="A published version, or a file; else the active version."
)
@click.option("--module", "modules", multiple=True, metavar="FILE", help="A further Python file that FILE imports.")
@frame.asking
@frame.output
def migrate(run: str, to: str, modules: tuple[str, ...], tenant: str, token: str, form: str) -> int:
    """Let a run in Python go on under other code, if its whole journal replays the same under it."""
    from engine.errors import CallerError
    from governance.commands.migrate import DiffersFromJournal

    given = frame.read_file(to) if to.endswith(".py") else b""
    if modules and not given:
        raise CallerError("is for a FILE.py that is given with --to", field="--module", next_step="give --to FILE.py")
    more = {frame.beside(to, path): frame.read_file(path) for path in modules}
    seat = frame.seat(tenant, token, person=True)
    orders = seat.parts.migrate
    try:
        if given:
            done = orders.to_file(seat.tenant, seat.person, run, given, to, more)
        else:
            done = orders.to_version(seat.tenant, seat.person, run, to)
    except DiffersFromJournal as differs:
        frame.show_one(
            form,
            {
                "run": run, "migrated": False, "event": differs.sequence,
                "journal": _step(differs.journal), "code": _step(differs.does),
            },
        )  # fmt: skip
        frame.say(differs.reason)
        return frame.FAILED
    frame.show_one(
        form, {"run": run, "migrated": True, "version": done.version, "digest": done.digest, "events": done.events}
    )
    return frame.OK


def _step(step: dict[str, Any] | None) -> str:
    """An event of a replay in one line; nothing when that side has ended."""
    return "nothing more" if step is None else json.dumps(step, sort_keys=True, ensure_ascii=False)


def _run_row(run: RunView) -> dict[str, Any]:
    return {
        "run": run.run, "workflow": run.workflow, "version": run.version, "state": run.state,
        "trigger": f"{run.trigger_type} {run.trigger_ref}", "started_by": run.started_by, "error": run.trouble,
        "waits_for": _waits_for(run),
        "created_at": _time(run.created_at), "ended_at": _time(run.ended_at),
    }  # fmt: skip


def _waits_for(run: RunView) -> str:
    if run.held_up:
        return f"a free place: {run.held_up}"
    return f"signal {run.waits_for}" if run.waits_for else _time(run.waits_until)


def _time(at: datetime.datetime | None) -> str:
    return "" if at is None else at.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
