"""One request for approval as a person is shown it: the whole action, who may hold a key, who may not and why, what was given."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from engine.canonical import jcs, sha256
from engine.gate import approval as gate
from engine.gate.action import Action
from engine.gate.card import CardRecord
from engine.gate.reducer import keys_needed, progress
from governance.store import approvals, glasses, people, views
from governance.store.approvals import Recorded
from governance.store.glasses import Glass
from governance.store.people import Profile
from governance.store.unit import Unit
from governance.store.views import RefusalView, VoteView

LINEAGE = {
    "requester": "asked for this",
    "on_behalf_of": "this was asked for on their behalf",
    "owner": "owns what asked for this",
    "editor": "edited this request",
    "delegate": "acts for somebody who took part",
    "answerer": "gave this answer",
    "rule_author": "wrote the rule that asks for this",
}
REFUSALS = {
    "same_person": "gave a key already",
    "self": "asked for this",
    "lineage": "took part in the request",
    "level": "level too low",
    "inactive": "account deactivated",
    "not_human": "not a person",
    "not_approver": "in none of the groups",
    "stale_card": "looked at an older version",
    "expired": "came after the deadline",
    "decided": "came after the decision",
    "reason_required": "gave no reason",
    "step_up": "did not sign in again",
    "delegate": "counts as one with somebody who gave a key",
    "no_glass": "wanted to break a glass that is not there",
    "irreversible": "wanted to break the glass for what cannot be taken back",
    "review_overdue": "wanted to break the glass while a review was overdue",
    "ticket_required": "named no ticket",
    "not_approved": "wanted to stop what was not approved",
    "unknown_person": "identity linked to nobody",
    "not_unknown": "spoke after it was settled",
    "auditor": "only reads",
    "canceling": "the run is being cancelled",
    "attempts_used_up": "no attempt is left",
}


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a decision needs to have seen, as it is now."""

    record: CardRecord
    found: Recorded
    votes: tuple[VoteView, ...]
    refusals: tuple[RefusalView, ...]
    given: int
    needed: int
    holders: tuple[Profile, ...]  # who could give a key and has not
    excluded: tuple[tuple[str, str], ...]  # name, why
    yours: str  # why the reader cannot give a key; empty when they can
    glass: Glass | None  # that was broken for it
    shown: str  # digest of what the page says about the action

    @property
    def is_open(self) -> bool:
        """Whether it waits for people."""
        return self.found.asked.status == "requested"

    @property
    def has_glass(self) -> bool:
        """Whether policy has a glass that somebody may break here."""
        return bool(gate.glass_groups(self.found.asked.obligations))

    @property
    def is_stoppable(self) -> bool:
        """Whether it is approved and has not begun, so that one person may still stop it."""
        idle = self.found.promise_state in ("ready", "failed_retryable")
        return self.found.asked.status == "approved" and idle and not self.found.is_sign_off

    @property
    def requested_at(self) -> datetime.datetime:
        """When it was asked."""
        return self.found.asked.requested_at

    @property
    def expires_at(self) -> datetime.datetime:
        """When it ends unanswered."""
        return self.found.asked.expires_at

    @property
    def step_up_seconds(self) -> int | None:
        """How fresh a sign-in policy wants for a key here; None when it does not ask, 0 when the token is typed each time."""
        ages = [int(one.get("max_age_s", 0)) for one in self.found.asked.obligations if one["type"] == "step_up"]
        return min(ages, default=None)

    @property
    def needs_reason(self) -> bool:
        """Whether each key needs a reason."""
        return any(one["type"] == "reason" for one in self.found.asked.obligations)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What would change."""
        return changes(self.found.action)

    @property
    def digest16(self) -> str:
        """What a decision names."""
        return self.record.action_sha256[:16]


def load(unit: Unit, approval: str, me: Profile | None, console_url: str) -> Question:
    """The request as it is at this moment."""
    found = approvals.load(unit, approval)
    profiles = people.profiles(unit)
    record = approvals.card_record(
        found, profiles, console_url=console_url, environment=people.tenant(unit).environment
    )
    crowd = {name: people.as_person(p) for name, p in profiles.items()}
    asked, now = found.asked, unit.now()
    given, needed = sum(1 for vote in found.votes if vote.kind == "key"), keys_needed(asked.keys, asked.counts)
    if asked.status == "requested":
        # While it waits, only keys that stand at this moment count.
        standing = gate.standing(asked, found.votes, crowd, now)
        given, needed = progress(asked.wanted, gate.holders(asked, found.votes, standing, crowd))
    yours = _yours(found, crowd, people.as_person(me), now) if me is not None else ""
    return Question(
        record=record, found=found, votes=views.votes(unit, approval), refusals=views.refusals(unit, approval),
        given=given, needed=max(given, needed),
        holders=_holders(found, profiles, crowd), excluded=_excluded(found, profiles), yours=yours,
        glass=glasses.of(unit, approval) if found.glass else None, shown=shown(record),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One field: what it is now, None when that was not read, and what it would be."""

    name: str
    op: str
    before: str | None
    after: str


def changes(action: Action) -> tuple[Change, ...]:
    """Each field of an action."""
    before = dict(action.preconditions)
    return tuple(Change(f.name, f.op, before.get(f.name), f.value) for f in action.fields)


def shown(record: CardRecord) -> str:
    """The digest of what the page says about the action: the same until the action, the target or the rule changes."""
    said = [
        record.approval, record.action_sha256, record.summary, record.kind, record.tier, record.keys, list(map(list, record.counts)),
        list(record.groups), record.connector, record.operation, sorted(map(list, record.target.items())), list(map(list, record.changes)),
        record.amount, record.why, list(map(list, record.reasons)), record.policy_revision, record.reversible, record.reversal,
        record.workflow, record.version, record.step, record.run, record.requested_by, record.on_behalf_of, record.environment,
        *([[*need["groups"], need["keys"], list(need["counts"])] for need in record.needs]),
    ]  # fmt: skip
    return sha256(jcs(said)).hex()


def _holders(found: Recorded, profiles: Mapping[str, Profile], crowd: Mapping[str, gate.Person]) -> tuple[Profile, ...]:
    """Who could turn a key and has not, those included who stand in for somebody."""
    gave = {vote.person for vote in found.votes if vote.kind == "key"}
    return tuple(
        p for p in profiles.values()
        if p.person not in gave and (not _unfit(found, p) or gate.may_stand_in(found.asked, crowd[p.person], crowd))
    )  # fmt: skip


def _unfit(found: Recorded, profile: Profile) -> str:
    """Why somebody of the groups cannot hold a key; `outside` for everybody else."""
    if profile.person in found.asked.lineage:
        return LINEAGE.get(found.asked.lineage[profile.person], "took part in the request")
    if set(profile.stands_in) & found.asked.lineage.keys():
        return LINEAGE["delegate"]
    if not set(profile.groups) & found.asked.groups:
        return "outside"
    if profile.kind != "human":
        return "is not a person"
    if not profile.active:
        return "is deactivated"
    if profile.read_only:
        return "only reads"
    return (
        "" if profile.level >= gate.APPROVER_LEVEL_MIN else f"has level {profile.level}, not {gate.APPROVER_LEVEL_MIN}"
    )


def _excluded(found: Recorded, profiles: Mapping[str, Profile]) -> tuple[tuple[str, str], ...]:
    reasons = ((p.name, _unfit(found, p)) for p in profiles.values())
    return tuple((name, why) for name, why in reasons if why not in ("", "outside"))


def _yours(found: Recorded, crowd: Mapping[str, gate.Person], me: gate.Person, now: datetime.datetime) -> str:
    """What the choke point would answer; only shown, decided there."""
    try:
        gate.vote(
            found.asked,
            found.votes,
            crowd,
            me,
            "key",
            found.asked.action_digest.hex()[:16],
            now,
            "a reason",
            signed_in=True,
        )
    except gate.VoteRefused as refused:
        return refused.sentence
    return ""
