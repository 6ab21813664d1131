"""docs/auditor.md tells the same steps under the same numbers as the verifier, and its commands work as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from engine.ledger.container import read_container
from engine.ledger.onefile import one_file
from engine.ledger.sealed import OUTCOMES
from engine.ledger.verify import STEPS
from tests.engine.ledger.factory import trust_text, two_person_run

TEXT = (Path(__file__).parents[3] / "docs" / "auditor.md").read_text(encoding="utf-8")


def test_the_steps_have_the_verifiers_numbers_and_names() -> None:
    told = re.findall(r"^\*\*\((\d+)\) ([a-z]+)", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in told] == list(range(len(STEPS)))
    assert [name for _, name in told] == [title.partition(":")[0] for title in STEPS]


def test_the_exit_codes_are_the_verifiers() -> None:
    told = re.findall(r"^\| (\d) \| (\w+) \|", TEXT, re.MULTILINE)
    assert [(int(code), word) for code, word in told] == list(enumerate(OUTCOMES))


def test_the_commands_work_as_written(tmp_path: Path) -> None:
    bundle = two_person_run().bundle()
    for name, body in read_container(bundle).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)
    (tmp_path / "BUNDLE.zip").write_bytes(bundle)
    (tmp_path / "verify.py").write_text(one_file(), encoding="utf-8")
    (tmp_path / "policy.txt").write_text(trust_text())
    (tmp_path / "python").symlink_to(sys.executable)
    blocks = re.findall(r"^```\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    outputs = [
        subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for block in blocks
    ]
    assert [done.returncode for done in outputs] == [0, 0, 0], [done.stderr for done in outputs]
    assert "RESULT: valid" in outputs[0].stdout
    assert outputs[1].stdout.count(": OK") == len(read_container(bundle)) - 3
    said, _, checked = outputs[2].stdout.strip().split("\n")
    assert said.split()[0] == checked.split()[0]
