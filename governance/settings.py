"""The only reader of the environment: TWOKEYS_* and a TOML file become one frozen Settings, or a refusal that names the variable."""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import OperatorError
from engine.limits import heartbeat_seconds, heartbeats_per_lease_min, lease_seconds, runs_per_commit_max

PREFIX = "TWOKEYS_"
# What a person's shell may hold for the command line; no part of an installation's settings.
CLIENT = ("TWOKEYS_TOKEN", "TWOKEYS_TENANT")


class Settings(BaseModel):
    """Everything an installation can be told; secrets never appear in messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    env: Literal["production", "demo", "test"] = "production"
    deployment: str = Field(
        pattern=r"^[a-z0-9-]{1,32}$", description="short id of this installation; part of every button"
    )
    database_url: str = Field(min_length=1, repr=False, description="PostgreSQL as the application role")
    migrate_url: str = Field(
        default="", repr=False, description="PostgreSQL as the owner; only `twokeys migrate` needs it"
    )
    master_key: str = Field(
        pattern=r"^[0-9a-f]{64}$", repr=False, description="32 random bytes in hex; seals every key at rest"
    )
    public_url: str = Field(min_length=8, description="where browsers reach the console")
    web_host: str = Field(default="127.0.0.1", min_length=1)
    web_port: int = Field(default=8080, ge=0, le=65535)
    s3_endpoint: str = Field(default="", description="empty: the provider's own")
    s3_region: str = Field(default="us-east-1", min_length=1)
    s3_bucket: str = Field(min_length=3)
    s3_access_key: str = Field(min_length=1, repr=False)
    s3_secret_key: str = Field(min_length=1, repr=False)
    retain_days: int = Field(default=2555, ge=1, le=36500, description="Object Lock retention of a bundle")
    s3_lock_mode: Literal["COMPLIANCE", "GOVERNANCE"] = "COMPLIANCE"
    policy_engine: Literal["server", "managed", "embedded"] = "server"
    opa_url: str = Field(default="", description="the OPA server, for policy_engine=server")
    opa_token: str = Field(default="", repr=False)
    opa_binary: str = Field(default="", description="absolute path of `opa`, for policy_engine=managed")
    slack_api_base: str = Field(default="https://slack.com/api/", min_length=8)
    slack_signing_secret: str = Field(min_length=16, repr=False)
    slack_signing_secret_old: str = Field(default="", repr=False, description="the one before, during a rotation")
    slack_app_id: str = Field(min_length=1)
    slack_app_token: str = Field(
        default="",
        repr=False,
        pattern=r"^(xapp-.{8,}|)$",
        description="for Socket Mode: clicks arrive without a public address",
    )
    witnesses: str = Field(
        default="", description="who cosigns every log: `VKEY URL`, one after the other, apart by semicolons"
    )
    lease_seconds: int = Field(
        default=lease_seconds, ge=3, le=3600, description="how long a worker that says nothing keeps its work"
    )
    heartbeat_seconds: int = Field(
        default=heartbeat_seconds, ge=1, le=1200, description="how often a worker says that it is there"
    )
    worker_threads: int = Field(
        default=runs_per_commit_max, ge=1, le=64, description="runs that one worker process drives at once"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65535, description="where a worker shows its counters; 0: nowhere")
    metrics_token: str = Field(
        default="", repr=False, pattern=r"^(.{16,}|)$", description="what a scraper sends as its bearer token"
    )

    @property
    def local(self) -> bool:
        """Whether stand-ins for the outside are allowed here."""
        return self.env in ("demo", "test")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with what an installation was told."""

    field: str
    reason: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Told:
    """One setting as it was told: where, and what; a secret is never shown."""

    variable: str
    value: str
    source: str
    fault: str


def load(extra: dict[str, str] | None = None) -> Settings:
    """Settings from the environment over TWOKEYS_CONFIG (TOML); unknown and empty ones refuse to start."""
    return _build(*_read(extra or {}))


def inspected() -> list[Told]:
    """Every setting with its value and where it comes from, and whatever is wrong with any of them."""
    found, source, unread = _read({})
    faults = {fault.field: f"{fault.reason}; {fault.next_step}" for fault in (*_faults(found, source, unread), *unread)}
    lines = []
    for name, field in Settings.model_fields.items():
        variable = PREFIX + name.upper()
        value = str(found.get(name, "" if field.is_required() else field.default))
        shown = value if field.repr else f"({len(value)} characters)" if value else ""
        fault = faults.pop(source.get(name, variable), "")
        lines.append(Told(variable, shown, source.get(name, ""), fault))
    return lines + [Told(variable, "", "", fault) for variable, fault in faults.items()]


def made(values: dict[str, Any]) -> Settings:
    """Settings from these values alone, whatever the environment says: for a demo and for tests."""
    return _build(values, {}, [])


def client(variable: str) -> str:
    """What the person's own shell says for the command line; empty when it says nothing."""
    assert variable in CLIENT
    return os.environ.get(variable, "")


def _read(extra: dict[str, str]) -> tuple[dict[str, Any], dict[str, str], list[Fault]]:
    """Values by name, where each stands, and what could not be taken at all."""
    found: dict[str, Any] = {}
    source: dict[str, str] = {}
    faults = []
    given = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    given.update(extra)
    path = given.pop(PREFIX + "CONFIG", "")
    for name, value in (_toml(path) if path else {}).items():
        found[name], source[name] = value, f"{name} in {path}"
        if name not in Settings.model_fields:
            faults.append(_unknown(name, source.pop(name)))
            del found[name]
    for variable, value in sorted(given.items()):
        if variable in CLIENT or variable.startswith((PREFIX + "TEST_", PREFIX + "OPA_BINARY_TEST")):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.model_fields:
            faults.append(_unknown(name, variable))
        elif variable != variable.upper():
            # Two spellings of one setting would let the wrong one win in silence.
            faults.append(Fault(variable, "is not in capitals", f"write {variable.upper()}"))
        elif value == "":
            faults.append(Fault(variable, "is empty", "give it a value or unset it"))
        else:
            found[name], source[name] = value, variable
    return found, source, faults


def _build(found: dict[str, Any], source: dict[str, str], unread: list[Fault]) -> Settings:
    faults = [*unread, *_faults(found, source, unread)]
    if not faults:
        return Settings(**found)
    if len(faults) == 1:
        raise OperatorError(faults[0].reason, code="bad_setting", field=faults[0].field, next_step=faults[0].next_step)
    raise OperatorError(
        "; ".join(f"{one.field}: {one.reason}{', ' + one.next_step if '?' in one.next_step else ''}" for one in faults),
        code="bad_setting",
        next_step="`twokeys config check` shows each of them and what to do",
    )


def _faults(found: dict[str, Any], source: dict[str, str], unread: list[Fault]) -> list[Fault]:
    """What is wrong with values that could be read; what was not read for another reason is not missing as well."""
    named = {fault.field for fault in unread}
    try:
        settings = Settings(**found)
    except ValidationError as error:
        lines = [(str(one["loc"][0]), str(one["msg"])) for one in error.errors(include_input=False, include_url=False)]
        faults = [Fault(source.get(name, PREFIX + name.upper()), message, "see the README") for name, message in lines]
        return [fault for fault in faults if fault.field not in named]
    return [
        Fault(source.get(name, PREFIX + name.upper()), reason, step)
        for name, reason, step in _relations(settings)
        if PREFIX + name.upper() not in named
    ]


def _relations(s: Settings) -> list[tuple[str, str, str]]:
    """What each value may be only together with others: (setting, reason, next step)."""
    slack = ("https://slack.com/", "https://slack-gov.com/")
    table = (
        (s.policy_engine == "server" and not s.opa_url,
         "opa_url", "is missing", "policy_engine=server needs the OPA server's URL"),
        (s.policy_engine == "managed" and not s.opa_binary,
         "opa_binary", "is missing", "policy_engine=managed needs the path of opa"),
        (s.lease_seconds < heartbeats_per_lease_min * s.heartbeat_seconds,
         "lease_seconds", f"is {s.lease_seconds}, less than {heartbeats_per_lease_min} heartbeats of {s.heartbeat_seconds} s",
         f"a worker may miss two beats: {heartbeats_per_lease_min * s.heartbeat_seconds} or more, or lower {PREFIX}HEARTBEAT_SECONDS"),
        (not s.local and s.lease_seconds < 30,
         "lease_seconds", "is below 30", "a lease outlives the longest call twice over"),
        (not s.local and not s.slack_api_base.startswith(slack),
         "slack_api_base", "is not Slack", "another base is allowed in demo and test only"),
    )  # fmt: skip
    return [(name, reason, step) for wrong, name, reason, step in table if wrong]


def _unknown(name: str, shown: str) -> Fault:
    near = difflib.get_close_matches(name, Settings.model_fields, 1)
    hint = (
        f"did you mean {PREFIX}{near[0].upper()}?"
        if near
        else "remove it, or see the README for the settings there are"
    )
    return Fault(shown, "is not a setting", hint)


def _toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OperatorError(f"cannot read {path}: {error}", code="bad_setting", field=PREFIX + "CONFIG") from None


def child_environment(values: dict[str, str]) -> dict[str, str]:
    """The environment of a process we start: ours without any TWOKEYS_* and proxy settings, plus these."""
    drop = ("TWOKEYS_", "SLACK_")
    keep = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(drop) and not name.lower().endswith("_proxy")
    }
    return {**keep, **values}


def exported(settings: dict[str, Any]) -> dict[str, str]:
    """Settings as environment variables, for the processes of `make demo`."""
    return {PREFIX + name.upper(): str(value) for name, value in settings.items()}
