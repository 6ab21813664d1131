"""The report of completeness names what an effect lacks, and blames nobody for what stands in the period before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.ledger.complete import Completeness
from engine.ledger.entries import read_entry
from tests.engine.ledger.factory import Synthetic, two_person_run

Change = Callable[[Synthetic], None]


def report(made: Synthetic, *, since: int = 0, skip: int = 0) -> dict[str, object]:
    complete = Completeness(since)
    for data in made.entries()[skip:]:
        complete.take(read_entry(data))
    return complete.report()


def test_an_honest_run_lacks_nothing() -> None:
    said = report(two_person_run())
    assert (said["gaps"], said["carried"], said["runs"]) == ({"count": 0, "first": []}, 0, 1)
    assert said["in_flight"] == {"count": 0, "first": []}
    assert said["unsealed"]["count"] == 1  # type: ignore[index]  # it was not sealed in this stretch


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("action.proposed", "never proposed"), ("verdict.given", "no verdict"), ("approval.asked", "nobody asked for"),
        ("key.given", "who gave no key"), ("approval.released", "was not released"), ("effect.intended", "no intent"),
        ("effect.receipted", "has no outcome"),
    ],
)  # fmt: skip
def test_what_an_effect_lacks_is_named(kind: str, word: str) -> None:
    made = two_person_run()
    made.remove(kind)
    said = report(made)
    assert any(word in gap for gap in said["gaps"]["first"]), said["gaps"]  # type: ignore[index]


def test_one_key_for_two_is_named() -> None:
    made = two_person_run()
    (first, *_), *_ = [
        entry.body["persons"] for entry in map(read_entry, made.entries()) if entry.type == "approval.released"
    ]
    made.change("approval.released", persons=[first])
    assert any("1 people where 2 are needed" in gap for gap in report(made)["gaps"]["first"])  # type: ignore[index]


def test_what_began_before_the_period_is_carried_and_no_gap() -> None:
    kinds = [read_entry(data).type for data in two_person_run().entries()]
    at = kinds.index("effect.intended")
    said = report(two_person_run(), since=9, skip=at)
    assert said["gaps"] == {"count": 0, "first": []}
    assert said["carried"]
    assert report(two_person_run(), skip=at)["gaps"]["count"], "with nothing before, it has to begin here"  # type: ignore[index]


def test_an_effect_that_goes_on_is_in_flight() -> None:
    made = two_person_run()
    made.remove("run.closed")
    made.remove("effect.receipted")
    assert report(made)["in_flight"]["count"] == 1  # type: ignore[index]
