"""The commands over a real database: a tenant with somebody of every level in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from governance.wiring import Parts
from tests.governance.commands.kit import LEVELS, small, staff
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, parts, settle, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]


@pytest.fixture(scope="module")
def company(parts: Parts, slack_sink: SlackSink, servicenow_server: ServiceNow) -> World:
    """One tenant of this module, with somebody of every level: l1 to l6."""
    made = settle(parts, slack_sink, servicenow_server)
    for level in LEVELS:
        staff(made, f"l{level}", level)
    made.apply(small())
    return made


@pytest.fixture(autouse=True)
def nothing_left(company: World) -> Iterator[None]:
    """Runs that a test has ended wait to be sealed, and faults that it planned wait to be met: not by the next test."""
    yield
    company.servicenow.call("DELETE", "/_control/faults")
    with company.parts.database.unit(company.tenant) as unit:
        unit.run("delete from work where tenant = :tenant")


@pytest.fixture(scope="module")
def rival(parts: Parts, slack_sink: SlackSink, servicenow_server: ServiceNow) -> World:
    """Another tenant of the same installation."""
    return settle(parts, slack_sink, servicenow_server)
