"""Bounds what an expression can build before it runs: CEL counts turns of loops, but not what each turn makes.

Measured without this: 200 kB of input and an expression of 40 characters take gigabytes. Sizes are kept as linear
forms over the variables of the loops around a node, so that walking a list costs its length and not its square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.program.checked import Node, walk

work_bytes_max = 67_108_864
turns_max = 10_000
_value_bytes = 16
_append_bytes = 16  # measured: building a list in a loop copies what is there at each turn and keeps every copy
_split_bytes = 64  # measured: what one piece of text takes
_least_bytes = 4  # what `admit` counts for the smallest value
_number_chars = 1_500  # %.1000f
_small = frozenset(
    "_==_ _!=_ _<_ _<=_ _>_ _>=_ _&&_ _||_ !_ @in @not_strictly_false size matches contains startsWith endsWith indexOf"
    " lastIndexOf int uint double bool timestamp duration _-_ _*_ _/_ _%_ -_ hasValue".split()
)
_indexes = ("_[_]", "_?._", "_[?_]")
_growing = frozenset(("replace", "join", "split", "format"))
_references_free = 16

Form = dict[str, int]  # the coefficient of each loop variable; "" is the constant
SizeOf = Callable[[str, tuple[str, ...]], "Read"]  # root and path
PathOf = Callable[[Node], tuple[str, tuple[str, ...]] | None]


@dataclass(frozen=True, slots=True)
class Read:
    """What a reference reads: its bytes, how many elements it has, its largest element; the text itself if it is one."""

    size: int
    count: int
    largest: int
    text: str


@dataclass(frozen=True, slots=True)
class Bound:
    """At most this: bytes of the value, bytes built on the way to it, elements of the value, bytes of one element."""

    size: Form
    work: Form
    count: int
    largest: int


@dataclass(frozen=True, slots=True)
class Around:
    """The loops around a node: what their variables are at most, and how often the node is evaluated."""

    names: dict[str, Form]
    tops: dict[str, int]
    turns: int


def may_grow(root: Node) -> bool:
    """Whether this expression must be bounded against its input; most are too plain to build anything."""
    nodes = list(walk(root))
    if any(node.kind == "loop" or (node.kind == "call" and node.name in _growing) for node in nodes):
        return True
    return sum(node.kind == "ident" for node in nodes) > _references_free


@dataclass(slots=True)
class Growth:
    """One pass over an expression with the sizes of what it reads."""

    read: SizeOf
    path_of: PathOf
    roots: frozenset[str]

    def work(self, root: Node) -> int:
        """At most so many bytes are built."""
        return _at_most(self._node(root, Around({}, {}, 1)).work, {})

    def _read(self, node: Node) -> Read | None:
        path = self.path_of(node)
        return self.read(*path) if path and path[0] in self.roots else None

    def _node(self, node: Node, around: Around) -> Bound:
        if found := self._read(node):
            size = {"": found.size + _value_bytes}
            return Bound(size, size, found.count, found.largest + _value_bytes)
        if node.kind == "ident":
            return _bound(around.names.get(node.name, {"": _value_bytes}), {}, around)
        if node.kind in ("text", "const"):
            return _bound({"": node.size + _value_bytes}, {}, around)
        if node.kind == "loop":
            return self._loop(node, around)
        parts = [self._node(part, around) for part in node.parts]
        below = _sum([part.work for part in parts])
        if node.kind == "call":
            return self._call(node, parts, below, around)
        size = _sum([*(part.size for part in parts), {"": _value_bytes}])
        if node.kind == "list":
            largest = max((_at_most(part.size, around.tops) for part in parts), default=0)
            return Bound(size, _sum([below, size]), len(parts), largest)
        return _bound(size, _sum([below, size]), around)

    def _call(self, node: Node, parts: list[Bound], below: Form, around: Around) -> Bound:
        whole = _sum([*(part.size for part in parts), {"": _value_bytes}])
        if node.name == "replace" and len(parts) >= 3:
            whole = _times(whole, _plus(_raw(node.parts[2], parts[2].size), 1), around.tops)
        elif node.name == "join" and len(parts) == 2:
            # A separator stands between elements, so that it counts once for each and not once for each byte.
            between = _scale(_raw(node.parts[1], parts[1].size), parts[0].count)
            whole = _sum([parts[0].size, between, {"": _value_bytes}])
        elif node.name == "format":
            whole = _plus(whole, _number_chars * max(1, len(node.parts[-1].parts)))
        elif node.name == "split":
            return self._split(node, parts, below, around)
        work = _sum([below, whole])
        if node.name in _indexes and set(parts[0].size) <= {""}:
            return _bound({"": parts[0].largest}, work, around)
        if node.name == "items":
            return Bound(whole, work, parts[0].count, parts[0].largest)
        if node.name in ("_+_", "_?_:_"):
            return Bound(whole, work, sum(part.count for part in parts), max(part.largest for part in parts))
        return _bound({"": _value_bytes} if node.name in _small else whole, work, around)

    def _split(self, node: Node, parts: list[Bound], below: Form, around: Around) -> Bound:
        size = parts[0].size
        top = _at_most(size, around.tops)
        separator = node.parts[1].name if node.parts[1].kind == "text" else ""
        found = self._read(node.parts[0])
        count = top
        if separator:
            count = (found.text.count(separator) if found else top // len(separator.encode())) + 1
        return Bound(size, _sum([below, size, {"": _split_bytes * count}]), count, top)

    def _loop(self, node: Node, around: Around) -> Bound:
        over, start, condition, step, result = node.parts
        *elements, total = node.variables
        span, first = self._node(over, around), self._node(start, around)
        turns = min(turns_max, span.count)
        inner = Around(
            {**around.names, **{name: {name: 1} for name in elements}, total: {"": 0}},
            {**around.tops, **dict.fromkeys(elements, span.largest)},
            max(1, around.turns * turns),
        )
        steps = [self._node(part, inner) for part in (condition, step)]
        spent = _over(_sum([each.work for each in steps]), elements, span.size, turns)
        grown = _sum([first.size, _over(steps[1].size, elements, span.size, turns)])
        last = self._node(result, Around({**around.names, total: grown}, around.tops, around.turns))
        work = _sum([span.work, first.work, spent, last.work])
        if start.kind != "list":
            return Bound(last.size, work, last.count, last.largest)
        # All loops together take at most turns_max turns, however many there are.
        copies = _append_bytes * turns * min(turns, max(1, turns_max // around.turns))
        largest = _at_most(steps[1].size, inner.tops)
        return Bound(last.size, _plus(work, copies), turns, largest)


def _bound(size: Form, work: Form, around: Around) -> Bound:
    top = _at_most(size, around.tops)
    return Bound(size, work, top // _least_bytes, top)


def _over(form: Form, elements: list[str], span: Form, turns: int) -> Form:
    """The sum over all turns: what is linear in the elements adds up to the whole list, the rest is repeated."""
    fixed = {name: n for name, n in form.items() if name not in elements}
    linear = sum(form.get(name, 0) for name in elements)
    return _sum([_scale(fixed, turns), _scale(span, linear)])


def _raw(node: Node, size: Form) -> Form:
    return {"": node.size} if node.kind == "text" else size


def _sum(forms: list[Form]) -> Form:
    total: Form = {}
    for form in forms:
        for name, n in form.items():
            total[name] = total.get(name, 0) + n
    return total


def _plus(form: Form, n: int) -> Form:
    return _sum([form, {"": n}])


def _scale(form: Form, n: int) -> Form:
    return {name: each * n for name, each in form.items()} if n else {}


def _times(left: Form, right: Form, tops: dict[str, int]) -> Form:
    if set(left) <= {""}:
        return _scale(right, left.get("", 0))
    if set(right) <= {""}:
        return _scale(left, right.get("", 0))
    return {"": _at_most(left, tops) * _at_most(right, tops)}


def _at_most(form: Form, tops: dict[str, int]) -> int:
    return sum(n * (tops.get(name, 0) if name else 1) for name, n in form.items())
