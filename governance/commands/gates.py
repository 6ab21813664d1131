"""How a tenant wants its gate: whether authors of rules decide, quiet hours, how long a review may be owed; an owner's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from engine.errors import CallerError
from engine.ledger.entries import Fact
from governance.commands.authority import Actor, allowed
from governance.store import entries, gates, people
from governance.store.gates import Gate
from governance.store.unit import Database

OPERATOR = {"type": "system", "id": "operator"}
review_seconds_max = 2_592_000


class SetGate:
    """The order that says how the gate is; nothing in it makes a key of somebody who could hold none."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, tenant: str, actor: Actor | None, changes: Mapping[str, Any]) -> Gate:
        """Change these and leave the others."""
        with self._database.unit(tenant) as unit:
            who = OPERATOR if actor is None else {"type": "person", "id": allowed(unit, actor, "tenant").person}
            people.tenant(unit)
            made = replace(gates.of(unit), **changes)
            _check(made)
            gates.put(unit, made)
            entries.note(unit, f"tenant/{tenant}", Fact("gate.changed", who, asdict(made)))
        return made


def _check(gate: Gate) -> None:
    try:
        ZoneInfo(gate.zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise CallerError(
            f"{gate.zone[:60]!r} is no time zone",
            code="invalid_body",
            field="zone",
            next_step="for example Europe/Berlin",
        ) from None
    for name in ("quiet_from", "quiet_until"):
        if not 0 <= getattr(gate, name) <= 1439:
            raise CallerError("is a minute of the day, 0 to 1439", code="invalid_body", field=name)
    if not 60 <= gate.review_seconds <= review_seconds_max:
        raise CallerError("a review is owed for a minute to thirty days", code="invalid_body", field="review_seconds")
