"""What one approval shows to people, as one record: cards, modals and pages are rendered from it and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.canonical import tagged
from engine.errors import CallerError

PHASES = (
    "asked",
    "held",
    "decided",
    "running",
    "done",
    "failed",
    "unknown",
    "rejected",
    "expired",
    "canceled",
    "superseded",
)
OPEN = "asked"  # the only phase in which a key may be given


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRecord:
    """One approval as people see it; texts are raw and may be hostile, whoever renders them makes them harmless."""

    approval: str
    tenant: str
    status: str
    tier: str
    keys: int
    counts: tuple[tuple[str, int], ...]
    groups: tuple[str, ...]
    expires_at: str
    expires_epoch: int
    requested_by: str
    on_behalf_of: str
    workflow: str
    version: str
    step: str
    run: str
    connector: str
    operation: str
    summary: str
    kind: str
    reversible: bool
    reversal: str
    target: Mapping[str, str]  # system, type, id, instance
    changes: tuple[tuple[str, str, str], ...]  # field, before, after
    amount: str
    why: str
    reasons: tuple[tuple[str, str], ...]  # code, message
    policy_revision: str
    action_sha256: str
    card_rev: int
    phase: str
    given: tuple[tuple[str, str, str], ...]  # who, when (UTC), reason
    excluded: tuple[tuple[str, str], ...]  # who, why
    outcome: str
    console_url: str
    environment: str
    # Where holds ask for different things: what each asks for, and how many keys it takes with those that are given.
    needs: tuple[Mapping[str, Any], ...] = ()
    wanted: int = 0

    @property
    def name(self) -> str:
        """What people call it: `AP-1a2b3c` for `ap_1a2b3c...`."""
        return "AP-" + self.approval.removeprefix("ap_")[:6]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for people."""
        return self.phase == OPEN

    @property
    def is_sign_off(self) -> bool:
        """Whether what people answered is to be signed; nothing outside changes by it."""
        return (self.connector, self.operation) == ("task", "sign_off")

    @property
    def irreversible(self) -> bool:
        """Whether what is asked for cannot be taken back."""
        return not self.reversible or self.reversal == "none"


def demand(need: Mapping[str, Any]) -> str:
    """What one hold asks for in words, such as `2 of finance or security, at least 1 of finance`."""
    counts = dict(need["counts"])
    said = f"{max(need['keys'], sum(counts.values()))} of {' or '.join(need['groups'])}"
    if not counts or len(need["groups"]) == 1:
        return said
    return f"{said}, at least {' and '.join(f'{n} of {group}' for group, n in sorted(counts.items()))}"


def card_digest(action_sha256: str, body: bytes) -> bytes:
    """What keys bind to beside the action: sha256(tag, action digest and the JCS bytes of the asked-phase body)."""
    action = bytes.fromhex(action_sha256)
    if len(action) != 32:
        raise CallerError("an action digest has 32 bytes", code="not_a_digest", field="action_sha256")
    return tagged("twokeys/card/v1", action + body)
