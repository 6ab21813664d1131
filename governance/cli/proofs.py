"""Orders about evidence: fetch a bundle, print the trust policy, verify offline."""

from __future__ import annotations

from pathlib import Path

import click

from governance.cli import frame


@click.group("evidence")
def group() -> None:
    """Evidence bundles of finished runs."""


@group.command("download")
@click.argument("run")
@frame.asking
@click.option(
    "--to", "target", default="", metavar="FILE", help="Where to write it; RUN.zip when not given, - for stdout."
)
@frame.output
def download(run: str, tenant: str, token: str, target: str, form: str) -> None:
    """Fetch the sealed bundle of a run from the bucket, compared with the digest that was sealed."""
    from engine.canonical import sha256
    from engine.errors import BrokenLedger, Refused
    from engine.ledger.entries import Fact
    from governance.commands.authority import who
    from governance.store import entries, views

    seat = frame.seat(tenant, token, person=True)
    seat.require("audit")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found, row = views.run(unit, run), views.bundle(unit, run)
    if row is None or row.state != "sealed":
        raise Refused(
            f"the evidence of this run is not sealed yet; the run is {found.state}", code="not_sealed", field="run"
        )
    content = seat.parts.vault.get(row.object_key, row.version_id)
    if sha256(content).hex() != row.sha256:
        raise BrokenLedger(f"the bucket gives other bytes for {row.object_key}", code="vault_mismatch")
    with seat.parts.database.unit(seat.tenant) as unit:
        person = who(unit, seat.person).person
        fact = Fact("evidence.downloaded", {"type": "person", "id": person}, {"sha256": row.sha256, "person": person})
        entries.note_run(unit, run, [fact])
    if target == "-":
        click.echo(content, nl=False)
    else:
        frame.write_new(Path(target or f"{run}.zip"), content)
    if target != "-":
        frame.show_one(form, {"file": target or f"{run}.zip", "sha256": row.sha256, "size": row.size})


@group.command("period")
@frame.asking
@click.option(
    "--from", "since", default="0", show_default=True, metavar="SIZE|DAY", help="The checkpoint where it begins."
)
@click.option(
    "--to", "until", default="", metavar="SIZE|DAY", help="The checkpoint where it ends; the newest when not given."
)
@click.option(
    "--file", "target", default="", metavar="FILE", help="Where to write it; period-FROM-TO.zip when not given."
)
@frame.output
def period(tenant: str, token: str, since: str, until: str, target: str, form: str) -> None:
    """Write every entry between two checkpoints, with proofs and a report of what every effect needed."""
    from engine.canonical import sha256
    from engine.ledger.entries import Fact
    from engine.ledger.verify import verify as check
    from governance.commands.authority import who
    from governance.store import entries

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    content = seat.parts.period.build(seat.tenant, since, until)
    digest = sha256(content).hex()
    with seat.parts.database.unit(seat.tenant) as unit:
        person = who(unit, seat.actor).person if seat.actor else ""
        actor = {"type": "person" if person else "system", "id": person or "operator"}
        entries.note(unit, "evidence/period", Fact("evidence.downloaded", actor, {"sha256": digest, "person": person}))
    found = check(content, None).facts
    name = target or f"period-{found['from_size']}-{found['tree_size']}.zip"
    frame.write_new(Path(name), content)
    frame.show_one(
        form,
        {
            "file": name, "sha256": digest, "from_size": found["from_size"], "to_size": found["tree_size"], "entries": found["entries"],
            "runs": found["completeness"]["runs"], "in_flight": found["in_flight"], "unsealed": found["unsealed"],
        },
    )  # fmt: skip


@group.command("trust")
@frame.asking
def trust(tenant: str, token: str) -> None:
    """Print the tenant's trust policy: give it to auditors by another way than the bundles."""

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    click.echo(seat.parts.trust(seat.tenant), nl=False)


def _stored(bundle: str, tenant: str) -> None:
    """The stored version has the very bytes of this file, and its lock holds until the day that was promised."""
    from engine.canonical import sha256
    from engine.errors import BrokenLedger, CallerError
    from governance import clock
    from governance.store import evidence

    seat = frame.seat(tenant, "", person=False)
    try:
        content = Path(bundle).read_bytes()
    except OSError as error:
        raise CallerError(f"cannot be read: {error.strerror}", field=bundle) from None
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        found = evidence.sealed_as(unit, sha256(content))
    if found is None:
        raise BrokenLedger("no bundle with this digest was sealed here", code="not_sealed")
    run, row = found
    if seat.parts.vault.get(row.object_key, row.version_id) != content:
        raise BrokenLedger(f"the bucket gives other bytes for {row.object_key}", code="vault_mismatch")
    mode, until = seat.parts.vault.lock_of(row.object_key, row.version_id)
    if not mode or until is None or row.retain_until is None or until < row.retain_until:
        raise BrokenLedger(
            f"{row.object_key} is not locked as was promised, until {row.retain_until}", code="vault_unlocked"
        )
    if until < clock.now_utc():
        frame.say(f"note: the lock of {row.object_key} ran out on {until:%Y-%m-%d}")
    frame.say(f"stored: run {run}, {row.object_key}, version {row.version_id}, {mode} until {until:%Y-%m-%d}")


@group.command("verify")
@click.argument("bundle")
@click.option(
    "--trust", default="", metavar="POLICY", help="The trust policy, obtained from elsewhere than the bundle."
)
@click.option("--run", default="", metavar="RUN", help="Refuse the evidence of any other run.")
@click.option("--sha256", default="", metavar="HEX", help="Refuse a file with any other digest.")
@click.option(
    "--s3",
    is_flag=True,
    help="Hold it against the stored object too: its version, its bytes, its lock. Needs settings.",
)
@click.option("--tenant", default="", metavar="TENANT", help="For --s3: the tenant, or TWOKEYS_TENANT.")
@frame.output
def verify(bundle: str, trust: str, run: str, sha256: str, s3: bool, tenant: str, form: str) -> int:
    """Verify a bundle offline, without any setting: 0 valid, 1 invalid, 2 incomplete, 3 malformed."""
    from engine.ledger.command import run_verifier

    if s3:
        _stored(bundle, tenant)

    arguments = [bundle]
    for name, value in (("--trust", trust), ("--run", run), ("--sha256", sha256)):
        arguments += [name, value] if value else []
    arguments += ["--json"] if form != "table" else []
    return run_verifier(
        arguments,
        lambda path: Path(path).read_bytes(),
        lambda text: click.echo(text, nl=False),
        "twokeys evidence verify",
    )
