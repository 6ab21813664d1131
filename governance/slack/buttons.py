"""What a button and a modal carry back to us: ids to look up and a MAC over them, never an authority and never a payload."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.canonical import jcs, read_json
from engine.errors import CallerError
from engine.gate.card import CardRecord
from governance.slack.blocks import private_metadata_chars_max

Mac = Callable[[bytes], bytes]

APPROVE = "tk_approve"
REJECT = "tk_reject"
REVIEW = "tk_review"
FILL = "tk_fill"
SAY_HAPPENED, SAY_DID_NOT, SAY_PROBE, SAY_RETRY = "tk_happened", "tk_did_not", "tk_probe", "tk_retry"
DOUBTS = (SAY_HAPPENED, SAY_DID_NOT, SAY_PROBE, SAY_RETRY)
ACTIONS = (APPROVE, REJECT, REVIEW, FILL, *DOUBTS)

_value = re.compile(r"v1\.([a-z0-9-]{1,40})\.((?:ap|ta|un)_[0-9a-f]{16})\.([0-9]{1,9})\.([0-9a-f]{16})\.([0-9a-f]{16})")
_deployment = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True)
class Pressed:
    """What a button names: which approval (or task, or doubt), as shown by which card."""

    deployment: str
    approval: str
    card_rev: int
    digest16: str
    mac16: str

    @property
    def text(self) -> str:
        """The value as it stands on the button."""
        return f"v1.{self.deployment}.{self.approval}.{self.card_rev}.{self.digest16}.{self.mac16}"

    @property
    def name(self) -> str:
        """What people call the approval, the task or the doubt."""
        return f"{self.approval[:2].upper()}-{self.approval[3:9]}"


@dataclass(frozen=True, slots=True)
class Opened:
    """What a modal remembers about the click that opened it."""

    pressed: Pressed
    user: str
    channel: str
    thread_ts: str
    blocks_sha256: str


def check_deployment(name: str) -> str:
    """A deployment's name stands inside every button value, so it has no dots."""
    if not _deployment.fullmatch(name):
        raise CallerError("is not a deployment name", field="deployment", next_step="use 1-40 of a-z 0-9 -")
    return name


def value_of(record: CardRecord, action_id: str, deployment: str, mac: Mac) -> str:
    """The value of one button of this card; the MAC also says for which tenant and which button it was made."""
    return value_for(
        Pressed(deployment, record.approval, record.card_rev, record.action_sha256[:16], ""),
        record.tenant,
        action_id,
        mac,
    )


def value_for(bare: Pressed, tenant: str, action_id: str, mac: Mac) -> str:
    """The same for whatever a button names."""
    return replace(bare, mac16=_button_mac(bare, tenant, action_id, mac)).text


def read_value(value: object) -> Pressed | None:
    """The parts of a value that has our shape."""
    found = _value.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return None
    deployment, approval, rev, digest16, mac16 = found.groups()
    return Pressed(deployment, approval, int(rev), digest16, mac16)


def is_ours(pressed: Pressed, tenant: str, action_id: str, mac: Mac) -> bool:
    """Whether this installation made this value, for this tenant and this button."""
    return hmac.compare_digest(pressed.mac16, _button_mac(pressed, tenant, action_id, mac))


def _button_mac(pressed: Pressed, tenant: str, action_id: str, mac: Mac) -> str:
    parts = (tenant, action_id, pressed.deployment, pressed.approval, str(pressed.card_rev), pressed.digest16)
    return mac(b"twokeys/slack-button/v1\x00" + "\x00".join(parts).encode()).hex()[:16]


def metadata_of(opened: Opened, tenant: str, callback_id: str, mac: Mac) -> str:
    """The private_metadata of a modal."""
    body = {
        "value": opened.pressed.text,
        "user": opened.user,
        "channel": opened.channel,
        "thread_ts": opened.thread_ts,
        "blocks_sha256": opened.blocks_sha256,
    }
    return jcs({**body, "mac": _modal_mac(body, tenant, callback_id, mac)}).decode()


def read_metadata(text: object, tenant: str, callback_id: str, mac: Mac) -> Opened | None:
    """The same back, or nothing unless we wrote exactly this for this tenant and this modal."""
    if not isinstance(text, str) or not 1 <= len(text) <= private_metadata_chars_max:
        return None
    try:
        body = read_json(text.encode("utf-8"))
    except (CallerError, UnicodeEncodeError):
        return None
    names = {"value", "user", "channel", "thread_ts", "blocks_sha256", "mac"}
    if type(body) is not dict or set(body) != names or not all(type(part) is str for part in body.values()):
        return None
    given = body.pop("mac")
    pressed = read_value(body["value"])
    if pressed is None or not hmac.compare_digest(given.encode(), _modal_mac(body, tenant, callback_id, mac).encode()):
        return None
    return Opened(pressed, body["user"], body["channel"], body["thread_ts"], body["blocks_sha256"])


def _modal_mac(body: dict[str, Any], tenant: str, callback_id: str, mac: Mac) -> str:
    return mac(b"twokeys/slack-modal/v1\x00" + f"{tenant}\x00{callback_id}\x00".encode() + jcs(body)).hex()[:32]
