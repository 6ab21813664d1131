"""Go on with what is parked: the items come back as if they had never failed; an unknown outcome is not among them."""

from __future__ import annotations

from engine.errors import Refused
from engine.ledger.entries import Fact
from governance.commands.authority import Actor, allowed
from governance.store import cases, entries
from governance.store.unit import Database


class Retry:
    """The order to try again what stands still."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def retry(self, tenant: str, actor: Actor, run: str) -> int:
        """How many items go on; refused when none is parked. Nothing that may have happened is done again: it is looked at."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "retry")
            cases.load(unit, run, lock=True)
            count = cases.unpark(unit, run)
            if count == 0:
                raise Refused(
                    "nothing of this run is parked", code="not_parked",
                    next_step="an outcome that nobody knows is answered by `twokeys run resolve`",
                )  # fmt: skip
            body = {"person": person.person, "count": count}
            entries.note_run(unit, run, [Fact("run.retried", {"type": "person", "id": person.person}, body)])
        return count
