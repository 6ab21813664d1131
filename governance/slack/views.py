"""Renders the modals: Review all with Approve in it, Reject with its reason, and the outcome that answers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from engine.canonical import jcs, sha256
from engine.gate.card import CardRecord
from engine.limits import reason_chars_max, slack_text_chars_max
from governance.slack import body, phases
from governance.slack.blocks import (
    Block,
    context,
    line,
    link,
    plain,
    quote,
    rich,
    section,
    travelling,
    view_blocks_max,
    view_bytes_max,
    view_title_chars_max,
    words,
)
from governance.slack.buttons import Mac, Opened, metadata_of
from governance.slack.text import clip, one_line, size

SUBMIT_APPROVE = "tk_submit_approve"
SUBMIT_REJECT = "tk_submit_reject"
SUBMITS = (SUBMIT_APPROVE, SUBMIT_REJECT)
REASON = "tk_reason"  # the block and the action of the one input

_piece_max = slack_text_chars_max - 100
_kept_for_our_blocks = 8


def blocks_digest(blocks: object) -> str:
    """sha256 of the JCS bytes of what was shown."""
    return sha256(jcs(blocks)).hex()


def review(record: CardRecord, opened: Opened, mac: Mac) -> Block:
    """Everything about the request, nothing cut; Approve is here when it is open and all of it fits."""
    blocks = _packed(_everything(record))
    if len(blocks) > view_blocks_max - _kept_for_our_blocks or travelling(blocks) > view_bytes_max:
        note = "This request is too long for Slack. Read it and decide in the console."
        return _view(record, "Review", [section("tk_note", note), _console(record)])
    if not record.is_open:
        return _view(record, "Review", [*blocks, phases.outcome(record), _console(record)])
    blocks.append(_input("Note (the requester will read it)", optional=True))
    return _asking(record, "Approve", SUBMIT_APPROVE, blocks, opened, mac)


def reject(record: CardRecord, opened: Opened, mac: Mac) -> Block:
    """One question: why."""
    if not record.is_open:
        return review(record, opened, mac)
    blocks = [
        section("tk_title", body.title(record)),
        context("tk_note", [plain("One rejection ends the request. Nothing will be executed.")]),
        _input("Why? The requester will read it.", optional=False),
    ]
    return _asking(record, "Reject", SUBMIT_REJECT, blocks, opened, mac)


def answered(name: str, sentence: str) -> Block:
    """What a modal shows after it was submitted."""
    return {
        "type": "modal",
        "callback_id": "tk_answer",
        "title": plain(clip(name, view_title_chars_max)[0]),
        "close": plain("Close"),
        "blocks": [section("tk_answer", clip(one_line(sentence), slack_text_chars_max - 1)[0])],
    }


def _asking(record: CardRecord, verb: str, callback_id: str, blocks: list[Block], opened: Opened, mac: Mac) -> Block:
    opened = replace(opened, blocks_sha256=blocks_digest(blocks))
    return {
        **_view(record, verb, blocks),
        "callback_id": callback_id,
        "submit": plain(verb),
        "close": plain("Back"),
        "private_metadata": metadata_of(opened, record.tenant, callback_id, mac),
    }


def _view(record: CardRecord, verb: str, blocks: Sequence[Block | None]) -> Block:
    return {
        "type": "modal",
        "callback_id": "tk_show",
        "title": plain(f"{verb} {record.name}"),
        "close": plain("Close"),
        "blocks": [block for block in blocks if block],
    }


def _input(label: str, *, optional: bool) -> Block:
    return {
        "type": "input",
        "block_id": REASON,
        "optional": optional,
        "label": plain(label),
        "element": {
            "type": "plain_text_input",
            "action_id": REASON,
            "multiline": True,
            "max_length": reason_chars_max,
        },
    }


def _console(record: CardRecord) -> Block | None:
    there = link(record.console_url, "Open in the console")
    return context("tk_console", [there]) if there else None


def _everything(record: CardRecord) -> Iterator[Block]:
    """What the whole body says, one below the other."""
    yield line(words(body.title_text(record), bold=True))
    yield line(words(f"{body.requirement(record)} · {body.reach(record)}"))
    yield line(words("Requested by  ", bold=True), words(one_line(record.requested_by)))
    if record.on_behalf_of.strip():
        yield line(words("On behalf of  ", bold=True), words(one_line(record.on_behalf_of)))
    for label, value in body.fact_rows(record):
        yield line(words(f"{label}  ", bold=True), words(value))
    if record.why.strip():
        yield line(words("Why asked", bold=True))
        yield quote(one_line(record.why))
    if record.changes:
        yield from body.changes(record)
    for rule in body.rules(record):
        yield line(words(rule))
    yield line(words(body.holders(record)))
    for name, why in record.excluded:
        yield line(words(f"Not {one_line(name)} ({one_line(why).replace('_', ' ')})"))
    yield line(words("Action digest  ", bold=True), words(record.action_sha256))
    if not record.is_sign_off:
        yield line(words("Policy revision  ", bold=True), words(one_line(record.policy_revision)))


def _packed(elements: Iterable[Block]) -> list[Block]:
    """The elements in as few blocks as Slack's limit of one text allows, each element cut into as many as it needs."""
    blocks: list[list[Block]] = [[]]
    used = 0
    for element in (piece for whole in elements for piece in _pieces(whole)):
        long = sum(map(size, body.texts(element)))
        if blocks[-1] and used + long > slack_text_chars_max:
            blocks.append([])
            used = 0
        blocks[-1].append(element)
        used += long
    return [rich(f"tk_all_{n}", parts) for n, parts in enumerate(blocks)]


def _pieces(element: Block) -> Iterator[Block]:
    parts = element["elements"]
    if sum(map(size, body.texts(element))) <= _piece_max:
        yield element
        return
    for part in parts:
        text = part["text"]
        for start in range(0, len(text), _piece_max // 2):
            yield {**element, "elements": [{**part, "text": text[start : start + _piece_max // 2]}]}
