"""Python workflows by replay: what they do is what the journal says, and every prefix of it leads to the same end."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.canonical import encode
from engine.errors import BrokenJournal, CallerError
from engine.journal import events as ev
from engine.program import function_commands as do
from engine.program.function import Context, Failed, InvokeFailed, Mismatch, Turn, commands_max, replay
from engine.program.function_journal import Feed, ReplayMismatch, Result, apply
from tests.engine.program.function_kit import ENTROPY, PLAIN, ROOT, World, check_prefix, in_process

LOOK = "crm.look_up"


def few(examples: int) -> settings:
    """So many examples of whole journals, and a thousand in `make deep`."""
    return settings(max_examples=examples if settings.default.max_examples <= 100 else 1_000, deadline=None)


def events(world: World) -> list[str]:
    return [type(entry.event).__name__ for entry in world.journal]


# --- each operation -------------------------------------------------------------------------------------------------------


def test_an_invoke_is_scheduled_awaited_and_replayed() -> None:
    """One operation: intent and wait in one turn, its result in the next, nothing done twice."""

    async def main(ctx: Context, given: Any) -> Any:
        found = await ctx.invoke(LOOK, {"target": "C-1", "fields": {"a": 1, "b": True}, "risk": "low"})
        return {"found": found, "given": given}

    world = World(in_process(main), {"n": 1})
    applied = world.turn()
    assert applied is not None
    ((promise, command),) = applied.invokes
    assert promise == ROOT.child(0)
    assert command.input["target"] == {"type": "", "id": "C-1"}
    assert command.input["fields"] == {"a": "1", "b": "true"}
    assert world.live() == Result(True, {"found": {"of": LOOK, "at": 0}, "given": {"n": 1}})
    assert events(world)[:3] == ["ExecutionStarted", "InvokeScheduled", "ExecutionAwaiting"]
    assert events(world)[-2:] == ["ExecutionResumed", "ExecutionCompleted"]


def test_a_failed_operation_is_an_exception_that_can_be_caught() -> None:
    """A denial is something an author can answer; what is not caught ends the run with the same class."""

    async def catching(ctx: Context, given: Any) -> Any:
        try:
            await ctx.invoke(LOOK)
        except InvokeFailed as error:
            return [error.error_class, error.message]

    async def falling(ctx: Context, given: Any) -> Any:
        await ctx.invoke(LOOK)

    denied = f"{LOOK} is not allowed"
    assert World(in_process(catching), fails=[LOOK]).live() == Result(True, ["denied", denied])
    assert World(in_process(falling), fails=[LOOK]).live() == Result(False, None, "denied", denied)


def test_time_and_chance_are_recorded_by_the_writer() -> None:
    """The values come from the turn's now and entropy, stand in the journal, and are given again at every replay."""
    seen: list[Any] = []

    async def main(ctx: Context, given: Any) -> Any:
        seen.append((await ctx.now(), await ctx.random(), await ctx.uuid()))
        await ctx.sleep(datetime.timedelta(days=2))
        return (await ctx.now()).isoformat()

    world = World(in_process(main))
    end = world.live()
    assert len(set(seen)) == 1
    at, chance, uuid = seen[0]
    assert at.tzinfo is datetime.UTC
    assert 0 <= chance < 1
    assert uuid[14] == "4"
    assert len(uuid) == 36
    recorded = [entry.event for entry in world.journal if isinstance(entry.event, ev.TimeRecorded)]
    assert datetime.datetime.fromisoformat(end.value) - at >= datetime.timedelta(days=2)
    assert len(recorded) == 2


def test_signals_are_taken_in_order_whether_they_come_early_or_late() -> None:
    """A signal that came before is consumed without a wait; one that comes later ends the wait; each once."""

    async def main(ctx: Context, given: Any) -> Any:
        await ctx.sleep(1)
        return [await ctx.wait_signal("news") for _ in range(3)]

    world = World(in_process(main))
    world.turn()
    world.signal("news", 1)
    world.signal("news", 2)
    (timer,) = world.history.open_timers()
    world.fire(timer)
    world.turn()
    assert "ExecutionAwaiting" in events(world)[-1]
    world.signal("news", 3)
    world.turn()
    assert world.live().value == [1, 2, 3]
    assert events(world)[-4:] == ["SignalDelivered", "SignalReceived", "ExecutionResumed", "ExecutionCompleted"]


def test_a_task_asks_people_and_another_form_is_another_event() -> None:
    """A human step is an operation with its form and sign-off as input; its result and its failure come like any other's."""

    async def main(ctx: Context, given: Any) -> Any:
        try:
            return await ctx.task({"title": given}, sign_off=["ops"])
        except InvokeFailed as error:
            return [error.error_class, error.message]

    world = World(in_process(main), "a")
    applied = world.turn()
    assert applied is not None
    assert applied.tasks == ((ROOT.child(0), do.Task(0, {"title": "a"}, ["ops"])),)
    world.complete(0)
    assert world.live().value == {"of": "task:form", "at": 0}
    failing = World(in_process(main), "a", fails=["task:form"])
    assert failing.live().value == ["denied", "task:form is not allowed"]

    async def other(ctx: Context, given: Any) -> Any:
        return await ctx.task({"title": given}, sign_off=["dev"])

    with pytest.raises(ReplayMismatch, match="dev"):
        World.load(in_process(other), world.journal[:2]).turn()


def test_a_child_run_is_an_invocation_of_a_workflow() -> None:
    """Starting another workflow is scheduled like any operation and its result comes the same way."""

    async def main(ctx: Context, given: Any) -> Any:
        return await ctx.child("billing", {"n": 1})

    world = World(in_process(main))
    applied = world.turn()
    assert applied is not None
    assert applied.children == ((ROOT.child(0), do.StartChild(0, "billing", {"n": 1})),)
    assert world.live().value == {"of": "workflow:billing", "at": 0}


def test_a_join_set_gives_results_in_the_order_in_which_they_came() -> None:
    """The journal, not the replay, says who was first; the rest comes in order of submission."""

    async def main(ctx: Context, given: Any) -> Any:
        calls = await ctx.join_set()
        for n in range(4):
            assert await calls.submit(LOOK, {"target": f"C-{n}"}) == n
        first, second = await calls.next(), await calls.next()
        rest = await calls.all()
        with pytest.raises(LookupError):
            await calls.next()
        with pytest.raises(ValueError, match="nothing is submitted"):
            await calls.submit(LOOK)
        return [each.member for each in (first, second, *rest)]

    world = World(in_process(main))
    world.turn()
    for child in (3, 1):
        world.complete(child)
        world.turn()
    assert world.live().value == [2, 0, 1, 3]
    taken = [entry.event.promise_id.path[-1] for entry in world.journal if isinstance(entry.event, ev.JoinSetAwaited)]
    assert taken == [3, 1, 2, 4]


def test_what_an_author_does_to_a_result_is_gone_with_the_turn() -> None:
    """Every replay gets its own copy of a recorded value."""

    async def main(ctx: Context, given: Any) -> Any:
        found = await ctx.invoke(LOOK)
        found["of"] += "!"
        given.append(1)
        await ctx.sleep(1)
        return [found["of"], given]

    assert World(in_process(main), []).live().value == [f"{LOOK}!", [1]]


# --- ends -----------------------------------------------------------------------------------------------------------------


def test_an_authors_error_ends_the_run_with_its_place_and_no_address() -> None:
    """Any exception is the run's failure; what differs from process to process is taken out of its text."""

    async def main(ctx: Context, given: Any) -> Any:
        raise KeyError(object())

    end = World(in_process(main)).live()
    assert end.error_class == "author_error"
    assert end.message == "KeyError: <object object at 0x…>"


def test_an_author_ends_the_run_with_an_error_class() -> None:
    """`raise Failed(class, message)` is the run's error."""

    async def main(ctx: Context, given: Any) -> Any:
        raise Failed("no_stock", "none left")

    assert World(in_process(main)).live() == Result(False, None, "no_stock", "none left")


@pytest.mark.parametrize("value", [1.5, {1: 2}, {"a": {1, 2}}, 2**53, b"x", "\ud800", object()])
def test_a_result_that_no_payload_can_carry_is_the_authors_error(value: Any) -> None:
    """Only values with one canonical form leave a workflow."""

    async def main(ctx: Context, given: Any) -> Any:
        return value

    assert World(in_process(main)).live().error_class == "author_error"


@pytest.mark.parametrize(
    "params",
    [
        {"tarket": "x"},
        {"target": 7},
        {"target": "a b"},
        {"target": {"type": "t"}},
        {"risk": "huge"},
        {"amount": -1},
        {"max_attempts": 5},
        {"fields": {"a": None}},
        {"fields": []},
        {"key": "a b"},
        {"step": "1"},
    ],
)
def test_wrong_params_are_an_error_in_the_authors_own_line(params: dict[str, Any]) -> None:
    """What an operation cannot be proposed with is a ValueError or TypeError before anything is recorded."""

    async def main(ctx: Context, given: Any) -> Any:
        with pytest.raises((ValueError, TypeError)):
            await ctx.invoke(LOOK, params)
        return "nothing"

    world = World(in_process(main))
    assert world.live().value == "nothing"
    assert len(world.journal) == 2


def test_finally_and_a_broad_except_cannot_act_after_the_end_of_a_turn() -> None:
    """The yield goes through the author's code; whatever that tries on the way is not recorded."""

    async def main(ctx: Context, given: Any) -> Any:
        try:
            await ctx.invoke(LOOK)
        except BaseException:
            await ctx.invoke("crm.undo")
        finally:
            await ctx.invoke("crm.tidy")
        return "end"

    world = World(in_process(main))
    world.turn()
    assert events(world) == ["ExecutionStarted", "InvokeScheduled", "ExecutionAwaiting"]
    assert world.live().value == "end"
    names = [entry.event.function_name for entry in world.journal if isinstance(entry.event, ev.InvokeScheduled)]
    assert names == [LOOK, "crm.tidy"]


def test_awaiting_something_else_ends_the_run() -> None:
    """A foreign awaitable would wait for ever: it is the author's error at once."""

    class Foreign:
        def __await__(self) -> Any:
            yield 1

    async def main(ctx: Context, given: Any) -> Any:
        await Foreign()

    assert "no operation of its context" in World(in_process(main)).live().message


def test_a_turn_without_end_is_cut() -> None:
    """A loop that never waits ends the run, and the ended run replays."""

    async def main(ctx: Context, given: Any) -> Any:
        while True:
            await ctx.now()

    world = World(in_process(main))
    assert world.live().error_class == "too_many_operations"
    assert len(world.journal) == commands_max + 2
    assert replay(main, world.feed.index(), now=0, entropy=ENTROPY) == Turn((), None)


# --- replay ---------------------------------------------------------------------------------------------------------------

OPERATIONS = st.sampled_from(["invoke", "fail", "sleep", "now", "random", "uuid", "signal", "task", "child"])
JOINS = st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans())  # submitted, taken, all at the end
SCRIPTS = st.lists(st.one_of(OPERATIONS, JOINS), max_size=8)


def scripted(script: list[Any]) -> Any:
    """A workflow that does what a script says and branches on what it is given."""

    async def main(ctx: Context, given: Any) -> Any:
        said: list[Any] = []
        for what in script:
            match what:
                case "invoke":
                    said.append(await ctx.invoke(LOOK, {"target": f"C-{len(said)}"}))
                case "fail":
                    try:
                        await ctx.invoke("crm.bad")
                    except InvokeFailed as error:
                        said.append(error.error_class)
                case "sleep":
                    await ctx.sleep(len(said))
                case "now":
                    said.append((await ctx.now()).isoformat())
                case "random":
                    if await ctx.random() < 0.5:
                        said.append(await ctx.invoke("crm.low"))
                case "uuid":
                    said.append(await ctx.uuid())
                case "signal":
                    said.append(await ctx.wait_signal("news"))
                case "task":
                    said.append(await ctx.task({"n": len(said)}))
                case "child":
                    said.append(await ctx.child("other", said[-1:]))
                case (submitted, taken, everything):
                    calls = await ctx.join_set()
                    for n in range(submitted):
                        await (calls.submit_child("other", n) if n == 2 else calls.submit(LOOK, {"target": f"C-{n}"}))
                    for _ in range(min(submitted, taken)):
                        one = await calls.next()
                        said.append([one.member, one.ok])
                    if everything:
                        said += [[one.member, one.value] for one in await calls.all()]
        return said

    return main


@given(SCRIPTS, st.integers(0, 10_000))
@few(25)
def test_every_prefix_of_every_journal_replays_to_what_followed(script: list[Any], seed: int) -> None:
    """Cut anywhere, inside a turn too: the same code over the prefix writes the very next events of the journal."""
    main = scripted(script)
    world = World(in_process(main), seed=seed, fails=["crm.bad"])
    end = world.live()
    for size in range(1, len(world.journal) + 1):
        if size > 40 and size % 7:
            continue
        check_prefix(in_process(main), world.journal, size)
    assert World.load(in_process(main), world.journal).history.state() == world.history.state()
    assert end.ok


@given(SCRIPTS, st.integers(0, 10_000), st.data())
@few(40)
def test_a_run_cut_anywhere_goes_on_to_a_valid_end(script: list[Any], seed: int, data: st.DataObject) -> None:
    """Whatever a crash left, the next worker continues it; every event passes the guards."""
    main = scripted(script)
    world = World(in_process(main), seed=seed, fails=["crm.bad"])
    world.live()
    size = data.draw(st.integers(1, len(world.journal)))
    again = World.load(in_process(main), world.journal[:size])
    again.fails = world.fails
    assert again.live().ok
    assert again.journal[:size] == world.journal[:size]


@given(SCRIPTS, SCRIPTS, st.integers(0, 1_000))
@few(80)
def test_other_code_matches_event_for_event_or_is_stopped(one: list[Any], other: list[Any], seed: int) -> None:
    """Replay under other code either fits the whole journal or names the first event at which it does not."""
    world = World(in_process(scripted(one)), seed=seed, fails=["crm.bad"])
    world.live()
    before = world.history.state()
    if one == other:
        return
    found = replay(scripted(other), world.feed.index(), now=0, entropy=ENTROPY)
    if isinstance(found, Mismatch):
        assert found.expected != found.got
        assert 0 < found.sequence < len(world.journal)
    else:
        assert found == Turn((), None)
    assert world.history.state() == before


def test_a_mismatch_shows_both_events_side_by_side() -> None:
    """The error carries what the journal has and what the code does; the history is as it was."""

    async def old(ctx: Context, given: Any) -> Any:
        await ctx.invoke(LOOK, {"target": "C-1"})
        await ctx.invoke("crm.update", {"target": "C-1", "fields": {"state": "open"}})

    async def new(ctx: Context, given: Any) -> Any:
        await ctx.invoke(LOOK, {"target": "C-1"})
        await ctx.sleep(60)

    world = World(in_process(old))
    world.turn()
    world.complete(0)
    world.turn()
    world.complete(1)
    world.turns = in_process(new)
    before = world.history.state()
    with pytest.raises(ReplayMismatch) as caught:
        world.turn()
    assert caught.value.got == {"do": "Sleep", "child": 1, "micros": 60_000_000}
    assert caught.value.expected is not None
    assert caught.value.expected["input"]["operation"] == "update"
    assert "the journal has Invoke" in str(caught.value)
    assert "the code does Sleep" in str(caught.value)
    assert world.history.state() == before
    world.turns = in_process(old)
    assert world.live().ok


def test_code_that_would_have_waited_is_noticed_although_the_result_is_there_by_now() -> None:
    """Position counts: the journal went on before the result had come, so the old code did not wait for it."""

    async def old(ctx: Context, given: Any) -> Any:
        calls = await ctx.join_set()
        await calls.submit(LOOK)
        await ctx.sleep(1)
        await calls.all()

    async def new(ctx: Context, given: Any) -> Any:
        calls = await ctx.join_set()
        await calls.submit(LOOK)
        await calls.all()
        await ctx.sleep(1)

    world = World(in_process(old))
    world.turn()
    world.complete(1)
    with pytest.raises(ReplayMismatch) as caught:
        in_process(new)(world.feed, 0)
    assert caught.value.got == {"do": "Await", "kind": "All", "on": [1]}


def test_what_the_catalogue_fills_in_is_no_mismatch() -> None:
    """A proposal may leave risk and target type open; the journal holds what they became, and replay agrees."""

    async def main(ctx: Context, given: Any) -> Any:
        return await ctx.invoke(LOOK, {"target": "C-1"})

    world = World(in_process(main))
    found = world.turns(world.feed, world.clock)

    def filled(command: do.Invoke) -> dict[str, Any]:
        return {**command.input, "risk": "med", "target": {**command.input["target"], "type": "customer"}}

    apply(world.history, found.commands, PLAIN, now=world.clock, entropy=ENTROPY, propose=filled)
    world.commit()
    assert world.live().ok
    event = world.journal[1].event
    assert isinstance(event, ev.InvokeScheduled)
    assert json.loads(event.input)["risk"] == "med"


# --- the seam -------------------------------------------------------------------------------------------------------------


def test_a_feed_refuses_a_gap_and_passes_over_what_it_has() -> None:
    """Entries may be given twice, never left out."""

    async def main(ctx: Context, given: Any) -> Any:
        await ctx.sleep(1)

    world = World(in_process(main))
    world.live()
    feed = Feed(PLAIN).take(world.journal[:2])
    with pytest.raises(BrokenJournal, match="missing"):
        feed.take(world.journal[3:])
    assert feed.take(world.journal).items == world.feed.items


def test_commands_are_read_as_strictly_as_they_are_written() -> None:
    """Each command comes back as it was; an extra key, a missing one or a wrong type is refused."""
    every = [
        do.Invoke(0, do.proposed(0, "crm.look_up", {"target": "C-1"})), do.StartChild(1, "w", [1]), do.Sleep(2, 5),
        do.Random(3), do.Now(4), do.CreateSet(5), do.Submit(5, 6), do.Take(5, 6), do.Receive(7, "n"),
        do.Await("Any", [1, 2]), do.AwaitSignal(8, "n"), do.task_of(8, {"a": 1}, ["ops"]),
        do.Complete(None), do.Fail("a", "b"),
    ]  # fmt: skip
    assert {type(each) for each in every} == set(do.KINDS.values())
    for command in every:
        value = do.to_value(command)
        encode(value)
        assert do.command_from(value) == command
        for wrong in ({**value, "x": 1}, {"do": value["do"]}, {**value, "do": "Nothing"}, {**value, "child": -1}, []):
            with pytest.raises(CallerError):
                do.command_from(wrong)
    sound = do.to_value(every[0])
    for wrong in (
        {"do": "Await", "kind": "Any", "on": []},
        {"do": "Await", "kind": "Some", "on": [1]},
        {"do": "Now", "child": True},
        {"do": "Fail", "error_class": "No Class", "message": ""},
        {"do": "AwaitSignal", "child": 1, "name": "approval:7"},
        {"do": "AwaitSignal", "child": 1, "name": "task:1:0123456789abcdef"},
        {"do": "Task", "child": 1, "form": {"a": 1.5}, "sign_off": None},
        {"do": "Task", "child": 1, "form": {}, "sign_off": {"a": [b"x"]}},
        {**sound, "child": 1},
        {**sound, "input": {**sound["input"], "amount_minor": -1}},
        {**sound, "input": {**sound["input"], "extra": 1}},
        {**sound, "input": {}},
    ):
        with pytest.raises(CallerError):
            do.command_from(wrong)


def test_a_lying_host_meets_the_guards() -> None:
    """Commands that the code could not have given are refused by the writer, not believed."""

    async def main(ctx: Context, given: Any) -> Any:
        await ctx.sleep(1)

    for lie in (
        [do.Take(0, 1)],
        [do.Now(5)],
        [do.Receive(0, "news")],
        [do.Await("Any", [0])],
        [do.Complete(1), do.Now(0)],
    ):
        world = World(in_process(main))
        with pytest.raises(BrokenJournal):
            apply(world.history.fork(), lie, PLAIN, now=world.clock, entropy=ENTROPY)
