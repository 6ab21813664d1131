"""The proof that the gate was passed, bound to the action's digest: the only key to a connector."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import Refused
from engine.gate.action import Action

_made_here = object()


@dataclass(frozen=True, slots=True)
class Release:
    """An approval whose keys stood when they were counted: which action it released, and by whom."""

    approval: str
    action_digest: bytes
    persons: tuple[str, ...]
    keys: int
    tier: str
    glass: bool = False  # one person broke the glass: policy lets fewer keys do, and two others owe a review


class Permit:
    """Made only by `permit`; a connector accepts nothing else. It carries the complete action and the attempt, and is used once."""

    __slots__ = (
        "_live",
        "action",
        "action_sha256",
        "approval",
        "attempt",
        "deadline_seconds",
        "key",
        "policy_revision",
        "send_by",
        "verdict_n",
    )

    def __init__(
        self,
        made_by: object,
        action: Action,
        attempt: int,
        verdict_n: int,
        revision: str,
        approval: str,
        deadline: float,
        live: bool,
    ) -> None:
        if made_by is not _made_here:
            raise TypeError("only engine.gate.permit makes a permit")
        self.action = action
        self.action_sha256 = action.digest.hex()
        self.key = action.key
        self.attempt = attempt
        self.verdict_n = verdict_n
        self.policy_revision = revision
        self.approval = approval
        self.deadline_seconds = deadline
        # By the clock that counts a suspend: the end of the lease. A connector asks right before it sends, because a
        # process that slept after every other check wakes up here, and somebody else may have begun by then.
        self.send_by = float("inf")
        self._live = live

    def use(self) -> None:
        """Spend it, right before the call: a permit performs once, and a reopened one never."""
        if not self._live:
            raise TypeError("this permit performs nothing: it is spent, or it is for looking and settling only")
        self._live = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The part of a verdict that a permit needs; `n` names the recorded verdict."""

    n: int
    effect: str
    action_sha256: str
    keys: int
    tier: str
    policy_revision: str


def permit(
    action: Action, judgement: Judgement, release: Release | None, *, attempt: int, deadline_seconds: float
) -> Permit:
    """Pass the gate: an allow for exactly this action, or a hold that exactly this action's release satisfies. Else Refused."""
    if judgement.action_sha256 != action.digest.hex():
        raise Refused("the verdict is about another action", code="other_action")
    if judgement.effect == "allow":
        approval = release.approval if release else ""
    elif judgement.effect == "needs_approval":
        if release is None:
            raise Refused("policy wants people to see this and nobody has", code="not_released")
        if not release.glass and len(set(release.persons)) < judgement.keys:
            raise Refused("more keys are needed than people have turned", code="not_enough_keys")
        approval = release.approval
    else:
        raise Refused("policy denied this", code="denied")
    if release is not None and release.action_digest != action.digest:
        raise Refused("the keys were turned for another action", code="other_action")
    return Permit(_made_here, action, attempt, judgement.n, judgement.policy_revision, approval, deadline_seconds, True)


def reopened(
    action: Action, *, attempt: int, verdict_n: int, revision: str, approval: str, deadline_seconds: float
) -> Permit:
    """The permit of an intent that is already on record, for looking and for settling only: it cannot be used."""
    return Permit(_made_here, action, attempt, verdict_n, revision, approval, deadline_seconds, False)
