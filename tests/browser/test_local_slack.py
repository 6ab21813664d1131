"""Two people approve in a Slack that somebody else wrote, in a real browser, over the socket and over signed requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Locator, Page, expect

from governance.local import postgres
from governance.settings import Settings
from governance.wiring import Parts
from tests.browser.kit import PATIENCE_MS
from tests.kit import doubles
from tests.kit.doubles import APP_TOKEN, Double
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.wait import until
from tests.kit.world import CREW, World, settings_for, settle

PEOPLE = {f"U{name.upper()}": name for name in CREW if name != "robot"}


@contextmanager
def serving(app: object) -> Iterator[int]:
    """The web process' application on a free port, in a thread of its own."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"))  # type: ignore[arg-type]  # fmt: skip
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def product(parts: Parts) -> Iterator[None]:
    """A worker beside it, as `twokeys worker` runs it but for the bucket."""
    parts.worker._seals = lambda: 0  # type: ignore[method-assign]  # there is no bucket here: nothing is sealed
    thread = threading.Thread(target=parts.worker.run, args=((("outbox", 0.1, parts.delivery.step),),))
    thread.start()
    try:
        yield
    finally:
        parts.worker.stop()
        thread.join()


def card(page: Page, title: str) -> Locator:
    return page.locator(".msg-body").filter(has_text=title)


def press(page: Page, who: str, title: str, button: str) -> None:
    page.get_by_label("Act as").select_option(f"U{who.upper()}")
    card(page, title).get_by_role("button", name=button, exact=True).click()


def two_people(world: World, double: Double, chromium: Browser, shot: Path) -> None:
    """One key for the medium step; for the high one Bo's key, Bo's again, Cleo's."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(double.base_url)
    world.start()
    medium, high = "Medium risk: Update incident", "High risk: Close incident"
    expect(card(page, medium)).to_contain_text("0 of 1 key", timeout=PATIENCE_MS)
    press(page, "ana", medium, "Approve")
    expect(card(page, medium)).to_contain_text("Done", timeout=PATIENCE_MS)
    expect(card(page, high)).to_contain_text("0 of 2 keys", timeout=PATIENCE_MS)
    press(page, "bo", high, "Approve")
    expect(card(page, high)).to_contain_text("1 of 2 keys", timeout=PATIENCE_MS)
    press(page, "bo", high, "Approve")
    expect(page.get_by_text("a different person must give key 2").first).to_be_visible(timeout=PATIENCE_MS)
    press(page, "cleo", high, "Approve")
    expect(card(page, high)).to_contain_text("Done", timeout=PATIENCE_MS)
    expect(card(page, high).get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    page.screenshot(path=shot)
    page.close()
    until(lambda: world.writes("close_code") == ["Solved (Permanently)"])
    votes = world.rows("select person, via from vote where tenant = :tenant order by at")
    assert [vote["person"] for vote in votes] == [world.who[name] for name in ("ana", "bo", "cleo")]
    assert {vote["via"] for vote in votes} == {"slack_button"}


@pytest.mark.parametrize("how", ["socket", "requests"])
def test_two_people_approve_in_a_slack_of_somebody_else(
    how: str, fresh_database: postgres.Database, servicenow: ServiceNow, tmp_path: Path, chromium: Browser, shots: Path
) -> None:
    """Socket Mode needs no address; signed requests come through the guard, with verification on."""
    doubles.wanted(doubles.LOCAL_SLACK)
    app_token = APP_TOKEN if how == "socket" else ""
    with SlackSink() as unused:
        made = Parts(
            settings_for(fresh_database, unused.api_base, slack_app_token=app_token), "test", tmp_path / "parts"
        )
        if how == "socket":
            with doubles.local_slack(tmp_path / "slack", PEOPLE) as double:
                play(made.settings, double, tmp_path, servicenow, chromium, shots / "local-slack-socket.png")
        else:
            _requests(made.settings, tmp_path, servicenow, chromium, shots)
        made.close()


def play(
    settings: Settings, double: Double, state: Path, servicenow: ServiceNow, chromium: Browser, shot: Path
) -> None:
    parts = Parts(settings.model_copy(update={"slack_api_base": double.api_base}), "test", state / "parts")
    try:
        with SlackSink() as unused:
            world = settle(parts, unused, servicenow, tenant=f"local-{shot.stem.rpartition('-')[2]}")
        connection = parts.doors.socket()
        if connection is not None:
            connection.start()
        with product(parts):
            two_people(world, double, chromium, shot)
        if connection is not None:
            connection.close()
    finally:
        parts.close()


def _requests(settings: Settings, state: Path, servicenow: ServiceNow, chromium: Browser, shots: Path) -> None:
    """The listener must be there before local-slack knows its address, and local-slack before the product knows its own."""
    app: dict[str, object] = {}

    async def late(scope: object, receive: object, send: object) -> None:
        await app["made"](scope, receive, send)  # type: ignore[operator]

    with serving(late) as port, doubles.local_slack(
        state / "slack", PEOPLE, request_url=f"http://127.0.0.1:{port}/slack/events"
    ) as double:  # fmt: skip
        doors = Parts(settings.model_copy(update={"slack_api_base": double.api_base}), "web", state / "web")
        app["made"] = doors.web_app()
        play(settings, double, state, servicenow, chromium, shots / "local-slack-requests.png")
        doors.close()
