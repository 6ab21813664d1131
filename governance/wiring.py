"""The one place where everything meets: settings in, a worker or a web application out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from engine.canonical import sha256
from engine.errors import CallerError, OperatorError
from engine.gate.action import Action
from engine.ledger.notes import write_vkey
from engine.ledger.onefile import one_file
from governance import clock
from governance.commands.admit import Admit
from governance.commands.amend import Amend
from governance.commands.answer import Answers
from governance.commands.cancel import Cancel
from governance.commands.caps import SetCaps
from governance.commands.change import Changes
from governance.commands.decide import Decide
from governance.commands.edit import Edit
from governance.commands.export import SetExport
from governance.commands.freeze import Freezes
from governance.commands.gate_orders import GateOrders
from governance.commands.migrate import Migrate
from governance.commands.propose import Propose
from governance.commands.publish import Publish
from governance.commands.resolve import Resolve
from governance.commands.retry import Retry
from governance.commands.schedule import Schedules
from governance.commands.signal import Signal
from governance.commands.start import Start
from governance.connectors.own import Own
from governance.connectors.reach import Reach
from governance.connectors.registry import Registry
from governance.connectors.shipped import shipped as shipped_connectors
from governance.connectors.slack import Posted
from governance.drive import Hands
from governance.evidence.budget import Budget
from governance.evidence.export import Exports
from governance.evidence.fsck import Fsck
from governance.evidence.outward import check_url
from governance.evidence.period import Outside, Period
from governance.evidence.publish import Publisher
from governance.evidence.sequence import Log, trust_text
from governance.evidence.vault import Vault
from governance.evidence.witnesses import Address, Witnesses, addresses
from governance.keys import TokenSigner, derive, hashed, mac, token_signer_of
from governance.policy.bundle import Bundle, shipped
from governance.policy.engine import Engine
from governance.policy.pool import Pool, embedded, managed
from governance.policy.publishing import Publishing
from governance.policy.server import server_at
from governance.policy.shadow import Shadow
from governance.policy.shelf import Shelf, server_config
from governance.policy.stored import Kept
from governance.settings import Settings
from governance.slack.cards import body_bytes
from governance.slack.delivery import Delivery
from governance.slack.doors import Doors
from governance.slack.looks import Looks
from governance.slack.orders import Orders
from governance.slack.outbox import Sender
from governance.slack.records import Records
from governance.stages.child import Children
from governance.stages.execute import Execute
from governance.stages.hosts import Hosts
from governance.stages.judge import Judge
from governance.stages.seal import Seal
from governance.stages.tick import Tick
from governance.stages.turn import Turns
from governance.store import around, cases, edits, spending
from governance.store.case import Case
from governance.store.dispatch import Dispatch
from governance.store.secrets import Secrets
from governance.store.unit import CommitCheck, Database
from governance.store.wakes import Listener, Notifier
from governance.web.app import Application, application
from governance.web.scrape import Scrape
from governance.web.seams import Seams as WebSeams
from governance.worker import Worker


@dataclass
class Parts:
    """One process' parts, each made when it is first needed and never twice."""

    settings: Settings
    process: str
    state: Path  # a directory of this process alone, for what an engine needs on disk
    check_commit: CommitCheck | None = None  # for tests: looks at every commit of a run before anybody else can see it

    # --- the store ----------------------------------------------------------------------------------------------------

    @cached_property
    def database(self) -> Database:
        if self.check_commit is not None and self.settings.env != "test":
            raise OperatorError("commits are checked one by one in tests only", code="bad_setting", field="TWOKEYS_ENV")
        return Database(self.settings.database_url, check_commit=self.check_commit, ring=self.notifier.ring)

    @cached_property
    def notifier(self) -> Notifier:
        """Wakes every worker of this installation."""
        return Notifier(self.settings.database_url)

    @cached_property
    def dispatch(self) -> Dispatch:
        return Dispatch(self.database)

    @cached_property
    def secrets(self) -> Secrets:
        return Secrets(self.database, bytes.fromhex(self.settings.master_key))

    def hash_key(self, tenant: str) -> bytes:
        return self.secrets.secret(tenant, "hash")

    # --- the outside --------------------------------------------------------------------------------------------------

    @cached_property
    def reach(self) -> Reach:
        return Reach(self.database, self.secrets)

    @cached_property
    def sender(self) -> Sender:
        return Sender(self.settings.slack_api_base, self.reach.slack_token, allow_local=self.settings.local)

    def _post(self, tenant: str, channel: str, thread_ts: str, text: str, msg_id: str) -> Posted:
        where = {"tenant": tenant, "channel": channel, "thread_ts": thread_ts}
        sent = self.sender.send({"kind": "message", **where, "text": text, "msg_id": msg_id})
        return Posted(sent.kind, sent.channel, sent.ts, sent.error, sent.retry_after_s)

    @cached_property
    def registry(self) -> Registry:
        return shipped_connectors(self.reach.connection, self._post, Own(self.database))

    @cached_property
    def vault(self) -> Vault:
        s = self.settings
        return Vault(
            endpoint=s.s3_endpoint, region=s.s3_region, bucket=s.s3_bucket, access_key=s.s3_access_key, secret_key=s.s3_secret_key,
            retain_days=s.retain_days, mode=s.s3_lock_mode,
        )  # fmt: skip

    # --- policy -------------------------------------------------------------------------------------------------------

    @cached_property
    def policies(self) -> Pool:
        return Pool(self._engine_maker(), self.bundle_of)

    @cached_property
    def shadow(self) -> Shadow:
        return Shadow(self.database, self.bundle_of)

    def _engine_maker(self) -> Callable[[str], Engine]:
        s = self.settings
        if s.policy_engine == "embedded":
            return embedded
        if s.policy_engine == "managed":
            return managed(Path(s.opa_binary), self.state / "opa")
        server_at(s.opa_url, "tenant")
        return lambda tenant: server_at(s.opa_url, tenant, token=s.opa_token)

    @cached_property
    def shelf(self) -> Shelf:
        """Where the OPA server of each tenant polls what is in force."""
        return Shelf(self.vault, tenants=self.dispatch.tenants, revision_of=self.kept_policies.in_force, bundle_of=self.bundle_of,
                     signer_of=self.policy_signer)  # fmt: skip

    def policy_signer(self, tenant: str) -> TokenSigner:
        """What a tenant's bundle is signed with for its OPA server; made from the master key, so that nothing more is kept."""
        return token_signer_of(derive(bytes.fromhex(self.settings.master_key), "twokeys/policy-bundle/v1", tenant))

    def policy_server_config(self, tenant: str, poll_seconds: int) -> dict[str, object]:
        """What an OPA server needs to know to answer for this tenant."""
        s = self.settings
        return server_config(
            tenant, endpoint=s.s3_endpoint, bucket=s.s3_bucket, region=s.s3_region,
            public_pem=self.policy_signer(tenant).pem, poll_seconds=poll_seconds,
        )  # fmt: skip

    @cached_property
    def kept_policies(self) -> Kept:
        return Kept(self.database)

    @property
    def bundle_of(self) -> Callable[[str, str], Bundle]:
        """A revision as it was activated."""
        return self.kept_policies.bundle_of

    @cached_property
    def publishing(self) -> Publishing:
        """What a draft comes to before people are asked."""
        return Publishing(self.database, self.kept_policies)

    # --- cards --------------------------------------------------------------------------------------------------------

    def button_mac(self, data: bytes) -> bytes:
        """One secret per deployment: the tenant is part of what is authenticated."""
        return mac(self._button_key, "twokeys/button/v1", data.hex())

    @cached_property
    def _button_key(self) -> bytes:
        return derive(bytes.fromhex(self.settings.master_key), "twokeys/buttons/v1")

    @cached_property
    def records(self) -> Records:
        s = self.settings
        return Records(self.database, s.public_url.rstrip("/"), s.deployment, self.button_mac)

    @cached_property
    def looks(self) -> Looks:
        """What people in Slack may ask to see."""
        return Looks(self.database, self.records)

    # --- commands -----------------------------------------------------------------------------------------------------

    @cached_property
    def start(self) -> Start:
        return Start(self.database, self.hash_key, clock.random_bytes)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self.database, self.start, self.hash_key)

    @cached_property
    def tick(self) -> Tick:
        return Tick(self.database, self.schedules.fire)

    @cached_property
    def propose(self) -> Propose:
        return Propose(self.database, lambda: self.registry.catalog, self.start, self.hash_key)

    @cached_property
    def decide(self) -> Decide:
        return Decide(self.database, clock.now_utc)

    @cached_property
    def edit(self) -> Edit:
        return Edit(self.database, self.registry.spec)

    @cached_property
    def gate(self) -> GateOrders:
        return GateOrders(self.database)

    @cached_property
    def answers(self) -> Answers:
        return Answers(self.database)

    @cached_property
    def cancel(self) -> Cancel:
        return Cancel(self.database)

    @cached_property
    def caps(self) -> SetCaps:
        return SetCaps(self.database)

    @cached_property
    def resolve(self) -> Resolve:
        return Resolve(self.database, self.execute)

    @cached_property
    def signal(self) -> Signal:
        return Signal(self.database)

    @cached_property
    def migrate(self) -> Migrate:
        return Migrate(self.database, self.hosts)

    @cached_property
    def retry(self) -> Retry:
        return Retry(self.database)

    @cached_property
    def publish(self) -> Publish:
        return Publish(self.database, self.registry.catalog, self.hosts)

    @cached_property
    def amend(self) -> Amend:
        return Amend(self.database, self.kept_policies.starting)

    @cached_property
    def changes(self) -> Changes:
        return Changes(
            self.database, self.publishing.prepare, self.kept_policies.starting, self.publishing.adopted,
            lambda: self.registry.own_catalog, self.start,
            self.hash_key, clock.random_hex,
        )  # fmt: skip

    @cached_property
    def freezes(self) -> Freezes:
        return Freezes(
            self.database, lambda: {name for name, _ in self.registry.catalog}, self.hash_key, clock.random_hex
        )

    @cached_property
    def admit(self) -> Admit:
        def policy_for(tenants: Any) -> tuple[str, bytes, bytes]:
            bundle = shipped(tenants)
            return bundle.revision, bundle.archive, sha256(bundle.archive)

        return Admit(self.database, self.secrets, clock.random_hex, policy_for)

    # --- stages -------------------------------------------------------------------------------------------------------

    @cached_property
    def hosts(self) -> Hosts:
        """The processes that authors' code runs in; each is started when it is first needed."""
        return Hosts()

    @cached_property
    def turns(self) -> Turns:
        return Turns(self.hosts, catalog=lambda: self.registry.catalog, random_bytes=clock.random_bytes)

    @cached_property
    def children(self) -> Children:
        return Children(self.database, hash_key=self.hash_key, random_bytes=clock.random_bytes)

    @cached_property
    def execute(self) -> Execute:
        return Execute(
            self.registry, executor=f"twokeys/{self.settings.deployment}", signer=lambda tenant: self.secrets.signer(tenant, "receipt"),
            verify=self.secrets.verify, hash_key=self.hash_key, chance=lambda: clock.random_bytes(1)[0] / 256,
        )  # fmt: skip

    @cached_property
    def _judge(self) -> Judge:
        def key_state_of(tenant: str, key: str) -> around.KeyState:
            with self.database.unit(tenant, write=False) as unit:
                return around.key_state(unit, key)

        def recorded(case: Case, promise: str) -> Action:
            with self.database.unit(case.origin.tenant, write=False) as unit:
                return cases.done_by(unit, case, promise)

        def edited(case: Case, promise: str) -> edits.Edited:
            with self.database.unit(case.origin.tenant, write=False) as unit:
                return edits.of(unit, case.origin.run, promise)

        return Judge(
            self.registry, instance_of=self.reach.instance, policy_of=self.policies.of, hash_key=self.hash_key, hear=self.shadow.hear,
            key_state_of=key_state_of, spent_of=partial(spending.read, self.database), recorded=recorded, edited=edited,
            random_bytes=clock.random_bytes, monotonic=clock.monotonic,
        )  # fmt: skip

    @cached_property
    def seal(self) -> Seal:
        return Seal(
            self.database, self.vault, signer=lambda tenant: self.secrets.signer(tenant, "bundle"),
            trust=self.trust, verifier=one_file().encode(), witnesses=tuple(one.key.name for one in self.witnesses_named),
            policy_files=self.kept_policies.files, retain_days=self.settings.retain_days,
        )  # fmt: skip

    @cached_property
    def witnesses_named(self) -> tuple[Address, ...]:
        """Who cosigns, as the settings name them."""
        return addresses(self.settings.witnesses)

    @cached_property
    def witnesses(self) -> Witnesses:
        return Witnesses(self.database, self.witnesses_named)

    def trust(self, tenant: str) -> str:
        """The trust policy that an auditor of this tenant pins."""
        vkeys = tuple(write_vkey(one.key.name, one.key.public, one.key.kind) for one in self.witnesses_named)
        return trust_text(self.database, self.settings.deployment, tenant, vkeys)

    @cached_property
    def log(self) -> Log:
        return Log(
            self.database, deployment=self.settings.deployment, signer=lambda tenant: self.secrets.signer(tenant, "log"),
            beside=self.secrets.beside, may_sign=lambda tenant: self.publisher.may_sign(tenant) and self.witnesses.may_sign(tenant),
        )  # fmt: skip

    @cached_property
    def publisher(self) -> Publisher:
        quick = {"every": 0.0, "partial": 0.0} if self.settings.env == "test" else {}
        return Publisher(self.database, self.vault, retain_days=self.settings.retain_days, **quick)

    @cached_property
    def exports(self) -> Exports:
        s = self.settings
        return Exports(
            self.database, self.vault, deployment=s.deployment, unseal=self.secrets.unseal, allow_local=s.local,
        )  # fmt: skip

    @cached_property
    def set_export(self) -> SetExport:
        return SetExport(self.database, self.secrets, lambda url: check_url(url, allow_local=self.settings.local))

    @cached_property
    def budget(self) -> Budget:
        """How far the log may be behind before no new effect begins."""
        return Budget(self.database, witnessed=bool(self.witnesses_named))

    @cached_property
    def period(self) -> Period:
        return Period(
            self.database, signer=lambda tenant: self.secrets.signer(tenant, "bundle"), trust=self.trust,
            verifier=one_file().encode(), outside=self._outside,
        )  # fmt: skip

    def _outside(self, tenant: str) -> Iterator[Outside]:
        """The systems of a tenant that keep a change log which we may read."""
        for name, one in self.registry.auditing().items():
            try:
                connection = self.reach.connection(tenant, name)
            except CallerError:
                continue  # not connected: there is nothing to read
            yield Outside(
                name, connection.instance, connection.user, partial(one.audit, tenant),
                lambda kind, text: hashed(self.hash_key(tenant), kind, text),
            )  # fmt: skip

    @cached_property
    def fsck(self) -> Fsck:
        return Fsck(self.database, self.settings.deployment, self.secrets.verify)

    @cached_property
    def delivery(self) -> Delivery:
        return Delivery(self.database, self.sender, self.records, self.looks)

    @cached_property
    def worker(self) -> Worker:
        hands = Hands(
            judge=self._judge, turns=self.turns, children=self.children, execute=self.execute, seal=self.seal, card_body=body_bytes,
            console_url=self.records.console_url, pace=lambda action: self.reach.pace(self.registry.calls_per_min, action),
            lag=self.budget.excess,
        )  # fmt: skip
        name = f"{self.process}-{clock.random_hex(4)}"
        return Worker(
            self.database, hands, name=name, lease_seconds=self.settings.lease_seconds,
            heartbeat_seconds=self.settings.heartbeat_seconds, threads=self.settings.worker_threads,
        )  # fmt: skip

    # --- the web application ------------------------------------------------------------------------------------------

    def web_app(self) -> Application:
        """Console, /v1, webhooks, Slack's door and health, over the same commands."""
        s = self.settings
        return application(
            WebSeams(
                database=self.database, route=self.dispatch.route, start=self.start, propose=self.propose, decide=self.decide,
                edit=self.edit, amend=self.amend, publishing=self.publishing, changes=self.changes, freezes=self.freezes, gate=self.gate,
                answers=self.answers, cancel=self.cancel, resolve=self.resolve, retry=self.retry, publish=self.publish,
                caps=self.caps, admit=self.admit,
                unseal=self.secrets.unseal, verify=self.secrets.verify,
                fetch=lambda key, version: self.vault.get(key, version),
                trust=self.trust,
                slack=self.doors.routes(), scrape=self.scrape(),
                session_key=derive(bytes.fromhex(s.master_key), "twokeys/session/v1"), public_url=s.public_url, deployment=s.deployment,
                now=clock.epoch_seconds, random_hex=clock.random_hex,
            )
        )  # fmt: skip

    def scrape(self, *, open_: bool = False) -> Scrape:
        """What /metrics of this process answers; without a token to stand-ins only, or where `open_` says that nobody else can ask."""
        return Scrape(self.dispatch.levels, token=self.settings.metrics_token, open_=open_ or self.settings.local)

    @cached_property
    def doors(self) -> Doors:
        """What arrives from Slack."""
        return Doors(
            settings=self.settings, database=self.database, tenant_of=lambda team: self.dispatch.route("slack", team),
            token_of=self.reach.slack_token, mac=self.button_mac, records=self.records, looks=self.looks, decide=self.decide,
            answers=self.answers, resolve=self.resolve, orders=Orders(self.database, self.freezes, self.gate.absent).verbs(),
        )  # fmt: skip

    def close(self) -> None:
        """End every engine and give every connection back that was opened."""
        for name in ("exports", "hosts", "policies", "shadow", "registry", "vault", "notifier", "database"):
            made = self.__dict__.get(name)
            if made is not None:
                made.close()

    def run_worker(self) -> None:
        """The worker with its tasks, until it is stopped."""
        self.database.self_test()
        self.vault.check()
        tasks = (
            ("log", 0.1, self.log.step), ("publish", 0.5, self.publisher.step), ("witnesses", 0.5, self.witnesses.step),
            ("tick", 1.0, self.tick.step), ("outbox", 0.1, self.delivery.step), ("shadow", 0.5, self.shadow.step),
            ("export", 1.0, self.exports.step),
        )  # fmt: skip
        shelf = (("shelf", 0.5, self.shelf.step),) if self.settings.policy_engine == "server" else ()
        listener = Listener(self.settings.database_url, self.worker.wake)
        listener.start()
        try:
            self.worker.run((*tasks, *shelf), hears=lambda: listener.hears)
        finally:
            listener.close()
            self.close()
