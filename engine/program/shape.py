"""Checks the shape of authored values: which keys a map has, of which types, and what may stand in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.program.faults import hint, step_into
from engine.program.places import Ledger

_kinds = {str: "text", int: "a whole number", bool: "true or false", dict: "a map", list: "a list", type(None): "empty"}


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return _kinds.get(type(value), type(value).__name__)


class Reader:
    """Shape checks that note what is wrong and go on with what is right."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def shape(
        self, pointer: str, value: Any, kinds: Mapping[str, type | None], required: Sequence[str], what: str = ""
    ) -> dict[str, Any]:
        """The keys of this map that have the right type; a kind of None takes any value. Everything else is a fault."""
        name = what or pointer.rpartition("/")[2] or "a definition"
        if type(value) is not dict:
            self.ledger.at_value(pointer, f"{name} is a map, not {kind_of(value)}")
            return {}
        good = {}
        for key, item in value.items():
            below = step_into(pointer, key)
            if key not in kinds:
                self.ledger.at_key(below, f"unknown key {key!r}{hint(key, kinds)}")
            elif self.is_kind(below, key, item, kinds[key]):
                good[key] = item
        for key in required:
            if key not in value:
                self.ledger.at_value(pointer, f"{name} needs the key {key!r}")
        return good

    def is_kind(self, pointer: str, name: str, value: Any, kind: type | None) -> bool:
        """Whether the value has exactly this type; a fault when it has not."""
        if kind is None or type(value) is kind:
            return True
        quotes = "; write it in quotes" if kind is str and type(value) in (int, bool, type(None)) else ""
        self.ledger.at_value(pointer, f"{name} is {_kinds[kind]}, not {kind_of(value)}{quotes}")
        return False

    def texts(self, pointer: str, value: list[Any]) -> Iterator[tuple[str, str]]:
        """The texts of a list, each with its pointer."""
        for number, item in enumerate(value):
            below = step_into(pointer, number)
            if self.is_kind(below, "this", item, str):
                yield below, item

    def choice(self, pointer: str, value: str, known: Sequence[str], otherwise: str) -> str:
        """One of the known words."""
        if value in known:
            return value
        name = pointer.rpartition("/")[2]
        self.ledger.at_value(pointer, f"unknown {name} {value[:40]!r}{hint(value, known)}")
        return otherwise

    def limit(self, pointer: str, value: str, chars_max: int) -> str:
        """Text of bounded length."""
        if len(value) > chars_max:
            name = pointer.rpartition("/")[2]
            self.ledger.at_value(pointer, f"{name} has {len(value)} characters; at most {chars_max}")
        return value

    def between(self, pointer: str, value: int, low: int, high: int) -> int:
        """A whole number of a range."""
        if not low <= value <= high:
            self.ledger.at_value(pointer, f"{pointer.rpartition('/')[2]} is {low} to {high}, not {value}")
        return value
