"""docs/failures.md names a test for each of the twenty-two failures, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "failures.md"


def rows(text: str) -> dict[int, list[str]]:
    """The tests that the table names, by the number of the failure."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].isdigit():
            found[int(cells[0])] = re.findall(r"`(test_\w+)`", cells[3])
    return found


def every_name() -> set[str]:
    """Every test there is, by name."""
    texts = (file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)}


def test_each_of_the_twenty_two_failures_has_a_test_that_exists() -> None:
    named = rows(TABLE.read_text(encoding="utf-8"))
    assert sorted(named) == list(range(1, 23))
    assert [number for number, names in named.items() if not names] == []
    missing = {name for names in named.values() for name in names} - every_name()
    assert missing == set(), "docs/failures.md names tests that are not there"


def test_a_row_without_a_test_and_a_name_that_is_gone_are_seen() -> None:
    """The check bites."""
    assert rows("| 7 | twice | the row is the work | none |") == {7: []}
    assert rows("| 7 | twice | `test_not_here` | `test_that_never_was` |") == {7: ["test_that_never_was"]}
    assert "test_that_never_was" not in every_name()
