"""Proves that the manifest asks Slack for what the code uses and for nothing else (slack.md 5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from governance.slack import api, endpoint
from governance.slack.clicks import EVENTS
from governance.slack.modals import Modals
from governance.slack.outbox import web_call
from governance.slack.slash import COMMAND
from tests.governance.slack.kit import SECRET, World

ROOT = Path(__file__).resolve().parents[3]
# The most that we ever want to ask a workspace for.
SCOPES_MAX = {"chat:write", "commands", "users:read", "usergroups:read"}
KEYS = {
    "": {"_metadata", "display_information", "features", "oauth_config", "settings"},
    "_metadata": {"major_version", "minor_version"},
    "display_information": {"name", "description", "long_description", "background_color"},
    "features": {"app_home", "bot_user", "slash_commands"},
    "features.app_home": {"home_tab_enabled", "messages_tab_enabled", "messages_tab_read_only_enabled"},
    "features.bot_user": {"display_name", "always_online"},
    "oauth_config": {"redirect_urls", "scopes"},
    "oauth_config.scopes": {"bot", "user"},
    "settings": {
        "event_subscriptions",
        "interactivity",
        "org_deploy_enabled",
        "socket_mode_enabled",
        "token_rotation_enabled",
    },
    "settings.event_subscriptions": {"request_url", "bot_events"},
    "settings.interactivity": {"is_enabled", "request_url"},
}


class Looks:
    """Nobody has anything before them."""

    @staticmethod
    def desk(tenant: str, ref: str) -> None:
        return None


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "manifest.yml").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def inside(manifest: dict[str, Any], path: str) -> Any:
    found: Any = manifest
    for part in path.split(".") if path else []:
        found = found.get(part, {})
    return found


@pytest.mark.parametrize("path", sorted(KEYS))
def test_only_known_settings_are_used(manifest: dict[str, Any], path: str) -> None:
    assert set(inside(manifest, path)) <= KEYS[path]


def test_the_lengths_are_those_of_the_official_schema(manifest: dict[str, Any]) -> None:
    shown = manifest["display_information"]
    assert 1 <= len(shown["name"]) <= 35
    assert len(shown["description"]) <= 140
    assert 175 <= len(shown["long_description"]) <= 4_000
    assert re.fullmatch(r"#[0-9a-f]{6}", shown["background_color"])
    assert len(manifest["features"]["bot_user"]["display_name"]) <= 80


def test_the_scopes_are_those_of_the_methods_that_are_called(manifest: dict[str, Any]) -> None:
    used = {scope for scope in api.SCOPES.values() if scope} | {"commands"}
    asked = set(manifest["oauth_config"]["scopes"]["bot"])
    assert asked == used
    assert asked <= SCOPES_MAX
    assert "user" not in manifest["oauth_config"]["scopes"]


def test_every_method_that_the_code_names_is_in_the_table_of_scopes() -> None:
    source = "".join(file.read_text("utf-8") for file in (ROOT / "governance" / "slack").glob("*.py"))
    named = set(re.findall(r'"((?:chat|views|users|usergroups|conversations|auth|oauth|files)\.[a-zA-Z.]+)"', source))
    assert named == set(api.SCOPES)
    assert web_call({"kind": "dm", "tenant": "t", "user": "U1", "text": "x"})[0] in api.SCOPES
    assert Modals


def test_the_commands_are_those_that_are_registered_and_back(manifest: dict[str, Any]) -> None:
    commands = manifest["features"]["slash_commands"]
    assert [entry["command"] for entry in commands] == [COMMAND]
    assert re.fullmatch(r"/[a-z]{1,31}", COMMAND)
    assert all(entry["should_escape"] for entry in commands)
    hint = commands[0]["usage_hint"].split(" | ")
    for word in hint:
        verb = word.partition(" ")[0]
        typed = {"team_id": "T0ACME", "user_id": "U1A", "api_app_id": "A0TWOKEYS", "text": verb}
        body = World(looking=Looks).clicks().command(typed).body
        assert isinstance(body, dict)
        assert "do not know" not in body["text"]


def test_the_events_are_those_that_are_registered_and_back(manifest: dict[str, Any]) -> None:
    assert manifest["settings"]["event_subscriptions"]["bot_events"] == sorted(EVENTS)


def test_buttons_and_windows_need_interactivity(manifest: dict[str, Any]) -> None:
    assert manifest["settings"]["interactivity"]["is_enabled"] is True


def test_every_address_is_the_one_route(manifest: dict[str, Any]) -> None:
    (route,) = endpoint.slack_routes(World().clicks(), (SECRET,), lambda: 0, lambda _: None)
    settings = manifest["settings"]
    urls = {
        settings["event_subscriptions"]["request_url"],
        settings["interactivity"]["request_url"],
        *(entry["url"] for entry in manifest["features"]["slash_commands"]),
    }
    assert urls == {"https://twokeys.example.com" + route.path}


@pytest.mark.parametrize("setting", ["org_deploy_enabled", "socket_mode_enabled", "token_rotation_enabled"])
def test_what_is_not_built_is_off(manifest: dict[str, Any], setting: str) -> None:
    assert manifest["settings"][setting] is False


def test_the_manifest_for_socket_mode_is_the_same_without_addresses(manifest: dict[str, Any]) -> None:
    other = yaml.safe_load((ROOT / "manifest.socket.yml").read_text("utf-8"))

    def without(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: without(inner) for name, inner in part.items() if name not in ("url", "request_url")}
        return [without(inner) for inner in part] if isinstance(part, list) else part

    assert "twokeys.example.com" not in (ROOT / "manifest.socket.yml").read_text("utf-8")
    assert other["settings"].pop("socket_mode_enabled") is True
    here = without(manifest)
    assert here["settings"].pop("socket_mode_enabled") is False
    assert other == here


def test_the_home_tab_is_asked_for_because_it_is_published(manifest: dict[str, Any]) -> None:
    assert manifest["features"]["app_home"]["home_tab_enabled"] is True
    assert "app_home_opened" in EVENTS
