"""The named invariants and the guards as checks over a whole journal, each on its own, for tests and fsck.

Written apart from `engine.journal.history`, which refuses the same things while appending: each tests the other. Every
check reads all prefixes at once, because what holds at each entry holds at each prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.events import AwaitSignal, Entry, Event
from engine.journal.status import Blocked, Cancelling, Running, Status, fold, matches, statuses
from engine.limits import retries_max

Journal: TypeAlias = Sequence[Entry]
Key: TypeAlias = Callable[[Event], Hashable]  # None: this event does not concern the rule

_ENDS = (ev.ExecutionCompleted, ev.ExecutionFailed, ev.ExecutionCancelled)
_ONLY_RUNNING = (
    ev.InvokeScheduled,
    ev.RandomGenerated,
    ev.TimeRecorded,
    ev.TimerScheduled,
    ev.JoinSetCreated,
    ev.JoinSetSubmitted,
    ev.JoinSetAwaited,
)


_ALLOCATING = (ev.InvokeScheduled, ev.RandomGenerated, ev.TimeRecorded, ev.TimerScheduled, ev.SignalReceived)
_RESOLVING = (ev.InvokeCompleted, ev.TimerFired, ev.SignalReceived)


def _key(kind: type[Event], *names: str) -> Key:
    """The values of these fields in events of one type."""
    values: Key = attrgetter(*names) if names else lambda event: ()
    return lambda event: values(event) if type(event) is kind else None


def _each_after(journal: Journal, needs: Key, gives: Key) -> bool:
    """Every entry that needs a key comes after one that gives it."""
    given = set()
    for entry in journal:
        need, give = needs(entry.event), gives(entry.event)
        if need is not None and need not in given:
            return False
        if give is not None:
            given.add(give)
    return True


def _none_after(journal: Journal, forbidden: Key, closes: Key) -> bool:
    """No entry with a key comes after one that closes this key."""
    closed = set()
    for entry in journal:
        key, close = forbidden(entry.event), closes(entry.event)
        if key is not None and key in closed:
            return False
        if close is not None:
            closed.add(close)
    return True


def _at_most_once(journal: Journal, key: Key) -> bool:
    keys = [found for entry in journal if (found := key(entry.event)) is not None]
    return len(keys) == len(set(keys))


# --- named invariants -------------------------------------------------------------------------------------------------


def monotonic_sequence(journal: Journal) -> bool:
    """S-1: the sequence of entry i is i."""
    return all(entry.sequence == place for place, entry in enumerate(journal))


def starts_with_started(journal: Journal) -> bool:
    """S-2: the first event is ExecutionStarted."""
    return bool(journal) and isinstance(journal[0].event, ev.ExecutionStarted)


def single_terminal(journal: Journal) -> bool:
    """S-3: at most one event ends the run."""
    return sum(isinstance(entry.event, _ENDS) for entry in journal) <= 1


def terminal_is_last(journal: Journal) -> bool:
    """S-4: nothing follows the end."""
    return not any(isinstance(entry.event, _ENDS) for entry in journal[:-1])


def cancelled_requires_requested(journal: Journal) -> bool:
    """S-5: ExecutionCancelled comes after CancelRequested."""
    return _each_after(journal, _key(ev.ExecutionCancelled), _key(ev.CancelRequested))


def started_requires_scheduled(journal: Journal) -> bool:
    """SE-1: InvokeStarted comes after InvokeScheduled."""
    return _each_after(journal, _key(ev.InvokeStarted, "promise_id"), _key(ev.InvokeScheduled, "promise_id"))


def completed_requires_started(journal: Journal) -> bool:
    """SE-2: InvokeCompleted comes after InvokeStarted."""
    return _each_after(journal, _key(ev.InvokeCompleted, "promise_id"), _key(ev.InvokeStarted, "promise_id"))


def retrying_requires_started(journal: Journal) -> bool:
    """SE-3: InvokeRetrying comes after InvokeStarted of the same attempt."""
    retried = _key(ev.InvokeRetrying, "promise_id", "failed_attempt")
    return _each_after(journal, retried, _key(ev.InvokeStarted, "promise_id", "attempt"))


def no_events_after_completed(journal: Journal) -> bool:
    """SE-4: neither InvokeStarted nor InvokeRetrying comes after InvokeCompleted."""
    completed = _key(ev.InvokeCompleted, "promise_id")
    return _none_after(journal, _key(ev.InvokeStarted, "promise_id"), completed) and _none_after(
        journal, _key(ev.InvokeRetrying, "promise_id"), completed
    )


def retry_bounded(journal: Journal) -> bool:
    """SE-5: at most three InvokeRetrying for one promise."""
    retried = Counter(entry.event.promise_id for entry in journal if isinstance(entry.event, ev.InvokeRetrying))
    return all(count <= retries_max for count in retried.values())


def timer_fired_requires_scheduled(journal: Journal) -> bool:
    """CF-1: TimerFired comes after TimerScheduled."""
    return _each_after(journal, _key(ev.TimerFired, "promise_id"), _key(ev.TimerScheduled, "promise_id"))


def signal_received_requires_delivered(journal: Journal) -> bool:
    """CF-2: SignalReceived comes after the delivery of the same name, number and payload."""
    names = ("signal_name", "delivery_id", "payload")
    return _each_after(journal, _key(ev.SignalReceived, *names), _key(ev.SignalDelivered, *names))


def signal_consumed_once(journal: Journal) -> bool:
    """CF-3: a delivery is consumed at most once."""
    return _at_most_once(journal, _key(ev.SignalReceived, "signal_name", "delivery_id"))


def await_signal_consistent(journal: Journal) -> bool:
    """CF-4: a wait for a signal waits for exactly the signal's promise."""
    waits = [entry.event for entry in journal if isinstance(entry.event, ev.ExecutionAwaiting)]
    return all(wait.waiting_on == {wait.kind.promise_id} for wait in waits if isinstance(wait.kind, AwaitSignal))


def submit_requires_created(journal: Journal) -> bool:
    """JS-1: JoinSetSubmitted comes after JoinSetCreated."""
    return _each_after(journal, _key(ev.JoinSetSubmitted, "join_set_id"), _key(ev.JoinSetCreated, "join_set_id"))


def no_submit_after_await(journal: Journal) -> bool:
    """JS-2: nothing is submitted to a set after its first JoinSetAwaited."""
    return _none_after(journal, _key(ev.JoinSetSubmitted, "join_set_id"), _key(ev.JoinSetAwaited, "join_set_id"))


def awaited_requires_member(journal: Journal) -> bool:
    """JS-3: JoinSetAwaited comes after JoinSetSubmitted of the same set and promise."""
    names = ("join_set_id", "promise_id")
    return _each_after(journal, _key(ev.JoinSetAwaited, *names), _key(ev.JoinSetSubmitted, *names))


def awaited_requires_completed(journal: Journal) -> bool:
    """JS-4: JoinSetAwaited comes after InvokeCompleted."""
    return _each_after(journal, _key(ev.JoinSetAwaited, "promise_id"), _key(ev.InvokeCompleted, "promise_id"))


def no_double_consume(journal: Journal) -> bool:
    """JS-5: a member of a set is consumed at most once."""
    return _at_most_once(journal, _key(ev.JoinSetAwaited, "join_set_id", "promise_id"))


def consume_bounded(journal: Journal) -> bool:
    """JS-6: at no point were more results taken from a set than members submitted to it."""
    left: Counter[PromiseId] = Counter()
    for entry in journal:
        event = entry.event
        if isinstance(event, ev.JoinSetSubmitted):
            left[event.join_set_id] += 1
        elif isinstance(event, ev.JoinSetAwaited):
            left[event.join_set_id] -= 1
            if left[event.join_set_id] < 0:
                return False
    return True


def promise_single_owner(journal: Journal) -> bool:
    """JS-7: a promise is in at most one set."""
    submitted = {_key(ev.JoinSetSubmitted, "promise_id", "join_set_id")(entry.event) for entry in journal} - {None}
    return len(submitted) == len({pair[0] for pair in submitted if isinstance(pair, tuple)})


NAMED: dict[str, Callable[[Journal], bool]] = {
    "S-1": monotonic_sequence,
    "S-2": starts_with_started,
    "S-3": single_terminal,
    "S-4": terminal_is_last,
    "S-5": cancelled_requires_requested,
    "SE-1": started_requires_scheduled,
    "SE-2": completed_requires_started,
    "SE-3": retrying_requires_started,
    "SE-4": no_events_after_completed,
    "SE-5": retry_bounded,
    "CF-1": timer_fired_requires_scheduled,
    "CF-2": signal_received_requires_delivered,
    "CF-3": signal_consumed_once,
    "CF-4": await_signal_consistent,
    "JS-1": submit_requires_created,
    "JS-2": no_submit_after_await,
    "JS-3": awaited_requires_member,
    "JS-4": awaited_requires_completed,
    "JS-5": no_double_consume,
    "JS-6": consume_bounded,
    "JS-7": promise_single_owner,
}


def violations(journal: Journal, *, stored: dict[str, Any] | None = None) -> list[str]:
    """Every named invariant that this journal breaks; INV-4 when the stored status is not its fold."""
    broken = [rule for rule, holds in NAMED.items() if not holds(journal)]
    if stored is not None and not (journal and matches(stored, fold(journal))):
        broken.append("INV-4")
    return broken


# --- guards -----------------------------------------------------------------------------------------------------------


def _with_status(journal: Journal) -> Iterator[tuple[Status, Event]]:
    """Each event with the status before it."""
    before: Status = Running()
    for entry, after in zip(journal, statuses(journal), strict=True):
        yield before, entry.event
        before = after


def _only_while(journal: Journal, kinds: tuple[type[Event], ...], allowed: tuple[type[Status], ...]) -> bool:
    # Most journals hold no cancellation: looking for one costs less than a status for each entry.
    if not any(isinstance(entry.event, kinds) for entry in journal):
        return True
    return all(isinstance(status, allowed) for status, event in _with_status(journal) if isinstance(event, kinds))


def _allocated(event: Event) -> PromiseId | None:
    if isinstance(event, ev.JoinSetCreated):
        return event.join_set_id
    return event.promise_id if isinstance(event, _ALLOCATING) else None


class _Resolved:
    """Which promises are resolved so far, and whether a wait for them is satisfied."""

    def __init__(self) -> None:
        self.promises: set[PromiseId] = set()
        self.signals: set[PromiseId] = set()

    def take(self, event: Event) -> None:
        if isinstance(event, _RESOLVING):
            self.promises.add(event.promise_id)
        if isinstance(event, ev.SignalReceived):
            self.signals.add(event.promise_id)

    def satisfies(self, wait: Blocked | ev.ExecutionAwaiting) -> bool:
        if isinstance(wait.kind, AwaitSignal):
            return wait.kind.promise_id in self.signals
        if wait.kind == "Any":
            return not self.promises.isdisjoint(wait.waiting_on)
        return wait.waiting_on <= self.promises


def resumed_when_satisfied(journal: Journal) -> bool:
    """G-01: ExecutionResumed only while Blocked with the wait satisfied."""
    resolved = _Resolved()
    for status, event in _with_status(journal):
        if isinstance(event, ev.ExecutionResumed) and not (isinstance(status, Blocked) and resolved.satisfies(status)):
            return False
        resolved.take(event)
    return True


def attempts_in_order(journal: Journal) -> bool:
    """G-07: attempts count 1, 2, 3 and what ends an attempt names the one in flight."""
    # A second completion that repeats the attempt is G-08's matter.
    last: dict[PromiseId, tuple[str, int]] = {}
    for entry in journal:
        match entry.event:
            case ev.InvokeScheduled(promise_id=promise):
                last[promise] = ("waiting", 0)
            case ev.InvokeStarted(promise_id=promise, attempt=attempt):
                if last.get(promise) != ("waiting", attempt - 1):
                    return False
                last[promise] = ("started", attempt)
            case ev.InvokeRetrying(promise_id=promise, failed_attempt=attempt):
                if last.get(promise) != ("started", attempt):
                    return False
                last[promise] = ("waiting", attempt)
            case ev.InvokeCompleted(promise_id=promise, attempt=attempt):
                if last.get(promise) not in (("started", attempt), ("completed", attempt)):
                    return False
                last[promise] = ("completed", attempt)
    return True


def only_invocations_submitted(journal: Journal) -> bool:
    """G-10: what is submitted is an invocation, and each only once."""
    submitted = _key(ev.JoinSetSubmitted, "promise_id")
    return _each_after(journal, submitted, _key(ev.InvokeScheduled, "promise_id")) and _at_most_once(journal, submitted)


def join_result_is_the_result(journal: Journal) -> bool:
    """G-11: the result taken from a set is the invocation's result."""
    results: dict[PromiseId, str] = {}
    for entry in journal:
        event = entry.event
        if isinstance(event, ev.InvokeCompleted):
            results.setdefault(event.promise_id, event.result)
        elif isinstance(event, ev.JoinSetAwaited) and results.get(event.promise_id, event.result) != event.result:
            return False
    return True


def _counted(journal: Journal, kind: type[ev.SignalDelivered] | type[ev.SignalReceived]) -> bool:
    counts: Counter[str] = Counter()
    for entry in journal:
        event = entry.event
        if isinstance(event, kind):
            counts[event.signal_name] += 1
            if event.delivery_id != counts[event.signal_name]:
                return False
    return True


def received_when_expected(journal: Journal) -> bool:
    """G-14: SignalReceived while Running, or while Blocked on exactly that name and promise."""
    for status, event in _with_status(journal):
        if not isinstance(event, ev.SignalReceived) or isinstance(status, Running):
            continue
        if not isinstance(status, Blocked) or status.kind != AwaitSignal(event.signal_name, event.promise_id):
            return False
    return True


def wait_is_sensible(journal: Journal) -> bool:
    """G-19: a wait is for at least one promise, exactly one for Single, and unsatisfied when it begins."""
    resolved = _Resolved()
    for entry in journal:
        event = entry.event
        resolved.take(event)
        if isinstance(event, ev.ExecutionAwaiting):
            one = event.kind == "Single" or isinstance(event.kind, AwaitSignal)
            if not event.waiting_on or (one and len(event.waiting_on) != 1) or resolved.satisfies(event):
                return False
    return True


GUARDS: dict[str, Callable[[Journal], bool]] = {
    "G-01": resumed_when_satisfied,
    "G-02": lambda journal: _only_while(journal, (ev.ExecutionAwaiting,), (Running,)),
    "G-03": lambda journal: _only_while(journal, _ONLY_RUNNING, (Running,)),
    "G-04": lambda journal: _at_most_once(journal, _allocated),
    "G-05": lambda journal: _at_most_once(journal, _key(ev.TimerFired, "promise_id")),
    "G-07": attempts_in_order,
    "G-08": lambda journal: _at_most_once(journal, _key(ev.InvokeCompleted, "promise_id")),
    "G-09": lambda journal: _at_most_once(journal, _key(ev.JoinSetCreated, "join_set_id")),
    "G-10": only_invocations_submitted,
    "G-11": join_result_is_the_result,
    "G-12": lambda journal: _counted(journal, ev.SignalDelivered),
    "G-13": lambda journal: _counted(journal, ev.SignalReceived),
    "G-14": received_when_expected,
    "G-15": lambda journal: _only_while(journal, (ev.CancelRequested,), (Running, Blocked)),
    "G-16": lambda journal: _only_while(journal, (ev.ExecutionCancelled,), (Cancelling,)),
    "G-17": lambda journal: _only_while(journal, (ev.ExecutionCompleted, ev.ExecutionFailed), (Running,)),
    "G-18": lambda journal: _at_most_once(journal, _key(ev.ExecutionStarted)),
    "G-19": wait_is_sensible,
}


def children_in_order(journal: Journal, execution: PromiseId) -> bool:
    """G-20: the children of the run are numbered from 0 in the order in which they were allocated."""
    allocated = [promise for entry in journal if (promise := _allocated(entry.event)) is not None]
    root, path = execution.root, execution.path
    return all(promise.root == root and promise.path == (*path, n) for n, promise in enumerate(allocated))


def guards(journal: Journal, execution: PromiseId) -> list[str]:
    """Every guard that this journal breaks, G-06 aside: whether a timer fired early is for its writer to know."""
    broken = [rule for rule, holds in GUARDS.items() if not holds(journal)]
    return broken if children_in_order(journal, execution) else [*broken, "G-20"]
