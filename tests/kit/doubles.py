"""Slacks that somebody else wrote, each a process of its own on a free port; without node a test that wants one is skipped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.wait import until

HERE = Path(__file__).resolve().parents[2] / ".node" / "doubles" / "node_modules"
LOCAL_SLACK = HERE / "local-slack-linux-x64" / "bin" / "local-slack"
EMULATE = HERE / "emulate" / "dist" / "index.js"
TSC = HERE / "typescript" / "bin" / "tsc"
APP_TOKEN = "xapp-double-token"
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@dataclass(frozen=True)
class Double:
    """A running stand-in of somebody else."""

    name: str
    base_url: str
    token: str
    channel: str
    member: str

    @property
    def api_base(self) -> str:
        return f"{self.base_url}/api/"


def wanted(path: Path) -> None:
    """Skip, and say why, where node or the package is not there; a gate that must skip nothing fails instead."""
    if shutil.which("node") and path.exists():
        return
    if os.environ.get("TWOKEYS_TEST_STRICT") and shutil.which("node"):
        pytest.fail(f"node is here and {path.name} is not: run `make doubles`")
    pytest.skip(f"{path.name} needs node and `make doubles`")


@contextmanager
def local_slack(
    directory: Path, people: Mapping[str, str], *, request_url: str = "", token: str = "xoxb-test"
) -> Iterator[Double]:  # fmt: skip
    """local-slack with these people (id -> name): signed requests to `request_url`, or Socket Mode without one."""
    wanted(LOCAL_SLACK)
    port = _free_port()
    app = {"appId": "A0DESK", "botUserId": "U0BOT", "botName": "twokeys", "botToken": token, "appToken": APP_TOKEN}
    app |= {"signingSecret": SIGNING_SECRET, "mode": "events" if request_url else "socket"}
    config = {
        "workspace": {"name": "Acme", "domain": "acme", "teamId": "T0DESK"},
        "app": {**app, "requestUrl": request_url} if request_url else app,
        "users": [{"id": member, "name": name, "real_name": name} for member, name in people.items()],
        "channels": [{"id": "C0DESK", "name": "approvals", "members": [*people, "U0BOT"]}],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(json.dumps(config))
    files = str(directory / "files")
    command = [
        str(LOCAL_SLACK),
        "--config",
        str(directory / "config.yaml"),
        "--port",
        str(port),
        "--base-host",
        "127.0.0.1",
        "--files-dir",
        files,
    ]
    with _running(command, directory, f"http://127.0.0.1:{port}/_control/state"):
        yield Double("local-slack", f"http://127.0.0.1:{port}", token, "C0DESK", next(iter(people)))


@contextmanager
def emulate(directory: Path) -> Iterator[Double]:
    """emulate's Slack, for outgoing calls."""
    wanted(EMULATE)
    port = _free_port()
    seed = {
        "tokens": {"xoxb-double": {"login": "ana", "scopes": ["chat:write", "commands"]}},
        "slack": {
            "team": {"name": "Acme", "domain": "acme"},
            "users": [{"name": "ana", "real_name": "Ana Archer", "email": "ana@example.com"}],
            "channels": [{"name": "approvals", "topic": "Requests"}],
            "bots": [{"name": "twokeys"}],
        },
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "seed.yaml").write_text(json.dumps(seed))
    base = f"http://127.0.0.1:{port}"
    command = ["node", str(EMULATE), "start", "-s", "slack", "-p", str(port), "--seed", str(directory / "seed.yaml")]
    with _running(command, directory, f"{base}/api/auth.test"):
        channels = asked(base, "xoxb-double", "conversations.list")["channels"]
        members = asked(base, "xoxb-double", "users.list")["members"]
        channel = next(one["id"] for one in channels if one["name"] == "approvals")
        yield Double(
            "emulate", base, "xoxb-double", channel, next(one["id"] for one in members if one["name"] == "ana")
        )


def asked(base: str, token: str, method: str, **arguments: Any) -> dict[str, Any]:
    """One call past our own client, for what only a test needs."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/api/{method}", json.dumps(arguments).encode(), headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@contextmanager
def _running(command: Sequence[str], directory: Path, ready: str) -> Iterator[None]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory)}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or _answers(ready), 20)
            assert process.poll() is None, (directory / "log").read_text()
            yield
        finally:
            process.terminate()
            process.wait(timeout=10)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
