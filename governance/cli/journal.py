"""Orders about journals: show what a run did, export it, check exports, replay it against what is stored, compare two runs."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from governance.cli import frame

if TYPE_CHECKING:
    from engine.ids import PromiseId
    from engine.journal.events import Entry, Event
    from engine.journal.history import History
    from engine.journal.promises import Held
    from governance.store.journals import Stored
    from governance.store.unit import Unit

CELL_CHARS_MAX = 36
FOLLOW_SECONDS = 1.0
COLOURS = {
    "Running": "cyan", "Blocked": "yellow", "Cancelling": "magenta", "Completed": "green", "Failed": "red", "Cancelled": "magenta",
}  # fmt: skip


@click.group("journal")
def group() -> None:
    """What runs did, event by event."""


# --- reading ----------------------------------------------------------------------------------------------------------


def known(unit: Unit, run: str) -> None:
    """Refuse a run that is not here."""
    from engine.errors import CallerError

    if unit.one("select 1 from run where tenant = :tenant and run = :run", run=run) is None:
        raise CallerError(
            f"run {run} is unknown here", code="unknown_run", field="run", next_step="`twokeys run list` shows the runs"
        )


def whole(unit: Unit, run: str) -> Stored:
    """The stored journal of a run that is here, every row found to be what was written."""
    from governance.store import journals

    known(unit, run)
    return journals.whole(unit, run)


def _seated(run: str, tenant: str, token: str) -> tuple[frame.Seat, Stored]:
    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        return seat, whole(unit, run)


# --- show -------------------------------------------------------------------------------------------------------------


def place(promise: PromiseId, execution: PromiseId) -> str:
    """A promise as document 003 prints it: `root.1` for a child of this run."""
    if promise.root != execution.root:
        return str(promise)
    return f"root.{promise.local}" if promise.path else "root"


def cell(value: Any, execution: PromiseId) -> str:
    """One field of an event in a few characters."""
    from engine.ids import PromiseId
    from engine.journal.events import AwaitSignal, promises_sorted

    if isinstance(value, PromiseId):
        return place(value, execution)
    if isinstance(value, frozenset):
        return "[" + ", ".join(place(promise, execution) for promise in promises_sorted(value)) + "]"
    if isinstance(value, AwaitSignal):
        return f'Signal("{value.name}")'
    text = frame.printable(str(value)).replace("\n", " ")
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def said(event: Event, execution: PromiseId) -> str:
    """An event in one line: its type, the promise it is about, and its other fields."""
    from dataclasses import fields

    parts = []
    for field in fields(event):
        text = cell(getattr(event, field.name), execution)
        parts.append(f"{field.name}={text}" if field.type == "int" else text)
    return f"{type(event).__name__}({', '.join(parts)})" if parts else type(event).__name__


@group.command("show")
@click.argument("run")
@frame.asking
@click.option("--follow", is_flag=True, help="Go on printing events as they are written, until the run has ended.")
@frame.output
def show(run: str, tenant: str, token: str, follow: bool, form: str) -> None:
    """The events of a run with the state after each, and its promises as a tree; checked while it is read."""
    from engine.errors import CallerError
    from engine.ids import PromiseId
    from engine.journal.history import History
    from governance import clock

    if follow and form == "json":
        raise CallerError("cannot grow", field="--output", next_step="use table or jsonl with --follow")
    seat, stored = _seated(run, tenant, token)
    execution, printed = PromiseId(run), 0
    while True:
        _events(form, execution, stored.entries, printed)
        printed = len(stored.entries)
        history = History.load(execution, stored.entries, head=stored.head)
        if not follow or history.ended:
            break
        clock.sleep(FOLLOW_SECONDS)
        with seat.parts.database.unit(seat.tenant, write=False) as unit:
            stored = whole(unit, run)
    if form != "table":
        return
    if history.started:
        click.echo()
        _print([(line, COLOURS.get(_state(history), "")) for line in tree(history)])
    frame.say(f"head {stored.head.hex()}" if history.started else "the run has not begun")


def _state(history: History) -> str:
    from engine.journal.status import name

    return name(history.status)


def _events(form: str, execution: PromiseId, entries: Sequence[Entry], printed: int) -> None:
    from engine.journal.events import to_value
    from engine.journal.status import name, statuses

    states = [name(status) for status in statuses(entries)]
    if form == "table":
        width = len(str(max(len(entries), 100)))
        lines = [(f"{'seq':>{width}}  {'state':<10}  event", "bold")] if printed == 0 and entries else []
        for entry, state in list(zip(entries, states, strict=True))[printed:]:
            line = f"{entry.sequence:>{width}}  {state:<10}  {said(entry.event, execution)}"
            lines.append((line, COLOURS[state]))
        _print(lines)
        return
    rows = [{**to_value(entry), "state": state} for entry, state in zip(entries, states, strict=True)]
    frame.show(form, rows[printed:])


def _print(lines: Sequence[tuple[str, str]]) -> None:
    """Lines on stdout, in colour where somebody looks."""
    if not sys.stdout.isatty():
        for line, _ in lines:
            click.echo(line)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    for line, colour in lines:
        console.print(Text(line, style=colour))


def tree(history: History) -> list[str]:
    """The promises of a run, the members of a join set below it."""
    numbers = [n for n in range(history.next_child) if _owner(history, n) < 0]
    lines = [f"root  {_state(history)}"]
    for n in numbers:
        last = n == numbers[-1]
        lines.append(("└─ " if last else "├─ ") + _promise(history, n))
        members = [m for m in range(history.next_child) if _owner(history, m) == n]
        for m in members:
            lines.append(("   " if last else "│  ") + ("└─ " if m == members[-1] else "├─ ") + _promise(history, m))
    return lines


def _held(history: History, n: int) -> Held | None:
    return history.promise(history.execution.child(n))


def _owner(history: History, n: int) -> int:
    from engine.journal.promises import Invoke

    held = _held(history, n)
    return held.join_set if isinstance(held, Invoke) else -1


def _promise(history: History, n: int) -> str:
    from engine.journal.events import SignalReceived
    from engine.journal.promises import Invoke, JoinSet, Timer

    at = place(history.execution.child(n), history.execution)
    match _held(history, n):
        case Invoke() as invoke:
            taken = ", taken" if invoke.consumed else ""
            about = f"invoke {invoke.scheduled.function_name}: {invoke.phase}, attempt {invoke.attempt}{taken}"
        case Timer() as timer:
            about = f"timer due at {timer.scheduled.fire_at}: {'fired' if timer.fired else 'sleeping'}"
        case JoinSet() as join_set:
            about = f"join set: {join_set.submitted} submitted, {join_set.awaited} taken"
        case SignalReceived() as signal:
            about = f"signal {signal.signal_name}: delivery {signal.delivery_id}"
        case value:
            about = {"RandomGenerated": "random value", "TimeRecorded": "time"}[type(value).__name__]
    return frame.printable(f"{at}  {about}")


# --- export and check -------------------------------------------------------------------------------------------------


@group.command("export")
@click.argument("run")
@frame.asking
def export(run: str, tenant: str, token: str) -> None:
    """One line in the interchange format: what `journal check` reads."""
    from engine.ids import PromiseId
    from engine.journal.events import to_json

    _, stored = _seated(run, tenant, token)
    click.echo(to_json(PromiseId(run), stored.entries))


@group.command("check")
@click.argument("file", default="-")
@click.option("--named-only", is_flag=True, help="Only the named invariants, not the further guards.")
def check(file: str, named_only: bool) -> int:
    """Check exported journals, one a line, against every rule; needs no settings. One JSON object for each line."""
    from engine.journal.replay import check_line

    valid = True
    # What is read here makes no cycles, and looking for them in millions of entries costs a fifth of the time.
    gc.disable()
    try:
        for line in lines_of(file):
            found = check_line(line, named_only=named_only)
            valid = valid and bool(found["valid"])
            click.echo(json.dumps(found))
    finally:
        gc.enable()
    return frame.OK if valid else frame.FAILED


def lines_of(file: str) -> Iterator[bytes]:
    """The lines of a file or of stdin, one in memory at a time; a longer line than may be read comes cut off, to be refused."""
    from pathlib import Path

    from engine.errors import OperatorError

    try:
        if file == "-":
            yield from _lines(sys.stdin.buffer)
            return
        with Path(file).open("rb") as opened:
            yield from _lines(opened)
    except OSError as error:
        raise OperatorError(f"cannot be read: {error.strerror}", field=file, code="unreadable") from None


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    from engine.journal.events import LINE_BYTES_MAX

    most = LINE_BYTES_MAX + 1
    while line := stream.readline(most + 1):
        rest = line
        while len(rest) > most and not rest.endswith(b"\n"):
            rest = stream.readline(most + 1)
        if line.strip():
            yield line.removesuffix(b"\n")


# --- replay -----------------------------------------------------------------------------------------------------------


@group.command("replay")
@click.argument("run")
@frame.asking
@frame.output
def replay(run: str, tenant: str, token: str, form: str) -> int:
    """Build the run again from its journal alone, and compare that with everything stored beside it."""
    from governance.store import journals

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        known(unit, run)
        stored = journals.read(unit, run)
        difference = first_difference(unit, run)
    difference = difference or code_difference(seat, run)
    row = {"run": run, "events": len(stored.entries), "commits": stored.commits, "head": stored.head.hex()}
    frame.show_one(form, {**row, "same": not difference, "difference": difference})
    return frame.FAILED if difference else frame.OK


def first_difference(unit: Unit, run: str) -> str:
    """The first thing stored about a run that a replay of its journal does not give; empty when there is none."""
    from engine.ids import PromiseId
    from engine.journal.history import History
    from governance.store import cases, journals

    stored = journals.read(unit, run)
    history = History.load(PromiseId(run), stored.entries)
    row = unit.one("select events, head, status from run where tenant = :tenant and run = :run", run=run)
    assert row is not None
    state = _state(history) if history.started else ""
    facts = (
        ("events", int(row[0]), history.version),
        ("head", bytes(row[1]).hex(), history.head.hex()),
        ("status", row[2] or "", state),
    )
    for about, kept, replayed in facts:
        if kept != replayed:
            return f"the run's {about}: stored {kept}, replayed {replayed}"
    case = cases.load(unit, run)
    return _snapshot_difference(unit, case.history, case)


def code_difference(seat: frame.Seat, run: str) -> str:
    """Where the code of a workflow in Python, run again in its host, does not do what its journal says; empty when it does."""
    from engine.kernel import Files
    from engine.program.function_journal import Feed, ReplayMismatch
    from engine.program.programs import Function
    from governance.store import cases, templates

    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        case = cases.load(unit, run)
        program = templates.by_digest(unit, case.code)
    if not isinstance(program, Function) or not case.history.started:
        return ""
    feed = Feed(Files(case.origin.salt_key, case.payloads)).take(case.stored)
    try:
        seat.parts.hosts.turn(program.component, feed, now=case.micros, entropy=bytes(32), tenant=seat.tenant)
    except ReplayMismatch as mismatch:
        return str(mismatch)
    return ""


def _snapshot_difference(unit: Unit, history: History, case: Any) -> str:
    from engine.canonical import decode, sha256
    from engine.kernel import rebuild
    from engine.program.programs import Function
    from engine.program.snapshot import frame_from
    from governance.stages.advance import context_of
    from governance.store import journals, templates

    run = case.origin.run
    row = unit.one("select events, body, sha256 from snapshot where tenant = :tenant and run = :run", run=run)
    if row is None or not history.started:
        return ""
    at, body = int(row[0]), bytes(row[1])
    if sha256(body) != bytes(row[2]):
        return f"the snapshot at event {at}: its bytes are not those of its hash"
    entries = journals.read(unit, run).entries
    if not 0 < at <= len(entries):
        return f"the snapshot is of {at} events, the journal holds {len(entries)}"
    definition, context = templates.by_digest(unit, case.code), context_of(case)
    if isinstance(definition, Function):
        return ""  # a function has no frame to keep
    kept = frame_from(decode(body))
    replayed = rebuild(entries[:at], definition, context, case.payloads)
    mine, theirs = kept.to_value(), replayed.to_value()
    for name in sorted(mine | theirs):
        if mine.get(name) != theirs.get(name):
            said = f"stored {_short(mine.get(name))}, replayed {_short(theirs.get(name))}"
            return f"the snapshot at event {at}, {name}: {said}"
    return ""


def _short(value: Any) -> str:
    return frame.printable(repr(value))[:120]


# --- diff -------------------------------------------------------------------------------------------------------------


@group.command("diff")
@click.argument("run")
@click.argument("other")
@frame.asking
@frame.output
def diff(run: str, other: str, tenant: str, token: str, form: str) -> int:
    """Two runs side by side, event by event; what always differs (keys, commitments, times) is not compared."""
    from engine.ids import PromiseId

    seat, left = _seated(run, tenant, token)
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        right = whole(unit, other)
    rows = side_by_side((PromiseId(run), left.entries), (PromiseId(other), right.entries))
    frame.show(form, rows, empty="neither run has begun")
    return frame.OK if all(row["same"] for row in rows) else frame.FAILED


def side_by_side(
    left: tuple[PromiseId, Sequence[Entry]], right: tuple[PromiseId, Sequence[Entry]]
) -> list[dict[str, Any]]:
    """The events of two runs in rows, the same ones on the same row."""
    from difflib import SequenceMatcher

    shapes = [[_shape(entry.event, execution) for entry in entries] for execution, entries in (left, right)]
    rows = []
    for tag, a, b, c, d in SequenceMatcher(None, shapes[0], shapes[1], autojunk=False).get_opcodes():
        for n in range(max(b - a, d - c)):
            mine = left[1][a + n] if a + n < b else None
            theirs = right[1][c + n] if c + n < d else None
            rows.append(
                {
                    "seq": mine.sequence if mine else "", "left": said(mine.event, left[0]) if mine else "",
                    "same": tag == "equal", "right": said(theirs.event, right[0]) if theirs else "",
                    "seq_right": theirs.sequence if theirs else "",
                }
            )  # fmt: skip
    return rows


def _shape(event: Event, execution: PromiseId) -> str:
    """What can be the same in two runs: promises by place, a payload by its form and its error class."""
    from dataclasses import fields

    parts = [type(event).__name__]
    for field in fields(event):
        if field.name in ("idempotency_key", "time", "fire_at", "retry_at", "value"):
            continue
        value = getattr(event, field.name)
        if field.name == "signal_name" and value.startswith("approval:"):
            value = "approval:"  # the rest names the request of this one run
        parts.append(_form(value) if field.type == "str" else cell(value, execution))
    return "\x00".join(parts)


def _form(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if type(value) is not dict:
        return text
    within = value.get("err", value.get("ok", value))
    if type(within) is not dict or "commit" not in within:
        return text
    return f"{next(iter(value))} {within.get('class', '')}"
