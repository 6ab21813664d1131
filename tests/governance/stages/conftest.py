"""The machine on real parts: a tenant, ServiceNow's stand-in, the embedded policy engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]


@pytest.fixture(autouse=True)
def nothing_left(world: World) -> Iterator[None]:
    """What a test leaves to be done later would take the faults that the next one plans."""
    yield
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("delete from work where tenant = :tenant")
