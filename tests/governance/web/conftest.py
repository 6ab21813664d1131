"""The web application over a real database, with a tenant in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from governance.wiring import Parts
from tests.governance.web.kit import Api, Browser
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, parts, sealing_parts, sealing_world, settle, slack_sink, world

__all__ = ["parts", "sealing_parts", "sealing_world", "slack_sink", "world"]


@pytest.fixture(scope="module")
def application(parts: Parts) -> Any:
    return parts.web_app()


@pytest.fixture(scope="module")
def still(parts: Parts, slack_sink: SlackSink, servicenow_server: ServiceNow) -> World:
    """A tenant for tests that change nothing in it."""
    return settle(parts, slack_sink, servicenow_server)


@pytest.fixture
def client(application: Any) -> Iterator[TestClient]:
    with TestClient(application, base_url="http://console.test", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def browser(client: TestClient, world: World) -> Callable[[str], Browser]:
    """A browser in which this person has signed in."""

    def open_as(name: str) -> Browser:
        made = Browser(client, world)
        if name:
            answer = made.sign_in(name)
            assert answer.status_code == 303, answer.text
        return made

    return open_as


@pytest.fixture
def api(client: TestClient, world: World) -> Callable[[str], Api]:
    """A client with this person's token."""
    return lambda name: Api(client, world.token(name) if name else "")
