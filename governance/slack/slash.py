"""`/twokeys`: answers in the HTTP answer, to the person who typed it, in literal text; orders go through the commands of everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from engine.errors import TwokeysError
from engine.limits import slack_blocks_max, slack_blocks_total_chars_max
from governance.slack import body, copies, home, phases, tasks
from governance.slack.blocks import Block, context, header, link, section, travelling
from governance.slack.buttons import Mac
from governance.slack.looks import Asked, RunLine
from governance.slack.text import clip, escaped, one_line
from governance.store.doubts import DoubtRecord
from governance.store.home import Desk
from governance.store.tasks import TaskRecord

COMMAND = "/twokeys"
# The verb, what follows it, and what it does; help says nothing that is not here.
VERBS: Mapping[str, tuple[str, str]] = {
    "pending": ("", "what waits for you"),
    "show": ("AP-1a2b3c", "one request, to review and decide"),
    "why": ("AP-1a2b3c", "which rule asks, who may hold a key, and why not you"),
    "run": ("ID", "how far a run is"),
    "help": ("", "this"),
}
answer_chars_max = slack_blocks_total_chars_max - 1_000  # one more item and what remains are below it
_why_chars_max = 2_400
_why_weight_max = 3_500

# tenant, the person's Slack id, the words after the verb: what to say
Order = Callable[[str, str, Sequence[str]], str]


class Looking(Protocol):
    """What can be seen; slack/looks does it."""

    def desk(self, tenant: str, ref: str) -> tuple[str, Desk] | None: ...

    def asked(self, tenant: str, ref: str, name: str) -> Asked | TaskRecord | DoubtRecord: ...

    def run(self, tenant: str, ref: str, name: str) -> RunLine: ...


class Slash:
    """The verbs of the slash command."""

    def __init__(self, looks: Looking, deployment: str, mac: Mac, orders: Mapping[str, tuple[str, str, Order]]) -> None:
        self._looks = looks
        self._deployment = deployment
        self._mac = mac
        self._orders = orders

    def answer(self, tenant: str, ref: str, text: str) -> dict[str, Any]:
        """What Slack shows to the person who typed this."""
        verb, *rest = text.split() or ["help"]
        verb = verb.lower()
        try:
            if verb in self._orders:
                return said(self._orders[verb][2](tenant, ref, rest))
            if verb == "pending":
                return self._pending(tenant, ref)
            if verb in ("show", "why", "run") and len(rest) != 1:
                return said(f"Say which: {COMMAND} {verb} {VERBS[verb][0]}")
            if verb == "show":
                return self._show(tenant, self._looks.asked(tenant, ref, rest[0]))
            if verb == "why":
                return self._why(self._looks.asked(tenant, ref, rest[0]))
            if verb == "run":
                return _run(self._looks.run(tenant, ref, rest[0]))
        except TwokeysError as error:
            step = f" Next: {error.next_step}." if error.next_step else ""
            return said(f"{error.reason[:1].upper()}{error.reason[1:]}.{step}")
        return said(("" if verb == "help" else f"I do not know “{clip(one_line(verb), 40)[0]}”. ") + self._help())

    def _help(self) -> str:
        table = {**VERBS, **{verb: (what, does) for verb, (what, does, _) in self._orders.items()}}
        lines = [f"{COMMAND} {verb} {what}".strip() + f" ({does})" for verb, (what, does) in table.items()]
        return f"There is: {', '.join(lines)}."

    def _pending(self, tenant: str, ref: str) -> dict[str, Any]:
        found = self._looks.desk(tenant, ref)
        if found is None:
            return said(home.stranger(ref)["blocks"][1]["text"]["text"])
        _, desk = found
        if not desk.yours:
            return said("Nothing waits for you.")
        blocks = [header("tk_pending", f"Waiting for you ({desk.yours_count})")]
        shown = 0
        for item in desk.yours:
            more = home.item_blocks(shown, item, tenant=tenant, deployment=self._deployment, mac=self._mac)
            if travelling([*blocks, *more]) > answer_chars_max or len(blocks) + len(more) >= slack_blocks_max:
                break
            blocks, shown = [*blocks, *more], shown + 1
        if desk.yours_count > shown:
            blocks.append(
                section("tk_rest", f"and {desk.yours_count - shown} more, on the Home tab and in the console")
            )
        return ephemeral(f"{desk.yours_count} requests wait for you", blocks)

    def _show(self, tenant: str, found: Asked | TaskRecord | DoubtRecord) -> dict[str, Any]:
        if isinstance(found, Asked):
            card = copies.render(found.record, self._deployment, self._mac, note=copies.yours)
            return ephemeral(found.record.name, card.blocks)
        if isinstance(found, TaskRecord):
            return ephemeral(found.name, tasks.card(found, self._deployment, self._mac).blocks)
        return ephemeral(found.name, [section("tk_what", f"❓ {found.name}: did this happen? {_short(found.action.summary)}"),
                                      *_there(found.console_url)])  # fmt: skip

    def _why(self, found: Asked | TaskRecord | DoubtRecord) -> dict[str, Any]:
        if not isinstance(found, Asked):
            return said(
                f"{found.name} is asked by a workflow or after an unknown outcome, not by a rule; {COMMAND} show {found.name} shows it."
            )
        record = found.record
        lines = [f"{record.name}: {_short(record.summary)}", *body.rules(record), body.holders(record)]
        if record.excluded:
            lines.append(
                "Not "
                + ", not ".join(
                    f"{one_line(name)} ({one_line(why).replace('_', ' ')})" for name, why in record.excluded
                )
            )
        if record.is_open:
            lines.append(f"You: {found.yours or 'you may give a key.'}")
        else:
            sign, word, note = phases.settled(record)
            lines.append(f"{sign} {word}. {one_line(record.outcome) or note}")
        lines.append(f"Policy revision {one_line(record.policy_revision[:12]) or 'none'}")
        text = clip("\n".join(lines), _why_chars_max, _why_weight_max)[0]
        return ephemeral(lines[0], [section("tk_why", text), *_there(record.console_url)])


def _run(run: RunLine) -> dict[str, Any]:
    state = run.state.replace("_", " ")
    head = f"{_short(run.workflow)} {one_line(run.version)} · {state} · started by {_short(run.started_by)}"
    lines = [head] + [
        f"{_sign(state)} {_short(step)}: {state.replace('_', ' ')}{f', {_short(why)}' if why else ''}"
        for step, state, why in run.steps
    ]
    if run.more:
        lines.append(f"and {run.more} more steps")
    text = clip("\n".join(lines), _why_chars_max, _why_weight_max)[0]
    return ephemeral(head, [section("tk_run", text), *_there(run.console_url)])


def _sign(state: str) -> str:
    signs = {
        "succeeded": "✅",
        "failed_terminal": "❌",
        "canceled": "🚫",
        "unknown": "❓",
        "waiting_approval": "⏳",
        "waiting_task": "📝",
    }
    return signs.get(state, "▶️")


def said(text: str) -> dict[str, Any]:
    """One sentence, to this person only, literally."""
    return ephemeral(text, [section("tk_said", clip(text, _why_chars_max, _why_weight_max)[0])])


def ephemeral(text: str, blocks: list[Block]) -> dict[str, Any]:
    """Blocks for this person only; the text is what screen readers say."""
    return {"response_type": "ephemeral", "text": escaped(text, 300), "blocks": blocks}


def _there(url: str) -> list[Block]:
    there = link(url, "Open in the console")
    return [context("tk_more", [there])] if there else []


def _short(text: str) -> str:
    return clip(one_line(text), 200, 400)[0]
