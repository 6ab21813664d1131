"""Changes engine/journal in every way that mutmut knows and lists the changes that no test notices: `python -m tests.spec.mutants`.

The tests that judge are the plain ones, which answer in a second or two; Hypothesis and the benchmarks stay out, because
every mutant would wait for them. A survivor that changes nothing anybody can see is listed below with its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MODULES = ("events", "history", "status", "invariants", "replay", "promises")
TESTS = (
    *(
        f"tests/engine/journal/test_{name}.py"
        for name in ("exact", "rules", "history", "status", "examples", "events", "replay")
    ),
    "tests/golden",
    "tests/spec/test_traces.py",
)
CONFIGURATION = f"""
[project]
name = "mutated"
version = "0"
[tool.pytest]
minversion = "9.2"
strict = true
pythonpath = ["."]
addopts = ["--import-mode=importlib"]
markers = ["deep: long"]
[tool.mutmut]
source_paths = ["engine"]
only_mutate = {[f"engine/journal/{name}.py" for name in MODULES]}
also_copy = ["tests"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-x", "-q", "-k", "not costs_the_same and not mebibytes"]
pytest_add_cli_args_test_selection = {list(TESTS)}
"""
# What runs once, when its module is imported, is never run changed: mutmut chooses a mutant after that. Every test of
# stored bytes and of read entries rests on what they made.
AT_IMPORT = ("events.x__plan__",)
# A piece of the line after the change, and why nobody can tell the difference.
EQUIVALENT = {
    'self._open_invokes[len(self._held)] = ""': "the dict is an ordered set; its values are never read",
    'self._open_timers[len(self._held)] = ""': "the same",
    "self._chained = None  #": "only slices a list from the start, where None and 0 are the same",
    "return -2": "any negative number says that it is no child of this run",
    "< len(self._held) else -2": "the same",
    "ev.encode_row(None)": "an empty row is refused, whatever stands for empty",
    "statuses(journal), strict=None)": "both sides come from the same journal and are as long",
    "statuses(journal), )": "the same",
    "statuses(journal), strict=False)": "the same",
    'if form == "XXstrXX"': "a shortcut past the table, whose reader and writer do the same",
    'if form == "STR"': "the same",
    'elif form == "XXintXX"': "the same",
    'elif form == "INT"': "the same",
    'line.encode("UTF-8"': "a codec's name in capitals",
    "ensure_ascii=None": "None is as false as False",
    "_ended_unstarted(None, work)": "it is called where the status is None",
}


def prepared(folder: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "out")
    shutil.copytree(ROOT / "engine", folder / "engine", ignore=ignore)
    for part in ("engine/journal", "golden", "spec"):
        shutil.copytree(ROOT / "tests" / part, folder / "tests" / part, ignore=ignore)
    (folder / "pyproject.toml").write_text(CONFIGURATION)


def change(folder: Path, mutant: str) -> tuple[str, str]:
    """The line before and after."""
    shown = subprocess.run([BIN / "mutmut", "show", mutant], cwd=folder, capture_output=True, text=True, check=True)
    lines = [line for line in shown.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    before, after = ("".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return before, after


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder)
        with (folder / "log").open("wb") as log:
            command = [BIN / "mutmut", "run", "--max-children", str(os.cpu_count() or 1)]
            code = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
        last = (folder / "log").read_text(errors="replace").replace("\r", "\n").strip().splitlines()
        sys.stdout.write("\n".join(last[-3:]) + "\n")
        if code != 0:
            return code
        listed = subprocess.run([BIN / "mutmut", "results"], cwd=folder, capture_output=True, text=True, check=True)
        alive = [
            line.split(":")[0].strip()
            for line in listed.stdout.splitlines()
            if line.rstrip().endswith("survived") and not any(f"{name}mutmut" in line for name in AT_IMPORT)
        ]
        changes = [(mutant, *change(folder, mutant)) for mutant in alive]
    unknown = [found for found in changes if not any(piece in found[2] for piece in EQUIVALENT)]
    for mutant, before, after in unknown:
        sys.stdout.write(f"{mutant}\n  - {before}\n  + {after}\n")
    sys.stdout.write(f"{len(alive)} mutants survived, {len(alive) - len(unknown)} of them change nothing\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
