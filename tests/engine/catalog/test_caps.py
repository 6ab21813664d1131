"""Caps: what a number may be, which of several holds, and what leaves no place."""

from __future__ import annotations

from typing import Any

import pytest

from engine.catalog.caps import Cap, Scoped, Usage, caps_from, check_weight, full, looser, tightest
from engine.errors import CallerError
from engine.limits import cap_max, weight_max
from engine.program.caps import NAMES, Caps

ACME = Scoped("tenant", "acme", Caps(max_concurrency=5, max_runs_per_min=60))
EMEA = Scoped("workspace", "emea", Caps(max_concurrency=3, max_concurrent_runs=10))
TRIAGE = Scoped("workflow", "triage", Caps(max_concurrency=3, max_writes_per_run=4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, cap_max + 1, True, 1.0, "5", [1]])
def test_what_is_no_cap_is_refused_with_its_name(name: str, value: Any) -> None:
    """0 would stop a tenant without saying so; True is 1 to Python and to nobody else."""
    with pytest.raises(CallerError) as caught:
        caps_from({name: value})
    assert caught.value.field == name
    assert str(cap_max) in str(caught.value)


def test_every_cap_can_be_set_and_taken_away() -> None:
    assert caps_from(dict.fromkeys(NAMES, 1)) == Caps(1, 1, 1, 1)
    assert caps_from(dict.fromkeys(NAMES, cap_max)) == Caps(*[cap_max] * 4)
    assert caps_from(dict.fromkeys(NAMES)) == caps_from({}) == Caps()


def test_a_cap_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(CallerError, match="max_runs_per_min") as caught:
        caps_from({"max_writes": 3})
    assert caught.value.field == "max_writes"


@pytest.mark.parametrize("value", [0, -1, weight_max + 1, True, 1.5, "1", None])
def test_a_share_is_a_whole_number_of_units(value: Any) -> None:
    with pytest.raises(CallerError) as caught:
        check_weight(value)
    assert caught.value.field == "weight"
    assert check_weight(weight_max) == weight_max


def test_the_smallest_holds_and_the_widest_of_equals_is_named() -> None:
    above = (ACME, EMEA, TRIAGE)
    assert str(tightest("max_concurrency", above)) == "max_concurrency 3 of workspace emea"
    assert tightest("max_runs_per_min", above) == Cap("max_runs_per_min", 60, "tenant", "acme")
    assert tightest("max_writes_per_run", (ACME, EMEA)) is None


def test_an_override_may_only_tighten() -> None:
    own = Caps(max_concurrency=4, max_concurrent_runs=10, max_runs_per_min=60, max_writes_per_run=9)
    assert looser(own, (ACME, EMEA)) == [("max_concurrency", Cap("max_concurrency", 3, "workspace", "emea"))]
    assert looser(own, ()) == looser(Caps(), (ACME, EMEA, TRIAGE)) == []


@pytest.mark.parametrize(
    ("scoped", "used", "begins", "found"),
    [
        (ACME, Usage(4, 99, 59), True, None),
        (ACME, Usage(5, 0, 0), False, "max_concurrency 5 of tenant acme"),
        (ACME, Usage(0, 99, 60), True, "max_runs_per_min 60 of tenant acme"),
        (ACME, Usage(0, 99, 60), False, None),
        (EMEA, Usage(2, 10, 0), True, "max_concurrent_runs 10 of workspace emea"),
        (EMEA, Usage(2, 10, 0), False, None),
        (EMEA, Usage(9, 99, 99), True, "max_concurrency 3 of workspace emea"),
    ],
)
def test_what_leaves_no_place_is_named(scoped: Scoped, used: Usage, begins: bool, found: str | None) -> None:
    """A run that has begun goes on under a full cap on runs: nobody would end otherwise."""
    cap = full(scoped, used, begins=begins)
    assert (None if cap is None else str(cap)) == found
