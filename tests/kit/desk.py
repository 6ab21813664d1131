"""A running local Slack desk for a test, with the people of the demo and a browser in front of it."""

from __future__ import annotations

from pathlib import Path

from governance.local import desk as room
from governance.local.children import Children
from governance.local.desk.visitor import Visitor

SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
BOT_TOKEN = "xoxb-desk-test"
PEOPLE = (
    room.Persona("U0ALICE", "Alice Archer", "approver · incident desk"),
    room.Persona("U0BOB", "Bob Brand", "approver · incident desk"),
    room.Persona("U0CAROL", "Carol Chen", "requester"),
    room.Persona("U0DAN", "Dan Dietz", "not an approver"),
    room.Persona("U0EVE", "Eve Ekman", "another company", team_id="T0OTHER"),
    room.Persona("U0FRANK", "Frank Foss", "deactivated", deleted=True),
)


class Desk:
    """The desk's process and its address."""

    def __init__(self, children: Children, state_directory: Path, workspace: room.Workspace) -> None:
        self.workspace = workspace
        self._children = children
        self._directory = state_directory
        self._running = room.start(children, state_directory, workspace, environment="test")

    @property
    def base_url(self) -> str:
        return self._running.base_url

    @property
    def api_base(self) -> str:
        return f"{self.base_url}/api/"

    def browser(self, user_id: str = "U0ALICE") -> Visitor:
        """A new browser with this person in front of it."""
        visitor = Visitor(self.base_url)
        visitor.become(user_id)
        return visitor

    def restart(self) -> None:
        """End it as a crash would and start it over the same state, on the same port."""
        self._children.kill(self._running.child)
        self._running = room.start(self._children, self._directory, self.workspace, environment="test")

    def stop(self) -> None:
        self._children.stop(self._running.child)
