"""What surrounds a run at the moment of a decision: the tenant's switches, its people, its policy and what was used already."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from engine.gate.question import Facts, Freeze, Usage
from engine.program.definition import Definition
from governance.store import people, templates
from governance.store.case import Case, Promise
from governance.store.people import Profile, Tenant
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Around:
    """Read in the same transaction as the run; a decision older than a second reads it again."""

    tenant: Tenant
    groups: Mapping[str, frozenset[str]]
    profiles: Mapping[str, Profile]
    definition: Definition
    revision: str
    usage: Usage
    now: datetime.datetime

    def facts(self, case: Case, promise: Promise) -> Facts:
        """Where an action of this run comes from, as policy sees it."""
        starter = self.profiles.get(case.origin.started_by)
        groups = tuple(g for g in starter.groups) if starter else ()
        return Facts(
            environment=self.tenant.environment, kill_switch=self.tenant.kill_switch, trigger_type=case.origin.trigger_type, run_attempt=1,
            risk_ceiling=self.definition.risk_ceiling, step_index=promise.step_index, step_attempt=promise.attempt + 1,
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
        "select (select count(*) from receipt r where r.tenant = :tenant and r.status = 'ok' and r.at > clock_timestamp() - "
        "interval '1 hour'), "
        "(select count(*) from run where tenant = :tenant and created_at > clock_timestamp() - interval '1 minute'), "
        "(select count(*) from run where tenant = :tenant and ended_at is null), clock_timestamp()"
    )
    assert row is not None
    return Around(
        tenant=people.tenant(unit), groups=people.group_members(unit), profiles=people.profiles(unit),
        definition=templates.by_digest(unit, case.origin.definition), revision=templates.active_revision(unit),
        usage=Usage(case.writes, int(row[0]), int(row[1]), int(row[2]), 0), now=row[3],
    )  # fmt: skip


def success_elsewhere(unit: Unit, key: str) -> tuple[str, bytes, bytes, str] | None:
    """(run, envelope, signature, key id) of the success that this effect key already has."""
    row = unit.one(
        "select run, body, signature, key_id from receipt where tenant = :tenant and key = :key and status = 'ok'",
        key=key,
    )
    return None if row is None else (row[0], bytes(row[1]), bytes(row[2]), row[3])


def intent_holder(unit: Unit, key: str) -> tuple[str, str] | None:
    """(run, promise) that holds the intent of this effect key."""
    row = unit.one("select run, promise from intent where tenant = :tenant and key = :key", key=key)
    return None if row is None else (row[0], row[1])


def open_intents(unit: Unit, run: str) -> list[tuple[str, int, bytes]]:
    """(promise, attempt, action digest) in flight: started, and no receipt for that attempt."""
    rows = unit.all(
        "select p.promise, p.attempt, i.action_digest from promise p join intent i on i.tenant = p.tenant and i.key = p.key "
        "where p.tenant = :tenant and p.run = :run and p.state = 'running' and not exists (select 1 from receipt r "
        "where r.tenant = p.tenant and r.key = p.key and r.attempt = p.attempt)",
        run=run,
    )
    return [(row[0], row[1], bytes(row[2])) for row in rows]
