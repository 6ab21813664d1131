"""Records, payloads and a signed way in, as Slack would use them; the only fakes are what wiring hands in."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from engine.gate.card import CardRecord
from governance.commands.answer import Filled, Told
from governance.commands.decide import Answer, Press
from governance.commands.resolve import Resolved, Said
from governance.slack import buttons
from governance.slack.api import Sent
from governance.slack.clicks import Clicks, Seams
from governance.slack.slash import Slash
from governance.store.doubts import DoubtRecord
from governance.store.tasks import TaskRecord

SECRET = "a-signing-secret-of-32-characters"
OLD_SECRET = "the-secret-that-is-rotated-out-now"
NOW = 1_800_000_000
APP = "A0TWOKEYS"
TEAM = "T0ACME"
ALICE = "U0ALICE"
APPROVAL = "ap_1a2b3c4d5e6f7081"


def mac(message: bytes) -> bytes:
    return hmac.new(b"k" * 32, message, hashlib.sha256).digest()


def record(**changed: Any) -> CardRecord:
    values: dict[str, Any] = {
        "approval": APPROVAL,
        "tenant": "acme",
        "status": "requested",
        "tier": "high",
        "keys": 2,
        "counts": (("change-managers", 1),),
        "groups": ("change-managers", "it-approvers"),
        "expires_at": "2027-01-15T09:00:00.000000Z",
        "expires_epoch": 1_800_003_600,
        "requested_by": "Rita Requester",
        "on_behalf_of": "",
        "workflow": "incident-triage",
        "version": "3",
        "step": "close",
        "run": "9f" * 16,
        "connector": "servicenow",
        "operation": "close_incident",
        "summary": "Close incident",
        "kind": "write",
        "reversible": False,
        "reversal": "none",
        "target": {"system": "servicenow", "type": "incident", "id": "INC0012345", "instance": "dev1234"},
        "changes": (
            ("state", "In progress", "Closed"),
            ("close_code", "", "Solved (Permanently)"),
            ("close_notes", "", "The disk of db-7 was replaced.\nThe array has been rebuilt, no data was lost."),
        ),
        "amount": "",
        "why": "The alert has been quiet for two hours after the disk was replaced.",
        "reasons": (("tier.high.two_person", "a note that customers see needs two different people"),),
        "policy_revision": "7f3a" * 16,
        "action_sha256": "ab" * 32,
        "card_rev": 1,
        "phase": "asked",
        "given": (),
        "excluded": (("Rita Requester", "requester"),),
        "outcome": "",
        "console_url": "https://twokeys.example.com/approvals/ap_1a2b3c4d5e6f7081",
        "environment": "prod",
    }
    return CardRecord(**{**values, **changed})


def signed(body: bytes, *, at: int = NOW, secret: str = SECRET) -> list[tuple[bytes, bytes]]:
    signature = hmac.new(secret.encode(), b"v0:%d:" % at + body, hashlib.sha256).hexdigest()
    return [
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"x-slack-request-timestamp", str(at).encode()),
        (b"x-slack-signature", b"v0=" + signature.encode()),
    ]


def form(payload: dict[str, Any]) -> bytes:
    return urlencode({"payload": json.dumps(payload)}).encode()


def click(action_id: str, value: str, **changed: Any) -> dict[str, Any]:
    """A block_actions payload with the keys that Slack sends (slack.md 4.3)."""
    payload: dict[str, Any] = {
        "type": "block_actions",
        "team": {"id": TEAM, "domain": "acme"},
        "user": {"id": ALICE, "username": "alice", "name": "alice", "team_id": TEAM},
        "api_app_id": APP,
        "token": "verification-token",
        "container": {"type": "message", "message_ts": "1.2", "channel_id": "C0OPS", "is_ephemeral": False},
        "trigger_id": "1.2.trigger",
        "channel": {"id": "C0OPS", "name": "ops"},
        "message": {"ts": "1.2", "blocks": [{"type": "divider"}]},
        "response_url": "https://hooks.slack.com/actions/T0ACME/1/x",
        "actions": [{"type": "button", "action_id": action_id, "block_id": "tk_buttons", "value": value}],
        "is_enterprise_install": False,
    }
    return {**payload, **changed}


def submission(view: dict[str, Any], reason: str | None = None, **changed: Any) -> dict[str, Any]:
    state = {"values": {"tk_reason": {"tk_reason": {"type": "plain_text_input", "value": reason}}}}
    payload: dict[str, Any] = {
        "type": "view_submission",
        "team": {"id": TEAM, "domain": "acme"},
        "user": {"id": ALICE, "username": "alice", "name": "alice", "team_id": TEAM},
        "api_app_id": APP,
        "token": "verification-token",
        "trigger_id": "3.4.trigger",
        "view": {**view, "id": "V1", "hash": "h1", "state": state, "app_installed_team_id": TEAM},
        "response_urls": [],
    }
    return {**payload, **changed}


def command(text: str, **changed: Any) -> dict[str, Any]:
    fields = {
        "token": "verification-token",
        "team_id": TEAM,
        "channel_id": "C0OPS",
        "user_id": ALICE,
        "command": "/twokeys",
        "text": text,
        "response_url": "https://hooks.slack.com/commands/T0ACME/1/x",
        "trigger_id": "5.6.trigger",
        "api_app_id": APP,
        "is_enterprise_install": "false",
    }
    return {**fields, **changed}


KEY_GIVEN = Answer("key_given", True, "Your key is in: 1 of 2.", "requested", 1, 2)


@dataclass
class World:
    """What the handlers did to the outermost seam."""

    pressed: list[Press] = field(default_factory=list)
    told: list[tuple[str, Any, str]] = field(default_factory=list)
    opened: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    answer: Answer = KEY_GIVEN
    records: dict[tuple[str, str], CardRecord] = field(default_factory=dict)
    tasks: dict[tuple[str, str], TaskRecord] = field(default_factory=dict)
    filled: list[Filled] = field(default_factory=list)
    thanks: Told = field(default_factory=lambda: Told("answered", True, "Your answer is recorded.", "answered"))
    doubts: dict[tuple[str, str], DoubtRecord] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    homes: list[tuple[str, str]] = field(default_factory=list)
    looking: Any = None
    modal: Sent = field(default_factory=lambda: Sent("ok"))
    broken: Exception | None = None

    def decide(self, press: Press) -> Answer:
        if self.broken:
            raise self.broken
        self.pressed.append(press)
        return self.answer

    def fill(self, filled: Filled) -> Told:
        if self.broken:
            raise self.broken
        self.filled.append(filled)
        return self.thanks

    def say(self, said: Said) -> Resolved:
        if self.broken:
            raise self.broken
        self.said.append(said)
        return Resolved(said.how, True, "Recorded.")

    def open(self, tenant: str, trigger_id: str, view: dict[str, Any]) -> Sent:
        self.opened.append((tenant, trigger_id, view))
        return self.modal

    def slash(self, tenant: str, who: str, text: str) -> dict[str, Any]:
        if self.broken:
            raise self.broken
        return Slash(
            self.looking, "prod-1", mac, {verb: ("", "", lambda *_: "Done.") for verb in ("ooo", "freeze")}
        ).answer(tenant, who, text)

    def clicks(self, deployment: str = "prod-1") -> Clicks:
        return Clicks(
            Seams(
                app_id=APP,
                deployment=deployment,
                mac=mac,
                tenant_of={TEAM: "acme", "T0OTHER": "other"}.get,
                decide=self.decide,
                record_of=lambda tenant, approval: self.records.get((tenant, approval)),
                answer=self.fill,
                task_of=lambda tenant, task: self.tasks.get((tenant, task)),
                say=self.say,
                doubt_of=lambda tenant, doubt: self.doubts.get((tenant, doubt)),
                command=self.slash,
                home=lambda tenant, who: self.homes.append((tenant, who)),
                tell=lambda tenant, reply, sentence: self.told.append((tenant, reply, sentence)),
                gone=lambda tenant, event: self.lost.append((tenant, event)),
                modals=self,
                count=self.counted.append,
            )
        )


def value(action_id: str, shown: CardRecord | None = None, deployment: str = "prod-1") -> str:
    return buttons.value_of(shown or record(), action_id, deployment, mac)
