"""Orders about workflows: check a file, publish it, list what is published."""

from __future__ import annotations

import click

from governance.cli import frame


@click.group("workflow")
def group() -> None:
    """Workflows: the YAML files that authors publish."""


@group.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@frame.output
def validate(files: tuple[str, ...], form: str) -> int:
    """Check files and show every fault at its line and column; needs no settings."""
    from engine.errors import CallerError
    from engine.program.faults import DefinitionInvalid
    from engine.program.normalize import normalize
    from governance.connectors.shipped import declared

    known, rows, failed = declared().catalog, [], False
    for path in files:
        try:
            found = normalize(frame.read_file(path), path, known)
        except DefinitionInvalid as invalid:
            failed = True
            rows += [
                {"file": f.file, "line": f.line, "column": f.column, "valid": False, "message": f.message}
                for f in invalid.faults
            ]
            continue
        except CallerError as error:
            failed = True
            rows.append({"file": path, "line": 1, "column": 1, "valid": False, "message": str(error)})
            continue
        said = f"{found.name} {found.version}, {len(found.steps)} steps, digest {found.digest.hex()[:16]}"
        rows.append({"file": path, "line": 1, "column": 1, "valid": True, "message": said})
    if form == "table":
        for row in rows:
            place = f"{row['file']}: valid" if row["valid"] else f"{row['file']}:{row['line']}:{row['column']}"
            click.echo(frame.printable(f"{place}: {row['message']}"))
    else:
        frame.show(form, rows)
    return frame.FAILED if failed else frame.OK


@group.command("apply")
@click.argument("file")
@frame.asking
@frame.output
def apply(file: str, tenant: str, token: str, form: str) -> None:
    """Publish a file and activate it; runs that are under way stay with what they started with."""
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.publish.apply(seat.tenant, seat.person, frame.read_file(file), file)
    frame.show_one(form, {"name": done.name, "version": done.version, "digest": done.digest, "state": done.state})


@group.command("list")
@frame.asking
@frame.output
def list_(tenant: str, token: str, form: str) -> None:
    """Every published version, the newest first."""
    from governance.store import templates

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = templates.listed(unit)
    rows = [
        {
            "name": t.name, "version": t.version, "state": t.state, "digest": t.digest.hex()[:16], "created_by": t.created_by,
            "created_at": t.created_at,
        }
        for t in found
    ]  # fmt: skip
    frame.show(form, rows, empty="nothing is published: `twokeys workflow apply FILE`")
