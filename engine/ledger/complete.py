"""Whether every effect of a stretch of the log has what it needs: proposal, verdict, keys, intent and outcome, over all runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from engine.ledger.entries import Entry

_outcomes = ("effect.receipted", "effect.unknown", "effect.resolved", "effect.retried")
listed_max = 1000  # of each list; more are counted


@dataclass(slots=True)
class _Chain:
    """One chain as far as it was told."""

    seq: int
    leaf: bytes
    at: str
    carried: bool  # it began before the stretch
    is_run: bool
    closed: bool = False
    sealed: bool = False
    proposals: dict[str, set[str]] = field(default_factory=dict)
    verdicts: dict[tuple[str, int], str] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    effects: dict[tuple[str, int], str] = field(default_factory=dict)


class Completeness:
    """Takes every entry of the stretch in the log's order; what it finds missing it names."""

    def __init__(self, since: int) -> None:
        """`since` is how many entries the log had before; with 0 nothing can have begun earlier."""
        self._since = since
        self._chains: dict[str, _Chain] = {}
        self._counts: Counter[str] = Counter()
        self._gaps: list[str] = []
        self._carried = 0

    def take(self, entry: Entry) -> None:
        """The next entry."""
        chain = self._follow(entry)
        self._counts[entry.type] += 1
        body = entry.body
        promise = str(body.get("promise", ""))
        if entry.type == "action.proposed":
            chain.proposals.setdefault(promise, set()).add(body["action_sha256"])
        elif entry.type == "verdict.given":
            chain.verdicts[promise, body["n"]] = body["effect"]
        elif entry.type == "approval.asked":
            chain.asked[body["approval"]] = body["keys"]
        elif entry.type == "key.given":
            chain.keys.setdefault(body["approval"], set()).add(body["person"])
        elif entry.type == "approval.released":
            self._released(entry, chain)
        elif entry.type == "effect.intended":
            self._intended(entry, chain)
        elif entry.type in _outcomes:
            self._outcome(entry, chain)
        elif entry.type == "run.closed":
            self._closed(entry, chain)
        elif entry.type == "evidence.sealed":
            chain.sealed = True

    def report(self) -> dict[str, Any]:
        """What was counted and what is missing; the same entries give the same report."""
        runs = {name: chain for name, chain in self._chains.items() if chain.is_run}
        in_flight = [
            f"{name}: attempt {attempt} of {promise} is {state}"
            for name, chain in runs.items()
            for (promise, attempt), state in chain.effects.items()
            if state != "settled" and not chain.closed
        ]
        unsealed = [name for name, chain in runs.items() if chain.closed and not chain.sealed]
        return {
            "carried": self._carried,
            "counts": {name.replace(".", "_"): number for name, number in sorted(self._counts.items())},
            "gaps": _listed(self._gaps),
            "in_flight": _listed(in_flight),
            "runs": len(runs),
            "unsealed": _listed(unsealed),
        }

    def _follow(self, entry: Entry) -> _Chain:
        chain = self._chains.get(entry.chain)
        if chain is None:
            began = entry.chain_seq == 0
            if (began and entry.prev != "0" * 64) or (not began and not self._since):
                self._gap(entry, "its chain does not begin here, and there is nothing before")
            chain = _Chain(
                entry.chain_seq, entry.leaf, entry.at, not began, entry.type == "run.queued" or "/" not in entry.chain
            )
            self._chains[entry.chain] = chain
            return chain
        if entry.chain_seq != chain.seq + 1 or entry.prev != chain.leaf.hex():
            self._gap(entry, f"does not follow entry {chain.seq} of its chain")
        if entry.at < chain.at:
            self._gap(entry, "is earlier than the entry that it follows")
        chain.seq, chain.leaf, chain.at = entry.chain_seq, entry.leaf, entry.at
        return chain

    def _released(self, entry: Entry, chain: _Chain) -> None:
        name, persons = entry.body["approval"], set(entry.body["persons"])
        chain.released.add(name)
        if name not in chain.asked:
            self._missing(entry, chain, f"releases {name}, which nobody asked for")
            return
        given = chain.keys.get(name, set())
        if len(persons) < chain.asked[name]:
            self._gap(entry, f"releases {name} with {len(persons)} people where {chain.asked[name]} are needed")
        if persons - given:
            self._missing(entry, chain, f"counts {sorted(persons - given)[0]} for {name}, who gave no key")

    def _intended(self, entry: Entry, chain: _Chain) -> None:
        body = entry.body
        promise, place = body["promise"], f"attempt {body['attempt']} of {body['promise']}"
        if body["action_sha256"] not in chain.proposals.get(promise, ()):
            self._missing(entry, chain, f"{place} was never proposed")
        effect = chain.verdicts.get((promise, body["verdict_n"]), "")
        if not effect:
            self._missing(entry, chain, f"{place} has no verdict")
        elif effect == "deny":
            self._gap(entry, f"{place} was denied")
        elif (effect == "needs_approval" or body["approval"]) and body["approval"] not in chain.released:
            self._missing(entry, chain, f"{place} was not released")
        chain.effects[promise, body["attempt"]] = "open"

    def _outcome(self, entry: Entry, chain: _Chain) -> None:
        body = entry.body
        place = body["promise"], body["attempt"]
        if place not in chain.effects:
            self._missing(entry, chain, f"attempt {body['attempt']} of {body['promise']} has an outcome and no intent")
        unknown = entry.type == "effect.unknown"
        chain.effects[place] = "unknown" if unknown else "settled"

    def _closed(self, entry: Entry, chain: _Chain) -> None:
        chain.closed = True
        if entry.body["entries"] != entry.chain_seq + 1:
            self._gap(entry, f"counts {entry.body['entries']} entries and is number {entry.chain_seq + 1}")
        for (promise, attempt), state in chain.effects.items():
            if state == "open":
                self._gap(entry, f"attempt {attempt} of {promise} has no outcome")

    def _missing(self, entry: Entry, chain: _Chain, what: str) -> None:
        # What happened before the stretch is in the one before it.
        if chain.carried:
            self._carried += 1
        else:
            self._gap(entry, what)

    def _gap(self, entry: Entry, what: str) -> None:
        self._gaps.append(f"{entry.chain} entry {entry.chain_seq} ({entry.type}): {what}")


def _listed(items: list[str]) -> dict[str, Any]:
    return {"count": len(items), "first": items[:listed_max]}
