"""A task from both sides: its form in the Slack desk's window and as a page of the console, for eyes, keyboards and screen readers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.kit import TWOKEYS, Console, Demo, Desk, Visits, check_accessible
from tests.kit.wait import until

CODE = '''from twokeys import InvokeFailed, workflow

@workflow
async def close_report(ctx, input):
    """Ask what happened, and have it signed."""
    form = {
        "title": f"What happened to {input['number']}?",
        "text": "The customer reads your answer.\\nWrite what is certain and leave out what is not.",
        "groups": ["incident-managers"],
        "fields": [
            {"name": "cause", "label": "What was the cause?", "max_chars": 80},
            {"name": "story", "label": "What was done?", "kind": "long_text", "required": False},
            {"name": "site", "label": "Where?", "kind": "choice", "options": ["Berlin", "Ulm", "Somewhere else"]},
            {"name": "minutes", "label": "Minutes of downtime", "kind": "integer"},
            {"name": "day", "label": "When did it begin?", "kind": "date", "required": False},
            {"name": "again", "label": "Can it happen again?", "kind": "yes_no"},
        ],
    }
    return await ctx.task(form, sign_off=["incident-managers"])
'''
WIDE = {"width": 1280, "height": 1000}
NARROW = {"width": 320, "height": 640}


def order(demo: Demo, *words: str) -> str:
    """What Rita types at the shell, and what it says."""
    around = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    given = {
        **around,
        "LC_ALL": "C.UTF-8",
        "TWOKEYS_CONFIG": str(demo.state / "twokeys.toml"),
        "TWOKEYS_TOKEN": demo.tokens["Rita"],
    }
    done = subprocess.run(
        [str(TWOKEYS), *words, "-o", "json"], env=given, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def begin(demo: Demo, path: Path, number: str) -> str:
    file = path / "close_report.py"
    file.write_text(CODE)
    order(demo, "workflow", "apply", str(file))
    return str(
        json.loads(order(demo, "run", "start", "close-report", "--input", json.dumps({"number": number})))["run"]
    )


def test_a_form_is_filled_in_at_the_desk(demo: Demo, visits: Visits, tmp_path: Path) -> None:
    begin(demo, tmp_path, "INC9001")
    desk = Desk(visits.open(), demo)
    desk.page.set_viewport_size(WIDE)
    desk.be("Ana")
    head = desk.page.get_by_role("heading", name="What happened to INC9001?")
    card = desk.page.locator("article.message", has=head)
    desk.shows(card, "Waits for an answer")
    visits.shot(desk.page, "desk-task-card")
    desk.press(card, "Answer")
    window = desk.page.get_by_role("dialog")
    expect(window).to_contain_text("The customer reads your answer.")
    visits.shot(desk.page, "desk-task-modal")
    check_accessible(desk.page)
    window.get_by_label("What was the cause?").fill("A cable <b>by the door</b>")
    window.get_by_label("Where?").select_option("Ulm")
    window.get_by_label("Minutes of downtime").fill("many")
    window.get_by_label("No", exact=True).check()
    window.get_by_role("button", name="Send").click()
    expect(window).to_contain_text("Write a whole number, such as 12.")
    visits.shot(desk.page, "desk-task-fault")
    window.get_by_label("Minutes of downtime").fill("12")
    window.get_by_role("button", name="Send").click()
    expect(desk.page.get_by_role("dialog")).to_contain_text("Others have to sign it next: @incident-managers.")
    desk.page.get_by_role("button", name="Close").last.click()
    desk.shows(card, "Answered by Ana")
    signed = desk.page.locator("article.message", has=desk.page.get_by_role("heading", name="Sign what Ana"))
    desk.shows(signed, "Signs an answer")
    visits.shot(desk.page, "desk-task-sign-off")


def test_a_form_is_filled_in_on_a_page_by_keyboard_alone_and_signed_by_somebody_else(
    demo: Demo, visits: Visits, tmp_path: Path
) -> None:
    run = begin(demo, tmp_path, "INC9002")
    ana = Console(visits.open(java_script_enabled=True), demo).sign_in("Ana")
    page = ana.page
    page.set_viewport_size(WIDE)
    until(lambda: run in [one["run"] for one in demo.v1("Ana", "/v1/tasks")["tasks"]], 60)
    ana.open("/tasks")
    check_accessible(page)
    visits.shot(page, "console-tasks")
    page.get_by_role("link", name="What happened to INC9002?").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("INC9002")
    visits.shot(page, "console-task")
    check_accessible(page)
    page.emulate_media(color_scheme="dark")
    check_accessible(page, "color-contrast")
    visits.shot(page, "console-task-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    visits.shot(page, "console-task-narrow")
    page.set_viewport_size(WIDE)
    page.get_by_label("What was the cause?").focus()
    for keys in ("A cable", "", "U", "twelve"):
        page.keyboard.type(keys)
        page.keyboard.press("Tab")
    page.get_by_label("Yes").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Send the answer").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("some fields do not fit")
    expect(page.get_by_label("Minutes of downtime")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("What was the cause?")).to_have_value("A cable")
    check_accessible(page)
    visits.shot(page, "console-task-fault")
    page.get_by_label("Minutes of downtime").fill("12")
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_role("status")).to_contain_text("Others have to sign it next")
    approval = demo.waiting(run, "low")
    page.reload()
    check_accessible(page)
    visits.shot(page, "console-task-answered")
    bo = Console(visits.open(java_script_enabled=False), demo).sign_in("Bo")
    bo.open(f"/approvals/{approval}")
    expect(bo.page.locator("main")).to_contain_text("A cable")
    visits.shot(bo.page, "console-sign-off")
    bo.page.get_by_role("button", name="Approve").click()
    expect(bo.page.get_by_role("status")).to_contain_text("Signed. The run goes on with this answer.")
    assert demo.ended(run) == "succeeded"
