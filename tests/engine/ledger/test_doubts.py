"""The story of a doubt in a bundle: who may speak, who may not, and how many different people it takes to try it again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from engine.errors import BrokenLedger
from engine.ledger.doubts import Doubts
from engine.ledger.entries import GENESIS, Entry, Fact, build, read_entry

AT = datetime(2026, 8, 21, 10, 0, tzinfo=UTC)
RITA, ANA, BO = "per_a", "per_b", "per_c"
ACTION, REASON = "aa" * 32, "bb" * 32


def entry(kind: str, body: dict[str, Any], actor: str = "", commit: tuple[str, ...] = ()) -> Entry:
    who = {"type": "person", "id": actor} if actor else {"type": "system", "id": "twokeys"}
    return read_entry(build(Fact(kind, who, body, commit), "t", "r", 0, GENESIS, AT)[0])


def asked(keys: int = 1) -> Entry:
    lineage = [{"person": RITA, "why": "requester"}]
    return entry(
        "doubt.asked",
        {"doubt": "un_1", "promise": "0", "attempt": 1, "action_sha256": ACTION, "keys": keys, "lineage": lineage},
    )


def word(person: str = ANA, actor: str = "", commit: tuple[str, ...] = (REASON,), **changed: Any) -> Entry:
    body = {
        "doubt": "un_1", "promise": "0", "attempt": 1, "person": person, "groups": ["oncall"], "how": "retry", "via": "api", "given": 1,
        "needed": 1, "reason_sha256": REASON,
    }  # fmt: skip
    return entry("word.given", {**body, **changed}, actor or person, commit)


def doubts(keys: int = 1, groups: tuple[str, ...] = (), *, reversible: bool = True) -> Doubts:
    made = Doubts()
    made.asked(asked(keys), list(groups), reversible=reversible)
    return made


def broken(made: Doubts, said: Entry) -> str:
    with pytest.raises(BrokenLedger) as caught:
        made.word(said)
    return caught.value.code


def test_one_word_is_enough_where_it_can_be_taken_back() -> None:
    made = doubts()
    with pytest.raises(BrokenLedger, match="0 of 1 people"):
        made.check_retry("0", 1)
    made.word(word())
    made.check_retry("0", 1)
    assert made.wanting("0", 1) == (ANA,)


def test_two_different_people_are_needed_where_it_cannot() -> None:
    with pytest.raises(BrokenLedger, match="asks 1 people"):
        doubts(1, reversible=False)
    made = doubts(2, reversible=False)
    made.word(word())
    assert broken(made, word()) == "word-twice"
    with pytest.raises(BrokenLedger, match="1 of 2 people"):
        made.check_retry("0", 1)
    made.word(word(BO))
    made.check_retry("0", 1)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (word(RITA), "resolved-person"),
        (word(ANA, actor=BO), "word-person"),
        (word(doubt="un_2"), "word-unknown"),
        (word(attempt=2), "word-unknown"),
        (word(how="happened"), "word-kind"),
        (word(groups=["others"]), "word-group"),
        (word(commit=()), "word-reason"),
        (word(reason_sha256="", commit=()), "word-reason"),
    ],
)
def test_a_word_that_could_not_have_been_given_is_found(said: Entry, code: str) -> None:
    assert broken(doubts(1, ("oncall",)), said) == code


def test_looking_decides_nothing_so_whoever_asked_for_it_may_want_it() -> None:
    made = doubts(1, ("oncall",))
    made.word(word(RITA, how="probe", reason_sha256="", commit=(), groups=[]))
    assert made.wanting("0", 1) == ()


def test_nobody_of_the_lineage_says_what_happened() -> None:
    made = doubts()
    made.check_speaker("0", 1, ANA)
    made.check_speaker("0", 2, RITA)  # of an attempt that nobody was asked about nothing is known here
    with pytest.raises(BrokenLedger, match="had a part"):
        made.check_speaker("0", 1, RITA)


def test_an_attempt_that_nobody_was_asked_about_is_not_made_again() -> None:
    with pytest.raises(BrokenLedger, match="0 of enough people"):
        Doubts().check_retry("0", 1)
