"""Renders the Home tab: what waits for one person, nearest deadline first, and what they have under way; buttons open windows."""

from __future__ import annotations

import datetime

from governance.slack import phases
from governance.slack.blocks import (
    Block,
    button,
    context,
    deadline,
    header,
    link,
    plain,
    section,
    travelling,
    view_blocks_max,
    view_bytes_max,
)
from governance.slack.buttons import FILL, REJECT, REVIEW, Mac, Pressed, value_for
from governance.slack.text import clip, one_line
from governance.store.home import Decided, Desk, Item, Under

_title_chars_max = 200
_title_weight_max = 400
_kinds = {"key": "🔑 key", "reject": "❌ rejected", "stop": "✋ stopped"}
_endings = {
    "requested": "still open",
    "approved": "approved",
    "rejected": "rejected",
    "expired": "expired",
    "canceled": "withdrawn",
}
_signs = {"low": "🟢", "med": "🟡", "high": "🔴"}


def view(name: str, desk: Desk, *, tenant: str, base: str, deployment: str, mac: Mac) -> Block:
    """The whole tab of a person."""
    blocks = [header("tk_home", f"Waiting for you ({desk.yours_count})")]
    if not desk.yours:
        blocks.append(section("tk_none", f"Nothing waits for you, {clip(one_line(name), 80)[0]}."))
    for n, item in enumerate(desk.yours):
        blocks += item_blocks(n, item, tenant=tenant, deployment=deployment, mac=mac)
    if desk.yours_count > len(desk.yours):
        rest = plain(f"and {desk.yours_count - len(desk.yours)} more")
        blocks.append(context("tk_rest", [rest, link(f"{base}/approvals", "Open in the console")]))
    if desk.others:
        blocks += [_line(), header("tk_others", f"Waiting for others ({desk.others_count})")]
        blocks += [_other(n, item, base) for n, item in enumerate(desk.others)]
    if desk.runs:
        blocks += [_line(), header("tk_runs", "Yours, under way")]
        blocks += [_run(n, run, base) for n, run in enumerate(desk.runs)]
    if desk.decided:
        blocks += [_line(), header("tk_decided", "What you decided last")]
        blocks += [_decision(n, one, base) for n, one in enumerate(desk.decided)]
    assert len(blocks) <= view_blocks_max, len(blocks)
    assert travelling(blocks) <= view_bytes_max
    return {"type": "home", "blocks": _named(blocks)}


def stranger(ref: str) -> Block:
    """The tab of somebody whose account is linked to nobody, with what to ask for."""
    team, _, user = ref.partition(":")
    said = (
        "Your Slack account is linked to nobody in Twokeys yet, so nothing can wait for you. Ask an owner to type: "
        f"twokeys person link YOUR-NAME --team {team} --user {user}"
    )
    return {"type": "home", "blocks": [header("tk_home", "Twokeys"), section("tk_none", said)]}


def item_blocks(n: int, item: Item, *, tenant: str, deployment: str, mac: Mac) -> list[Block]:
    """One thing that waits: what, how far, until when, and the buttons that open it."""
    blocks: list[Block] = [section(f"tk_t{n}", title(item)), context(f"tk_c{n}", [plain(_state(item)), _until(item)])]
    bare = Pressed(deployment, item.ref, item.card_rev, item.digest16, "")
    if item.is_task:
        parts = [button(FILL, "Answer", value_for(bare, tenant, FILL, mac), style="primary")]
    else:
        parts = [
            button(REVIEW, "Review and decide", value_for(bare, tenant, REVIEW, mac), style="primary"),
            button(REJECT, "Reject", value_for(bare, tenant, REJECT, mac), style="danger"),
        ]
    return [*blocks, {"type": "actions", "block_id": f"tk_b{n}", "elements": parts}]


def title(item: Item) -> str:
    """One line: which and what on what."""
    where = f" on {one_line(item.target)}" if item.target and item.target not in item.summary else ""
    sign = "📝" if item.is_task else _signs.get(item.tier, "⚪")
    return clip(f"{sign} {item.name}: {one_line(item.summary)}{where}", _title_chars_max, _title_weight_max)[0]


def _state(item: Item) -> str:
    if item.is_task:
        return "waits for an answer"
    return f"{clip(one_line(item.tier), 8)[0]} risk · {item.given} of {item.needed} key{'s' if item.needed > 1 else ''}"


def _until(item: Item) -> Block:
    return deadline("expires", int(item.expires_at.timestamp()), _clock(item.expires_at))


def _other(n: int, item: Item, base: str) -> Block:
    there = link(f"{base}/{'tasks' if item.is_task else 'approvals'}/{item.ref}", "Open in the console")
    return context(f"tk_o{n}", [plain(title(item)), plain(_state(item)), _until(item), there])


def _run(n: int, run: Under, base: str) -> Block:
    sign = "❓ " if run.state == "unknown" else ""
    name, state = clip(one_line(run.workflow), 80, 150)[0], clip(one_line(run.state.replace("_", " ")), 40)[0]
    said = f"{sign}{name} · {state} · since {_clock(run.created_at)}"
    return context(f"tk_r{n}", [plain(said), link(f"{base}/runs/{run.run}", "Open in the console")])


def _decision(n: int, one: Decided, base: str) -> Block:
    what = clip(one_line(one.summary), 120, 240)[0]
    said = f"{_kinds.get(one.kind, '✎')} · {_clock(one.at)} · {what} · {_endings.get(one.status, '')}"
    return context(f"tk_d{n}", [plain(said), link(f"{base}/approvals/{one.approval}", "Open in the console")])


def _clock(at: datetime.datetime) -> str:
    return phases.clock_time(at.astimezone(datetime.UTC).isoformat())


def _line() -> Block:
    return {"type": "divider"}


def _named(blocks: list[Block]) -> list[Block]:
    """A divider needs a name of its own as well."""
    return [block if "block_id" in block else {**block, "block_id": f"tk_l{n}"} for n, block in enumerate(blocks)]
