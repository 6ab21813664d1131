"""A tenant with people, connections and the sample workflow on a real database, and the verbs that flow tests speak in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from governance import clock
from governance.commands.answer import Filled, Told
from governance.commands.authority import Actor, token_ref
from governance.commands.decide import Answer, Press
from governance.commands.start import Begun
from governance.local import postgres
from governance.settings import Settings
from governance.store import approvals, cases, tasks
from governance.store.approvals import Recorded
from governance.store.case import Case
from governance.store.tasks import TaskRecord
from governance.wiring import Parts
from tests.kit.replaying import ReplayedCommits, check_prefixes
from tests.kit.servers import Bucket
from tests.kit.servicenow import INCIDENT, ServiceNow
from tests.kit.slack import SlackSink

SAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "incident-triage.yaml"
TEAM = "T0DESK"
CREW = {
    # Level, kind, read only, groups.
    "rita": (6, "human", False, ("oncall", "incident-managers")),
    "ana": (4, "human", False, ("oncall", "incident-managers")),
    "bo": (4, "human", False, ("incident-managers",)),
    "cleo": (4, "human", False, ("oncall", "incident-managers")),
    "olga": (4, "human", False, ()),
    "dan": (4, "human", False, ("oncall", "incident-managers")),
    "aud": (4, "human", True, ("oncall", "incident-managers")),
    "low": (3, "human", False, ("oncall", "incident-managers")),
    "robot": (4, "service", False, ()),
}
INPUT = {"number": "INC0010001", "sys_id": INCIDENT, "short_description": "Checkout answers 502", "priority": "1"}


@dataclass
class World:
    """One tenant; `who` maps names to person ids, everybody has a token named after them and a Slack id."""

    parts: Parts
    tenant: str
    slack: SlackSink
    servicenow: ServiceNow
    who: dict[str, str] = field(default_factory=dict)

    # --- people -------------------------------------------------------------------------------------------------------

    def token(self, name: str, extra: str = "") -> str:
        return f"tk_{self.tenant}_{name}{extra}"

    def actor(self, name: str) -> Actor:
        return Actor("token", token_ref(self.token(name)))

    def slack_ref(self, name: str) -> str:
        return f"{TEAM}:U{name.upper()}"

    # --- runs ---------------------------------------------------------------------------------------------------------

    def apply(self, text: str | bytes = b"") -> str:
        given = text.encode() if isinstance(text, str) else text
        return self.parts.publish.apply(
            self.tenant, self.actor("rita"), given or SAMPLE.read_bytes(), "workflow.yaml"
        ).name

    def start(
        self, workflow: str = "incident-triage", *, value: dict[str, Any] | None = None, by: str = "rita", ref: str = ""
    ) -> str:
        begun: Begun = self.parts.start.by_hand(
            self.tenant, self.actor(by), workflow, INPUT if value is None else value, ref
        )
        return begun.run

    def drain(self) -> int:
        """Everything that is runnable now."""
        return self.parts.worker.drain()

    def post(self) -> None:
        """Send what the outbox holds until nothing is due."""
        while self.parts.delivery.step():
            pass

    def until(self, run: str, *states: str, rounds: int = 200) -> Case:
        """Work until the run is in one of these states; retries that are due later are brought forward."""
        for _ in range(rounds):
            self.drain()
            case = self.case(run)
            if case.state in states:
                return case
            self.hurry()
        raise AssertionError(f"run is {self.case(run).state}, not {states}: {self.steps(run)}")

    def hurry(self) -> None:
        """Bring forward what waits for a later try, as time would."""
        with self.parts.database.unit(self.tenant) as unit:
            unit.run("update work set eligible_at = clock_timestamp() where tenant = :tenant and state = 'ready'")

    def expire_leases(self) -> None:
        """As if every lease had run out."""
        with self.parts.database.unit(self.tenant) as unit:
            unit.run(
                "update work set lease_until = clock_timestamp() - interval '1 second' where tenant = :tenant and state = 'leased'"
            )

    def seal(self, run: str) -> dict[str, Any]:
        """Give every entry its place and seal the run's bundle."""
        for _ in range(50):
            while self.parts.log.step():
                pass
            self.parts.publisher.step()
            self.hurry()
            self.drain()
            found = self.row(
                "select state, encode(sha256, 'hex') as sha256, object_key, version_id from bundle where tenant = :tenant and run = :run",
                run=run,
            )
            if found and found["state"] == "sealed":
                return found
        raise AssertionError("the bundle was not sealed")

    def case(self, run: str) -> Case:
        with self.parts.database.unit(self.tenant, write=False) as unit:
            return cases.load(unit, run)

    def steps(self, run: str) -> dict[str, str]:
        return {p.step: f"{p.state} {p.last_error}".strip() for p in self.case(run).promises.values()}

    def entries(self, run: str) -> list[str]:
        return [
            row["type"]
            for row in self.rows(
                "select type from (select chain_seq, convert_from(body, 'UTF8')::json ->> 'type' as type from entry where "
                "tenant = :tenant and chain = :run "
                "union all select chain_seq, convert_from(body, 'UTF8')::json ->> 'type' from entry_pending where tenant = "
                ":tenant and chain = :run) e order by chain_seq",
                run=run,
            )
        ]

    # --- people decide ------------------------------------------------------------------------------------------------

    def waiting(self, run: str) -> Recorded:
        """The one approval of this run that waits."""
        with self.parts.database.unit(self.tenant, write=False) as unit:
            open_ones = approvals.open_of_run(unit, run)
            assert len(open_ones) == 1, f"{len(open_ones)} approvals wait; steps: {self.steps(run)}"
            return approvals.load(unit, open_ones[0])

    def press(
        self,
        found: Recorded,
        name: str,
        *,
        kind: str = "key",
        reason: str = "",
        via: str = "console",
        ref: str = "",
        actor_kind: str = "token",
        digest16: str = "",
        dedupe: str = "",
    ) -> Answer:
        return self.parts.decide.decide(
            Press(
                tenant=self.tenant,
                approval=found.asked.id,
                actor_kind=actor_kind,
                actor_ref=ref or token_ref(self.token(name)),
                kind=kind,
                digest16=digest16 or found.asked.action_digest.hex()[:16],
                card_rev=found.card_rev,
                via=via,
                reason=reason,
                dedupe_key=dedupe,
                blocks_sha256="",
            )
        )

    def waiting_no_more(self, run: str) -> bool:
        """Whether nothing of this run waits for a key."""
        with self.parts.database.unit(self.tenant, write=False) as unit:
            return not approvals.open_of_run(unit, run)

    def approve(self, run: str, *names: str) -> Recorded:
        """These people give the keys of what waits."""
        found = self.waiting(run)
        for name in names:
            answer = self.press(found, name)
            assert answer.ok, answer
        return found

    def forget(self) -> None:
        """What a test leaves to be done later would be done in the next one."""
        with self.parts.database.unit(self.tenant) as unit:
            for table in ("work", "due", "outbox_due", "outbox"):
                unit.run(f"delete from {table} where tenant = :tenant")

    def task(self, run: str) -> TaskRecord:
        """The one task of this run that waits."""
        with self.parts.database.unit(self.tenant, write=False) as unit:
            (found,) = [one for one in tasks.of_run(unit, run) if one.is_open]
            return found

    def fill(
        self,
        found: TaskRecord,
        name: str,
        values: dict[str, Any],
        *,
        via: str = "api",
        digest16: str = "",
        dedupe: str = "",
    ) -> Told:
        """This person sends the form."""
        return self.parts.answers.answer(
            Filled(self.tenant, found.task, self.actor(name), digest16 or found.digest16, values, via, dedupe)
        )

    # --- raw looks ----------------------------------------------------------------------------------------------------

    def rows(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        with self.parts.database.unit(self.tenant, write=False) as unit:
            return [dict(row) for row in unit.run(sql, **values).mappings()]

    def row(self, sql: str, **values: Any) -> dict[str, Any] | None:
        found = self.rows(sql, **values)
        return found[0] if found else None

    def writes(self, field_name: str) -> list[str]:
        """What we wrote to a field of the incident, oldest first."""
        return self.servicenow.writes(field_name)


def settings_for(database: postgres.Database, slack_base: str, **changes: Any) -> Settings:
    """Settings of a test installation."""
    values: dict[str, Any] = {
        "env": "test",
        "deployment": "test",
        "database_url": database.app_url,
        "master_key": "5a" * 32,
        "public_url": "http://127.0.0.1:1",
        "s3_bucket": "unused",
        "s3_access_key": "unused",
        "s3_secret_key": "unused",
        "policy_engine": "embedded",
        "slack_api_base": slack_base,
        "slack_signing_secret": "8f742231b10e8888abcd99yyyzzz85a5",
        "slack_app_id": "A0DESK",
        "lease_seconds": 30,
    }
    return Settings(**{**values, **changes})


def vault_of(bucket: Bucket) -> dict[str, Any]:
    """The settings of a real bucket with Object Lock."""
    account = bucket.account
    return {
        "s3_endpoint": account.endpoint_url,
        "s3_region": account.region,
        "s3_bucket": bucket.name,
        "s3_access_key": account.access_key,
        "s3_secret_key": account.secret_key,
        "retain_days": 1,
    }


def without_bucket(parts: Parts) -> None:
    """There is no bucket here: nothing is sealed, nothing is published, and nothing speaks against signing or going on."""
    parts.budget.excess = lambda _: ""  # type: ignore[method-assign]
    parts.worker._seals = lambda: 0  # type: ignore[method-assign]
    parts.publisher.may_sign = lambda _: True  # type: ignore[method-assign]


def settle(parts: Parts, slack: SlackSink, servicenow: ServiceNow, *, tenant: str = "") -> World:
    """A new tenant with everybody in it."""
    world = World(parts, tenant or f"t{clock.random_hex(4)}", slack, servicenow)
    admit = parts.admit
    admit.tenant(world.tenant, "Test tenant", "prod")
    for group in ("oncall", "incident-managers"):
        admit.group(world.tenant, None, group, group)
    for name, (level, kind, read_only, groups) in CREW.items():
        person = admit.person(world.tenant, None, name=name, level=level, kind=kind, read_only=read_only)
        world.who[name] = person
        admit.token_known(world.tenant, person, world.token(name), "test")
        admit.link_slack(world.tenant, None, person, TEAM, f"U{name.upper()}")
        for group in groups:
            admit.join(world.tenant, None, group, person)
    admit.deactivate(world.tenant, None, world.who["dan"])
    admit.slack(
        world.tenant,
        team=TEAM if tenant else f"T{clock.random_hex(4).upper()}",
        app_id="A0DESK",
        bot_user="U0BOT",
        token="xoxb-test",
        channel="C0DESK",
    )
    admit.connection(world.tenant, "servicenow", "dev1", servicenow.base_url, servicenow.user, servicenow.password)
    world.apply()
    return world


@pytest.fixture(scope="module")
def slack_sink() -> Iterator[SlackSink]:
    with SlackSink() as sink:
        yield sink


@pytest.fixture(scope="module")
def parts(
    database: postgres.Database, slack_sink: SlackSink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Parts]:
    """One installation of this test module: its own database, no bucket."""
    directory = tmp_path_factory.mktemp("parts")
    made = Parts(settings_for(database, slack_sink.api_base), "test", directory, ReplayedCommits())
    without_bucket(made)
    yield made
    made.close()


@pytest.fixture
def world(parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow) -> Iterator[World]:
    """A new tenant for this test."""
    slack_sink.calls.clear()
    slack_sink.down = False
    made = settle(parts, slack_sink, servicenow)
    yield made
    check_prefixes(parts.database, made.tenant)
    made.forget()


@pytest.fixture(scope="module")
def sealing_parts(
    database: postgres.Database, bucket: Bucket, slack_sink: SlackSink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Parts]:
    """The same with a real bucket that locks objects."""
    settings = settings_for(database, slack_sink.api_base, **vault_of(bucket))
    made = Parts(settings, "test", tmp_path_factory.mktemp("parts"), ReplayedCommits())
    yield made
    made.close()


@pytest.fixture
def sealing_world(sealing_parts: Parts, slack_sink: SlackSink, servicenow: ServiceNow) -> Iterator[World]:
    """A tenant whose runs can be sealed."""
    made = settle(sealing_parts, slack_sink, servicenow)
    yield made
    check_prefixes(sealing_parts.database, made.tenant)
    made.forget()
