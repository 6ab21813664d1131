"""The worker: lease work, run the stages, commit each result once, and keep the clocks, the log and the outbox moving."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from functools import partial

from engine.errors import BrokenJournal, Conflict, OperatorError, TwokeysError
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.kernel import settle_cancel
from engine.limits import claim_batch, faults_max, heartbeat_seconds, hold_receipt_seconds_max, turns_per_commit_max
from engine.program.function import Turn
from engine.program.function_code import CodeChanged
from engine.program.function_journal import task_name
from engine.program.programs import Function
from governance import clock, log
from governance.stages import advance as advancing
from governance.stages import ask as asking
from governance.stages import task as tasking
from governance.stages.child import Children
from governance.stages.execute import Execute, effect_seconds_max
from governance.stages.hosts import CodeRefused, HostFault
from governance.stages.judge import Ask, Go, Judge, Opinion, Reuse
from governance.stages.seal import Seal
from governance.stages.turn import Asking, Turns
from governance.store import approvals, around, cases, tasks
from governance.store.around import Around
from governance.store.case import Case, FenceLost, Seen
from governance.store.dispatch import Dispatch, Lease
from governance.store.unit import Database

_say = log.get("worker")
# What somebody else's commit may have changed under a decision: load again and decide again.
_moved = ("version", "busy", "approval_open", "intent_pkey", "receipt_success", "receipt_pkey")
# A journal that cannot be trusted, or code that disagrees with it: trying again would find the same. The run stands
# still, shows it, and loses nothing.
_holds = (BrokenJournal, CodeRefused, CodeChanged)
_never = 2**31 - 1
around_seconds_max = 1.0  # switches, people and policy older than this are read again before a verdict


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


@dataclass(slots=True)
class _Drive:
    """One run in hand from a claim until it waits, ends or is lost."""

    lease: Lease
    case: Case
    around: Around
    read_at: float
    until: float  # on the clock that counts a suspend: when the lease runs out at the earliest
    done: tuple[Permit, Outcome] | None = None  # performed, its receipt not yet committed
    opinion: Opinion | None = None  # given while the receipt was being committed
    turns: int = 0  # of a function since the last commit
    contested: bool = False  # the last decision was not the one that was written


class Worker:
    """One process of stages. Everything correct rests on the database; this only keeps things moving."""

    def __init__(self, database: Database, hands: Hands, *, name: str, lease_seconds: float, threads: int = 2) -> None:
        self._database = database
        self._dispatch = Dispatch(database)
        self._hands = hands
        self._name = name
        self._ttl = lease_seconds
        self._beat = min(heartbeat_seconds, lease_seconds / 3)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="drive")
        self._side = ThreadPoolExecutor(threads, thread_name_prefix="judge")
        self._free = threading.Semaphore(threads)
        # The lease each thread holds at this moment: only these are extended, so what a drive has lost sight of runs out.
        self._held: dict[int, Lease] = {}
        self._over = threading.Event()  # the drives have ended; until then the heartbeat goes on, also while stopping

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, tasks: tuple[tuple[str, float, Callable[[], int]], ...]) -> None:
        """Work until `stop`; each task (name, seconds between, step) runs in a thread of its own beside the drives."""
        every = (*tasks, ("seal", 0.1, self._seals))
        threads = [threading.Thread(target=self._every, args=task, name=task[0], daemon=True) for task in every]
        threads.append(threading.Thread(target=self._beats, name="heartbeat", daemon=True))
        for thread in threads:
            thread.start()
        pause = 0.02
        while not self._stop.is_set():
            self._wake.clear()
            found = self._claim()
            if found:
                pause = 0.02
                continue
            self._wake.wait(pause)
            pause = min(pause * 1.5, 0.25)
        self._pool.shutdown(wait=True)
        self._side.shutdown(wait=True)
        self._over.set()
        for thread in threads:
            thread.join(timeout=5)

    def stop(self) -> None:
        """Finish the intents in hand and take no more."""
        self._stop.set()
        self._wake.set()

    def drain(self) -> int:
        """Everything that is runnable now, in this thread; for tests and one-shot commands. How many items were driven."""
        count = 0
        while not self._stop.is_set():
            leases = self._dispatch.claim(self._name, claim_batch, self._ttl)
            for lease in leases:
                self._guarded(lease)
            sealed = self._seals()
            if not leases and not sealed:
                return count
            count += len(leases) + sealed
        return count

    def _seals(self) -> int:
        """Seal what is due, one at a time and apart from the drives: a bucket that is slow or down holds no run."""
        leases = self._dispatch.claim(self._name, 1, self._ttl, seals=True)
        for lease in leases:
            self._guarded(lease)
        return len(leases)

    def _claim(self) -> bool:
        slots = 0
        while slots < claim_batch and self._free.acquire(blocking=False):
            slots += 1
        if slots == 0:
            self._wake.wait(0.05)
            return False
        leases: list[Lease] = []
        try:
            leases = self._dispatch.claim(self._name, slots, self._ttl)
        except TwokeysError as error:
            _say.warning("claim failed", error=str(error))
            clock.sleep(0.5)
        for _ in range(slots - len(leases)):
            self._free.release()
        for lease in leases:
            self._pool.submit(self._released, lease)
        return bool(leases)

    def _released(self, lease: Lease) -> None:
        try:
            self._guarded(lease)
        finally:
            self._free.release()
            self._wake.set()

    def _guarded(self, lease: Lease) -> None:
        """One drive; whatever goes wrong is said with its run, and the lease that is held then brings it back."""
        me = threading.get_ident()
        self._held[me] = lease
        with log.about(tenant=lease.tenant, run=lease.run, item=lease.item, stage=lease.stage):
            try:
                self._drive(lease)
            except FenceLost as error:
                _say.warning("lease lost", reason=str(error))
                self._put_back(self._held[me], str(error))
            except TwokeysError as error:
                _say.error("stage failed", code=error.code, reason=str(error))
                self._put_back(self._held[me], str(error), most=_faults_before_parking(error))
            except Exception:  # a fault of ours in one run must not stop the others; the item comes back and shows it
                _say.exception("stage crashed")
                self._put_back(self._held[me], "internal error")
            finally:
                del self._held[me]

    def _every(self, name: str, seconds: float, step: Callable[[], int]) -> None:
        while not self._stop.is_set():
            try:
                busy = step() > 0
            except TwokeysError as error:
                busy = False
                _say.warning("task failed", task=name, code=error.code, reason=str(error))
            except Exception:  # a task that dies would be silence; it is said and tried again
                busy = False
                _say.exception("task crashed", task=name)
            self._stop.wait(0.01 if busy and name != "heartbeat" else seconds)

    def _beats(self) -> None:
        while not self._over.wait(self._beat):
            try:
                self._dispatch.extend(self._name, list(self._held.values()), self._ttl)
            except TwokeysError as error:
                _say.warning("heartbeat failed", code=error.code, reason=str(error))

    def _put_back(self, lease: Lease, reason: str, *, most: int = faults_max) -> None:
        """Give an item back with its reason; after so many faults it is parked, where people see it. Not ours any more: nothing."""
        with contextlib.suppress(TwokeysError), self._database.unit(lease.tenant) as unit:
            cases.put_back(unit, lease, reason, most)

    # --- one run ------------------------------------------------------------------------------------------------------

    def _drive(self, lease: Lease) -> None:
        if lease.stage == "seal":
            self._hands.seal.run(lease)
            return
        if lease.stage == "cancel":
            self._hands.children.cancel(lease)
            return
        drive = self._load(lease)
        while True:
            granted = self._decide_and_commit(drive)
            if granted is None:
                return
            self._outlive(drive)
            drive.done = (granted, self._hands.execute.perform(granted))

    def _load(self, lease: Lease) -> _Drive:
        with self._database.unit(lease.tenant, write=False) as unit:
            case = cases.load(unit, lease.run)
            return _Drive(lease, case, around.load(unit, case), clock.monotonic(), clock.boottime())

    def _decide_and_commit(self, drive: _Drive) -> Permit | None:
        """Decide as far as possible without touching the outside, commit once; decide again when the run moved meanwhile."""
        for tried in range(20):
            try:
                if tried:
                    self._again(drive)
                granted = self._decide(drive)
                self._commit(drive)
                return granted
            except Exception as error:  # raised again; before that a receipt that is already known is not thrown away
                if isinstance(error, Conflict) and error.code in _moved:
                    continue
                self._save_receipt(drive)
                raise
        self._save_receipt(drive)
        raise OperatorError(f"run {drive.lease.run} moved twenty times while it was being decided", code="contention")

    def _again(self, drive: _Drive) -> None:
        fresh = self._load(drive.lease)
        drive.case, drive.around, drive.read_at, drive.opinion = fresh.case, fresh.around, fresh.read_at, None
        drive.contested = True

    def _save_receipt(self, drive: _Drive) -> None:
        """The effect is done and something after it failed: its receipt is committed alone, unless another worker has taken over."""
        while drive.done is not None:
            granted, outcome = drive.done
            try:
                self._again(drive)
                drive.case.work_done.append((drive.lease.item, drive.lease.stage))
                drive.case.now = max(drive.case.now, self._db_now(drive))
                self._hands.execute.settle(drive.case, granted, outcome, how="performed", keep=False)
                self._commit(drive)
            except FenceLost:
                self._say_late(drive)
                return
            except (Conflict, OperatorError) as error:
                # Tried once in any case, and then for as long as the lease lasts: after it the next worker looks.
                if drive.until - clock.boottime() < 1:
                    self._say_late(drive)
                    return
                _say.warning("receipt waits for the database", reason=str(error))
                clock.sleep(0.5)

    def _say_late(self, drive: _Drive) -> None:
        if drive.done is not None:
            granted, outcome = drive.done
            _say.warning("late outcome", attempt=granted.attempt, outcome=outcome.status, action=granted.action_sha256)

    def _commit(self, drive: _Drive) -> None:
        kept = [row for row in drive.case.rows.get("work", ()) if row["state"] == "leased"]
        begun = clock.boottime()
        with self._database.unit(drive.lease.tenant) as unit:
            epoch = cases.commit(unit, drive.case, (drive.lease,), keeper=(self._name, self._ttl))
        held = drive.lease
        if kept:
            item, stage = kept[-1]["item"], kept[-1]["stage"]
            held = replace(drive.lease, item=item, stage=stage, epoch=epoch, owner=self._name, faults=0)
        drive.lease, drive.done, drive.turns, drive.contested = held, None, 0, False
        if kept:
            drive.until = begun + self._ttl
        self._held[threading.get_ident()] = held
        drive.case.committed()

    def _decide(self, drive: _Drive) -> Permit | None:
        case, stage = drive.case, drive.lease.stage
        case.work_done.append((drive.lease.item, stage))
        if drive.done is not None:
            granted, outcome = drive.done
            case.now = max(case.now, self._db_now(drive))
            self._hands.execute.settle(case, granted, outcome, how="performed")
            return self._go_on(drive)
        if case.ended:
            return None
        if stage == "advance" and drive.lease.item:
            self._hands.children.ended(case, drive.lease.item)
            return None
        if stage == "advance":
            return self._advance(drive)
        row = case.promises[drive.lease.item]
        if row.state in ("running", "unknown"):
            return self._look(drive)
        if (
            row.state in ("succeeded", "failed_terminal", "canceled", "waiting_approval", tasks.WAITING)
            or case.cancel_requested
        ):
            return None  # other operations of a cancelled run may still be in flight; this one does not begin
        return self._consider(drive, drive.lease.item)

    def _go_on(self, drive: _Drive) -> Permit | None:
        """After a result: the program's next turn in the same commit, unless the run is being cancelled or waits for another try."""
        case = drive.case
        if settle_cancel(case.history, case.micros):
            case.rows.pop("work", None)
            case.close("canceled")
            return None
        follow = case.rows.get("work", [])
        if any(row["stage"] == "advance" and row["state"] == "leased" for row in follow):
            case.rows["work"] = [row for row in follow if row["stage"] != "advance"]
            return self._advance(drive)
        return None

    def _advance(self, drive: _Drive) -> Permit | None:
        case = drive.case
        if case.cancel_requested:
            if settle_cancel(case.history, case.micros):
                case.close("canceled")
            return None
        program = drive.around.program
        if isinstance(program, Function):
            return self._advance_function(drive, program)
        promise = advancing.step(case, program)
        if promise is None:
            return None
        return self._consider(drive, promise)

    def _advance_function(self, drive: _Drive, function: Function) -> Permit | None:
        """A turn; what it proposes first is considered here and now, the rest is work for whoever is free."""
        case = drive.case
        asking = self._hands.turns.prepare(case, function)
        if asking is None:
            return None
        drive.turns += 1
        if drive.turns > turns_per_commit_max:
            case.put_work("", "advance")
            return None
        follows = self._hands.turns.take(case, asking, self._turn(drive, asking))
        self._hands.children.begin(case, follows.children)
        for promise in follows.judge[1:]:
            case.put_work(promise, "judge")
        return self._consider(drive, follows.judge[0]) if follows.judge else None

    def _turn(self, drive: _Drive, asking: Asking) -> Turn:
        """As with a verdict, a receipt that is not yet stored waits for an author's code no longer than 50 ms."""
        if drive.done is None:
            return self._hands.turns.ask(drive.case, asking)
        future: Future[Turn] = self._side.submit(self._hands.turns.ask, drive.case, asking)
        try:
            return future.result(hold_receipt_seconds_max)
        except NotYet:
            drive.case.put_work("", "advance", keep=True)
            self._commit(drive)
            drive.case.work_done.append(("", "advance"))
            return future.result()

    def _look(self, drive: _Drive) -> Permit | None:
        """An attempt was in flight when its worker was lost, or its outcome is unknown: look, and never repeat blindly."""
        case = drive.case
        row = case.promises[drive.lease.item]
        with self._database.unit(drive.lease.tenant, write=False) as unit:
            action = cases.action(unit, drive.lease.run, row.promise, row.rev)
        granted, outcome = self._hands.execute.look(case, action)
        _say.info("looked", outcome=outcome.status)
        if row.state == "unknown" and outcome.status == "unknown":
            # Nothing new: it goes on waiting for a person.
            case.put_work(row.promise, "execute", parked=True)
            return None
        self._hands.execute.settle(case, granted, outcome, how="looked")
        return self._go_on(drive)

    def _consider(self, drive: _Drive, promise: str) -> Permit | None:
        case = drive.case
        if self._stop.is_set():
            # A stopping worker finishes the intent it holds and commits no further one.
            case.put_work(promise, "judge")
            return None
        if case.promises[promise].tool == task_name:
            return self._task(drive, promise)
        found = self._approval(drive, promise)
        if drive.opinion is None or drive.opinion.promise != promise:
            drive.opinion = self._opinion(drive, promise, found)
        opinion, drive.opinion = drive.opinion, None
        case.now = max(case.now, self._db_now(drive))
        ruling = self._hands.judge.record(case, drive.around, opinion, found, drive.lease.faults)
        if ruling is None:
            return self._go_on(drive)
        if isinstance(ruling, Go):
            persons = ruling.release.persons if ruling.release else ()
            case.intent_seen = Seen(
                drive.around.revision, drive.around.tenant.freeze, persons, drive.around.writes_of_others
            )
            return self._hands.execute.intend(case, ruling.action, ruling.judgement, ruling.release, turn=ruling.turn)
        if isinstance(ruling, Ask):
            self._ask(drive, ruling, found)
            return None
        return self._reuse(drive, ruling)

    def _task(self, drive: _Drive, promise: str) -> Permit | None:
        """A human step: its form is put before people, and its answer before those who have to sign it."""
        case = drive.case
        case.now = max(case.now, self._db_now(drive))
        with self._database.unit(drive.lease.tenant, write=False) as unit:
            found = tasks.of_promise(unit, drive.lease.run, promise)
        if found is None:
            tasking.ask(case, drive.around, promise)
            return self._go_on(drive)
        action, judged = tasking.to_sign(case, found)
        self._hands.judge.propose(case, promise, action)
        self._ask(drive, Ask(action, judged, 0), None, {found.answerer: "answerer", **case.lineage})
        return None

    def _ask(
        self, drive: _Drive, ruling: Ask, found: approvals.Recorded | None, lineage: Mapping[str, str] | None = None
    ) -> None:
        approval = f"ap_{clock.random_hex(8)}"
        asking.ask(
            drive.case, drive.around, ruling.action, ruling.judged, ruling.verdict_n, found, approval=approval,
            card_body=self._hands.card_body, console_url=self._hands.console_url(approval), lineage=lineage,
        )  # fmt: skip

    def _reuse(self, drive: _Drive, ruling: Reuse) -> Permit | None:
        with self._database.unit(drive.lease.tenant, write=False) as unit:
            result = cases.result_under(unit, ruling.run, ruling.promise)
        self._hands.execute.reuse(
            drive.case, ruling.action, ruling.run, ruling.body, ruling.signature, ruling.key_id, result
        )
        return self._go_on(drive)

    def _approval(self, drive: _Drive, promise: str) -> approvals.Recorded | None:
        approval = drive.case.promises[promise].approval
        if not approval:
            return None
        with self._database.unit(drive.lease.tenant, write=False) as unit:
            return approvals.load(unit, approval)

    def _opinion(self, drive: _Drive, promise: str, found: approvals.Recorded | None) -> Opinion:
        """A receipt that is not yet stored waits for this verdict 50 ms at most; then it is committed alone."""
        if clock.monotonic() - drive.read_at > around_seconds_max:
            with self._database.unit(drive.lease.tenant, write=False) as unit:
                drive.around, drive.read_at = around.load(unit, drive.case), clock.monotonic()
        ask = partial(self._hands.judge.opinion, drive.case, drive.around, promise, found, contested=drive.contested)
        if drive.done is None:
            return ask()
        future: Future[Opinion] = self._side.submit(ask)
        try:
            return future.result(hold_receipt_seconds_max)
        except NotYet:
            drive.case.put_work(promise, "judge", keep=True)
            self._commit(drive)
            drive.case.work_done.append((promise, "judge"))
            return future.result()

    def _outlive(self, drive: _Drive) -> None:
        """The lease must outlive the call: extend exactly this one if it would not, and leave the call undone if it is lost."""
        if drive.until - clock.boottime() > effect_seconds_max:
            return
        begun = clock.boottime()
        if self._dispatch.extend(self._name, [drive.lease], self._ttl) != 1:
            raise FenceLost("the lease ran out before the call")
        drive.until = begun + self._ttl

    def _db_now(self, drive: _Drive) -> datetime.datetime:
        """The database's clock as of the last read, moved on by our own monotonic seconds."""
        return drive.around.now + datetime.timedelta(seconds=clock.monotonic() - drive.read_at)


def _faults_before_parking(error: TwokeysError) -> int:
    """How often an item may have come back before it is parked: at once where trying again would find the same.

    An outage parks nothing: a bucket that is down for an hour must not leave a run without its evidence for ever. A host
    that does not answer is mostly its author's code.
    """
    if isinstance(error, _holds):
        return 0
    return _never if isinstance(error, OperatorError) and not isinstance(error, HostFault) else faults_max
