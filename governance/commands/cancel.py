"""Cancel a run: nothing new starts, what is in flight may finish, and open questions are withdrawn."""

from __future__ import annotations

from engine.canonical import sha256
from engine.errors import Refused
from engine.kernel import CancelAsked
from engine.limits import reason_chars_max
from governance.commands.authority import Actor, allowed
from governance.store import cases, withdrawing
from governance.store.unit import Database


class Cancel:
    """The order to stop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cancel(self, tenant: str, actor: Actor, run: str, reason: str) -> str:
        """Ask for the end of a run; returns its state afterwards."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "cancel")
            case = cases.load(unit, run, lock=True)
            if case.ended or case.cancel_requested:
                stands = case.state if case.ended else "being cancelled; what is in flight is finished first"
                raise Refused(f"the run is already {stands}", code="ended")
            text = reason[:reason_chars_max]
            case.note(
                "cancel.requested",
                {"person": person.person, "reason_sha256": sha256(case.origin.salt_key + text.encode()).hex()},
                actor={"type": "person", "id": person.person},
            )
            withdrawing.cancel(unit, case, CancelAsked(f"person:{person.person}"))
            cases.commit(unit, case, ())
            return case.state
