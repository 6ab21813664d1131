"""Reads YAML strictly: one plain tree of maps, lists, text, whole numbers, true, false and null, and where each value stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from engine.limits import int_max, yaml_bytes_max
from engine.program.faults import DefinitionInvalid, Fault, faults_max, step_into

depth_max = 32
nodes_max = 20_000
_int = re.compile(r"-?(0|[1-9][0-9]*)")
_fraction = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Words that one YAML reader takes for a truth value, a null or a number and another for text.
_ambiguous = re.compile(
    r"(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|True|TRUE|False|FALSE|Null|NULL"
    r"|[+-]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|nan|NaN|NAN)"
)
_plain_values = {"": None, "~": None, "null": None, "true": True, "false": False}
_unprintable = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Document:
    """The value, where each value stands, where each key stands, and what is wrong so far."""

    value: Any
    positions: dict[str, tuple[int, int]]
    keys: dict[str, tuple[int, int]]
    faults: list[Fault]
    lines: list[str]


def read_document(text: bytes, filename: str) -> Document:
    """The one document in this text. What cannot be read at all raises DefinitionInvalid; what can be passed over is a fault."""
    decoded = _decode(text, filename)
    builder = _Builder(filename)
    loader = yaml.CLoader(decoded)
    try:
        while loader.check_event():
            builder.take(loader.get_event())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        builder.stop(place, _problem(decoded, place, str(error.problem or error.context)))
    except yaml.YAMLError as error:
        builder.stop((1, 1), f"not YAML: {str(error).splitlines()[0]}")
    finally:
        loader.dispose()
    if builder.documents == 0:
        builder.stop((1, 1), "the file is empty")
    return Document(builder.value, builder.positions, builder.keys, builder.faults, decoded.split("\n"))


def _decode(text: bytes, filename: str) -> str:
    if len(text) > yaml_bytes_max:
        message = f"the file is {len(text)} bytes; at most {yaml_bytes_max} are read"
        raise DefinitionInvalid([Fault(filename, 1, 1, "", message)])
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8")
        raise DefinitionInvalid([Fault(filename, *_place(before), "", "this byte is not UTF-8")]) from None
    if found := _unprintable.search(decoded):
        message = f"the character U+{ord(found[0]):04X} may not stand in a file; take it out"
        raise DefinitionInvalid([Fault(filename, *_place(decoded[: found.start()]), "", message)])
    return decoded


def _place(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _problem(text: str, place: tuple[int, int], problem: str) -> str:
    lines = text.split("\n")
    line = lines[place[0] - 1] if place[0] <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab indents this line; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a ': ' is not expected here; put the text before or around it in quotes"
    return f"not YAML: {problem}"


@dataclass(slots=True)
class _Open:
    """A map or list whose end has not come yet."""

    value: dict[str, Any] | list[Any]
    pointer: str
    key: str | None = None  # of a map: the key whose value comes next
    skip: bool = False  # the value that comes next belongs to a key that was refused


@dataclass(slots=True)
class _Builder:
    filename: str
    value: Any = None
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    documents: int = 0
    nodes: int = 0
    stack: list[_Open] = field(default_factory=list)

    def stop(self, place: tuple[int, int], message: str) -> None:
        raise DefinitionInvalid([*self.faults, Fault(self.filename, *place, "", message)])

    def fault(self, place: tuple[int, int], pointer: str, message: str) -> None:
        self.faults.append(Fault(self.filename, *place, pointer, message))
        if len(self.faults) >= faults_max:
            raise DefinitionInvalid(self.faults)

    def take(self, event: Any) -> None:
        place = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self.stop(place, "one document to a file; take out the line ---")
        elif isinstance(event, yaml.ScalarEvent | yaml.AliasEvent | yaml.CollectionStartEvent):
            self.nodes += 1
            if self.nodes > nodes_max:
                self.stop(place, f"the file has more than {nodes_max} values")
            self._node(event, place)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()

    def _node(self, event: Any, place: tuple[int, int]) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and type(top.value) is dict and top.key is None:
            self._key(top, event, place)
            return
        pointer = self._pointer(top)
        if top is None or not top.skip:
            self.positions[pointer] = place
        self._refuse_marks(event, place, pointer)
        if isinstance(event, yaml.ScalarEvent):
            self._put(top, self._scalar(event, place, pointer))
            return
        if isinstance(event, yaml.AliasEvent):
            self.fault(place, pointer, f"aliases are not read; write the value of *{event.anchor} out")
            self._put(top, None)
            return
        if len(self.stack) >= depth_max:
            self.stop(place, f"nested deeper than {depth_max}")
        opened: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        # What stands below a refused key must not take the places of what stands below its first.
        below = f"{pointer}#" if top is not None and top.skip else pointer
        self._put(top, opened)
        self.stack.append(_Open(opened, below))

    def _key(self, top: _Open, event: Any, place: tuple[int, int]) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            self.stop(place, "a key is plain text")
        pointer = step_into(top.pointer, event.value)
        self._refuse_marks(event, place, pointer)
        top.key = event.value
        if event.value == "<<" and not event.style:
            self.fault(place, pointer, "merge keys are not read; write the keys out")
            top.skip = True
        elif event.value == "":
            self.fault(place, pointer, "a key is not empty")
            top.skip = True
        elif event.value in top.value:
            line = self.keys[pointer][0]
            self.fault(place, pointer, f"the key {event.value!r} stands twice; first in line {line}")
            top.skip = True
        else:
            self.keys[pointer] = place

    def _pointer(self, top: _Open | None) -> str:
        if top is None:
            return ""
        return step_into(top.pointer, len(top.value) if top.key is None else top.key)

    def _put(self, top: _Open | None, value: Any) -> None:
        if top is None:
            self.value = value
        elif type(top.value) is list:
            top.value.append(value)
        elif type(top.value) is dict and top.key is not None:
            if not top.skip:
                top.value[top.key] = value
            top.key, top.skip = None, False

    def _refuse_marks(self, event: Any, place: tuple[int, int], pointer: str) -> None:
        if isinstance(event, yaml.AliasEvent):
            return
        if event.anchor is not None:
            self.fault(place, pointer, f"anchors are not read; take out &{event.anchor}")
        if event.tag is not None:
            shown = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.fault(place, pointer, f"tags are not read; take out {shown}")

    def _scalar(self, event: Any, place: tuple[int, int], pointer: str) -> Any:
        text = event.value
        if "\x00" in text:
            self.fault(place, pointer, "text may not hold the character NUL")
        if event.style:
            return text
        if text in _plain_values:
            return _plain_values[text]
        if _int.fullmatch(text):
            if len(text) > 17 or abs(int(text)) > int_max:
                self.fault(place, pointer, "a whole number is below 2^53 in size; write it in quotes")
                return 0
            return int(text)
        if _fraction.fullmatch(text):
            self.fault(place, pointer, f"{text[:40]} is a fraction; write it in quotes")
        elif _ambiguous.fullmatch(text):
            word = text.lower()
            plain = f"write {word}, or put it in quotes" if word in _plain_values else "write it in quotes"
            self.fault(place, pointer, f"{text} may be read in two ways; {plain}")
        return text
