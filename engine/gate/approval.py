"""Keys: who may turn one, how many count, and when a request for approval is satisfied. Pure; the record decides, not the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from engine.errors import Refused
from engine.gate.action import TIERS
from engine.gate.reducer import is_satisfied, progress, shortfall
from engine.gate.verdict import Verdict
from engine.limits import reason_chars_max

APPROVER_LEVEL_MIN = 4
VOTE_KINDS = ("key", "reject", "stop")
GLASS = "break_glass"  # one key where policy wants more, for what can be taken back; a debt until two others have reviewed it
reviews_needed = 2
LINEAGE = ("requester", "on_behalf_of", "owner", "editor", "delegate", "rule_author", "answerer")

_lineage_sentences = {
    "on_behalf_of": "This was asked for on your behalf; another person must decide.",
    "owner": "You own what asked for this; another person must decide.",
    "editor": "You edited this request; another person must decide.",
    "delegate": "You act for somebody who already took part; another person must decide.",
    "answerer": "You gave this answer; another person must decide.",
    "rule_author": "You wrote the rule that asks for this; another person must decide.",
}


class VoteRefused(Refused):
    """Nobody must act: this person may not do this to this request, or not now; nothing has changed."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence, code=code)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody as the tenant knows them at this moment."""

    id: str
    level: int
    active: bool
    kind: str  # human | service
    groups: frozenset[str]
    stands_in: frozenset[str] = frozenset()  # for whom, of those who are away at this moment


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for approval as recorded: what its keys bind to, how many are needed and who can never give one."""

    id: str
    tenant: str
    run: str
    promise: str
    action_digest: bytes
    card_digest: bytes
    tier: str
    keys: int
    counts: Mapping[str, int]
    groups: frozenset[str]
    status: str  # requested | approved | rejected | expired | canceled
    requested_at: datetime
    expires_at: datetime
    lineage: Mapping[str, str]
    obligations: tuple[dict[str, Any], ...] = ()
    needs: tuple[dict[str, Any], ...] = ()  # where holds ask for different things: what each of them asks for

    @property
    def wanted(self) -> dict[str, Any]:
        """What its keys must satisfy, as the reducer counts it."""
        return {"keys": self.keys, "counts": self.counts, "groups": sorted(self.groups), "needs": self.needs}


@dataclass(frozen=True, slots=True)
class Vote:
    """One recorded decision of one person; `signed_in` says that it came with a fresh sign-in (step-up)."""

    person: str
    kind: str
    at: datetime
    action_digest: bytes
    card_digest: bytes
    signed_in: bool = False
    with_reason: bool = False
    for_person: str = ""  # who was away, and in whose groups this key was turned


@dataclass(frozen=True, slots=True)
class Counted:
    """Where a request stands after a vote: its status, and how many of what this kind of vote counts towards are there."""

    status: str  # requested | approved | rejected
    given: int
    needed: int
    for_person: str = ""  # whom the voter stood in for


def vote(
    asked: Asked,
    votes: Sequence[Vote],
    people: Mapping[str, Person],
    who: Person,
    kind: str,
    action_digest16: str,
    now: datetime,
    reason: str,
    *,
    signed_in: bool = False,
    stoppable: bool = False,
) -> Counted:
    """What this vote would make of the request, or VoteRefused.

    `people` is read in the same transaction. `stoppable` says that the request is approved and no intent is written
    yet: a reject or a stop still ends it then. The vote itself is recorded by the caller.
    """
    if kind not in VOTE_KINDS:
        raise ValueError(f"no vote is of kind {kind!r}")
    _check_open(asked, kind, now, stoppable)
    _check_person(asked, who, people)
    if action_digest16 != asked.action_digest.hex()[:16]:
        _refuse(
            "stale_card",
            "This changed after it was shown to you, so your click changed nothing. Look at the newest card.",
        )
    given, needed = progress(asked.wanted, holders(asked, votes, standing(asked, votes, people, now), people))
    if kind != "key":
        _check_reason_size(reason)
        if kind == "stop" and asked.status != "approved":
            _refuse("not_approved", "This is not approved, so there is nothing to stop. Reject it instead.")
        if kind == "reject" and not reason.strip():
            _refuse("reason_required", "Say why you reject this; the person who asked reads it.")
        if asked.status == "approved":
            return Counted("rejected", given, needed)
        return _with_rejection(asked, votes, people, who)
    if any(one.kind == "reject" and one.person == who.id for one in votes):
        _refuse("same_person", "You rejected this, so you cannot give a key for it.")
    if any(one.kind == "key" and one.person == who.id and _binds(asked, one) for one in votes):
        turn = _turn_of(asked, votes, who.id)
        rest = f"; a different person must give key {turn + 1}" if turn < needed else ""
        _refuse("same_person", f"You already gave key {turn}{rest}.")
    if any(obligation["type"] == "reason" for obligation in asked.obligations) and not reason.strip():
        _refuse("reason_required", "Policy asks for a reason with each key here.")
    _check_reason_size(reason)
    return _with_key(asked, votes, people, who, now, signed_in)


def standing(asked: Asked, votes: Sequence[Vote], people: Mapping[str, Person], now: datetime) -> tuple[str, ...]:
    """The persons whose keys stand at this moment, in the order given; every key is checked again at every count."""
    found: dict[str, None] = {}
    taken_back = {given.person for given in votes if given.kind != "key"}
    for given in votes:
        if given.kind == "key" and _binds(asked, given) and given.at < asked.expires_at and given.at <= now:
            person = people.get(given.person)
            fits = person is not None and person.id == given.person and not _unfit_given(asked, person, people, given)
            # Whoever is away and whoever stands in for them are never two people.
            if fits and given.person not in taken_back and not _counterpart(asked, given, votes, people, tuple(found)):
                found[given.person] = None
    return tuple(found)


def rejecting(asked: Asked, votes: Sequence[Vote], people: Mapping[str, Person]) -> tuple[str, ...]:
    """The persons whose rejections stand at this moment, in the order given; checked again like keys."""
    persons = dict.fromkeys(given.person for given in votes if given.kind == "reject" and _binds(asked, given))
    return tuple(one for one in persons if one in people and not _unfit_holder(asked, people[one], people))


def rejections_needed(obligations: Sequence[Mapping[str, Any]]) -> int:
    """How many people must reject before it is rejected: one, unless policy asks for more; of several the fewest."""
    return min((int(one["needed"]) for one in obligations if one["type"] == "rejections"), default=1)


def window_seconds(obligations: Sequence[Mapping[str, Any]]) -> int:
    """How long an approved action is held so that one person may still stop it; of several the longest."""
    return max((int(one["seconds"]) for one in obligations if one["type"] == "hold_window"), default=0)


def escalation(obligations: Sequence[Mapping[str, Any]]) -> tuple[str, int] | None:
    """Which group is told when nobody has answered for how many seconds; of several the soonest."""
    found = [(int(one["after_s"]), str(one["group"])) for one in obligations if one["type"] == "escalate"]
    return (min(found)[1], min(found)[0]) if found else None


def satisfied(asked: Asked, votes: Sequence[Vote], people: Mapping[str, Person], now: datetime) -> bool:
    """Whether enough different people hold standing keys, in total and per group, and the request is not over."""
    # What was approved in time and is held does not expire while it is held.
    held = window_seconds(asked.obligations) if asked.status == "approved" else 0
    if now >= asked.expires_at + timedelta(seconds=held) or asked.status not in ("requested", "approved"):
        return False
    if any(given.kind == "stop" for given in votes):
        return False
    if len(rejecting(asked, votes, people)) >= rejections_needed(asked.obligations):
        return False
    persons = standing(asked, votes, people, now)
    if not is_satisfied(asked.wanted, holders(asked, votes, persons, people)):
        return False
    return not _step_up_missing(asked, votes, persons) and not _reason_missing(asked, votes, persons)


def stands(asked: Asked, verdict: Verdict, votes: Sequence[Vote], people: Mapping[str, Person], now: datetime) -> bool:
    """Whether a request's keys still satisfy it after a recheck: what was asked, and apart from it what is asked now."""
    if verdict.effect == "deny" or verdict.action_sha256 != asked.action_digest.hex():
        return False
    if not satisfied(asked, votes, people, now):
        return False
    if verdict.effect == "allow":
        return True
    if TIERS.index(verdict.tier) > TIERS.index(asked.tier):
        return False
    now_asked = replace(
        asked,
        keys=verdict.keys,
        counts=dict(verdict.counts),
        groups=frozenset(verdict.groups),
        needs=verdict.needs,
        obligations=(*asked.obligations, *verdict.obligations),
    )
    return satisfied(now_asked, votes, people, now)


def check_glass(
    asked: Asked,
    who: Person,
    people: Mapping[str, Person],
    action_digest16: str,
    now: datetime,
    *,
    reason: str,
    ticket: str,
    can_be_taken_back: bool,
    overdue: int,
    signed_in: bool,
) -> None:
    """Return when this person may break the glass for this request now; VoteRefused otherwise. The caller records it."""
    _check_open(asked, "key", now, False)
    groups = glass_groups(asked.obligations)
    if not groups:
        _refuse("no_glass", "Policy has no glass to break here: it takes every key that it asks for.")
    if _unfit(asked, who):
        _check_person(asked, who, people)
    if not who.groups & groups:
        _refuse("not_approver", f"Only {', '.join(f'@{group}' for group in sorted(groups))} may break the glass here.")
    if action_digest16 != asked.action_digest.hex()[:16]:
        _refuse("stale_card", "This changed after it was shown to you, so nothing was done. Look at the newest card.")
    if not can_be_taken_back:
        _refuse("irreversible", "This cannot be taken back, so no emergency lets one person do it alone.")
    if overdue:
        _refuse(
            "review_overdue",
            f"{overdue} broken glass{'es' if overdue > 1 else ''} should have been reviewed by now. First the review.",
        )
    if not ticket.strip() or len(ticket) > 200:
        _refuse("ticket_required", "Name the ticket of the emergency, in at most 200 characters.")
    if not reason.strip():
        _refuse("reason_required", "Say what the emergency is; two others will review it.")
    _check_reason_size(reason)
    if any(obligation["type"] == "step_up" for obligation in asked.obligations) and not signed_in:
        _refuse("step_up", "This must be done in the console, right after signing in again.")


def glass_groups(obligations: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Whose members may break the glass; empty where policy has none."""
    return frozenset(str(one["group"]) for one in obligations if one["type"] == GLASS)


def glass_stands(asked: Asked, verdict: Verdict, who: Person | None) -> bool:
    """Whether a broken glass still releases after a recheck: the same action, the same person, and policy still has the glass."""
    if who is None or verdict.effect == "deny" or verdict.action_sha256 != asked.action_digest.hex():
        return False
    return not _unfit(asked, who) and (
        verdict.effect == "allow" or bool(who.groups & glass_groups(verdict.obligations))
    )


def check_reviewer(asked: Asked, broke: str, who: Person, people: Mapping[str, Person]) -> None:
    """Return when this person may review a broken glass: anybody who could have held a key, and neither of them who took part."""
    if who.id == broke or broke in who.stands_in:
        _refuse("self", "You broke this glass, or stand in for who did; another person must review it.")
    _check_person(asked, who, people)


def check_edit(asked: Asked, who: Person, people: Mapping[str, Person], action_digest16: str, now: datetime) -> None:
    """Return when this person may change what is asked: whoever could hold a key for it, and whoever took part in asking."""
    _check_open(asked, "key", now, False)
    if who.id not in asked.lineage or who.kind != "human" or who.active is not True:
        _check_person(asked, who, people)
    elif type(who.level) is not int or who.level < APPROVER_LEVEL_MIN:
        _refuse("level", f"Changing it takes level {APPROVER_LEVEL_MIN}; yours is {who.level}.")
    if action_digest16 != asked.action_digest.hex()[:16]:
        _refuse(
            "stale_card", "This changed after it was shown to you, so nothing was changed. Look at the newest card."
        )


# --- one vote -----------------------------------------------------------------------------------------------------


def _with_rejection(asked: Asked, votes: Sequence[Vote], people: Mapping[str, Person], who: Person) -> Counted:
    """One rejection more, counted by people; it ends the request when policy does not ask for another."""
    before, needed = rejecting(asked, votes, people), rejections_needed(asked.obligations)
    if any(given.kind == "reject" and given.person == who.id for given in votes):
        _refuse("same_person", f"You rejected this already; {needed} different people must.")
    given = len(before) + 1
    return Counted("rejected" if given >= needed else "requested", given, needed)


def _with_key(
    asked: Asked,
    votes: Sequence[Vote],
    people: Mapping[str, Person],
    who: Person,
    now: datetime,
    signed_in: bool,
) -> Counted:
    absent = "" if who.groups & asked.groups else stands_for(asked, who, people)
    new = Vote(who.id, "key", now, asked.action_digest, asked.card_digest, signed_in, True, absent)
    # The voter as checked above counts, whatever an older snapshot of `people` says.
    after_people = {**people, who.id: who}
    before = standing(asked, votes, people, now)
    if _counterpart(asked, new, votes, after_people, before):
        _refuse(
            "delegate",
            "You and whoever you stand in for, or who stands in for you, count as one; one of you gave a key.",
        )
    after_votes = (*votes, new)
    persons = standing(asked, after_votes, after_people, now)
    held = holders(asked, after_votes, persons, after_people)
    if shortfall(asked.wanted, held) >= shortfall(asked.wanted, holders(asked, votes, before, people)):
        _refuse(
            "not_approver",
            f"A key from your groups is already there. Still needed: {_still_needed(asked, held)}.",
        )
    given, needed = progress(asked.wanted, held)
    if given >= needed and _step_up_missing(asked, after_votes, persons):
        _refuse("step_up", "One of the keys must be given in the console, right after signing in again.")
    return Counted("approved" if given >= needed else "requested", given, needed, absent)


def _check_open(asked: Asked, kind: str, now: datetime, stoppable: bool) -> None:
    if asked.status == "expired" or (asked.status == "requested" and now >= asked.expires_at):
        _refuse("expired", "This request expired before it was decided. Nothing was done; it can be asked again.")
    if asked.status == "canceled":
        _refuse("decided", "This request was withdrawn. Your click changed nothing.")
    if asked.status == "requested" or (asked.status == "approved" and kind != "key" and stoppable):
        return
    _refuse("decided", f"This is already {asked.status}. Your click changed nothing.")


def _check_person(asked: Asked, who: Person, people: Mapping[str, Person]) -> None:
    code = _unfit_holder(asked, who, people)
    if not code:
        return
    groups = ", ".join(f"@{group}" for group in sorted(asked.groups))
    why = asked.lineage.get(who.id, "delegate" if who.stands_in & asked.lineage.keys() else "")
    sentences = {
        "not_human": "Only a person can decide this; a service account cannot.",
        "inactive": "Your account is switched off, so you cannot decide this.",
        "level": f"Deciding takes level {APPROVER_LEVEL_MIN}; yours is {who.level}.",
        "self": "You asked for this, so you cannot hold a key.",
        "lineage": _lineage_sentences.get(why, "You took part in this request; another person must decide."),
        "not_approver": f"You are in no group that may give this key; it takes {groups}. Nothing changed.",
    }
    _refuse(code, sentences[code])


def _unfit_holder(asked: Asked, person: Person, people: Mapping[str, Person]) -> str:
    """Empty when this person may hold a key for this request, else the refusal's code."""
    code = _unfit(asked, person)
    if code:
        return code
    return "" if person.groups & asked.groups or stands_for(asked, person, people) else "not_approver"


def _unfit_given(asked: Asked, person: Person, people: Mapping[str, Person], given: Vote) -> str:
    """The same of a key that was given: turned in somebody's place, it stands and falls with that person's groups."""
    if not given.for_person:
        return _unfit(asked, person) or ("" if person.groups & asked.groups else "not_approver")
    absent = people.get(given.for_person)
    return _unfit(asked, person) or ("" if absent is not None and _lends(asked, absent) else "not_approver")


def _unfit(asked: Asked, person: Person) -> str:
    """The same, whatever groups they are in."""
    if person.kind != "human":
        return "not_human"
    if person.active is not True:
        return "inactive"
    if person.id in asked.lineage:
        return "self" if asked.lineage[person.id] == "requester" else "lineage"
    if person.stands_in & asked.lineage.keys():
        return "lineage"
    return "level" if type(person.level) is not int or person.level < APPROVER_LEVEL_MIN else ""


# --- whoever is away ----------------------------------------------------------------------------------------------


def stands_for(asked: Asked, person: Person, people: Mapping[str, Person]) -> str:
    """Whoever is away in whose place this person may turn a key; empty when there is nobody."""
    return next((one for one in sorted(person.stands_in) if one in people and _lends(asked, people[one])), "")


def may_stand_in(asked: Asked, person: Person, people: Mapping[str, Person]) -> bool:
    """Whether this person could turn a key only because somebody is away."""
    return not _unfit(asked, person) and not person.groups & asked.groups and bool(stands_for(asked, person, people))


def _lends(asked: Asked, absent: Person) -> bool:
    """Whether somebody who is away could hold a key here: only then may another one in their place."""
    return bool(absent.groups & asked.groups) and not _unfit(asked, replace(absent, stands_in=frozenset()))


def _counterpart(
    asked: Asked, given: Vote, votes: Sequence[Vote], people: Mapping[str, Person], counted: Sequence[str]
) -> str:
    """Who of these already counts for the same one person: whoever stands in for the giver, or whom the giver stands in for."""
    bound = {
        (one.person, one.for_person) for one in votes if one.kind == "key" and one.for_person and _binds(asked, one)
    }
    bound |= {(given.person, given.for_person)} if given.for_person else set()
    for other in counted:
        pairs = ((given.person, other), (other, given.person))
        if any(pair in bound or pair[1] in people[pair[0]].stands_in for pair in pairs if pair[0] in people):
            return other
        if given.for_person and (other, given.for_person) in bound:
            return other
    return ""


def _check_reason_size(reason: str) -> None:
    if len(reason) > reason_chars_max:
        _refuse("reason_required", f"A reason has at most {reason_chars_max:,} characters; yours has {len(reason):,}.")


# --- the count ----------------------------------------------------------------------------------------------------


def _binds(asked: Asked, given: Vote) -> bool:
    return given.action_digest == asked.action_digest and given.card_digest == asked.card_digest


def holders(
    asked: Asked, votes: Sequence[Vote], persons: Sequence[str], people: Mapping[str, Person]
) -> dict[str, list[str]]:
    """The groups by which each of these persons counts: their own, or those of whoever they stood in for."""
    lent = {one.person: one.for_person for one in votes if one.kind == "key" and one.for_person and _binds(asked, one)}
    return {person: sorted(people[lent.get(person, person)].groups & asked.groups) for person in persons}


def _turn_of(asked: Asked, votes: Sequence[Vote], person: str) -> int:
    order = list(dict.fromkeys(given.person for given in votes if given.kind == "key" and _binds(asked, given)))
    return order.index(person) + 1


def _still_needed(asked: Asked, held: Mapping[str, list[str]]) -> str:
    before = shortfall(asked.wanted, held)
    missing = [f"@{g}" for g in sorted(asked.groups) if shortfall(asked.wanted, {**held, "": [g]}) < before]
    return ", ".join(missing)


def _step_up_missing(asked: Asked, votes: Sequence[Vote], persons: Sequence[str]) -> bool:
    """Policy may want a fresh sign-in: at least one of the standing keys must carry it."""
    if not any(obligation["type"] == "step_up" for obligation in asked.obligations):
        return False
    return not any(
        given.signed_in is True and given.kind == "key" and given.person in persons and _binds(asked, given)
        for given in votes
    )


def _reason_missing(asked: Asked, votes: Sequence[Vote], persons: Sequence[str]) -> bool:
    """Policy may want a reason with every key, and may have begun to want it after a key was given."""
    if not any(obligation["type"] == "reason" for obligation in asked.obligations):
        return False
    said = {given.person for given in votes if given.kind == "key" and given.with_reason and _binds(asked, given)}
    return not said.issuperset(persons)


def expires_at(requested_at: datetime, verdict: Verdict) -> datetime:
    """When a request under this verdict ends unanswered."""
    return requested_at + timedelta(seconds=verdict.expires_in_s)


def _refuse(code: str, sentence: str) -> NoReturn:
    raise VoteRefused(code, sentence)
