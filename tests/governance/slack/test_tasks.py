"""Tasks in Slack: a card that lies about nothing, a modal with the very fields, and answers read by the stored form."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.program.form import Field, Form, SignOff, form_from
from governance.commands.answer import Told
from governance.local.desk.blocks import check_message
from governance.local.desk.blocks import check_view as desk_check_view
from governance.slack import tasks, views
from governance.slack.buttons import FILL, Opened, value_for
from governance.slack.text import visible
from governance.store.tasks import TaskRecord
from tests.governance.slack.kit import ALICE, APPROVAL, TEAM, World, click, mac, record, submission
from tests.governance.slack.nasty import words as nasty
from tests.governance.slack.rules import check_blocks, check_view

TASK = "ta_1a2b3c4d5e6f7081"
AT = datetime.datetime(2027, 1, 15, 8, 0, tzinfo=datetime.UTC)
FIELDS = [
    {"name": "cause", "label": "Cause", "max_chars": 40},
    {"name": "story", "kind": "long_text", "required": False},
    {"name": "where", "kind": "choice", "options": ["Berlin", "Ulm"]},
    {"name": "count", "kind": "integer"},
    {"name": "cost", "kind": "decimal"},
    {"name": "day", "kind": "date"},
    {"name": "again", "kind": "yes_no"},
]


def task(**changed: Any) -> TaskRecord:
    form = {"title": "What happened?", "text": "Please say.", "fields": FIELDS, "groups": ["oncall"]}
    made = TaskRecord(
        tenant="acme", task=TASK, run="9f" * 16, promise="0", step="task-0", workflow="ask-people", version="1",
        form=form_from({"form": form, "sign_off": ["ops"]}), status="asked", asked_at=AT, expires_at=AT + datetime.timedelta(days=1),
        decided_at=None, requested_by="Rita Requester", answered_by="", answerer="", via="", answer=None,
        console_url=f"https://twokeys.example.com/tasks/{TASK}",
    )  # fmt: skip
    return replace(made, **changed)


def world(**changed: Any) -> World:
    return World(tasks={("acme", TASK): task()}, records={("acme", APPROVAL): record()}, **changed)


def pressed(tenant: str = "acme", action_id: str = FILL, deployment: str = "prod-1", **changed: Any) -> str:
    return value_for(tasks.named(task(**changed), deployment), tenant, action_id, mac)


def opened(there: World) -> dict[str, Any]:
    there.clicks().action(click(FILL, pressed()))
    return there.opened[-1][2]


def send(there: World, view: dict[str, Any], values: Any, **changed: Any) -> Any:
    payload = submission(view, **changed)
    payload["view"]["state"] = {"values": values}
    return there.clicks().submission(payload)


def plainly(text: Any) -> dict[str, Any]:
    return {"type": "plain_text_input", "value": text}


def chosen(value: Any) -> dict[str, Any]:
    return {"type": "static_select", "selected_option": {"value": value}}


TYPED = {
    "cause": plainly("a disk"), "story": plainly(None), "where": chosen("1"), "count": plainly("3"), "cost": plainly("1.5"),
    "day": plainly("2026-08-21"), "again": chosen("no"),
}  # fmt: skip
VALUES = {f"tk_f_{name}": {f"tk_f_{name}": value} for name, value in TYPED.items()}


def test_the_card_has_one_button_and_none_when_it_is_over() -> None:
    made = tasks.card(task(), "prod-1", mac)
    check_blocks(made.blocks)
    check_message(made.blocks)
    (actions,) = [block for block in made.blocks if block["type"] == "actions"]
    assert [(one["action_id"], one["value"]) for one in actions["elements"]] == [(FILL, pressed())]
    for status, said in (
        ("answered", "Answered by Ana A. · 2027-01-15 08:00 UTC"),
        ("expired", "Nobody answered"),
        ("canceled", "Withdrawn"),
    ):
        over = tasks.card(task(status=status, decided_at=AT, answered_by="Ana A."), "prod-1", mac)
        check_blocks(over.blocks)
        assert not [block for block in over.blocks if block["type"] == "actions"]
        assert said in json.dumps(over.blocks, ensure_ascii=False)


def test_the_modal_has_the_very_fields_and_its_answer_is_read_by_the_form() -> None:
    there = world()
    view = opened(there)
    check_view(view)
    desk_check_view(view, "modal")
    inputs = [block for block in view["blocks"] if block["type"] == "input"]
    assert [block["block_id"] for block in inputs] == [f"tk_f_{one['name']}" for one in FIELDS]
    assert [block["optional"] for block in inputs] == [False, True, False, False, False, False, False]
    assert [block["element"]["type"] for block in inputs] == [
        "plain_text_input", "plain_text_input", "static_select", "plain_text_input", "plain_text_input", "plain_text_input",
        "radio_buttons",
    ]  # fmt: skip
    assert inputs[0]["element"]["max_length"] == 40
    outcome = send(there, view, VALUES)
    (filled,) = there.filled
    assert (filled.tenant, filled.task, filled.actor.ref, filled.via) == (
        "acme",
        TASK,
        f"{TEAM}:{ALICE}",
        "slack_form",
    )
    assert filled.digest16 == task().digest16
    assert filled.values == {
        "cause": "a disk", "story": None, "where": "Ulm", "count": "3", "cost": "1.5", "day": "2026-08-21", "again": "no",
    }  # fmt: skip
    assert outcome.body["response_action"] == "update"
    assert "Your answer is recorded." in json.dumps(outcome.body)


def test_what_does_not_fit_is_said_at_its_input_and_a_refusal_is_the_next_view() -> None:
    there = world(thanks=Told("invalid_answer", False, "No.", "asked", {"cause": "this is needed", "other": "x"}))
    outcome = send(there, opened(there), VALUES)
    assert outcome.body == {"response_action": "errors", "errors": {"tk_f_cause": "this is needed"}}
    there.thanks = Told("decided", False, "This was answered by Bo at 10:00.", "answered")
    outcome = send(there, opened(there), VALUES)
    assert outcome.body["response_action"] == "update"
    assert "answered by Bo" in json.dumps(outcome.body)


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        {"tk_f_where": 1},
        {"tk_f_where": {"tk_f_where": {"selected_option": "x"}}},
        {"tk_f_again": {"tk_f_again": chosen([1])}},
    ],
)
def test_a_submission_of_another_shape_is_nothing_typed(values: Any) -> None:
    there = world()
    send(there, opened(there), values)
    (filled,) = there.filled
    assert not any(isinstance(one, str) for one in filled.values.values())


def test_an_option_that_is_not_there_is_handed_on_to_be_refused() -> None:
    there = world()
    send(there, opened(there), {**VALUES, "tk_f_where": {"tk_f_where": chosen("7")}})
    assert there.filled[0].values["where"] == "7"


def test_forged_and_foreign_buttons_and_windows_are_refused() -> None:
    there = world()
    for value in (
        pressed(tenant="other"),
        pressed(action_id="tk_approve"),
        pressed(task="ta_0000000000000000")[:-1] + "0",
        "v1.x",
    ):
        there.clicks().action(click(FILL, value))
    # A key cannot be given to a task, nor a form be filled in for an approval.
    there.clicks().action(click("tk_approve", pressed(action_id="tk_fill")))
    assert there.opened == []
    assert there.pressed == []
    assert there.clicks().action(click(FILL, pressed(deployment="elsewhere"))).status == 200
    view = opened(there)
    assert "Somebody else opened this window" in json.dumps(
        send(there, view, VALUES, user={"id": "U0BOB", "team_id": TEAM}).body
    )
    for changed in (
        {"private_metadata": view["private_metadata"][:-4] + 'aa"}'},
        {"callback_id": views.SUBMIT_APPROVE},
    ):
        assert "not made for this workspace" in json.dumps(send(there, {**view, **changed}, VALUES).body)
    assert there.filled == []
    there.tasks.clear()
    assert "not known here" in json.dumps(send(there, view, VALUES).body)
    there.clicks().action(click(FILL, pressed()))
    assert "not known here" in there.told[-1][2]


def test_a_window_on_a_task_that_is_over_has_no_inputs() -> None:
    there = world()
    there.tasks["acme", TASK] = task(status="answered", decided_at=AT, answered_by="Bo")
    view = opened(there)
    check_view(view)
    assert "submit" not in view
    assert "Answered by Bo" in json.dumps(view)


fields = st.builds(
    Field,
    name=st.just("a"),
    label=st.text(min_size=1, max_size=150),
    kind=st.sampled_from(["text", "long_text", "choice", "integer", "decimal", "date", "yes_no"]),
    required=st.booleans(),
    max_chars=st.integers(1, 300),
    options=st.lists(st.text(min_size=1, max_size=75), min_size=1, max_size=50).map(tuple),
)


@given(
    nasty, nasty, nasty, st.lists(fields, min_size=1, max_size=20), st.sampled_from(["asked", "answered", "expired", "canceled"]),
    st.booleans(),
)  # fmt: skip
def test_whatever_an_author_writes_the_card_and_the_modal_are_taken_by_slack(
    title: str, text: str, name: str, given_fields: list[Field], status: str, signed: bool
) -> None:
    named = tuple(replace(one, name=f"a{n}") for n, one in enumerate(given_fields))
    sign_off = SignOff(("g" * 63,) * 10, ()) if signed else None
    form = Form(
        title[:150] or "t", text[:2_000], named, tuple(f"{n}{'g' * 60}" for n in range(10)), 60, sign_off, b"\x01" * 32
    )
    shown = task(form=form, status=status, decided_at=AT, answered_by=name, requested_by=name)
    made = tasks.card(shown, "prod-1", mac)
    check_blocks(made.blocks)
    view = tasks.modal(shown, Opened(tasks.named(shown, "prod-1"), ALICE, "C0OPS", "1.2", ""), mac)
    check_view(view)
    said = json.dumps([made.blocks, view["blocks"]], ensure_ascii=False)
    assert all(visible(char) == char or char == "\n" for char in set(said))
