"""The promise in a real browser: one key for the medium step, two people's keys for the high one, and proof in the console."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.kit import PATIENCE_MS, Console, Demo, Desk, Visits

MEDIUM, HIGH = "Medium risk: Update incident", "High risk: Close incident"


def test_two_people_approve_at_the_desk_and_the_console_proves_it(demo: Demo, visits: Visits, tmp_path: Path) -> None:
    """The run that the demo began, from its first card to a bundle that the verifier accepts."""
    desk = Desk(visits.open(viewport={"width": 1280, "height": 1100}), demo)
    desk.be("Ana")
    medium = desk.card(MEDIUM).filter(has_text="INC0010001/1")
    expect(medium).to_contain_text("0 of 1 key", timeout=PATIENCE_MS)  # by itself: the page reloads every 3 s
    visits.shot(desk.page, "1-medium-waits")
    found = re.search(r"run ([0-9a-f]{12})", medium.inner_text())
    assert found
    run = found[1]
    medium, high = desk.card(MEDIUM, run), desk.card(HIGH, run)
    desk.press(medium, "Approve")
    desk.told("Approved. It runs now.")
    desk.shows(medium, "Done")
    expect(medium.get_by_role("button")).to_have_count(0)

    desk.shows(high, "0 of 2 keys")
    expect(high).to_contain_text("2 keys from 2 different people")
    visits.shot(desk.page, "2-high-waits")
    desk.be("Rita")
    desk.press(high, "Approve")
    desk.told("@incident-managers, @oncall")
    expect(high).to_contain_text("0 of 2 keys")
    visits.shot(desk.page, "3-rita-is-refused")
    desk.be("Bo")
    desk.press(high, "Approve")
    desk.told("Your key is in: 1 of 2.")
    desk.shows(high, "1 of 2 keys")
    desk.press(high, "Approve")
    desk.told("You already gave key 1; a different person must give key 2.")
    expect(high).to_contain_text("1 of 2 keys")
    visits.shot(desk.page, "4-bo-gave-one-key")
    desk.be("Cleo")
    desk.press(high, "Approve")
    desk.told("Approved: your key was the last of 2.")
    desk.shows(high, "Done")
    expect(high.get_by_role("button")).to_have_count(0)
    thread = high.locator("xpath=following-sibling::*[1]").and_(desk.page.get_by_role("group", name="Thread"))
    desk.shows(thread, "Cleo Costa gave key 2 of 2")
    expect(thread).to_contain_text("Bo Brandt gave key 1 of 2")
    visits.shot(desk.page, "5-both-keys")
    desk.page.get_by_role("link", name="incidents").click()
    desk.shows(desk.page.locator("article.message"), "was triaged")

    _prove(demo, visits, run, tmp_path)


def _prove(demo: Demo, visits: Visits, run: str, tmp_path: Path) -> None:
    """What an auditor does: reads the run, downloads its evidence, checks it by the line that the page gives."""
    console = Console(visits.open(accept_downloads=True), demo).sign_in("Aud")
    page = console.page
    console.open("/runs")
    page.get_by_role("row").filter(has_text=run).get_by_role("link").first.click()
    console.shows(page.locator("section", has=page.locator("#evidence")), "Download the bundle")
    expect(page.locator(".head .badge")).to_have_text("Succeeded")
    for name in ("Ana Archer", "Bo Brandt", "Cleo Costa"):
        expect(page.locator("section", has=page.locator("#approvals"))).to_contain_text(f"{name} gave a key")
    visits.shot(page, "6-run-page")
    printed = re.search(r"sha256 ([0-9a-f]{64})", page.locator("section", has=page.locator("#evidence")).inner_text())
    assert printed
    for link in ("Download the bundle", "Trust policy", "Verifier"):
        with page.expect_download() as saved:
            page.get_by_role("link", name=link).click()
        saved.value.save_as(tmp_path / saved.value.suggested_filename)
    words = page.locator("code", has_text="verify.py").inner_text().removeprefix("python ").split()
    assert hashlib.sha256((tmp_path / words[1]).read_bytes()).hexdigest() == printed[1]
    done = subprocess.run(
        [sys.executable, "-I", "-S", *words], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page.reload()
    expect(page.locator("section", has=page.locator("#story"))).to_contain_text("downloaded")
