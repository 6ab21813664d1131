"""Renders an approval's card from its record: the body that keys bind to, and around it what changes from phase to phase.

Order (approvals-ux 4.2): header, requirement, status, who, what, why, change, rule and key holders, keys given, buttons or
outcome, footer. The body blocks stand unchanged in the card of every phase, so that whoever has a card that was not cut
can recompute the digest from it. When the body does not fit, the clipped card has no Approve: that is in Review all.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.canonical import jcs
from engine.gate.card import CardRecord
from governance.slack import body, phases
from governance.slack.blocks import Block, button, confirm_text_chars_max, faults, plain
from governance.slack.buttons import APPROVE, REJECT, REVIEW, Mac, value_of
from governance.slack.text import clip, one_line

_confirm_weight_max = 400


@dataclass(frozen=True, slots=True)
class Card:
    """A rendered card: `text` is what screen readers and notifications say, `cut` that not everything is on it."""

    blocks: list[Block]
    text: str
    body_digest: bytes
    cut: bool


def body_bytes(record: CardRecord) -> bytes:
    """The JCS bytes of the whole body, for whoever stores them beside their digest."""
    return jcs(body.whole(record))


def body_digest(record: CardRecord) -> bytes:
    """The card digest of this record: what keys bind to beside the action, the same in every phase."""
    return body.compose(record).digest


def render(record: CardRecord, deployment: str, mac: Mac) -> Card:
    """The card of this record in its present phase."""
    made = body.compose(record)
    at = next(n for n, block in enumerate(made.shown) if block["block_id"] == "tk_needs") + 1
    blocks = [*made.shown[:at], phases.status(record), phases.who(record), *made.shown[at:]]
    not_these = phases.excluded(record)
    blocks += [not_these] if not_these else []
    blocks += phases.keys_given(record)
    blocks.append(_buttons(record, made, deployment, mac) if record.is_open else phases.outcome(record))
    blocks.append(phases.footer(record))
    broken = faults(blocks)
    assert not broken, broken
    return Card(blocks, phases.fallback(record), made.digest, made.cut)


def _buttons(record: CardRecord, made: body.Body, deployment: str, mac: Mac) -> Block:
    def value(action_id: str) -> str:
        return value_of(record, action_id, deployment, mac)

    parts = [
        button(REJECT, "Reject", value(REJECT), style="danger"),
        button(REVIEW, f"Review all ({made.size:,} characters)" if made.cut else "Review all", value(REVIEW)),
    ]
    if not made.cut:
        sure = _confirm(record) if needs_confirm(record) else None
        parts.insert(0, button(APPROVE, "Approve", value(APPROVE), style="primary", confirm=sure))
    return {"type": "actions", "block_id": "tk_buttons", "elements": parts}


def needs_confirm(record: CardRecord) -> bool:
    """Whether Approve asks once more."""
    return record.tier not in ("low", "med") or (record.irreversible and record.kind != "read")


def _confirm(record: CardRecord) -> Block:
    """The effect once more, in one sentence, before an approval that cannot be taken back."""
    lasting = "This cannot be taken back. " if record.irreversible else ""
    text = f"{lasting}{one_line(record.summary)} on {one_line(record.target.get('id', ''))}"
    return {
        "title": plain(f"Give your key for {record.name}?"),
        "text": plain(clip(text, confirm_text_chars_max, _confirm_weight_max)[0]),
        "confirm": plain("Approve"),
        "deny": plain("Back"),
    }
