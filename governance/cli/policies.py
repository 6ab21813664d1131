"""Orders about policies: begin a draft, check it, test it, see what it changes, and replay what was decided over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from governance.cli import frame

if TYPE_CHECKING:
    from engine.gate.replay import Tally
    from governance.policy.bundle import Bundle
    from governance.policy.files import Directory
    from governance.policy.replay import Burden

_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.group("policy")
def group() -> None:
    """Policies: drafts of the rules and limits that judge every action. docs/policies.md has an example from end to end."""


@group.command("new")
@click.argument("name")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to write it; ./NAME when not given.",
)
@frame.asking
@frame.output
def new(name: str, directory: Path | None, tenant: str, token: str, form: str) -> None:
    """Begin a draft: the policy in force as files that you may edit."""
    from engine.errors import CallerError
    from governance.policy.files import write_directory

    where = directory or Path(name)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise CallerError("is not empty", field=str(where), next_step="name a new directory with --to")
    seat = frame.seat(tenant, token, person=True)
    begun = seat.parts.amend.begin(seat.tenant, seat.person, name)
    files = write_directory(where, begun.content, name=name, tenant=seat.tenant, base_revision=begun.base_revision)
    row = {"draft": name, "directory": str(where), "files": len(files), "base_revision": begun.base_revision[:16]}
    frame.show_one(form, row)
    frame.say(f"next: edit {where}/tenant.json or {where}/twokeys/overlay.rego, then `twokeys policy check {where}`")


@group.command("list")
@frame.asking
@frame.output
def list_(tenant: str, token: str, form: str) -> None:
    """Every draft, the newest first."""
    from governance.store import drafts

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = drafts.listed(unit)
    rows = [
        {
            "draft": one.name, "state": one.state, "edit": one.n, "authors": list(one.authors), "base_revision": one.base_revision[:16],
            "changed_at": one.changed_at.isoformat(timespec="seconds"), "revision": one.revision[:16],
        }
        for one in found
    ]  # fmt: skip
    frame.show(form, rows, empty="no drafts: `twokeys policy new NAME`")


@group.command("withdraw")
@click.argument("name")
@frame.asking
def withdraw(name: str, tenant: str, token: str) -> None:
    """Give a draft up; it stays in the record."""
    seat = frame.seat(tenant, token, person=True)
    seat.parts.amend.withdraw(seat.tenant, seat.person, name)
    frame.say(f"draft {name} is withdrawn")


@group.command("check")
@_directory
@frame.output
def check(directory: Path, form: str) -> int:
    """Check the files of a draft and show every fault at its line and column; needs no settings and no database."""
    from governance.policy.bundle import BundleInvalid
    from governance.policy.proving import check as checked
    from governance.policy.reader import Reader

    try:
        with Reader() as reader:
            found = read_draft(directory)
            made = checked(reader, found.draft, found.tenant or "tenant", data_text=found.data_text)
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    if form == "table":
        frame.say(f"{directory}: valid, {len(made.modules)} modules")
    else:
        frame.show(form, [])
    return frame.OK


def read_draft(directory: Path) -> Directory:
    """The draft in a directory."""
    from governance.policy.files import read_directory

    return read_directory(directory)


def show_faults(form: str, invalid: Exception) -> int:
    """Every fault with its line and a mark under the place; the exit code of a failed check."""
    from governance.policy.faults import Fault, PolicyInvalid

    faults: tuple[Fault, ...] = ()
    if isinstance(invalid, PolicyInvalid):
        faults = invalid.faults
    else:
        field, reason = getattr(invalid, "field", ""), getattr(invalid, "reason", str(invalid))
        faults = (Fault(field or "policies", 1, 1, "bundle", reason),)
    if form != "table":
        frame.show(form, [{name: getattr(fault, name) for name in Fault.__dataclass_fields__} for fault in faults])
        return frame.FAILED
    for fault in faults:
        click.echo(frame.printable(f"{fault.file}:{fault.line}:{fault.column}: {fault.message}"))
        if fault.text.strip():
            # The line as it is, and a mark under the place; a tab counts as one column there and here.
            click.echo(frame.printable("  | " + fault.text.replace("\t", " ")))
            click.echo("  | " + " " * (fault.column - 1) + "^")
        if fault.hint:
            click.echo(frame.printable(f"  = {fault.hint}"))
    frame.say("1 fault" if len(faults) == 1 else f"{len(faults)} faults")
    return frame.FAILED


@group.command("test")
@_directory
@click.option(
    "--opa", "binary", type=click.Path(path_type=Path), metavar="FILE", help="Run `opa test` of this binary too."
)
@frame.output
def test(directory: Path, binary: Path | None, form: str) -> int:
    """Run the tests of a draft, its Rego tests and its table, and measure what they cover; needs no settings."""
    from governance.policy import proving
    from governance.policy.bundle import BundleInvalid
    from governance.policy.files import NOTE, shipped_tests
    from governance.policy.reader import Reader

    try:
        with Reader() as reader:
            found = read_draft(directory)
            made = proving.check(reader, found.draft, found.tenant or "tenant", data_text=found.data_text)
            # Without a database the product's own tests stand for those in force; `replay` knows the real ones.
            is_draft = (directory / NOTE).exists()
            least = proving.draft_coverage_min if is_draft else proving.shipped_coverage_min
            base = shipped_tests() if is_draft else {}
            tested = proving.run_tests(reader, found.draft, made, base_tests=base, coverage_min=least)
            other = proving.binary_tests(binary, found.draft) if binary else {}
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    differs = sorted(name for name in other if bool(other[name]) != bool(tested.rego.get(name, "missing")))
    rows = [
        {"test": name, "passed": not why, "why": why} for name, why in sorted({**tested.rego, **tested.table}.items())
    ]
    rows += [{"test": name, "passed": False, "why": _gone} for name in tested.gone]
    rows += [{"test": name, "passed": False, "why": f"`opa test` says {other[name] or 'passed'}"} for name in differs]
    if form == "table":
        for row in rows:
            if not row["passed"]:
                click.echo(frame.printable(f"{row['test']}: {row['why']}"))
        for path, lines in tested.missed.items():
            click.echo(frame.printable(f"{path}: no test reaches {_lines(lines)}"))
    else:
        frame.show(form, rows)
    frame.say(
        f"{len(tested.rego)} tests, {len(tested.table)} rows of the table, {len(tested.failed)} failed, {len(tested.gone)} gone; "
        f"coverage {tested.coverage:.1f} % (at least {tested.coverage_min:.0f} %)"
    )
    return frame.OK if tested.passed and not differs else frame.FAILED


_gone = "is gone: bring it back, or name it under dropped_tests in draft.json"


def _lines(lines: tuple[int, ...]) -> str:
    parts: list[str] = []
    for line in lines:
        first, _, last = parts[-1].partition("-") if parts else ("", "", "")
        if parts and line == int(last or first) + 1:
            parts[-1] = f"{first}-{line}"
        else:
            parts.append(str(line))
    return "lines " + ", ".join(parts)


@group.command("diff")
@_directory
@frame.asking
@frame.output
def diff(directory: Path, tenant: str, token: str, form: str) -> int:
    """What a draft changes in the policy in force: the text, and whether that provably only tightens."""
    from engine.gate.tightening import people_needed
    from governance.policy import proving
    from governance.policy.bundle import BundleInvalid
    from governance.policy.publishing import text_diff
    from governance.policy.reader import Reader

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    found = read_draft(directory)
    base = _in_force(seat)
    try:
        with Reader() as reader:
            made = proving.check(reader, found.draft, seat.tenant, base, data_text=found.data_text)
            comparison = proving.compared(reader, seat.tenant, base, made)
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    people = people_needed(comparison, 0)
    rows = [
        {
            "place": change.place,
            "what": change.what,
            "tightens": change.tightens,
            "people": people,
        }
        for change in comparison.changes
    ]
    if form != "table":
        frame.show(form, rows)
        return frame.OK
    for line in text_diff(seat.tenant, base, made):
        click.echo(frame.printable(line))
    for change in comparison.changes:
        click.echo(frame.printable(f"{'tightens ' if change.tightens else 'MAY LOOSEN'} {change.place}: {change.what}"))
    frame.say(_said(comparison.unchanged, people))
    return frame.OK


def _said(unchanged: bool, people: int) -> str:
    if unchanged:
        return "nothing changes but comments, if anything"
    if people == 1:
        return "this provably only tightens: one person besides the authors can publish it"
    return "this may loosen: two people besides the authors must agree to publish it"


def _in_force(seat: frame.Seat) -> Bundle:
    return seat.parts.publishing.in_force(seat.tenant)


# --- replay -----------------------------------------------------------------------------------------------------------


@group.command("replay")
@_directory
@click.option("--days", type=click.IntRange(1), metavar="N", help="Only what was decided in the last N days.")
@click.option("--again", is_flag=True, help="From the beginning, even if it was counted already.")
@frame.asking
@frame.output
def replay(directory: Path, days: int | None, again: bool, tenant: str, token: str, form: str) -> int:
    """Put every recorded question of the tenant to a draft: what would have been decided otherwise, and what people said then.

    Takes the directory's content as the draft's newest edit. Can be interrupted, and goes on where it was.
    """
    from engine.errors import CallerError
    from engine.gate.replay import LOOSER
    from engine.gate.tightening import people_needed
    from governance.policy import proving
    from governance.policy import replay as replays
    from governance.policy.bundle import BundleInvalid
    from governance.policy.reader import Reader

    found = read_draft(directory)
    if not found.name:
        raise CallerError("belongs to no draft", field=str(directory), next_step="begin one with `twokeys policy new`")
    seat = frame.seat(tenant or found.tenant, token, person=True)
    base = _in_force(seat)
    try:
        with Reader() as reader:
            candidate = proving.check(reader, found.draft, seat.tenant, base, data_text=found.data_text)
            comparison = proving.compared(reader, seat.tenant, base, candidate)
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    edited = seat.parts.amend.edit(seat.tenant, seat.person, found.name, found.draft)
    job = replays.Job(seat.tenant, found.name, edited.n, base, candidate, days)
    with frame.progress("replaying", replays.size(seat.parts.database, job)) as stepped:
        done = replays.run(seat.parts.database, job, told=stepped, again=again)
    cost = replays.burden(seat.parts.database, seat.tenant, done.tally)
    people = people_needed(comparison, done.tally.weighed[LOOSER])
    if form == "table":
        _show_tally(done.tally, cost)
    else:
        whole = {"draft": found.name, "edit": edited.n, "revision": candidate.revision, **done.tally.to_value()}
        frame.show_one(form, {**whole, "keys": cost.keys, "approver_minutes": cost.minutes, "people": people})
    frame.say(f"{done.seen} recorded decisions, {done.tally.replayed} replayed; draft {found.name}, edit {edited.n}")
    frame.say(_said(comparison.unchanged, people))
    return frame.OK


def _show_tally(tally: Tally, cost: Burden) -> None:
    from engine.gate.replay import EFFECTS, LOOSER, TIGHTER
    from governance.policy.publishing import flip_line, said_before

    click.echo(f"{'in force > draft':<18}" + "".join(f"{effect:>16}" for effect in EFFECTS))
    for old in EFFECTS:
        counts = (tally.matrix.get(f"{old} > {effect}", 0) for effect in EFFECTS)
        click.echo(f"{old:<18}" + "".join(f"{count:>16}" for count in counts))
    click.echo(f"looser {tally.weighed[LOOSER]}, tighter {tally.weighed[TIGHTER]}, the same {tally.weighed['same']}")
    for line in said_before(tally):
        click.echo(line)
    pace = (
        f"{cost.minutes:+.0f} approver-minutes"
        if cost.minutes is not None
        else "no key was given here yet, so no minutes"
    )
    click.echo(f"keys {cost.keys:+d} ({pace}); asked {tally.asked_after - tally.asked_before:+d} times")
    for why, count in sorted(tally.missing.items()):
        click.echo(frame.printable(f"not replayed: {count}, {why}"))
    if tally.differs:
        click.echo(f"WARNING: {tally.differs} decisions would not come out again as they were recorded")
    for flip in tally.first_flips()[:20]:
        click.echo(frame.printable(f"  {flip_line(flip)}"))


@group.command("shadow")
@click.argument("name")
@click.option(
    "--on/--off",
    "on",
    default=None,
    help="Judge the draft beside the policy in force, or stop it; neither shows what differed.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N", help="How many to show."
)
@frame.asking
@frame.output
def shadow(name: str, on: bool | None, limit: int, tenant: str, token: str, form: str) -> int:
    """Let a draft judge every action beside the policy in force, without any effect, and see where it differs."""
    from governance.store import drafts

    seat = frame.seat(tenant, token, person=on is not None)
    if on is None:
        seat.require("audit")
        with seat.parts.database.unit(seat.tenant, write=False) as unit:
            drafts.load(unit, name)
            found = drafts.differences(unit, name, limit)
        rows = [
            {
                "at": one.at.isoformat(timespec="seconds"), "edit": one.n, "how": one.how, "in_force": one.old,
                "draft": one.new, "request": one.request,
            }
            for one in found
        ]  # fmt: skip
        frame.show(form, rows, empty="nothing differed so far")
        return frame.OK
    if on:
        from governance.policy import proving
        from governance.policy.bundle import BundleInvalid
        from governance.policy.reader import Reader

        seat.require("policy")
        with seat.parts.database.unit(seat.tenant, write=False) as unit:
            draft = drafts.load(unit, name).draft
        try:
            with Reader() as reader:
                proving.check(reader, draft, seat.tenant, _in_force(seat))
        except BundleInvalid as invalid:
            return show_faults(form, invalid)
    seat.parts.amend.shadow(seat.tenant, seat.person, name, on)
    frame.say(f"draft {name} is judged beside the policy in force" if on else f"draft {name} is out of the shadow")
    return frame.OK


@group.command("explain")
@click.argument("run")
@click.option(
    "--draft",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Say what this draft would decide, too.",
)
@frame.asking
@frame.output
def explain(run: str, directory: Path | None, tenant: str, token: str, form: str) -> int:
    """Why each action of a run was allowed, held or denied: the reasons, and where the rule behind each of them stands."""
    from governance.policy import explaining, proving
    from governance.policy.bundle import BundleInvalid
    from governance.policy.reader import Reader

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    base = _in_force(seat)
    candidate = None
    if directory is not None:
        try:
            with Reader() as reader:
                candidate = proving.check(reader, read_draft(directory).draft, seat.tenant, base)
        except BundleInvalid as invalid:
            return show_faults(form, invalid)
    rows = explaining.explained(seat.parts.database, seat.tenant, run, seat.parts.bundle_of, candidate)
    frame.show(form, rows, empty="nothing was judged in this run")
    return frame.OK
