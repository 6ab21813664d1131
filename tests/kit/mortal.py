"""A PostgreSQL of a test's own, durable like production's, that may be killed, and what a client does that got no answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TwokeysError
from governance import clock
from governance.local import postgres
from governance.local.children import Children
from governance.store import migrate
from governance.wiring import Parts
from tests.kit.servers import Bucket
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import settings_for, settle, vault_of, without_bucket


def insist(order: Callable[[], Any], faults: list[TwokeysError]) -> Any:
    """What a client does that got no answer: the same again."""
    deadline = clock.monotonic() + 30
    while clock.monotonic() < deadline:
        try:
            return order()
        except TwokeysError as error:
            faults.append(error)
            clock.sleep(0.02)
    raise AssertionError(f"no answer in 30 s: {faults[-1]}")


class Mortal:
    """A PostgreSQL of this test's own with an installation on it."""

    def __init__(
        self, stack: ExitStack, directory: Path, slack: SlackSink, servicenow: ServiceNow, bucket: Bucket | None = None
    ) -> None:
        self.directory = directory
        self.children = stack.enter_context(Children(directory / "logs"))
        self.server = postgres.start(self.children, directory)
        made = self.server.create_application()
        migrate.upgrade(made.owner_url, postgres.APP_ROLE)
        sealed = vault_of(bucket) if bucket else {}
        self.settings = settings_for(made, slack.api_base, lease_seconds=5, **sealed)
        self.parts = Parts(self.settings, "mortal", directory)
        stack.callback(self.parts.close)
        if bucket is None:
            without_bucket(self.parts)
        self.world = settle(self.parts, slack, servicenow)

    def kill(self) -> None:
        """SIGKILL to the server and to whatever serves a client, then the start that its supervisor would make."""
        self.children.kill(self.server.child)
        self.server = postgres.start(self.children, self.directory)


@pytest.fixture
def place(state_directory: Path) -> Path:
    directory = state_directory / f"pg-{clock.random_hex(3)}"
    directory.mkdir()
    directory.chmod(0o711)
    return directory
