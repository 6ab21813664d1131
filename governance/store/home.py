"""What one person has before them, in a handful of reads however much waits: for them, for others, under way, and what they decided."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import CallerError
from engine.gate import approval as gate
from engine.gate.action import Action, action_from
from engine.gate.reducer import progress
from governance.store import approvals, people, tasks
from governance.store.people import Profile
from governance.store.unit import Unit

shown_max = 20
others_max = 10
runs_max = 10
decisions_max = 10

_Open = tuple[gate.Asked, tuple[gate.Vote, ...], int]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that waits for people; texts are raw and may be hostile, whoever renders them makes them harmless."""

    ref: str  # ap_... or ta_...
    summary: str
    target: str
    tier: str  # empty for a task
    given: int
    needed: int
    expires_at: datetime.datetime
    card_rev: int
    digest16: str

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.ref[:2].upper()}-{self.ref[3:9]}"

    @property
    def is_task(self) -> bool:
        """Whether an author asks for an answer; policy asks for everything else."""
        return self.ref.startswith("ta_")


@dataclass(frozen=True, slots=True)
class Under:
    """A run that this person started and that is not over."""

    run: str
    workflow: str
    state: str
    created_at: datetime.datetime


@dataclass(frozen=True, slots=True)
class Decided:
    """One key or rejection that this person gave."""

    approval: str
    kind: str
    at: datetime.datetime
    summary: str
    status: str


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything on one person's home; the lists are cut, the counts are not."""

    yours: tuple[Item, ...]
    yours_count: int
    others: tuple[Item, ...]
    others_count: int
    runs: tuple[Under, ...]
    decided: tuple[Decided, ...]


def desk(unit: Unit, me: Profile) -> Desk:
    """What waits for this person and for others, what they have under way and what they decided last."""
    now, crowd = unit.now(), {name: people.as_person(one) for name, one in people.profiles(unit).items()}
    mine: list[_Open] = []
    others: list[_Open] = []
    for one in approvals.waiting_asked(unit):
        asked, votes, _ = one
        if _could(asked, votes, crowd, me.person, now):
            mine.append(one)
        elif me.person in asked.lineage or any(vote.person == me.person for vote in votes):
            others.append(one)
    forms = tasks.waiting(unit, tasks.groups_of(me), None, shown_max) if not me.read_only and me.active else ()
    count = tasks.waiting_count(unit, tasks.groups_of(me)) if forms else 0
    cut = [*mine[:shown_max], *others[:others_max]]
    actions = approvals.actions_of(unit, [one[0].id for one in cut])
    items = {one[0].id: _item(one, actions[one[0].id], crowd, now) for one in cut}
    waiting = [*(items[one[0].id] for one in mine[:shown_max]), *map(_form, forms)]
    yours = sorted(waiting, key=lambda item: (item.expires_at, item.ref))
    return Desk(
        yours=tuple(yours[:shown_max]), yours_count=len(mine) + count, others=tuple(items[one[0].id] for one in others[:others_max]),
        others_count=len(others), runs=_runs(unit, me.person), decided=_decided(unit, me.person),
    )  # fmt: skip


def named(unit: Unit, name: str) -> str:
    """The approval or task that people call `AP-1a2b3c`, or its whole id; a refusal when it is none or more than one."""
    kind, _, digits = name.strip().lower().replace("_", "-").partition("-")
    tables = {"ap": "approval", "ta": "task", "un": "doubt"}
    if kind not in tables or not 6 <= len(digits) <= 16 or not set(digits) <= set("0123456789abcdef"):
        raise CallerError(
            f"{name[:40]} is not the name of a request", field="name", next_step="such as AP-1a2b3c, from the card"
        )
    table = tables[kind]
    rows = unit.all(
        f"select {table} from {table} where tenant = :tenant and {table} like :like limit 2", like=f"{kind}_{digits}%"
    )
    if len(rows) != 1:
        what = "unknown here" if not rows else "the name of more than one request"
        raise CallerError(
            f"{name[:40]} is {what}", code="unknown_approval", field="name", next_step="give more digits of its id"
        )
    return str(rows[0][0])


def run_named(unit: Unit, name: str) -> str:
    """The run whose id begins so."""
    digits = name.strip().lower()
    if not 6 <= len(digits) <= 64 or not digits.replace("_", "").replace("-", "").isalnum():
        raise CallerError(
            f"{name[:40]} is not the id of a run",
            field="run",
            next_step="give at least six letters of it, from the card",
        )
    rows = unit.all("select run from run where tenant = :tenant and starts_with(run, :begin) limit 2", begin=digits)
    if len(rows) != 1:
        what = "unknown here" if not rows else "how more than one run begins"
        raise CallerError(
            f"run {name[:40]} is {what}", code="unknown_run", field="run", next_step="give more of its id"
        )
    return str(rows[0][0])


def _could(
    asked: gate.Asked, votes: Sequence[gate.Vote], crowd: dict[str, gate.Person], me: str, now: datetime.datetime
) -> bool:  # fmt: skip
    """What the choke point would answer; only listed, decided there."""
    try:
        gate.vote(
            asked, votes, crowd, crowd[me], "key", asked.action_digest.hex()[:16], now, "a reason", signed_in=True
        )
    except gate.VoteRefused:
        return False
    return True


def _item(one: _Open, action: Action, crowd: dict[str, gate.Person], now: datetime.datetime) -> Item:
    asked, votes, rev = one
    given, needed = progress(asked.wanted, gate.holders(asked, votes, gate.standing(asked, votes, crowd, now), crowd))
    before = dict(action.preconditions)
    return Item(
        ref=asked.id, summary=action.summary, target=before.get("number") or action.target.id, tier=asked.tier, given=given,
        needed=needed, expires_at=asked.expires_at, card_rev=rev, digest16=asked.action_digest.hex()[:16],
    )  # fmt: skip


def _form(task: tasks.TaskRecord) -> Item:
    return Item(task.task, task.form.title, "", "", 0, 0, task.expires_at, task.card_rev, task.digest16)


def _runs(unit: Unit, person: str) -> tuple[Under, ...]:
    rows = unit.all(
        "select r.run, r.workflow, case when exists (select 1 from promise p where p.tenant = r.tenant and p.run = r.run "
        "and p.state = 'unknown') then 'unknown' else r.state end, r.created_at from run r "
        "where r.tenant = :tenant and r.ended_at is null and (r.started_by = :me or r.on_behalf_of = :me or r.owner = :me) "
        "order by r.created_at desc limit :n",
        me=person, n=runs_max,
    )  # fmt: skip
    return tuple(Under(*row) for row in rows)


def _decided(unit: Unit, person: str) -> tuple[Decided, ...]:
    rows = unit.all(
        "select v.approval, v.kind, v.at, ac.body, a.status from vote v "
        "join approval a on a.tenant = v.tenant and a.approval = v.approval "
        "join lateral (select body from action x where x.tenant = a.tenant and x.run = a.run and x.promise = a.promise "
        "and x.digest = a.action_digest order by x.rev desc limit 1) ac on true "
        "where v.tenant = :tenant and v.person = :me order by v.at desc limit :n",
        me=person, n=decisions_max,
    )  # fmt: skip
    return tuple(Decided(row[0], row[1], row[2], action_from(bytes(row[3])).summary, row[4]) for row in rows)
