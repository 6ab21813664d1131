"""Orders about exports of the log: take a stretch of it along, see how far the named ones are, and say where they go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import click

from governance.cli import frame, tenants
from governance.cli.frame import Seat

_form = click.option(
    "--cloudevents", is_flag=True, help="Each line a CloudEvent 1.0 instead of {entry, index, leaf, origin}."
)


def _form_of(cloudevents: bool) -> str:
    from engine.ledger.lines import CLOUDEVENTS, PLAIN

    return CLOUDEVENTS if cloudevents else PLAIN


@click.command("export")
@click.option("--from", "since", type=click.IntRange(min=0), metavar="N", help="The first index; 0 when not given.")
@click.option(
    "--to", "target", default="-", metavar="FILE", help="A file that is not there yet; stdout when not given."
)
@click.option(
    "--resume", is_flag=True, help="Go on with the file where it ends; half a line at its end is written again."
)
@click.option(
    "--name", default="", metavar="EXPORT", help="Deliver this named export now instead, until nothing is left."
)
@_form
@frame.asking
def export(since: int | None, target: str, resume: bool, name: str, cloudevents: bool, tenant: str, token: str) -> None:
    """The published log as JSON lines, one entry each: its exact bytes, its index, its leaf hash and the log's name.

    A gap is said and ends the export with 1; nothing is ever skipped.
    """
    from engine.errors import CallerError

    if name:
        for given, field in (
            (since is not None, "--from"),
            (resume, "--resume"),
            (cloudevents, "--cloudevents"),
            (target != "-", "--to"),
        ):
            if given:
                raise CallerError("does not go with --name", field=field, next_step="`twokeys tenant export` sets it")
        seat = frame.seat(tenant, token, person=False)
        seat.require("tenant")
        frame.say(f"{seat.parts.exports.catch_up(seat.tenant, name)} deliveries; nothing is left")
        return
    if resume and (target == "-" or since is not None):
        field = "--from" if since is not None else "--resume"
        raise CallerError(
            "a file that is resumed says itself where it ends", field=field, next_step="name it with --to"
        )
    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    if target == "-":
        _stream(seat, since or 0, cloudevents, lambda data: click.echo(data, nl=False))
    else:
        _to_file(seat, Path(target), since or 0, cloudevents, resume)


def _stream(seat: Seat, since: int, cloudevents: bool, write: Callable[[bytes], object]) -> None:
    from engine.errors import BrokenLedger

    parts = seat.parts.exports.read(seat.tenant, since, _form_of(cloudevents))
    first = next(parts, None)  # a wrong index is refused before anything is written down or out
    seat.parts.set_export.taken(seat.tenant, seat.actor, since)
    at = since
    while first is not None:
        write(b"".join(first.lines))
        at = first.since + len(first.lines)
        if first.fault:
            raise BrokenLedger(f"{first.fault}: the export ends before it", code="log_gap", field="index")
        first = next(parts, None)
    frame.say(f"entries {since} to {at - 1}; the next one is {at}" if at > since else f"nothing is there from {at} on")


def _to_file(seat: Seat, path: Path, since: int, cloudevents: bool, resume: bool) -> None:
    from engine.errors import CallerError, OperatorError

    try:
        with path.open("r+b" if resume and path.exists() else "xb") as opened:
            if resume:
                end, last = _tail(opened)
                since = seat.parts.exports.after(seat.tenant, last, _form_of(cloudevents)) if last else 0
                opened.seek(end)
                opened.truncate()
            _stream(seat, since, cloudevents, opened.write)
            opened.flush()
            os.fsync(opened.fileno())
    except FileExistsError:
        raise CallerError(
            f"{path} is there already", field="--to", next_step="name another file, or go on with it by --resume"
        ) from None
    except OSError as error:
        raise OperatorError(f"{path} cannot be written: {error.strerror}", field="--to", code="unwritable") from None


def _tail(opened: BinaryIO) -> tuple[int, bytes]:
    """Where the last whole line ends and what it says; what stands behind it was cut off while it was written."""
    from engine.errors import CallerError
    from engine.ledger.lines import line_bytes_max

    start = max(0, opened.seek(0, os.SEEK_END) - 3 * line_bytes_max)
    opened.seek(start)
    whole, newline, _ = opened.read().rpartition(b"\n")
    _, found, last = whole.rpartition(b"\n")
    if start and not (newline and found):
        raise CallerError("ends in something that is no line of an export", field="--to", next_step="name another file")
    return (start + len(whole) + 1, last) if newline else (0, b"")


@click.command("exports")
@frame.asking
@frame.output
def exports(tenant: str, token: str, form: str) -> None:
    """The named exports: where each goes, its position, how far it is behind, and what went wrong last."""
    from governance.store import exports as store

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = store.shown(unit)
    rows = [
        {
            "name": one.export.name,
            "target": one.export.url or one.export.target,
            "form": one.export.form,
            "state": one.export.state,
            "position": one.export.position,
            "behind": one.behind,
            "behind_seconds": int(one.behind_seconds),
            "delivered_at": one.export.delivered_at,
            "tries": one.export.tries,
            "last_error": one.export.last_error,
        }
        for one in found
    ]
    frame.show(form, rows, empty="there is no named export; `twokeys tenant export` makes one")


@click.command("export")
@click.argument("name")
@frame.asking
@click.option(
    "--to", "target", type=click.Choice(["s3", "webhook"]), help="Our bucket, or an address that takes posts."
)
@click.option("--url", default="", help="Of the webhook, https://...")
@click.option(
    "--secret-file", default="", metavar="FILE", help="What its posts are signed with, in a file, or - for stdin."
)
@click.option(
    "--from", "since", type=click.IntRange(min=0), metavar="N", help="The next index; without it, on from where it is."
)
@_form
@click.option("--pause", "deed", flag_value="pause", help="Send nothing more until --go-on.")
@click.option(
    "--go-on", "deed", flag_value="go_on", help="Go on at once: after a pause, a stop, or a fault that is mended."
)
@click.option("--remove", "deed", flag_value="remove", help="Forget it and its position.")
@frame.output
def configure(
    name: str,
    tenant: str,
    token: str,
    target: str | None,
    url: str,
    secret_file: str,
    since: int | None,
    cloudevents: bool,
    deed: str | None,
    form: str,
) -> None:
    """Let the workers send the log on, in order and at least once: to our bucket or to a webhook, signed like our own hooks."""
    from engine.errors import CallerError

    if (target is None) == (deed is None):
        raise CallerError("is needed, or one of --pause, --go-on, --remove", field="--to")
    seat = frame.seat(tenant, token, person=False)
    orders = seat.parts.set_export
    if deed is not None:
        getattr(orders, deed)(seat.tenant, seat.actor, name)
        frame.show_one(form, {"name": name, "change": deed})
        return
    made = orders.set(
        seat.tenant,
        seat.actor,
        name,
        target=target or "",
        form=_form_of(cloudevents),
        url=url,
        secret=tenants.secret_of(secret_file) if secret_file else "",
        position=since,
    )
    frame.show_one(
        form, {"name": name, "target": made.url or made.target, "form": made.form, "position": made.position}
    )
