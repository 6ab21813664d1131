"""docs/slack-traps.md names a test for each of the thirty traps, and every test that it names is there."""

from __future__ import annotations

from pathlib import Path

from tests.house.test_failures import every_name, rows

TABLE = Path(__file__).resolve().parents[2] / "docs" / "slack-traps.md"


def test_each_of_the_thirty_traps_has_a_test_that_exists() -> None:
    named = rows(TABLE.read_text(encoding="utf-8"))
    assert sorted(named) == list(range(1, 31))
    assert [number for number, names in named.items() if not names] == []
    missing = {name for names in named.values() for name in names} - every_name()
    assert missing == set(), "docs/slack-traps.md names tests that are not there"
