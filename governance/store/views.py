"""Everything that pages and the API read, as frozen values; nothing here is ever used to decide."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate.action import Action, action_from
from engine.gate.verdict import Verdict, verdict_from
from engine.ledger.entries import Entry, read_entry
from governance.store import caps, entries
from governance.store.people import Profile, profiles
from governance.store.unit import Row, Unit

# A run with an operation whose outcome nobody knows is shown as such, whatever else it does.
STATES = (
    "queued", "running", "waiting_approval", "waiting_task", "unknown", "failed_retryable", "succeeded", "failed_terminal", "canceled",
)  # fmt: skip
ENDED = ("succeeded", "failed_terminal", "canceled")

_state = (
    "case when r.ended_at is null and exists (select 1 from promise u where u.tenant = r.tenant and u.run = r.run "
    "and u.state = 'unknown') then 'unknown' else r.state end"
)
_row = (
    f"r.run, r.workflow, r.code_version, {_state} as shown, r.trigger_type, r.trigger_ref, r.started_by, r.created_at, r.started_at, "
    "r.ended_at, r.owner, r.on_behalf_of, r.definition, r.cancel_requested, r.events, r.writes, "
    "coalesce((select w.state || ': ' || r.error from work w where w.tenant = r.tenant and w.run = r.run and w.item = '' and w.faults > 0 "
    "limit 1), ''), r.waits_for, r.waits_until, r.parent, r.parent_promise, r.code"
)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as listed and as the head of its page."""

    run: str
    workflow: str
    version: str
    state: str
    trigger_type: str
    trigger_ref: str
    started_by: str
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    owner: str
    on_behalf_of: str
    definition: bytes
    cancel_requested: bool
    events: int
    writes: int
    trouble: str = ""  # "ready: why" or "parked: why" while the run itself, none of its steps, keeps failing
    waits_for: str = ""  # the name of a signal
    waits_until: datetime.datetime | None = None  # the end of a sleep
    parent: str = ""  # the run that started it
    parent_promise: str = ""
    code: bytes = b""  # what it runs on now; `definition` is what it started with
    held_up: str = ""  # the cap that leaves it no place to begin or go on, as far as no step is concerned

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class StepView:
    """One operation of a run, who works on it now, and what it proposed last."""

    promise: str
    step: str
    index: int
    tool: str
    kind: str
    state: str
    attempt: int
    approval: str
    last_error: str
    next_eligible_at: datetime.datetime | None
    deadline_at: datetime.datetime | None
    stage: str  # of its work item, empty when it has none
    work: str  # ready | leased | parked
    faults: int
    action: Action | None
    child: str = ""  # the run that it started
    started_at: datetime.datetime | None = None  # of the newest attempt
    held_up: str = ""  # the cap that leaves it no place now


@dataclass(frozen=True, slots=True)
class Parked:
    """One item that stands still, and why."""

    run: str
    workflow: str
    step: str  # empty when it is the run itself
    stage: str
    faults: int
    error: str


@dataclass(frozen=True, slots=True)
class VerdictView:
    """What policy said, and when."""

    promise: str
    n: int
    at: datetime.datetime
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReceiptView:
    """A receipt as stored; whoever shows it checks the signature first."""

    promise: str
    key: str
    attempt: int
    n: int
    status: str
    at: datetime.datetime
    body: bytes
    signature: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class VoteView:
    """One recorded decision, and by which door it came."""

    person: str
    kind: str
    at: datetime.datetime
    via: str
    reason: str
    policy_revision: str


@dataclass(frozen=True, slots=True)
class RefusalView:
    """Somebody tried and was refused."""

    person: str
    code: str
    at: datetime.datetime
    count: int


@dataclass(frozen=True, slots=True)
class BundleView:
    """How far a run's evidence is."""

    state: str
    sha256: str
    size: int
    object_key: str
    version_id: str
    retain_until: datetime.datetime | None
    sealed_at: datetime.datetime | None


@dataclass(frozen=True, slots=True)
class Happened:
    """One entry of a run's chain; the position is None until the log has given it one."""

    entry: Entry
    position: int | None


@dataclass(frozen=True, slots=True)
class PersonView:
    """A person with what they sign in with: kinds and labels, never a secret."""

    profile: Profile
    identities: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Where a keyset page goes on: the key of its last row."""

    at: datetime.datetime
    id: str


def runs(unit: Unit, *, state: str, workflow: str, after: Page | None, limit: int) -> tuple[RunView, ...]:
    """The newest runs first, one page after `after`."""
    where, values = ["r.tenant = :tenant"], {"limit": limit}
    more: dict[str, object] = {}
    if state == "unknown":
        # Every unknown operation keeps its run open, so the partial index of open runs answers this.
        where.append("r.ended_at is null")
    if state:
        where.append(f"{_state} = :state")
        more["state"] = state
    if workflow:
        where.append("r.workflow = :workflow")
        more["workflow"] = workflow
    if after is not None:
        where.append("(r.created_at < :at or (r.created_at = :at and r.run > :id))")
        more.update(at=after.at, id=after.id)
    rows = unit.all(
        f"select {_row} from run r where {' and '.join(where)} order by r.created_at desc, r.run limit :limit",
        **values, **more,
    )  # fmt: skip
    return tuple(_run(row) for row in rows)


def run(unit: Unit, name: str) -> RunView:
    """One run, or the same refusal for one that is not there and one of another tenant."""
    row = unit.one(f"select {_row} from run r where r.tenant = :tenant and r.run = :run", run=name)
    if row is None:
        raise CallerError(
            f"run {name[:40]} is unknown here", code="unknown_run", field="run", next_step="the list of runs shows them"
        )
    cap = caps.held_up(unit, name).get("")
    return replace(_run(row), held_up="" if cap is None else str(cap))


def open_counts(unit: Unit) -> Mapping[str, int]:
    """How many runs that are not over are in each state."""
    rows = unit.all(
        f"select {_state} as shown, count(*) from run r where r.tenant = :tenant and r.ended_at is null group by 1"
    )
    return {row[0]: int(row[1]) for row in rows}


def workflows_run(unit: Unit) -> tuple[str, ...]:
    """The names that runs can be filtered by."""
    return tuple(
        row[0] for row in unit.all("select distinct name from template where tenant = :tenant order by name limit 200")
    )


def steps(unit: Unit, name: str) -> tuple[StepView, ...]:
    """The operations of a run in the order they were proposed."""
    rows = unit.all(
        "select p.promise, p.step, p.step_index, p.tool, p.kind, p.state, p.attempt, p.approval, p.last_error, p.next_eligible_at, "
        "p.deadline_at, coalesce(w.stage, ''), coalesce(w.state, ''), coalesce(w.faults, 0), a.body, coalesce(c.run, ''), "
        "p.started_at from promise p "
        "left join run c on c.tenant = p.tenant and c.parent = p.run and c.parent_promise = p.promise and c.parent <> '' "
        "left join lateral (select stage, state, faults from work w where w.tenant = p.tenant and w.run = p.run and w.item = p.promise "
        "order by stage limit 1) w on true "
        "left join lateral (select body from action a where a.tenant = p.tenant and a.run = p.run and a.promise = p.promise "
        "order by rev desc limit 1) a on true "
        "where p.tenant = :tenant and p.run = :run order by string_to_array(p.promise, '.')::int[]",
        run=name,
    )
    held_up = caps.held_up(unit, name)
    return tuple(replace(_step(row), held_up=str(held_up.get(row[0], ""))) for row in rows)


def parked(unit: Unit, limit: int) -> tuple[Parked, ...]:
    """What came back too often and waits for an operator to let it go on; an unknown outcome waits for a word and is not among it."""
    rows = unit.all(
        "select w.run, r.workflow, coalesce(p.step, ''), w.stage, w.faults, coalesce(p.last_error, r.error) from work w "
        "join run r on r.tenant = w.tenant and r.run = w.run "
        "left join promise p on p.tenant = w.tenant and p.run = w.run and p.promise = w.item "
        "where w.tenant = :tenant and w.state = 'parked' and coalesce(p.state, '') <> 'unknown' order by w.eligible_at, w.run limit :limit",
        limit=limit,
    )
    return tuple(Parked(*row) for row in rows)


def verdicts(unit: Unit, name: str) -> tuple[VerdictView, ...]:
    """Every verdict about a run's actions, oldest first."""
    rows = unit.all(
        "select promise, n, at, body from verdict where tenant = :tenant and run = :run order by at, promise, n",
        run=name,
    )
    return tuple(VerdictView(row[0], row[1], row[2], verdict_from(read_json(bytes(row[3])))) for row in rows)


def receipts(unit: Unit, name: str) -> tuple[ReceiptView, ...]:
    """Every receipt of a run, oldest first."""
    rows = unit.all(
        "select promise, key, attempt, n, status, at, body, signature, key_id from receipt where tenant = :tenant and run = :run "
        "order by at, key, attempt, n",
        run=name,
    )
    return tuple(_receipt(row) for row in rows)


def kept(unit: Unit, name: str, digest: bytes) -> bytes | None:
    """A payload that evidence only commits to; the tenant's own pages show it."""
    row = unit.one(
        "select body from payload where tenant = :tenant and run = :run and digest = :digest", run=name, digest=digest
    )
    return None if row is None else bytes(row[0])


def votes(unit: Unit, approval: str) -> tuple[VoteView, ...]:
    """What people decided about one request, oldest first."""
    rows = unit.all(
        "select person, kind, at, via, reason, policy_revision from vote where tenant = :tenant and approval = :approval "
        "order by at, person",
        approval=approval,
    )
    return tuple(VoteView(*row) for row in rows)


def refusals(unit: Unit, approval: str) -> tuple[RefusalView, ...]:
    """Who tried to decide and was refused."""
    rows = unit.all(
        "select person, code, minute, count from refusal where tenant = :tenant and approval = :approval order by minute, person, code",
        approval=approval,
    )
    return tuple(RefusalView(*row) for row in rows)


def waiting(unit: Unit, after: Page | None, limit: int) -> tuple[tuple[str, datetime.datetime], ...]:
    """(approval, deadline) of what waits for people, the nearest deadline first."""
    where = "" if after is None else " and (expires_at, approval) > (:at, :id)"
    values: dict[str, object] = {} if after is None else {"at": after.at, "id": after.id}
    rows = unit.all(
        f"select approval, expires_at from approval where tenant = :tenant and status = 'requested'{where} "
        "order by expires_at, approval limit :limit",
        limit=limit, **values,
    )  # fmt: skip
    return tuple((row[0], row[1]) for row in rows)


def waiting_count(unit: Unit) -> int:
    """How many requests wait for people."""
    row = unit.one("select count(*) from approval where tenant = :tenant and status = 'requested'")
    return 0 if row is None else int(row[0])


def bundle(unit: Unit, name: str) -> BundleView | None:
    """The state of a run's evidence; None until the run has been frozen."""
    row = unit.one(
        "select state, sha256, coalesce(size, 0), object_key, version_id, retain_until, sealed_at from bundle "
        "where tenant = :tenant and run = :run",
        run=name,
    )
    if row is None:
        return None
    return BundleView(row[0], bytes(row[1]).hex() if row[1] is not None else "", *row[2:])


def happened(unit: Unit, chain: str) -> tuple[Happened, ...]:
    """The entries of a chain in order."""
    return tuple(Happened(read_entry(found.body), found.position) for found in entries.chain_of(unit, chain))


def people(unit: Unit) -> tuple[PersonView, ...]:
    """Everybody with their identities that still open a door."""
    found: dict[str, list[tuple[str, str]]] = {}
    for person, kind, label in unit.all(
        "select person, kind, label from identity where tenant = :tenant and revoked_at is null order by kind, label"
    ):
        found.setdefault(person, []).append((kind, label))
    return tuple(PersonView(p, tuple(found.get(p.person, ()))) for p in profiles(unit).values())


def groups(unit: Unit) -> Mapping[str, str]:
    """The groups and what they are called."""
    return {row[0]: row[1] for row in unit.all("select grp, name from grp where tenant = :tenant order by grp")}


def _run(row: Row) -> RunView:
    values = list(row)
    values[12], values[-1] = bytes(values[12]), bytes(values[-1])
    return RunView(*values)


def _step(row: Row) -> StepView:
    values = list(row)
    values[14] = action_from(bytes(row[14])) if row[14] is not None else None
    return StepView(*values)


def _receipt(row: Row) -> ReceiptView:
    values = list(row)
    values[6], values[7] = bytes(row[6]), bytes(row[7])
    return ReceiptView(*values)
