"""A local page and Web API in Slack's shape, where people without a workspace read cards and press buttons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from governance.local import standin
from governance.local.children import Children

MODULE = "governance.local.desk"


@dataclass(frozen=True)
class Persona:
    """Somebody you can be at the desk; `team_id` other than the desk's own makes an outside company's person."""

    id: str
    name: str
    note: str = ""
    team_id: str = ""
    deleted: bool = False
    is_bot: bool = False
    is_restricted: bool = False


@dataclass(frozen=True)
class Channel:
    """A channel that everybody is a member of."""

    id: str
    name: str
    topic: str = ""


@dataclass(frozen=True)
class Workspace:
    """The one workspace and the one app that the desk plays; secrets are what the product is configured with."""

    events_url: str
    signing_secret: str
    bot_token: str
    personas: tuple[Persona, ...]
    channels: tuple[Channel, ...] = (Channel("C0APPROVALS", "approvals"),)
    team_id: str = "T0DEMO"
    team_name: str = "Demo"
    app_id: str = "A0TWOKEYS"
    app_name: str = "Twokeys"
    bot_user_id: str = "U0TWOKEYS"
    bot_id: str = "B0TWOKEYS"
    command: str = "/twokeys"
    verification_token: str = field(default="not-used", repr=False)

    def persona(self, user_id: str) -> Persona | None:
        return next((persona for persona in self.personas if persona.id == user_id), None)

    def team_of(self, persona: Persona) -> str:
        return persona.team_id or self.team_id


def workspace_from(document: Mapping[str, Any]) -> Workspace:
    """Read a workspace from the JSON form that `start` wrote."""
    fields = dict(document)
    fields["personas"] = tuple(Persona(**persona) for persona in fields["personas"])
    fields["channels"] = tuple(Channel(**channel) for channel in fields["channels"])
    return Workspace(**fields)


def start(
    children: Children, state_directory: Path, workspace: Workspace, *, environment: str, port: int = 0
) -> standin.StandIn:
    """Start the desk over this state directory; the product's Slack API base is `<base_url>/api/`."""
    config = {"environment": environment, "workspace": asdict(workspace)}
    return standin.start(children, "desk", MODULE, state_directory, config, port)
