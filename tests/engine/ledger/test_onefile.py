"""verify.py is exactly what the modules generate, and it runs alone: no package, no site, no network, no other file."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.ledger.onefile import one_file
from tests.engine.ledger.factory import RUN, trust_text, two_person_run

SHIPPED = Path(__file__).parents[3] / "governance" / "web" / "static" / "verify.py"


def run_alone(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-W", "error", "verify.py", *arguments]
    return subprocess.run(command, cwd=directory, env={}, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "verify.py").write_text(one_file(), encoding="utf-8")
    (tmp_path / "bundle.zip").write_bytes(two_person_run().bundle())
    (tmp_path / "policy.txt").write_text(trust_text())
    return tmp_path


def test_the_shipped_file_is_the_generated_one() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == one_file(), "run `make verifier`"


def test_it_needs_nothing_but_the_standard_library() -> None:
    allowed = set(sys.stdlib_module_names) | {"cryptography"}
    for node in ast.walk(ast.parse(one_file())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= allowed
    for word in ("import socket", "import urllib", "import subprocess", "import os\n", ".write_bytes", ".extract"):
        assert word not in one_file()


def test_a_valid_bundle_is_valid_in_an_empty_directory(empty: Path) -> None:
    done = run_alone(empty, "bundle.zip", "--trust", "policy.txt", "--run", RUN)
    assert (done.returncode, done.stderr) == (0, "")
    assert "built-in Ed25519" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("RESULT: valid (unwitnessed): run " + RUN)
    for number in range(10):
        assert f"({number}) " in done.stdout
    assert sorted(path.name for path in empty.iterdir()) == ["bundle.zip", "policy.txt", "verify.py"]


def test_the_outcome_is_the_exit_code(empty: Path) -> None:
    bundle = (empty / "bundle.zip").read_bytes()
    (empty / "flipped.zip").write_bytes(bundle[:2000] + bytes((bundle[2000] ^ 1,)) + bundle[2001:])
    (empty / "bad.txt").write_text("trust everybody\n")
    expected = {
        ("bundle.zip",): 2,
        ("bundle.zip", "--trust", "policy.txt", "--run", "f" * 32): 1,
        ("bundle.zip", "--trust", "policy.txt", "--sha256", "0" * 64): 1,
        ("flipped.zip", "--trust", "policy.txt"): 3,
        ("bundle.zip", "--trust", "bad.txt"): 3,
        ("missing.zip", "--trust", "policy.txt"): 3,
        ("bundle.zip", "--trust", "policy.txt", "--sha256", "zz"): 3,
        (".",): 3,
        (): 3,
        ("--help",): 0,
    }
    for arguments, code in expected.items():
        done = run_alone(empty, *arguments)
        assert (done.returncode, done.stderr) == (code, ""), arguments
        assert "Traceback" not in done.stdout


def test_without_a_pinned_policy_it_says_so(empty: Path) -> None:
    done = run_alone(empty, "bundle.zip")
    assert "no trust policy was given" in done.stdout
    assert done.stdout.splitlines()[-1] == "RESULT: incomplete"


def test_json_is_one_object(empty: Path) -> None:
    done = run_alone(empty, "bundle.zip", "--trust", "policy.txt", "--json")
    said = json.loads(done.stdout)
    assert (said["outcome"], said["exit"], said["findings"]) == ("valid", 0, [])
    assert said["facts"]["approvals"]["ap_1"]["persons"] == ["per_bb00000000000002", "per_cc00000000000003"]
    assert said["facts"]["counts"]["key.given"] == 2
