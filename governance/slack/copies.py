"""Renders the copy of a question that goes to each of its people when its channel cannot be reached."""

from __future__ import annotations

from engine.gate.card import CardRecord
from governance.slack import body, phases
from governance.slack.blocks import Block, button, context, faults, header, line, plain, rich, section, words
from governance.slack.buttons import REJECT, REVIEW, Mac, value_of
from governance.slack.cards import Card
from governance.slack.text import clip, one_line

unreachable = "The channel for requests cannot be reached, so this comes to each person who could decide it."
yours = "Only you see this. What it does in full, and Approve, are in the window that Review opens."


def render(record: CardRecord, deployment: str, mac: Mac, note: str = unreachable) -> Card:
    """The question in short; it is decided in the window that Review opens, where nothing is cut."""
    blocks: list[Block] = [
        header("tk_what", body.title(record)),
        phases.status(record),
        section("tk_sum", clip(one_line(f"{record.summary}: requested by {record.requested_by}"), 600, 900)[0]),
    ]
    if record.is_open:
        blocks.append(
            {
                "type": "actions", "block_id": "tk_buttons",
                "elements": [
                    button(REVIEW, "Review and decide", value_of(record, REVIEW, deployment, mac), style="primary"),
                    button(REJECT, "Reject", value_of(record, REJECT, deployment, mac), style="danger"),
                ],
            }
        )  # fmt: skip
        blocks.append(context("tk_why", [plain(note)]))
    else:
        sign, word, note = phases.settled(record)
        said = one_line(record.outcome) or note
        blocks.append(
            rich("tk_outcome", [line(words(f"{sign} {word}", bold=True), words(f"\n{clip(said or '–', 600, 900)[0]}"))])
        )
    blocks.append(phases.footer(record))
    broken = faults(blocks)
    assert not broken, broken
    return Card(blocks, phases.fallback(record), body.compose(record).digest, True)
