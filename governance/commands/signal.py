"""Send a signal to a run: kept in its journal whether anybody waits for it or not, and received once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.canonical import read_json
from engine.errors import CallerError, Refused
from engine.kernel import Signalled, signal_prefix
from engine.limits import signals_waiting_max
from engine.program.function_commands import plain, signal_name
from engine.program.function_journal import can_turn
from governance.commands.authority import Actor, allowed
from governance.store import cases
from governance.store.case import Case, timer_ref
from governance.store.unit import Database


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a signal: its number among those of its name."""

    run: str
    name: str
    delivery: int


class Signal:
    """The word that a run waits for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def send(self, tenant: str, actor: Actor, run: str, name: str, value: Any) -> Delivered:
        """Deliver it; refused when the run is over or has not begun. Signals of one name are received in the order of their numbers."""
        try:
            checked, given = signal_name(name), plain(value)
        except (ValueError, TypeError) as error:
            raise CallerError(str(error), code="invalid_signal", field="signal") from None
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "signal")
            case = cases.load(unit, run, lock=True)
            if case.ended or case.cancel_requested:
                raise Refused("the run is over, or is being cancelled", code="ended")
            if not case.history.started:
                raise Refused("the run has not begun", code="not_started", next_step="try again in a moment")
            if len(case.history.buffered(checked)) >= signals_waiting_max:
                raise Refused(f"{signals_waiting_max} signals {checked!r} wait to be received", code="signals_full")
            case.now = max(case.now, unit.now())
            case.accept(Signalled(checked, given))
            delivery = case.history.deliveries(checked)
            (_, text) = case.history.buffered(checked)[-1]
            digest = read_json(text.encode())["commit"]
            body = {"person": person.person, "name": checked, "delivery": delivery, "payload_sha256": digest}
            case.note("signal.sent", body, actor={"type": "person", "id": person.person})
            self._wake(case, checked)
            if can_turn(case.history):
                case.put_work("", "advance")
            cases.commit(unit, case, ())
        return Delivered(run, checked, delivery)

    def _wake(self, case: Case, name: str) -> None:
        """A step of a definition that waits for it goes on and finds it; of several the one that has waited longest."""
        for invoke in case.history.open_invokes():
            if invoke.scheduled.function_name == f"{signal_prefix}{name}":
                promise = invoke.scheduled.promise_id
                case.finish(promise.local, ok=True)
                case.add("due_done", kind="signal", ref=timer_ref(promise))
                return
