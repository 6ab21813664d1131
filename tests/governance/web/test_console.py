"""The console: what people see and what their forms do, over the real commands."""

from __future__ import annotations

from collections.abc import Callable

from tests.governance.web.kit import Browser
from tests.kit.world import World

Open = Callable[[str], Browser]


def test_two_people_approve_in_the_console_and_the_run_ends(world: World, browser: Open) -> None:
    """The main flow of the console: the queue, the whole action, two keys, each answered by a sentence."""
    run = world.start()
    world.until(run, "waiting_approval")
    cleo, ana, bo = browser("cleo"), browser("ana"), browser("bo")
    assert "What waits for people" in cleo.get("/approvals").text
    first = world.waiting(run).asked.id
    assert "Approved. It runs now." in cleo.decide(first, "key").text
    world.until(run, "waiting_approval")
    second = world.waiting(run).asked.id
    assert "Your key is in: 1 of 2." in ana.decide(second, "key", "looked at it").text
    page = bo.get(f"/approvals/{second}").text
    assert "looked at it" in page
    assert "Approved: your key was the last of 2." in bo.decide(second, "key").text
    world.until(run, "succeeded")
    page = bo.get(f"/runs/{run}").text
    assert "Ended well" in page
    assert page.count("✓ holds") == 5
