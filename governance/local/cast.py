"""Who and what a demo consists of, and the memory of its secrets, so that a restart finds the same people and tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from engine.errors import OperatorError
from governance import clock
from governance.local.desk import Channel, Persona
from governance.local.standin import write_whole

TENANT = "demo"
TEAM = "T0DEMO"
APP = "A0TWOKEYS"
BOT = "U0TWOKEYS"
BUCKET = "twokeys-demo"
SOURCE = "servicenow"
WORKFLOW = "incident-triage"
SERVICENOW_USER = "twokeys"
CHANNELS = (
    Channel("C0APPROVALS", "approvals", "What waits for a key, and what became of it"),
    Channel("C0INCIDENTS", "incidents", "What automation did about incidents"),
)
GROUPS = {"oncall": "On call", "incident-managers": "Incident managers"}


@dataclass(frozen=True)
class Member:
    """One of the cast; without a level they are nobody here, only a face at the desk."""

    key: str
    name: str
    note: str
    level: int = 0
    groups: tuple[str, ...] = ()
    read_only: bool = False
    active: bool = True
    team: str = TEAM

    @property
    def slack(self) -> str:
        return f"U0{self.key.upper()}"

    @property
    def persona(self) -> Persona:
        """The same one at the desk."""
        return Persona(self.slack, self.name, self.note, team_id="" if self.team == TEAM else self.team)


CAST = (
    Member("ana", "Ana Archer", "on call, incident manager", 4, ("oncall", "incident-managers")),
    Member("bo", "Bo Brandt", "incident manager", 4, ("incident-managers",)),
    Member("cleo", "Cleo Costa", "on call, incident manager", 4, ("oncall", "incident-managers")),
    Member("rita", "Rita Requester", "asks for things, in no group", 6),
    Member("olga", "Olga Outsider", "another company", team="T0OTHER"),
    Member("dan", "Dan Deactivated", "left last week", 4, ("oncall", "incident-managers"), active=False),
    Member("aud", "Aud Auditor", "reads everything", 1, read_only=True),
    Member("adi", "Adi Admin", "owns the webhook", 6, ("oncall", "incident-managers")),
)
ROBOT = "ServiceNow webhook"
OWNER = "adi"
AUTHOR = "rita"

_troubles = (
    ("Checkout answers 502 for one customer in ten", "network", "2"),
    ("VPN drops every ten minutes in the Lyon office", "network", "3"),
    ("Nightly invoice export did not run", "software", "2"),
    ("Mailbox of the support team is full", "software", "4"),
    ("Badge readers on floor 3 are offline", "hardware", "3"),
    ("Search shows results of yesterday", "software", "3"),
)


def incident(n: int) -> dict[str, str]:
    """The n-th incident, from 1; the same at every start."""
    number = f"INC{10_000 + n:07d}"
    what, category, priority = _troubles[(n - 1) % len(_troubles)]
    return {
        "sys_id": hashlib.sha256(number.encode()).hexdigest()[:32], "number": number, "short_description": what, "category": category,
        "priority": priority, "impact": "3", "urgency": "3", "state": "1", "caller_id": "Demo customer",
    }  # fmt: skip


INCIDENTS = 500


@dataclass
class Memory:
    """What a demo must find again: its secrets, its web port, and how many events it has sent. Read and written by its owner only."""

    path: Path
    master_key: str = field(default_factory=lambda: clock.random_hex(32))
    signing_secret: str = field(default_factory=lambda: clock.random_hex(16))
    bot_token: str = field(default_factory=lambda: f"xoxb-demo-{clock.random_hex(12)}")
    webhook_secret: str = field(default_factory=lambda: clock.random_hex(24))
    servicenow_password: str = field(default_factory=lambda: clock.random_hex(12))
    tokens: dict[str, str] = field(default_factory=dict)
    web_port: int = 8787
    events: int = 0

    def token(self, key: str) -> str:
        """The personal token of one of the cast."""
        return self.tokens.setdefault(key, f"tk_demo_{key}_{clock.random_hex(10)}")

    def save(self) -> None:
        """Keep it, so that nobody else on this machine can read it."""
        values = asdict(self)
        del values["path"]
        write_private(self.path, json.dumps(values, indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read, from its first byte on."""
    path.with_name(f"{path.name}.new").touch(mode=0o600)  # the name under which write_whole begins
    write_whole(path, text)


def remembered(path: Path) -> Memory:
    """The memory in this file, or a new one."""
    if not path.exists():
        return Memory(path)
    try:
        return Memory(path, **json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise OperatorError(
            f"cannot be read: {error}", field=str(path), next_step=f"restore it, or remove {path.parent} to begin again"
        ) from None
