"""Shared by the stand-ins that run as their own process: one config file in, one port file out, never in production."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import OperatorError
from governance.local.children import LOOPBACK, Child, Children, answers, listener, python_module

ENVIRONMENTS = ("demo", "test")


@dataclass(frozen=True)
class StandIn:
    """A stand-in that answers, with the port it has got."""

    child: Child
    port: int

    @property
    def base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def start(
    children: Children, name: str, module: str, state_directory: Path, config: Mapping[str, Any], port: int = 0
) -> StandIn:
    """Start the module over this state directory: on the port asked for, else its last one, else a free one."""
    home = state_directory.resolve() / name
    home.mkdir(parents=True, exist_ok=True)
    port_file = home / "port.json"
    last = _read_port(port_file)
    full = {**config, "home": str(home), "port": port or (last[1] if last else 0)}
    config_file = home / "config.json"
    config_file.touch(mode=0o600)
    config_file.write_text(json.dumps(full, indent=1))

    def ready(child: Child) -> bool:
        seen = _read_port(port_file)
        return seen is not None and seen[0] == child.pid and answers(seen[1], "/_ready")

    child = children.start(python_module(name, module, str(config_file), grace_seconds=2.0), ready=ready)
    seen = _read_port(port_file)
    if seen is None:
        raise OperatorError(f"{port_file} disappeared")
    return StandIn(child, seen[1])


def read_config(arguments: list[str]) -> dict[str, Any]:
    """The one argument's JSON object; the process ends with a sentence when it may not or cannot run."""
    if len(arguments) != 1:
        sys.exit("usage: python -m <module> CONFIG.json")
    try:
        config = json.loads(Path(arguments[0]).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"the config file cannot be read: {error}")
    if not isinstance(config, dict) or config.get("environment") not in ENVIRONMENTS:
        sys.exit("a local stand-in runs in the environments demo and test only; this config names another")
    return config


def open_port(config: Mapping[str, Any]) -> socket.socket:
    """A loopback socket that already listens, its port written down for whoever started us."""
    opened = listener(int(config["port"]))
    port_file = Path(config["home"]) / "port.json"
    write_whole(port_file, json.dumps({"pid": os.getpid(), "port": opened.getsockname()[1]}))
    return opened


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that a crash leaves the old one or the new one."""
    half = path.with_name(f"{path.name}.new")
    half.write_text(text)
    half.replace(path)


def _read_port(port_file: Path) -> tuple[int, int] | None:
    try:
        seen = json.loads(port_file.read_text())
        return int(seen["pid"]), int(seen["port"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
