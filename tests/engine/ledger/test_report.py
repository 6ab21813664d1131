"""The readable page says that it is not evidence, loads and runs nothing, and shows hostile text as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from engine.ledger.container import read_container
from engine.ledger.entries import CATALOGUE, read_entry
from engine.ledger.report import SENTENCES, render_report
from tests.engine.ledger.factory import two_person_run, unknown_run


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page(made: object = None) -> str:
    run = two_person_run() if made is None else made
    return bytes(read_container(run.bundle())["data/report.html"]).decode()  # type: ignore[attr-defined]


def test_it_says_what_happened_and_that_it_is_no_evidence() -> None:
    text = re.sub(r"<[^>]+>", " ", page())
    for words in (
        "This page is not evidence.",
        "per_bb00000000000002 turned a key: 1 of 2",
        "per_cc00000000000003 turned a key: 2 of 2",
        "per_aa00000000000001 refused as a key holder: self",
        "2 key(s) of ops",
        "Run closed: succeeded, 19 entries",
    ):
        assert words in text
    assert "Unknown outcome resolved: happened per_bb00000000000002" in page(unknown_run())


def test_it_runs_and_loads_nothing() -> None:
    tags = Tags()
    tags.feed(page())
    assert {tag for tag, _ in tags.found}.isdisjoint({"script", "link", "img", "iframe", "form", "object", "a"})
    for _, attributes in tags.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert "url(" not in page()
    assert "@import" not in page()


def test_hostile_text_stays_text() -> None:
    made = two_person_run()
    made.change("step.completed", 0, step="<script>alert(1)</script>{0.__class__}")
    shown = render_report([read_entry(data) for data in made.entries()], 0, 9)
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{0.__class__}" in shown


def test_every_entry_of_a_run_has_a_sentence_with_its_own_keys() -> None:
    prefixes = (
        "run",
        "action",
        "verdict",
        "approval",
        "key.given",
        "key.refused",
        "rejection",
        "glass",
        "review",
        "debt",
        "effect",
        "doubt",
        "word",
        "operator",
        "reversal",
        "step",
        "signal",
        "cancel",
        "parent",
        "child",
    )
    of_runs = {kind for kind in CATALOGUE if kind.startswith(prefixes)}
    assert set(SENTENCES) == of_runs
    for kind, sentence in SENTENCES.items():
        assert set(re.findall(r"{(\w+)}", sentence)) <= set(CATALOGUE[kind])
