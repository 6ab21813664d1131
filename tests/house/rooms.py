"""Writes the map of rooms into README.md from the first sentence of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.house import rules

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- rooms:begin -->", "<!-- rooms:end -->"


def duty(module: rules.Module) -> str:
    return rules.first_sentence(ast.get_docstring(module.tree) or "")


def room_map(root: Path) -> str:
    """One line per room in the order of imports, its modules folded away beneath it."""
    tree = rules.load(root)
    lines: list[str] = []
    for room in ("engine", *(room for step in rules.RANKS for room in step)):
        if room == "governance.settings":
            lines += block(tree, "governance", [])
        if room in tree:
            lines += block(tree, room, [name for name in sorted(tree) if name.startswith(room + ".")])
    return "\n".join(lines)


def block(tree: rules.Tree, room: str, inner: list[str]) -> list[str]:
    title = f"`{tree[room].path.removesuffix('__init__.py')}`"
    if room in ("engine", "governance"):
        return [f"\n**{title}** {duty(tree[room])}\n"]
    if not inner:
        return [f"- {title} {duty(tree[room])}"]
    rows = [
        f"  - `{tree[name].path.removeprefix(tree[room].path.removesuffix('__init__.py'))}` {duty(tree[name])}"
        for name in inner
    ]
    return [f"- {title} {duty(tree[room])}", *rows]


def written(readme: str, root: Path) -> str:
    """The README with the map of this tree between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{room_map(root)}\n\n{END}{after}"


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if BEGIN not in text or END not in text:
        print(f"README.md has no {BEGIN} and {END} to write between", file=sys.stderr)
        return 1
    readme.write_text(written(text, ROOT), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
