"""The rules that the entries of a doubt must obey: who may speak about an outcome that nobody knows, and how many want it made again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.errors import BrokenLedger
from engine.ledger.entries import Entry


@dataclass(slots=True)
class Question:
    """One attempt that may have happened, as its entries tell it."""

    body: dict[str, Any]
    groups: frozenset[str]
    lineage: frozenset[str]
    retry: list[str] = field(default_factory=list)  # who wants it made again


class Doubts:
    """The doubts of a run by promise and attempt; each verb refuses what could not have happened."""

    def __init__(self) -> None:
        self._doubts: dict[tuple[str, int], Question] = {}

    def asked(self, entry: Entry, groups: list[str], *, reversible: bool) -> None:
        """People were asked; `groups` are those who could hold a key for it."""
        body = entry.body
        place = (body["promise"], body["attempt"])
        if place in self._doubts:
            _doubt_broken("doubt", f"{body['doubt']} is asked twice")
        if body["keys"] < (1 if reversible else 2):
            _doubt_broken("doubt", f"{body['doubt']} asks {body['keys']} people where what they say cannot be undone")
        lineage = frozenset(ancestor["person"] for ancestor in body["lineage"])
        self._doubts[place] = Question(body, frozenset(groups), lineage)

    def word(self, entry: Entry) -> None:
        """Somebody wants it looked at, or made again."""
        body = entry.body
        doubt = self._doubts.get((body["promise"], body["attempt"]))
        if doubt is None or doubt.body["doubt"] != body["doubt"]:
            _doubt_broken("word-unknown", f"{body['doubt'][:40]!r} was never asked")
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _doubt_broken("word-person", f"the word of {body['person']} was given by {entry.actor['id']}")
        if body["how"] not in ("probe", "retry"):
            _doubt_broken("word-kind", f"{body['how'][:40]!r} is no word that is kept as such")
        if list(entry.commit) != ([body["reason_sha256"]] if body["reason_sha256"] else []):
            _doubt_broken("word-reason", "a word commits to exactly the reason that was given")
        if body["how"] == "probe":
            return
        self._check_unrelated(doubt, body["person"])
        if doubt.groups and not doubt.groups & set(body["groups"]):
            _doubt_broken("word-group", f"{body['person']} could hold no key for this and speaks about it")
        if not body["reason_sha256"]:
            _doubt_broken("word-reason", f"{body['person']} gives no reason")
        if body["person"] in doubt.retry:
            _doubt_broken("word-twice", f"{body['person']} wants it made again twice")
        doubt.retry.append(body["person"])

    def check_speaker(self, promise: str, attempt: int, person: str) -> None:
        """Return unless the one who says what happened had a part in asking for it."""
        doubt = self._doubts.get((promise, attempt))
        if doubt is not None:
            self._check_unrelated(doubt, person)

    def check_retry(self, promise: str, attempt: int) -> None:
        """Return when enough different people want it made again."""
        doubt = self._doubts.get((promise, attempt))
        if doubt is None or len(doubt.retry) < doubt.body["keys"]:
            wanted = 0 if doubt is None else doubt.body["keys"]
            _doubt_broken(
                "retry-unasked",
                f"attempt {attempt} of promise {promise} is unknown and made again by "
                f"{len(self.wanting(promise, attempt))} of {wanted or 'enough'} people",
            )

    def wanting(self, promise: str, attempt: int) -> tuple[str, ...]:
        """Who wants it made again."""
        doubt = self._doubts.get((promise, attempt))
        return tuple(doubt.retry) if doubt is not None else ()

    def _check_unrelated(self, doubt: Question, person: str) -> None:
        if person in doubt.lineage:
            _doubt_broken("resolved-person", f"{person} had a part in asking for it and cannot speak about its outcome")


def _doubt_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
