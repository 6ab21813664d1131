"""The function host: another process, killed at will, gives the same turns, and an author's code reaches nothing from it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.program.function import Turn
from engine.program.function_code import Component, component_of
from engine.program.function_journal import Feed, ReplayMismatch
from governance.stages import hosts as module
from governance.stages.hosts import CodeRefused, HostFault, Hosts
from tests.engine.program.function_kit import ENTROPY, World, check_prefix, in_process

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "workflows.md").read_text(encoding="utf-8")
EXAMPLE, *_ = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
GIVEN = {"incidents": ["north", "south", "west"], "question": "Who can help?"}
HEAD = "from twokeys import workflow, Failed, InvokeFailed\n"


def code(text: str, **more: str) -> Component:
    return component_of({"flow.py": text.encode(), **{f"{name}.py": each.encode() for name, each in more.items()}})


def turns_of(hosts: Hosts, component: Component) -> Any:
    def turn(feed: Feed, now: int) -> Turn:
        return hosts.turn(component, feed, now=now, entropy=ENTROPY)

    return turn


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    found = Hosts()
    yield found
    found.close()


def refused(hosts: Hosts, body: str, *, head: str = "") -> str:
    """What the host says to code that the check was kept from reading."""
    text = f"{HEAD}{head}\n@workflow\nasync def main(ctx, input):\n    {body}\n    return 'went through'\n"
    component = Component("flow", "main", (("flow.py", text),))
    with pytest.raises(CodeRefused) as caught:
        World(turns_of(hosts, component)).turn()
    return str(caught.value)


# --- the example of the documentation -------------------------------------------------------------------------------------


def live_example(turns: Any, *, seed: int = 3) -> World:
    world = World(turns, GIVEN, seed=seed)
    end = world.live()
    assert end.ok
    assert len(end.value["answers"]) == 2
    return world


def test_the_documented_workflow_runs_to_its_end(hosts: Hosts) -> None:
    """Three invokes, the first two results, a sleep, a signal."""
    world = live_example(turns_of(hosts, code(EXAMPLE)))
    kinds = [type(entry.event).__name__ for entry in world.journal]
    assert kinds.count("InvokeScheduled") == 3
    assert kinds.count("JoinSetAwaited") == 2
    assert {"TimerFired", "SignalReceived", "RandomGenerated", "TimeRecorded"} <= set(kinds)


# The process traces the author's lines and kills itself at the one that it is told.
_DIES = """
import sys, signal
sys.path.insert(0, sys.argv[1])
from governance.stages import host
left = {line}
def trace(frame, event, arg):
    global left
    if not frame.f_code.co_filename.startswith("workflow/"):
        return None
    if event == "line":
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGKILL)
    return trace
sys.settrace(trace)
host.main(int(sys.argv[2]))
"""


def test_the_documented_workflow_survives_kill_9_at_every_line() -> None:
    """Each turn is begun again and killed one line further each time until it comes through; the end is the same."""
    component = code(EXAMPLE)
    calm = Hosts()
    expected = live_example(turns_of(calm, component))
    calm.close()
    deaths = 0

    def turn(feed: Feed, now: int) -> Turn:
        nonlocal deaths
        for line in range(1, 10_000):
            dying = Hosts(boot=_DIES.replace("{line}", str(line)))
            try:
                return dying.turn(component, feed, now=now, entropy=ENTROPY)
            except HostFault:
                deaths += 1
            finally:
                dying.close()
        raise AssertionError("the turn never ends")

    world = World(turn, GIVEN, seed=3)
    world.live()
    assert deaths > 50
    assert world.journal == expected.journal


def test_a_killed_host_is_replaced_and_told_everything_again(hosts: Hosts) -> None:
    """SIGKILL before each turn, from outside: the next turn starts a process and the journal is the same."""
    component = code(EXAMPLE)
    expected = live_example(turns_of(hosts, component))
    killed = set()

    def turn(feed: Feed, now: int) -> Turn:
        pid = hosts.pid(component)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        with pytest.raises(HostFault):
            hosts.turn(component, feed, now=now, entropy=ENTROPY)
        return hosts.turn(component, feed, now=now, entropy=ENTROPY)

    world = World(turn, GIVEN, seed=3)
    world.live()
    assert world.journal == expected.journal
    assert len(killed) > 3


def test_another_process_with_another_hash_seed_gives_the_same_turns(hosts: Hosts) -> None:
    """Replay does not rest on the seed being the same: every prefix, in processes whose sets are ordered otherwise."""
    component = code(EXAMPLE)
    world = live_example(turns_of(hosts, component))
    for seed in (1, 4242):
        other = Hosts(hash_seed=seed)
        try:
            for size in range(1, len(world.journal) + 1):
                check_prefix(turns_of(other, component), world.journal, size)
        finally:
            other.close()


def test_the_seed_does_change_the_order_of_sets(hosts: Hosts) -> None:
    """The test above would prove nothing if it did not; and what an order slips into is stopped as a mismatch."""
    text = (
        f"{HEAD}@workflow\nasync def main(ctx, input):\n    rest = {{'a', 'b', 'c', 'd', 'e', 'f', 'g'}}\n"
        "    names = []\n    while rest:\n        name = getattr(rest, 'pop')()\n        names.append(name)\n"
        "    await ctx.invoke('crm.look_up', {'target': '-'.join(names)})\n"
    )
    component = code(text)
    world = World(turns_of(hosts, component))
    world.turn()
    other = Hosts(hash_seed=4242)
    try:
        with pytest.raises(ReplayMismatch) as caught:
            turns_of(other, component)(world.feed, 0)
    finally:
        other.close()
    expected, got = caught.value.expected, caught.value.got
    assert expected is not None
    assert got is not None
    assert sorted(expected["input"]["target"]["id"]) == sorted(got["input"]["target"]["id"])


# --- what an author's code can reach --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("import time", "time.time()", "import of time"),
        ("", "import random", "import of random"),
        ("", "from os import environ", "import of os"),
        ("import datetime", "datetime.datetime.now()", "ctx.now()"),
        ("from datetime import date", "date.today()", "ctx.now()"),
        ("import datetime", "datetime.datetime.fromtimestamp(0)", "time zone"),
        ("import uuid", "uuid.uuid4()", "ctx.random()"),
        ("", "open('x')", "open: "),
        ("", "id(ctx)", "addresses"),
        ("", "print('x')", "no output"),
        ("", "__import__('socket')", "import of socket"),
        ("", "[x for x in {'a', 'b'}]", "sorted"),
        ("", "str.join(',', {'a', 'b'})", "sorted"),
        # Around the guards: a class of the interpreter leads to real modules, and those lead nowhere.
        (
            "",
            "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]"
            ".__init__.__globals__['open']('x', 0)",
            "open",
        ),
        (
            "",
            "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]"
            ".__init__.__globals__['system']('true')",
            "os.system",
        ),
        (
            "",
            "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]"
            ".__init__.__globals__['urandom'](4)",
            "os.urandom",
        ),
    ],
)
def test_the_host_refuses_what_the_check_did_not_see(hosts: Hosts, head: str, body: str, said: str) -> None:
    """The second line of defence: clear words, and no turn, even for code that was never checked."""
    assert said in refused(hosts, body, head=head)


def test_a_swallowed_refusal_is_still_a_refusal(hosts: Hosts) -> None:
    """Catching everything does not help: a turn in which something was refused gives no commands."""
    assert "import of time" in refused(hosts, "try:\n        import time\n    except BaseException:\n        pass")


def test_nothing_of_a_turn_is_left_for_the_next(hosts: Hosts) -> None:
    """Module variables, patched faces and decimal contexts start afresh."""
    text = (
        f"{HEAD}import decimal\nimport json\nseen = []\n@workflow\nasync def main(ctx, input):\n"
        "    seen.append(1)\n    said = [len(seen), decimal.getcontext().prec, hasattr(json, 'mine')]\n"
        "    decimal.getcontext().prec = 3\n    setattr(json, 'mine', 1)\n    await ctx.sleep(1)\n    return said\n"
    )
    assert World(turns_of(hosts, code(text))).live().value == [1, 28, False]


def test_own_modules_packages_and_pure_modules_can_be_used(hosts: Hosts) -> None:
    """Helpers in files, packages with relative imports, dataclasses and the pure part of the standard library."""
    files = {
        "flow.py": (
            "from __future__ import annotations\nimport collections.abc\nimport dataclasses, datetime, enum, pack.near\n"
            f"{HEAD}from pack import near as n, far\nfrom urllib.parse import quote\n"
            "@dataclasses.dataclass(frozen=True)\nclass Point:\n    x: int\n"
            "class Colour(enum.Enum):\n    RED = 1\n"
            "@workflow\nasync def main(ctx, input):\n"
            "    day = datetime.datetime.fromisoformat('2026-01-31T00:00:00+00:00') + datetime.timedelta(days=1)\n"
            "    assert isinstance(day, datetime.datetime) and isinstance(await ctx.now(), datetime.datetime)\n"
            "    assert isinstance([], collections.abc.Sequence) and {Point(1): 2}[Point(1)] == 2\n"
            "    return [pack.near.x, n.x, far.y, quote('a b'), day.date().isoformat(), Colour.RED.name,"
            " datetime.datetime.strptime('2026', '%Y').year, await n.help(ctx)]\n"
        ),
        "pack/__init__.py": "",
        "pack/near.py": "from . import far\nx = far.y + 1\nasync def help(ctx):\n    return (await ctx.invoke('a.b'))['at']\n",
        "pack/far.py": "y = 1\n",
    }
    component = component_of({path: text.encode() for path, text in files.items()})
    assert World(turns_of(hosts, component)).live().value == [2, 2, 1, "a%20b", "2026-02-01", "RED", 2026, 1]


def test_the_host_has_no_environment_and_no_way_out(hosts: Hosts) -> None:
    """What the process itself sees: two variables of ours, no path, no file it could open."""
    hosts.check(code(EXAMPLE))
    pid = hosts.pid(code(EXAMPLE))
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert sorted(filter(None, environment)) == [b"PYTHONHASHSEED=0", b"TZ=UTC0"]
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert re.search(r"Max open files +0 +0", limits)
    assert re.search(r"Max file size +0 +0", limits)
    assert re.search(rf"Max address space +{512 * 1024**2} ", limits)


# --- deadlines, memory, faults --------------------------------------------------------------------------------------------


def test_code_that_never_waits_is_killed_at_its_deadline() -> None:
    """A loop costs its deadline and no more; the next turn of other code finds a new process."""
    hosts = Hosts(deadline_seconds=0.5)
    component = code(f"{HEAD}@workflow\nasync def main(ctx, input):\n    while input:\n        pass\n    return 1\n")
    try:
        began = time.monotonic()
        with pytest.raises(HostFault) as caught:
            World(turns_of(hosts, component), True).turn()
        assert caught.value.code == "host_timeout"
        assert time.monotonic() - began < 5
        assert hosts.pid(component) == 0
        assert World(turns_of(hosts, component), False).live().value == 1
    finally:
        hosts.close()


def test_memory_is_bounded(hosts: Hosts) -> None:
    """A workflow that takes everything meets its own limit, not the machine's."""
    component = code(f"{HEAD}@workflow\nasync def main(ctx, input):\n    return len('x' * input)\n")
    with pytest.raises(HostFault) as caught:
        World(turns_of(hosts, component), 2**40).turn()
    assert caught.value.code == "host_memory"
    assert World(turns_of(hosts, component), 10).live().value == 10


def test_code_that_cannot_be_loaded_is_refused_when_it_is_published(hosts: Hosts) -> None:
    """A module that fails at import says so with its line, before any run."""
    with pytest.raises(CodeRefused, match=r"ZeroDivisionError: .*flow.py, line 5"):
        hosts.check(code(f"{HEAD}@workflow\nasync def main(ctx, input):\n    pass\nx = 1 / 0\n"))


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"{}",
        b'{"id":1}',
        b'{"id":1,"ready":"x"}\n{"id":1}',
        b'{"id":2,"ready":"x"}',
        b'{"id":1,"commands":[],"waits":1}',
    ],
)
def test_a_host_that_speaks_otherwise_is_not_believed(line: bytes) -> None:
    """Every answer that is not exactly one of ours is a fault."""
    hosts = Hosts(
        boot=f"import sys, os; sys.stdin.readline(); os.write(1, {line + bytes([10])!r}); sys.stdin.readline()"
    )
    try:
        with pytest.raises(HostFault):
            World(turns_of(hosts, code(EXAMPLE)), GIVEN).turn()
    finally:
        hosts.close()


def test_hosts_are_bounded_and_apart_by_tenant() -> None:
    """No more processes than allowed, and none shared between tenants."""
    hosts, component = Hosts(hosts_max=2), code(EXAMPLE)
    try:
        for tenant in ("a", "b", "c"):
            hosts.check(component, tenant=tenant)
        pids = [hosts.pid(component, tenant=tenant) for tenant in ("a", "b", "c")]
        assert pids[0] == 0
        assert len(set(pids)) == 3
    finally:
        hosts.close()
    assert hosts.pid(component, tenant="c") == 0


def test_threads_share_hosts_without_mixing_turns() -> None:
    """Two places for three components and six threads: every run comes to its own end, and no process is left."""
    hosts = Hosts(hosts_max=2)
    components = [code(f"{EXAMPLE}# {n}\n") for n in range(3)]
    try:
        with ThreadPoolExecutor(6) as pool:
            ends = [pool.submit(live_example, turns_of(hosts, components[n % 3]), seed=n) for n in range(12)]
            assert all(end.result().history.ended for end in ends)
    finally:
        hosts.close()
    assert not any(hosts.pid(component) for component in components)


# --- cost -----------------------------------------------------------------------------------------------------------------

LONG = (
    f"{HEAD}@workflow\nasync def main(ctx, input):\n"
    "    for n in range(input):\n        await ctx.invoke('crm.look_up', {'target': str(n)})\n"
)


def long_journal(events: int) -> tuple[World, int]:
    """A journal of about so many events, five for each operation, ready for its next turn."""

    async def main(ctx: Any, given: int) -> None:
        for n in range(given):
            await ctx.invoke("crm.look_up", {"target": str(n)})

    count = events // 5 + 1
    rows = [["input", json.dumps(count)]]
    world = World(in_process(main), count)
    world.turn()
    first = json.loads(world.feed.items[1])[2]
    for n in range(count - 1):
        step = {**first, "child": n, "input": {**first["input"], "child": n, "step_id": f"look_up-{n}"}}
        step["input"] |= {"step_index": n, "target": {"type": "", "id": str(n)}}
        rows.append(["step", 1 + 5 * n, step, None])
        rows.append(["step", 2 + 5 * n, {"do": "Await", "kind": "Single", "on": [n]}, None])
        rows.append(["done", 4 + 5 * n, n, True, '{"found":[1,2,3]}', ""])
    world.feed.items = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    return world, count


def seconds(hosts: Hosts, component: Component, events: int) -> tuple[float, float]:
    """The best of three for a run that the host does not know, and for one that it holds."""
    anew, held = [], []
    for _ in range(3):
        world, count = long_journal(events)
        for times in (anew, held):
            began = time.perf_counter()
            found = hosts.turn(component, world.feed, now=1, entropy=ENTROPY)
            times.append(time.perf_counter() - began)
            assert [type(each).__name__ for each in found.commands] == ["Invoke", "Await"]
            assert found.commands[0].child == count - 1  # type: ignore[union-attr]
    return min(anew), min(held)


@pytest.mark.deep
def test_a_long_journal_resumes_quickly_and_in_line_with_its_length(hosts: Hosts) -> None:
    """10,000 events cost about four times 2,500, and a run that the host holds is not decoded again."""
    component = code(LONG)
    hosts.check(component)
    short, _ = seconds(hosts, component, 2_500)
    long, held = seconds(hosts, component, 10_000)
    assert long < short * 10
    assert held < long
    assert long < 3


def test_a_host_that_holds_a_run_is_sent_only_what_is_new(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that the process has are not sent again; after a new process, everything is."""
    sent: list[int] = []
    order = module._order
    monkeypatch.setattr(module, "_order", lambda feed, start, *rest: sent.append(start) or order(feed, start, *rest))
    component = code(EXAMPLE)
    world = World(turns_of(hosts, component), GIVEN, seed=3)
    world.live()
    assert sent[0] == 0
    assert all(earlier < later for earlier, later in itertools.pairwise(sent))
    again = World.load(turns_of(hosts, component), world.journal)
    turns_of(hosts, component)(again.feed, 0)
    assert sent[-1] == 0
