"""Writes every case as a folder for anybody's verifier: `python -m tests.bundles.suite DIRECTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bundles.cases import CASES, VALID, Case
from tests.engine.ledger.factory import trust_text


def write_case(directory: Path, name: str, given: Case) -> Path:
    """`<case>_fail/` or `<case>/` with the bundle, the pinned policy, the arguments and what has to come out."""
    folder = directory / (name if given.exit == 0 else f"{name}_fail")
    folder.mkdir(parents=True)
    (folder / "bundle.zip").write_bytes(given.bundle)
    trust = [] if given.trust == "none" else ["--trust", "policy.txt"]
    if trust:
        (folder / "policy.txt").write_text(given.trust or trust_text(), encoding="utf-8")
    expected = {"arguments": ["bundle.zip", *trust, *given.arguments], "exit": given.exit, "code": given.code}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for name, make in sorted({**CASES, **VALID}.items()):
        write_case(target, name, make())
