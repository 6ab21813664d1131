"""Published workflows, policy bundles, webhook sources, connections and Slack installations of a tenant."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from engine.errors import CallerError
from engine.program.programs import Program, kind_of, program_from
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Template:
    """One version of a workflow as listed."""

    name: str
    version: str
    kind: str
    digest: bytes
    state: str
    created_by: str
    created_at: str


@dataclass(frozen=True, slots=True)
class PolicyBundle:
    """A policy revision and the bytes every engine loads."""

    revision: str
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """A webhook source: how it signs, which workflow it starts, as whom, and who answers for it."""

    source: str
    kind: str
    secret_sealed: bytes
    workspace: str
    workflow: str
    person: str
    owner: str


@dataclass(frozen=True, slots=True)
class Installation:
    """The Slack workspace a tenant's cards go to."""

    team: str
    app_id: str
    bot_user: str
    token_sealed: bytes
    channel: str
    state: str


def put(unit: Unit, program: Program, authored: str, created_by: str) -> None:
    """A new draft version; the same (name, version) twice is a Conflict."""
    unit.run(
        "insert into template (tenant, name, version, kind, digest, body, authored, state, created_by) "
        "values (:tenant, :name, :version, :kind, :digest, :body, :authored, 'draft', :by)",
        name=program.name, version=program.version, kind=kind_of(program), digest=program.digest, body=program.body, authored=authored,
        by=created_by,
    )  # fmt: skip


def keep(unit: Unit, program: Program, created_by: str) -> bool:
    """A definition that the product made and nobody starts by its name, so it is never active; False when it is there already."""
    return (
        unit.run(
            "insert into template (tenant, name, version, kind, digest, body, authored, state, created_by) "
            "values (:tenant, :name, :version, :kind, :digest, :body, '', 'archived', :by) on conflict do nothing",
            name=program.name, version=program.version, kind=kind_of(program), digest=program.digest, body=program.body, by=created_by,
        ).rowcount
        == 1
    )  # fmt: skip


def state_of(unit: Unit, name: str, version: str) -> tuple[str, bytes] | None:
    """(state, digest) of one version, locked."""
    row = unit.one(
        "select state, digest from template where tenant = :tenant and name = :name and version = :version for update",
        name=name, version=version,
    )  # fmt: skip
    return None if row is None else (row[0], bytes(row[1]))


def active(unit: Unit, name: str) -> tuple[str, str, Program] | None:
    """(state, version, program) of the version that starts use; None when there is none."""
    row = unit.one(
        "select state, version, kind, body from template where tenant = :tenant and name = :name and state in ('active', 'paused')",
        name=name,
    )
    return None if row is None else (row[0], row[1], program_from(row[2], bytes(row[3])))


def version(unit: Unit, name: str, wanted: str) -> tuple[str, str, Program] | None:
    """(state, version, program) of one version, in whatever state."""
    row = unit.one(
        "select state, version, kind, body from template where tenant = :tenant and name = :name and version = :version",
        name=name,
        version=wanted,
    )
    return None if row is None else (row[0], row[1], program_from(row[2], bytes(row[3])))


def set_state(unit: Unit, name: str, version: str, state: str) -> None:
    """Move one version; the partial unique index keeps one active version per name."""
    unit.run(
        "update template set state = :state where tenant = :tenant and name = :name and version = :version",
        name=name, version=version, state=state,
    )  # fmt: skip


def by_digest(unit: Unit, digest: bytes) -> Program:
    """The program a run is pinned to."""
    row = unit.one("select kind, body from template where tenant = :tenant and digest = :digest limit 1", digest=digest)
    if row is None:
        raise CallerError(f"no definition has the digest {digest.hex()[:16]}", code="unknown_definition")
    return _program(row[0], bytes(row[1]))


_program = lru_cache(maxsize=256)(program_from)  # a program is as immutable as the bytes it is read from


def listed(unit: Unit) -> list[Template]:
    """Every version, newest first."""
    rows = unit.all(
        "select name, version, kind, digest, state, created_by, created_at from template where tenant = :tenant order by created_at desc"
    )
    return [Template(row[0], row[1], row[2], bytes(row[3]), row[4], row[5], row[6].isoformat()) for row in rows]


def open_runs(unit: Unit, name: str) -> dict[str, int]:
    """How many runs go on, by the version that they were started with."""
    rows = unit.all(
        "select version, count(*) from run where tenant = :tenant and workflow = :name and ended_at is null group by version",
        name=name,
    )
    return {row[0]: int(row[1]) for row in rows}


def put_policy(unit: Unit, revision: str, bundle: bytes, bundle_sha256: bytes, by: str) -> None:
    """Make this revision the active one."""
    unit.run("update policy set state = 'retired' where tenant = :tenant and state = 'active'")
    unit.run(
        "insert into policy (tenant, revision, bundle, bundle_sha256, state, activated_by) "
        "values (:tenant, :revision, :bundle, :sha, 'active', :by) on conflict (tenant, revision) do update set state = 'active'",
        revision=revision, bundle=bundle, sha=bundle_sha256, by=by,
    )  # fmt: skip


def active_revision(unit: Unit) -> str:
    """The policy revision in force; empty when there is none, which no verdict can match."""
    row = unit.one("select revision from policy where tenant = :tenant and state = 'active'")
    return "" if row is None else str(row[0])


def revision_of(unit: Unit, start: str) -> str:
    """The stored revision that begins so."""
    fits = re.fullmatch(r"[0-9a-f]{8,64}", start)
    rows = unit.all(
        "select revision from policy where tenant = :tenant and starts_with(revision, :start) limit 2",
        start=start if fits else "-",
    )
    if len(rows) != 1:
        what = "begins more than one revision" if rows else "is no revision that was in force here"
        raise CallerError(
            f"{start[:64]!r} {what}", code="unknown_policy", field="revision",
            next_step="`twokeys policy history` shows them; 8 digits or more",
        )  # fmt: skip
    return str(rows[0][0])


def revisions(unit: Unit, limit: int) -> list[tuple[str, str, str, datetime.datetime]]:
    """(revision, state, by whom, when it first came into force), the newest first."""
    rows = unit.all(
        "select revision, state, activated_by, activated_at from policy where tenant = :tenant order by activated_at desc limit :limit",
        limit=limit,
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def policy(unit: Unit, revision: str) -> PolicyBundle:
    """A stored revision."""
    row = unit.one(
        "select revision, bundle from policy where tenant = :tenant and revision = :revision", revision=revision
    )
    if row is None:
        raise CallerError(f"policy revision {revision[:16]} is unknown", code="unknown_policy")
    return PolicyBundle(row[0], bytes(row[1]))


def put_source(unit: Unit, source: Source) -> None:
    """Register a webhook source."""
    unit.run(
        "insert into source (tenant, source, kind, secret_sealed, workspace, workflow, person, owner) "
        "values (:tenant, :source, :kind, :secret, :workspace, :workflow, :person, :owner) on conflict (tenant, source) do update "
        "set secret_sealed = excluded.secret_sealed, workflow = excluded.workflow, person = excluded.person, owner = excluded.owner",
        source=source.source, kind=source.kind, secret=source.secret_sealed, workspace=source.workspace, workflow=source.workflow,
        person=source.person, owner=source.owner,
    )  # fmt: skip


def source(unit: Unit, name: str) -> Source | None:
    """A webhook source by name."""
    row = unit.one(
        "select source, kind, secret_sealed, workspace, workflow, person, owner from source where tenant = :tenant and source = :name",
        name=name,
    )
    return None if row is None else Source(row[0], row[1], bytes(row[2]), *row[3:])


def put_connection(
    unit: Unit, connector: str, instance: str, base_url: str, secret_sealed: bytes, calls_per_min: int | None
) -> None:
    """Where this tenant's instance of a connector is."""
    unit.run(
        "insert into connection (tenant, connector, instance, base_url, secret_sealed, calls_per_min) values (:tenant, :connector, "
        ":instance, :url, :secret, :calls_per_min) "
        "on conflict (tenant, connector) do update set instance = excluded.instance, base_url = excluded.base_url, "
        "secret_sealed = excluded.secret_sealed, calls_per_min = excluded.calls_per_min",
        connector=connector, instance=instance, url=base_url, secret=secret_sealed, calls_per_min=calls_per_min,
    )  # fmt: skip


def connection(unit: Unit, connector: str) -> tuple[str, str, bytes, int | None] | None:
    """(instance, base URL, sealed user:secret, calls in a minute)."""
    row = unit.one(
        "select instance, base_url, secret_sealed, calls_per_min from connection where tenant = :tenant and connector = :c",
        c=connector,
    )
    return None if row is None else (row[0], row[1], bytes(row[2]), row[3])


def put_installation(unit: Unit, found: Installation) -> None:
    """The Slack workspace of this tenant; a new installation replaces the token."""
    unit.run(
        "insert into installation (tenant, team, app_id, bot_user, token_sealed, channel, state) "
        "values (:tenant, :team, :app, :bot, :token, :channel, :state) on conflict (tenant, team) do update "
        "set app_id = excluded.app_id, bot_user = excluded.bot_user, token_sealed = excluded.token_sealed, "
        "channel = excluded.channel, state = excluded.state",
        team=found.team, app=found.app_id, bot=found.bot_user, token=found.token_sealed, channel=found.channel, state=found.state,
    )  # fmt: skip


def installation_gone(unit: Unit, state: str) -> None:
    """Slack says that the app is no longer there."""
    found = installation(unit)
    if found is not None:
        put_installation(unit, replace(found, state=state))


def installation(unit: Unit) -> Installation | None:
    """The active Slack installation."""
    row = unit.one(
        "select team, app_id, bot_user, token_sealed, channel, state from installation where tenant = :tenant and state = 'active' limit 1"
    )
    return None if row is None else Installation(row[0], row[1], row[2], bytes(row[3]), row[4], row[5])
