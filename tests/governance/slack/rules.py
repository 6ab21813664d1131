"""Block Kit as Slack judges it: slack_sdk's own models, and what they miss (slack.md 6.3)."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from slack_sdk.models.blocks import Block

# The only shapes that a mrkdwn text of ours may have: a bold label, a link, a date.
MRKDWN = (
    re.compile(r"\*[A-Z][a-z ]{1,30}\*"),
    re.compile(r"<https?://[^<>|&\s]+\|Open in the console>"),
    re.compile(r"expires <!date\^[0-9]{1,10}\^\{date_short_pretty\} \{time\}\|[0-9TZ:+. a-z-]{1,40}>"),
)
KNOWN = {"header", "section", "context", "rich_text", "actions", "input", "divider"}


def walk(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from walk(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from walk(inner)


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def check_blocks(blocks: list[dict[str, Any]], *, most: int = 50, total: int = 13_000) -> None:
    parsed = Block.parse_all(json.loads(json.dumps(blocks)))
    assert len(parsed) == len(blocks)
    for model, block in zip(parsed, blocks, strict=True):
        assert model.to_dict()["type"] == block["type"]
    assert 1 <= len(blocks) <= most
    assert len(json.dumps(blocks)) <= total
    ids = [block["block_id"] for block in blocks]
    assert len(set(ids)) == len(ids)
    assert all(1 <= len(name) <= 255 for name in ids)
    for block in blocks:
        assert block["type"] in KNOWN
        check_block(block)
    for block in blocks:
        actions = [part["action_id"] for part in walk(block) if "action_id" in part]
        assert len(set(actions)) == len(actions), "an action stands twice in one block"
    for part in walk(blocks):
        check_text(part)


def check_block(block: dict[str, Any]) -> None:
    match block["type"]:
        case "header":
            assert block["text"]["type"] == "plain_text"
            assert utf16(block["text"]["text"]) <= 150
        case "section":
            assert ("text" in block) != ("fields" in block)
            assert utf16(block.get("text", {"text": "x"})["text"]) <= 3_000
            if "fields" in block:
                assert 1 <= len(block["fields"]) <= 10
                assert all(utf16(cell["text"]) <= 2_000 for cell in block["fields"])
        case "context":
            assert 1 <= len(block["elements"]) <= 10
            assert all(utf16(cell["text"]) <= 2_000 for cell in block["elements"])
        case "actions":
            assert 1 <= len(block["elements"]) <= 25
            for button in block["elements"]:
                assert utf16(button["text"]["text"]) <= 75
                assert len(button["value"]) <= 2_000
                assert button.get("style", "primary") in ("primary", "danger")
                check_confirm(button.get("confirm"))
        case "rich_text":
            assert block["elements"]
            assert all(part["elements"] for part in block["elements"])


def check_confirm(confirm: dict[str, Any] | None) -> None:
    if confirm:
        assert utf16(confirm["title"]["text"]) <= 100
        assert utf16(confirm["text"]["text"]) <= 300
        assert utf16(confirm["confirm"]["text"]) <= 30
        assert utf16(confirm["deny"]["text"]) <= 30


def check_text(part: dict[str, Any]) -> None:
    assert part.get("type") not in ("markdown", "image", "link", "user", "usergroup", "broadcast", "emoji")
    assert "url" not in part
    text = part.get("text")
    if not isinstance(text, str):
        return
    assert text
    json.dumps(text).encode("ascii")
    if part["type"] == "mrkdwn":
        assert part["verbatim"] is True
        assert any(shape.fullmatch(text) for shape in MRKDWN), text
    elif part["type"] == "plain_text":
        assert part["emoji"] is False
    for char in text:
        assert char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"), ascii(text)


def check_home(view: dict[str, Any]) -> None:
    assert set(view) == {"type", "blocks"}
    assert view["type"] == "home"
    check_blocks(view["blocks"], most=100, total=250_000)


def check_view(view: dict[str, Any]) -> None:
    assert view["type"] == "modal"
    for name in ("title", "submit", "close"):
        assert utf16(view.get(name, {"text": "x"})["text"]) <= 24
    assert len(view.get("private_metadata", "")) <= 3_000
    assert len(view["callback_id"]) <= 255
    assert len(json.dumps(view)) <= 250_000
    check_blocks(view["blocks"], most=100, total=250_000)
    if any(block["type"] == "input" for block in view["blocks"]):
        assert "submit" in view
