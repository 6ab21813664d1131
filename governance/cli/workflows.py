"""Orders about workflows: check a file, in YAML or Python, publish it, list what is published."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from governance.cli import frame

if TYPE_CHECKING:
    from engine.program.definition import Definition


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


def _definition(path: str) -> Definition:
    """The definition in a file of YAML; every fault at once when there is one."""
    from engine.errors import CallerError
    from engine.program.normalize import normalize
    from governance.connectors.shipped import declared

    if path.endswith(".py"):
        raise CallerError("this is a workflow in Python; only definitions have a shape", field="FILE")
    return normalize(frame.read_file(path), path, declared().catalog)


@group.command("graph")
@click.argument("file")
def graph(file: str) -> None:
    """Draw a definition as SVG, on stdout; needs no settings."""
    from engine.program.drawing import svg

    click.echo(svg(_definition(file)), nl=False)


@group.command("diff")
@click.argument("file")
@click.argument("other")
@frame.output
def diff(file: str, other: str, form: str) -> int:
    """What differs between two definitions once both are read, whatever their layout; 0 when they are the same."""
    from engine.program.comparing import differences

    rows = differences(_definition(file).to_value(), _definition(other).to_value())
    frame.show(form, rows, empty="both say the same")
    return frame.FAILED if rows else frame.OK


@group.command("dry-run")
@click.argument("file")
@click.option("--input", "given", default="{}", metavar="JSON", help="An example input.")
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="STEP=JSON",
    help='What a step gives, or {"error": "class"}; again for more.',
)
@frame.output
def dry_run(file: str, given: str, answers: tuple[str, ...], form: str) -> None:
    """Walk a definition with an example input: what the shipped policy says of each action. Nothing is done; needs no settings."""
    from engine.canonical import read_json
    from engine.errors import CallerError
    from governance.connectors.shipped import declared
    from governance.policy.bundle import shipped
    from governance.policy.rehearsal import Rehearsal

    value = read_json(given.encode(), floats=True)
    if type(value) is not dict:
        raise CallerError("is not a JSON object", field="--input", next_step="give one JSON object")
    said = {}
    for each in answers:
        step, mark, text = each.partition("=")
        if not mark:
            raise CallerError(f"{each[:60]!r} is not STEP=JSON", field="--answer")
        said[step] = read_json(text.encode(), floats=True)
    walk = Rehearsal(_definition(file), declared().catalog, shipped({"example": {}}), value, said).walk()
    frame.show(form, walk)
