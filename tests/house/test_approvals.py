"""docs/approvals.md names a test for each of the forty-two cases, or says what is not built, and every test that it names is there."""

from __future__ import annotations

from pathlib import Path

from tests.house.test_failures import every_name, rows

TABLE = Path(__file__).resolve().parents[2] / "docs" / "approvals.md"
NOT_BUILT = {29}  # the row says so in words


def test_each_of_the_forty_two_cases_has_a_test_that_exists() -> None:
    named = rows(TABLE.read_text(encoding="utf-8"))
    assert sorted(named) == list(range(1, 43))
    assert {number for number, names in named.items() if not names} == NOT_BUILT
    missing = {name for names in named.values() for name in names} - every_name()
    assert missing == set(), "docs/approvals.md names tests that are not there"
