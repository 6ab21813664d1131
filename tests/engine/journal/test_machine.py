"""The writer and the checker, each other's oracle: twenty actions in any order, and journals that were tampered with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.canonical import encode
from engine.errors import BrokenJournal
from engine.journal import events as ev
from engine.journal.events import AwaitKind, AwaitSignal, Entry, Event, decode_row
from engine.journal.history import History
from engine.journal.invariants import guards, violations
from engine.journal.promises import Invoke
from engine.journal.replay import recover
from engine.journal.status import CANCELLING, RUNNING, fold
from tests.engine.journal.stories import EXAMPLES, FIRE_AT, ROOT, journal, p, start

FIELDS = st.sampled_from(["x", "y"])
NAMES = st.sampled_from(["s", "t"])
COUNTS = st.integers(0, 4)
KINDS = st.sampled_from(["Single", "Any", "All"])
# Near the truth most of the time: deep stories need luck otherwise.
AIM = st.sampled_from([True, True, True, True, False])


_SMALL = {
    "str": FIELDS,
    "int": COUNTS,
    "PromiseId": st.integers(0, 6).map(p),
    "frozenset[PromiseId]": st.frozensets(st.integers(0, 6).map(p), max_size=2),
    "AwaitKind": KINDS | st.integers(0, 6).map(lambda n: AwaitSignal("x", p(n))),
}
ANYTHING: st.SearchStrategy[Event] = st.one_of(
    [
        st.builds(kind, *[_SMALL[str(field.type)] for field in fields(kind)])
        for kind in ev.EVENT_TYPES.values()
        if kind not in (ev.CancelRequested, ev.ExecutionCompleted, ev.ExecutionFailed)  # these end most stories early
    ]
)


class Journals(RuleBasedStateMachine):
    """Each action is aimed at what is open, or fired at random; History and the invariants must agree about it."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(ROOT)
        self.entries: list[Entry] = []

    def child(self, data: st.DataObject, wanted: Iterable[int], aim: bool) -> int:
        found = list(wanted)
        if aim and found:
            return data.draw(st.sampled_from(found))
        return data.draw(st.integers(0, self.history.next_child + 1))

    def fresh(self, data: st.DataObject, aim: bool) -> int:
        return self.history.next_child if aim else self.child(data, (), False)

    def invokes(self, *phases: str) -> list[int]:
        held = ((n, self.history.invoke(p(n))) for n in range(self.history.next_child))
        return [n for n, invoke in held if isinstance(invoke, Invoke) and invoke.phase in phases]

    def sets(self) -> list[int]:
        return [promise.path[-1] for promise in recover(self.entries).join_sets]

    def running(self) -> bool:
        return self.history.status is RUNNING

    def attempt(self, n: int, more: int, aim: bool, other: int) -> int:
        invoke = self.history.invoke(p(n))
        return invoke.attempt + more if aim and invoke else other

    def act(self, event: Event, timestamp: int = FIRE_AT) -> None:
        entry = Entry(len(self.entries), timestamp, event)
        named, broken = violations([*self.entries, entry]), guards([*self.entries, entry], ROOT)
        early = isinstance(event, ev.TimerFired) and timestamp < FIRE_AT
        before = encode(self.history.state())
        refused = ""
        try:
            assert self.history.append(event, timestamp) == entry
        except BrokenJournal as refusal:
            refused = refusal.rule
        if refused:
            assert refused in (named or broken) or (refused == "G-06" and early and not named and not broken)
            assert encode(self.history.state()) == before
        else:
            assert (named, broken) == ([], [])
            self.entries.append(entry)
            self.check()

    def check(self) -> None:
        """Replaying what is stored gives the same state, byte for byte, and so does the index."""
        stored = decode_row(self.history.row())
        assert stored == tuple(self.entries)
        assert encode(History.load(ROOT, stored).state()) == encode(self.history.state())
        assert fold(stored) == self.history.status
        found = recover(stored)
        assert (found.version, found.next_child, found.can_resume) == (
            self.history.version,
            self.history.next_child,
            self.history.can_resume(),
        )
        assert list(found.open_invokes.values()) == [held.scheduled for held in self.history.open_invokes()]
        assert list(found.open_timers.values()) == list(self.history.open_timers())
        assert all(self.history.result(promise) == value for promise, value in found.cached.items())
        assert {name: tuple(left) for name, left in found.buffered.items()} == {
            name: left for name in ("s", "t", "x", "y") if (left := self.history.buffered(name))
        }

    @initialize()
    def start_execution(self) -> None:
        self.act(start())

    @rule(event=ANYTHING, seldom=st.integers(0, 20))
    def misfire(self, event: Event, seldom: int) -> None:
        if seldom > 15:
            self.act(event)

    @precondition(lambda machine: list(machine.history.open_invokes()))
    @rule(data=st.data(), result=FIELDS)
    def finish_invoke(self, data: st.DataObject, result: str) -> None:
        n = data.draw(st.sampled_from(self.invokes("scheduled", "started", "retrying")))
        if n not in self.invokes("started"):
            self.act(ev.InvokeStarted(p(n), self.attempt(n, 1, True, 0)))
        self.act(ev.InvokeCompleted(p(n), result, self.attempt(n, 0, True, 0)))
        if self.history.can_resume():
            self.act(ev.ExecutionResumed())

    @precondition(lambda machine: machine.running())
    @rule(seldom=st.integers(0, 30), event=st.sampled_from([ev.ExecutionCompleted, ev.ExecutionFailed]))
    def end_execution(self, seldom: int, event: Any) -> None:
        if seldom == 7:
            self.act(event("x"))

    @precondition(lambda machine: not machine.history.ended)
    @rule(seldom=st.integers(0, 20))
    def request_cancel(self, seldom: int) -> None:
        if seldom == 7:
            self.act(ev.CancelRequested("x"))

    @precondition(lambda machine: machine.history.status is CANCELLING)
    @rule()
    def cancel_execution(self) -> None:
        self.act(ev.ExecutionCancelled("x"))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), aim=AIM)
    def schedule_invoke(self, data: st.DataObject, aim: bool) -> None:
        self.act(ev.InvokeScheduled(p(self.fresh(data, aim)), "Function", "fn", "in", "{}"))

    @precondition(lambda machine: machine.invokes("scheduled", "retrying"))
    @rule(data=st.data(), aim=AIM, attempt=COUNTS)
    def start_invoke(self, data: st.DataObject, aim: bool, attempt: int) -> None:
        n = self.child(data, self.invokes("scheduled", "retrying"), aim)
        self.act(ev.InvokeStarted(p(n), self.attempt(n, 1, aim, attempt)))

    @precondition(lambda machine: machine.invokes("started"))
    @rule(data=st.data(), aim=AIM, attempt=COUNTS, result=FIELDS)
    def complete_invoke(self, data: st.DataObject, aim: bool, attempt: int, result: str) -> None:
        n = self.child(data, self.invokes("started"), aim)
        self.act(ev.InvokeCompleted(p(n), result, self.attempt(n, 0, aim, attempt)))

    @precondition(lambda machine: machine.invokes("started"))
    @rule(data=st.data(), aim=AIM, attempt=COUNTS)
    def retry_invoke(self, data: st.DataObject, aim: bool, attempt: int) -> None:
        n = self.child(data, self.invokes("started"), aim)
        self.act(ev.InvokeRetrying(p(n), self.attempt(n, 0, aim, attempt), "x", 9))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), aim=AIM)
    def generate_random(self, data: st.DataObject, aim: bool) -> None:
        self.act(ev.RandomGenerated(p(self.fresh(data, aim)), "x"))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), aim=AIM)
    def record_time(self, data: st.DataObject, aim: bool) -> None:
        self.act(ev.TimeRecorded(p(self.fresh(data, aim)), 7))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), aim=AIM)
    def schedule_timer(self, data: st.DataObject, aim: bool) -> None:
        self.act(ev.TimerScheduled(p(self.fresh(data, aim)), 5, FIRE_AT))

    @precondition(lambda machine: list(machine.history.open_timers()))
    @rule(data=st.data(), aim=AIM)
    def fire_timer(self, data: st.DataObject, aim: bool) -> None:
        timers = [timer.promise_id.path[-1] for timer in self.history.open_timers()]
        self.act(ev.TimerFired(p(self.child(data, timers, aim))), FIRE_AT if aim else FIRE_AT - 1)

    @rule(name=NAMES, payload=FIELDS, aim=AIM, delivery=COUNTS)
    def deliver_signal(self, name: str, payload: str, aim: bool, delivery: int) -> None:
        self.act(ev.SignalDelivered(name, payload, self.history.deliveries(name) + 1 if aim else delivery))

    @precondition(lambda machine: machine.history.buffered("s") or machine.history.buffered("t"))
    @rule(data=st.data(), name=NAMES, payload=FIELDS, aim=AIM, delivery=COUNTS)
    def receive_signal(self, data: st.DataObject, name: str, payload: str, aim: bool, delivery: int) -> None:
        if aim and (left := self.history.buffered(name)):
            delivery, payload = left[0]
        self.act(ev.SignalReceived(p(self.fresh(data, aim)), name, payload, delivery))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), kind=KINDS, aim=AIM)
    def await_execution(self, data: st.DataObject, kind: AwaitKind, aim: bool) -> None:
        if aim:
            timers = [timer.promise_id.path[-1] for timer in self.history.open_timers()]
            wanted = [*self.invokes("scheduled", "started", "retrying"), *timers]
        else:
            wanted = list(range(self.history.next_child + 1))
        most = 1 if aim and kind == "Single" else 3
        chosen = data.draw(st.sets(st.sampled_from(wanted), max_size=most)) if wanted else set()
        self.act(ev.ExecutionAwaiting(frozenset(p(n) for n in chosen), kind))

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), name=NAMES, aim=AIM)
    def await_signal(self, data: st.DataObject, name: str, aim: bool) -> None:
        n = self.fresh(data, aim)
        m = n if aim else self.fresh(data, False)
        self.act(ev.ExecutionAwaiting(frozenset({p(n)}), AwaitSignal(name, p(m))))

    @precondition(lambda machine: machine.history.can_resume())
    @rule()
    def resume_execution(self) -> None:
        self.act(ev.ExecutionResumed())

    @precondition(lambda machine: machine.running())
    @rule(data=st.data(), aim=AIM)
    def create_join_set(self, data: st.DataObject, aim: bool) -> None:
        self.act(ev.JoinSetCreated(p(self.fresh(data, aim))))

    @precondition(lambda machine: machine.sets() and machine.running())
    @rule(data=st.data(), aim=AIM)
    def submit_to_join_set(self, data: st.DataObject, aim: bool) -> None:
        members = self.invokes("scheduled", "started", "retrying", "completed")
        self.act(ev.JoinSetSubmitted(p(self.child(data, self.sets(), aim)), p(self.child(data, members, aim))))

    @precondition(lambda machine: machine.sets() and machine.running())
    @rule(data=st.data(), aim=AIM, result=FIELDS)
    def await_join_set(self, data: st.DataObject, aim: bool, result: str) -> None:
        member = self.child(data, self.invokes("completed"), aim)
        held = self.history.invoke(p(member))
        owner = held.join_set if aim and held and held.join_set >= 0 else self.child(data, (), False)
        self.act(ev.JoinSetAwaited(p(owner), p(member), held.result if aim and held else result))


TestJournals = Journals.TestCase
TestJournals.settings = settings(deadline=None, stateful_step_count=60)

STORIES = [[event for event, _ in example] for example in EXAMPLES.values()]


@st.composite
def tampered(draw: st.DrawFn) -> list[Event]:
    """A true journal with up to three events left out, doubled, moved or exchanged with another journal's."""
    story = list(draw(st.sampled_from(STORIES)))
    for _ in range(draw(st.integers(1, 3))):
        at, to = draw(st.integers(0, len(story) - 1)), draw(st.integers(0, len(story) - 1))
        match draw(st.sampled_from(["out", "double", "move", "foreign"])):
            case "out":
                del story[at]
            case "double":
                story.insert(to, story[at])
            case "move":
                story.insert(to, story.pop(at))
            case _:
                story[at] = draw(st.sampled_from(draw(st.sampled_from(STORIES))))
    return story


@settings(deadline=None)
@given(tampered())
def test_a_tampered_journal_loads_exactly_when_the_checker_finds_nothing(story: list[Event]) -> None:
    """S003-I0, P8: the writer's rules over every prefix and the checks over the whole say the same."""
    entries = journal(story)
    named, broken = violations(entries), guards(entries, ROOT)
    if not named and not broken:
        assert encode(History.load(ROOT, entries).state())
        return
    with pytest.raises(BrokenJournal) as refusal:
        History.load(ROOT, entries)
    # The writer stops at the first entry that breaks a rule; the checker names it for the prefix that ends there.
    at = refusal.value.sequence
    assert at is not None
    prefix = entries[: at + 1]
    assert refusal.value.rule in (violations(prefix) or guards(prefix, ROOT))
    assert violations(entries[:at]) == guards(entries[:at], ROOT) == [] or at == 0


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_prefix_of_an_example_is_a_journal(example: str) -> None:
    """S003-I0: all invariants hold at every journal prefix, and replaying each gives the state it had."""
    history = History(ROOT)
    seen: list[Entry] = []
    for event, _ in EXAMPLES[example]:
        seen.append(history.append(event, FIRE_AT))
        assert violations(seen) == guards(seen, ROOT) == []
        assert encode(History.load(ROOT, seen).state()) == encode(history.state())
