"""Reminds people: at half and at four fifths of its time a question is put again before who has not decided; and escalates it."""

from __future__ import annotations

import datetime

from engine.gate.approval import escalation
from engine.ledger.entries import Fact
from governance.store import absences, approvals, cards, entries, gates, outbox, people, templates
from governance.store.approvals import Recorded
from governance.store.case import SYSTEM
from governance.store.gates import SHARES, reminded_at
from governance.store.unit import Unit


def remind(unit: Unit, approval: str) -> None:
    """Its clock has rung: say it again and set the clock anew. It never counts as an answer and moves no deadline."""
    found = approvals.load(unit, approval)
    asked, now = found.asked, unit.now()
    if asked.status != "requested" or now >= asked.expires_at:
        return
    awake = gates.of(unit).awake_at(now)
    if awake > now:
        # Quiet hours put a reminder off. When they last until the end there is none; the end itself is never put off.
        _again(unit, approval, "remind", awake if awake < asked.expires_at else None)
        return
    share = max((one for one in SHARES if now >= reminded_at(asked.requested_at, asked.expires_at, one)), default=0)
    if not share:
        _again(unit, approval, "remind", reminded_at(asked.requested_at, asked.expires_at))
        return
    absent = absences.known(unit)
    away = {name for name, one in absent.items() if one.from_at <= now}
    waiting = [name for name in cards.holders(unit, approval) if name not in away]
    names = _names(unit, waiting)
    text = (
        f"⏰ {_name(approval)} still waits, until {asked.expires_at.astimezone(datetime.UTC):%H:%M} UTC"
        f"; {share} % of its time is over. "
        + (f"Not decided yet: {names}." if names else "Nobody who could decide it is here.")
    )
    outbox.put(unit, "said", approval, {"text": text})
    if share == SHARES[-1]:
        _tell(unit, found, waiting, text)
    body = {"approval": approval, "promise": asked.promise, "share": share, "persons": waiting}
    entries.note_run(unit, asked.run, [Fact("approval.reminded", SYSTEM, body)])
    following = next((one for one in SHARES if one > share), 0)
    _again(
        unit, approval, "remind", reminded_at(asked.requested_at, asked.expires_at, following) if following else None
    )


def escalate(unit: Unit, approval: str) -> None:
    """Nobody has answered for as long as policy waits: another group is told. Who may hold a key does not change by it."""
    found = approvals.load(unit, approval)
    asked, now = found.asked, unit.now()
    rule = escalation(asked.obligations)
    if asked.status != "requested" or now >= asked.expires_at or rule is None:
        return
    group, seconds = rule
    due, awake = asked.requested_at + datetime.timedelta(seconds=seconds), gates.of(unit).awake_at(now)
    if now < due or awake > now:
        later = max(due, awake)
        _again(unit, approval, "escalate", later if later < asked.expires_at else None)
        return
    told = sorted(people.group_members(unit).get(group, frozenset()) - asked.lineage.keys())
    text = f"📣 {_name(approval)} is escalated: also with @{group} ({_names(unit, told) or 'nobody is in it'})."
    outbox.put(unit, "said", approval, {"text": text})
    _tell(unit, found, told, text)
    body = {"approval": approval, "promise": asked.promise, "group": group, "persons": told}
    entries.note_run(unit, asked.run, [Fact("approval.escalated", SYSTEM, body)])


def _tell(unit: Unit, found: Recorded, persons: list[str], text: str) -> None:
    """To each of them alone, where they have a Slack identity."""
    installed = templates.installation(unit)
    for person in persons if installed is not None else ():
        member = cards.member_of(unit, person, installed.team) if installed is not None else ""
        if member:
            outbox.put(unit, "dm", "", {"user": member, "text": f"{text} {found.action.summary}."})


def _names(unit: Unit, persons: list[str]) -> str:
    known = people.profiles(unit)
    return ", ".join(known[one].name for one in persons if one in known)


def _name(approval: str) -> str:
    return "AP-" + approval.removeprefix("ap_")[:6]


def _again(unit: Unit, approval: str, kind: str, at: datetime.datetime | None) -> None:
    """The clock rings again then; the one that has rung goes by itself."""
    if at is not None:
        unit.run(
            "update due set at = :at where tenant = :tenant and kind = :kind and ref = :ref",
            at=at,
            kind=kind,
            ref=approval,
        )
