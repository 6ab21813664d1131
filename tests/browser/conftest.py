"""One demo and one browser per worker of xdist; what the demo starts, it stops, and a test says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from governance.local.children import Children
from tests.browser.kit import Demo, Visits

CHROMIUM = "/usr/bin/chromium"
# A browser that looks nothing up and fetches nothing by itself.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic", "--no-first-run"]  # fmt: skip


@pytest.fixture(scope="session")
def demo(children: Children, state_directory: Path) -> Iterator[Demo]:
    """A demo that everybody here shares, each with runs of their own; the one that it begins itself is the journey's."""
    state = state_directory / "demo"
    state.mkdir()
    running = Demo(children, state)
    yield running
    code = running.stop()
    assert code == 0, f"Ctrl-C ended the demo with {code}:\n{running.said()}"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: TWOKEYS_TEST_SHOTS, else somewhere temporary."""
    wanted = os.environ.get("TWOKEYS_TEST_SHOTS")
    directory = Path(wanted).resolve() if wanted else tmp_path_factory.mktemp("shots")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture
def visits(chromium: Browser, shots: Path) -> Iterator[Visits]:
    """Browser windows; at the end no console has said a word: no policy was violated, nothing was missing."""
    opened = Visits(chromium, shots)
    yield opened
    opened.close()
    assert opened.messages == []
