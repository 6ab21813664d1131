"""The code of a Python workflow as published: its files, the digest that runs are pinned to, and every fault at its line.

The digest covers the workflow's own module and every module of the author that it imports, however far away; files that
nothing imports are no part of it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.canonical import decode, encode, tagged
from engine.errors import AuthorError, CallerError, OperatorError
from engine.program.faults import DefinitionInvalid, Fault
from engine.program.function_guard import ALLOWED, MEMBERS, NAMES, REACHES, SDK, advice, unordered

SCHEMA = "twokeys.component/v1"
files_max = 100
file_bytes_max = 262_144
component_bytes_max = 1_048_576
_path = re.compile(r"([a-z_][a-z0-9_]*/)*[a-z_][a-z0-9_]*\.py", re.IGNORECASE)
_ours = frozenset({SDK, "engine", "governance", "__main__", "__init__"})
_sets = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_goes_through = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "next", "dict", "reversed"})
_goes_through_methods = frozenset({"join", "extend", "fromkeys"})
_any_order = frozenset({"sorted", "set", "frozenset", "sum", "min", "max", "any", "all", "len"})


class CodeChanged(OperatorError):
    """The author must act: the run is pinned to other code than is here; it is held, and nothing of it is lost."""

    code = "code_changed"


@dataclass(frozen=True)
class Component:
    """The code of one workflow: complete, and nothing else."""

    module: str
    function: str
    files: tuple[tuple[str, str], ...]  # path and source, sorted

    @cached_property
    def body(self) -> bytes:
        """The bytes that are stored and hashed."""
        return encode(
            {"schema": SCHEMA, "module": self.module, "function": self.function, "files": dict(self.files)},
        )

    @cached_property
    def digest(self) -> bytes:
        """What a run is pinned to."""
        return tagged("twokeys/component/v1", self.body)

    @property
    def named(self) -> str:
        """The digest as journals and people see it."""
        return f"sha256:{self.digest.hex()}"

    @property
    def modules(self) -> dict[str, str]:
        """Module name to path."""
        return {module_of(path): path for path, _ in self.files}


def component_from(body: bytes) -> Component:
    """The component that stored bytes hold; anything but the exact form is refused."""
    value = decode(body)
    if type(value) is not dict or set(value) != {"schema", "module", "function", "files"} or value["schema"] != SCHEMA:
        raise CallerError("not a component", code="not_a_component")
    files = value["files"]
    if type(files) is not dict or not all(type(text) is str and _path.fullmatch(path) for path, text in files.items()):
        raise CallerError("files of a component are paths and sources", code="not_a_component")
    found = Component(value["module"], value["function"], tuple(sorted(files.items())))
    if type(found.function) is not str or found.module not in found.modules:
        raise CallerError("a component names one of its modules", code="not_a_component")
    return found


def check_pinned(pinned: str, component: Component) -> None:
    """A run never continues on different code."""
    if pinned != component.named:
        raise CodeChanged(
            f"the run is pinned to code {pinned}, and this is {component.named}; it is held and loses nothing",
            next_step="`twokeys run migrate RUN` continues it when its journal replays the same under the new code",
        )


def module_of(path: str) -> str:
    """The module that a file is."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def component_of(files: Mapping[str, bytes], entry: str = "") -> Component:
    """Read an author's files. `entry` is `file.py:function`, or nothing when there is exactly one @workflow.

    Raises DefinitionInvalid with every fault of every file that takes part.
    """
    sources = _read(files)
    trees, faults = {}, []
    for path, source in sources.items():
        try:
            trees[path] = ast.parse(source, path)
        except (SyntaxError, ValueError) as error:
            line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
            faults.append(Fault(path, line, column, "", f"not Python: {getattr(error, 'msg', error)}"))
    if faults:
        raise DefinitionInvalid(faults)
    path, function = _entry(trees, entry)
    closure = _closure(trees, path)
    for each in closure:
        faults += check_source(each, trees[each], {module_of(name) for name in trees})
    if faults:
        raise DefinitionInvalid(faults)
    return Component(module_of(path), function, tuple((each, sources[each]) for each in sorted(closure)))


def _read(files: Mapping[str, bytes]) -> dict[str, str]:
    if not files or len(files) > files_max or sum(map(len, files.values())) > component_bytes_max:
        raise AuthorError(f"a workflow is 1 to {files_max} files of {component_bytes_max} bytes together")
    sources, faults = {}, []
    for path, data in sorted(files.items()):
        top = path.partition("/")[0].removesuffix(".py")
        if len(path) > 200 or not _path.fullmatch(path):
            faults.append(Fault(path[:100], 1, 1, "", "not the path of a module: letters, digits and _, then .py"))
        elif top in sys.stdlib_module_names or top in _ours:
            faults.append(Fault(path, 1, 1, "", f"{top} is the name of a module that is there already; choose another"))
        elif len(data) > file_bytes_max:
            faults.append(Fault(path, 1, 1, "", f"{len(data)} bytes; at most {file_bytes_max}"))
        try:
            sources[path] = data.decode("utf-8")
        except UnicodeDecodeError as error:
            faults.append(Fault(path, data.count(b"\n", 0, error.start) + 1, 1, "", "not UTF-8"))
    if faults:
        raise DefinitionInvalid(faults)
    return sources


# --- entry and closure ----------------------------------------------------------------------------------------------------


def _entry(trees: Mapping[str, ast.Module], entry: str) -> tuple[str, str]:
    marked = {
        f"{path}:{node.name}": node
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and _is_marked(node, tree)
    }
    if not entry and len(marked) != 1:
        named = ", ".join(marked) or "there is none"
        raise AuthorError(f"name the workflow as file.py:function; functions marked @workflow: {named}")
    chosen = entry or next(iter(marked))
    node = marked.get(chosen)
    path, _, name = chosen.partition(":")
    if node is None:
        raise AuthorError(f"{chosen!r} is no function marked @workflow (there are: {', '.join(marked) or 'none'})")
    arguments = node.args
    is_plain = len(arguments.posonlyargs + arguments.args) == 2 and not (
        arguments.vararg or arguments.kwonlyargs or arguments.kwarg
    )
    if not isinstance(node, ast.AsyncFunctionDef) or not is_plain:
        where = Fault(path, node.lineno, node.col_offset + 1, "", "a workflow is `async def name(ctx, input)`")
        raise DefinitionInvalid([where])
    return path, name


def _is_marked(node: ast.AsyncFunctionDef | ast.FunctionDef, tree: ast.Module) -> bool:
    meant = _aliases(tree)
    return any(_resolved(each, meant) == f"{SDK}.workflow" for each in node.decorator_list)


def _closure(trees: Mapping[str, ast.Module], path: str) -> set[str]:
    """The files that the entry needs, packages on the way included."""
    own = {module_of(each): each for each in trees}
    found: set[str] = set()
    ways = [path]
    while ways:
        each = ways.pop()
        if each in found:
            continue
        found.add(each)
        names = {name for _, name in imported(each, trees[each], own)}
        names |= {name.rpartition(".")[0] for name in [*names, module_of(each)]}
        ways += [own[name] for name in names if name in own]
    return found


def imported(path: str, tree: ast.Module, own: Any) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of a file with the full name of the module; a name of a package that is a module of its own counts too."""
    package = module_of(path) if path.endswith("__init__.py") else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{above}.{base}".strip(".") if above else f"?{'.' * node.level}{base}"
            inner = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in own]
            if base in own or not inner:
                yield node, base
            yield from ((node, name) for name in inner)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What an imported name stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _resolved(node: ast.AST, meant: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return meant.get(node.id, "")
    if isinstance(node, ast.Attribute) and (before := _resolved(node.value, meant)):
        return f"{before}.{node.attr}"
    return ""


# --- the check ------------------------------------------------------------------------------------------------------------


def check_source(path: str, tree: ast.Module, own: Any) -> list[Fault]:
    """Everything in a file that would make a replay differ, each with its place and what to use instead."""
    return sorted(
        Fault(path, node.lineno, node.col_offset + 1, "", message) for node, message in _differs(path, tree, own)
    )


def _differs(path: str, tree: ast.Module, own: Any) -> Iterator[tuple[Any, str]]:
    meant = _aliases(tree)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | set(meant)
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for statement, name in imported(path, tree, own):
        if name not in own and name not in ALLOWED:
            yield statement, f"import of {name.lstrip('?')}: {advice(name)}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield node, "import of *: name what is meant"
        elif isinstance(node, ast.Name) and node.id in NAMES and node.id not in bound:
            yield node, f"{node.id}: {NAMES[node.id]}"
        yield from _members(node, meant)
        yield from _swallows(node)
    yield from _unawaited(tree)
    yield from _disordered(tree)


def _disordered(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    names = _set_names(tree)
    for node in ordered_places(tree):
        if _is_set(node, names):
            yield node, unordered
    for each in ast.walk(tree):
        method = each.func if isinstance(each, ast.Call) and not each.args else None
        if isinstance(method, ast.Attribute) and method.attr == "pop" and _is_set(method.value, names):
            yield each, unordered


def _members(node: ast.AST, meant: Mapping[str, str]) -> Iterator[tuple[Any, str]]:
    """Names of allowed modules that are not allowed, ways around, and changes to what is not the author's."""
    if isinstance(node, ast.Attribute):
        if node.attr in REACHES:
            yield node, f"{node.attr} reaches around the workflow's own code"
        full = _resolved(node, meant)
        if tuple(full.split(".")) in MEMBERS:
            yield node, f"{full}: {MEMBERS[tuple(full.split('.'))]}"
        if isinstance(node.ctx, ast.Store | ast.Del) and _resolved(node.value, meant).partition(".")[0] in ALLOWED:
            yield node, f"{full} belongs to everybody; a workflow changes only its own"
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            why = MEMBERS.get((*(node.module or "").split("."), alias.name))
            if why:
                yield node, f"{node.module}.{alias.name}: {why}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__del__":
        yield node, "__del__ runs at another moment in every process"


def _swallows(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """A turn ends by raising through the author's code: what catches everything would catch that."""
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
        kinds = list(node.args)
    else:
        return
    if any(kind is None or (isinstance(kind, ast.Name) and kind.id == "BaseException") for kind in kinds):
        yield node, "this would also catch the end of a turn; catch Exception or something narrower"


def _unawaited(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef) or not (function.args.posonlyargs + function.args.args):
            continue
        first = (function.args.posonlyargs + function.args.args)[0].arg
        for node in ast.walk(function):
            call = node.value if isinstance(node, ast.Expr) else None
            method = call.func if isinstance(call, ast.Call) else None
            owner = method.value if isinstance(method, ast.Attribute) else None
            if isinstance(method, ast.Attribute) and isinstance(owner, ast.Name) and owner.id == first == "ctx":
                yield node, f"ctx.{method.attr}(...) does nothing until it is awaited"


# --- sets -----------------------------------------------------------------------------------------------------------------


def ordered_places(tree: ast.AST) -> list[ast.expr]:
    """The expressions that are gone through where the order can be seen."""
    free = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _any_order
        for argument in node.args
    }
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            found.append(node.iter)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and id(node) not in free:
            found += [each.iter for each in node.generators if not each.is_async]
        elif isinstance(node, ast.Starred | ast.FormattedValue | ast.Assign):
            is_apart = not isinstance(node, ast.Assign) or any(
                isinstance(target, ast.Tuple | ast.List) for target in node.targets
            )
            if is_apart and not isinstance(getattr(node, "ctx", None), ast.Store):
                found.append(node.value)
        elif isinstance(node, ast.Call) and id(node) not in free:
            name, method = getattr(node.func, "id", ""), getattr(node.func, "attr", "")
            if name in _goes_through or name in ("str", "repr") or method in _goes_through_methods:
                found += [each for each in node.args if not isinstance(each, ast.Starred)]
    return found


def _set_names(tree: ast.Module) -> frozenset[str]:
    """Names that hold nothing but sets anywhere in the file, as far as the source says."""
    held: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    known = frozenset(name for name, is_set in held.items() if is_set)
                    held[target.id] = _is_set(node.value, known) and held.get(target.id, True)
    return frozenset(name for name, is_set in held.items() if is_set)


def _is_set(node: ast.AST | None, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and (
            _is_set(node.left, names) or _is_set(node.right, names)
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _sets:
            return _is_set(node.func.value, names)
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return False


class _Wrapped(ast.NodeTransformer):
    def __init__(self, places: list[ast.expr]) -> None:
        self._places = {id(node) for node in places}

    def visit(self, node: ast.AST) -> Any:
        """Children first, so that a wrapped place inside a wrapped place is found."""
        is_place = id(node) in self._places
        node = self.generic_visit(node)
        if not is_place or not isinstance(node, ast.expr):
            return node
        call = ast.Call(ast.Name("__ordered__", ast.Load()), [node], [])
        return ast.copy_location(call, node)


def with_order_guard(source: str, path: str) -> ast.Module:
    """The syntax tree with every ordered place wrapped in `__ordered__`, for the host to compile."""
    tree = ast.parse(source, path)
    _Wrapped(ordered_places(tree)).visit(tree)
    return ast.fix_missing_locations(tree)
