"""Levels: one table says what each may do, and what is not in it nobody may do."""

from __future__ import annotations

import pytest

from engine.catalog.tenancy import DEEDS, LEVELS, least_level, may, require
from engine.errors import Refused


def test_the_table_is_what_the_design_says() -> None:
    """Author from 5, execute and decide from 4, read from 1."""
    allowed = {level: {deed for deed in DEEDS if may(deed, level)} for level in LEVELS}
    assert allowed[1] == allowed[2] == {"read", "audit"}
    assert allowed[3] == {"read", "audit", "complete_task"}
    assert allowed[4] == allowed[3] | {"start", "schedule", "cancel", "signal", "retry", "decide", "freeze", "resolve"}
    assert allowed[5] == allowed[4] | {"publish", "migrate", "activate", "pause", "archive", "policy"}
    assert allowed[6] == set(DEEDS)


@pytest.mark.parametrize("deed", DEEDS)
def test_an_auditor_reads_and_a_deactivated_person_does_nothing(deed: str) -> None:
    """At every level, for every deed."""
    for level in LEVELS:
        assert may(deed, level, auditor=True) is (deed in ("read", "audit"))
        assert not may(deed, level, active=False)


@pytest.mark.parametrize("level", [0, 7, -1, True, 4.0, "6", None])
def test_what_is_no_level_may_do_nothing(level: object) -> None:
    """Exact integers of the table only."""
    assert not any(may(deed, level) for deed in DEEDS)  # type: ignore[arg-type]


def test_an_unknown_deed_is_refused_to_the_owner() -> None:
    """A typing error in code is a refusal, not a door."""
    assert not may("strat", 6)
    with pytest.raises(Refused, match=r"this takes level 7 \(nobody\); yours is 6"):
        require("strat", 6)


def test_a_refusal_says_why() -> None:
    """Three reasons, each with its code."""
    with pytest.raises(Refused, match=r"^this takes level 5 \(author\); yours is 4") as level:
        require("publish", 4)
    with pytest.raises(Refused, match=r"^your account is deactivated") as inactive:
        require("read", 6, active=False)
    with pytest.raises(Refused, match=r"^an auditor reads and changes nothing") as auditor:
        require("decide", 6, auditor=True)
    assert [each.value.code for each in (level, inactive, auditor)] == ["level", "inactive", "auditor"]
    require("decide", least_level("decide"))
