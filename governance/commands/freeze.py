"""Freeze: one person stops what a tenant, a workspace or a connector changes, or everything with the kill switch; lifting takes others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine.errors import CallerError
from engine.ledger.entries import Fact
from engine.limits import reason_chars_max
from governance.commands.authority import Actor, allowed
from governance.keys import hashed
from governance.store import entries, people, standstills
from governance.store.standstills import CONNECTOR, KILL_SWITCH, SCOPES, TENANT, WORKSPACE, Standstill
from governance.store.unit import Database, Unit


class Freezes:
    """The orders to stop, for every entry; they hold from their commit on, on every worker."""

    def __init__(
        self,
        database: Database,
        connectors: Callable[[], Collection[str]],
        hash_key: Callable[[str], bytes],
        random_hex: Callable[[int], str],
    ) -> None:
        self._database = database
        self._connectors = connectors
        self._hash_key = hash_key
        self._random_hex = random_hex

    def freeze(self, tenant: str, actor: Actor, reason: str, *, scope: str = TENANT, name: str = "") -> Standstill:
        """Nothing is changed from now on, of everything or of one workspace or connector; the kill switch stops reads too."""
        why = checked_reason(reason)
        if scope not in SCOPES:
            raise CallerError(f"is one of {', '.join(SCOPES)}", field="scope")
        if (scope in (WORKSPACE, CONNECTOR)) != bool(name):
            raise CallerError(
                "says which workspace or connector" if not name else f"a freeze of {scope} has no name", field="name"
            )
        if scope == CONNECTOR and name not in self._connectors():
            known = ", ".join(sorted(self._connectors()))
            raise CallerError(f"there is no connector {name!r}", field="name", next_step=f"one of {known}")
        key = self._hash_key(tenant)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "freeze")
            people.tenant(unit)
            if scope == WORKSPACE:
                _check_workspace(unit, name)
            freeze = f"fz_{self._random_hex(8)}"
            standstills.begin(unit, Standstill(freeze, scope, name, why, person.person, unit.now()))
            body = {
                "freeze": freeze, "scope": scope, "name": name, "person": person.person, "reason_sha256": hashed(key, "reason", why),
            }  # fmt: skip
            who = {"type": "person", "id": person.person}
            entries.note(unit, f"tenant/{tenant}", Fact("freeze.begun", who, body))
            made = standstills.of_id(unit, freeze)
            assert made is not None
            return made

    def kill_switch(self, tenant: str, actor: Actor, reason: str) -> Standstill:
        """Everything stops, reads too."""
        return self.freeze(tenant, actor, reason, scope=KILL_SWITCH)

    def listed(self, tenant: str, actor: Actor) -> tuple[Standstill, ...]:
        """What stands still."""
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "read")
            return standstills.open_ones(unit)


def checked_reason(reason: str) -> str:
    """A reason that others can read, which every stop and every hurry has."""
    why = reason.strip()
    if not why or len(why) > reason_chars_max or "\x00" in why:
        raise CallerError(
            f"say why, in 1 to {reason_chars_max} characters, so that others can read it",
            code="reason_required",
            field="reason",
        )
    return why


def _check_workspace(unit: Unit, name: str) -> None:
    known = [row[0] for row in unit.all("select workspace from workspace where tenant = :tenant order by workspace")]
    if name not in known:
        raise CallerError(f"there is no workspace {name!r}", field="name", next_step=f"one of {', '.join(known)}")
