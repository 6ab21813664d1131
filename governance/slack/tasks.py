"""Renders a task: its card, its form as a modal, and what was typed into it read back by the stored form, never by the one sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.limits import slack_header_chars_max, slack_text_chars_max
from engine.program.form import Field
from governance.slack import phases
from governance.slack.blocks import (
    Block,
    button,
    context,
    deadline,
    facts,
    faults,
    header,
    line,
    link,
    plain,
    rich,
    section,
    view_title_chars_max,
    words,
)
from governance.slack.buttons import FILL, Mac, Opened, Pressed, metadata_of, value_for
from governance.slack.cards import Card
from governance.slack.text import clip, escaped, one_line, size, visible
from governance.slack.views import blocks_digest
from governance.store.tasks import TaskRecord

SUBMIT_FILL = "tk_submit_fill"
_card_text_chars_max = 1_500
_card_text_weight_max = 4_000
_fact_chars_max = 300
_fact_weight_max = 600
_chunk = slack_text_chars_max // 2
_hints = {
    "integer": "a whole number, such as 12",
    "decimal": "a number, such as 12.50",
    "date": "year-month-day, such as 2026-08-21",
}
_settled = {
    "answered": ("✅", "Answered"),
    "expired": ("⌛", "Nobody answered in time"),
    "canceled": ("🚫", "Withdrawn"),
}


def named(task: TaskRecord, deployment: str) -> Pressed:
    """What a button and a modal of this task name."""
    return Pressed(deployment, task.task, task.card_rev, task.digest16, "")


def card(task: TaskRecord, deployment: str, mac: Mac) -> Card:
    """The card of this task as it is now. What was answered is not on it: the console shows that to those who may see it."""
    text, cut = clip(visible(task.form.text.strip()), _card_text_chars_max, _card_text_weight_max)
    title = f"📝 {one_line(task.form.title)}"
    blocks = [header("tk_what", clip(title, slack_header_chars_max)[0])]
    if size(title) > slack_header_chars_max:
        blocks.append(
            section("tk_title", clip(one_line(task.form.title), _card_text_chars_max, _card_text_weight_max)[0])
        )
    if text:
        blocks.append(section("tk_text", text))
    blocks += [facts("tk_facts", _facts(task)), _status(task)]
    if task.is_open:
        value = value_for(named(task, deployment), task.tenant, FILL, mac)
        blocks.append(
            {"type": "actions", "block_id": "tk_buttons", "elements": [button(FILL, "Answer", value, style="primary")]}
        )
    blocks.append(
        context("tk_more", [plain(f"run {one_line(task.run[:12])}"), link(task.console_url, "Open in the console")])
    )
    broken = faults(blocks)
    assert not broken, broken
    return Card(blocks, _fallback(task), bytes.fromhex(blocks_digest(blocks)), cut)


def modal(task: TaskRecord, opened: Opened, mac: Mac) -> Block:
    """The form, with the very fields; one that is over says what it has come to."""
    blocks = [rich("tk_title", [line(words(one_line(task.form.title), bold=True))])]
    text = visible(task.form.text.strip())
    blocks += [section(f"tk_text_{n}", text[at : at + _chunk]) for n, at in enumerate(range(0, len(text), _chunk))]
    view: Block = {
        "type": "modal",
        "callback_id": "tk_show",
        "title": plain(clip(f"Task {task.name}", view_title_chars_max)[0]),
    }
    if not task.is_open:
        return {**view, "close": plain("Close"), "blocks": [*blocks, _status(task)]}
    blocks += [_input(one) for one in task.form.fields]
    return {
        **view,
        "callback_id": SUBMIT_FILL,
        "submit": plain("Send"),
        "close": plain("Back"),
        "blocks": blocks,
        "private_metadata": metadata_of(opened, task.tenant, SUBMIT_FILL, mac),
    }


def typed(task: TaskRecord, view: Mapping[str, Any]) -> dict[str, Any]:
    """What the person typed, by the fields' names; what is not of the form's shape is nothing."""
    return {one.name: _typed(one, view) for one in task.form.fields}


def errors(told: Mapping[str, str], task: TaskRecord) -> dict[str, str]:
    """The faults of an answer at the inputs they belong to."""
    return {_block_id(one): told[one.name][:150] for one in task.form.fields if one.name in told}


def _block_id(one: Field) -> str:
    return f"tk_f_{one.name}"


def _input(one: Field) -> Block:
    name = _block_id(one)
    return {
        "type": "input", "block_id": name, "optional": not one.required, "label": plain(visible(one.label)),
        "element": {"action_id": name, **_element(one)},
    }  # fmt: skip


def _element(one: Field) -> Block:
    if one.kind == "yes_no":
        return {"type": "radio_buttons", "options": [_option("Yes", "yes"), _option("No", "no")]}
    if one.kind == "choice":
        # An option goes by its number: its text is the author's and may be as long as Slack's bound on a value.
        options = [_option(clip(visible(text), 75)[0], str(n)) for n, text in enumerate(one.options)]
        return {
            "type": "static_select",
            "placeholder": plain(clip(f"Choose: {visible(one.label)}", 75)[0]),
            "options": options,
        }
    if one.kind in _hints:
        return {"type": "plain_text_input", "placeholder": plain(_hints[one.kind]), "max_length": 40}
    return {"type": "plain_text_input", "multiline": one.kind == "long_text", "max_length": one.max_chars}


def _option(text: str, value: str) -> Block:
    return {"text": plain(text), "value": value}


def _typed(one: Field, view: Mapping[str, Any]) -> Any:
    value: Any = view
    for name in ("state", "values", _block_id(one), _block_id(one)):
        value = value.get(name) if type(value) is dict else None
    if type(value) is not dict:
        return None
    if one.kind not in ("choice", "yes_no"):
        return value.get("value")
    chosen = value.get("selected_option")
    given = chosen.get("value") if type(chosen) is dict else None
    if one.kind == "yes_no" or type(given) is not str:
        return given
    at = {str(n): text for n, text in enumerate(one.options)}
    return at.get(given, given)


def _facts(task: TaskRecord) -> list[tuple[str, str]]:
    form = task.form
    rows = [
        ("Asked by", task.requested_by),
        ("Workflow", f"{task.workflow} › {task.step}"),
        ("Who can answer", task.who),
        ("Asks for", ", ".join(one.label for one in form.fields)),
    ]
    if form.sign_off is not None:
        many = f"{form.sign_off.keys} of " if form.sign_off.keys > 1 else ""
        rows.append(("Then signed by", many + " or ".join(f"@{group}" for group in form.sign_off.groups)))
    return [(label, clip(one_line(text), _fact_chars_max, _fact_weight_max)[0]) for label, text in rows]


def _status(task: TaskRecord) -> Block:
    until = task.expires_at
    if task.is_open:
        when = deadline("expires", int(until.timestamp()), phases.clock_time(until.isoformat()))
        return context("tk_status", [plain("⏳ Waits for an answer"), when, plain(task.name)])
    return rich("tk_status", [line(words(_outcome(task), bold=True), words(f" · {task.name}"))])


def _outcome(task: TaskRecord) -> str:
    sign, word = _settled.get(task.status, ("•", task.status))
    if task.status != "answered" or task.decided_at is None:
        return f"{sign} {word}"
    by = clip(one_line(task.answered_by), 80, 150)[0]
    return f"{sign} Answered by {by} · {phases.clock_time(task.decided_at.isoformat())}"


def _fallback(task: TaskRecord) -> str:
    """What screen readers and notifications say; Slack parses it, so it is escaped."""
    head = f"Task {task.name} waits for {task.who}" if task.is_open else f"Task {task.name}: {_outcome(task)}"
    return escaped(f"{clip(head, 160)[0]}: {clip(one_line(task.form.title), 120)[0]}", 300)
