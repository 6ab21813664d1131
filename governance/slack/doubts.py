"""Renders a doubt: the card that asks what became of an attempt, and the window that asks how the person knows."""

from __future__ import annotations

from dataclasses import replace

from engine.gate.doubt import DID_NOT, HAPPENED, PROBE, RETRY
from engine.limits import reason_chars_max, slack_header_chars_max
from governance.slack import phases
from governance.slack.blocks import (
    Block,
    button,
    context,
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
from governance.slack.buttons import (
    SAY_DID_NOT,
    SAY_HAPPENED,
    SAY_PROBE,
    SAY_RETRY,
    Mac,
    Opened,
    Pressed,
    metadata_of,
    value_for,
)
from governance.slack.cards import Card
from governance.slack.text import clip, escaped, one_line
from governance.slack.views import REASON, blocks_digest
from governance.store.doubts import DoubtRecord

# What each button says, and what the person stands for by pressing it.
ANSWERS = {
    SAY_HAPPENED: (HAPPENED, "It happened", "The run goes on as if the answer had come."),
    SAY_DID_NOT: (DID_NOT, "It did not", "What is left of its attempts is used, judged again first."),
    SAY_PROBE: (PROBE, "Probe again", ""),
    SAY_RETRY: (
        RETRY,
        "Retry with the same key",
        "It is done once more, judged again first. If it has happened already, it may then have happened twice.",
    ),
}
SUBMITS = {f"tk_submit_{how}": how for how in (HAPPENED, DID_NOT, RETRY)}
_text_chars_max = 300
_text_weight_max = 700
_settled = {
    "happened": ("✅", "It happened"),
    "did_not": ("❌", "It did not happen"),
    "retried": ("🔁", "Tried again under the same key"),
    "canceled": ("🚫", "The run was canceled"),
}


def named(doubt: DoubtRecord, deployment: str) -> Pressed:
    """What a button and a window of this doubt name."""
    return Pressed(deployment, doubt.doubt, doubt.card_rev, doubt.digest16, "")


def card(doubt: DoubtRecord, deployment: str, mac: Mac) -> Card:
    """The card of this doubt as it is now."""
    title = f"❓ Did this happen? {doubt.action.summary}"
    blocks = [
        header("tk_what", clip(one_line(title), slack_header_chars_max)[0]),
        facts("tk_facts", _facts(doubt)),
        section("tk_text", _short(f"Why nobody knows: {doubt.found}" if doubt.is_open else _said(doubt))),
    ]
    if doubt.is_open:
        blocks += [_asks(doubt), _buttons(doubt, deployment, mac)]
    else:
        sign, word = _settled[doubt.state]
        blocks.append(rich("tk_status", [line(words(f"{sign} {word}", bold=True), words(f" · {doubt.name}"))]))
    more = [plain(f"run {one_line(doubt.run[:12])}"), link(doubt.console_url, "Open in the console")]
    blocks.append(context("tk_more", more))
    broken = faults(blocks)
    assert not broken, broken
    return Card(blocks, _fallback(doubt), bytes.fromhex(blocks_digest(blocks)), False)


def modal(doubt: DoubtRecord, action_id: str, opened: Opened, mac: Mac) -> Block:
    """One question: how do you know. A doubt that is over says what it came to."""
    how, label, means = ANSWERS[action_id]
    view: Block = {"type": "modal", "callback_id": "tk_show", "title": plain(f"{doubt.name}")}
    what = line(words(clip(one_line(doubt.action.summary), _text_chars_max)[0], bold=True))
    blocks = [rich("tk_title", [what]), facts("tk_facts", _facts(doubt))]
    if not doubt.is_open:
        return {**view, "close": plain("Close"), "blocks": [*blocks, section("tk_text", _short(_said(doubt)))]}
    if how == RETRY:
        people = "" if doubt.needed == 1 else f" {doubt.given} of {doubt.needed} different people want it."
        means += people
    blocks.append(section("tk_means", means))
    question = "Why?" if how == RETRY else "How do you know?"
    blocks.append(
        {
            "type": "input",
            "block_id": REASON,
            "optional": False,
            "label": plain(f"{question} It stands on the record."),
            "element": {
                "type": "plain_text_input",
                "action_id": REASON,
                "multiline": True,
                "max_length": reason_chars_max,
            },
        }
    )
    callback_id = f"tk_submit_{how}"
    return {
        **view,
        "title": plain(clip(f"{label}", view_title_chars_max)[0]),
        "callback_id": callback_id,
        "submit": plain("Say so"),
        "close": plain("Back"),
        "blocks": blocks,
        "private_metadata": metadata_of(
            replace(opened, blocks_sha256=blocks_digest(blocks)), doubt.tenant, callback_id, mac
        ),
    }


def _facts(doubt: DoubtRecord) -> list[tuple[str, str]]:
    action = doubt.action
    before = dict(action.preconditions)
    target = f"{before['number']} · {action.target.id}" if before.get("number") else action.target.id
    changed = ", ".join(f"{f.name} → {f.value}" if f.op != "clear" else f"{f.name} cleared" for f in action.fields)
    rows = [
        ("Workflow", f"{doubt.workflow} {doubt.version} › {doubt.step}"),
        ("Target", f"{action.target.type} {target} · {action.target.instance}"),
        ("Attempted", f"{action.connector}.{action.operation}, attempt {doubt.attempt}"),
        ("Would change", changed or "nothing"),
        ("Who can say", " or ".join(f"@{group}" for group in doubt.groups) or "operators who did not ask for it"),
    ]
    return [(label, _short(text)) for label, text in rows]


def _asks(doubt: DoubtRecord) -> Block:
    if doubt.needed == 1:
        return context("tk_status", [plain("⏳ Waits for somebody's word"), plain(doubt.name)])
    count = f"🔁 {doubt.given} of {doubt.needed} people want it tried again"
    return context("tk_status", [plain("⏳ Waits for somebody's word"), plain(count), plain(doubt.name)])


def _buttons(doubt: DoubtRecord, deployment: str, mac: Mac) -> Block:
    bare = named(doubt, deployment)
    elements = [
        button(
            action_id, label, value_for(bare, doubt.tenant, action_id, mac),
            style="primary" if how == HAPPENED else "danger" if how == RETRY else "",
        )
        for action_id, (how, label, _) in ANSWERS.items()
    ]  # fmt: skip
    return {"type": "actions", "block_id": "tk_buttons", "elements": elements}


def _said(doubt: DoubtRecord) -> str:
    """What settled it."""
    if doubt.state in ("happened", "did_not"):
        return f"{doubt.resolved_by} said so." if doubt.resolved_by else "Looking at the system proved it."
    who = " and ".join(dict.fromkeys(word.who for word in doubt.words if word.how == RETRY))
    if doubt.state == "retried":
        return f"{who or 'Nobody'} wanted it tried again; whether this attempt happened stays unknown."
    return "The run was canceled before anybody said."


def _short(text: str) -> str:
    return clip(one_line(text), _text_chars_max, _text_weight_max)[0]


def _fallback(doubt: DoubtRecord) -> str:
    what = clip(one_line(doubt.action.summary), 120)[0]
    if doubt.is_open:
        return escaped(f"{doubt.name}: nobody knows whether this happened: {what}. Somebody must say.", 300)
    return escaped(f"{doubt.name}: {_settled[doubt.state][1].lower()}: {what}. {phases.clock_time(str(doubt.asked_at))}", 300)  # fmt: skip
