"""Which connectors there are, what each declares, and the one interface that stages call them through."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.errors import CallerError
from engine.gate.action import Action, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.gate.retry import Faults


@dataclass(frozen=True, slots=True)
class Connection:
    """Where one tenant's instance of a connector is and how to speak to it."""

    instance: str
    base_url: str
    user: str
    secret: str
    calls_per_min: int | None = None  # the tenant's own limit, below what the connector declares

    def __repr__(self) -> str:
        return f"Connection({self.instance!r}, {self.base_url!r})"


class Connector(Protocol):
    """One outside system. `perform` takes a permit and nothing else; `look` says what the outside itself can prove."""

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        """What it declares about its operations."""

    @property
    def faults(self) -> Faults:
        """Every error class that it can produce, and what each means: its one table of retries."""

    @property
    def calls_per_min(self) -> int | None:
        """How many calls one instance of the outside system takes in any minute; None when it states no number."""

    def observe(self, action: Action) -> Mapping[str, str]:
        """The facts of the target that the action relies on (before values, version); raises CannotLook."""

    def perform(self, permit: Permit) -> Outcome:
        """Do it once; every fault becomes an outcome."""

    def look(self, permit: Permit) -> Outcome | None:
        """After a crash: `ok` if it certainly happened, `rejected` if it certainly did not, None if nobody can tell."""

    def close(self) -> None:
        """Give its connections back."""


@runtime_checkable
class Answering(Protocol):
    """A connector that can say whether its system takes our account, without changing anything there."""

    def answers(self, tenant: str) -> Outcome | None:
        """None when it does, else what it says instead."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one field as the outside system's own log tells it."""

    target: str
    field: str
    by: str  # the account
    at: str  # as an entry's stamp


@runtime_checkable
class Auditing(Protocol):
    """A connector whose system keeps a change log that our account may read."""

    def audit(self, tenant: str, since: datetime.datetime, until: datetime.datetime) -> Sequence[Change]:
        """Every change of what we can write, whoever made it; raises OperatorError when it cannot be read."""


ConnectionOf = Callable[[str, str], Connection]


class Registry:
    """The connectors of this installation by name."""

    def __init__(self, connectors: Mapping[str, Connector], own: Connector | None = None) -> None:
        """`own` is the product's: no author may use it and nobody may propose its operations but the orders that are about them."""
        self._connectors = dict(connectors)
        # What authors and agents may use.
        self.catalog: dict[tuple[str, str], OperationSpec] = {
            (spec.connector, spec.operation): spec for one in connectors.values() for spec in one.specs
        }
        specs = own.specs if own is not None else ()
        self.own_catalog = {(spec.connector, spec.operation): spec for spec in specs}
        if own is not None:
            self._connectors |= {spec.connector: own for spec in specs}

    def spec(self, connector: str, operation: str) -> OperationSpec:
        """What was declared; an unknown operation is refused by name."""
        found = self.catalog.get((connector, operation)) or self.own_catalog.get((connector, operation))
        if found is None:
            known = ", ".join(sorted(f"{c}.{o}" for c, o in self.catalog))
            raise CallerError(
                f"{connector}.{operation} is not an operation", field="operation", next_step=f"there are: {known}"
            )
        return found

    def of(self, connector: str) -> Connector:
        """The connector of that name."""
        found = self._connectors.get(connector)
        if found is None:
            raise CallerError(f"{connector} is not a connector", field="connector")
        return found

    def auditing(self) -> dict[str, Auditing]:
        """Those whose systems keep a change log, by name."""
        return {name: one for name, one in self._connectors.items() if isinstance(one, Auditing)}

    def calls_per_min(self, connector: str) -> int | None:
        """What it declares of its outside system."""
        return self.of(connector).calls_per_min

    def close(self) -> None:
        """Give every connection back."""
        for one in self._connectors.values():
            one.close()
