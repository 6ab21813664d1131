"""Checks the bundle of a period: every entry between two checkpoints, and whether each effect has what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.canonical import jcs
from engine.errors import BrokenLedger
from engine.ledger.complete import Completeness
from engine.ledger.entries import read_entry
from engine.ledger.layout import CHECKPOINT_BEFORE, COMPLETENESS, ENTRIES, PERIOD, RECONCILED, from_hex, read_document
from engine.ledger.notes import read_checkpoint, read_note, signed_by_log
from engine.ledger.sealed import Sealed, wrong
from engine.ledger.tree import Frontier, empty_root, leaf_hash, verify_consistency

PERIOD_STEPS = (
    "stamp: the file is the one that was expected",
    "container: one plain archive and nothing beside it",
    "container: writing its members again gives the same bytes",
    "manifest: every file is listed and has its digest",
    "attestation: a pinned bundle key signed this manifest",
    "checkpoint: a pinned log, and enough witnesses, signed the tree at its end",
    "entries: every entry between two checkpoints, and no other, makes the tree",
    "consistency: the tree at its begin is a part of the tree at its end",
    "completeness: the report inside says what the entries say",
    "rules: every effect has proposal, verdict, keys, intent and outcome",
)


class PeriodCheck:
    """Steps (6) to (9) of the evidence of a period."""

    def __init__(self, sealed: Sealed) -> None:
        self.sealed = sealed
        self.frontier = Frontier()
        self.leaves: list[bytes] = []
        self.report: dict[str, Any] = {}
        self.steps: tuple[Callable[[], str], ...] = (self.entries, self.consistency, self.completeness, self.rules)

    # (6) entries
    def entries(self) -> str:
        sealed = self.sealed
        value = read_document(sealed.file(PERIOD), {"frontier", "from_size", "proof"}, "period-parse")
        if (
            type(value["from_size"]) is not int
            or type(value["frontier"]) is not list
            or type(value["proof"]) is not list
        ):
            wrong("period-parse", "a period has a begin, its subtrees and a proof")
        self.frontier = Frontier(value["from_size"], _hashes(value["frontier"]))
        self.proof = _hashes(value["proof"])
        lines = sealed.lines(ENTRIES)
        complete = Completeness(self.frontier.size)
        first = last = ""
        for number, line in enumerate(lines, self.frontier.size):
            sealed.record = f"entry {number} of the log"
            entry = read_entry(line)
            if entry.tenant != sealed.predicate["tenant"]:
                wrong("entry-chain", f"belongs to {entry.tenant}, not to {sealed.predicate['tenant']}")
            complete.take(entry)
            self.leaves.append(leaf_hash(line))
            first, last = min(first or entry.at, entry.at), max(last, entry.at)
        said = sealed.predicate
        sealed.record = f"data/{ENTRIES}"
        if (said["entries"], said["from_size"]) != (len(lines), self.frontier.size) or not lines:
            wrong(
                "entry-count",
                f"the statement says {said['entries']} entries from {said['from_size']}, here are {len(lines)}",
            )
        tree = self.frontier.extend(self.leaves)
        if (tree.size, tree.root) != (sealed.checkpoint.size, sealed.checkpoint.root):
            wrong("root", f"{tree.size} entries do not make the tree of {sealed.checkpoint.size} that was signed")
        self.report = complete.report()
        sealed.result.facts |= {"entries": len(lines), "from_size": self.frontier.size, "from": first, "to": last}
        return f"{len(lines)} entries from {self.frontier.size} make the tree of {tree.size}: none is missing, none is beside"

    # (7) consistency
    def consistency(self) -> str:
        sealed, size = self.sealed, self.frontier.size
        old_root = self.frontier.root if size else empty_root()
        verify_consistency(size, sealed.checkpoint.size, old_root, sealed.checkpoint.root, self.proof)
        if not size:
            return "the log begins here"
        if f"data/{CHECKPOINT_BEFORE}" not in sealed.files:
            sealed.record = f"data/{CHECKPOINT_BEFORE}"
            wrong("manifest-set", "is missing")
        note = read_note(sealed.file(CHECKPOINT_BEFORE))
        before = read_checkpoint(note.text)
        if (before.origin, before.size, before.root) != (sealed.checkpoint.origin, size, old_root):
            wrong("consistency", "the checkpoint at the begin is of another tree than the entries go on from")
        if sealed.trust is None:
            return f"goes on from the tree of {size}; no trust policy, so its signature was not checked"
        logs = [key for key in sealed.trust.logs if key.name == before.origin]
        if not any(signed_by_log(note, key) for key in logs):
            wrong("note-nosig", f"no pinned key of {before.origin} signed the checkpoint at the begin")
        return f"goes on from the signed tree of {size}"

    # (8) completeness
    def completeness(self) -> str:
        if self.sealed.file(COMPLETENESS) != jcs(self.report):
            wrong("completeness", "the report says something else than the entries")
        systems = read_document(self.sealed.file(RECONCILED), {"systems"}, "reconciled-parse")["systems"]
        if type(systems) is not list:
            wrong("reconciled-parse", "what was reconciled is a list of systems")
        for system in systems:
            self.sealed.result.remarks += _foreign(system)
        facts = self.sealed.result.facts
        facts["completeness"] = {name: self.report[name] for name in ("runs", "carried", "counts")}
        facts["in_flight"], facts["unsealed"] = self.report["in_flight"]["count"], self.report["unsealed"]["count"]
        return (
            f"{self.report['runs']} runs; {facts['in_flight']} effects in flight and {facts['unsealed']} ended runs "
            f"not sealed at the end; {len(systems)} outside change logs were read"
        )

    # (9) rules
    def rules(self) -> str:
        gaps = self.report["gaps"]
        if gaps["count"]:
            self.sealed.record = gaps["first"][0].partition(":")[0]
            wrong("orphan", f"{gaps['first'][0].partition(': ')[2]}; {gaps['count']} such in all")
        if self.report["carried"]:
            self.sealed.result.remarks.append(
                f"{self.report['carried']} entries rest on what happened before the period: see the bundle before it"
            )
        counts = self.report["counts"]
        return f"{counts.get('effect_intended', 0)} effects, each proposed, judged, released and settled or in flight"


def _hashes(items: Iterable[Any]) -> tuple[bytes, ...]:
    found = tuple(from_hex(item, "period-parse") for item in items)
    if any(len(item) != 32 for item in found):
        wrong("period-parse", "a hash has 32 bytes")
    return found


def _foreign(system: Any) -> list[str]:
    keys = {"connector", "instance", "read_to", "ours", "foreign", "unexplained", "error"}
    if type(system) is not dict or set(system) != keys:
        raise BrokenLedger(f"a reconciled system has exactly {', '.join(sorted(keys))}", code="reconciled-parse")
    where = f"{system['connector']} {system['instance']}"
    if system["error"]:
        return [f"the change log of {where} could not be read: {system['error']}"]
    said = []
    for name, words in (("unexplained", "with our credentials that no effect explains"), ("foreign", "by others")):
        items = system[name]
        if type(items) is not list or any(type(item) is not dict for item in items):
            raise BrokenLedger(f"{name} is a list of changes", code="reconciled-parse")
        if items:
            first = items[0]
            said.append(
                f"{where} reports {len(items)} changes {words}; the first: {first.get('target')} {first.get('field')} "
                f"by {first.get('by')} at {first.get('at')}"
            )
    return said
