"""The worker: lease work, run the stages, commit each result once, and keep the clocks, the log and the outbox moving."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.errors import BrokenJournal, OperatorError, TwokeysError
from engine.limits import (
    claim_batch,
    faults_max,
    heartbeats_per_lease_min,
    poll_idle_seconds,
    poll_seconds,
    runs_per_commit_max,
    turns_seconds,
)
from engine.program.function_code import CodeChanged
from governance import clock, log, metrics
from governance.drive import Drive, Hands, Tools
from governance.stages.hosts import CodeRefused, HostFault
from governance.store import cases
from governance.store.around import Remembered
from governance.store.case import FenceLost
from governance.store.dispatch import Dispatch, Lease
from governance.store.together import Together
from governance.store.unit import Database
from governance.watch import Watch

_say = log.get("worker")
# A journal that cannot be trusted, or code that disagrees with it: trying again would find the same. The run stands
# still, shows it, and loses nothing.
_holds = (BrokenJournal, CodeRefused, CodeChanged)
_never = 2**31 - 1


class Worker:
    """One process of stages. Everything correct rests on the database; this only keeps things moving."""

    def __init__(
        self, database: Database, hands: Hands, *, name: str, lease_seconds: float, heartbeat_seconds: float | None = None,
        threads: int = runs_per_commit_max,
    ) -> None:  # fmt: skip
        self._database = database
        self._dispatch = Dispatch(database)
        self._name = name
        self._ttl = lease_seconds
        self._beat = heartbeat_seconds or lease_seconds / heartbeats_per_lease_min
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._wakes = [self._wake]
        self._hears: Callable[[], bool] = lambda: False
        self._poll = True
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="drive")
        self._tools = Tools(
            database,
            self._dispatch,
            Remembered(database),
            Together(database),
            hands,
            name,
            lease_seconds,
            Watch(),
            self._stop,
        )
        self._free = threading.Semaphore(threads)
        # The lease each thread holds at this moment: only these are extended, so what a drive has lost sight of runs out.
        self._held: dict[int, Lease] = {}
        self._over = threading.Event()  # the drives have ended; until then the heartbeat goes on, also while stopping

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(
        self,
        tasks: tuple[tuple[str, float, Callable[[], int]], ...],
        *,
        hears: Callable[[], bool] = lambda: False,
        poll: bool = True,
    ) -> None:
        """Work until `stop`; each task (name, least seconds between, step) runs in a thread of its own beside the drives.

        `hears` says whether wake-ups arrive, so that looking can be rare; without `poll` nobody looks but when woken. A task
        that takes a second between two steps is a clock, which nobody can wake, and does not rest.
        """
        self._hears, self._poll = hears, poll
        every = (*tasks, ("seal", 0.1, self._seals))
        self._wakes += [threading.Event() for _ in every]
        threads = [
            threading.Thread(target=self._every, args=(*task, wake), name=task[0], daemon=True)
            for task, wake in zip(every, self._wakes[1:], strict=True)
        ]
        threads.append(threading.Thread(target=self._beats, name="heartbeat", daemon=True))
        for thread in threads:
            thread.start()
        while not self._stop.is_set():
            # Before the look, never after it: a wake-up that comes between the two must not be forgotten.
            self._wake.clear()
            if not self._claim():
                self._rest(self._wake)
        self._pool.shutdown(wait=True)
        self._over.set()
        for thread in threads:
            thread.join(timeout=5)

    def stop(self) -> None:
        """Finish the intents in hand and take no more."""
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """There may be something to do for everybody who rests."""
        for each in tuple(self._wakes):
            each.set()

    def _rest(self, wake: threading.Event) -> None:
        """Until woken, or until it is time to look anyway; no two workers look in step."""
        if self._stop.is_set():
            return  # said before the flag was cleared
        seconds = poll_idle_seconds if self._hears() else poll_seconds
        wake.wait(seconds * (0.75 + clock.random_bytes(1)[0] / 512) if self._poll else None)

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
            leases = self._dispatch.claim(self._name, slots, self._ttl, turns_every=turns_seconds)
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
                if not (lease.taken_over and self._is_poison(lease)):
                    self._drive(lease)
            except FenceLost as error:
                metrics.count("lease_lost")
                _say.warning("lease lost", reason=str(error))
                self._put_back(self._held[me], str(error))
            except TwokeysError as error:
                metrics.count("stage_failed")
                _say.error("stage failed", code=error.code, reason=str(error))
                self._put_back(self._held[me], str(error), most=_faults_before_parking(error))
            except Exception:  # a fault of ours in one run must not stop the others; the item comes back and shows it
                metrics.count("stage_failed")
                _say.exception("stage crashed")
                self._put_back(self._held[me], "internal error")
            finally:
                del self._held[me]

    def _every(self, name: str, seconds: float, step: Callable[[], int], wake: threading.Event) -> None:
        while not self._stop.is_set():
            wake.clear()
            try:
                busy = step() > 0
            except TwokeysError as error:
                busy = False
                _say.warning("task failed", task=name, code=error.code, reason=str(error))
            except Exception:  # a task that dies would be silence; it is said and tried again
                busy = False
                _say.exception("task crashed", task=name)
            if busy:
                self._stop.wait(0.01)
            elif not self._stop.wait(seconds) and seconds < 1:
                self._rest(wake)

    def _beats(self) -> None:
        while not self._over.wait(self._beat):
            try:
                self._dispatch.extend(self._name, list(self._held.values()), self._ttl)
            except TwokeysError as error:
                _say.warning("heartbeat failed", code=error.code, reason=str(error))

    def _is_poison(self, lease: Lease) -> bool:
        """Counted before the drive, because one that takes its process along can count nothing after it."""
        with self._database.unit(lease.tenant) as unit:
            parked = cases.count_loss(unit, lease, faults_max)
        if parked:
            _say.error("parked", reason=cases.lost_text)
        return parked

    def _put_back(self, lease: Lease, reason: str, *, most: int = faults_max) -> None:
        """Give an item back with its reason; after so many faults it is parked, where people see it. Not ours any more: nothing."""
        with contextlib.suppress(TwokeysError), self._database.unit(lease.tenant) as unit:
            cases.put_back(unit, lease, reason, most)

    # --- one run ------------------------------------------------------------------------------------------------------

    def _drive(self, lease: Lease) -> None:
        if lease.stage == "seal":
            self._tools.hands.seal.run(lease)
        elif lease.stage == "cancel":
            self._tools.hands.children.cancel(lease)
        else:
            self._in_hand(lease).run()

    def _in_hand(self, lease: Lease) -> Drive:
        me = threading.get_ident()

        def hold(now_held: Lease) -> None:
            self._held[me] = now_held

        return Drive(self._tools, lease, hold)


def _faults_before_parking(error: TwokeysError) -> int:
    """How often an item may have come back before it is parked: at once where trying again would find the same.

    An outage parks nothing: a bucket that is down for an hour must not leave a run without its evidence for ever. A host
    that does not answer is mostly its author's code.
    """
    if isinstance(error, _holds):
        return 0
    return _never if isinstance(error, OperatorError) and not isinstance(error, HostFault) else faults_max
