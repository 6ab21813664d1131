"""Tick: clocks that have run out. A question nobody answered in time is a no; counted refusals become their entry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from engine.errors import CallerError, TwokeysError
from engine.journal.promises import Timer
from engine.kernel import Fired, Signalled
from engine.ledger.entries import Fact
from governance import log, metrics
from governance.store import approvals, cards, cases, changes, doubts, entries, mending, refusals, reminding, tasks
from governance.store.dispatch import Dispatch
from governance.store.unit import Database, Unit

_say = log.get("tick")


class Tick:
    """Looks across tenants for what is due, then settles each in its own tenant's transaction, under the run's lock."""

    def __init__(self, database: Database, fire: Callable[[Unit, str], None] | None = None) -> None:
        """`fire` starts what a schedule is due for; without it schedules are left to whoever has it."""
        self._database = database
        self._fire_schedule = fire
        self._dispatch = Dispatch(database)

    def step(self) -> int:
        """Settle up to a hundred due clocks; how many there were."""
        found = self._dispatch.due(100)
        for tenant, kind, ref in found:
            try:
                self._settle(tenant, kind, ref)
            except Exception as error:  # one broken run must not keep everybody else's clocks from being heard
                _say.error("clock stuck", tenant=tenant, kind=kind, ref=ref, reason=str(error))
                self._later(tenant, kind, ref)
        return len(found)

    def _later(self, tenant: str, kind: str, ref: str) -> None:
        with suppress(TwokeysError), self._database.unit(tenant) as unit:
            unit.run(
                "update due set at = clock_timestamp() + interval '1 minute' where tenant = :tenant and kind = :kind and ref = :ref",
                kind=kind,
                ref=ref,
            )

    def _settle(self, tenant: str, kind: str, ref: str) -> None:
        with self._database.unit(tenant) as unit:
            if kind == "approval":
                self._expire(unit, ref)
            elif kind == "remind":
                reminding.remind(unit, ref)
            elif kind == "escalate":
                reminding.escalate(unit, ref)
            elif kind == "task":
                self._time_up(unit, ref)
            elif kind == "timer":
                self._fire(unit, ref)
            elif kind == "cards":
                cards.heal(unit)
            elif kind == "schedule":
                if self._fire_schedule is None:
                    unit.run(
                        "update due set at = clock_timestamp() + interval '1 second' where tenant = :tenant and kind = 'schedule' "
                        "and ref = :ref",
                        ref=ref,
                    )
                    return
                self._fire_schedule(unit, ref)
            elif kind == "signal":
                self._lapse(unit, ref)
            elif kind == "policy":
                changes.revert(unit, int(ref))
            elif kind == "refusals":
                self._tell_refusals(unit, ref)
            unit.run(
                "delete from due where tenant = :tenant and kind = :kind and ref = :ref and at <= clock_timestamp()",
                kind=kind,
                ref=ref,
            )

    def _expire(self, unit: Unit, approval: str) -> None:
        try:
            run = approvals.run_of(unit, approval)
        except CallerError:
            return
        case = cases.load(unit, run, lock=True)
        found = approvals.load(unit, approval, lock=True)
        asked = found.asked
        if asked.status != "requested" or unit.now() < asked.expires_at or case.ended:
            return
        case.approval_status[approval] = "expired"
        case.note(
            "approval.expired",
            {"approval": approval, "promise": asked.promise, "action_sha256": asked.action_digest.hex()},
        )
        case.accept(Signalled(f"approval:{approval}", "expired"))
        error_class = "expired" if found.is_sign_off else "approval_expired"
        case.finish(asked.promise, ok=False, error_class=error_class, message="nobody decided in time")
        case.posts.append(("card", approval, {}))
        case.put_work("", "advance")
        cases.commit(unit, case, ())

    def _time_up(self, unit: Unit, task: str) -> None:
        """Nobody answered: the operation fails for good, and its author may catch that."""
        case = cases.load(unit, tasks.run_of(unit, task), lock=True)
        found = tasks.load(unit, task, lock=True)
        now = unit.now()
        if not found.is_open or case.ended or case.cancel_requested:
            return
        if now < found.expires_at:
            # Rung too early: the deadline that people were shown counts, and the clock is put right.
            unit.run(
                "update due set at = :at where tenant = :tenant and kind = 'task' and ref = :ref",
                at=found.expires_at,
                ref=task,
            )
            return
        case.now = max(case.now, now)
        tasks.end(case, task, "expired")
        if found.is_operators:
            case.note("operator.expired", {"task": task, "promise": found.promise})
            mending.give_up(
                case, found.promise, "expired", found.error_class, f"nobody mended it in time: {found.error}"
            )
            cases.commit(unit, case, ())
            return
        case.note("task.expired", {"task": task, "promise": found.promise})
        case.finish(found.promise, ok=False, error_class="expired", message="nobody answered in time")
        case.put_work("", "advance")
        cases.commit(unit, case, ())

    def _fire(self, unit: Unit, ref: str) -> None:
        """A sleep is over: the run's next turn is due. Nothing while it has not come to that by the clock of this transaction."""
        run, _, local = ref.rpartition("/")
        case = cases.load(unit, run, lock=True)
        promise = case.promise_id(local)
        timer = case.history.promise(promise)
        if case.ended or case.cancel_requested or not isinstance(timer, Timer) or timer.fired:
            metrics.count("stale_wake")
            return
        case.now = max(case.now, unit.now())
        if case.micros < timer.scheduled.fire_at:
            # Rung too early: the journal's time counts, and the clock is put right instead of being forgotten.
            unit.run(
                "update due set at = timestamptz 'epoch' + make_interval(secs => :micros / 1000000.0) "
                "where tenant = :tenant and kind = 'timer' and ref = :ref",
                micros=timer.scheduled.fire_at + 1, ref=ref,
            )  # fmt: skip
            return
        case.accept(Fired(promise))
        case.put_work("", "advance")
        cases.commit(unit, case, ())

    def _lapse(self, unit: Unit, ref: str) -> None:
        """Nobody sent the signal in time; the step's author may have said what then. Nothing when it came after all."""
        run, _, local = ref.rpartition("/")
        case = cases.load(unit, run, lock=True)
        invoke = case.history.invoke(case.promise_id(local))
        if case.ended or case.cancel_requested or invoke is None or invoke.phase == "completed":
            metrics.count("stale_wake")
            return
        case.now = max(case.now, unit.now())
        case.finish(local, ok=False, error_class="timeout", message="no signal came in time")
        case.put_work("", "advance")
        cases.commit(unit, case, ())

    def _tell_refusals(self, unit: Unit, ref: str) -> None:
        # The first refusal of a minute told itself; what came after it in that minute is one entry with its count.
        about_doubt = ref.startswith("un_")
        run = doubts.run_of(unit, ref) if about_doubt else approvals.run_of(unit, ref)
        unit.run("select 1 from run where tenant = :tenant and run = :run for update", run=run)
        facts = []
        for who, code, count in refusals.untold(unit, ref):
            person = who if who.startswith("per_") else ""
            said = {"person": person, "code": code, "via": "repeated", "count": count}
            facts.append(
                Fact(
                    "word.refused" if about_doubt else "key.refused",
                    {"type": "person" if person else "service", "id": who},
                    {"doubt": ref, "how": "", **said} if about_doubt else {"approval": ref, **said},
                )
            )
        entries.note_run(unit, run, facts)
