"""What the entries of a run say of its parent and of the code that it was moved to, held against its journal and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from engine.canonical import tagged
from engine.errors import BrokenLedger
from engine.ledger.entries import Entry
from engine.ledger.layout import CODE_DIRECTORY, COMPONENT_TAG, code_name


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


def _bodies(entries: Sequence[Entry], kind: str) -> list[dict[str, Any]]:
    return [entry.body for entry in entries if entry.type == kind]


def _astray(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
