"""After each test everything that was stored must agree with everything else, unless the test broke it on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.world import World


@pytest.fixture(autouse=True)
def consistent(request: pytest.FixtureRequest) -> Iterator[None]:
    """`@pytest.mark.inconsistent(reason)` marks a test that leaves rows which contradict each other."""
    worlds = [request.getfixturevalue(name) for name in ("world", "sealing_world") if name in request.fixturenames]
    yield
    if request.node.get_closest_marker("inconsistent"):
        return
    for world in worlds:
        assert isinstance(world, World)
        found = list(world.parts.fsck.check(world.tenant, lambda: None))
        assert not found, found
