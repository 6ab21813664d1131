"""docs/events.md is what the catalogue says, and every fact of governance that there is has its entry."""

from __future__ import annotations

import re
from pathlib import Path

from engine.ledger.entries import CATALOGUE, OPTIONAL
from tests.house.events import render_events

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def test_the_page_is_the_catalogue() -> None:
    """`make events` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == render_events()


def test_every_entry_and_every_key_of_it_is_named_once() -> None:
    rows = dict(re.findall(r"^\| `([a-z.]+)` \|.*\| (.*) \|$", render_events(), re.MULTILINE))
    assert sorted(rows) == sorted(CATALOGUE)
    assert not re.findall(r"^\| `[a-z.]+` \| +\|", render_events(), re.MULTILINE), "each says what it means"
    for kind, body in rows.items():
        assert sorted(re.findall(r"`([a-z0-9_]+)`", body)) == sorted((*CATALOGUE[kind], *OPTIONAL.get(kind, ()))), kind
