"""Cancel a run: nothing new starts, what is in flight may finish, and open questions are withdrawn."""

from __future__ import annotations

from engine.canonical import sha256
from engine.errors import Refused
from engine.kernel import CancelAsked, Signalled, settle_cancel
from engine.limits import reason_chars_max
from governance.commands.authority import Actor, allowed
from governance.store import approvals, cases, tasks
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
            case.cancel_requested = True
            open_ones = [approvals.load(unit, one, lock=True) for one in approvals.open_of_run(unit, run)]
            text = reason[:reason_chars_max]
            case.note(
                "cancel.requested",
                {"person": person.person, "reason_sha256": sha256(case.origin.salt_key + text.encode()).hex()},
                actor={"type": "person", "id": person.person},
            )
            for found in open_ones:
                asked = found.asked
                case.approval_status[asked.id] = "canceled"
                case.add("due_done", kind="approval", ref=asked.id)
                body = {
                    "approval": asked.id,
                    "promise": asked.promise,
                    "action_sha256": asked.action_digest.hex(),
                    "why": "run_canceled",
                }
                case.note("approval.canceled", body)
                case.posts.append(("card", asked.id, {}))
            tasks.withdraw(case, "run_canceled")
            if not case.history.started:
                # A run that never began has no journal to cancel: it ends queued to canceled, with its entries.
                case.work_done.append(("", "advance"))
                case.close("canceled")
            else:
                case.accept(CancelAsked(f"person:{person.person}"))
                for found in open_ones:
                    case.accept(Signalled(f"approval:{found.asked.id}", "canceled"))
                if settle_cancel(case.history, case.micros):
                    case.work_done.extend((p, s) for p in ("", *case.promises) for s in ("advance", "judge", "execute"))
                    case.close("canceled")
            cases.commit(unit, case, ())
            return case.state
