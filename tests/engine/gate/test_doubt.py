"""Who may speak about an outcome that nobody knows, and when enough people want it tried again: every history of words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CallerError, Refused
from engine.gate.approval import Person
from engine.gate.doubt import ANSWERS, DID_NOT, HAPPENED, PROBE, RETRY, Doubt, Word, hear, id_of, people_needed
from engine.limits import attempts_max, reason_chars_max

CROWD = {
    name: Person(name, level, active, kind, frozenset(groups))
    for name, level, active, kind, groups in (
        ("rita", 6, True, "human", ["oncall"]),
        ("ana", 4, True, "human", ["oncall"]),
        ("bo", 4, True, "human", ["oncall", "managers"]),
        ("cleo", 5, True, "human", ["managers"]),
        ("dan", 4, False, "human", ["oncall"]),
        ("low", 3, True, "human", ["oncall"]),
        ("robot", 4, True, "service", ["oncall"]),
    )
}
DOUBT = Doubt("un_1", "r", "0", 1, True, frozenset(), {"rita": "requester"}, is_open=True, canceling=False)
WHY = {"dan": "inactive", "low": "level", "robot": "not_human", "rita": "lineage"}


def code(doubt: Doubt, words: list[Word], name: str, how: str, reason: str = "I looked") -> str:
    try:
        hear(doubt, words, CROWD, CROWD[name], how, reason)
    except (Refused, CallerError) as error:
        return error.code
    return ""


@given(
    reversible=st.booleans(),
    groups=st.sets(st.sampled_from(["oncall", "managers"])),
    history=st.lists(st.tuples(st.sampled_from(sorted(CROWD)), st.sampled_from(ANSWERS)), max_size=12),
)
def test_a_retry_takes_as_many_different_people_as_it_must_and_none_of_the_lineage(
    reversible: bool, groups: set[str], history: list[tuple[str, str]]
) -> None:
    doubt = replace(DOUBT, reversible=reversible, groups=frozenset(groups))
    words: list[Word] = []
    wanting: set[str] = set()
    for name, how in history:
        person = CROWD[name]
        why = WHY.get(name) or ("not_approver" if groups and not groups & person.groups else "")
        refused = code(doubt, words, name, how)
        if refused:
            assert how != PROBE
            assert refused == (why or "same_person")
            assert why or (how == RETRY and name in wanting)
            continue
        heard = hear(doubt, words, CROWD, person, how, "I looked")
        assert how == PROBE or not why
        words.append(Word(name, how))
        if how == RETRY:
            wanting.add(name)
            assert (heard.given, heard.settled) == (len(wanting), len(wanting) >= people_needed(reversible))
        else:
            assert heard.settled == (how in (HAPPENED, DID_NOT))
        if heard.settled:
            break
    assert not wanting & set(WHY)


@pytest.mark.parametrize("how", ANSWERS)
def test_what_is_known_is_spoken_of_no_more(how: str) -> None:
    assert code(replace(DOUBT, is_open=False), [], "ana", how) == "not_unknown"


def test_the_words_of_people_who_may_no_longer_speak_do_not_count() -> None:
    doubt = replace(DOUBT, reversible=False)
    gone = [Word("dan", RETRY), Word("low", RETRY), Word("nobody", RETRY), Word("rita", RETRY)]
    heard = hear(doubt, gone, CROWD, CROWD["ana"], RETRY, "again")
    assert (heard.given, heard.settled) == (1, False)
    assert hear(doubt, [*gone, Word("bo", RETRY)], CROWD, CROWD["ana"], RETRY, "again").settled


@pytest.mark.parametrize(
    ("changed", "how", "expected"),
    [
        ({"attempt": attempts_max}, RETRY, "attempts_used_up"),
        ({"attempt": attempts_max}, HAPPENED, ""),
        ({"canceling": True}, RETRY, "canceling"),
        ({"canceling": True}, DID_NOT, ""),
        ({}, "maybe", "invalid_request"),
    ],
)
def test_what_cannot_be_done_any_more_is_said(changed: dict[str, object], how: str, expected: str) -> None:
    assert code(replace(DOUBT, **changed), [], "ana", how) == expected


@pytest.mark.parametrize("reason", ["", "  \n", "x" * (reason_chars_max + 1)])
def test_everything_but_a_probe_needs_a_reason(reason: str) -> None:
    assert code(DOUBT, [], "ana", PROBE, reason) == ""
    for how in (HAPPENED, DID_NOT, RETRY):
        assert code(DOUBT, [], "ana", how, reason) == "invalid_request"


def test_each_attempt_has_its_own_doubt() -> None:
    names = {id_of(run, promise, n) for run in "ab" for promise in ("0", "1", "1.0") for n in (1, 2, 3, 4)}
    assert len(names) == 24
    assert all(len(name) == 19 and name.startswith("un_") for name in names)
