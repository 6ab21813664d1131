"""Set up a tenant: its keys, people, identities, groups, connections, webhook sources, Slack workspace and policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.canonical import jcs
from engine.errors import CallerError, Conflict
from engine.ids import check_ident, check_name
from engine.ledger.entries import Fact
from engine.program.caps import fault_of
from governance.commands.authority import Actor, allowed, token_ref
from governance.keys import PURPOSES, hashed
from governance.store import entries, people, secrets, templates
from governance.store.case import RESERVED
from governance.store.unit import Database, Unit

OPERATOR = {"type": "system", "id": "operator"}


class Admit:
    """The orders that make a tenant able to work. Given at the operator's shell, or by an owner of the tenant."""

    def __init__(
        self,
        database: Database,
        vault: secrets.Secrets,
        random_hex: Callable[[int], str],
        policy_for: Callable[[Mapping[str, Mapping[str, Any]]], tuple[str, bytes, bytes]],
    ) -> None:
        self._database = database
        self._secrets = vault
        self._random_hex = random_hex
        self._policy_for = policy_for

    def tenant(self, tenant: str, name: str, environment: str) -> None:
        """A new tenant with its own keys and the shipped policy."""
        check_name(tenant, "tenant")
        if environment not in ("prod", "staging", "dev"):
            raise CallerError(
                f"{environment!r} is not an environment", field="environment", next_step="prod, staging or dev"
            )
        try:
            with self._database.unit(tenant) as unit:
                people.add_tenant(
                    unit, name=name, environment=environment, salt_key=bytes.fromhex(self._random_hex(32))
                )
                entries.note(unit, f"tenant/{tenant}", Fact("tenant.created", OPERATOR, {"tenant": tenant}))
                for purpose in PURPOSES:
                    key = self._secrets.keyring.create(tenant, purpose)
                    secrets.put(unit, key)
                    entries.note(
                        unit,
                        f"key/{purpose}",
                        Fact("key.created", OPERATOR, {"purpose": purpose, "key_id": key.key_id}),
                    )
        except Conflict as error:
            if error.code == "tenant_pkey":
                raise CallerError(f"tenant {tenant} is there already", code="taken", field="tenant") from None
            raise
        self.policy(tenant, {})

    def policy(self, tenant: str, own: Mapping[str, Any]) -> str:
        """Activate the shipped policy with this tenant's own data."""
        revision, archive, digest = self._policy_for({tenant: own})
        with self._database.unit(tenant) as unit:
            templates.put_policy(unit, revision, archive, digest, "operator")
            fact = Fact("policy.activated", OPERATOR, {"revision": revision, "bundle_sha256": digest.hex()})
            entries.note(unit, "policy/main", fact)
        return revision

    def person(
        self, tenant: str, actor: Actor | None, *, name: str, level: int, kind: str = "human", read_only: bool = False
    ) -> str:
        """A new person; their pseudonym, which is all that evidence ever names."""
        if not name.strip() or len(name) > 100:
            raise CallerError("1-100 characters are needed", field="name")
        if not 1 <= level <= 6:
            raise CallerError(
                "a level is 1 to 6", field="level", next_step="approvers and starters need 4, authors 5, owners 6"
            )
        person = f"per_{self._random_hex(8)}"
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            people.tenant(unit)
            people.add_person(unit, person=person, name=name.strip(), level=level, kind=kind, read_only=read_only)
            entries.note(
                unit, f"person/{person}", Fact("person.added", who, {"person": person, "level": level, "kind": kind})
            )
        return person

    def own(self, tenant: str, actor: Actor | None, service: str, owner: str) -> None:
        """Somebody answers for a service principal: what it starts waits for keys of others."""
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            found, answers = people.find(unit, service), people.find(unit, owner)
            if found.kind != "service":
                raise CallerError(
                    f"{found.name} is a person and answers for themselves", code="not_service", field="service"
                )
            if answers.kind != "human" or not answers.active:
                raise CallerError(f"{answers.name} is no active person", code="not_human", field="owner")
            people.own(unit, found.person, answers.person)
            body = {"person": found.person, "owner": answers.person}
            entries.note(unit, f"person/{found.person}", Fact("person.owned", who, body))

    def link_slack(self, tenant: str, actor: Actor | None, person: str, team: str, user: str) -> None:
        """A Slack identity of this person."""
        check_ident(team, "team")
        check_ident(user, "user")
        self._link(tenant, actor, person, "slack", f"{team}:{user}", f"{team}:{user}")

    def token(self, tenant: str, actor: Actor | None, person: str, label: str) -> str:
        """A personal token, shown once; only its hash is kept."""
        token = f"tk_{self._random_hex(24)}"
        self._link(tenant, actor, person, "token", token_ref(token), label)
        return token

    def token_known(self, tenant: str, person: str, token: str, label: str) -> None:
        """Link a token that already exists (a demo's, or one kept in a secret store); the same one again changes nothing."""
        with self._database.unit(tenant, write=False) as unit:
            if people.by_identity(unit, "token", token_ref(token)) is not None:
                return
        self._link(tenant, None, person, "token", token_ref(token), label)

    def _link(self, tenant: str, actor: Actor | None, person: str, kind: str, ref: str, label: str) -> None:
        hash_key = self._secrets.secret(tenant, "hash")
        try:
            with self._database.unit(tenant) as unit:
                who = self._by(unit, actor)
                found = people.find(unit, person)
                people.link(unit, kind=kind, ref=ref, person=found.person, label=label)
                if kind == "token":
                    people.route(unit, "token", ref)
                body = {
                    "person": found.person,
                    "identity_kind": kind,
                    "identity_sha256": hashed(hash_key, "identity", kind, ref),
                }
                entries.note(unit, f"person/{found.person}", Fact("person.linked", who, body))
        except Conflict as error:
            if error.code == "identity_pkey":
                raise CallerError(
                    "this identity is linked already", code="taken", field="identity", next_step="`twokeys person list`"
                ) from None
            raise

    def deactivate(self, tenant: str, actor: Actor | None, person: str) -> None:
        """From now on nothing of this person opens a door or counts as a key."""
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            found = people.find(unit, person)
            if not people.deactivate(unit, found.person):
                raise CallerError(f"{found.name} is deactivated already", code="inactive", field="person")
            entries.note(unit, f"person/{found.person}", Fact("person.deactivated", who, {"person": found.person}))

    def group(self, tenant: str, actor: Actor | None, group: str, name: str) -> None:
        """A group whose members may hold keys where policy names it."""
        check_name(group, "group")
        try:
            with self._database.unit(tenant) as unit:
                self._by(unit, actor)
                people.tenant(unit)
                people.add_group(unit, group, name)
        except Conflict:
            raise CallerError(f"group {group} is there already", code="taken", field="group") from None

    def join(self, tenant: str, actor: Actor | None, group: str, person: str, *, leave: bool = False) -> None:
        """Put a person into a group or take them out."""
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            found = people.find(unit, person)
            if group not in people.group_members(unit):
                raise CallerError(
                    f"group {group} is unknown", code="unknown_group", field="group", next_step="`twokeys group add`"
                )
            if leave:
                people.leave(unit, group, found.person)
            else:
                people.join(unit, group, found.person)
            body = {"group": group, "person": found.person, "change": "left" if leave else "joined"}
            entries.note(unit, f"person/{found.person}", Fact("group.changed", who, body))

    def workspace(self, tenant: str, actor: Actor | None, workspace: str, name: str) -> None:
        """One more part of the tenant: its runs have caps and turns of their own."""
        check_name(workspace, "workspace")
        try:
            with self._database.unit(tenant) as unit:
                who = self._by(unit, actor, "tenant")
                people.tenant(unit)
                people.add_workspace(unit, workspace, name.strip()[:100] or workspace)
                entries.note(unit, f"tenant/{tenant}", Fact("workspace.added", who, {"workspace": workspace}))
        except Conflict:
            raise CallerError(f"workspace {workspace} is there already", code="taken", field="workspace") from None

    def connection(
        self,
        tenant: str,
        connector: str,
        instance: str,
        base_url: str,
        user: str,
        secret: str,
        calls_per_min: int | None = None,
    ) -> None:
        """Where this tenant's instance of a connector is, its credentials sealed."""
        check_name(connector, "connector")
        check_name(instance, "instance")
        if not base_url.startswith(("https://", "http://")):
            raise CallerError("an http(s) URL is needed", field="base_url")
        if calls_per_min is not None and (fault := fault_of(calls_per_min)):
            raise CallerError(fault, code="bad_cap", field="calls_per_min")
        sealed = self._secrets.seal(tenant, f"connection/{connector}", jcs({"user": user, "secret": secret}).decode())
        with self._database.unit(tenant) as unit:
            people.tenant(unit)
            templates.put_connection(unit, connector, instance, base_url.rstrip("/"), sealed, calls_per_min)

    def source(
        self,
        tenant: str,
        source: str,
        *,
        kind: str,
        secret: str,
        workflow: str,
        person: str,
        owner: str,
        workspace: str = people.MAIN,
    ) -> None:
        """A webhook source: who it acts as, who answers for it, and the secret it signs with."""
        check_name(source, "source")
        if source in RESERVED:
            raise CallerError(f"{source} is a reserved name", field="source", next_step="call the source otherwise")
        if len(secret) < 16:
            raise CallerError("a signing secret has at least 16 characters", field="secret")
        sealed = self._secrets.seal(tenant, f"source/{source}", secret)
        with self._database.unit(tenant) as unit:
            people.check_workspace(unit, workspace)
            acts, answers = people.find(unit, person), people.find(unit, owner)
            templates.put_source(
                unit, templates.Source(source, kind, sealed, workspace, workflow, acts.person, answers.person)
            )
            people.route(unit, "source", f"{tenant}/{source}")

    def slack(self, tenant: str, *, team: str, app_id: str, bot_user: str, token: str, channel: str) -> None:
        """The Slack workspace that this tenant's cards go to."""
        sealed = self._secrets.seal(tenant, "slack/token", token)
        with self._database.unit(tenant) as unit:
            people.tenant(unit)
            templates.put_installation(unit, templates.Installation(team, app_id, bot_user, sealed, channel, "active"))
            people.route(unit, "slack", team)

    def _by(self, unit: Unit, actor: Actor | None, deed: str = "people") -> dict[str, str]:
        # Without an actor the order comes from the operator's shell, which holds the database and the master key anyway.
        if actor is None:
            return OPERATOR
        return {"type": "person", "id": allowed(unit, actor, deed).person}
