"""What surrounds a run at the moment of a decision: the tenant's switches, its people, its policy and what was used already."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from engine.catalog.caps import Cap
from engine.gate.action import Action, action_from
from engine.gate.question import Facts, Freeze, Usage
from engine.program.programs import Program
from governance import clock
from governance.store import caps, cases, glasses, people, standstills, templates
from governance.store.case import Case, Promise
from governance.store.people import Profile, Tenant
from governance.store.standstills import Standstill
from governance.store.unit import Database, Unit

around_seconds_max = 1.0  # switches, people and policy older than this are read again before a verdict
_programs_max = 256
# A receipt is stored within the bounds of a statement, and well before this it counts for ever.
_settled_seconds, _bucket_seconds, _hour = 30, 10, 3600


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the runs of a tenant have in common: its switches, its people, the policy in force, and what was used already."""

    tenant: Tenant
    groups: Mapping[str, frozenset[str]]
    profiles: Mapping[str, Profile]
    revision: str
    writes_last_hour: int
    runs_last_minute: int
    open_runs: int
    now: datetime.datetime
    read_at: float  # on our own monotonic clock
    caps: tuple[caps.Set, ...]
    standstills: tuple[Standstill, ...] = ()
    debts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Around:
    """What a verdict about one run needs beside the run."""

    tenant: Tenant
    groups: Mapping[str, frozenset[str]]
    profiles: Mapping[str, Profile]
    program: Program
    revision: str
    usage: Usage
    now: datetime.datetime
    read_at: float
    writes_of_others: int = 0  # of its family
    writes_cap: Cap | None = None
    standstills: tuple[Standstill, ...] = ()
    debts: tuple[str, ...] = ()  # broken glasses whose reviews are overdue

    def facts(self, case: Case, promise: Promise) -> Facts:
        """Where an action of this run comes from, as policy sees it."""
        starter = self.profiles.get(case.origin.started_by)
        groups = tuple(g for g in starter.groups) if starter else ()
        return Facts(
            environment=self.tenant.environment, kill_switch=self.tenant.kill_switch, trigger_type=case.origin.trigger_type, run_attempt=1,
            risk_ceiling=self.program.risk_ceiling, step_index=promise.step_index, step_attempt=promise.attempt + 1,
            actor_type="service" if starter and starter.kind == "service" else "user", actor_id=case.origin.started_by,
            actor_groups=groups, on_behalf_of=case.origin.on_behalf_of,
        )  # fmt: skip

    def freeze(self, action: Action) -> Freeze:
        """The freeze that this action meets."""
        found = standstills.freeze_of(self.tenant.freeze, self.standstills, action.workspace, action.connector)
        return Freeze(bool(found), found)


class Remembered:
    """What surrounds the runs of each tenant, read once for all drives of a worker and at most a second old.

    An intent's commit looks again at everything that could forbid it, so what is remembered can make a drive decide twice
    and never do what is no longer allowed. Whatever is not a plain yes is judged on a fresh read.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._tenants: dict[str, _Tenant] = {}

    def of(self, case: Case, *, fresh: bool = False) -> Around:
        """What a verdict about this run needs; `fresh` reads it now."""
        name = case.origin.tenant
        with self._lock:
            known = self._tenants.setdefault(name, _Tenant())
        with known.lock:
            s = known.surroundings
            program, others = known.programs.get(case.code), 0
            if s is not None and (fresh or clock.monotonic() - s.read_at > around_seconds_max):
                s = None
            if s is None or program is None or case.has_family:
                with self._database.unit(name, write=False) as unit:
                    if s is None:
                        s = known.surroundings = _read(unit, known.writes)
                    if program is None:
                        program = templates.by_digest(unit, case.code)
                    others = cases.writes_of_others(unit, case)
                known.keep(case.code, program)
        writes_cap = caps.writes_cap(s.caps, case.origin.workspace, case.origin.workflow, program.caps)
        return Around(
            s.tenant, s.groups, s.profiles, program, s.revision,
            Usage(case.writes + others, s.writes_last_hour, s.runs_last_minute, s.open_runs, 0), s.now, s.read_at, others,
            writes_cap, s.standstills, s.debts,
        )  # fmt: skip


class _Tenant:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.surroundings: Surroundings | None = None
        self.writes: dict[int, int] = {}  # by ten seconds
        self.programs: dict[bytes, Program] = {}  # by digest, so what is remembered is for ever right

    def keep(self, digest: bytes, program: Program) -> None:
        if digest not in self.programs:
            while len(self.programs) >= _programs_max:
                del self.programs[next(iter(self.programs))]
            self.programs[digest] = program


def _read(unit: Unit, writes: dict[int, int]) -> Surroundings:
    row = unit.one(
        "select (select count(*) from run where tenant = :tenant and created_at > statement_timestamp() - interval '1 minute'), "
        "(select count(*) from run where tenant = :tenant and ended_at is null), clock_timestamp()"
    )
    assert row is not None
    read_at = clock.monotonic()
    return Surroundings(
        tenant=people.tenant(unit), groups=people.group_members(unit), profiles=people.profiles(unit),
        revision=templates.active_revision(unit), writes_last_hour=_writes(unit, writes, row[2]), runs_last_minute=int(row[0]),
        open_runs=int(row[1]), now=row[2], read_at=read_at, caps=tuple(caps.listed(unit)),
        standstills=standstills.open_ones(unit),
        debts=glasses.overdue(unit),
    )  # fmt: skip


def _writes(unit: Unit, known: dict[int, int], now: datetime.datetime) -> int:
    """Writes of the last hour, counted by ten seconds: what is past and settled is not counted again, however much it was."""
    newest = int(now.timestamp()) // _bucket_seconds
    oldest, settled = newest - _hour // _bucket_seconds, newest - _settled_seconds // _bucket_seconds
    first = max(oldest, min(max(known, default=0) + 1, settled)) if known else oldest
    rows = unit.all(
        "select floor(extract(epoch from r.at) / :bucket)::bigint, count(*) from receipt r "
        "join promise p on p.tenant = r.tenant and p.run = r.run and p.promise = r.promise "
        "where r.tenant = :tenant and r.status = 'ok' and r.at >= to_timestamp(:since) and p.kind <> 'read' group by 1",
        bucket=_bucket_seconds, since=first * _bucket_seconds,
    )  # fmt: skip
    counted = {int(bucket): int(n) for bucket, n in rows}
    total = sum(n for bucket, n in known.items() if oldest <= bucket < first) + sum(counted.values())
    for bucket in [one for one in known if one < oldest]:
        del known[bucket]
    known.update({bucket: counted.get(bucket, 0) for bucket in range(first, settled)})
    return total


@dataclass(frozen=True, slots=True)
class Success:
    """An effect that happened already under a key: where, what exactly it was, and its receipt."""

    run: str
    promise: str
    action: Action
    body: bytes
    signature: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the newest intent of a key: `free` when that run is done with it and nothing of it can still happen."""

    run: str
    promise: str
    turn: int
    free: bool


@dataclass(frozen=True, slots=True)
class KeyState:
    """Everything recorded about one effect key."""

    success: Success | None
    holder: Holder | None
    receipts: Mapping[int, int]  # attempt -> newest n, over every run that held the key


_key_state = """
select s.run, s.promise, s.action, s.body, s.signature, s.key_id, h.run, h.promise, h.turn, h.free, r.newest
  from (select 1) one
  left join lateral (
    select r.run, r.promise, a.body as action, r.body, r.signature, r.key_id from receipt r
      join action a on a.tenant = r.tenant and a.run = r.run and a.promise = r.promise and a.digest = r.action_digest
     where r.tenant = :tenant and r.key = :key and r.status = 'ok' limit 1) s on true
  left join lateral (
    select i.run, i.promise, i.turn, p.state in ('failed_terminal', 'canceled') and coalesce(
             (select r.status from receipt r where r.tenant = i.tenant and r.key = i.key and r.run = i.run
               order by r.attempt desc, r.n desc limit 1), '') not in ('', 'unknown') as free
      from intent i join promise p on p.tenant = i.tenant and p.run = i.run and p.promise = i.promise
     where i.tenant = :tenant and i.key = :key order by i.turn desc limit 1) h on true
  left join lateral (
    select array_agg(array[attempt, n]) as newest from
      (select attempt, max(n) as n from receipt where tenant = :tenant and key = :key group by attempt) each) r on true
"""


def key_state(unit: Unit, key: str) -> KeyState:
    """What the next attempt under this key has to know."""
    row = unit.one(_key_state, key=key)
    assert row is not None
    happened, held, newest = row[0] is not None, row[6] is not None, row[10] or []
    return KeyState(
        Success(row[0], row[1], action_from(bytes(row[2])), bytes(row[3]), bytes(row[4]), row[5]) if happened else None,
        Holder(row[6], row[7], row[8], row[9]) if held else None,
        dict(newest),
    )
