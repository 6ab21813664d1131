"""Where the real opa is, the table of expected effects, and children that misbehave on demand."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.gate.question import People, Question, canonical_input
from engine.gate.verdict import Judged, Policy, judge
from governance import clock

ROOT = Path(__file__).resolve().parents[3]
TABLE = json.loads((ROOT / "policies" / "tests" / "table.json").read_text(encoding="utf-8"))
GROUPS = {
    "oncall": frozenset({"per_a", "per_b"}),
    "incident-managers": frozenset({"per_c"}),
    "finance": frozenset({"per_f"}),
    "security": frozenset({"per_s"}),
}


def opa_binary() -> Path:
    """A real opa, or the reason why this test does not run; under TWOKEYS_TEST_STRICT=1 that is a failure."""
    named = os.environ.get("TWOKEYS_TEST_OPA_BINARY", "")  # TWOKEYS_OPA_BINARY as tests/conftest.py leaves it
    found = named or shutil.which("opa")
    if found and Path(found).is_file():
        return Path(found).resolve()
    why = f"TWOKEYS_OPA_BINARY names no file: {named}" if named else "no opa on PATH and TWOKEYS_OPA_BINARY is not set"
    if os.environ.get("TWOKEYS_TEST_STRICT") == "1":
        _fail(why)
    pytest.skip(why)


def _fail(why: str) -> NoReturn:
    pytest.fail(f"TWOKEYS_TEST_STRICT=1 and {why}")


def patched(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The table's base document with some values changed, named by their dotted paths."""
    document: dict[str, Any] = json.loads(json.dumps(TABLE["base"]))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = document
        for name in parents:
            at = at[name]
        at[last] = value
    return document


def question_of(document: dict[str, Any]) -> Question:
    """The question whose document this is."""
    action = document["action"]
    subject = {name: action[name] for name in ("kind", "risk_tier", "reversible")}
    people = People(GROUPS, frozenset({"per_requester"}))
    return Question(canonical_input(document), document["request"]["id"], action["sha256"], "enforce", subject, people)


def plain_question(**changes: Any) -> Question:
    """A question that the shipped policy answers with allow."""
    return question_of(patched({name.replace("__", "."): value for name, value in changes.items()}))


def ruled(policy: Policy, revision: str, question: Question | None = None) -> Judged:
    """What comes of a question put to this policy."""
    return judge(question or plain_question(), policy, accepted=(revision,), monotonic=clock.monotonic)


def assert_fault(result: Judged, code: str, *, retryable: bool | None = None) -> None:
    """A denial of kind fault with this code."""
    verdict = result.verdict
    assert (verdict.effect, verdict.deny_kind, verdict.reasons[0].code) == ("deny", "fault", code), verdict
    if retryable is not None:
        assert verdict.retryable is retryable


HOSTILE = """
import os, re, sys, time
from governance.policy import child
plain_answer, plain_write = child.answer, child._write
trick = {"now": ""}
def answer(engine, document):
    # The step's id says what the child does with this question.
    trick["now"] = document.get("step", {}).get("id", "")
    if trick["now"] == "hang":
        time.sleep(60)
    if trick["now"] == "exit":
        os._exit(0)
    if trick["now"] == "signal":
        os.kill(os.getpid(), 11)
    if trick["now"] == "raise":
        raise RuntimeError("not foreseen")
    found = plain_answer(engine, document)
    if trick["now"] == "echo":
        found[1] = found[1].replace(document["request"]["id"], "0" * 36)
    if trick["now"] == "action":
        found[1] = found[1].replace(document["action"]["sha256"], "e" * 64)
    if trick["now"] == "revision":
        found[1] = re.sub('"revision":"[0-9a-f]{8}', '"revision":"00000000', found[1])
    if trick["now"] == "item":
        found = {"allow": True}
    if trick["now"] == "parts":
        found = ["findings", found[1], "more"]
    if trick["now"] == "big":
        found[1] = "x" * 1_000_000
    if trick["now"] == "shape":
        found[1] = found[1].replace('"denials":[]', '"denials":[1.5]')
    if trick["now"] == "fault":
        found = ["fault", "timeout", "pretended"]
    return found
def write(out, line):
    how = trick["now"]
    if how == "garbage":
        line = b"<html>\\n"
    if how == "unclosed":
        os.write(out.fileno(), line[:20]); os._exit(0)
    if how == "two":
        line = line + line
    if how == "id":
        line = line.replace(b'{"id":', b'{"id":9')
    if how == "id-bool":
        line = line.replace(line[:line.index(b",")], b'{"id":true')
    if how == "duplicate":
        line = line.replace(b'"answers"', b'"answers":[],"answers"')
    if how == "nan":
        line = b'{"id":NaN}\\n'
    if how == "extra":
        line = line[:-2] + b',"more":1}\\n'
    if how == "none":
        line = b'{"id":' + line.split(b":")[1].split(b",")[0] + b',"answers":[]}\\n'
    if how == "drip":
        for n in range(len(line)):
            os.write(out.fileno(), line[n:n+1]); time.sleep(0.05)
        return
    plain_write(out, line)
    if how == "late":
        time.sleep(0.05); plain_write(out, b"more\\n")
    trick["now"] = ""
child.answer, child._write = answer, write
child.main()
"""


def hostile_command() -> tuple[str, ...]:
    """A child that passes its canaries and then does what a question's step id says."""
    return (sys.executable, "-I", "-c", HOSTILE)
