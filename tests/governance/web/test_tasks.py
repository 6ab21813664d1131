"""Tasks at the web's doors: the list of what waits for me, the form as a page, and /v1/tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.flow.test_tasks import GOOD, SAID, begin, result
from tests.governance.slack.nasty import MARKUP
from tests.governance.web.kit import Api, Browser
from tests.governance.web.test_api import conforms, document
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import World, settle

__all__ = ["document"]

Open = Callable[[str], Browser]
Speak = Callable[[str], Api]
EVERY = [
    {"name": "cause", "label": "Cause", "max_chars": 40},
    {"name": "story", "kind": "long_text", "required": False},
    {"name": "where", "kind": "choice", "options": ["Berlin & Ulm", "<b>Bonn</b>"]},
    {"name": "count", "kind": "integer"},
    {"name": "cost", "kind": "decimal", "required": False},
    {"name": "day", "kind": "date", "required": False},
    {"name": "again", "kind": "yes_no"},
]
FORM = {"f_cause": "a disk", "f_where": "<b>Bonn</b>", "f_count": "3", "f_day": "2026-08-21", "f_again": "yes"}


def fill(browser: Browser, task: str, form: dict[str, str], **changed: str) -> Any:
    path = f"/tasks/{task}"
    return browser.post(path, {**browser.hidden(path), **form, **changed})


def test_a_task_is_found_filled_in_and_shown_with_its_answer(world: World, browser: Open) -> None:
    run = begin(world, form={"fields": EVERY})
    task = world.task(run).task
    ana = browser("ana")
    assert ana.get("/").headers["location"] == "/tasks"
    listed = ana.get("/tasks").text
    assert "What happened to INC0010001?" in listed
    assert "You can answer." in listed
    assert "1 wait for your answer" in listed
    page = ana.get(f"/tasks/{task}").text
    for part in (
        'type="date"',
        'inputmode="numeric"',
        "<textarea",
        "<fieldset",
        "Berlin &amp; Ulm",
        'maxlength="40"',
        "(optional)",
    ):
        assert part in page
    assert "waits for somebody to fill in its form" in ana.get(f"/runs/{run}").text
    answered = fill(ana, task, FORM)
    assert answered.status_code == 200
    assert "Your answer is recorded." in answered.text
    assert "&lt;b&gt;Bonn&lt;/b&gt;" in answered.text
    world.until(run, "succeeded")
    assert result(world, run).value["said"] == {
        "cause": "a disk", "story": None, "where": "<b>Bonn</b>", "count": 3, "cost": None, "day": "2026-08-21", "again": True,
    }  # fmt: skip
    assert "No form waits for you." in ana.get("/tasks").text
    shown = browser("bo").get(f"/tasks/{task}").text
    assert "2026-08-21" in shown
    assert "left empty" in shown
    assert "ana filled in the form, in the console" in browser("bo").get(f"/runs/{run}").text


def test_what_does_not_fit_is_said_at_its_field_and_nothing_typed_is_lost(world: World, browser: Open) -> None:
    task = world.task(begin(world, form={"fields": EVERY})).task
    ana = browser("ana")
    answer = fill(ana, task, {**FORM, "f_cause": "x" * 41, "f_count": "many", "f_story": "</textarea><script>"})
    assert answer.status_code == 422
    for part in (
        'id="fault_cause"',
        'id="fault_count"',
        'aria-describedby="fault_count"',
        'value="many"',
        "&lt;/textarea&gt;&lt;script&gt;",
    ):
        assert part in answer.text
    assert "<option selected>&lt;b&gt;Bonn&lt;/b&gt;</option>" in answer.text
    assert world.row("select 1 from task where tenant = :tenant and status = 'asked'")
    assert fill(ana, task, FORM).status_code == 200
    late = ana.get(f"/tasks/{task}")
    assert '<form method="post" action="/tasks/' not in late.text


def test_a_repeat_finds_its_answer_and_a_stale_or_forged_form_changes_nothing(world: World, browser: Open) -> None:
    task = world.task(begin(world)).task
    good = {f"f_{name}": value for name, value in GOOD.items()}
    ana, cleo = browser("ana"), browser("cleo")
    path = f"/tasks/{task}"
    hidden, hers = ana.hidden(path), cleo.hidden(path)
    assert ana.post(path, {**hidden, **good, "csrf": "0" * 64}).status_code == 403
    assert ana.post(path, {**hidden, **good, "digest16": "0" * 16}).status_code == 409
    assert cleo.post(path, {**hidden, **good}).status_code == 403
    assert ana.post(path, {**hidden, **good}).status_code == 200
    assert "Your answer is recorded." in ana.post(path, {**hidden, **good}).text
    late = cleo.post(path, {**hers, **good})
    assert late.status_code == 409
    assert "This was answered by ana at" in late.text


@pytest.mark.parametrize(("name", "said"), [("bo", "no group that may answer"), ("aud", "reads and changes nothing")])
def test_who_may_not_answer_reads_why_and_has_no_form(world: World, browser: Open, name: str, said: str) -> None:
    task = world.task(begin(world)).task
    page = browser(name).get(f"/tasks/{task}").text
    assert said in page
    assert f'action="/tasks/{task}"' not in page


def test_hostile_text_of_an_author_is_text(world: World, browser: Open) -> None:
    nasty = [text for text in MARKUP if text.isprintable() or "\u202e" in text]
    form = {
        "title": " ".join(nasty)[:150],
        "text": "\n".join(nasty),
        "fields": [{"name": "a", "label": "<script>alert(1)</script>"}],
    }
    task = world.task(begin(world, form=form)).task
    ana = browser("ana")
    for path in ("/tasks", f"/tasks/{task}"):
        page = ana.get(path).text
        assert "<script" not in page
        assert "\u202e" not in page


def test_the_api_lists_shows_and_answers(world: World, api: Speak, document: dict[str, Any]) -> None:
    run = begin(world, sign_off=["incident-managers"])
    task = world.task(run).task
    ana = api("ana")
    (one,) = ana.get("/v1/tasks").json()["tasks"]
    conforms(document, "listTasks", ana.get("/v1/tasks"))
    assert api("bo").get("/v1/tasks").json()["tasks"] == []
    assert (one["task"], one["signers"], one["refused_to_you"], one["answer"]) == (
        task,
        ["incident-managers"],
        "",
        None,
    )
    assert [field["kind"] for field in one["fields"]] == ["text", "integer", "yes_no"]
    path = f"/v1/tasks/{task}/answer"
    wrong = ana.post(
        path, {"digest16": one["digest16"], "values": {"cause": "", "count": "x", "again": True, "more": 1}}
    )
    conforms(document, "answerTask", wrong)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_answer")
    assert sorted(wrong.json()["errors"]) == ["cause", "count", "more"]
    for name, status in (("bo", 403), ("aud", 403), ("dan", 403), ("", 401)):
        assert api(name).post(path, {"digest16": one["digest16"], "values": GOOD}).status_code == status
    given = {"digest16": one["digest16"], "values": {"cause": SAID["cause"], "count": 3, "again": False}}
    good = ana.post(path, given, **{"Idempotency-Key": "k1"})
    conforms(document, "answerTask", good)
    assert (good.status_code, good.json()["code"]) == (200, "answered")
    assert ana.post(path, given, **{"Idempotency-Key": "k1"}).json() == good.json()
    assert ana.post(path, given).status_code == 409
    world.until(run, "waiting_approval")
    shown = api("bo").get(f"/v1/tasks/{task}")
    conforms(document, "showTask", shown)
    assert (shown.json()["answer"], shown.json()["answered_by"]) == (SAID, "ana")
    assert shown.json()["sign_off"] == world.waiting(run).asked.id
    signed = api("bo").get(f"/v1/approvals/{shown.json()['sign_off']}")
    conforms(document, "showApproval", signed)


@pytest.mark.parametrize(
    "body",
    [
        {"values": {}},
        {"digest16": "0" * 16},
        {"digest16": "0" * 16, "values": {"a": 1.5}},
        {"digest16": "0" * 16, "values": {"a": ["x"]}},
        {"digest16": "x", "values": {}},
        {"digest16": "0" * 16, "values": {}, "more": 1},
    ],
)
def test_a_body_of_another_shape_is_refused(world: World, api: Speak, body: Any) -> None:
    task = world.task(begin(world)).task
    assert api("ana").post(f"/v1/tasks/{task}/answer", body).status_code in (400, 422)


def test_another_tenants_task_is_unknown_at_every_door(
    world: World, api: Speak, client: TestClient, parts: Any, slack_sink: SlackSink, servicenow: ServiceNow
) -> None:
    task = world.task(begin(world)).task
    other = settle(parts, slack_sink, servicenow)
    stranger = Api(client, other.token("ana"))
    assert stranger.get(f"/v1/tasks/{task}").status_code == 404
    assert stranger.post(f"/v1/tasks/{task}/answer", {"digest16": "0" * 16, "values": {}}).status_code == 404
    browser = Browser(client, other)
    browser.sign_in("ana")
    assert browser.get(f"/tasks/{task}").status_code == 404
    assert api("ana").get("/v1/tasks/ta_0000000000000000").status_code == 404
