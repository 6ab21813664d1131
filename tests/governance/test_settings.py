"""What an installation can be told: unknown, empty and impossible settings refuse to start by name, and no secret is ever shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import OperatorError
from governance import settings as room
from governance.settings import Settings

KEY = "5a" * 32
WHOLE = {
    "DEPLOYMENT": "acme-prod",
    "DATABASE_URL": "postgresql://app:hunter2-database@db.example/twokeys",
    "MASTER_KEY": KEY,
    "PUBLIC_URL": "https://twokeys.example",
    "S3_BUCKET": "acme-evidence",
    "S3_ACCESS_KEY": "AKIA-hunter2-access",
    "S3_SECRET_KEY": "hunter2-s3-secret",
    "OPA_URL": "https://opa.example:8181",
    "SLACK_SIGNING_SECRET": "hunter2-signing-secret",
    "SLACK_APP_ID": "A0TWOKEYS",
}
SECRETS = (KEY, "hunter2")

Environment = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A whole production environment, changed by keyword; None takes a variable away."""
    for name in list(os.environ):
        if name.startswith("TWOKEYS_"):
            monkeypatch.delenv(name)

    def put(**changes: str | None) -> None:
        for name, value in {**WHOLE, **changes}.items():
            if value is None:
                monkeypatch.delenv(f"TWOKEYS_{name}", raising=False)
            else:
                monkeypatch.setenv(f"TWOKEYS_{name}", value)

    put()
    return put


def refusal(how: Callable[[], Any] = room.load) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        how()
    assert caught.value.code == "bad_setting"
    for secret in SECRETS:
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value.__context__ or "")
    return caught.value


def test_a_whole_environment_is_production_with_safe_defaults(environment: Environment) -> None:
    found = room.load()
    assert (found.env, found.local, found.deployment) == ("production", False, "acme-prod")
    assert found.slack_api_base == "https://slack.com/api/"
    assert (found.policy_engine, found.s3_lock_mode, found.web_host) == ("server", "COMPLIANCE", "127.0.0.1")
    assert found.retain_days >= 365


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("DATABSE_URL", "TWOKEYS_DATABASE_URL"),
        ("OPA_URI", "TWOKEYS_OPA_URL"),
        ("SLACK_SIGNING_SECRETS", "TWOKEYS_SLACK_SIGNING_SECRET"),
    ],
)
def test_an_unknown_variable_is_refused_by_name_with_what_was_meant(
    environment: Environment, typed: str, meant: str
) -> None:
    environment(**{typed: "hunter2-typed"})
    error = refusal()
    assert error.field == f"TWOKEYS_{typed}"
    assert f"did you mean {meant}?" in error.next_step


def test_an_unknown_variable_that_is_like_nothing_is_refused_with_what_to_do(environment: Environment) -> None:
    environment(XYZZY="1")
    error = refusal()
    assert (error.field, error.reason) == ("TWOKEYS_XYZZY", "is not a setting")
    assert "README" in error.next_step


@pytest.mark.parametrize("name", sorted({*WHOLE, "LOG_LEVEL", "MIGRATE_URL", "OPA_TOKEN", "S3_ENDPOINT"}))
def test_an_empty_variable_is_refused_by_name(environment: Environment, name: str) -> None:
    """`export TWOKEYS_OPA_URL=` is a mistake of a script and no wish for a default."""
    environment(**{name: ""})
    error = refusal()
    assert (error.field, error.reason) == (f"TWOKEYS_{name}", "is empty")


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_missing_variable_is_refused_by_name(environment: Environment, name: str) -> None:
    environment(**{name: None})
    assert f"TWOKEYS_{name}" in str(refusal())


def test_everything_that_is_missing_is_told_at_once(environment: Environment) -> None:
    environment(**dict.fromkeys(WHOLE))
    text = str(refusal())
    assert all(f"TWOKEYS_{name}" in text for name in WHOLE if name != "OPA_URL")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MASTER_KEY", "hunter2" + "a" * 57),
        ("MASTER_KEY", KEY[:-2]),
        ("MASTER_KEY", KEY.upper()),
        ("DEPLOYMENT", "Acme Prod"),
        ("DEPLOYMENT", "a" * 33),
        ("ENV", "prod"),
        ("WEB_PORT", "http"),
        ("WEB_PORT", "70000"),
        ("RETAIN_DAYS", "0"),
        ("LEASE_SECONDS", "1"),
        ("LOG_LEVEL", "verbose"),
        ("POLICY_ENGINE", "regopy"),
        ("S3_LOCK_MODE", "NONE"),
        ("SLACK_SIGNING_SECRET", "hunter2"),
        ("PUBLIC_URL", "x"),
    ],
)
def test_an_impossible_value_is_refused_by_the_variables_name_and_not_shown(
    environment: Environment, name: str, value: str
) -> None:
    environment(**{name: value})
    text = str(refusal())
    assert f"TWOKEYS_{name}" in text
    if name in ("MASTER_KEY", "SLACK_SIGNING_SECRET"):
        assert value not in text


def test_two_faults_are_two_names(environment: Environment) -> None:
    environment(WEB_PORT="http", LOG_LEVEL="verbose")
    text = str(refusal())
    assert "TWOKEYS_WEB_PORT" in text
    assert "TWOKEYS_LOG_LEVEL" in text


def test_settings_do_not_show_what_is_secret(environment: Environment) -> None:
    environment(OPA_TOKEN="hunter2-opa", SLACK_SIGNING_SECRET_OLD="hunter2-old-secret")
    shown = repr(room.load())
    for name in ("MASTER_KEY", "S3_SECRET_KEY", "S3_ACCESS_KEY", "SLACK_SIGNING_SECRET"):
        assert WHOLE[name] not in shown
    assert "hunter2-opa" not in shown
    assert "hunter2-old" not in shown


def test_settings_are_not_changed_afterwards(environment: Environment) -> None:
    with pytest.raises(ValueError, match="frozen"):
        room.load().env = "test"


# --- what belongs together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "missing"), [("server", "OPA_URL"), ("managed", "OPA_BINARY")])
def test_a_policy_engine_without_its_place_is_refused(environment: Environment, engine: str, missing: str) -> None:
    environment(POLICY_ENGINE=engine, OPA_URL=None)
    error = refusal()
    assert (error.field, error.reason) == (f"TWOKEYS_{missing}", "is missing")
    assert engine in error.next_step


def test_the_embedded_engine_needs_no_place(environment: Environment) -> None:
    environment(POLICY_ENGINE="embedded", OPA_URL=None)
    assert room.load().policy_engine == "embedded"


@pytest.mark.parametrize(
    "base",
    [
        "http://127.0.0.1:9/api/", "https://slack.com.evil.example/api/", "http://slack.com/api/", "https://evil.example/slack.com/",
        "https://slack.com@evil.example/", "ftp://slack.com/api/",
    ],
)  # fmt: skip
def test_another_slack_is_refused_in_production(environment: Environment, base: str) -> None:
    environment(SLACK_API_BASE=base)
    error = refusal()
    assert (error.field, error.reason) == ("TWOKEYS_SLACK_API_BASE", "is not Slack")
    assert "demo and test only" in error.next_step


@pytest.mark.parametrize("base", ["https://slack.com/api/", "https://slack-gov.com/api/"])
def test_slack_itself_is_accepted_in_production(environment: Environment, base: str) -> None:
    environment(SLACK_API_BASE=base)
    assert room.load().slack_api_base == base


@pytest.mark.parametrize("env", ["demo", "test"])
def test_a_desk_is_allowed_where_nothing_is_real(environment: Environment, env: str) -> None:
    environment(ENV=env, SLACK_API_BASE="http://127.0.0.1:9/api/")
    assert room.load().local


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Settings in a file and nowhere else."""
    environment(**dict.fromkeys(WHOLE))
    path = tmp_path / "twokeys.toml"
    monkeypatch.setenv("TWOKEYS_CONFIG", str(path))

    def write(more: str = "") -> Path:
        lines = [f'{name.lower()} = "{value}"' for name, value in WHOLE.items()]
        path.write_text("\n".join([*lines, more]))
        return path

    return write


def test_a_file_says_the_same_as_the_environment(config: Callable[[str], Path], environment: Environment) -> None:
    config("retain_days = 30\nweb_port = 9000")
    from_file = room.load()
    assert (from_file.retain_days, from_file.web_port) == (30, 9000)
    environment(RETAIN_DAYS="30", WEB_PORT="9000")
    assert room.load() == from_file


def test_the_environment_wins_over_the_file(config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    config('log_level = "debug"')
    monkeypatch.setenv("TWOKEYS_LOG_LEVEL", "error")
    assert room.load().log_level == "error"


def test_a_fault_of_the_file_names_the_file(config: Callable[[str], Path]) -> None:
    path = config('datbase_url = "x"')
    error = refusal()
    assert error.field == f"datbase_url in {path}"
    assert "did you mean TWOKEYS_DATABASE_URL?" in error.next_step
    path = config('log_level = "verbose"')
    assert f"log_level in {path}" in str(refusal())
    path = config("[database]\nurl = 1")
    assert f"database in {path}" in str(refusal())


@pytest.mark.parametrize("text", [b"deployment = ", b"\xff\xfe", b'deployment = "a"\ndeployment = "b"'])
def test_a_file_that_cannot_be_read_is_refused(config: Callable[[str], Path], text: bytes) -> None:
    config("").write_bytes(text)
    error = refusal()
    assert error.field == "TWOKEYS_CONFIG"
    assert "cannot read" in str(error)


def test_a_file_that_is_not_there_is_refused(config: Callable[[str], Path]) -> None:
    assert refusal().field == "TWOKEYS_CONFIG"


# --- what is not a setting --------------------------------------------------------------------------------------------


def test_a_persons_own_variables_are_no_settings(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(TOKEN="tk_hunter2-token", TENANT="acme")
    assert room.load().deployment == "acme-prod"
    assert room.client("TWOKEYS_TOKEN") == "tk_hunter2-token"
    monkeypatch.delenv("TWOKEYS_TOKEN")
    assert room.client("TWOKEYS_TOKEN") == ""
    with pytest.raises(AssertionError):
        room.client("TWOKEYS_MASTER_KEY")


def test_a_child_process_is_given_settings_and_nothing_of_ours(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-hunter2")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    monkeypatch.setenv("PLAIN", "kept")
    found = room.child_environment({"TWOKEYS_ENV": "demo"})
    assert {name: value for name, value in found.items() if name.startswith("TWOKEYS_")} == {"TWOKEYS_ENV": "demo"}
    assert "SLACK_BOT_TOKEN" not in found
    assert "https_proxy" not in found
    assert found["PLAIN"] == "kept"


def test_settings_that_are_made_take_nothing_from_the_environment(environment: Environment) -> None:
    environment(XYZZY="1", DEPLOYMENT="elsewhere")
    values = {name.lower(): value for name, value in WHOLE.items()}
    assert room.made(values).deployment == "acme-prod"
    assert "unheard_of" in str(refusal(lambda: room.made({**values, "unheard_of": 1}))).lower()


def test_what_is_exported_is_loaded_again(environment: Environment) -> None:
    given = room.load()
    values = {name: value for name in Settings.model_fields if (value := getattr(given, name)) != ""}
    environment(**dict.fromkeys(WHOLE))
    assert room.load(room.exported(values)) == given


@pytest.mark.parametrize(
    ("lease", "heartbeat", "holds"),
    [
        ("30", "10", True),
        ("30", None, True),
        ("59", "20", False),
        ("60", "21", False),
        ("60", "20", True),
        ("30", "11", False),
    ],
)
def test_a_lease_shorter_than_three_heartbeats_is_refused_by_name(
    environment: Environment, lease: str, heartbeat: str | None, holds: bool
) -> None:
    """A worker may miss two beats and still hold its work."""
    environment(LEASE_SECONDS=lease, HEARTBEAT_SECONDS=heartbeat)
    if holds:
        assert room.load().lease_seconds == int(lease)
        return
    error = refusal()
    assert error.field == "TWOKEYS_LEASE_SECONDS"
    assert "TWOKEYS_HEARTBEAT_SECONDS" in str(error)


@pytest.mark.parametrize("name", ["LEASE_SECONDS", "HEARTBEAT_SECONDS", "WORKER_THREADS"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_what_a_worker_counts_with_is_a_whole_number_above_zero(
    environment: Environment, name: str, value: str
) -> None:
    environment(**{name: value})
    assert f"TWOKEYS_{name}" in str(refusal())
