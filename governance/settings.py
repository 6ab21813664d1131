"""The only reader of the environment: TWOKEYS_* and a TOML file become one frozen Settings, or a refusal that names the variable."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import OperatorError

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
    lease_seconds: int = Field(default=30, ge=3, le=3600)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def local(self) -> bool:
        """Whether stand-ins for the outside are allowed here."""
        return self.env in ("demo", "test")


def load(extra: dict[str, str] | None = None) -> Settings:
    """Settings from the environment over TWOKEYS_CONFIG (TOML); unknown and empty ones refuse to start."""
    found: dict[str, Any] = {}
    source: dict[str, str] = {}
    given = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    given.update(extra or {})
    path = given.pop(PREFIX + "CONFIG", "")
    if path:
        for name, value in _toml(path).items():
            _known(name, f"{name} in {path}")
            found[name], source[name] = value, f"{name} in {path}"
    for variable, value in sorted(given.items()):
        if variable in CLIENT or variable.startswith((PREFIX + "TEST_", PREFIX + "OPA_BINARY_TEST")):
            continue
        name = variable.removeprefix(PREFIX).lower()
        _known(name, variable)
        if value == "":
            raise OperatorError("is empty", code="bad_setting", field=variable, next_step="give it a value or unset it")
        found[name], source[name] = value, variable
    return _build(found, source)


def made(values: dict[str, Any]) -> Settings:
    """Settings from these values alone, whatever the environment says: for a demo and for tests."""
    return _build(values, {})


def client(variable: str) -> str:
    """What the person's own shell says for the command line; empty when it says nothing."""
    assert variable in CLIENT
    return os.environ.get(variable, "")


def _build(found: dict[str, Any], source: dict[str, str]) -> Settings:
    try:
        settings = Settings(**found)
    except ValidationError as error:
        problems = []
        for one in error.errors(include_input=False, include_url=False):
            name = str(one["loc"][0])
            problems.append(f"{source.get(name, PREFIX + name.upper())}: {one['msg']}")
        raise OperatorError(
            "; ".join(problems), code="bad_setting", next_step="see `twokeys serve --help` and the README"
        ) from None
    if settings.policy_engine == "server" and not settings.opa_url:
        raise OperatorError(
            "is missing",
            code="bad_setting",
            field=PREFIX + "OPA_URL",
            next_step="policy_engine=server needs the OPA server's URL",
        )
    if settings.policy_engine == "managed" and not settings.opa_binary:
        raise OperatorError(
            "is missing",
            code="bad_setting",
            field=PREFIX + "OPA_BINARY",
            next_step="policy_engine=managed needs the path of opa",
        )
    if not settings.local and settings.lease_seconds < 30:
        raise OperatorError(
            "is below 30",
            code="bad_setting",
            field=PREFIX + "LEASE_SECONDS",
            next_step="a lease outlives the longest call twice over",
        )
    if not settings.local and not settings.slack_api_base.startswith(("https://slack.com/", "https://slack-gov.com/")):
        raise OperatorError(
            "is not Slack",
            code="bad_setting",
            field=PREFIX + "SLACK_API_BASE",
            next_step="another base is allowed in demo and test only",
        )
    return settings


def _known(name: str, shown: str) -> None:
    if name in Settings.model_fields:
        return
    near = difflib.get_close_matches(name, Settings.model_fields, 1)
    hint = (
        f"did you mean {PREFIX}{near[0].upper()}?"
        if near
        else "remove it, or see the README for the settings there are"
    )
    raise OperatorError("is not a setting", code="bad_setting", field=shown, next_step=hint)


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
