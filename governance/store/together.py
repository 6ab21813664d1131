"""Decisions of one tenant that are ready at the same moment are written by one call, and each is told its own answer."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from engine.errors import CallerError, Conflict, OperatorError
from engine.limits import runs_per_commit_max
from governance import metrics
from governance.store import cases
from governance.store.orders import Answers, Order, answered, write, write_alone
from governance.store.unit import Database


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Waiting:
    """An order whose drive sleeps until it is answered or is to make the next call itself."""

    order: Order
    woken: threading.Lock = field(default_factory=_closed)  # opened once; an event would cost more than the queue
    leads: bool = False
    answers: Answers | None = None
    failed: OperatorError | None = None


class Together:
    """One call per tenant is under way; what becomes ready meanwhile goes together in the next one.

    Whoever finds no call under way makes one at once, so nobody waits for company. A call that stands or falls as a whole
    falls for all its orders, and each is then written alone.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}  # of the tenants with a call under way

    def commit(self, order: Order) -> int:
        """The fence of the item that is gone on with, or 0; Conflict or FenceLost when nothing was written."""
        if _alone(order):
            with self._database.unit(order.case.origin.tenant) as unit:
                return cases.commit(unit, order.case, order.leases, order.keeper)
        tenant, mine = order.case.origin.tenant, _Waiting(order)
        with self._lock:
            queue = self._queues.get(tenant)
            if queue is None:
                self._queues[tenant] = deque()
                mine.leads = True
            else:
                queue.append(mine)
        if not mine.leads:
            mine.woken.acquire()
        if mine.leads:
            self._lead(tenant, mine)
        if mine.failed is not None:
            raise mine.failed
        if mine.answers is None:
            mine.answers = self._write(tenant, [order])
        kept = answered(order, mine.answers)
        metrics.recorded(Counter(order.case.noted))
        if order.case.leaves_work:
            self._database.ring()
        return kept

    def _lead(self, tenant: str, mine: _Waiting) -> None:
        with self._lock:
            queue = self._queues[tenant]
            batch = _take(mine, queue)
        reason, code = "whoever made the call for this one is gone", "database"
        answers: Answers | None = None
        try:
            answers = self._write(tenant, [one.order for one in batch])
            reason = ""
        except (Conflict, CallerError):
            reason = ""
            if len(batch) == 1:
                raise
        except OperatorError as error:
            # Whether it was written nobody knows: each finds out for itself, as if it had been alone.
            reason, code = error.reason, error.code
            raise
        finally:
            with self._lock:
                follows = queue.popleft() if queue else None
                if follows is None:
                    del self._queues[tenant]
            if follows is not None:
                follows.leads = True
                follows.woken.release()
            for one in batch[1:]:
                one.answers = answers
                one.failed = OperatorError(reason, code=code) if reason else None
                one.woken.release()
            mine.answers = answers

    def _write(self, tenant: str, orders: list[Order]) -> Answers:
        if self._database.check_commit is None:
            return write_alone(self._database, tenant, orders)
        with self._database.unit(tenant) as unit:
            answers = write(unit, orders)
            for order in orders:
                if answers.get(order.case.origin.run, ("", 0))[0] == "":
                    self._database.check_commit(unit, order.case)
            return answers


def _take(first: _Waiting, queue: deque[_Waiting]) -> list[_Waiting]:
    """What goes into one call, oldest first; of two orders for one run the later waits for the next call."""
    batch, runs = [first], {first.order.case.origin.run}
    for one in list(queue):
        run = one.order.case.origin.run
        if len(batch) < runs_per_commit_max and run not in runs:
            queue.remove(one)
            batch.append(one)
            runs.add(run)
    return batch


def _alone(order: Order) -> bool:
    """What holds more than one run's row, counts over a family or a day's payments, or has rows that the one call does not take."""
    case = order.case
    if not cases.WRITTEN_APART.keys().isdisjoint(case.rows):
        return True
    if case.intent_seen is not None and case.intent_seen.payment is not None:
        return True
    return case.has_family or bool(case.births) or case.wakes_parent or case.releases_children
