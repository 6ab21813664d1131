"""The one file is called as an auditor calls it, a folder to each attack: it names what is wrong and leaves with the right code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.ledger.onefile import one_file
from tests.bundles.cases import CASES, VALID, Case
from tests.bundles.suite import write_case

# What has to be shown, with the record that has to be named.
SHOWN = {
    "a02_edited_entry_resealed_with_the_stolen_bundle_key": "entry",  # an edited row
    "a04_middle_entry_deleted": "entry",  # a deleted row
    "a06_tail_cut_off": "entry",  # a truncated log
    "a10_log_rewritten_with_the_stolen_log_key": "checkpoint",  # a forked log
    "a36_second_key_forged": "entry",  # a forged key with the chain hashed anew
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verifier") / "verify.py"
    path.write_text(one_file(), encoding="utf-8")
    return path


def answered(verifier: Path, directory: Path, name: str, given: Case) -> dict[str, object]:
    folder = write_case(directory, name, given)
    expected = json.loads((folder / "expected.json").read_text())
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(verifier), *expected["arguments"], "--json"],
        cwd=folder, env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == expected["exit"], done.stdout + done.stderr
    said = json.loads(done.stdout) if done.stdout.startswith("{") else {"findings": []}
    if expected["code"] and said["findings"]:
        assert [finding["code"] for finding in said["findings"]] == [expected["code"]]
    return dict(said)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_five_that_have_to_be_shown_are_caught_and_named(verifier: Path, tmp_path: Path, name: str) -> None:
    said = answered(verifier, tmp_path, name, CASES[name]())
    (finding,) = said["findings"]  # type: ignore[attr-defined]
    assert SHOWN[name] in finding["record"]
    assert finding["reason"]


def test_an_honest_bundle_passes(verifier: Path, tmp_path: Path) -> None:
    assert answered(verifier, tmp_path, "two_person", VALID["two_person"]())["outcome"] == "valid"


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_attack_is_caught_by_the_one_file(verifier: Path, tmp_path: Path, name: str) -> None:
    answered(verifier, tmp_path, name, CASES[name]())
