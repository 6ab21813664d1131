"""What the entries of a run say of its parent, its children and the code it was moved to, held against its journal and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from engine.canonical import tagged
from engine.errors import BrokenLedger
from engine.ledger.entries import Entry
from engine.ledger.layout import CODE_DIRECTORY, COMPONENT_TAG, code_name

OWN_CONNECTOR = "twokeys"


def check_parent(start: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """The first event of the journal names the operation that started the run, and so do its entries."""
    named = [(body["run"], body["promise"]) for body in _bodies(entries, "parent.named")] or [(entries[0].chain, "")]
    inner = start.get("event")
    said = inner.get("parent_id") if type(inner) is dict else None
    if type(said) is not list or not said or [(said[0], ".".join(map(str, said[1:])))] != named:
        _astray("journal-parent", "the journal names another parent than the entries of the run")


def check_moves(entries: Sequence[Entry], code: Mapping[str, bytes | memoryview]) -> None:
    """Each code that the run was moved to follows the one before it, and is here, and nothing else is."""
    pinned, moved = entries[0].body["definition_sha256"], set()
    for body in _bodies(entries, "run.migrated"):
        name = code_name(body["definition_sha256"]).removeprefix(CODE_DIRECTORY)
        if body["from_sha256"] != pinned:
            _astray("code-order", f"the run was moved from {body['from_sha256'][:16]} and ran on {pinned[:16]}")
        if name not in code:
            _astray("code-missing", f"the code {name[:16]} that the run was moved to is not in the bundle")
        pinned = body["definition_sha256"]
        if tagged(COMPONENT_TAG, bytes(code[name])).hex() != pinned:
            _astray("code-digest", f"{name[:16]} is not the code that the run was moved to")
        moved.add(name)
    foreign = sorted(code.keys() - moved)
    if foreign:
        _astray("code-foreign", f"the run was never moved to the code {foreign[0][:16]}")


class Family:
    """What the entries of a run tell of its parent, its children and its editors, in order; refuses what could not have been."""

    def __init__(self, started: frozenset[tuple[str, int]]) -> None:
        self._started = started
        self._parent = ""
        self._open: dict[str, dict[str, Any]] = {}  # children by promise, those whose end has not come
        self._born: set[str] = set()
        self._editors: set[str] = set()
        self._people = 0  # that a change of the product's own rules takes
        self.trigger = ""
        self.rules: dict[str, Callable[[Entry], None]] = {
            "parent.named": self._named,
            "run.migrated": self._moved,
            "change.proposed": self._changes,
            "child.started": self._begun,
            "child.ended": self._ended,
            "run.continued": self._continued,
        }

    def check_asked(self, lineage: set[str], keys: int) -> None:
        """Who moved the run, or wrote what it would bring into force, can hold no key for it; and keys are as many as were said."""
        if self._editors - lineage:
            _astray(
                "approval-lineage",
                f"{min(self._editors - lineage)} edited what is asked and is missing from the lineage",
            )
        if keys < self._people:
            _astray(
                "change-keys", f"a change that takes {self._people} people besides its authors asks for {keys} keys"
            )

    @property
    def is_change(self) -> bool:
        """Whether the run changes the product's own rules, which is never done without keys."""
        return bool(self._people)

    def close(self) -> None:
        """At the end of the run."""
        if self.trigger == "child" and not self._parent:
            _astray("parent-named", "another run started this one and is not named")
        for promise, child in self._open.items():
            _astray("child-open", f"promise {promise} started run {child['run'][:40]}, whose end is not told")

    def _named(self, entry: Entry) -> None:
        if self.trigger != "child" or self._parent or entry.chain_seq != 1:
            _astray("parent-named", "a parent is named once, right at the start of a run that another one started")
        self._parent = entry.body["run"]

    def _moved(self, entry: Entry) -> None:
        person = entry.body["person"]
        if entry.actor != {"type": "person", "id": person}:
            _astray("move-person", f"the run was moved to other code by {person[:40]} and by {entry.actor['id']}")
        self._editors.add(person)

    def _changes(self, entry: Entry) -> None:
        if self._people or entry.chain_seq != 1 or not 1 <= entry.body["people"] <= 2:
            _astray("change-proposed", "what a run changes of the product's own rules is said once, right at its start")
        self._people = entry.body["people"]
        self._editors |= set(entry.body["authors"])

    def check_proposed(self, connector: str) -> None:
        """Only a run that was begun for it changes the product's own rules."""
        if connector == OWN_CONNECTOR and not self._people:
            _astray("change-proposed", "a change of the product's own rules that nobody proposed as one")

    def _begun(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._born:
            _astray("child-twice", f"promise {promise[:40]} started two runs")
        if (promise, 1) not in self._started:
            _astray("child-journal", f"the journal does not start promise {promise[:40]}")
        self._born.add(promise)
        self._open[promise] = entry.body

    def _continued(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._born:
            _astray("child-twice", f"promise {promise[:40]} started two runs")
        if (promise, 1) not in self._started:
            _astray("child-journal", f"the journal does not start promise {promise[:40]}")
        self._born.add(promise)

    def _ended(self, entry: Entry) -> None:
        body = entry.body
        begun = self._open.pop(body["promise"], None)
        if begun is None or begun["run"] != body["run"]:
            _astray(
                "child-other", f"run {body['run'][:40]} ended and is not the open child of promise {body['promise']}"
            )


def _bodies(entries: Sequence[Entry], kind: str) -> list[dict[str, Any]]:
    return [entry.body for entry in entries if entry.type == kind]


def _astray(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
