"""Journals of every released format: they load, fold and hash for ever as they did when they were written.

A file under v1 is never edited and never written again; a new format gets a new directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.canonical import encode, sha256
from engine.journal.events import decode_row, encode_row, from_json, to_json
from engine.journal.history import History
from engine.journal.replay import check_line
from engine.journal.status import name

FILES = sorted((Path(__file__).parent / "v1" / "journals").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


def test_the_golden_journals_are_here() -> None:
    """A moved directory must not pass as an empty one."""
    assert [path.stem for path in FILES] == ["buffered_signal", "cancelled", "every_event", "full", "retries_used_up"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_journal_replays_as_it_did(path: Path) -> None:
    """P8, S003-J4, S003-X1..X3: rows, leaf chain, state and status, byte for byte."""
    golden = read(path)
    rows = [bytes.fromhex(row) for row in golden["rows"]]
    entries = [entry for row in rows for entry in decode_row(row)]
    exported = from_json(json.dumps(golden["line"]))
    assert tuple(entries) == exported.entries
    assert [encode_row(decode_row(row)) for row in rows] == rows
    assert json.loads(to_json(exported.execution, entries)) == golden["line"]
    history = History.load(exported.execution, entries)
    assert history.head.hex() == golden["head"]
    assert name(history.status) == golden["status"]
    assert sha256(encode(history.state())).hex() == golden["state_sha256"]
    assert check_line(json.dumps(golden["line"]))["statuses"] == golden["statuses"]
