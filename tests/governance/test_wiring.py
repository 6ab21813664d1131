"""Where everything meets: each part is made once, from settings; what is missing is named; and what was opened is closed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CallerError, OperatorError
from engine.gate.card import CardRecord
from governance.commands.authority import token_ref
from governance.local import postgres
from governance.wiring import Parts
from tests.kit import wait
from tests.kit.servers import Bucket
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import SAMPLE, TEAM, World, parts, settings_for, settle, slack_sink, vault_of, world

__all__ = ["parts", "slack_sink", "world"]


@pytest.fixture(scope="module")
def company(parts: Parts, slack_sink: SlackSink, servicenow_server: ServiceNow) -> World:
    return settle(parts, slack_sink, servicenow_server, tenant="wired")


def other_parts(database: postgres.Database, directory: Path, **changes: Any) -> Parts:
    return Parts(settings_for(database, "http://127.0.0.1:1/api/", **changes), "wiring", directory)


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path, database: postgres.Database) -> None:
    """Checking a workflow must not need a database, a bucket or a policy engine."""
    nowhere = {"database_url": "postgresql://nobody@127.0.0.1:1/none", "s3_endpoint": "http://127.0.0.1:1"}
    made = other_parts(database, tmp_path, **nowhere)
    assert made.publish.check(SAMPLE.read_bytes(), "sample.yaml").name == "incident-triage"
    made.close()


def test_each_part_is_made_once(parts: Parts) -> None:
    for name in (
        "database",
        "dispatch",
        "secrets",
        "sender",
        "registry",
        "policies",
        "start",
        "decide",
        "worker",
        "seal",
        "log",
    ):
        assert getattr(parts, name) is getattr(parts, name), name


def test_a_system_that_is_not_connected_is_named_with_what_to_do(company: World) -> None:
    parts = company.parts
    assert parts.reach.instance(company.tenant, "servicenow") == "dev1"
    assert parts.reach.instance(company.tenant, "slack") == TEAM
    with pytest.raises(CallerError, match=f"jira is not connected for {company.tenant}") as caught:
        parts.reach.instance(company.tenant, "jira")
    assert caught.value.next_step == "`twokeys tenant connect`"
    parts.admit.tenant("bare", "Bare", "prod")
    with pytest.raises(CallerError, match="no Slack workspace is installed for bare"):
        parts.reach.instance("bare", "slack")
    assert parts.reach.slack_token("bare") == ""
    assert parts.reach.slack_token(company.tenant) == "xoxb-test"


def test_doors_lead_to_their_tenant_only(company: World) -> None:
    route = company.parts.dispatch.route
    assert route("slack", TEAM) == company.tenant
    assert route("token", token_ref(company.token("rita"))) == company.tenant
    assert route("token", "unheard of") is None
    assert route("slack", token_ref(company.token("rita"))) is None


def test_a_button_is_bound_to_this_installation(parts: Parts, database: postgres.Database, tmp_path: Path) -> None:
    other = other_parts(database, tmp_path, master_key="6b" * 32)
    assert parts.button_mac(b"v1.x") == parts.button_mac(b"v1.x")
    assert len({parts.button_mac(b"v1.x"), parts.button_mac(b"v1.y"), other.button_mac(b"v1.x")}) == 3


def test_keys_sealed_under_another_master_key_are_not_opened(
    company: World, database: postgres.Database, tmp_path: Path
) -> None:
    other = other_parts(database, tmp_path, master_key="6b" * 32)
    with pytest.raises(OperatorError) as caught:
        other.hash_key(company.tenant)
    assert "6b6b" not in str(caught.value)
    other.close()


def test_a_card_is_rendered_from_the_record(world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    record = world.parts.records.approval(world.tenant, found.asked.id)
    assert isinstance(record, CardRecord)
    assert record.console_url == f"http://127.0.0.1:1/approvals/{found.asked.id}"
    assert record.action_sha256 == found.asked.action_digest.hex()
    card = world.parts.records.render(record)
    assert found.asked.id in str(card.blocks)


@pytest.mark.parametrize("url", ["opa.example:8181", "ftp://opa.example", "http://", "file:///etc/passwd"])
def test_a_policy_server_without_an_address_is_refused_by_name(
    database: postgres.Database, tmp_path: Path, url: str
) -> None:
    made = other_parts(database, tmp_path, policy_engine="server", opa_url=url)
    with pytest.raises(OperatorError) as caught:
        made.policies  # noqa: B018 - making it is the point
    assert caught.value.field == "TWOKEYS_OPA_URL"


def test_a_worker_refuses_a_role_that_sees_too_much(
    database: postgres.Database, tmp_path: Path, postgres_server: postgres.Postgres
) -> None:
    for url in (database.owner_url, postgres_server.url(postgres.SUPERUSER, database.name)):
        made = other_parts(database, tmp_path, database_url=url)
        with pytest.raises(OperatorError) as caught:
            made.run_worker()
        assert caught.value.code == "unsafe_role"
        made.close()


def test_a_worker_works_until_it_is_stopped_and_leaves_nothing(
    world: World, database: postgres.Database, slack_sink: SlackSink, bucket: Bucket, tmp_path: Path
) -> None:
    """The whole process in a thread: drives, the log, the clocks and the outbox; then a stop, and its policy child is gone."""
    made = Parts(settings_for(database, slack_sink.api_base, **vault_of(bucket)), "worker", tmp_path)
    thread = threading.Thread(target=made.run_worker)
    thread.start()
    try:
        run = world.start()
        wait.until(lambda: world.case(run).state == "waiting_approval", 60)
        wait.until(lambda: world.rows("select 1 from entry where tenant = :tenant and chain = :run", run=run), 30)
        wait.until(lambda: "chat.postMessage" in [name for name, _ in slack_sink.calls], 30)
        pids = [int(engine.pid) for engine, _ in made.policies._engines.values()]  # type: ignore[attr-defined]
        assert pids
    finally:
        made.worker.stop()
        thread.join(timeout=30)
    assert not thread.is_alive()
    for pid in pids:
        wait.until(lambda pid=pid: wait.is_gone(pid), 10)
    assert world.case(run).state == "waiting_approval"
    assert os.getpid() not in pids


def test_closing_twice_and_closing_nothing_is_no_error(database: postgres.Database, tmp_path: Path) -> None:
    made = other_parts(database, tmp_path)
    made.close()
    assert made.database.ping() > 0
    made.close()
    made.close()
