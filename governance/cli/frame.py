"""What every command shares: the shape of output, the code of an error, and who is asking."""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.errors import (
    AuthorError,
    BrokenJournal,
    BrokenLedger,
    CallerError,
    Conflict,
    OperatorError,
    Refused,
    StaleWake,
    TwokeysError,
)

if TYPE_CHECKING:
    from governance.commands.authority import Actor
    from governance.wiring import Parts

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

OK, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
STOPPED = 130

# Who must act decides the code: whoever typed it, nobody (the answer is no), or the operator.
_codes: tuple[tuple[type[TwokeysError], int, str], ...] = (
    (AuthorError, FAILED, "mend the file at these places and run this again"),
    (CallerError, USAGE, "see --help"),
    (Refused, FAILED, "nothing has changed"),
    (Conflict, FAILED, "nothing has changed; run this again"),
    (StaleWake, FAILED, "nothing has changed"),
    (BrokenJournal, FAILED, "change nothing and tell the operator: this record cannot be trusted"),
    (BrokenLedger, FAILED, "change nothing and tell the operator: this evidence does not hold"),
    (OperatorError, UNAVAILABLE, "check the settings and that the service answers, then run this again"),
)


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Do what was typed; the exit code. Every error is a sentence on stderr with what to do about it."""
    try:
        code = command.main(list(arguments), prog_name="twokeys", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.Abort:
        say("stopped")
        return STOPPED
    except click.ClickException as error:
        error.show()
        return UNAVAILABLE
    except TwokeysError as error:
        return _refused(error)
    except BrokenPipeError:
        # The reader left, for example `| head`; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        say(f"twokeys: {type(error).__name__}: {str(error)[:500] or 'no reason given'}")
        say("  next: this is a fault of ours; run it again, and report it with this line if it stays")
        return UNAVAILABLE


def _refused(error: TwokeysError) -> int:
    code, usual = UNAVAILABLE, "run this again"
    for kind, its_code, its_step in _codes:
        if isinstance(error, kind):
            code, usual = its_code, its_step
            break
    field = f"{error.field}: " if error.field else ""
    say(f"twokeys: {field}{error.reason}")
    say(f"  next: {error.next_step or usual}")
    return code


def moment(text: str, field: str) -> datetime.datetime:
    """A day or a moment as typed; without a zone it is UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CallerError(
            "is not a time", field=field, next_step="for example 2026-12-01 or 2026-12-01T08:00+01:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def say(text: str) -> None:
    """A message for the person, beside the data."""
    click.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Without what would move the cursor of the terminal: names and notes are written by others."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


# --- output -----------------------------------------------------------------------------------------------------------


def output(command: Command) -> Command:
    """`-o table|json|jsonl`."""
    choice = click.Choice(["table", "json", "jsonl"])
    return click.option(
        "-o", "--output", "form", type=choice, default="table", show_default=True, help="How to print."
    )(command)


def show(form: str, rows: Sequence[Row], *, empty: str = "nothing to show") -> None:
    """Many of one kind, on stdout; the first row names the columns."""
    if form == "json":
        click.echo(json.dumps(list(rows), ensure_ascii=False, indent=1))
    elif form == "jsonl":
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    elif not rows:
        say(empty)
    elif sys.stdout.isatty():
        _rich_table(rows)
    else:
        _plain_table(rows)


def show_one(form: str, row: Row) -> None:
    """One of them: a line for each field, or one JSON object."""
    if form == "table":
        width = max(map(len, row))
        for name, value in row.items():
            click.echo(f"{name.replace('_', ' '):<{width}}  {_cell(value)}")
    else:
        click.echo(json.dumps(row, ensure_ascii=False, indent=1 if form == "json" else None))


def _plain_table(rows: Sequence[Row]) -> None:
    names = list(rows[0])
    cells = [[name.replace("_", " ") for name in names], *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(names))]
    for line in cells:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return printable("" if value is None else str(value)).replace("\n", " ")


@contextmanager
def progress(word: str, steps: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr where somebody looks, nothing elsewhere; what it gives is called with the steps that were made, 1 if none."""
    if not sys.stderr.isatty():
        yield lambda steps=1: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(word, total=steps)
        yield lambda steps=1: bar.advance(task, steps)


# --- who is asking ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seat:
    """A tenant, whoever asks in it (nobody: the operator at the shell), and this process' parts."""

    parts: Parts
    tenant: str
    actor: Actor | None

    @property
    def person(self) -> Actor:
        """Who asks, where an order needs a person."""
        assert self.actor is not None
        return self.actor

    def require(self, deed: str) -> None:
        """Refused unless whoever asks may do this; the operator's shell holds the database and may read."""
        from governance.commands.authority import allowed
        from governance.store import people

        with self.parts.database.unit(self.tenant, write=False) as unit:
            people.tenant(unit)
            if self.actor is not None:
                allowed(unit, self.actor, deed)


def asking(command: Command) -> Command:
    """`--tenant` and `--token`, for whoever asks."""
    command = click.option(
        "--token", default="", metavar="TOKEN", help="Your personal token; better in TWOKEYS_TOKEN."
    )(command)
    return click.option(
        "--tenant", default="", metavar="TENANT", help="The tenant, or TWOKEYS_TENANT; a token names its own."
    )(command)


def open_parts(process: str = "cli", *, tested: bool = True) -> Parts:
    """The parts of this process over the settings, on a database of this release unless it is not to be `tested`."""
    from governance import log, settings
    from governance.wiring import Parts

    found = settings.load()
    log.configure("error" if process == "cli" else found.log_level, process)
    parts = Parts(found, process, Path(tempfile.gettempdir()) / f"twokeys-{process}-{os.getpid()}")
    click.get_current_context().call_on_close(parts.close)
    if tested:
        parts.database.self_test()
    return parts


def seat(tenant: str, token: str, *, person: bool) -> Seat:
    """Where this order is given and by whom; `person` says that the operator's shell alone is not enough."""
    from governance import settings
    from governance.commands.authority import Actor, token_ref

    token, tenant = token or settings.client("TWOKEYS_TOKEN"), tenant or settings.client("TWOKEYS_TENANT")
    if person and not token:
        raise CallerError(
            "this is ordered by a person", field="--token",
            next_step="set TWOKEYS_TOKEN to a personal token; `twokeys person token` makes one",
        )  # fmt: skip
    if not token and not tenant:
        raise CallerError(
            "is needed", field="--tenant", next_step="name the tenant, or set TWOKEYS_TENANT or TWOKEYS_TOKEN"
        )
    parts = open_parts()
    if not token:
        return Seat(parts, tenant, None)
    ref = token_ref(token)
    home = parts.dispatch.route("token", ref)
    if home is None or tenant not in ("", home):
        where = f" of tenant {tenant}" if tenant else ""
        raise Refused(
            f"is no personal token{where}", code="unknown_person", field="--token", next_step="ask an owner for another"
        )
    return Seat(parts, home, Actor("token", ref))


def read_file(path: str) -> bytes:
    """A file that was named, or stdin for `-`."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot be read: {error.strerror}", field=path, code="unreadable") from None


def beside(file: str, module: str) -> str:
    """Where a module stands as a workflow imports it: below the directory of the workflow's own file."""
    from engine.errors import CallerError

    try:
        return PurePath(module).relative_to(PurePath(file).parent).as_posix()
    except ValueError:
        raise CallerError(
            f"{module} is not below the directory of {file}",
            field="--module",
            next_step="put the files of a workflow together",
        ) from None


def write_new(path: Path, content: bytes) -> None:
    """A file that is not there yet."""
    try:
        with path.open("xb") as opened:
            opened.write(content)
    except FileExistsError:
        raise CallerError("is there already", field=str(path), next_step="name another file with --to") from None
    except OSError as error:
        raise OperatorError(f"cannot be written: {error.strerror}", field=str(path), code="unwritable") from None
