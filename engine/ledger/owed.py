"""What policy obliges to beside keys, held against the entries: a fresh sign-in, a window to stop it in, more than one rejection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn

from engine.errors import BrokenLedger
from engine.ledger.entries import Entry, instant


@dataclass(slots=True)
class Debt:
    """What is owed for one approval, and what was given of it beside its keys."""

    asked_by: tuple[str, int]  # the verdict that asked: its promise and number
    rejecting: list[str] = field(default_factory=list)
    lent: dict[str, str] = field(default_factory=dict)  # who turned a key in whose place
    released_at: datetime | None = None
    glass: frozenset[str] = frozenset()  # the groups of who broke it; empty when nobody did


class Owed:
    """The obligations of the verdicts of a run; each verb refuses what could not have happened under them."""

    def __init__(self) -> None:
        self._obligations: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._debts: dict[str, Debt] = {}
        self._editors: dict[str, set[str]] = {}  # by promise

    def judged(self, body: Mapping[str, Any], obligations: list[dict[str, Any]]) -> None:
        """A verdict, and what its findings oblige to."""
        self._obligations[body["promise"], body["n"]] = obligations

    def edited(self, entry: Entry) -> None:
        """Somebody changed a proposal that was asked about: from now on they are of its lineage."""
        body = entry.body
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _owed_broken("edit-person", f"the edit of {body['person']} was made by {entry.actor['id']}")
        if body["approval"] not in self._debts or self._debts[body["approval"]].asked_by[0] != body["promise"]:
            _owed_broken("edit-unasked", f"{body['approval'][:40]!r} was never asked for this step and is edited")
        if list(entry.commit) != [body["fields_sha256"]]:
            _owed_broken("edit-commit", "an edit commits to exactly the values that it gives")
        self._editors.setdefault(body["promise"], set()).add(body["person"])

    def asked(self, body: Mapping[str, Any]) -> None:
        """An approval is asked; a verdict of number 0 is an author's, which obliges to nothing."""
        missing = self._editors.get(body["promise"], set()) - {ancestor["person"] for ancestor in body["lineage"]}
        if missing:
            _owed_broken("approval-lineage", f"{min(missing)} edited what is asked and is missing from the lineage")
        self._debts[body["approval"]] = Debt((body["promise"], body["verdict_n"]))

    def rejected(self, entry: Entry, asked: Mapping[str, Any]) -> None:
        """Somebody rejects where policy wants more than one to."""
        body, debt = entry.body, self._debts[entry.body["approval"]]
        person, needed = body["person"], self._rejections(debt)
        if entry.actor != {"type": "person", "id": person} or not person:
            _owed_broken("rejection-person", f"the rejection of {person} was given by {entry.actor['id']}")
        if person in debt.rejecting:
            _owed_broken("rejection-twice", f"{person} rejected {body['approval']} twice")
        if person in {ancestor["person"] for ancestor in asked["lineage"]} or not set(body["groups"]) & set(
            asked["groups"]
        ):
            _owed_broken("rejection-person", f"{person} could hold no key for {body['approval']} and rejects it")
        debt.rejecting.append(person)
        if body["needed"] != needed or not 1 <= body["given"] <= len(debt.rejecting) or body["given"] >= needed:
            _owed_broken(
                "rejection-count", f"the rejection of {person} claims to be {body['given']} of {body['needed']}"
            )

    def turned(self, entry: Entry, lineage: frozenset[str]) -> None:
        """A key, perhaps in somebody's place: those two are one person, and the lineage holds for both."""
        absent = entry.body.get("for_person", "")
        if not absent:
            return
        if absent == entry.body["person"] or absent in lineage:
            _owed_broken(
                "key-lineage", f"{entry.body['person']} turned a key in the place of {absent[:40]}, who could not"
            )
        self._debts[entry.body["approval"]].lent[entry.body["person"]] = absent

    def broken(self, entry: Entry, asked: Mapping[str, Any], *, reversible: bool) -> str:
        """One person broke the glass: policy has one, what is done can be taken back, and a review is owed. What to say of it."""
        body, debt = entry.body, self._debts[entry.body["approval"]]
        person, owed = body["person"], self._of(debt)
        if entry.actor != {"type": "person", "id": person} or not person:
            _owed_broken("glass-person", f"the glass of {person} was broken by {entry.actor['id']}")
        if person in {ancestor["person"] for ancestor in asked["lineage"]} or body["level"] < 4:
            _owed_broken(
                "glass-person", f"{person} took part in the request, or has level {body['level']}, and breaks its glass"
            )
        if not _glass_groups(owed) & set(body["groups"]):
            _owed_broken("glass-policy", f"policy has no glass that {person} may break for {body['approval']}")
        if not reversible:
            _owed_broken("glass-irreversible", f"{person} broke the glass for what cannot be taken back")
        if (body["action_sha256"], body["card_sha256"]) != (asked["action_sha256"], asked["card_sha256"]):
            _owed_broken("key-digest", f"{person} saw another action or another card than was asked for")
        if instant(entry.at) >= instant(asked["expires_at"]) or not body["ticket_sha256"] or not body["reason_sha256"]:
            _owed_broken(
                "glass-late", f"the glass of {body['approval']} was broken too late, or without a ticket or a reason"
            )
        if any(one["type"] == "step_up" for one in owed) and body["via"] != "console":
            _owed_broken("step-up", "policy wanted a fresh sign-in, and the glass was broken elsewhere")
        debt.glass, debt.released_at = frozenset(body["groups"]), instant(entry.at)
        return f"{person} broke the glass for {body['approval']}: one key for all; two others owe a review until {body['due_at']}"

    def is_broken(self, approval: str) -> bool:
        """Whether one key does for all of this approval."""
        return bool(self._debts[approval].glass)

    def released(self, entry: Entry, vias: Mapping[str, str]) -> None:
        """Enough keys are there; `vias` says through which door each person gave theirs."""
        debt = self._debts[entry.body["approval"]]
        debt.released_at = instant(entry.at)
        self._check_keys(debt, self._of(debt), vias, entry.body["persons"])

    def check_intent(self, entry: Entry, vias: Mapping[str, str], persons: Collection[str], *, held: bool) -> None:
        """An effect begins under an approval: what was owed when people were asked, and what is owed now; `held` if it still is."""
        body = entry.body
        debt = self._debts[body["approval"]]
        newest = self._obligations.get((body["promise"], body["verdict_n"]), [])
        if debt.glass:
            if held and not _glass_groups(newest) & debt.glass:
                _owed_broken("glass-policy", f"policy had no glass any more when {body['approval']} was used")
            return
        both = [*self._of(debt), *newest]
        self._check_keys(debt, both, vias, persons)
        seconds = max((one["seconds"] for one in both if one["type"] == "hold_window"), default=0)
        if debt.released_at is None or instant(entry.at) < debt.released_at + timedelta(seconds=seconds):
            _owed_broken("window", f"{body['approval']} had to be held for {seconds} seconds and was not")

    def _check_keys(
        self, debt: Debt, owed: list[dict[str, Any]], vias: Mapping[str, str], persons: Collection[str]
    ) -> None:
        if any(one["type"] == "step_up" for one in owed) and not any(
            vias.get(person) == "console" for person in persons
        ):
            _owed_broken("step-up", "policy wanted a key with a fresh sign-in, and none was given in the console")
        ones = [debt.lent.get(person, person) for person in persons]
        if len(set(ones)) != len(ones):
            _owed_broken("two-person", "whoever was away and whoever stood in for them are counted as two people")
        both = sorted(set(persons) & set(debt.rejecting))
        if both:
            _owed_broken("two-person", f"{both[0]} is counted for what they rejected")

    def _of(self, debt: Debt) -> list[dict[str, Any]]:
        return self._obligations.get(debt.asked_by, [])

    def _rejections(self, debt: Debt) -> int:
        return min((int(one["needed"]) for one in self._of(debt) if one["type"] == "rejections"), default=1)


def _glass_groups(owed: list[dict[str, Any]]) -> set[str]:
    return {one["group"] for one in owed if one["type"] == "break_glass"}


def _owed_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
