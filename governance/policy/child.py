"""The embedded engine's process: the OPA library behind one pipe, one JSON line in and one JSON line out, gone at the end of input.

It is started by exec with an empty environment and runs nobody's code but the policy's. Whatever it does not foresee
ends it, and for the other side that is a denial.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from importlib import metadata
from typing import Any, BinaryIO

PACKAGE = "opa-golib-python-bindings"
# The OPA inside each version of the wheel, read from the library's build information.
OPA_VERSIONS = {"0.4.4": "1.20.2"}
ADDRESS_SPACE_BYTES = 2 * 1024**3  # the Go runtime does not start in 1 GiB
FINDINGS_PATH = "twokeys.main.findings"

_clone_newnet = 0x40000000
_clone_newuser = 0x10000000


def confine() -> None:
    """Give up what an evaluation never needs: more memory, core files, and the network where the kernel lets us."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if libc.unshare(_clone_newnet) != 0:
            libc.unshare(_clone_newuser | _clone_newnet)


def private_output() -> BinaryIO:
    """The pipe for answers alone: whatever else writes to stdout or stderr goes nowhere."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    return answers


def load(engine: Any, order: dict[str, Any]) -> list[str]:
    """Load every module and the data, and compile them; the fault of the first that cannot be loaded, or nothing."""
    from opa_bindings import OpaError

    try:
        for path, text in order["modules"]:
            engine.add_policy(path, text)
        engine.add_data(order["data"])
        engine.eval_query("true")
    except OpaError as error:
        return ["load_failed", str(error.message)[:2000]]
    return []


def answer(engine: Any, document: Any) -> list[str]:
    """One item of the answer: the findings as text, or a fault's code and message."""
    from opa_bindings import OpaError, OpaUndefinedError

    try:
        found = engine.eval_document(FINDINGS_PATH, document)
    except OpaUndefinedError:
        return ["fault", "undefined", "the policy gives no findings for this input"]
    except OpaError as error:
        return ["fault", "evaluation_failed", str(error.message)[:500]]
    return ["findings", json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)]


PARSER = """package twokeys_parser
tree := rego.parse_module(input.path, input.text)
"""


def parse(parser: Any, path: str, text: str) -> list[str]:
    """The syntax tree of one module as text, or what OPA's parser says is wrong with it."""
    from opa_bindings import OpaError

    try:
        tree = parser.eval_document("twokeys_parser.tree", {"path": path, "text": text})
    except OpaError as error:
        return ["fault", str(error.message)[:20_000]]
    return ["tree", json.dumps(tree, separators=(",", ":"), ensure_ascii=False)]


def read(order: dict[str, Any]) -> dict[str, Any]:
    """Parse these modules; and when there are `tests`, load all with the data and run them."""
    from opa_bindings import OpaEngine

    with OpaEngine() as parser:
        parser.add_policy("parser.rego", PARSER)
        found: dict[str, Any] = {"parsed": [parse(parser, path, text) for path, text in order["parse"]]}
    if "tests" in order:
        with OpaEngine() as engine:
            fault = load(engine, {"modules": order["parse"], "data": order["data"]})
            found["load"] = fault
            found["tests"], found["lines"] = ({}, {}) if fault else run_tests(engine, order["tests"])
    return found


def run_tests(engine: Any, tests: list[str]) -> tuple[dict[str, str], dict[str, list[list[int]]]]:
    """What became of each test, and for each file the lines that were reached and those that were not.

    A test that fails has no value, or the value false; a whole package is evaluated at once unless it cannot be.
    """
    from opa_bindings import OpaError, OpaUndefinedError

    results: dict[str, str] = {}
    lines: dict[str, tuple[set[int], set[int]]] = {}

    def ask(path: str) -> Any:
        try:
            found = engine.eval_document(path, {}, coverage=True)
        except OpaUndefinedError:
            found = None
        for file, report in ((engine.last_coverage or {}).get("files") or {}).items():
            reached, known = lines.setdefault(file, (set(), set()))
            for name, into in (("covered", reached), ("not_covered", known)):
                for part in report.get(name) or ():
                    into.update(range(part["start"]["row"], part["end"]["row"] + 1))
        return found

    packages: dict[str, list[str]] = {}
    for test in tests:
        packages.setdefault(test.rpartition(".")[0], []).append(test)
    for package, members in packages.items():
        try:
            values = ask(package) or {}
            results.update({test: _passed(values.get(test.rpartition(".")[2])) for test in members})
        except OpaError:
            for test in members:
                try:
                    results[test] = _passed(ask(test))
                except OpaError as error:
                    results[test] = str(error.message)[:500]
    return results, {file: [sorted(reached), sorted(known - reached)] for file, (reached, known) in lines.items()}


def _passed(value: Any) -> str:
    return "" if value is True else "failed"


def main() -> None:
    """Answer until the input ends."""
    confine()
    answers = private_output()
    # Imported only now: loading the library starts Go's threads, which the limits above must precede.
    from opa_bindings import OpaEngine

    engine = OpaEngine()
    wheel = metadata.version(PACKAGE)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "modules" in order:
            fault = load(engine, order)
            reply: dict[str, Any] = {
                "id": order["id"],
                "fault": fault,
                "version": OPA_VERSIONS.get(wheel, f"wheel-{wheel}"),
            }
        elif "parse" in order:
            reply = {"id": order["id"], **read(order)}
        else:
            reply = {"id": order["id"], "answers": [answer(engine, document) for document in order["inputs"]]}
        _write(answers, json.dumps(reply, separators=(",", ":")).encode("ascii") + b"\n")


def _write(out: BinaryIO, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[out.write(rest) :]


if __name__ == "__main__":
    main()
