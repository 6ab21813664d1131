"""Approvals and their votes as the gate decides by them, and the record that cards and pages show."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.canonical import decode, encode, read_json
from engine.errors import CallerError
from engine.gate.action import Action, action_from
from engine.gate.approval import Asked, Vote, window_seconds
from engine.gate.card import CardRecord
from engine.gate.reducer import progress
from engine.gate.verdict import Reason, Verdict, verdict_from
from governance.store.people import Profile
from governance.store.unit import Row, Unit


@dataclass(frozen=True, slots=True)
class Recorded:
    """An approval with its votes, the action it is about and the verdict that asked for it."""

    asked: Asked
    votes: tuple[Vote, ...]
    reasons: tuple[str, ...]  # of the votes, in the same order
    card_rev: int
    verdict_n: int
    rev: int
    action: Action
    verdict: Verdict
    workflow: str
    version: str
    trigger: str
    promise_state: str
    promise_error: str
    decided_at: datetime.datetime | None
    root: str = ""  # the first request about the same step, in whose thread this one stands
    newest: str = ""  # the newest request about the same step
    glass: str = ""  # who broke the glass for it

    @property
    def runs_at(self) -> datetime.datetime | None:
        """Until when what was approved is held, so that one person may still stop it; None when nothing holds it."""
        seconds = window_seconds(self.asked.obligations)
        if not seconds or self.glass or self.asked.status != "approved" or self.decided_at is None:
            return None
        return self.decided_at + datetime.timedelta(seconds=seconds)

    @property
    def is_held(self) -> bool:
        """Whether it was approved and has not begun."""
        return self.runs_at is not None and self.promise_state == "ready"

    @property
    def is_sign_off(self) -> bool:
        """Whether an author asks for signatures under an answer; policy asks for everything else."""
        return self.verdict_n == 0


def by_author(
    keys: int, counts: Iterable[tuple[str, int]], groups: Iterable[str], expires_in_s: int, action_sha256: str
) -> Verdict:
    """What a sign-off asks for, in the form of a verdict; no policy gave it and none is recorded."""
    return Verdict(
        effect="needs_approval", deny_kind="", retryable=False, tier="low", keys=keys, counts=tuple(counts), groups=tuple(groups),
        expires_in_s=expires_in_s, reasons=(Reason("sign_off", "the author of the workflow wants this answer signed"),), obligations=(),
        policy_revision="", engine="", engine_version="", action_sha256=action_sha256, input_sha256="", findings_sha256="",
        purpose="enforce", duration_us=0,
    )  # fmt: skip


def requirement(asked: Asked, root: str = "") -> bytes:
    """The part of an approval that has no column of its own; `root` is the first request about the same step."""
    return encode(
        {
            "counts": [[group, count] for group, count in sorted(asked.counts.items())],
            "groups": sorted(asked.groups),
            "lineage": [[person, why] for person, why in sorted(asked.lineage.items())],
            "obligations": [[[k, v] for k, v in sorted(one.items())] for one in asked.obligations],
            **({"needs": [dict(need) for need in asked.needs]} if asked.needs else {}),
            "root": root,
        }
    )


_columns = (
    "a.approval, a.run, a.promise, a.action_digest, a.card_digest, a.tier, a.keys, a.body, a.status, a.requested_at, a.expires_at, "
    "a.card_rev, a.verdict_n, a.decided_at"
)


def _asked(row: Any, tenant: str) -> Asked:
    body = decode(bytes(row[7]))
    return Asked(
        id=row[0], tenant=tenant, run=row[1], promise=row[2], action_digest=bytes(row[3]), card_digest=bytes(row[4]), tier=row[5],
        keys=row[6], counts=dict(body["counts"]), groups=frozenset(body["groups"]), status=row[8], requested_at=row[9], expires_at=row[10],
        lineage=dict(body["lineage"]), obligations=tuple(dict(one) for one in body["obligations"]),
        needs=tuple(dict(one) for one in body.get("needs", ())),
    )  # fmt: skip


def run_of(unit: Unit, approval: str) -> str:
    """Which run an approval is about: the run is locked before the approval, in every path."""
    row = unit.one("select run from approval where tenant = :tenant and approval = :approval", approval=approval)
    if row is None:
        raise CallerError(f"approval {approval[:40]} is unknown here", code="unknown_approval", field="approval",
                          next_step="`twokeys approval list` shows what waits")  # fmt: skip
    return str(row[0])


def load(unit: Unit, approval: str, *, lock: bool = False) -> Recorded:
    """One approval, complete; `lock` holds its row after the run's."""
    row = unit.one(
        f"select {_columns} from approval a where a.tenant = :tenant and a.approval = :approval"
        + (" for update" if lock else ""),
        approval=approval,
    )
    if row is None:
        run_of(unit, approval)
        raise AssertionError("an approval that has a run has a row")
    asked = _asked(row, unit.tenant)
    votes = unit.all(
        "select v.person, v.kind, v.at, v.action_digest, v.card_digest, v.reason, v.via, coalesce(m.for_person, '') from vote v "
        "left join mandate m on m.tenant = v.tenant and m.approval = v.approval and m.person = v.person and v.kind = 'key' "
        "where v.tenant = :tenant and v.approval = :approval order by v.at, v.person",
        approval=approval,
    )
    rest = unit.one(
        "select ac.body, ac.rev, v.body, r.workflow, r.code_version, r.trigger_type || ' ' || r.trigger_ref, p.state, p.last_error, "
        "p.approval, coalesce((select g.person from glass g where g.tenant = r.tenant and g.approval = :approval), '') "
        "from run r join promise p on p.tenant = r.tenant and p.run = r.run "
        "join action ac on ac.tenant = r.tenant and ac.run = r.run and ac.promise = p.promise and ac.digest = :digest "
        "left join verdict v on v.tenant = r.tenant and v.run = r.run and v.promise = p.promise and v.n = :n "
        "where r.tenant = :tenant and r.run = :run and p.promise = :promise order by ac.rev desc limit 1",
        run=asked.run, promise=asked.promise, digest=asked.action_digest, n=row[12], approval=approval,
    )  # fmt: skip
    assert rest is not None
    return Recorded(
        asked=asked, votes=tuple(_vote(v) for v in votes),
        reasons=tuple(v[5] for v in votes),
        card_rev=row[11], verdict_n=row[12], rev=rest[1], action=action_from(bytes(rest[0])),
        verdict=verdict_from(read_json(bytes(rest[2]))) if row[12] else _signed(asked),
        workflow=rest[3], version=rest[4], trigger=rest[5], promise_state=rest[6], promise_error=rest[7], decided_at=row[13],
        root=str(decode(bytes(row[7])).get("root", "")), newest=rest[8], glass=rest[9],
    )  # fmt: skip


def _vote(row: Row) -> Vote:
    person, kind, at, action, card, reason, via, absent = row
    return Vote(person, kind, at, bytes(action), bytes(card), via == "console", bool(reason.strip()), absent)


def _signed(asked: Asked) -> Verdict:
    seconds = int((asked.expires_at - asked.requested_at).total_seconds())
    return by_author(asked.keys, sorted(asked.counts.items()), sorted(asked.groups), seconds, asked.action_digest.hex())


def open_of_run(unit: Unit, run: str) -> list[str]:
    """Approvals of a run that still wait, in id order, which is the order they are locked in."""
    rows = unit.all(
        "select approval from approval where tenant = :tenant and run = :run and status = 'requested' order by approval",
        run=run,
    )
    return [row[0] for row in rows]


def of_run(unit: Unit, run: str) -> list[str]:
    """Every approval of a run, oldest first."""
    return [
        row[0]
        for row in unit.all(
            "select approval from approval where tenant = :tenant and run = :run order by requested_at, approval",
            run=run,
        )
    ]


def newest_of(unit: Unit, run: str, promise: str) -> str:
    """The newest approval of an operation; empty when nobody was asked."""
    row = unit.one(
        "select approval from approval where tenant = :tenant and run = :run and promise = :promise "
        "order by requested_at desc, approval limit 1",
        run=run, promise=promise,
    )  # fmt: skip
    return "" if row is None else str(row[0])


def waiting(unit: Unit) -> list[str]:
    """Everything that waits for people in this tenant, the nearest deadline first."""
    rows = unit.all(
        "select approval from approval where tenant = :tenant and status = 'requested' order by expires_at, approval limit 1000"
    )
    return [row[0] for row in rows]


def waiting_asked(unit: Unit) -> list[tuple[Asked, tuple[Vote, ...], int]]:
    """Everything that waits, with its votes and the revision of its card, the nearest deadline first; two reads however much it is."""
    given: dict[str, list[Vote]] = {}
    for row in unit.all(
        "select v.approval, v.person, v.kind, v.at, v.action_digest, v.card_digest, v.reason, v.via, coalesce(m.for_person, '') "
        "from vote v "
        "join approval a on a.tenant = v.tenant and a.approval = v.approval "
        "left join mandate m on m.tenant = v.tenant and m.approval = v.approval and m.person = v.person and v.kind = 'key' "
        "where v.tenant = :tenant and a.status = 'requested' order by v.at, v.person"
    ):
        given.setdefault(row[0], []).append(_vote(row[1:]))
    rows = unit.all(
        f"select {_columns} from approval a where a.tenant = :tenant and a.status = 'requested' order by a.expires_at, a.approval"
    )
    return [(_asked(row, unit.tenant), tuple(given.get(row[0], ())), row[11]) for row in rows]


def actions_of(unit: Unit, names: Sequence[str]) -> dict[str, Action]:
    """What each of these approvals is about."""
    rows = unit.all(
        "select a.approval, ac.body from approval a join lateral (select body from action x where x.tenant = a.tenant "
        "and x.run = a.run and x.promise = a.promise and x.digest = a.action_digest order by x.rev desc limit 1) ac on true "
        "where a.tenant = :tenant and a.approval = any(:names)",
        names=list(names),
    )
    return {row[0]: action_from(bytes(row[1])) for row in rows}


_running = {
    "running": "running",
    "succeeded": "done",
    "failed_terminal": "failed",
    "unknown": "unknown",
    "failed_retryable": "running",
}


def phase_of(found: Recorded) -> str:
    """What the card says: from asked to the end of the effect."""
    if found.is_held:
        return "held"
    if found.asked.status == "canceled" and found.newest not in ("", found.asked.id):
        return "superseded"
    if found.asked.status == "approved":
        return _running.get(found.promise_state, "decided")
    return {"requested": "asked"}.get(found.asked.status, found.asked.status)


def card_record(found: Recorded, profiles: Mapping[str, Profile], *, console_url: str, environment: str) -> CardRecord:
    """The approval as people see it, from the record and nothing else."""
    asked, action = found.asked, found.action

    def who(person: str) -> str:
        return profiles[person].name if person in profiles else person

    before = dict(action.preconditions)
    given = tuple(
        (
            f"{who(vote.person)} for {who(vote.for_person)}" if vote.for_person else who(vote.person),
            _minute(vote.at),
            reason,
        )
        for vote, reason in zip(found.votes, found.reasons, strict=True)
        if vote.kind == "key"
    )
    requested = next((p for p, why in asked.lineage.items() if why == "requester"), "")
    on_behalf = next((p for p, why in asked.lineage.items() if why == "on_behalf_of"), "")
    reject = next(
        ((who(v.person), r) for v, r in zip(found.votes, found.reasons, strict=True) if v.kind != "key"), ("", "")
    )
    phase = phase_of(found)
    return CardRecord(
        approval=asked.id, tenant=asked.tenant, status=asked.status, tier=asked.tier, keys=asked.keys,
        counts=tuple(sorted(asked.counts.items())), groups=tuple(sorted(asked.groups)),
        expires_at=asked.expires_at.astimezone(datetime.UTC).isoformat(),
        expires_epoch=int(asked.expires_at.timestamp()), requested_by=who(requested), on_behalf_of=who(on_behalf) if on_behalf else "",
        workflow=found.workflow, version=found.version, step=action.step, run=asked.run, connector=action.connector,
        operation=action.operation, summary=action.summary, kind=action.kind, reversible=action.reversible, reversal=action.reversal,
        target={"system": action.target.system, "type": action.target.type, "id": _target(action), "instance": action.target.instance},
        changes=tuple((f.name, before.get(f.name, ""), f.value) for f in action.fields),
        amount=_money(action), why=f"started by {found.trigger}",
        reasons=tuple((reason.code, reason.message) for reason in found.verdict.reasons), policy_revision=found.verdict.policy_revision,
        action_sha256=asked.action_digest.hex(), card_rev=found.card_rev, phase=phase, given=given,
        excluded=tuple((who(person), why) for person, why in sorted(asked.lineage.items())),
        outcome=_outcome(phase, found, reject), console_url=console_url, environment=environment,
        needs=asked.needs, wanted=_wanted(found, profiles),
    )  # fmt: skip


def _wanted(found: Recorded, profiles: Mapping[str, Profile]) -> int:
    """How many keys it takes with those that are given, by the groups that their holders are in now."""
    if not found.asked.needs:
        return 0
    keys = [vote.person for vote in found.votes if vote.kind == "key" and vote.person in profiles]
    return progress(found.asked.wanted, {person: profiles[person].groups for person in keys})[1]


def _target(action: Action) -> str:
    """The target as its people call it, with its id: what a connector reads as `number` is part of what keys bind to."""
    name = dict(action.preconditions).get("number", "")
    return f"{name} · {action.target.id}" if name else action.target.id


def _money(action: Action) -> str:
    if not action.amount_minor:
        return ""
    whole, rest = divmod(action.amount_minor, 100)
    return f"{whole:,}.{rest:02d} {action.currency}"


def posted_blocks(unit: Unit, approval: str) -> str:
    """The digest of the blocks that the posted card was sent with; empty while there is no card."""
    row = unit.one("select blocks_sha256 from card where tenant = :tenant and approval = :approval", approval=approval)
    return "" if row is None else str(row[0])


def _minute(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _outcome(phase: str, found: Recorded, reject: tuple[str, str]) -> str:
    if phase == "rejected":
        return f"Rejected by {reject[0]}: {reject[1]}"
    if phase == "held" and found.runs_at is not None:
        return f"Runs at {_minute(found.runs_at)} unless somebody who could hold a key stops it."
    if phase == "failed":
        return found.promise_error
    if phase == "unknown":
        return "The outcome is not known. A person must say what happened; nothing is retried until then."
    return {"expired": "Nothing was executed.", "canceled": "Withdrawn. Nothing was executed.", "done": "Done."}.get(
        phase, ""
    )
