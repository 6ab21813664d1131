"""Writes verify.py: the offline verifier as one file, joined from the modules that the product itself runs."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from types import ModuleType

from engine import canonical, errors, limits
from engine.gate import reducer
from engine.ledger import (
    command,
    complete,
    container,
    doubts,
    ed25519,
    entries,
    findings,
    layout,
    lineage,
    notes,
    owed,
    period,
    receipts,
    sealed,
    statement,
    story,
    tasks,
    tree,
    trust,
    verify,
)

# In the order in which they need each other.
PARTS: tuple[ModuleType, ...] = (
    errors,
    limits,
    canonical,
    reducer,
    tree,
    ed25519,
    entries,
    container,
    notes,
    trust,
    layout,
    lineage,
    statement,
    sealed,
    complete,
    period,
    tasks,
    doubts,
    findings,
    owed,
    receipts,
    story,
    verify,
    command,
)

_head = '''#!/usr/bin/env python3
"""Verifies the evidence bundle of a Twokeys run or period offline.

    python verify.py BUNDLE.zip --trust policy.txt

Python 3.11 or newer and this one file; the package `cryptography` is used when it is there. It reads the two files that
you name and nothing else, writes to standard output, and starts no network connection. What each step checks is
described in docs/auditor.md under the same number.

Generated from the product's own modules by `make verifier`; the parts below keep their names. Do not edit.
Digest of the parts: {digest}
"""

from __future__ import annotations

'''

_tail = """

def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(container_bytes_max + 1)


if __name__ == "__main__":
    sys.exit(run_verifier(sys.argv[1:], _read_file, sys.stdout.write))
"""


def one_file() -> str:
    """The text of verify.py."""
    outside: dict[str, set[str]] = {"sys": set(), "pathlib": {"Path"}}
    taken: dict[str, str] = {}
    bodies = []
    digest = hashlib.sha256()
    for module in PARTS:
        source = inspect.getsource(module)
        digest.update(source.encode())
        body, imports = _without_imports(module.__name__, source)
        for source_module, names in imports.items():
            outside.setdefault(source_module, set()).update(names)
        for name in _top_names(source):
            if name in taken:
                raise SystemExit(f"{name} stands in {taken[name]} and in {module.__name__}; rename one")
            taken[name] = module.__name__
        rule = "# " + "=" * 18
        bodies.append(f"\n\n{rule} {module.__name__} {'=' * (98 - len(module.__name__))}\n\n{body}")
    head = _head.format(digest=digest.hexdigest())
    plain = [f"import {name}\n" for name in sorted(outside) if not outside[name]]
    named = [f"from {name} import {', '.join(sorted(outside[name]))}\n" for name in sorted(outside) if outside[name]]
    return head + "".join(plain + named) + "".join(bodies)[1:] + _tail


def _without_imports(name: str, source: str) -> tuple[str, dict[str, set[str]]]:
    """The module's text without its top imports, and what those bring in from outside the product."""
    lines = source.splitlines()
    outside: dict[str, set[str]] = {}
    known = {module.__name__ for module in PARTS}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if any(alias.asname for alias in node.names):
            raise SystemExit(f"{name}, line {node.lineno}: import the name itself")
        if isinstance(node, ast.Import):
            outside.update({alias.name: set() for alias in node.names})
        elif node.module and node.module.startswith("engine"):
            if node.module not in known:
                raise SystemExit(f"{name}, line {node.lineno}: {node.module} is no part of the verifier")
        elif node.module and node.module != "__future__":
            outside.setdefault(node.module, set()).update(alias.name for alias in node.names)
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    stray = sorted(module for module in outside if module.startswith("engine"))
    if stray:
        raise SystemExit(f"{name}: import names from {stray[0]}, not the module")
    return re.sub("\n{4,}", "\n\n\n", "\n".join(lines)).strip() + "\n", outside


def _top_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return names


if __name__ == "__main__":
    sys.stdout.write(one_file())
