"""The one door to CEL: compiles, judges and evaluates an expression, and raises ExprError for everything that is not a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NoReturn

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from engine.errors import AuthorError
from engine.limits import (
    expression_bytes_max,
    expression_input_bytes_max,
    expression_loops_nested_max,
    int_max,
)
from engine.program.checked import Node, Tree, read_tree, walk
from engine.program.growth import Growth, Read, may_grow, work_bytes_max

ROOTS = ("input", "state", "steps", "run", "trigger", "each")
step_bytes_max = 2 * expression_input_bytes_max
value_depth_max = 10  # what an expression reads or gives; a payload file spends three levels of its 32 on a map
_zoned = re.compile(r"get(FullYear|Month|Date|DayOf(Month|Week|Year)|Hours|Minutes|Seconds|Milliseconds)")
_offset = re.compile(r"UTC|[+-][0-9]{2}:[0-9]{2}")
_error = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): ([^\n]*)")
_overload = re.compile(r"found no matching overload for '_?([^']*?)_?' applied to '(.*)'")
_undeclared = re.compile(r"undeclared reference to '([^'.]*)")
_syntax = re.compile(r"Syntax error: .*?input '(.*?)'(?: expecting.*)?$")
_no_key = re.compile(r'Key not found in map : (".*"|.*)$', re.DOTALL)
_code = re.compile(r"^[A-Z_]+: ")
_optional = "an optional; end it with .orValue(...)"
_not_values = {
    "optional_type": _optional,
    "DOUBLE": "a fraction; make it text with string(...)",
    "TIMESTAMP": "a time; make it text with string(...)",
    "DURATION": "a duration; make it text with string(...)",
    "BYTES": "bytes; make them text with string(...)",
    "TYPE": "a type; that is not a value",
}
_kinds = {"float": "DOUBLE", "datetime": "TIMESTAMP", "timedelta": "DURATION", "bytearray": "BYTES", "Type": "TYPE"}


class ExprError(AuthorError):
    """The author must act: an expression does not compile, or gave no value; line and column are inside it, 0 when unknown."""

    code = "expression_error"

    def __init__(self, message: str, line: int = 0, col: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.col = col


@dataclass(frozen=True, slots=True)
class Reference:
    """One name that an expression reads: a root and as much of the path below it as is written out."""

    root: str
    path: tuple[str, ...]
    line: int
    col: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression, ready to be evaluated any number of times."""

    source: str
    kind: str  # the static type as CEL writes it: STRING, BOOL, INT, DYN, LIST<...>
    references: tuple[Reference, ...]
    program: Any
    grows: Node | None  # what must be bounded against the input first

    def evaluate(self, scope: Scope) -> Any:
        """Its value: None, bool, an exact integer, str, list, or a dict with sorted text keys; anything else is an error."""
        value = _exact(self._run(scope).plain_value(), 0)
        scope.spend(admit(value))
        return value

    def holds(self, scope: Scope) -> bool:
        """A condition: true only for exactly true; whatever is not a bool is an error."""
        result = self._run(scope)
        if result.type() != cel.Type.BOOL:
            raise ExprError(f"a condition is true or false; this is {_kind_name(result.type())}")
        return result.value() is True

    def _run(self, scope: Scope) -> Any:
        if self.grows is not None:
            work = Growth(scope.read, _path, frozenset(ROOTS)).work(self.grows)
            if work > work_bytes_max:
                raise ExprError(f"this could build {work} bytes from its input; at most {work_bytes_max}")
        try:
            result = self.program.eval(scope.activation)
        except RuntimeError as error:
            raise ExprError(_run_message(str(error))) from None
        # An evaluation error is a value whose plain form is a non-empty text: it must never leave as one.
        if result.type() == cel.Type.ERROR:
            try:
                detail = str(result.plain_value())
            except TypeError:
                detail = f"the result is {_optional}"
            raise ExprError(_run_message(detail))
        return result


class Scope:
    """What expressions may read, bound once and used by all expressions of a step."""

    __slots__ = ("_roots", "_spent", "activation")

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots
        self._spent = 0
        self.activation = _environment.Activation({name: roots.get(name, {}) for name in ROOTS})

    def spend(self, size: int) -> None:
        """Bound what all expressions of one step give together."""
        self._spent += size
        if self._spent > step_bytes_max:
            raise ExprError(f"the expressions of one step give more than {step_bytes_max} bytes")

    def read(self, root: str, path: tuple[str, ...]) -> Read:
        """What a reference reads, measured; nothing when nothing is there."""
        value: Any = self._roots.get(root)
        for name in path:
            value = value.get(name) if type(value) is dict else None
        if type(value) is list:
            sizes = [admit(item, -2) for item in value]
        elif type(value) is dict:
            sizes = [8 + len(name.encode()) + admit(item, -2) for name, item in value.items()]
        else:
            return Read(admit(value, -2), 0, 0, value if type(value) is str else "")
        return Read(4 + sum(sizes), len(sizes), max(sizes, default=0), "")


def admit(value: Any, depth: int = 0) -> int:
    """The size of a value that expressions may read; ExprError for one they would misread.

    Exact types only, because a subclass of int or str may say one thing and mean another. The NUL character is
    refused because the engine behind CEL silently cuts a text at it.
    """
    kind = type(value)
    if kind is str:
        return 4 + _admit_text(value)
    if kind is int:
        if abs(value) > int_max:
            raise ExprError("an integer is below 2^53 in size; pass larger numbers as text")
        return 9
    if value is None or kind is bool:
        return 4
    if kind is not dict and kind is not list:
        name = "a fraction; pass it as text" if kind is float else kind.__name__
        raise ExprError(f"values are text, whole numbers, true, false, null, lists and maps; this is {name}")
    if depth >= value_depth_max:
        raise ExprError(f"nested deeper than {value_depth_max}")
    if kind is list:
        return 4 + sum(admit(item, depth + 1) for item in value)
    size = 4
    for name, item in value.items():
        if type(name) is not str:
            raise ExprError("a map key is text")
        size += 4 + _admit_text(name) + admit(item, depth + 1)
    return size


def _admit_text(text: str) -> int:
    if "\x00" in text:
        raise ExprError("text holds the character NUL")
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise ExprError("text holds a lone surrogate") from None


def check_size(size: int) -> None:
    """Refuse more data than expressions may read at once."""
    if size > expression_input_bytes_max:
        raise ExprError(f"input, state and results together are {size} bytes; at most {expression_input_bytes_max}")


@lru_cache(maxsize=8192)
def compile_expression(source: str) -> Expression:
    """Compile and judge one expression; an ExprError carries the line and column inside the source."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > expression_bytes_max:
        raise ExprError(f"the expression is {size} bytes; at most {expression_bytes_max}", 1, 1)
    try:
        program = _environment.compile(source)
        serialized = program.serialize()
    except (RuntimeError, UnicodeEncodeError) as error:
        _refuse(str(error), source)
    tree = read_tree(serialized, source)
    _check_loops(tree, tree.root, 0)
    _check_zones(tree)
    kind = repr(program.return_type())
    if refused := _not_values.get(kind.split("<")[0]):
        raise ExprError(f"the result is {refused}", 1, 1)
    grows = tree.root if may_grow(tree.root) else None
    return Expression(source, kind, tuple(_references(tree, tree.root)), program, grows)


def compile_condition(source: str) -> Expression:
    """The same for a condition: its static type is bool, or is known only at run time."""
    expression = compile_expression(source)
    if expression.kind not in ("BOOL", "DYN"):
        raise ExprError(f"a condition is true or false; this is {expression.kind.lower()}", 1, 1)
    return expression


# --- judging ------------------------------------------------------------------------------------------------------


def _check_loops(tree: Tree, node: Node, nested: int) -> None:
    if node.kind == "loop":
        line, col = tree.place(node)
        if nested >= expression_loops_nested_max:
            raise ExprError(f"loops stand at most {expression_loops_nested_max} deep in each other", line, col)
        for name in node.variables[:-1]:
            if name in ROOTS:
                raise ExprError(f"a loop variable may not be called {name!r}", line, col)
        # A map is walked in an order that changes from process to process; what is dyn may be a map.
        if node.parts[0].id not in tree.lists:
            raise ExprError("this loop may walk a map, whose order is not fixed; write items(...) around it", line, col)
        _check_loops(tree, node.parts[0], nested)
        for part in node.parts[1:]:
            _check_loops(tree, part, nested + 1)
        return
    for part in node.parts:
        _check_loops(tree, part, nested)


def _check_zones(tree: Tree) -> None:
    for node in walk(tree.root):
        if node.kind == "call" and _zoned.fullmatch(node.name) and len(node.parts) == 2:
            zone = node.parts[1]
            # Named zones come from the machine's own table: two workers may not agree on one.
            if zone.kind != "text" or not _offset.fullmatch(zone.name):
                message = "a named time zone differs from machine to machine; write UTC or an offset as '+02:00'"
                raise ExprError(message, *tree.place(zone))


def _references(tree: Tree, node: Node) -> list[Reference]:
    found = _path(node)
    if found and found[0] in ROOTS:
        return [Reference(found[0], found[1], *_start(tree, node))]
    return [reference for part in node.parts for reference in _references(tree, part)]


def _path(node: Node) -> tuple[str, tuple[str, ...]] | None:
    if node.kind == "ident":
        return node.name, ()
    if node.kind == "select":
        below = _path(node.parts[0])
        return (below[0], (*below[1], node.name)) if below else None
    if node.kind == "call" and node.name in ("_[_]", "_?._", "_[?_]") and node.parts[1].kind == "text":
        below = _path(node.parts[0])
        return (below[0], (*below[1], node.parts[1].name)) if below else None
    return None


def _start(tree: Tree, node: Node) -> tuple[int, int]:
    while node.parts:
        node = node.parts[0]
    return tree.place(node)


# --- messages -----------------------------------------------------------------------------------------------------


def _refuse(text: str, source: str) -> NoReturn:
    match = _error.search(text)
    if not match:
        if "recursion limit" in text:
            raise ExprError("the expression is nested deeper than 32", 1, 1)
        raise ExprError(_code.sub("", text).split("\n")[0].removesuffix(" [INVALID_ARGUMENT]"), 1, 1)
    line, col, message = max(1, int(match[1])), max(1, int(match[2])), match[3].removesuffix(" [INVALID_ARGUMENT]")
    if "recursion depth" in message:
        raise ExprError("the expression is nested deeper than 32", line, col)
    if found := _syntax.search(message):
        where = "the expression ends too early" if found[1] == "<EOF>" else f"not expected here: {found[1]}"
        raise ExprError(f"syntax error: {where}", line, col)
    if found := _undeclared.search(message):
        _refuse_name(found[1], source, line, col)
    if found := _overload.search(message):
        message = f"{found[1]!r} does not work on {found[2]}"
    raise ExprError(message, line, col)


def _refuse_name(name: str, source: str, line: int, col: int) -> NoReturn:
    text = source.split("\n")[line - 1]
    if text[col - 1 : col] == "(" and not text[: col - 1].endswith(" "):
        raise ExprError(f"no function {name!r} takes these arguments", line, max(1, col - len(name)))
    near = get_close_matches(name, ROOTS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    # The column of `foo.x` is that of its dot; people look for the name.
    at = text.rfind(name, 0, col + len(name))
    raise ExprError(f"unknown name {name!r}{hint} (known: {', '.join(ROOTS)})", line, at + 1 if at >= 0 else col)


def _run_message(text: str) -> str:
    if "Iteration budget exceeded" in text:
        return "the loops of this expression take more than 10000 turns"
    if found := _no_key.search(text):
        return f"there is no {found[1]}"
    return _code.sub("", text).split("\n")[0]


def _kind_name(kind: Any) -> str:
    return repr(kind).split("<")[0].lower()


# --- values -------------------------------------------------------------------------------------------------------


def _exact(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        if "\x00" in value:
            raise ExprError("the result holds the character NUL")
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if abs(value) > int_max:
            raise ExprError("the result is an integer beyond 2^53; make it text with string(...)")
        return value
    if kind is not list and kind is not dict:
        raise ExprError(f"the result is {_not_values.get(_kinds.get(kind.__name__, ''), kind.__name__)}")
    if depth >= value_depth_max:
        raise ExprError(f"the result is nested deeper than {value_depth_max}")
    if kind is list:
        return [_exact(item, depth + 1) for item in value]
    if any(type(name) is not str for name in value):
        raise ExprError("the result is a map with a key that is not text")
    # Maps leave CEL in an order that changes from process to process.
    return {name: _exact(value[name], depth + 1) for name in sorted(value)}


def _items(value: Any) -> list[Any]:
    if type(value) is list:
        return value
    if type(value) is not dict or any(type(name) is not str for name in value):
        raise TypeError("items(...) takes a list or a map with text keys")
    return [{"key": name, "value": value[name]} for name in sorted(value)]


def _new_environment() -> Any:
    kind = cel.Type
    # In an extension, because a function with a dyn parameter given to NewEnv directly compiles and then is not found.
    ours = cel.CelExtension(
        "twokeys",
        [
            cel.FunctionDecl(
                "items",
                [cel.Overload("items_dyn", return_type=kind.List(kind.DYN), parameters=[kind.DYN], impl=_items)],
            )
        ],
    )
    return cel.NewEnv(
        variables={name: kind.Map(kind.STRING, kind.DYN) for name in ROOTS},
        extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional(), ours],
    )


_environment = _new_environment()
