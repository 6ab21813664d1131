"""Writes verify.py: the offline verifier as one file, joined from the modules that the product itself runs."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from types import ModuleType

from engine import canonical, errors, limits
from engine.gate import reducer
from engine.ledger import (
    command,
    container,
    ed25519,
    entries,
    layout,
    notes,
    statement,
    story,
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
    statement,
    story,
    verify,
    command,
)

_head = '''#!/usr/bin/env python3
"""Verifies a Twokeys evidence bundle offline:  python verify.py BUNDLE.zip --trust policy.txt

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
    with open(path, "rb") as file:
        return file.read(container_bytes_max + 1)


if __name__ == "__main__":
    sys.exit(run_verifier(sys.argv[1:], _read_file, sys.stdout.write))
"""


def one_file() -> str:
    """The text of verify.py."""
    outside: set[str] = {"import sys"}
    taken: dict[str, str] = {}
    bodies = []
    digest = hashlib.sha256()
    for module in PARTS:
        source = inspect.getsource(module)
        digest.update(source.encode())
        body, imports = _without_imports(module.__name__, source)
        outside |= imports
        for name in _top_names(source):
            if name in taken:
                raise SystemExit(f"{name} stands in {taken[name]} and in {module.__name__}; rename one")
            taken[name] = module.__name__
        rule = "# " + "=" * 18
        bodies.append(f"\n\n{rule} {module.__name__} {'=' * (98 - len(module.__name__))}\n\n{body}")
    head = _head.format(digest=digest.hexdigest())
    return head + "\n".join(sorted(outside, key=_import_order)) + "\n" + "".join(bodies) + _tail


def _without_imports(name: str, source: str) -> tuple[str, set[str]]:
    """The module's text without its top imports, and those of the imports that come from outside the product."""
    lines = source.splitlines()
    outside: set[str] = set()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        inside = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("engine.")
        if isinstance(node, ast.ImportFrom):
            known = [module.__name__ for module in PARTS]
            if any(alias.asname for alias in node.names) or (inside and node.module not in known):
                raise SystemExit(f"{name}, line {node.lineno}: import the name itself, from a part of the verifier")
        elif any(alias.name.startswith("engine") for alias in node.names):
            raise SystemExit(f"{name}, line {node.lineno}: import names, not the module")
        if not inside and ast.unparse(node) != "from __future__ import annotations":
            outside.add(ast.unparse(node))
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    return "\n".join(lines).strip() + "\n", outside


def _top_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return names


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


if __name__ == "__main__":
    sys.stdout.write(one_file())
