"""Where each tenant's outside systems are, what opens them, and how soon one may be called again."""

from __future__ import annotations

from collections.abc import Callable

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate.action import Action
from engine.gate.own import CONNECTOR as OWN
from governance import clock
from governance.connectors.registry import Connection
from governance.store import paces, templates
from governance.store.secrets import Secrets
from governance.store.unit import Database

# Every operation of a run asks where its system is; a changed address or secret holds after this.
connection_seconds_max = 1.0


class Reach:
    """What a process knows of the systems outside, as of a second ago at most."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database = database
        self._secrets = secrets
        self._known: dict[tuple[str, str], tuple[float, Connection]] = {}

    def connection(self, tenant: str, connector: str) -> Connection:
        """A tenant's instance and what opens it; missing is the operator's or an owner's to mend."""
        known = self._known.get((tenant, connector))
        if known is None or clock.monotonic() - known[0] > connection_seconds_max:
            known = clock.monotonic(), self._read(tenant, connector)
            self._known[tenant, connector] = known
        return known[1]

    def forget(self) -> None:
        """The next question is answered by the database."""
        self._known.clear()

    def instance(self, tenant: str, connector: str) -> str:
        """The name of the outside system that an action's target is in."""
        if connector == OWN:
            return OWN
        if connector != "slack":
            return self.connection(tenant, connector).instance
        with self._database.unit(tenant, write=False) as unit:
            found = templates.installation(unit)
        if found is None:
            raise CallerError(f"no Slack workspace is installed for {tenant}", code="not_connected")
        return found.team

    def slack_token(self, tenant: str) -> str:
        """The bot token of the tenant's workspace, empty when there is none."""
        with self._database.unit(tenant, write=False) as unit:
            found = templates.installation(unit)
        return "" if found is None else self._secrets.unseal(tenant, "slack/token", found.token_sealed)

    def pace(self, declared: Callable[[str], int | None], action: Action) -> float:
        """Seconds until this action may call its target, by what its connector declares and the tenant's connection lowers."""
        most = declared(action.connector)
        if action.connector not in ("slack", OWN):
            own = self.connection(action.tenant, action.connector).calls_per_min
            most = own if most is None else min(most, own or most)
        if most is None:
            return 0.0
        return paces.take(self._database, action.tenant, action.connector, action.target.instance, most)

    def _read(self, tenant: str, connector: str) -> Connection:
        with self._database.unit(tenant, write=False) as unit:
            found = templates.connection(unit, connector)
        if found is None:
            raise CallerError(
                f"{connector} is not connected for {tenant}", code="not_connected", next_step="`twokeys tenant connect`"
            )
        instance, base_url, sealed, calls_per_min = found
        pair = read_json(self._secrets.unseal(tenant, f"connection/{connector}", sealed).encode())
        return Connection(instance, base_url, pair["user"], pair["secret"], calls_per_min)
