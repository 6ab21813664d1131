"""Every page of the console, over runs in every state that people meet: readable by everybody, without a script, on any screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.kit import Console, Demo, Desk, Visits, check_accessible

# Ends the cell and the page it may stand in, runs, loads, posts, and turns the reading direction; 160 characters at most.
PLANTED = (
    "</td></p></pre><script>alert(1)</script><form action=/sign-out method=post><button id=pwned>Approve</button>"
    "<img src=x onerror=alert(1)>\u202eoteS\u200b\u0007 ${1+1} {{7*7}}"
)
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 320, "height": 640}


@dataclass(frozen=True)
class Busy:
    """A tenant in the middle of a day: what waits, what was refused, what is over."""

    medium: str
    high: str
    rejected: str
    hostile: str
    hostile_run: str
    waiting_run: str
    failed_run: str
    done_run: str


@pytest.fixture(scope="module")
def busy(demo: Demo) -> Busy:
    assert len(PLANTED) <= 160
    runs = [demo.event(n) for n in (10, 11, 12, 13)]
    hostile_run = demo.event(14, short_description=PLANTED)
    for run in (*runs[1:], hostile_run):
        demo.decide("Ana", demo.waiting(run, "med"))
    high, rejected, done, hostile = (demo.waiting(run, "high") for run in (*runs[1:], hostile_run))
    demo.decide("Bo", high)
    demo.decide("Bo", rejected, "reject")
    for name in ("Bo", "Cleo"):
        demo.decide(name, done)
    assert demo.ended(runs[2]) == "failed_terminal"
    assert demo.ended(runs[3]) == "succeeded"
    return Busy(demo.waiting(runs[0], "med"), high, rejected, hostile, hostile_run, runs[1], runs[2], runs[3])


# What stands on each page, so that a page of errors does not pass for it: where, who looks, a status, a sentence.
PAGES: dict[str, tuple[str, str, int, str]] = {
    "sign-in": ("/sign-in", "", 200, "Personal token"),
    "queue": ("/approvals", "Ana", 200, "What waits for people"),
    "medium request": ("/approvals/{medium}", "Ana", 200, "Your decision"),
    "high request with one key": ("/approvals/{high}", "Ana", 200, "1 of 2 keys"),
    "rejected request": ("/approvals/{rejected}", "Ana", 200, "Rejected"),
    "request with hostile text": ("/approvals/{hostile}", "Ana", 200, "Your decision"),
    "runs": ("/runs", "Ana", 200, "incident-triage"),
    "runs of a filter that fits nothing": ("/runs?state=canceled&workflow=x", "Ana", 200, "No run"),
    "run that waits": ("/runs/{waiting_run}", "Ana", 200, "Cancel this run"),
    "run that failed": ("/runs/{failed_run}", "Ana", 200, "Steps"),
    "run that succeeded": ("/runs/{done_run}", "Aud", 200, "What happened"),
    "run with hostile text": ("/runs/{hostile_run}", "Aud", 200, "Steps"),
    "workflows": ("/workflows", "Ana", 200, "Definition sha256"),
    "people": ("/people", "Ana", 200, "Deactivated"),
    "nothing there": ("/runs/0000", "Ana", 404, "To the console"),
}


@dataclass
class Windows:
    """One window per person for all pages, and one of theirs without scripts."""

    visits: Visits
    demo: Demo
    opened: dict[tuple[str, bool], Console] = field(default_factory=dict)

    def of(self, name: str, *, scripts: bool = True) -> Console:
        if (name, scripts) not in self.opened:
            console = Console(self.visits.open(java_script_enabled=scripts), self.demo)
            self.opened[name, scripts] = console.sign_in(name) if name else console
        return self.opened[name, scripts]


@pytest.fixture(scope="module")
def windows(chromium: Browser, demo: Demo, shots: Path) -> Iterator[Windows]:
    visits = Visits(chromium, shots)
    yield Windows(visits, demo)
    visits.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_everybody(name: str, busy: Busy, windows: Windows) -> None:
    """axe finds nothing, dark or light, 320 px are enough, no script is needed, and the browser has no complaint."""
    path, who, status, sentence = PAGES[name]
    path = path.format(**vars(busy))
    windows.visits.messages.clear()
    console = windows.of(who)
    page = console.page
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    assert console.open(path) == status
    expect(page.locator("main")).to_contain_text(sentence)
    check_accessible(page)
    page.emulate_media(color_scheme="dark")
    check_accessible(page, "color-contrast")
    page.set_viewport_size(NARROW)
    assert _scrolls_by(page) == 0, f"{name} is {_scrolls_by(page)} px wider than {NARROW['width']}"
    plain = windows.of(who, scripts=False)
    assert plain.open(path) == status
    expect(plain.page.locator("main")).to_contain_text(sentence)
    assert windows.visits.messages == []


def _scrolls_by(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_two_people_approve_by_plain_forms(demo: Demo, visits: Visits) -> None:
    """No script at all: sign in, find it in the queue, say why, be the second of two; the first may not be both."""
    run = demo.event(15)
    demo.decide("Ana", demo.waiting(run, "med"))
    high = demo.waiting(run, "high")
    bo, cleo = (Console(visits.open(java_script_enabled=False), demo).sign_in(name) for name in ("Bo", "Cleo"))
    for sentence in ("Your key is in: 1 of 2.", "You already gave key 1"):
        bo.open("/approvals")
        bo.page.locator(f'article footer a[href$="{high}"]').click()
        bo.page.get_by_label("Reason").fill("The customer called: it works again.")
        bo.page.get_by_role("button", name="Approve").click()
        expect(bo.page.locator(".say").first).to_contain_text(sentence)
    cleo.open(f"/approvals/{high}")
    expect(cleo.page.locator("main")).to_contain_text("The customer called: it works again.")
    visits.shot(cleo.page, "console-second-key")
    cleo.page.get_by_role("button", name="Approve").click()
    expect(cleo.page.get_by_role("status")).to_contain_text("your key was the last of 2")
    assert demo.ended(run) == "succeeded"


def test_a_run_is_canceled_by_a_plain_form_that_needs_a_reason(demo: Demo, visits: Visits) -> None:
    run = demo.event(16)
    demo.waiting(run, "med")
    console = Console(visits.open(java_script_enabled=False), demo).sign_in("Adi")
    console.open(f"/runs/{run}")
    console.page.get_by_label("Why?").fill("Opened by mistake.")
    console.page.get_by_role("button", name="Cancel the run").click()
    expect(console.page.get_by_role("status")).to_contain_text("Asked to cancel")
    assert demo.ended(run) == "canceled"


def test_text_from_a_ticket_stays_text(demo: Demo, busy: Busy, visits: Visits) -> None:
    """On the card, in its review and in the console: every character is read, none of it acts."""
    desk = Desk(visits.open(), demo)
    desk.be("Ana")
    card = desk.card("High risk: Close incident", busy.hostile_run)
    desk.shows(card, "<script>alert(1)</script>")
    _inert(desk.page)
    desk.press(card, "Review all")
    expect(desk.page.get_by_role("dialog")).to_contain_text("<script>alert(1)</script>")
    _inert(desk.page)
    visits.shot(desk.page, "hostile-review")

    console = Console(visits.open(), demo).sign_in("Cleo")
    for path in (f"/approvals/{busy.hostile}", "/approvals", f"/runs/{busy.hostile_run}"):
        console.open(path)
        _inert(console.page)
    console.open(f"/approvals/{busy.hostile}")
    after = console.page.locator("td.after", has_text="<script>")
    expect(after).to_contain_text("</td></p></pre><script>alert(1)</script><form action=/sign-out")
    expect(after).to_contain_text("${1+1} {{7*7}}")
    expect(after.locator(".unseen").first).to_have_text("\\u{202e}")
    visits.shot(console.page, "hostile-request")


def _inert(page: Page) -> None:
    assert page.locator("#pwned, img[src=x], main script, main form[action='/sign-out']").count() == 0
    assert "\u202e" not in page.locator("body").inner_text()
