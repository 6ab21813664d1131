"""Orders about approvals: what waits, your key, your rejection, and a stop before the effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governance.cli import frame

if TYPE_CHECKING:
    from engine.gate.card import CardRecord

_KINDS = {"approve": "key", "reject": "reject", "stop": "stop", "break-glass": "break_glass"}


@click.group("approval")
def group() -> None:
    """Requests that wait for people's keys."""


@group.command("list")
@frame.asking
@frame.output
def waiting(tenant: str, token: str, form: str) -> None:
    """What waits for people, the nearest deadline first."""
    from governance.store import approvals as store

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        names = store.waiting(unit)
    rows = []
    for name in names:
        card = seat.parts.records.approval(seat.tenant, name)
        rows.append(
            {
                "approval": name, "summary": card.summary, "target": card.target.get("id", ""), "tier": card.tier,
                "keys": f"{len(card.given)} of {card.keys}", "groups": list(card.groups), "expires_at": card.expires_at, "run": card.run,
                "digest16": card.action_sha256[:16],
            }
        )  # fmt: skip
    frame.show(form, rows, empty="nothing waits")


@group.command("decide")
@click.argument("approval")
@click.argument("decision", type=click.Choice(list(_KINDS)))
@frame.asking
@click.option("--reason", default="", help="Why; a rejection needs it, and to break the glass.")
@click.option(
    "--ticket", default="", help="Of the emergency, to break the glass: one key for all, and two others owe a review."
)
@click.option(
    "--digest", default="", metavar="DIGEST16", help="Decide only what has this digest (from `approval list`)."
)
@click.option("--yes", is_flag=True, help="Do not ask again; with --digest only.")
@frame.output
def decide(
    approval: str, decision: str, tenant: str, token: str, reason: str, ticket: str, digest: str, yes: bool, form: str
) -> int:
    """Give your key to a request, reject it, or stop what was approved and has not begun, after reading what it is about."""
    from engine.errors import CallerError
    from governance.commands.decide import Press

    if yes and not digest:
        raise CallerError(
            "without it nobody can know what you saw",
            field="--digest",
            next_step="copy it from `twokeys approval list`, or leave out --yes",
        )
    seat = frame.seat(tenant, token, person=True)
    card = seat.parts.records.approval(seat.tenant, approval)
    if not yes:
        _explain(card)
        click.confirm(f"{decision.capitalize()} this?", abort=True, err=True)
    press = Press(
        tenant=seat.tenant, approval=approval, actor_kind=seat.person.kind, actor_ref=seat.person.ref,
        kind=_KINDS[decision], digest16=digest or card.action_sha256[:16], card_rev=card.card_rev, via="cli",
        reason=reason, ticket=ticket, dedupe_key="", blocks_sha256="",
    )  # fmt: skip
    answer = seat.parts.decide.decide(press)
    row = {
        "approval": approval,
        "code": answer.code,
        "status": answer.status,
        "given": answer.given,
        "needed": answer.needed,
    }
    if form == "table":
        click.echo(frame.printable(answer.sentence))
    else:
        frame.show_one(form, {**row, "ok": answer.ok, "sentence": answer.sentence})
    return frame.OK if answer.ok else frame.FAILED


def _explain(card: CardRecord) -> None:
    frame.say(
        f"{card.summary} on {card.target.get('id', '')} at {card.target.get('instance', '')} ({card.connector}.{card.operation})"
    )
    for name, before, after in card.changes:
        frame.say(f"  {name}: {before or '(empty)'} -> {after}")
    frame.say(f"{card.tier} risk, {len(card.given)} of {card.keys} keys given, keys of {', '.join(card.groups)}")
    frame.say(f"requested by {card.requested_by}, {card.why}; expires {card.expires_at}")
    for _, message in card.reasons:
        frame.say(f"  {message}")
    frame.say(f"digest {card.action_sha256[:16]}")


@group.command("edit")
@click.argument("approval")
@frame.asking
@click.option(
    "--set", "values", multiple=True, metavar="FIELD=VALUE", help="Another value of a field; as often as you like."
)
@click.option(
    "--amount-minor", type=click.IntRange(1), help="Another amount of a payment, in the currency's smallest unit."
)
@click.option("--digest", required=True, metavar="DIGEST16", help="What you saw (from `approval list`).")
@click.option("--reason", default="", help="Why; others read it.")
@frame.output
def edit(
    approval: str,
    tenant: str,
    token: str,
    values: tuple[str, ...],
    amount_minor: int | None,
    digest: str,
    reason: str,
    form: str,
) -> None:
    """Change what is proposed: it is judged and asked anew, and you hold no key for it."""
    from engine.errors import CallerError
    from governance.commands.edit import Changed

    fields = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise CallerError("is not FIELD=VALUE", field="--set", next_step="for example --set state=2")
        fields[name] = text
    seat = frame.seat(tenant, token, person=True)
    done = seat.parts.edit.edit(
        Changed(seat.tenant, approval, seat.person, digest, fields, reason, "cli", amount_minor)
    )
    if form == "table":
        click.echo(done.sentence)
    else:
        frame.show_one(
            form, {"approval": approval, "run": done.run, "promise": done.promise, "sentence": done.sentence}
        )


@group.command("review")
@click.argument("approval")
@click.argument("how", type=click.Choice(["justified", "unjustified"]))
@frame.asking
@click.option("--reason", required=True, help="What you looked at and found.")
def review(approval: str, how: str, tenant: str, token: str, reason: str) -> None:
    """Review a broken glass that is owed one; two others than who broke it must."""
    seat = frame.seat(tenant, token, person=True)
    click.echo(seat.parts.gate.review.review(seat.tenant, seat.person, approval, how, reason, "cli").sentence)


@group.command("debts")
@frame.asking
@frame.output
def debts(tenant: str, token: str, form: str) -> None:
    """Broken glasses whose reviews are owed, the oldest first."""
    from governance.store import glasses

    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        rows = [
            {
                "approval": one.approval, "run": one.run, "person": one.person, "ticket": one.ticket, "reason": one.reason,
                "due_at": one.due_at.isoformat(timespec="minutes"), "reviews": len(one.reviews),
            }
            for one in glasses.owed(unit)
        ]  # fmt: skip
    frame.show(form, rows, empty="no review is owed")


@group.command("attention")
@frame.asking
@frame.output
def attention(tenant: str, token: str, form: str) -> None:
    """How people have decided in the last thirty days: how fast, how often after seeing everything, how often with no."""
    from governance.store import attention as store
    from governance.store import people

    seat = frame.seat(tenant, token, person=False)
    seat.require("audit")
    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        known = people.profiles(unit)
        rows = [
            {
                "person": known[one.person].name, "decisions": one.decisions, "median_seconds": one.median_seconds,
                "viewed": one.viewed, "rejected": one.rejected,
            }
            for one in store.figures(unit)
        ]  # fmt: skip
    frame.show(form, rows, empty="nobody has decided anything lately")
