"""Orders that change which policy is in force: propose, publish, go back, bring up to date, loosen for a while; and the history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from governance.cli import frame
from governance.cli.policies import read_draft, show_faults

if TYPE_CHECKING:
    from governance.commands.start import Begun

_wait = click.option(
    "--wait", type=click.IntRange(0, 86_400), default=0, show_default=True, metavar="SECONDS", help="Wait for its end."
)


@click.command("propose")
@click.argument("what", metavar="DRAFT")
@click.option("--reason", default="", help="Why, for those who decide.")
@click.option(
    "--for", "minutes", type=click.IntRange(1, 240), metavar="MINUTES",
    help="In an emergency: for so long at most, then what is in force now comes back by itself. Takes --reason and two people.",
)  # fmt: skip
@_wait
@frame.asking
@frame.output
def propose(what: str, reason: str, minutes: int | None, wait: int, tenant: str, token: str, form: str) -> int:
    """Ask the policy owners to bring a draft into force; DRAFT is its name or its directory.

    It is checked, tested and replayed first. Those who decide see what it would have decided otherwise, and the text.
    """
    return _propose(what, reason, minutes, wait, tenant, token, form)


@click.command("publish")
@click.argument("what", metavar="DRAFT")
@click.option("--reason", default="", help="Why, for those who decide.")
@_wait
@frame.asking
@frame.output
def publish(what: str, reason: str, wait: int, tenant: str, token: str, form: str) -> int:
    """The same as `propose`: nothing is published without the keys of others."""
    return _propose(what, reason, None, wait, tenant, token, form)


def _propose(what: str, reason: str, minutes: int | None, wait: int, tenant: str, token: str, form: str) -> int:
    from governance.policy.bundle import BundleInvalid

    try:
        found = read_draft(Path(what)) if Path(what).is_dir() else None
        seat = frame.seat(tenant or (found.tenant if found else ""), token, person=True)
        seat.require("policy")
        name = what
        if found is not None:
            name = found.name
            seat.parts.amend.edit(seat.tenant, seat.person, name, found.draft)
        _replay(seat, name)
        if minutes is None:
            begun = seat.parts.changes.publish(seat.tenant, seat.person, name, reason)
        else:
            begun = seat.parts.changes.loosen(seat.tenant, seat.person, name, reason, minutes)
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    return _asked(seat, begun, wait, form)


def _replay(seat: frame.Seat, name: str) -> None:
    """With a bar, because it may be long; what follows finds it done."""
    from governance.policy import replay as replays

    proved = seat.parts.publishing.prove(seat.tenant, name)
    job = replays.Job(seat.tenant, name, proved.record.n, proved.base, proved.made)
    with frame.progress("replaying", replays.size(seat.parts.database, job)) as stepped:
        seat.parts.publishing.replayed(seat.tenant, proved, told=stepped)


def _asked(seat: frame.Seat, begun: Begun, wait: int, form: str) -> int:
    from governance.cli.actions import show_action

    frame.say(f"{'proposed as' if begun.new else 'asked already, in'} run {begun.run}")
    return show_action(seat, begun.run, wait, form)


@click.command("rollback")
@click.argument("revision")
@click.option("--reason", default="", help="Why, for those who decide.")
@_wait
@frame.asking
@frame.output
def rollback(revision: str, reason: str, wait: int, tenant: str, token: str, form: str) -> int:
    """Ask for an earlier policy, named by the first digits of its revision; `history` shows them. The same people decide."""
    from governance.policy.bundle import BundleInvalid

    seat = frame.seat(tenant, token, person=True)
    try:
        begun = seat.parts.changes.roll_back(seat.tenant, seat.person, revision, reason)
    except BundleInvalid as invalid:
        return show_faults(form, invalid)
    return _asked(seat, begun, wait, form)


@click.command("rebase")
@click.argument("directory", type=click.Path(path_type=Path))
@frame.asking
def rebase(directory: Path, tenant: str, token: str) -> None:
    """Take over into a draft what came into force since it was begun; both the draft and its directory change."""
    from engine.errors import CallerError
    from governance.policy.files import rewrite_directory

    found = read_draft(directory)
    if not found.name:
        raise CallerError("belongs to no draft", field=str(directory), next_step="begin one with `twokeys policy new`")
    seat = frame.seat(tenant or found.tenant, token, person=True)
    seat.parts.amend.edit(seat.tenant, seat.person, found.name, found.draft)
    made = seat.parts.amend.rebase(seat.tenant, seat.person, found.name)
    rewrite_directory(directory, made.content, name=found.name, tenant=seat.tenant, base_revision=made.base_revision)
    frame.say(f"draft {found.name} is one of {made.base_revision[:16]} now; test it again")


@click.command("history")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="How many to show."
)
@frame.asking
@frame.output
def history(limit: int, tenant: str, token: str, form: str) -> int:
    """Which policies were in force, the newest first, and which run brought each of them."""
    from governance.store import changes, templates

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        live = templates.active_revision(unit)
        made = changes.activations(unit, limit)
        first = [one for one in templates.revisions(unit, limit) if one[0] not in {each.revision for each in made}]
    rows = [
        {
            "at": one.at.isoformat(timespec="seconds"), "revision": one.revision[:16], "how": one.how, "run": one.run,
            "until": one.until.isoformat(timespec="seconds") if one.until else "",
        }
        for one in made
    ]  # fmt: skip
    rows += [
        {
            "at": at.isoformat(timespec="seconds"),
            "revision": revision[:16],
            "how": "came with the product",
            "run": "",
            "until": "",
        }
        for revision, _, _, at in first
    ]
    frame.show(form, rows, empty="no policy was ever in force")
    frame.say(f"in force: {live[:16]}")
    return frame.OK


@click.command("adopt")
@click.argument("tenant")
def adopt(tenant: str) -> None:
    """The operator's, after an upgrade: this release's own rules in the policy in force of TENANT, and no other change."""
    parts = frame.open_parts()
    made = parts.changes.adopt(tenant)
    frame.say(f"in force: {made[:16]}" if made else "the policy in force has this release's own rules already")


COMMANDS = (propose, publish, rollback, rebase, history, adopt)
