"""The supervisor of local servers: what starts, what it says when it cannot, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from governance.local.children import (
    PACKAGE_ROOT,
    Child,
    Children,
    Command,
    ComponentFailed,
    answers,
    free_port,
    listener,
)
from tests.kit.wait import is_gone, until

SAYS_READY = "print('ready', flush=True)\nimport time\ntime.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SAYS_READY}"
SUPERVISOR = """
import sys
from pathlib import Path
from governance.local.children import Children, Command
with Children(Path(sys.argv[1]), handle_signals=True) as children:
    for name in ("one", "two"):
        command = Command(name, [sys.executable, "-c", sys.argv[2]], {})
        child = children.start(command, ready=lambda child: child.tail() == ["ready"])
        print(child.pid, flush=True)
    print("up", flush=True)
    import time
    time.sleep(60)
"""


def python(name: str, source: str, **more: object) -> Command:
    return Command(name, [sys.executable, "-c", source], {}, **more)  # type: ignore[arg-type]


def said_ready(child: Child) -> bool:
    return child.tail() == ["ready"]


def test_a_child_that_dies_while_starting_is_named_with_its_last_words(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        with pytest.raises(ComponentFailed) as failure:
            children.start(python("clerk", "print('no ink'); raise SystemExit(3)"), ready=lambda _: False)
        assert failure.value.component == "clerk"
        assert failure.value.last_lines == ("no ink",)
        assert "clerk ended with code 3" in str(failure.value)
        assert children.running() == []


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with Children(tmp_path) as children, pytest.raises(ComponentFailed, match="ghost could not be started"):
        children.start(Command("ghost", ["/nowhere/ghost"], {}), ready=lambda _: True)


def test_an_answer_counts_only_while_our_own_child_lives(tmp_path: Path) -> None:
    """Another server may answer on the port that our dead child wanted."""

    def somebody_answers(child: Child) -> bool:
        child.wait(10)
        return True

    with Children(tmp_path) as children, pytest.raises(ComponentFailed, match="while starting"):
        children.start(python("short", "pass"), ready=somebody_answers)


def test_a_child_that_never_answers_is_stopped(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        with pytest.raises(ComponentFailed, match="did not answer within 0 s"):
            children.start(python("mute", SAYS_READY), ready=lambda _: False, seconds=0.2)
        assert children.running() == []


def test_a_child_that_ignores_the_polite_signal_is_killed_with_its_own_children(tmp_path: Path) -> None:
    source = f"import subprocess,sys\nprint(subprocess.Popen(['/bin/sleep','60']).pid, flush=True)\n{STUBBORN}"
    with Children(tmp_path) as children:
        command = python("stubborn", source, grace_seconds=0.2)
        child = children.start(command, ready=lambda child: len(child.tail()) == 2)
        grandchild = int(child.tail()[0])
        children.stop(child)
        assert child.exit_code == -signal.SIGKILL
        until(lambda: is_gone(grandchild))


def test_an_error_in_the_session_stops_every_child_last_one_first(tmp_path: Path) -> None:
    source = f"import atexit; atexit.register(open({str(tmp_path / 'order')!r}, 'a').write, NAME)\n"
    source += f"import signal; signal.signal(signal.SIGTERM, lambda *_: exit())\n{SAYS_READY}"
    started: list[Child] = []

    def session() -> None:
        with Children(tmp_path) as children:
            for name in ("first", "second"):
                command = python(name, source.replace("NAME", repr(name)))
                started.append(children.start(command, ready=said_ready))
            raise RuntimeError("seed failed")

    with pytest.raises(RuntimeError, match="seed failed"):
        session()
    assert [child.alive() for child in started] == [False, False]
    assert (tmp_path / "order").read_text() == "secondfirst"


def test_a_child_that_dies_later_is_noticed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start(python("mortal", SAYS_READY), ready=said_ready)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
        assert children.ended() == [child]
        with pytest.raises(ComponentFailed, match="mortal ended with code -9"):
            children.check()


def test_a_child_sees_only_the_environment_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "1")
    source = "import os,time; print(sorted(os.environ), flush=True); time.sleep(60)"
    with Children(tmp_path) as children:
        command = Command("bare", [sys.executable, "-c", source], {"GIVEN": "1"})
        child = children.start(command, ready=lambda child: bool(child.tail()))
        assert "SECRET_OF_THE_PARENT" not in child.tail()[0]
        assert "GIVEN" in child.tail()[0]


def test_the_last_lines_are_those_of_this_start(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        for word in ("old", "new"):
            child = children.start(
                python("echo", f"print('{word}', flush=True)\nimport time\ntime.sleep(60)"),
                ready=lambda child: bool(child.tail()),
            )
            assert child.tail() == [word]
            children.stop(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_supervisor_that_is_stopped_or_killed_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    """SIGKILL gives the supervisor no chance: the guard that outlives it stops the children."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), SAYS_READY],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert supervisor.stdout is not None
    pids = [int(supervisor.stdout.readline()) for _ in range(2)]
    assert supervisor.stdout.readline() == "up\n"
    supervisor.send_signal(number)
    assert supervisor.wait(10) != 0
    supervisor.stdout.close()
    for pid in pids:
        until(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


def test_a_busy_port_picks_another() -> None:
    with listener() as busy:
        port = busy.getsockname()[1]
        assert free_port(port) != port
        with listener(port) as other:
            assert other.getsockname()[1] != port


def test_a_port_whose_grpc_twin_is_busy_is_not_taken() -> None:
    port = free_port(with_grpc=True)
    with socket.socket() as twin:
        twin.bind(("127.0.0.1", port + 10_000))
        twin.listen()
        assert free_port(port, with_grpc=True) != port
        assert free_port(port) == port


def test_nobody_answers_on_a_port_nobody_listens_on() -> None:
    assert not answers(free_port())
