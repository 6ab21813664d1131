"""Crashes under people's hands: the demo starts again what died, and nothing is written twice or decided by a machine."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from governance.local.cast import incident
from tests.browser.kit import Console, Demo, Desk, Visits, check_accessible
from tests.kit.wait import until


def test_a_worker_killed_while_people_decide_costs_nothing(demo: Demo) -> None:
    """kill -9 between the first and the second key; the run goes on where it waited."""
    run = demo.event(30)
    demo.decide("Ana", demo.waiting(run, "med"))
    high = demo.waiting(run, "high")
    demo.decide("Bo", high)
    before = demo.said().count("worker ended with code -9; it is started again")
    demo.kill("main() worker")
    demo.decide("Cleo", high)
    assert demo.ended(run) == "succeeded"
    assert demo.said().count("worker ended with code -9; it is started again") == before + 1
    assert len(demo.written(incident(30)["sys_id"], "close_notes")) == 1


def test_a_write_that_nobody_knows_about_is_for_people_to_tell(demo: Demo, visits: Visits) -> None:
    """ServiceNow commits and both it and the worker die before the answer: one write, *unknown*, a person's word, the end."""
    sys_id, run = incident(31)["sys_id"], demo.event(31)
    demo.decide("Ana", demo.waiting(run, "med"))
    high = demo.waiting(run, "high")
    demo.decide("Bo", high)
    demo.control("POST", "faults", {"fault": "slow", "method": "PATCH", "seconds": 60, "times": 1})
    demo.decide("Cleo", high)
    until(lambda: demo.written(sys_id, "close_notes"), 40)
    demo.kill("main() worker")
    demo.kill("governance.local.servicenow")
    until(lambda: demo.v1("Rita", f"/v1/runs/{run}")["state"] == "unknown", 60)

    desk = Desk(visits.open(), demo)
    desk.be("Cleo")
    card = desk.card("Did this happen", run)
    desk.shows(card, "Waits for somebody's word")
    visits.shot(desk.page, "unknown-card")
    desk.press(card, "Probe again")
    desk.told("Looking now")
    desk.shows(desk.page.locator("main"), "Looked again")
    desk.press(card, "Retry with the same key")
    visits.shot(desk.page, "unknown-window")
    check_accessible(desk.page)
    desk.be("Cleo")  # closes the window: nothing was said

    reader = Console(visits.open(), demo).sign_in("Aud")
    reader.open(f"/runs/{run}")
    check_accessible(reader.page)
    console = Console(visits.open(java_script_enabled=False), demo).sign_in("Ana")
    console.open(f"/runs/{run}")
    page = console.page
    expect(page.get_by_role("heading", name="Did “close” happen?")).to_be_visible()
    visits.shot(page, "unknown-outcome")
    page.get_by_label("How do you know, or why try again?").fill("The incident is closed and its note is ours.")
    page.get_by_role("button", name=re.compile("^It happened")).click()
    expect(page.get_by_role("status")).to_contain_text("Recorded that it happened")
    assert demo.ended(run) == "succeeded"
    assert len(demo.written(sys_id, "close_notes")) == 1
    console.shows(page.locator("section", has=page.locator("#receipts")), "a person said so: Ana Archer")
    console.shows(page.locator("section", has=page.locator("#evidence")), "Download the bundle")
    desk.be("Cleo")
    desk.shows(desk.card("Did this happen", run), "Ana Archer said so")
