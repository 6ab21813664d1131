"""The Home tab and /twokeys over a real record: what waits for whom, how a request stands and why, and who may ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governance.store import home
from tests.governance.slack.rules import check_blocks, check_home
from tests.kit.world import TEAM, World


def ask(world: World, who: str, text: str) -> str:
    """What `/twokeys TEXT` answers to this person, checked as Slack would."""
    body = world.parts.doors.seams().command(world.tenant, world.slack_ref(who), text)
    check_blocks(body["blocks"])
    assert body["response_type"] == "ephemeral"
    return json.dumps(body, ensure_ascii=False)


def tab(world: World, who: str) -> dict[str, Any]:
    """The Home tab that is published when this person looks at it."""
    world.slack.calls.clear()
    world.parts.doors.seams().home(world.tenant, world.slack_ref(who))
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")
    world.post()
    ((_, arguments),) = [call for call in world.slack.calls if call[0] == "views.publish"]
    assert arguments["user_id"] == f"U{who.upper()}"
    view: dict[str, Any] = arguments["view"]
    check_home(view)
    return view


def said(view: dict[str, Any]) -> str:
    return json.dumps(view, ensure_ascii=False)


@pytest.fixture
def run(world: World) -> str:
    name = world.start()
    world.until(name, "waiting_approval")
    return name


def test_home_shows_each_person_what_waits_for_them(world: World, run: str) -> None:
    name = "AP-" + world.waiting(run).asked.id[3:9]
    for who in ("ana", "cleo"):
        assert "Waiting for you (1)" in said(tab(world, who))
        assert name in said(tab(world, who))
    for who in ("bo", "olga", "aud", "low"):
        assert "Waiting for you (0)" in said(tab(world, who)), who
    asker = said(tab(world, "rita"))
    assert "Waiting for you (0)" in asker
    assert "Waiting for others (1)" in asker
    assert "Yours, under way" in asker
    assert "incident-triage" in asker


def test_home_after_a_key_shows_the_decision_and_waits_for_others(world: World, run: str) -> None:
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.press(world.waiting(run), "ana")
    view = said(tab(world, "ana"))
    assert "Waiting for you (0)" in view
    assert "Waiting for others (1)" in view
    assert "1 of 2 keys" in view
    assert "What you decided last" in view
    assert view.count("🔑 key") == 2


def test_a_stranger_is_told_what_to_ask_for(world: World) -> None:
    world.slack.calls.clear()
    world.parts.doors.seams().home(world.tenant, f"{TEAM}:U0NOBODY")
    world.post()
    assert "--user U0NOBODY" in said(world.slack.calls[-1][1])


def test_looking_twice_before_it_is_sent_is_one_tab(world: World) -> None:
    world.slack.calls.clear()
    for _ in range(3):
        world.parts.doors.seams().home(world.tenant, world.slack_ref("ana"))
    world.post()
    assert [method for method, _ in world.slack.calls] == ["views.publish"]


def test_pending_show_why_and_run(world: World, run: str) -> None:
    name = "AP-" + world.waiting(run).asked.id[3:9]
    assert name in ask(world, "ana", "pending")
    assert ask(world, "bo", "pending").count("Nothing waits for you.") == 2
    shown = ask(world, "ana", f"show {name}")
    assert "Review and decide" in shown
    assert "tk_approve" not in shown
    assert "You: you may give a key." in ask(world, "ana", f"why {name.lower()}")
    assert "You: You asked for this, so you cannot hold a key." in ask(world, "rita", f"why {name}")
    assert "Keys: oncall" in ask(world, "ana", f"why {name}")
    line = ask(world, "olga", f"run {run[:8]}")
    assert "waiting approval" in line
    assert "incident-triage" in line


def test_a_request_that_is_over_has_no_buttons_and_says_how_it_ended(world: World, run: str) -> None:
    name = "AP-" + world.waiting(run).asked.id[3:9]
    world.press(world.waiting(run), "cleo", kind="reject", reason="not now")
    assert "Rejected by cleo: not now" in ask(world, "ana", f"show {name}")
    assert "tk_review" not in ask(world, "ana", f"show {name}")
    assert "Rejected" in ask(world, "ana", f"why {name}")


@pytest.mark.parametrize("text", ["show AP-ffffff", "why XX-1", "run ffffffff", "show AP-'--", "run %"])
def test_what_is_unknown_is_said_and_nothing_else(world: World, text: str) -> None:
    answer = ask(world, "ana", text)
    assert "unknown here" in answer or "is not the" in answer


@pytest.mark.parametrize("who", ["dan", "nobody"])
@pytest.mark.parametrize("verb", ["show", "why", "run"])
def test_who_may_not_read_learns_nothing(world: World, run: str, who: str, verb: str) -> None:
    what = run[:8] if verb == "run" else "AP-" + world.waiting(run).asked.id[3:9]
    answer = ask(world, who, f"{verb} {what}")
    assert "incident" not in answer.lower()
    assert "deactivated" in answer or "belongs to nobody here" in answer


def test_the_product_answers_help_with_what_there_is(world: World) -> None:
    answer = ask(world, "ana", "help")
    for verb in ("pending", "show AP-", "why AP-", "run ID"):
        assert verb in answer


def test_what_does_not_fit_is_counted_and_left_to_the_console(
    world: World, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench/slack.py says how long a thousand take."""
    world.until(world.start(ref="another"), "waiting_approval")
    monkeypatch.setattr(home, "shown_max", 1)
    view = said(tab(world, "ana"))
    assert "Waiting for you (2)" in view
    assert view.count("Review and decide") == 1
    assert "and 1 more" in view


def test_freeze_stops_everything_by_one_person_of_the_right_level(world: World, run: str) -> None:
    refused = ask(world, "low", "freeze the pager is on fire")
    assert "level" in refused
    assert world.rows("select 1 as x from standstill where tenant = :tenant") == []
    assert "say why" in ask(world, "rita", "freeze").lower()
    answer = ask(world, "rita", "freeze connector servicenow the pager is on fire")
    assert "connector servicenow" in answer
    assert "two people" in answer
    (stood,) = world.rows("select scope, name, reason from standstill where tenant = :tenant")
    assert stood == {"scope": "connector", "name": "servicenow", "reason": "the pager is on fire"}


def test_out_of_office_names_who_stands_in_and_back_ends_it(world: World) -> None:
    assert "Say until when" in ask(world, "ana", "ooo")
    assert "is no day" in ask(world, "ana", "ooo until soon")
    assert "linked to nobody" in ask(world, "ana", "ooo 3d <@U0NOBODY|x>")
    said_ = ask(world, "ana", "ooo 3d <@UCLEO|cleo>")
    assert "out of office until" in said_
    assert "both names are shown" in said_
    assert "Welcome back" in ask(world, "ana", "ooo back")
    assert "is not away" in ask(world, "ana", "ooo back")
    assert "belongs to nobody" in ask(world, "nobody", "ooo 3d") or "linked to nobody" in ask(world, "nobody", "ooo 3d")
