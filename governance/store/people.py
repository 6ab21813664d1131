"""Tenants, people, their identities and groups, and which tenant an outside identity belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import CallerError
from engine.gate.approval import Person
from governance.store.unit import Row, Unit


@dataclass(frozen=True, slots=True)
class Profile:
    """A person as pages show them; names never leave the tenant's own pages and cards."""

    person: str
    name: str
    level: int
    kind: str
    active: bool
    read_only: bool
    groups: tuple[str, ...]
    owner: str = ""  # of a service: who answers for it
    stands_in: tuple[str, ...] = ()  # for whom, of those who are away at this moment


MAIN = "main"  # the workspace that every tenant has


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's switches, and the key its hashes are made with (sealed elsewhere)."""

    tenant: str
    name: str
    environment: str
    kill_switch: bool
    freeze: str


def add_tenant(unit: Unit, *, name: str, environment: str, salt_key: bytes) -> None:
    """The tenant's first rows; the unit is already the tenant's."""
    unit.run(
        "insert into tenant (tenant, name, environment, salt_key) values (:tenant, :name, :environment, :salt)",
        name=name, environment=environment, salt=salt_key,
    )  # fmt: skip
    unit.run("insert into workspace (tenant, workspace, name) values (:tenant, :main, 'Main')", main=MAIN)
    unit.run("insert into audit_head (tenant) values (:tenant)")


def tenant(unit: Unit) -> Tenant:
    """The unit's tenant, or a refusal that says it is unknown."""
    row = unit.one("select tenant, name, environment, kill_switch, freeze_id from tenant where tenant = :tenant")
    if row is None:
        raise CallerError(
            f"tenant {unit.tenant} is unknown", code="unknown_tenant", field="tenant", next_step="`twokeys tenant add`"
        )
    return Tenant(*row)


def add_workspace(unit: Unit, workspace: str, name: str) -> None:
    """One more part of the tenant, with caps and a share of its own."""
    unit.run(
        "insert into workspace (tenant, workspace, name) values (:tenant, :workspace, :name)",
        workspace=workspace, name=name,
    )  # fmt: skip


def workspaces(unit: Unit) -> dict[str, str]:
    """Every workspace of the tenant and what people call it."""
    rows = unit.all("select workspace, name from workspace where tenant = :tenant order by workspace")
    return {row[0]: row[1] for row in rows}


def check_workspace(unit: Unit, workspace: str) -> None:
    """Return when the tenant has it; an error that says which there are otherwise."""
    known = workspaces(unit)
    if workspace not in known:
        raise CallerError(
            f"workspace {workspace[:64]} is unknown here", code="unknown_workspace", field="workspace",
            next_step=f"one of {', '.join(known)}; `twokeys tenant workspace` adds one",
        )  # fmt: skip


def add_person(unit: Unit, *, person: str, name: str, level: int, kind: str, read_only: bool) -> None:
    """One person or service principal."""
    unit.run(
        "insert into person (tenant, person, name, level, kind, read_only) values (:tenant, :person, :name, :level, :kind, :ro)",
        person=person, name=name, level=level, kind=kind, ro=read_only,
    )  # fmt: skip


def link(unit: Unit, *, kind: str, ref: str, person: str, label: str) -> None:
    """One more identity of the same person; an identity belongs to one person for ever."""
    unit.run(
        "insert into identity (tenant, kind, ref, person, label) values (:tenant, :kind, :ref, :person, :label)",
        kind=kind, ref=ref, person=person, label=label,
    )  # fmt: skip


def route(unit: Unit, kind: str, ref: str) -> None:
    """Remember which tenant an outside identity leads to; the same one twice is no change, another tenant's is refused."""
    unit.run(
        "insert into route (kind, ref, tenant) values (:kind, :ref, :tenant) on conflict do nothing", kind=kind, ref=ref
    )
    if (
        unit.one("select 1 from route where tenant = :tenant and kind = :kind and ref = :ref", kind=kind, ref=ref)
        is None
    ):
        raise CallerError(f"this {kind} leads to another tenant already", code="taken", field=kind)


def own(unit: Unit, service: str, owner: str) -> None:
    """From now on this person answers for what the service starts."""
    unit.run(
        "update person set owner = :owner where tenant = :tenant and person = :service", service=service, owner=owner
    )


def deactivate(unit: Unit, person: str) -> bool:
    """Nobody's keys count any more and no identity opens a door; False when there is no such active person."""
    return (
        unit.run(
            "update person set active = false where tenant = :tenant and person = :person and active", person=person
        ).rowcount
        == 1
    )


def add_group(unit: Unit, group: str, name: str) -> None:
    """A group of possible key holders."""
    unit.run("insert into grp (tenant, grp, name) values (:tenant, :grp, :name)", grp=group, name=name)


def join(unit: Unit, group: str, person: str) -> None:
    """Put a person into a group."""
    unit.run(
        "insert into membership (tenant, grp, person) values (:tenant, :grp, :person) on conflict do nothing",
        grp=group,
        person=person,
    )


def leave(unit: Unit, group: str, person: str) -> bool:
    """Take a person out of a group."""
    return unit.run(
        "delete from membership where tenant = :tenant and grp = :grp and person = :person", grp=group, person=person
    ).rowcount == 1  # fmt: skip


_profile = """
select p.person, p.name, p.level, p.kind, p.active, p.read_only,
       coalesce((select array_agg(m.grp order by m.grp) from membership m where m.tenant = p.tenant and m.person = p.person), '{}'),
       coalesce(p.owner, ''),
       coalesce((select array_agg(w.person order by w.person) from away w where w.tenant = p.tenant and w.delegate = p.person
         and w.from_at <= clock_timestamp() and w.until_at > clock_timestamp() and not exists
         (select from away x where x.tenant = w.tenant and x.person = w.person and x.n > w.n)), '{}')
  from person p where p.tenant = :tenant
"""


def profiles(unit: Unit) -> Mapping[str, Profile]:
    """Everybody, by person id."""
    return {row[0]: _profile_from(row) for row in unit.all(_profile + " order by p.name")}


def find(unit: Unit, who: str) -> Profile:
    """By person id or exact name, as typed by an administrator."""
    rows = [p for p in profiles(unit).values() if who in (p.person, p.name)]
    if len(rows) != 1:
        reason = f"{who!r} is nobody here" if not rows else f"{who!r} is the name of {len(rows)} people"
        raise CallerError(reason, field="person", next_step="give the person id from `twokeys person list`")
    return rows[0]


def by_identity(unit: Unit, kind: str, ref: str) -> Profile | None:
    """Whose identity this is; None when it is nobody's or has been revoked."""
    row = unit.one(
        "select person from identity where tenant = :tenant and kind = :kind and ref = :ref and revoked_at is null",
        kind=kind,
        ref=ref,
    )
    if row is None:
        return None
    found = unit.one(_profile + " and p.person = :person", person=row[0])
    return _profile_from(found) if found else None


def _profile_from(row: Row) -> Profile:
    person, name, level, kind, active, read_only, groups, owner, stands_in = row
    return Profile(person, name, level, kind, active, read_only, tuple(groups), owner, tuple(stands_in))


def as_person(profile: Profile) -> Person:
    """The part of a profile that the gate decides by."""
    level = 1 if profile.read_only else profile.level
    return Person(
        id=profile.person, level=level, active=profile.active, kind=profile.kind, groups=frozenset(profile.groups),
        stands_in=frozenset(profile.stands_in),
    )  # fmt: skip


def group_members(unit: Unit) -> Mapping[str, frozenset[str]]:
    """Every group's active human members of level 4 and above: who could hold a key."""
    found: dict[str, set[str]] = {row[0]: set() for row in unit.all("select grp from grp where tenant = :tenant")}
    rows = unit.all(
        "select m.grp, m.person from membership m join person p on p.tenant = m.tenant and p.person = m.person "
        "where m.tenant = :tenant and p.active and p.kind = 'human' and p.level >= 4 and not p.read_only"
    )
    for group, person in rows:
        found[group].add(person)
    return {name: frozenset(people) for name, people in found.items()}
