"""Doubt: what people may say of an attempt whose outcome nobody knows, who may say it, and when enough of them want it tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.canonical import tagged
from engine.errors import CallerError, Refused
from engine.gate.approval import APPROVER_LEVEL_MIN, Person
from engine.limits import attempts_max, reason_chars_max

HAPPENED, DID_NOT, RETRY, PROBE = "happened", "did_not", "retry", "probe"
ANSWERS = (PROBE, HAPPENED, DID_NOT, RETRY)


@dataclass(frozen=True, slots=True)
class Doubt:
    """One attempt that may have happened, as recorded: who can say what became of it, and who never can."""

    id: str
    run: str
    promise: str
    attempt: int
    reversible: bool
    groups: frozenset[str]  # those who could hold a key for it; empty: whoever may resolve
    lineage: Mapping[str, str]
    is_open: bool
    canceling: bool  # the run is being cancelled: nothing of it begins again


@dataclass(frozen=True, slots=True)
class Word:
    """What one person said."""

    person: str
    how: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Where a doubt stands after a word: whether it is over, and how many of the people that a retry needs have asked for it."""

    settled: bool
    given: int
    needed: int


def id_of(run: str, promise: str, attempt: int) -> str:
    """The one doubt of an attempt."""
    return "un_" + tagged("twokeys/doubt/v1", f"{run}/{promise}/{attempt}".encode()).hex()[:16]


def people_needed(reversible: bool) -> int:
    """How many different people must want the same effect tried again: what cannot be taken back may then happen twice."""
    return 1 if reversible else 2


def hear(
    doubt: Doubt, words: Sequence[Word], people: Mapping[str, Person], who: Person, how: str, reason: str
) -> Heard:
    """What this word would make of the doubt; CallerError when it is none, Refused when this person may not say it, or not now."""
    if how not in ANSWERS:
        raise CallerError(f"{how[:40]!r} is not an answer", field="how", next_step=f"say one of {', '.join(ANSWERS)}")
    if not doubt.is_open:
        raise Refused(
            "this is not unknown any more; what you said changed nothing",
            code="not_unknown",
            next_step="the run page shows what it came to",
        )
    needed = people_needed(doubt.reversible)
    if how == PROBE:
        # Looking decides nothing, so whoever may resolve may ask for it.
        return Heard(False, len(_wanting(doubt, words, people)), needed)
    if not reason.strip() or len(reason) > reason_chars_max:
        raise CallerError(
            f"a reason of 1-{reason_chars_max} characters is needed", field="reason", next_step="say how you know"
        )
    _check_person(doubt, who)
    if how != RETRY:
        return Heard(True, 0, needed)
    if doubt.canceling:
        raise Refused("the run is being cancelled, so nothing of it is tried again", code="canceling",
                      next_step="say whether it happened")  # fmt: skip
    if doubt.attempt >= attempts_max:
        raise Refused(f"all {attempts_max} attempts are used up", code="attempts_used_up",
                      next_step="say whether it happened")  # fmt: skip
    wanting = _wanting(doubt, words, people)
    if who.id in wanting:
        raise Refused("you asked for this already; a different person must ask for it too", code="same_person")
    given = len(wanting) + 1
    return Heard(given >= needed, given, needed)


def _wanting(doubt: Doubt, words: Sequence[Word], people: Mapping[str, Person]) -> frozenset[str]:
    """The different people who want it tried again and may still say so at this moment."""
    found = {word.person for word in words if word.how == RETRY}
    return frozenset(one for one in found if one in people and not unfit(doubt, people[one]))


def unfit(doubt: Doubt, who: Person) -> str:
    """Why this person cannot speak for the effect; empty when they can."""
    if who.kind != "human":
        return "not_human"
    if not who.active:
        return "inactive"
    if who.level < APPROVER_LEVEL_MIN:
        return "level"
    if who.id in doubt.lineage:
        return "lineage"
    return "not_approver" if doubt.groups and not doubt.groups & who.groups else ""


def _check_person(doubt: Doubt, who: Person) -> None:
    code = unfit(doubt, who)
    if not code:
        return
    names = ", ".join(f"@{group}" for group in sorted(doubt.groups))
    sentences = {
        "not_human": "only a person can say what happened; a service account cannot",
        "inactive": "your account is deactivated",
        "level": f"this takes level {APPROVER_LEVEL_MIN}; yours is {who.level}",
        "lineage": "you asked for this, so another person must say what happened",
        "not_approver": f"only those who could hold a key may say what happened: {names}",
    }
    raise Refused(sentences[code], code=code)
