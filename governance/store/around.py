"""What surrounds a run at the moment of a decision: the tenant's switches, its people, its policy and what was used already."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from engine.gate.action import Action, action_from
from engine.gate.question import Facts, Freeze, Usage
from engine.program.programs import Program
from governance.store import cases, people, templates
from governance.store.case import Case, Promise
from governance.store.people import Profile, Tenant
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Around:
    """Read in the same transaction as the run; a decision older than a second reads it again."""

    tenant: Tenant
    groups: Mapping[str, frozenset[str]]
    profiles: Mapping[str, Profile]
    program: Program
    revision: str
    usage: Usage
    now: datetime.datetime
    writes_of_others: int = 0  # of its family

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

    @property
    def freeze(self) -> Freeze:
        """The freeze in force."""
        return Freeze(bool(self.tenant.freeze), self.tenant.freeze)


def load(unit: Unit, case: Case) -> Around:
    """Everything a verdict about this run needs."""
    row = unit.one(
        "select (select count(*) from receipt r join promise p on p.tenant = r.tenant and p.run = r.run and p.promise = r.promise "
        "where r.tenant = :tenant and r.status = 'ok' and r.at > clock_timestamp() - interval '1 hour' and p.kind <> 'read'), "
        "(select count(*) from run where tenant = :tenant and created_at > clock_timestamp() - interval '1 minute'), "
        "(select count(*) from run where tenant = :tenant and ended_at is null), clock_timestamp()"
    )
    assert row is not None
    others = cases.writes_of_others(unit, case)
    return Around(
        tenant=people.tenant(unit), groups=people.group_members(unit), profiles=people.profiles(unit),
        program=templates.by_digest(unit, case.code), revision=templates.active_revision(unit),
        usage=Usage(case.writes + others, int(row[0]), int(row[1]), int(row[2]), 0), now=row[3], writes_of_others=others,
    )  # fmt: skip


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
