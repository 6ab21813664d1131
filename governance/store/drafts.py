"""Drafts of policies with every edit and its author, and the recorded decisions that a draft is replayed over."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from engine.canonical import decode, encode
from engine.catalog.draft import Draft, draft_from
from engine.errors import CallerError
from engine.gate.replay import Tally, tally_from
from governance.store.unit import Row, Unit


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """A draft as it is now."""

    name: str
    base_revision: str
    state: str
    revision: str  # what it was published as
    created_by: str
    created_at: datetime.datetime
    n: int  # its newest edit
    author: str
    authors: tuple[str, ...]  # everybody who ever edited it: none of them may approve it
    changed_at: datetime.datetime
    draft: Draft


@dataclass(frozen=True, slots=True)
class Decision:
    """A recorded verdict with what came of it."""

    run: str
    promise: str
    n: int
    purpose: str
    effect: str
    revision: str
    body: bytes
    input_bytes: bytes
    decided: str


@dataclass(slots=True)
class Position:
    """How far a replay has come."""

    draft: str
    n: int
    base_revision: str
    revision: str
    days: int | None
    since: datetime.datetime | None
    until: datetime.datetime
    run: str
    promise: str
    verdict_n: int
    seen: int
    done: bool
    tally: Tally


def create(unit: Unit, name: str, base_revision: str, author: str, draft: Draft) -> None:
    """A new draft with its first edit; refused when the name is taken."""
    made = unit.run(
        "insert into policy_draft (tenant, draft, base_revision, created_by) values (:tenant, :draft, :base, :author) "
        "on conflict do nothing",
        draft=name, base=base_revision, author=author,
    )  # fmt: skip
    if not made.rowcount:
        raise CallerError(
            f"there is a draft {name!r} already", code="taken", field="draft", next_step="choose another name"
        )
    _put(unit, name, 1, author, draft)


def edit(unit: Unit, name: str, author: str, draft: Draft) -> int:
    """One more edit, unless nothing changed; its number."""
    found = unit.one("select state from policy_draft where tenant = :tenant and draft = :draft for update", draft=name)
    if found is None:
        raise _unknown(name)
    if found[0] != "open":
        raise CallerError(
            f"draft {name!r} is {found[0]}", code="closed", field="draft", next_step="begin another with `policy new`"
        )
    newest = unit.one(
        "select n, digest from policy_edit where tenant = :tenant and draft = :draft order by n desc limit 1",
        draft=name,
    )
    assert newest is not None
    if bytes(newest[1]) == draft.digest:
        return int(newest[0])
    _put(unit, name, int(newest[0]) + 1, author, draft)
    return int(newest[0]) + 1


def _put(unit: Unit, name: str, n: int, author: str, draft: Draft) -> None:
    unit.run(
        "insert into policy_edit (tenant, draft, n, author, digest, body) values (:tenant, :draft, :n, :author, :digest, :body)",
        draft=name, n=n, author=author, digest=draft.digest, body=draft.body,
    )  # fmt: skip


def free_name(unit: Unit, name: str) -> str:
    """This name, or the first with a number that no draft has."""
    taken = {row[0] for row in unit.all("select draft from policy_draft where tenant = :tenant")}
    return next(one for one in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if one not in taken)


def rebase(unit: Unit, name: str, base_revision: str) -> None:
    """From now on the draft is one of this revision."""
    unit.run(
        "update policy_draft set base_revision = :base where tenant = :tenant and draft = :draft and state = 'open'",
        draft=name, base=base_revision,
    )  # fmt: skip


def close(unit: Unit, name: str, state: str, revision: str = "") -> None:
    """Withdrawn, or published as this revision."""
    done = unit.run(
        "update policy_draft set state = :state, revision = :revision where tenant = :tenant and draft = :draft and state = 'open'",
        draft=name, state=state, revision=revision,
    )  # fmt: skip
    if not done.rowcount:
        raise CallerError(f"there is no open draft {name!r}", code="unknown_draft", field="draft")


_select = (
    "select d.draft, d.base_revision, d.state, d.revision, d.created_by, d.created_at, e.n, e.author, e.at, e.body, "
    "(select array_agg(distinct a.author order by a.author) from policy_edit a where a.tenant = d.tenant and a.draft = d.draft) "
    "from policy_draft d join policy_edit e on e.tenant = d.tenant and e.draft = d.draft "
    "where d.tenant = :tenant and e.n = (select max(n) from policy_edit m where m.tenant = d.tenant and m.draft = d.draft)"
)


def load(unit: Unit, name: str) -> DraftRecord:
    """A draft with its newest edit."""
    row = unit.one(f"{_select} and d.draft = :draft", draft=name)
    if row is None:
        raise _unknown(name)
    return _record(row)


def edits(unit: Unit, name: str) -> list[tuple[str, bytes]]:
    """Every edit of a draft, oldest first: who made it, and the whole draft after it."""
    rows = unit.all(
        "select author, body from policy_edit where tenant = :tenant and draft = :draft order by n", draft=name
    )
    return [(row[0], bytes(row[1])) for row in rows]


def published_as(unit: Unit, revision: str) -> DraftRecord | None:
    """The draft that became this revision; None when it was shipped or imported."""
    row = unit.one(f"{_select} and d.revision = :revision order by d.created_at desc limit 1", revision=revision)
    return None if row is None else _record(row)


def listed(unit: Unit) -> list[DraftRecord]:
    """Every draft, the newest first."""
    return [_record(row) for row in unit.all(f"{_select} order by d.created_at desc, d.draft")]


def _record(row: Row) -> DraftRecord:
    return DraftRecord(
        name=row[0], base_revision=row[1], state=row[2], revision=row[3], created_by=row[4], created_at=row[5], n=row[6],
        author=row[7], changed_at=row[8], draft=draft_from(bytes(row[9])), authors=tuple(row[10]),
    )  # fmt: skip


def _unknown(name: str) -> CallerError:
    return CallerError(
        f"there is no draft {name!r}", code="unknown_draft", field="draft", next_step="`twokeys policy list`"
    )


# --- recorded decisions -------------------------------------------------------------------------------------------------

_recorded = (
    "from verdict v where v.tenant = :tenant and v.purpose in ('enforce', 'recheck') "
    "and (cast(:since as timestamptz) is null or v.at >= :since) and v.at <= :until"
)


def count_decisions(unit: Unit, since: datetime.datetime | None, until: datetime.datetime) -> int:
    """How many verdicts were recorded in this time."""
    row = unit.one(f"select count(*) {_recorded}", since=since, until=until)
    assert row is not None
    return int(row[0])


def decisions(
    unit: Unit,
    since: datetime.datetime | None,
    until: datetime.datetime,
    after: tuple[str, str, int],
    limit: int,
) -> list[Decision]:
    """The next recorded verdicts in the order of their names, each with what people decided about it."""
    rows = unit.all(
        "select v.run, v.promise, v.n, v.purpose, v.effect, v.revision, v.body, v.input, coalesce((select a.status from approval a "
        "where a.tenant = v.tenant and a.run = v.run and a.promise = v.promise and a.verdict_n = v.n limit 1), 'nobody asked') "
        f"{_recorded} and (v.run, v.promise, v.n) > (:run, :promise, :n) order by v.run, v.promise, v.n limit :limit",
        since=since, until=until, run=after[0], promise=after[1], n=after[2], limit=limit,
    )  # fmt: skip
    return [_decision(row) for row in rows]


def decisions_of_run(unit: Unit, run: str) -> list[Decision]:
    """The recorded verdicts of one run."""
    rows = unit.all(
        "select v.run, v.promise, v.n, v.purpose, v.effect, v.revision, v.body, v.input, coalesce((select a.status from approval a "
        "where a.tenant = v.tenant and a.run = v.run and a.promise = v.promise and a.verdict_n = v.n limit 1), 'nobody asked') "
        "from verdict v where v.tenant = :tenant and v.run = :run order by v.promise, v.n",
        run=run,
    )
    return [_decision(row) for row in rows]


def _decision(row: Row) -> Decision:
    run, promise, n, purpose, effect, revision, body, asked, decided = row
    return Decision(run, promise, n, purpose, effect, revision, bytes(body), bytes(asked), decided)


def key_seconds(unit: Unit) -> tuple[int, float]:
    """(keys given, seconds from asking to each of them on average) of this tenant."""
    row = unit.one(
        "select count(*), coalesce(avg(extract(epoch from v.at - a.requested_at)), 0) from vote v join approval a "
        "on a.tenant = v.tenant and a.approval = v.approval where v.tenant = :tenant and v.kind = 'key'"
    )
    assert row is not None
    return int(row[0]), max(0.0, float(row[1]))


# --- where a replay stands ----------------------------------------------------------------------------------------------


def position(unit: Unit, name: str, n: int, base_revision: str) -> Position | None:
    """How far the replay of this edit against this revision has come."""
    row = unit.one(
        "select draft, n, base_revision, revision, days, since, until, run, promise, verdict_n, seen, done, body "
        "from policy_replay where tenant = :tenant and draft = :draft and n = :n and base_revision = :base",
        draft=name, n=n, base=base_revision,
    )  # fmt: skip
    if row is None:
        return None
    draft, edit_n, base, revision, days, since, until, run, promise, verdict_n, seen, done, body = row
    tally = tally_from(decode(bytes(body)))
    return Position(draft, edit_n, base, revision, days, since, until, run, promise, verdict_n, seen, done, tally)


def keep_position(unit: Unit, at: Position) -> None:
    """Store how far it has come."""
    unit.run(
        "insert into policy_replay (tenant, draft, n, base_revision, revision, days, since, until, run, promise, verdict_n, seen, "
        "done, body) values (:tenant, :draft, :n, :base, :revision, :days, :since, :until, :run, :promise, :verdict_n, :seen, :done, "
        ":body) on conflict (tenant, draft, n, base_revision) do update set revision = excluded.revision, "
        "days = excluded.days, since = excluded.since, "
        "until = excluded.until, run = excluded.run, promise = excluded.promise, verdict_n = excluded.verdict_n, "
        "seen = excluded.seen, done = excluded.done, body = excluded.body, changed_at = clock_timestamp()",
        draft=at.draft, n=at.n, base=at.base_revision, revision=at.revision, days=at.days, since=at.since, until=at.until, run=at.run,
        promise=at.promise, verdict_n=at.verdict_n, seen=at.seen, done=at.done, body=encode(at.tally.to_value()),
    )  # fmt: skip


# --- shadow -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A question on which a draft in the shadow differed from the policy in force."""

    n: int
    request: str
    how: str  # tighter | looser | fault
    old: str
    new: str
    body: bytes
    at: datetime.datetime


def shadowed(unit: Unit) -> DraftRecord | None:
    """The draft that is judged beside the policy in force; a tenant has one or none."""
    row = unit.one(f"{_select} and d.shadow and d.state = 'open'")
    return None if row is None else _record(row)


def set_shadow(unit: Unit, name: str, on: bool) -> None:
    """Judge this draft beside the policy in force, instead of any other; or no longer."""
    if on:
        unit.run(
            "update policy_draft set shadow = false where tenant = :tenant and shadow and draft <> :draft", draft=name
        )
    done = unit.run(
        "update policy_draft set shadow = :on where tenant = :tenant and draft = :draft and (state = 'open' or not :on)",
        draft=name, on=on,
    )  # fmt: skip
    if not done.rowcount:
        raise CallerError(f"there is no open draft {name!r}", code="unknown_draft", field="draft")


def put_differences(unit: Unit, name: str, found: Sequence[Difference]) -> None:
    """Store what differed; a question that was judged twice is told once."""
    unit.many(
        "insert into policy_shadow (tenant, draft, n, request, how, old, new, body) values (:tenant, :draft, :n, :request, :how, :old, "
        ":new, :body) on conflict do nothing",
        [
            {
                "draft": name,
                "n": one.n,
                "request": one.request,
                "how": one.how,
                "old": one.old,
                "new": one.new,
                "body": one.body,
            }
            for one in found
        ],
    )


def differences(unit: Unit, name: str, limit: int) -> list[Difference]:
    """What differed last, looser ones first."""
    rows = unit.all(
        "select n, request, how, old, new, body, at from policy_shadow where tenant = :tenant and draft = :draft "
        "order by how <> 'looser', at desc limit :limit",
        draft=name, limit=limit,
    )  # fmt: skip
    return [Difference(row[0], row[1], row[2], row[3], row[4], bytes(row[5]), row[6]) for row in rows]
