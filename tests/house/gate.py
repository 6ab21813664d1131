"""Runs the layers of the gate in order, each to its end, and says which are red and how long each took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
LAYER_SECONDS_MAX = 900

CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
}
# Tests that wait for children and clocks leave a core idle now and then: one worker more than two cores.
WAITING = str(max(3, os.cpu_count() or 1))
# Layers of pytest in the order in which a fault is cheapest to understand. A file stays with one worker, so that
# servers that a file starts for itself are started once; pure tests are spread one by one. In flow the file of the
# demo is by far the longest and has few tests: taken by name and not by count, it does not come last and alone.
LAYERS = {
    "house": ["-n", "0"],
    "engine": ["-n", "auto", "--dist", "worksteal"],
    "spec": ["-n", "auto", "--dist", "worksteal"],
    "golden": ["-n", "0"],
    "bundles": ["-n", "auto", "--dist", "worksteal"],
    "governance": ["-n", WAITING, "--dist", "loadfile"],
    "flow": ["-n", WAITING, "--dist", "loadfile", "--no-loadscope-reorder"],
    "crash": ["-n", "2", "--dist", "loadfile"],
    "contract": ["-n", "2", "--dist", "loadfile"],
    "browser": ["-n", "2", "--dist", "loadfile"],
}
# Where `make deep` has more to give than `make test`: more examples (tests/house/deep.py) and the tests marked deep.
DEEP = ("engine", "spec", "governance", "flow", "crash", "contract")


def has_tests(layer: str) -> bool:
    return any((ROOT / "tests" / layer).rglob("test_*.py"))


def pytest_command(layer: str, *, deep: bool) -> list[str]:
    depth = ["-p", "tests.house.deep"] if deep else ["-m", "not deep"]
    return ["python", "-m", "pytest", f"tests/{layer}", "-q", *LAYERS[layer], *depth]


def run(command: list[str], seconds_max: float) -> str:
    """Empty when the command succeeded, else why it did not."""
    child = subprocess.Popen(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = child.wait(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        stop(child)
        return f"still running after {seconds_max} s"
    except KeyboardInterrupt:
        stop(child)
        raise
    return "" if code == 0 else f"exit {code}"


def stop(child: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that pytest takes down the servers it started; then for good."""
    for number, seconds in ((signal.SIGINT, 20), (signal.SIGKILL, 5)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=seconds)
            return


def plan(names: list[str], *, deep: bool) -> dict[str, list[str]]:
    if deep:
        return {layer: pytest_command(layer, deep=True) for layer in DEEP if has_tests(layer)}
    layers = {layer: pytest_command(layer, deep=False) for layer in LAYERS if has_tests(layer)}
    everything = {**CHECKS, **layers}
    unknown = [name for name in names if name not in everything]
    if unknown:
        raise SystemExit(f"no such layer: {', '.join(unknown)}; there are: {', '.join(everything)}")
    return {name: command for name, command in everything.items() if not names or name in names}


def main(arguments: list[str]) -> int:
    deep = "--deep" in arguments
    layers = plan([name for name in arguments if name != "--deep"], deep=deep)
    lines, red, begun = [], [], time.monotonic()
    for name, command in layers.items():
        print(f"\n== {name}: {' '.join(command)}", flush=True)
        started = time.monotonic()
        fault = run(command, LAYER_SECONDS_MAX * (10 if deep else 1))
        lines.append(f"  {name:<12}{time.monotonic() - started:>7.1f} s  {'RED: ' + fault if fault else 'green'}")
        red += [name] if fault else []
    print("\n== layers", *lines, sep="\n")
    seconds = time.monotonic() - begun
    verdict = f"RED: {', '.join(red)}" if red else "green"
    print(f"gate: {len(layers)} layers in {seconds:.1f} s, {verdict}", flush=True)
    return 1 if red or not layers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
