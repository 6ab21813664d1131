"""Orders about workflows: check a file, in YAML or Python, publish it, list what is published."""

from __future__ import annotations

from pathlib import PurePath

import click

from governance.cli import frame


@click.group("workflow")
def group() -> None:
    """Workflows: the YAML and Python files that authors publish."""


@group.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@frame.output
def validate(files: tuple[str, ...], form: str) -> int:
    """Check files and show every fault at its line and column; needs no settings."""
    from engine.errors import AuthorError, CallerError
    from engine.program.faults import DefinitionInvalid
    from engine.program.normalize import normalize
    from engine.program.programs import Function, function_of
    from governance.connectors.shipped import declared

    known, rows, failed = declared().catalog, [], False
    for path in files:
        try:
            text = frame.read_file(path)
            found = function_of({PurePath(path).name: text}) if path.endswith(".py") else normalize(text, path, known)
        except DefinitionInvalid as invalid:
            failed = True
            rows += [
                {"file": f.file, "line": f.line, "column": f.column, "valid": False, "message": f.message}
                for f in invalid.faults
            ]
            continue
        except (AuthorError, CallerError) as error:
            failed = True
            rows.append({"file": path, "line": 1, "column": 1, "valid": False, "message": str(error)})
            continue
        size = "a function" if isinstance(found, Function) else f"{len(found.steps)} steps"
        said = f"{found.name} {found.version}, {size}, digest {found.digest.hex()[:16]}"
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
@click.option(
    "--module", "modules", multiple=True, metavar="FILE", help="A further Python file that FILE imports, beside it."
)
@click.option("--draft", is_flag=True, help="Store it only; `workflow activate` lets runs start with it.")
@frame.asking
@frame.output
def apply(file: str, modules: tuple[str, ...], draft: bool, tenant: str, token: str, form: str) -> None:
    """Publish a file and activate it; runs that are under way stay with what they started with."""
    more = {frame.beside(file, path): frame.read_file(path) for path in modules}
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.publish.apply(seat.tenant, seat.person, frame.read_file(file), file, more, draft=draft)
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
            "name": t.name, "version": t.version, "kind": t.kind, "state": t.state, "digest": t.digest.hex()[:16],
            "created_by": t.created_by, "created_at": t.created_at,
        }
        for t in found
    ]  # fmt: skip
    frame.show(form, rows, empty="nothing is published: `twokeys workflow apply FILE`")


def _life(deed: str, said: str, help_text: str) -> None:
    @group.command(deed, help=help_text)
    @click.argument("name")
    @click.argument("version")
    @frame.asking
    @frame.output
    def order(name: str, version: str, tenant: str, token: str, form: str) -> None:
        seat = frame.seat(tenant, token, person=True)
        getattr(seat.parts.publish, deed)(seat.tenant, seat.person, name, version)
        frame.show_one(form, {"name": name, "version": version, "state": said})


_life("activate", "active", "Runs start with this version from now on; the one that was active is archived.")
_life("pause", "paused", "This version starts nothing until it is activated again; runs go on, schedules are kept.")
_life("archive", "archived", "This version never starts anything again; its schedules are dropped, its runs go on.")


@group.command("versions")
@click.argument("name")
@frame.asking
@frame.output
def versions(name: str, tenant: str, token: str, form: str) -> None:
    """Every version of one workflow, the newest first, with how many of its runs go on."""
    from governance.store import templates

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = [each for each in templates.listed(unit) if each.name == name]
        going = templates.open_runs(unit, name)
    rows = [
        {
            "version": t.version, "state": t.state, "kind": t.kind, "digest": t.digest.hex()[:16], "runs": going.get(t.version, 0),
            "created_by": t.created_by, "created_at": t.created_at,
        }
        for t in found
    ]  # fmt: skip
    frame.show(form, rows, empty=f"nothing is published as {name}")
