"""Reads the checked form of an expression off the wire, so that loops, names and growth can be judged before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Field numbers of cel.expr.CheckedExpr, cel.expr.Expr and cel.expr.SourceInfo; they are part of a published format.
_any_value = 2
_types, _expr, _source_info = 3, 4, 5
_type_list = 6
_const, _ident, _select, _call, _list, _struct, _loop = range(3, 10)
_const_string = 6


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its kind, its name (variable, field, function or text of a literal), its parts in source order."""

    id: int
    kind: str  # const | text | ident | select | call | list | struct | loop
    name: str
    parts: tuple[Node, ...]
    size: int = 0  # bytes of a literal
    variables: tuple[str, ...] = ()  # of a loop: element variables, then the accumulator


@dataclass(frozen=True, slots=True)
class Tree:
    """A checked expression: its root, which nodes are lists, and where each node stands as (line, column) from 1."""

    root: Node
    lists: frozenset[int]
    places: dict[int, tuple[int, int]]

    def place(self, node: Node) -> tuple[int, int]:
        """Where this node or, when a macro made it, the first of its parts stands."""
        for each in walk(node):
            if each.id in self.places:
                return self.places[each.id]
        return (1, 1)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for part in node.parts:
        yield from walk(part)


def read_tree(serialized: bytes, source: str) -> Tree:
    """The tree inside `google.protobuf.Any(cel.expr.CheckedExpr)`."""
    checked = _message(_one(_message(serialized), _any_value))
    lists = set()
    for raw in checked.get(_types, ()):
        entry = _message(raw)
        if _type_list in _message(_one(entry, 2)):
            lists.add(_number(entry, 1))
    return Tree(_node(_one(checked, _expr)), frozenset(lists), _places(_one(checked, _source_info), source))


def _places(raw: bytes, source: str) -> dict[int, tuple[int, int]]:
    places = {}
    for each in _message(raw).get(4, ()):
        entry = _message(each)
        before = source[: _number(entry, 2)]
        places[_number(entry, 1)] = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    return places


def _node(raw: bytes) -> Node:
    fields = _message(raw)
    ident = _number(fields, 2)
    if _const in fields:
        value = _message(_one(fields, _const))
        if _const_string in value:
            text = _one(value, _const_string)
            return Node(ident, "text", text.decode(), (), len(text))
        return Node(ident, "const", "", (), len(_one(fields, _const)))
    if _ident in fields:
        return Node(ident, "ident", _text(_message(_one(fields, _ident)), 1), ())
    if _select in fields:
        body = _message(_one(fields, _select))
        return Node(ident, "select", _text(body, 2), (_node(_one(body, 1)),))
    if _call in fields:
        body = _message(_one(fields, _call))
        parts = [*body.get(1, ()), *body.get(3, ())]
        return Node(ident, "call", _text(body, 2), tuple(_node(_raw(part)) for part in parts))
    if _list in fields:
        body = _message(_one(fields, _list))
        return Node(ident, "list", "", tuple(_node(_raw(part)) for part in body.get(1, ())))
    if _struct in fields:
        return _struct_node(ident, _message(_one(fields, _struct)))
    body = _message(_one(fields, _loop))
    parts = [_node(_one(body, number)) for number in (2, 4, 5, 6, 7)]
    variables = tuple(name for number in (1, 8) if (name := _text(body, number)))
    return Node(ident, "loop", "", tuple(parts), 0, (*variables, _text(body, 3)))


def _struct_node(ident: int, body: dict[int, list[bytes | int]]) -> Node:
    parts = []
    for raw in body.get(2, ()):
        entry = _message(_raw(raw))
        parts += [_node(_raw(part)) for number in (3, 4) for part in entry.get(number, ())]
    return Node(ident, "struct", _text(body, 1), tuple(parts))


# --- the wire format ----------------------------------------------------------------------------------------------


def _message(raw: bytes | int) -> dict[int, list[bytes | int]]:
    data, at = _raw(raw), 0
    fields: dict[int, list[bytes | int]] = {}
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: bytes | int
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size = 0
            if kind == 2:
                size, at = _varint(data, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise ValueError(f"wire kind {kind}")
            value, at = data[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _raw(value: bytes | int) -> bytes:
    if type(value) is not bytes:
        raise ValueError("a message was expected")
    return value


def _one(fields: dict[int, list[bytes | int]], number: int) -> bytes:
    # A message of defaults only is left out on the wire.
    return _raw(fields[number][-1]) if number in fields else b""


def _text(fields: dict[int, list[bytes | int]], number: int) -> str:
    return _one(fields, number).decode()


def _number(fields: dict[int, list[bytes | int]], number: int) -> int:
    value = fields[number][-1] if number in fields else 0
    if type(value) is not int:
        raise ValueError("a number was expected")
    return value
