"""The function host: a process that runs one author's workflow over journals sent to it, one JSON line in and one JSON line out.

It is started by exec with an empty environment and no path but the standard library's; the author's code comes as text
over the pipe. After `seal` nothing can be opened, imported or started any more. Each turn runs in fresh modules, so that
nothing of a turn is left for the next one but the index of the journal.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import json
import os
import resource
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import Context as Variables
from typing import Any, BinaryIO

from engine.program import function, function_guard
from engine.program.function import Index, Mismatch, Turn
from engine.program.function_code import with_order_guard
from engine.program.function_commands import to_value
from engine.program.function_guard import ALLOWED, MEMBERS, NAMES, SDK, Forbidden, advice, forbid

runs_max = 256
items_max = 400_000  # of all runs together; the oldest are forgotten and sent again when they are needed
_clone_newnet = 0x40000000
_clone_newuser = 0x10000000
_preload = ("_strptime", "encodings.idna", "stringprep", "encodings.ascii", "encodings.latin_1", "encodings.utf_16")
_inner = {"_strptime"}  # datetime imports it in the name of whoever calls strptime
_kept = {"hash", "globals", "vars", "locals"}  # dataclasses and enum need hash; the others see only the author's own
_patched = {
    "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time sleep localtime".split(),
    "os": ["urandom", "getrandom", "environ"],
}
_closed = (
    "open", "socket.", "subprocess.", "os.", "shutil.", "ctypes.", "mmap.", "_thread.", "time.sleep", "gc.", "pty.",
    "fcntl.", "signal.pthread_kill", "sys.addaudithook", "sys.settrace", "sys.setprofile",
)  # fmt: skip


class Modules:
    """The author's modules and what they may import, made anew for each turn."""

    def __init__(self, codes: dict[str, types.CodeType], packages: frozenset[str], violations: list[str]) -> None:
        self._codes, self._packages, self._violations = codes, packages, violations
        self._own: dict[str, types.ModuleType] = {}
        self._faces: dict[str, types.ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import, "__ordered__": self._ordered}
        for name in NAMES.keys() - _kept - {"__import__"}:
            self._builtins[name] = self._refusing(name, NAMES[name])

    def load(self, name: str) -> types.ModuleType:
        """One of the author's modules, its packages first."""
        if name in self._own:
            return self._own[name]
        parent, _, last = name.rpartition(".")
        if parent in self._codes:
            self.load(parent)
        module = types.ModuleType(name)
        module.__dict__["__builtins__"] = self._builtins
        module.__package__ = name if name in self._packages else parent
        self._own[name] = sys.modules[name] = module
        exec(self._codes[name], module.__dict__)  # noqa: S102 - the one place where published code runs
        if parent in self._own:
            setattr(self._own[parent], last, module)
        return module

    def close(self) -> None:
        """Forget them."""
        for name in self._own:
            sys.modules.pop(name, None)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        if level:
            above = str((globals or {}).get("__package__") or "").split(".")
            name = ".".join([*above[: len(above) - level + 1], *([name] if name else [])])
        if name in self._codes or any(each.startswith(f"{name}.") for each in self._codes):
            return self._import_own(name, fromlist)
        if name in _inner:
            return sys.modules[name]
        if name not in ALLOWED:
            self._forbid(f"import of {name}", advice(name))
        face = self._face(name)
        return face if fromlist else self._face(name.partition(".")[0])

    def _import_own(self, name: str, fromlist: Any) -> types.ModuleType:
        if name not in self._codes:
            module = self._own.setdefault(name, types.ModuleType(name))  # a folder without __init__.py
        else:
            module = self.load(name)
        for each in fromlist or ():
            if f"{name}.{each}" in self._codes:
                setattr(module, each, self.load(f"{name}.{each}"))
        if fromlist or "." not in name:
            return module
        parent, _, last = name.rpartition(".")
        setattr(self._import_own(parent, (last,)), last, module)
        return self._import_own(name.partition(".")[0], ("",))

    def _face(self, name: str) -> types.ModuleType:
        """The public names of an allowed module, without the modules that it uses itself, and without what differs."""
        if name in self._faces:
            return self._faces[name]
        face = self._faces[name] = types.ModuleType(name)
        for each, value in _public(name):
            why = MEMBERS.get((name, each))
            setattr(face, each, self._refusing(f"{name}.{each}", why) if why else value)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(self._face(parent), last, face)
        elif f"{name}.abc" in ALLOWED:
            self._face(f"{name}.abc")
        return face

    def _refusing(self, what: str, why: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            self._forbid(what, why)

        return refuse

    def _ordered(self, value: Any) -> Any:
        try:
            return function_guard.ordered(value)
        except Forbidden as error:
            self._violations.append(str(error))
            raise

    def _forbid(self, what: str, why: str) -> None:
        self._violations.append(f"{what}: {why}")
        forbid(what, why)


def _public(name: str) -> Iterator[tuple[str, Any]]:
    if name == SDK:
        for each in ("workflow", "Context", "JoinSet", "Taken", "Failed", "InvokeFailed"):
            yield each, getattr(function, each)
        return
    if name == "datetime":
        yield from (("date", function_guard.Date), ("datetime", function_guard.Datetime))
    module = sys.modules[name]
    for each in getattr(module, "__all__", dir(module)):
        value = getattr(module, each, None)
        is_given = name == "datetime" and each in ("date", "datetime")
        if not each.startswith("_") and not isinstance(value, types.ModuleType) and not is_given:
            yield each, value


class Host:
    """One component, and the indexes of its runs that were sent so far."""

    def __init__(self) -> None:
        self._codes: dict[str, types.CodeType] = {}
        self._packages: frozenset[str] = frozenset()
        self._entry = ("", "")
        self._runs: OrderedDict[int, Index] = OrderedDict()
        self.violations: list[str] = []

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """What follows from one order."""
        try:
            return self._load(order["load"]) if "load" in order else self._turn(order["turn"])
        except Forbidden as error:
            return {"refused": str(error) + _place(error)}
        except SyntaxError as error:
            return {"refused": f"not Python: {error}"}

    def _load(self, load: dict[str, Any]) -> dict[str, Any]:
        """Compile, and run the modules once: what cannot be loaded is refused before a run needs it."""
        for name, path, source in load["files"]:
            tree = with_order_guard(source, function.PLACE + path)
            self._codes[name] = compile(tree, function.PLACE + path, "exec", dont_inherit=True)
        self._packages = frozenset(name for name, path, _ in load["files"] if path.endswith("__init__.py"))
        self._entry = (load["module"], load["function"])
        modules = Modules(self._codes, self._packages, self.violations)
        try:
            main = getattr(modules.load(self._entry[0]), self._entry[1], None)
        except (Exception, SystemExit) as error:
            return {"refused": f"{type(error).__name__}: {error}{_place(error)}"}
        finally:
            modules.close()
        if not callable(main):
            return {"refused": f"{self._entry[0]} has no function {self._entry[1]}"}
        return {"refused": "; ".join(self.violations)} if self.violations else {"ready": sys.version.split()[0]}

    def _turn(self, turn: dict[str, Any]) -> dict[str, Any]:
        index = self._runs.get(turn["run"])
        if index is None or index.count != turn["from"]:
            if turn["from"]:
                return {"behind": True}
            index = Index()
        self._runs[turn["run"]] = index.take(turn["items"])
        self._runs.move_to_end(turn["run"])
        self._forget()
        self.violations.clear()
        found = Variables().run(self._replay, index, turn["now"], bytes.fromhex(turn["entropy"]))
        if self.violations:
            return {"refused": self.violations[0]}
        if isinstance(found, Mismatch):
            return {"mismatch": [found.sequence, found.expected, found.got]}
        waits = None if found.waits is None else to_value(found.waits)
        return {"commands": [to_value(each) for each in found.commands], "waits": waits}

    def _replay(self, index: Index, now: int, entropy: bytes) -> Turn | Mismatch:
        modules = Modules(self._codes, self._packages, self.violations)
        try:
            module, name = self._entry

            def main(context: Any, given: Any) -> Any:
                return getattr(modules.load(module), name)(context, given)

            return function.replay(main, index, now=now, entropy=entropy)
        finally:
            modules.close()

    def _forget(self) -> None:
        held = sum(index.count for index in self._runs.values())
        while len(self._runs) > 1 and (len(self._runs) > runs_max or held > items_max):
            held -= self._runs.popitem(last=False)[1].count


def _place(error: BaseException) -> str:
    """Where in the author's files it happened."""
    place, traceback = "", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name.startswith(function.PLACE):
            place = f" ({name.removeprefix(function.PLACE)}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


# --- the process ----------------------------------------------------------------------------------------------------------


def private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes for orders and answers alone: whatever else reads or writes the standard streams meets nothing."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    return orders, answers


def confine(memory_bytes: int) -> None:
    """Give up what a workflow never needs: more memory, files, processes, and the network where the kernel lets us."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if libc.unshare(_clone_newnet) != 0:
            libc.unshare(_clone_newuser | _clone_newnet)
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),  # what is open stays open
    ):
        resource.setrlimit(limit, (value, value))


def preload() -> None:
    """Import what authors may import, while that is still possible."""
    for name in (*(ALLOWED - {SDK}), *_preload):
        importlib.import_module(name)


def seal() -> None:
    """From here on nothing can be imported, opened or started, by whatever way the author's code would reach for it."""
    sys.path[:], sys.meta_path[:], sys.path_hooks[:] = [], [], []
    for name, members in _patched.items():
        for member in members:
            if hasattr(sys.modules.get(name), member):
                setattr(sys.modules[name], member, _patch(f"{name}.{member}", advice(name)))
    sys.addaudithook(_audit)


def _patch(what: str, why: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        _host.violations.append(f"{what}: {why}")
        forbid(what, why)

    return refuse


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event.startswith(_closed):
        why = "a workflow changes and reads nothing outside by itself"
        _host.violations.append(f"{event}: {why}")
        forbid(event, why)


_host = Host()


def main(memory_bytes: int) -> None:
    """Answer until the input ends."""
    orders, answers = private_pipes()
    preload()
    confine(memory_bytes)
    seal()
    for line in orders:
        order = json.loads(line)
        try:
            reply = _host.answer(order)
        except MemoryError:
            reply = {"exhausted": f"more than {memory_bytes} bytes of memory"}
        rest = memoryview(json.dumps({"id": order["id"], **reply}, separators=(",", ":")).encode("ascii") + b"\n")
        while rest:
            rest = rest[answers.write(rest) :]
