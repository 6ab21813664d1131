"""The few Block Kit parts that cards and modals are made of, and the limits that Slack puts on them.

Text of others goes into plain_text and rich_text only; `link`, `deadline` and the bold labels are the only mrkdwn, and
they are built from our own constants, a checked URL and an integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from engine.limits import (
    slack_blocks_max,
    slack_blocks_total_chars_max,
    slack_header_chars_max,
    slack_text_chars_max,
)
from governance.slack.text import size

Block = dict[str, Any]

# From slack_sdk's models and @slack/types; tests/governance/slack/test_limits.py compares them.
fields_max = 10
field_chars_max = 2_000
context_elements_max = 10
button_text_chars_max = 75
button_value_chars_max = 2_000
confirm_title_chars_max = 100
confirm_text_chars_max = 300
confirm_button_chars_max = 30
view_title_chars_max = 24
view_blocks_max = 100
view_bytes_max = 200_000  # Slack refuses a view above 250 kB
private_metadata_chars_max = 3_000
epoch_max = 4_102_444_800  # the year 2100

_url = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,255}(/[A-Za-z0-9._~/=?%#+,;@-]{0,300})?")


def plain(text: str) -> Block:
    """Literal text; Slack refuses an empty one."""
    return {"type": "plain_text", "text": text or "–", "emoji": False}


def bold(label: str) -> Block:
    """One of our own labels."""
    return {"type": "mrkdwn", "text": f"*{label}*", "verbatim": True}


def link(url: str, label: str) -> Block | None:
    """A link to our own console, or nothing when the address is not a plain one."""
    if not _url.fullmatch(url):
        return None
    return {"type": "mrkdwn", "text": f"<{url}|{label}>", "verbatim": True}


def deadline(word: str, epoch: int, otherwise: str) -> Block:
    """A time in the reader's own time zone."""
    if not 0 < epoch < epoch_max:
        return plain(f"{word} {otherwise}")
    safe = re.sub(r"[^0-9TZ:+. -]", "", otherwise)[:40] or "soon"
    return {"type": "mrkdwn", "text": f"{word} <!date^{epoch}^{{date_short_pretty}} {{time}}|{safe}>", "verbatim": True}


def header(block_id: str, text: str) -> Block:
    return {"type": "header", "block_id": block_id, "text": plain(text)}


def context(block_id: str, elements: Sequence[Block | None]) -> Block:
    return {"type": "context", "block_id": block_id, "elements": [part for part in elements if part]}


def section(block_id: str, text: str) -> Block:
    return {"type": "section", "block_id": block_id, "text": plain(text)}


def facts(block_id: str, rows: Sequence[tuple[str, str]]) -> Block:
    """Label and value side by side, at most five rows."""
    cells = [cell for label, value in rows for cell in (bold(label), plain(value))]
    return {"type": "section", "block_id": block_id, "fields": cells}


def rich(block_id: str, elements: Sequence[Block]) -> Block:
    return {"type": "rich_text", "block_id": block_id, "elements": list(elements)}


def line(*parts: Block) -> Block:
    return {"type": "rich_text_section", "elements": list(parts)}


def quote(text: str) -> Block:
    return {"type": "rich_text_quote", "elements": [words(text)]}


def box(text: str) -> Block:
    """Literal text in a frame, with its line breaks."""
    return {"type": "rich_text_preformatted", "elements": [words(text)], "border": 0}


def words(text: str, **style: bool) -> Block:
    part: Block = {"type": "text", "text": text or "–"}
    if style:
        part["style"] = style
    return part


def button(action_id: str, label: str, value: str, *, style: str = "", confirm: Block | None = None) -> Block:
    part: Block = {"type": "button", "action_id": action_id, "text": plain(label), "value": value}
    if style:
        part["style"] = style
    if confirm:
        part["confirm"] = confirm
    return part


def travelling(blocks: object) -> int:
    """How long the blocks are on the wire; Slack's undocumented total is held against this (bolt-js issue 2509)."""
    return len(json.dumps(blocks))


def faults(blocks: Sequence[Block]) -> list[str]:
    """Which of Slack's limits these blocks of a message break."""
    found = []
    if not 1 <= len(blocks) <= slack_blocks_max:
        found.append(f"{len(blocks)} blocks")
    if travelling(blocks) > slack_blocks_total_chars_max:
        found.append(f"{travelling(blocks)} characters in all")
    ids = [block["block_id"] for block in blocks]
    if len(set(ids)) != len(ids):
        found.append("a block id stands twice")
    for block in blocks:
        found += [f"{block['block_id']}: {fault}" for fault in _block_faults(block)]
    return found


def _block_faults(block: Block) -> Iterable[str]:
    kind = block["type"]
    if kind == "header" and size(block["text"]["text"]) > slack_header_chars_max:
        yield "header too long"
    if kind == "section" and "text" in block and size(block["text"]["text"]) > slack_text_chars_max:
        yield "text too long"
    if kind == "section" and "fields" in block:
        if not 1 <= len(block["fields"]) <= fields_max:
            yield f"{len(block['fields'])} fields"
        if any(size(cell["text"]) > field_chars_max for cell in block["fields"]):
            yield "a field is too long"
    if kind == "context":
        if not 1 <= len(block["elements"]) <= context_elements_max:
            yield f"{len(block['elements'])} elements"
        if any(size(part["text"]) > field_chars_max for part in block["elements"]):
            yield "an element is too long"
