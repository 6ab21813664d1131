"""`twokeys doctor` and `twokeys config check`: what is wrong is named with what to do, and nothing is changed by asking."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from engine.errors import OperatorError
from governance import doctor
from governance.cli import frame
from governance.doctor import FAIL, OK, WARN, Finding
from governance.store import templates
from governance.store.unit import Database
from governance.wiring import Parts
from tests.governance.test_cli import Cli, cli, operator
from tests.kit.world import World, sealing_parts, sealing_world, slack_sink

__all__ = ["cli", "sealing_parts", "sealing_world", "slack_sink"]


@pytest.fixture
def world(sealing_world: World) -> World:
    return sealing_world


def examined(world: World) -> dict[str, Finding]:
    """What it says of this tenant and of what all tenants share."""
    return {one.check: one for one in doctor.examine(world.parts, world.tenant)}


def test_an_installation_that_is_well_is_said_to_be(world: World) -> None:
    found = examined(world)
    each = ("keys", "policy", "slack", "servicenow")
    assert set(found) >= {"database", "bucket", "clock", "queue", *(f"{world.tenant}/{name}" for name in each)}
    # The tests' own server forgets on purpose, and other tests' tenants wait in the same queue.
    apart = ("durability", "queue", "parked", "taken over", "evidence")
    sound = {name: one for name, one in found.items() if name not in apart}
    assert {one.state for one in sound.values()} == {OK}, sound
    assert "PostgreSQL" in found["database"].what
    assert "Object Lock" in found["bucket"].what


def test_a_bucket_that_is_not_there_is_named_with_what_to_do(world: World) -> None:
    settings = world.parts.settings.model_copy(update={"s3_bucket": "nobody-made-this"})
    made = Parts(settings, "doctor", world.parts.state)
    found = next(one for one in doctor.examine(made) if one.check == "bucket")
    made.close()
    assert found.state == FAIL
    assert "nobody-made-this" in found.what
    assert "TWOKEYS_S3_BUCKET" in found.next_step


def test_a_database_that_is_down_is_one_line_and_the_bucket_is_asked_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: Database) -> None:
        raise OperatorError("the database does not answer: gone", code="database", next_step="start it")

    monkeypatch.setattr(Database, "self_test", down)
    assert [(one.check, one.state) for one in doctor.examine(world.parts)] == [("database", FAIL), ("bucket", OK)]


def test_a_database_that_may_lose_what_it_answered_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "told", lambda _, names: {**dict.fromkeys(names, "on"), "fsync": "off"})
    found = examined(world)["durability"]
    assert (found.state, found.what.split(":")[0]) == (FAIL, "fsync=off")


@pytest.mark.parametrize(("apart", "state"), [(0.0, OK), (30.0, WARN), (-400.0, FAIL)])
def test_clocks_that_differ_are_told(world: World, monkeypatch: pytest.MonkeyPatch, apart: float, state: str) -> None:
    ping = Database.ping
    monkeypatch.setattr(Database, "ping", lambda database: ping(database) + apart)
    assert examined(world)["clock"].state == state


def test_a_password_that_servicenow_refuses_is_told_before_a_run_needs_it(world: World) -> None:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        instance, url, *_ = templates.connection(unit, "servicenow") or ("", "", b"", None)
    world.parts.admit.connection(world.tenant, "servicenow", instance, url, "twokeys", "not-the-password")
    world.parts.reach.forget()
    found = examined(world)[f"{world.tenant}/servicenow"]
    assert found.state == FAIL
    assert "not_authorized" in found.what
    assert "twokeys tenant connect servicenow" in found.next_step


def test_a_tenant_without_a_policy_is_told_that_everything_is_denied(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update policy set state = 'retired' where tenant = :tenant")
    found = examined(world)[f"{world.tenant}/policy"]
    assert (found.state, "everything is denied" in found.what) == (FAIL, True)


def test_a_slack_workspace_that_was_lost_is_told(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        installed = templates.installation(unit)
        assert installed is not None
        templates.put_installation(unit, dataclasses.replace(installed, state="uninstalled"))
    assert examined(world)[f"{world.tenant}/slack"].state == WARN


def test_work_that_waits_too_long_is_told_with_the_missing_worker(world: World) -> None:
    world.start()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set eligible_at = clock_timestamp() - interval '5 minutes' where tenant = :tenant")
    found = examined(world)["queue"]
    assert found.state == WARN
    assert "twokeys worker" in found.next_step


def test_the_command_prints_every_check_and_its_exit_code_says_whether_one_failed(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([Finding("database", OK, "answers")]))
    told = cli("doctor", "-o", "json", **operator(world))
    assert told.code == frame.OK
    assert json.loads(told.out) == [{"check": "database", "state": "ok", "what": "answers", "next": ""}]
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([Finding("bucket", FAIL, "is gone", "make it")]))
    told = cli("doctor", **operator(world))
    assert told.code == frame.FAILED
    assert "make it" in told.out


def test_config_check_shows_every_fault_at_once_and_no_secret(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TWOKEYS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TWOKEYS_DEPLOYMENT", "Not Good")
    monkeypatch.setenv("TWOKEYS_OPA_URI", "http://opa")
    monkeypatch.setenv("TWOKEYS_MASTER_KEY", "hunter2")
    monkeypatch.setenv("TWOKEYS_database_url", "postgresql://x")
    told = cli("config", "check", "-o", "json")
    assert told.code == frame.UNAVAILABLE
    assert "hunter2" not in told.out + told.err
    rows = {row["setting"]: row for row in json.loads(told.out)}
    assert rows["TWOKEYS_MASTER_KEY"]["value"] == "(7 characters)"
    assert "did you mean TWOKEYS_OPA_URL?" in rows["TWOKEYS_OPA_URI"]["fault"]
    assert rows["TWOKEYS_database_url"]["fault"].startswith("is not in capitals; write TWOKEYS_DATABASE_URL")
    faulty = {name for name, row in rows.items() if row["fault"]}
    assert faulty >= {"TWOKEYS_DEPLOYMENT", "TWOKEYS_MASTER_KEY", "TWOKEYS_PUBLIC_URL", "TWOKEYS_S3_BUCKET"}
    assert rows["TWOKEYS_WEB_PORT"] == {"setting": "TWOKEYS_WEB_PORT", "value": "8080", "from": "default", "fault": ""}
