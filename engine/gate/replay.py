"""What a replay counts: old effect against new effect, what loosens and by how much, and what people had decided there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.gate.reducer import implies, requirements

EFFECTS = ("deny", "needs_approval", "allow")  # from the strictest
TIERS = ("low", "med", "high")
DECIDED = ("approved", "rejected", "expired", "canceled", "requested", "nobody asked")
flips_max = 200  # that are kept with their names; all are counted

SAME, TIGHTER, LOOSER = "same", "tighter", "looser"


def weigh(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Whether one ruling (see engine.gate.reducer) is looser than another; what is both, or cannot be ordered, is looser."""
    was, now = EFFECTS.index(old["effect"]), EFFECTS.index(new["effect"])
    if was != now:
        return LOOSER if now > was else TIGHTER
    if old["effect"] == "deny":
        return SAME
    # What has to be done along with it: anything that falls away is less.
    # Some are the other way round: leave to break the glass, or to go on after a rejection.
    owed, owes = _obligations(old), _obligations(new)
    less, more = not owed <= owes or not _leaves(new) <= _leaves(old), owed != owes or _leaves(old) != _leaves(new)
    if old["effect"] == "needs_approval":
        for one, other in _demands(old, new):
            less, more = less or other < one, more or other != one
        was_needed, is_needed = requirements(old), requirements(new)
        less = less or not _all_implied(was_needed, is_needed)
        more = more or not _all_implied(is_needed, was_needed)
    return LOOSER if less else TIGHTER if more else SAME


def _demands(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Pairs of numbers, each of which says more when it is larger."""
    return [
        (TIERS.index(old["tier"]), TIERS.index(new["tier"])),
        (-old["expires_in_s"], -new["expires_in_s"]),
    ]


def _all_implied(milder: list[Mapping[str, Any]], stricter: list[Mapping[str, Any]]) -> bool:
    """Whether whoever satisfies the second list of requirements satisfies each of the first."""
    return all(any(implies(one, other) for one in stricter) for other in milder)


LEAVES = ("break_glass", "rejections")  # what an obligation of this type permits beside what it asks


def _obligations(ruling: Mapping[str, Any]) -> set[str]:
    return {str(sorted(one.items())) for one in ruling["obligations"] if one["type"] not in LEAVES}


def _leaves(ruling: Mapping[str, Any]) -> set[str]:
    return {str(sorted(one.items())) for one in ruling["obligations"] if one["type"] in LEAVES}


@dataclass(frozen=True, slots=True)
class Past:
    """A recorded decision: where it stands, the ruling of the policy in force, and what people decided there."""

    run: str
    promise: str
    n: int
    first: bool  # of its action: what is judged again after an approval asks nobody again
    decided: str  # one of DECIDED


@dataclass(slots=True)
class Tally:
    """The matrix and what stands beside it; it grows decision by decision and can be stored and taken up again."""

    matrix: dict[str, int] = field(default_factory=dict)  # "deny > allow": count
    weighed: dict[str, int] = field(default_factory=lambda: {SAME: 0, TIGHTER: 0, LOOSER: 0})
    decided: dict[str, int] = field(default_factory=dict)  # "allow, had been rejected" of looser ones
    keys_before: int = 0
    keys_after: int = 0
    asked_before: int = 0
    asked_after: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # why a decision could not be replayed
    differs: int = 0  # the policy in force does not say again what was recorded under it
    flips: list[dict[str, Any]] = field(default_factory=list)

    @property
    def replayed(self) -> int:
        """How many decisions were judged under both policies."""
        return sum(self.weighed.values())

    def add(self, past: Past, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Count one decision under the policy in force and under the draft."""
        how = weigh(old, new)
        self.weighed[how] += 1
        _up(self.matrix, f"{old['effect']} > {new['effect']}")
        if past.first:
            self.keys_before += old["keys"]
            self.keys_after += new["keys"]
            self.asked_before += old["effect"] == "needs_approval"
            self.asked_after += new["effect"] == "needs_approval"
        if how == LOOSER:
            _up(self.decided, f"{new['effect']}, {past.decided}")
        if how != SAME and (how == LOOSER or old["effect"] != new["effect"]):
            self._keep(past, how, old, new)

    def lack(self, why: str) -> None:
        """A decision that cannot be replayed, because a fact is not there: reported, never guessed."""
        _up(self.missing, why)

    def _keep(self, past: Past, how: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        flip = {
            "how": how,
            "run": past.run,
            "promise": past.promise,
            "n": past.n,
            "old": old["effect"],
            "new": new["effect"],
            "decided": past.decided,
            "old_codes": [reason["code"] for reason in old["reasons"]],
            "new_codes": [reason["code"] for reason in new["reasons"]],
            "keys": [old["keys"], new["keys"]],
        }
        self.flips.append(flip)
        if len(self.flips) > 2 * flips_max:
            self.flips = self.first_flips()

    def first_flips(self) -> list[dict[str, Any]]:
        """The flips that are kept: looser ones first, and among them what people had refused."""
        return sorted(self.flips, key=_urgency)[:flips_max]

    def to_value(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "matrix": self.matrix,
            "weighed": self.weighed,
            "decided": self.decided,
            "keys_before": self.keys_before,
            "keys_after": self.keys_after,
            "asked_before": self.asked_before,
            "asked_after": self.asked_after,
            "missing": self.missing,
            "differs": self.differs,
            "flips": self.first_flips(),
        }


def tally_from(value: Mapping[str, Any]) -> Tally:
    """The tally that a stored value holds."""
    return Tally(**{name: value[name] for name in Tally.__dataclass_fields__})


def _up(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _urgency(flip: Mapping[str, Any]) -> tuple[Any, ...]:
    refused = flip["decided"] in ("rejected", "expired", "canceled")
    steps = EFFECTS.index(flip["new"]) - EFFECTS.index(flip["old"])
    return flip["how"] != LOOSER, not refused, -steps, flip["run"], flip["promise"], flip["n"]
