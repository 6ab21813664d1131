"""Set the caps and the share of a tenant or of one of its workspaces; an owner's order, or the operator's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from engine.catalog.caps import TENANT, WORKSPACE, Scoped, caps_from, check_weight, looser
from engine.errors import CallerError
from engine.ledger.entries import Fact
from engine.program.caps import NAMES, Caps
from governance.commands.authority import Actor, allowed
from governance.store import caps, entries, people
from governance.store.unit import Database, Unit

OPERATOR = {"type": "system", "id": "operator"}


class SetCaps:
    """The order that says how much may be under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(
        self, tenant: str, actor: Actor | None, workspace: str, changes: Mapping[str, object], weight: object = None
    ) -> caps.Set:
        """Change these and leave the others; None takes a cap away. Without a workspace they are the tenant's own."""
        caps_from(changes)
        if weight is not None:
            check_weight(weight)
        with self._database.unit(tenant) as unit:
            who = OPERATOR if actor is None else {"type": "person", "id": allowed(unit, actor, "tenant").person}
            people.tenant(unit)
            scope, of = (WORKSPACE, workspace) if workspace else (TENANT, tenant)
            now = _of(unit, scope, of)
            values = {**asdict(now.caps), **changes}
            made = caps.Set(scope, of, caps_from(values), now.weight if weight is None else check_weight(weight))
            _refuse_looser(unit, made)
            caps.put(unit, scope, of, made.caps, made.weight)
            body = {name: getattr(made.caps, name) or 0 for name in NAMES}
            fact = Fact("caps.changed", who, {"scope": scope, "name": of, "weight": made.weight, **body})
            entries.note(unit, f"tenant/{tenant}", fact)
        return made


def _of(unit: Unit, scope: str, of: str) -> caps.Set:
    return next(
        (each for each in caps.listed(unit) if (each.scope, each.of) == (scope, of)), caps.Set(scope, of, Caps(), 1)
    )


def _refuse_looser(unit: Unit, made: caps.Set) -> None:
    """A workspace may only tighten. A tenant that becomes tighter than its workspaces bounds them, and they need no change."""
    if made.scope == TENANT:
        return
    above = [Scoped(each.scope, each.of, each.caps) for each in caps.listed(unit) if each.scope == TENANT]
    for name, cap in looser(made.caps, above):
        raise CallerError(
            f"{getattr(made.caps, name)} is more than {cap}", code="looser_cap", field=name,
            next_step="a workspace may only tighten what its tenant allows",
        )  # fmt: skip
