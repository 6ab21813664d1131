"""The reader: OPA's own parser, compiler and test runner over policy files that nobody runs yet, in a child with a deadline."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate.verdict import PolicyFault
from engine.limits import policy_reading_bytes_max, policy_reading_depth_max, policy_reading_seconds
from governance.policy import rego
from governance.policy.embedded import Child
from governance.policy.faults import Fault

_place = re.compile(
    r"(?P<file>[\w./-]+\.rego):(?P<line>\d+): (?P<kind>rego_\w+_error): (?P<message>[^\n]+)(?P<more>(?:\n[\t ][^\n]*)*)"
)
_named = re.compile(r"(?:(?:var|function|ref|rule) (?:data\.)?|^(?=[\w.]+: ))([A-Za-z_][\w.]*)")


@dataclass(frozen=True, slots=True)
class Read:
    """What was found out about some files: their trees, what OPA says is wrong, and how their tests went."""

    modules: Mapping[str, rego.Module]
    faults: tuple[Fault, ...]
    tests: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)


class Reader:
    """A child that reads policies; whatever goes wrong ends it, and the next question starts another."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def read(self, files: Mapping[str, str]) -> Read:
        """Parse these files."""
        reply = self._ask({"parse": sorted(files.items())})
        return _parsed(files, reply)

    def tried(self, files: Mapping[str, str], data: Mapping[str, Any], tests: Sequence[str]) -> Read:
        """Parse, load and compile these files with the data, and run these tests (`twokeys.base_test.test_x`)."""
        reply = self._ask({"parse": sorted(files.items()), "data": data, "tests": list(tests)})
        found = _parsed(files, reply)
        faults = found.faults
        if not faults and reply["load"]:
            faults = tuple(_faults(str(reply["load"][-1]), {path: one.text for path, one in found.modules.items()}))
        lines = {file: (tuple(reached), tuple(missed)) for file, (reached, missed) in reply["lines"].items()}
        return Read(found.modules, faults, reply["tests"], lines)

    def close(self) -> None:
        """End the child."""
        one, self._child = self._child, None
        if one is not None:
            one.end()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        try:
            line = json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        except UnicodeEncodeError:
            raise CallerError("the files hold half a character", code="not_text") from None
        one, self._child = self._child or Child(), None
        reply = None
        try:
            reply = one.exchange(line[1:-1], policy_reading_bytes_max, policy_reading_seconds)
        except PolicyFault as fault:
            fault.next_step = _next_steps.get(fault.code, "")
            raise
        finally:
            if reply is None:
                one.end()
            else:
                self._child = one
        return reply


_next_steps = {
    "engine_exit": "policies are read by the OPA library: install it as `make setup` does, from requirements/opa.txt",
    "timeout": "a test or a rule takes too long: which one shows when others are taken out",
}


def _parsed(files: Mapping[str, str], reply: Mapping[str, Any]) -> Read:
    modules: dict[str, rego.Module] = {}
    faults: list[Fault] = []
    for (path, text), (kind, said) in zip(sorted(files.items()), reply["parsed"], strict=True):
        if kind != "tree":
            faults += _faults(said, {path: rego.Text(path, text)}) or [Fault(path, 1, 1, "parse", said[:500])]
            continue
        try:
            tree = read_json(
                said.encode("utf-8"),
                bytes_max=policy_reading_bytes_max,
                depth_max=policy_reading_depth_max,
                floats=True,
            )
        except CallerError as error:
            faults.append(Fault(path, 1, 1, "parse", f"cannot be understood: {error.reason}"))
            continue
        modules[path] = rego.module(path, text, tree)
    return Read(modules, tuple(faults))


def _faults(said: str, texts: Mapping[str, rego.Text]) -> list[Fault]:
    """OPA's own sentences, each with its place; what names no place stands at the beginning of the first file."""
    found = []
    for match in _place.finditer(said):
        text = texts.get(match["file"])
        if text is None:
            continue
        line = max(1, int(match["line"]))
        more = match["more"].split("\n")
        # After a parse error OPA shows the line without its indentation and puts a caret under the place.
        caret = next((part.index("^") for part in more if part.strip() == "^"), None)
        shown = text.line(line)
        if caret is not None:
            column = len(shown) - len(shown.lstrip()) + caret  # OPA's own line begins with one tab
        else:
            named = _named.search(match["message"])
            column = text.place(text.first_name(named[1].split(".")[-1] if named else "", line))[1]
        details = "; ".join(part.strip() for part in more if part.strip() and part.strip() != "^" and caret is None)
        message = match["message"].strip() + (f" ({details})" if details else "")
        kind = "parse" if match["kind"] == "rego_parse_error" else "compile"
        found.append(Fault(match["file"], line, max(1, column), kind, message, shown, _hint(message)))
    if not found and texts:
        first = min(texts)
        raise PolicyFault("load_failed", f"{first} and its neighbours: {said[:500]}")
    return found


def _hint(message: str) -> str:
    for sign, advice in _hints:
        if sign in message:
            return advice
    return ""


_hints = (
    ("unexpected eof", "a bracket or a quotation mark is open; every `{` needs its `}`"),
    ("`if` keyword is required", "write `name if { ... }`"),
    ("`contains` keyword is required", "write `deny contains {...} if { ... }`"),
    ("unexpected { token", "write `if` before the brace: `name if { ... }`"),
    ("found empty body", "a rule's body needs at least one condition"),
    ("unexpected } token", "a condition on the line above is not finished"),
    ("is unsafe", "nothing gives this name a value: is it misspelt?"),
    ("assigned above", "a name has one value in a body: choose another name"),
    ("undefined function", "is it misspelt, or a function that policies may not use?"),
    ("match error", "the two sides can never be equal: one is a number, the other text?"),
    ("invalid argument", "this function does not take a value of this type"),
    ("recursive", "a rule cannot depend on itself"),
    ("multiple default rules", "one `default` for each rule"),
    ("conflict", "a rule has one form everywhere: either `name contains ...` or `name := ...`"),
)
