"""One run in hand, from a claim until it waits, ends or is lost: decide, commit once, perform, and never lose a receipt."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from engine.errors import Conflict, OperatorError
from engine.gate.action import Action
from engine.gate.own import mends
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.kernel import settle_cancel
from engine.limits import hold_receipt_seconds_max, turns_per_commit_max
from engine.program.function import Turn
from engine.program.function_journal import task_name
from engine.program.programs import Function
from governance import clock, log, metrics
from governance.stages import advance as advancing
from governance.stages import ask as asking
from governance.stages import task as tasking
from governance.stages.child import Children
from governance.stages.execute import Execute, effect_seconds_max
from governance.stages.judge import Ask, Go, Judge, Opinion, Reuse
from governance.stages.seal import Seal
from governance.stages.turn import Asking, Turns
from governance.store import approvals, cases, doubts, rules, tasks
from governance.store.around import Around, Remembered
from governance.store.case import Case, FenceLost, Follows, Seen
from governance.store.dispatch import Dispatch, Lease
from governance.store.orders import Order
from governance.store.together import Together
from governance.store.unit import Database
from governance.watch import Watch

T = TypeVar("T")

_say = log.get("worker")
# What somebody else's commit may have changed under a decision: load again and decide again.
_moved = ("version", "busy", "approval_open", "intent_pkey", "receipt_success", "receipt_pkey")


@dataclass(frozen=True, slots=True)
class Hands:
    """The stages with their tools, as wired."""

    judge: Judge
    turns: Turns
    children: Children
    execute: Execute
    seal: Seal
    card_body: asking.CardBody
    console_url: Callable[[str], str]
    lag: Callable[[str], str]  # why a tenant's log is too far behind for a new effect; empty when it is not
    pace: Callable[[Action], float]  # seconds until the outside system may be called; 0: now, and this call is counted


@dataclass(slots=True)
class Tools:
    """What every drive of a worker has in common."""

    database: Database
    dispatch: Dispatch
    remembered: Remembered
    together: Together
    hands: Hands
    name: str  # of the worker, which owns the leases
    ttl: float  # seconds of a lease
    watch: Watch
    stop: threading.Event  # set: what is in hand is finished, and no further intent is committed


class Drive:
    """One run in hand."""

    case: Case
    around: Around

    def __init__(self, tools: Tools, lease: Lease, hold: Callable[[Lease], None]) -> None:
        """`hold` is told the lease after each commit: only what is held is extended."""
        self._tools = tools
        self._hold = hold
        self.lease = lease
        self.done: tuple[Permit, Outcome] | None = None  # performed, its receipt not yet committed
        self.opinion: Opinion | None = None  # given while the receipt was being committed
        self.turns = 0  # of a function since the last commit
        self.contested = False  # the last decision was not the one that was written
        self._load()
        self.until = clock.boottime()  # on the clock that counts a suspend: when the lease runs out at the earliest

    def run(self) -> None:
        """Decide and commit, perform, and again, until nothing follows at once."""
        while True:
            granted = self.decide_and_commit()
            if granted is None:
                return
            self.outlive()
            granted.send_by = self.until
            self.done = (granted, self._tools.hands.execute.perform(granted))

    def _load(self) -> None:
        self.case = cases.load_alone(self._tools.database, self.lease.tenant, self.lease.run)
        self.around = self._tools.remembered.of(self.case)

    def decide_and_commit(self) -> Permit | None:
        """Decide as far as possible without touching the outside, commit once; decide again when the run moved meanwhile."""
        for tried in range(20):
            try:
                if tried:
                    self._again()
                granted = self.decide()
                self.commit()
                return granted
            except Exception as error:  # raised again; before that a receipt that is already known is not thrown away
                if isinstance(error, Conflict) and error.code in _moved:
                    continue
                self._save_receipt()
                raise
        self._save_receipt()
        raise OperatorError(f"run {self.lease.run} moved twenty times while it was being decided", code="contention")

    def _again(self) -> None:
        self._load()
        self.opinion, self.contested = None, True
        if self.done is not None:
            invoke = self.case.history.invoke(self.case.promise_id(self.done[0].action.promise))
            if self.case.ended or invoke is None or (invoke.phase, invoke.attempt) != ("started", self.done[0].attempt):
                raise FenceLost("the attempt was settled by another worker")

    def _save_receipt(self) -> None:
        """The effect is done and something after it failed: its receipt is committed alone, unless another worker has taken over."""
        while self.done is not None:
            granted, outcome = self.done
            try:
                self._again()
                self.case.work_done.append((self.lease.item, self.lease.stage))
                self.case.now = max(self.case.now, self._db_now())
                self._tools.hands.execute.settle(self.case, granted, outcome, how="performed", keep=False)
                self.commit()
            except FenceLost:
                self._say_late()
                return
            except (Conflict, OperatorError) as error:
                # Tried once in any case, and then for as long as the lease lasts: after it the next worker looks.
                if self.until - clock.boottime() < 1:
                    self._say_late()
                    return
                _say.warning("receipt waits for the database", reason=str(error))
                clock.sleep(0.5)

    def _say_late(self) -> None:
        if self.done is not None:
            granted, outcome = self.done
            metrics.count("late_outcome")
            _say.warning("late outcome", attempt=granted.attempt, outcome=outcome.status, action=granted.action_sha256)

    def commit(self) -> None:
        """Everything that was decided, and the fence of what this worker goes on with."""
        kept = [row for row in self.case.rows.get("work", ()) if row["state"] == "leased"]
        begun = clock.boottime()
        order = Order(self.case, (self.lease,), keeper=(self._tools.name, self._tools.ttl))
        epoch = self._tools.together.commit(order)
        held = self.lease
        if kept:
            item, stage = kept[-1]["item"], kept[-1]["stage"]
            held = replace(self.lease, item=item, stage=stage, epoch=epoch, owner=self._tools.name, faults=0)
        self.lease, self.done, self.turns, self.contested = held, None, 0, False
        if kept:
            self.until = begun + self._tools.ttl
        self._hold(held)
        self.case.committed()

    def decide(self) -> Permit | None:
        """As far as it goes without touching the outside; the permit may be used once this is committed."""
        case, stage = self.case, self.lease.stage
        case.debts = self.around.debts
        case.work_done.append((self.lease.item, stage))
        if self.done is not None:
            granted, outcome = self.done
            case.now = max(case.now, self._db_now())
            self._tools.hands.execute.settle(case, granted, outcome, how="performed")
            return self._go_on()
        if case.ended:
            return None
        if stage == "advance" and self.lease.item:
            self._tools.hands.children.ended(case, self.lease.item)
            return None
        if stage == "advance":
            return self._advance()
        row = case.promises[self.lease.item]
        if row.state in ("running", "unknown"):
            return self._look()
        if (
            row.state in ("succeeded", "failed_terminal", "canceled", "waiting_approval", tasks.WAITING)
            or case.cancel_requested
        ):
            return None  # other operations of a cancelled run may still be in flight; this one does not begin
        return self._consider(self.lease.item)

    def _go_on(self) -> Permit | None:
        """After a result: the program's next turn in the same commit, unless the run is being cancelled or waits for another try."""
        case = self.case
        if settle_cancel(case.history, case.micros):
            case.rows.pop("work", None)
            case.close("canceled")
            return None
        follow = case.rows.get("work", [])
        if any(row["stage"] == "advance" and row["state"] == "leased" for row in follow):
            case.rows["work"] = [row for row in follow if row["stage"] != "advance"]
            return self._advance()
        return None

    def _advance(self) -> Permit | None:
        case = self.case
        if case.cancel_requested:
            if settle_cancel(case.history, case.micros):
                case.close("canceled")
            return None
        program = self.around.program
        if isinstance(program, Function):
            return self._advance_function(program)
        return self._follow(advancing.step(case, program))

    def _advance_function(self, function: Function) -> Permit | None:
        """A turn of its code."""
        case = self.case
        asking = self._tools.hands.turns.prepare(case, function)
        if asking is None:
            return None
        self.turns += 1
        if self.turns > turns_per_commit_max:
            case.put_work("", "advance")
            return None
        return self._follow(self._tools.hands.turns.take(case, asking, self._turn(asking)))

    def _follow(self, follows: Follows) -> Permit | None:
        """What a turn wants first is considered here and now, the rest is work for whoever is free."""
        case = self.case
        self._tools.hands.children.begin(case, follows)
        for promise in follows.judge[1:]:
            case.put_work(promise, "judge")
        return self._consider(follows.judge[0]) if follows.judge else None

    def _turn(self, asking: Asking) -> Turn:
        """As with a verdict, a receipt that is not yet stored waits for an author's code no longer than 50 ms."""
        ask = partial(self._tools.hands.turns.ask, self.case, asking)
        return self._hurried(ask, "", "advance")

    def _look(self) -> Permit | None:
        """An attempt was in flight when its worker was lost, or its outcome is unknown: look, and never repeat blindly."""
        case = self.case
        row = case.promises[self.lease.item]
        with self._tools.database.unit(self.lease.tenant, write=False) as unit:
            action = cases.action(unit, self.lease.run, row.promise, row.rev)
            asked = row.state == "unknown" and bool(doubts.newest(unit, self.lease.run, row.promise))
        granted, outcome = self._tools.hands.execute.look(case, action)
        _say.info("looked", outcome=outcome.status)
        if row.state == "unknown" and outcome.status == "unknown":
            # Nothing new: it goes on waiting for a person, and people are told that somebody looked.
            case.now = max(case.now, self._db_now())
            self._tools.hands.execute.look_again(case, action, outcome, asked=asked)
            return None
        self._tools.hands.execute.settle(case, granted, outcome, how="looked")
        return self._go_on()

    def _consider(self, promise: str) -> Permit | None:
        case = self.case
        if self._tools.stop.is_set():
            # A stopping worker finishes the intent it holds and commits no further one.
            case.put_work(promise, "judge")
            return None
        if case.promises[promise].tool == task_name:
            return self._task(promise)
        found = self._approval(promise)
        if self.opinion is None or self.opinion.promise != promise:
            self.opinion = self._opinion(promise, found)
        opinion, self.opinion = self.opinion, None
        case.now = max(case.now, self._db_now())
        ruling = self._tools.hands.judge.record(case, self.around, opinion, found, self.lease.faults)
        if ruling is None:
            return self._go_on()
        if isinstance(ruling, Go) and (why := self._tools.hands.lag(self.lease.tenant)):
            self._tools.hands.judge.lagging(case, promise, why, self.lease.faults)
            return self._go_on()
        if isinstance(ruling, Go) and (seconds := self._tools.hands.pace(ruling.action)) > 0:
            target = f"{ruling.action.connector} {ruling.action.target.instance}"
            self._tools.hands.judge.pace(case, promise, target, seconds, self.lease.faults)
            return self._go_on()
        if isinstance(ruling, Go):
            persons = ruling.release.persons if ruling.release else ()
            case.intent_seen = Seen(
                self.around.revision,
                self.around.tenant.freeze,
                persons,
                self.around.writes_of_others,
                own=mends(ruling.action.connector, ruling.action.operation),
                payment=ruling.action if ruling.action.amount_minor else None,
                spent_by_others=opinion.spent_by_others,
            )
            return self._tools.hands.execute.intend(
                case, ruling.action, ruling.judgement, ruling.release, turn=ruling.turn
            )
        if isinstance(ruling, Ask):
            self._ask(ruling, found)
            return None
        return self._reuse(ruling)

    def _task(self, promise: str) -> Permit | None:
        """A human step: its form is put before people, and its answer before those who have to sign it."""
        case = self.case
        case.now = max(case.now, self._db_now())
        with self._tools.database.unit(self.lease.tenant, write=False) as unit:
            found = tasks.of_promise(unit, self.lease.run, promise)
        self.around = self._tools.remembered.of(case, fresh=True)
        if found is None:
            tasking.ask(case, self.around, promise)
            return self._go_on()
        action, judged = tasking.to_sign(case, found)
        self._tools.hands.judge.propose(case, promise, action)
        self._ask(Ask(action, judged, 0, {found.answerer: "answerer", **case.lineage}), None)
        return None

    def _ask(self, ruling: Ask, found: approvals.Recorded | None) -> None:
        approval = f"ap_{clock.random_hex(8)}"
        with self._tools.database.unit(self.lease.tenant, write=False) as unit:
            authors = rules.authors(unit, self.around.revision, ruling.judged.verdict) if ruling.verdict_n else ()
        asking.ask(
            self.case, self.around, ruling.action, ruling.judged, ruling.verdict_n, found, approval=approval,
            card_body=self._tools.hands.card_body, console_url=self._tools.hands.console_url(approval),
            lineage={**dict.fromkeys(authors, "rule_author"), **ruling.lineage},
        )  # fmt: skip

    def _reuse(self, ruling: Reuse) -> Permit | None:
        with self._tools.database.unit(self.lease.tenant, write=False) as unit:
            result = cases.result_under(unit, ruling.run, ruling.promise)
        self._tools.hands.execute.reuse(
            self.case, ruling.action, ruling.run, ruling.body, ruling.signature, ruling.key_id, result
        )
        return self._go_on()

    def _approval(self, promise: str) -> approvals.Recorded | None:
        approval = self.case.promises[promise].approval
        if not approval:
            return None
        with self._tools.database.unit(self.lease.tenant, write=False) as unit:
            return approvals.load(unit, approval)

    def _opinion(self, promise: str, found: approvals.Recorded | None) -> Opinion:
        """A receipt that is not yet stored waits for this verdict 50 ms at most; then it is committed alone."""
        ask = partial(self._judged, promise, found)
        return self._hurried(ask, promise, "judge")

    def _hurried(self, ask: Callable[[], T], item: str, stage: str) -> T:
        """What is asked of the outside; a receipt that it would hold up is committed meanwhile, with this as the work that follows."""
        if self.done is None:
            return ask()

        def receipt_alone() -> None:
            self.case.put_work(item, stage, keep=True)
            self.commit()

        answer, alone = self._tools.watch.within(hold_receipt_seconds_max, ask, receipt_alone)
        if alone:
            self.case.work_done.append((item, stage))
        return answer

    def _judged(self, promise: str, found: approvals.Recorded | None) -> Opinion:
        """On what is remembered a verdict may be yes, because the intent's commit looks again; anything else is judged on a fresh read."""
        fresh = found is not None or self.contested
        while True:
            self.around = self._tools.remembered.of(self.case, fresh=fresh)
            opinion = self._tools.hands.judge.opinion(self.case, self.around, promise, found, contested=self.contested)
            if fresh or opinion.judged is None or opinion.judged.verdict.effect == "allow":
                return opinion
            fresh = True

    def outlive(self) -> None:
        """The lease must outlive the call: extend exactly this one if it would not, and leave the call undone if it is lost."""
        if self.until - clock.boottime() > effect_seconds_max:
            return
        begun = clock.boottime()
        if self._tools.dispatch.extend(self._tools.name, [self.lease], self._tools.ttl) != 1:
            raise FenceLost("the lease ran out before the call")
        self.until = begun + self._tools.ttl

    def _db_now(self) -> datetime.datetime:
        """The database's clock as of the last read, moved on by our own monotonic seconds."""
        return self.around.now + datetime.timedelta(seconds=clock.monotonic() - self.around.read_at)
