"""A warm process that forks workers; each dies, or stops, at one seam: before or after a commit or an outside call.

`python -m tests.kit.dying SETTINGS HOMES` reads one order per line and answers with one line. Only the first worker pays for
imports, the policy engine and the S3 client: a seam costs what the run costs.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
from botocore.client import BaseClient

from governance import clock
from governance.connectors.http import Exchange
from governance.settings import Settings
from governance.slack.outbox import Sender
from governance.stages.tick import Tick
from governance.store import templates, unit
from governance.wiring import Parts
from tests.kit import stories
from tests.kit.replaying import ReplayedCommits
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, without_bucket

WRITING = re.compile(
    r"\b(commit_facts\w*|insert into \w+|update (?!skip|nowait|of\b)\w+ |delete from \w+)", re.IGNORECASE
)


class Seams:
    """Writes down each moment at which a process may die, and dies at one of them."""

    def __init__(self) -> None:
        self.begin(os.devnull, {})

    def begin(self, path: str, order: dict[str, Any]) -> None:
        """Count from now on: those whose name matches `only`; at the `at`-th of them the signal is given."""
        self._out = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._only = re.compile(order.get("only", ""))
        self._at, self._signal = order.get("at", 0), order.get("signal", int(signal.SIGKILL))
        self._sleeps = order.get("sleeps", 0.0)
        self._passed, self._quiet = 0, False

    def here(self, name: str) -> None:
        if self._quiet or not self._only.search(name):
            return
        self._passed += 1
        os.write(self._out, name.encode() + b"\n")
        if self._passed == self._at:
            os.kill(os.getpid(), self._signal)
            # Only one that was stopped gets here, when it is continued: as if it had slept for so long.
            boottime = clock.boottime
            clock.boottime = lambda: boottime() + self._sleeps

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Here nobody dies: it is the test's own doing."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def around(self, owner: type, method: str, named: Callable[..., str]) -> None:
        """Every call of this method that `named` gives a name is a seam before and a seam after."""
        call = getattr(owner, method)

        @wraps(call)
        def surrounded(*args: Any, **kwargs: Any) -> Any:
            name = named(*args, **kwargs)
            if name:
                self.here(f"before {name}")
            result = call(*args, **kwargs)
            if name:
                self.here(f"after {name}")
            return result

        setattr(owner, method, surrounded)


seams = Seams()


def _watch() -> None:
    """Every transaction that changes a row, whatever code began it, and every call that leaves the process."""
    open_ones: dict[
        int, str
    ] = {}  # what the transaction of a connection has written so far, by its most telling statement

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def executed(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            found = WRITING.search(
                query if isinstance(query, str) else query.decode() if isinstance(query, bytes) else ""
            )
            if found is None:
                return run(cursor, query, *args, **kwargs)
            name = found[1].strip().lower()
            alone = cursor.connection.autocommit
            if alone:
                seams.here(f"before commit of {name}")
            result = run(cursor, query, *args, **kwargs)
            if alone:
                seams.here(f"after commit of {name}")
            elif name.startswith(
                "commit_facts"
            ):  # it answers with rows about some runs only, and has written all of them
                open_ones[id(cursor.connection)] = name
            elif cursor.rowcount:
                open_ones.setdefault(id(cursor.connection), name)
            return result

        return executed

    def commit(connection: Any) -> str:
        done = open_ones.pop(id(connection), "")
        return done and f"commit of {done}"

    def undone(connection: Any) -> str:
        open_ones.pop(id(connection), None)
        return ""

    for method in ("execute", "executemany"):
        setattr(psycopg.Cursor, method, watched(getattr(psycopg.Cursor, method)))
    seams.around(psycopg.Connection, "commit", commit)
    seams.around(psycopg.Connection, "rollback", undone)
    seams.around(Exchange, "call", lambda _, method, *__, **___: method)
    seams.around(Sender, "send", lambda _, job: f"slack {job['kind']}")
    seams.around(BaseClient, "_make_api_call", lambda _, operation, __: f"s3 {operation}")


class _Elsewhere(ServiceNow):
    """The stand-in of the test that forked us: to be asked, never to be started or stopped."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"


class _Sink(SlackSink):
    """The sink of the test that forked us."""

    def __init__(self, api_base: str) -> None:
        self._there = api_base

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:  # type: ignore[override]
        with urllib.request.urlopen(self._there) as answer:
            return [(method, arguments) for method, arguments in json.load(answer)]


def _shift_clock(seconds: float) -> None:
    """The process clock goes wrong by so much; the product reads it in this one room."""
    now, epoch = clock.now_utc, clock.epoch_seconds
    clock.now_utc = lambda: now() + datetime.timedelta(seconds=seconds)
    clock.epoch_seconds = lambda: epoch() + int(seconds)


def _work(parts: Parts, order: dict[str, Any]) -> None:
    """What an order asks for, in a process of its own."""
    if order.get("clock"):
        _shift_clock(order["clock"])
    if order["do"] == "drain":
        parts.worker.drain()
    elif order["do"] == "tick":
        Tick(parts.database).step()
    else:
        world = World(parts, order["tenant"], _Sink(parts.settings.slack_api_base), _Elsewhere(order["servicenow"]))
        stories.play(world, stories.STORIES[order["do"]], order["ref"], quietly=seams.quietly)


def _parts(settings: Settings, order: dict[str, Any], warm: Parts) -> Parts:
    directory = warm.state.with_name(f"worker-{os.getpid()}")
    unit.idle_transaction_seconds_max = order.get("idle", unit.idle_transaction_seconds_max)
    parts = Parts(settings, "dying", directory, ReplayedCommits())
    parts.__dict__.update(policies=warm.policies, vault=warm.vault)
    if not order.get("seals", True):
        without_bucket(parts)
    return parts


def _fork(settings: Settings, order: dict[str, Any], warm: Parts) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    parts = None
    try:
        parts = _parts(settings, order, warm)
        seams.begin(order["seams"], order)
        _work(parts, order)
        code = 0
    except BaseException:  # whatever it was, this process ends here and says so
        traceback.print_exc()
    finally:
        if parts is not None:
            if "hosts" in parts.__dict__:
                parts.hosts.close()
            shutil.rmtree(parts.state, ignore_errors=True)
        sys.stdout.flush()
        os._exit(code)


def _await(pid: int) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"pid": pid, "code": None}
    return {"pid": pid, "code": os.waitstatus_to_exitcode(status)}


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what workers say is not an answer
    _watch()
    warm = Parts(settings, "warm", Path(sys.argv[2]) / "warm")
    _ = warm.vault
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "warm":
            with warm.database.unit(order["tenant"], write=False) as looking:
                revision = templates.active_revision(looking)
            warm.policies.breaker(order["tenant"], revision)
            warm.database.close()
            found: dict[str, Any] = {}
        elif order["do"] == "go on":
            os.kill(order["pid"], signal.SIGCONT)
            found = _await(order["pid"])
        else:
            found = _await(_fork(settings, order, warm))
        answers.write(json.dumps(found) + "\n")
        answers.flush()
    warm.close()
    shutil.rmtree(warm.state, ignore_errors=True)


if __name__ == "__main__":
    main()
