"""Orders of agents and their authors: propose one governed action, and see what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from governance.cli import frame

if TYPE_CHECKING:
    from governance.store.proposals import ActionView


@click.group("action")
def group() -> None:
    """One governed action without a workflow: judged by policy, shown to people where policy wants that, done once, receipted."""


@group.command("propose")
@click.argument("operation", metavar="CONNECTOR.OPERATION")
@frame.asking
@click.option("--target", required=True, help="What it is done to, as the connector names it.")
@click.option(
    "--field", "fields", multiple=True, metavar="NAME=VALUE", help="A field of the operation; NAME=@FILE reads a file."
)
@click.option(
    "--risk", type=click.Choice(["low", "med", "high"]), help="The operation's least when not given; never less."
)
@click.option("--amount", type=click.IntRange(0), help="In the smallest unit of the currency.")
@click.option("--currency", default="", help="EUR, USD, ...")
@click.option("--key", required=True, help="A reference of your own: the same one again never does anything twice.")
@click.option("--on-behalf-of", default="", metavar="PERSON", help="Whom you act for; they hold no key for it.")
@click.option("--workspace", default="main", show_default=True, help="Where it belongs: its caps and its share.")
@click.option(
    "--wait", type=click.IntRange(0, 86_400), default=0, show_default=True, metavar="SECONDS", help="Wait for its end."
)
@frame.output
def propose(
    operation: str, tenant: str, token: str, target: str, fields: tuple[str, ...], risk: str | None, amount: int | None, currency: str,
    key: str, on_behalf_of: str, workspace: str, wait: int, form: str,
) -> int:  # fmt: skip
    """Propose an action; 0 when it is done or still waits, 1 when it ended otherwise."""
    from engine.errors import CallerError
    from engine.ids import check_ident
    from engine.program.one_step import Proposal

    connector, dot, name = operation.partition(".")
    if not dot:
        raise CallerError("is CONNECTOR.OPERATION", field="operation", next_step="for example servicenow.update")
    seat = frame.seat(tenant, token, person=True)
    proposal = Proposal(connector, name, target, dict(map(_field, fields)), risk or "", amount, currency)
    begun = seat.parts.propose.propose(
        seat.tenant, seat.person, proposal, check_ident(key, "--key"), on_behalf_of, workspace
    )
    return show_action(seat, begun.run, wait, form)


@group.command("show")
@click.argument("action")
@frame.asking
@click.option(
    "--wait", type=click.IntRange(0, 86_400), default=0, show_default=True, metavar="SECONDS", help="Wait for its end."
)
@frame.output
def show(action: str, tenant: str, token: str, wait: int, form: str) -> int:
    """What became of a proposed action."""
    seat = frame.seat(tenant, token, person=False)
    seat.require("read")
    return show_action(seat, action, wait, form)


def _field(given: str) -> tuple[str, str]:
    from engine.errors import CallerError

    name, equals, value = given.partition("=")
    if not (name and equals):
        raise CallerError("is NAME=VALUE", field="--field", next_step="for example work_notes=Rebooted")
    try:
        return name, frame.read_file(value[1:]).decode("utf-8") if value.startswith("@") else value
    except UnicodeDecodeError:
        raise CallerError("is not text", field=value[1:]) from None


def show_action(seat: frame.Seat, action: str, wait: int, form: str) -> int:
    """What became of an action so far, or at its end if that comes soon enough."""
    from governance import clock

    late = clock.monotonic() + wait
    found = _load(seat, action)
    while not found.ended and clock.monotonic() < late:
        clock.sleep(0.25)
        found = _load(seat, action)
    keys = f"{found.keys_given} of {found.keys_needed}" if found.approval else ""
    frame.show_one(
        form,
        {
            "action": found.run, "operation": found.tool, "state": found.state, "ended": found.ended, "effect": found.effect,
            "reasons": [f"{code}: {text}" for code, text in found.reasons], "approval": found.approval, "keys": keys,
            "attempt": found.attempt, "error": ": ".join(part for part in (found.error_class, found.message) if part),
            "result": dict(found.result), "evidence": found.evidence_sha256,
        },
    )  # fmt: skip
    return frame.FAILED if found.ended and found.state != "done" else frame.OK


def _load(seat: frame.Seat, action: str) -> ActionView:
    from governance.store import proposals

    with seat.parts.database.unit(seat.tenant, write=False) as unit:
        return proposals.load(unit, action)
