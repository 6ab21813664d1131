"""The body of a card: what would happen, why, what changes, which rule asks and who may hold a key.

Keys bind to the body (DESIGN 14.24), so nothing in it may depend on the phase, the time, the keys given or a person's
display name. A body too long for Slack is shown clipped; its digest is always that of the whole body.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.canonical import jcs
from engine.gate.card import CardRecord, card_digest, demand
from engine.limits import slack_header_chars_max
from governance.slack.blocks import (
    Block,
    box,
    context,
    facts,
    faults,
    header,
    line,
    plain,
    quote,
    rich,
    section,
    travelling,
    words,
)
from governance.slack.text import clip, one_line, size, visible

body_chars_max = 7_000  # of the 13,000 of the whole card; the rest is for status, people and buttons
change_rows_max = 12
reasons_max = 6
box_lines_max = 40
inline_chars_max = 160

_tiers = {"low": ("🟢", "Low risk"), "med": ("🟡", "Medium risk"), "high": ("🔴", "High risk")}
# Money and whoever receives it are read first.
_first = ("amount", "price", "total", "currency", "iban", "account", "recipient", "payee", "customer", "to", "email")


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of each text is shown."""

    chars: int
    weight: int
    lines: int
    rows: int
    reasons: int


_rooms = (
    _Room(chars=1_200, weight=1_600, lines=20, rows=change_rows_max, reasons=reasons_max),
    _Room(chars=400, weight=500, lines=8, rows=change_rows_max, reasons=reasons_max),
    _Room(chars=120, weight=160, lines=4, rows=change_rows_max, reasons=4),
    _Room(chars=60, weight=80, lines=2, rows=8, reasons=2),
    _Room(chars=40, weight=48, lines=1, rows=4, reasons=1),
)


@dataclass(frozen=True, slots=True)
class Body:
    """The whole body, which keys bind to; the one that a message can carry; and whether that lost anything."""

    whole: list[Block]
    shown: list[Block]
    cut: bool
    digest: bytes

    @property
    def size(self) -> int:
        """How many characters the whole body says."""
        return sum(size(text) for block in self.whole for text in texts(block))


def whole(record: CardRecord) -> list[Block]:
    """Everything a key holder has to have seen, without any bound."""
    return _body(record, None)


def compose(record: CardRecord) -> Body:
    """The body of this record."""
    everything = whole(record)
    digest = card_digest(record.action_sha256, jcs(everything))
    if len(record.changes) <= change_rows_max and _fits(everything):
        return Body(everything, everything, False, digest)
    rooms = iter(_rooms)
    blocks = _body(record, next(rooms))
    while not _fits(blocks):
        blocks = _body(record, next(rooms))
    return Body(everything, blocks, True, digest)


def texts(part: object) -> list[str]:
    """Every text of a block, in reading order."""
    if isinstance(part, dict):
        own = [part["text"]] if isinstance(part.get("text"), str) else []
        return own + [text for inner in part.values() for text in texts(inner)]
    if isinstance(part, list):
        return [text for inner in part for text in texts(inner)]
    return []


def _fits(blocks: list[Block]) -> bool:
    if travelling(blocks) > body_chars_max or faults(blocks):
        return False
    boxes = [part for block in blocks for part in block.get("elements", ()) if part["type"] == "rich_text_preformatted"]
    return not any(text.count("\n") >= box_lines_max for part in boxes for text in texts(part))


# --- parts --------------------------------------------------------------------------------------------------------


def _body(record: CardRecord, room: _Room | None) -> list[Block]:
    blocks = [header("tk_what", title(record))]
    if title(record).endswith("…"):
        blocks.append(section("tk_title", _bounded(title_text(record), room)))
    blocks.append(context("tk_needs", [plain(requirement(record)), plain(reach(record))]))
    blocks.append(facts("tk_facts", [(label, _bounded(value, room)) for label, value in fact_rows(record)]))
    if record.why.strip():
        why = _bounded(one_line(record.why), room)
        blocks.append(rich("tk_why", [line(words("Why asked", bold=True)), quote(why)]))
    if record.changes:
        blocks.append(rich("tk_change", changes(record, room)))
    blocks.append(context("tk_rule", [plain(text) for text in rules(record, room)]))
    blocks.append(context("tk_holders", [plain(_bounded(holders(record), room))]))
    return blocks


def title(record: CardRecord) -> str:
    """Tier in colour and word, what, and on what."""
    return clip(title_text(record), slack_header_chars_max)[0]


def title_text(record: CardRecord) -> str:
    """The same, whole."""
    if record.is_sign_off:
        return f"✍ {one_line(record.summary)}"
    sign, word = _tiers.get(record.tier, ("⚪", "Risk " + one_line(record.tier)))
    what = one_line(record.summary) or f"{one_line(record.connector)} {one_line(record.operation)}"
    target = one_line(record.target.get("id", ""))
    # A long machine id says nothing in a headline; it stands among the facts.
    where = f" on {target}" if target and len(target) <= 24 and target not in what else ""
    return f"{sign} {word}: {what}{where}"


def needed(record: CardRecord) -> int:
    """How many keys in all."""
    return max(record.keys, sum(n for _, n in record.counts), 1)


def requirement(record: CardRecord) -> str:
    """How many keys from how many people."""
    count = needed(record)
    least = "at least " if len(record.needs) > 1 else ""
    return f"🔑 Needs {least}1 key" if count == 1 else f"🔑 Needs {least}{count} keys from {count} different people"


def reach(record: CardRecord) -> str:
    """What it would take to take it back."""
    if record.is_sign_off:
        return "✍ Signs an answer"
    if record.kind == "read":
        return "👁 Only reads"
    if record.irreversible:
        return "⛔ Irreversible"
    return "↩ Reversible" if record.reversal == "inverse" else "↩ Reversible by hand"


def holders(record: CardRecord) -> str:
    """Who may hold a key; where rules ask for different people, each rule's own demand is said."""
    if record.needs:
        return "Keys: " + "; and ".join(map(demand, record.needs)) + _together(record)
    groups = [one_line(name) for name in record.groups]
    counts = [f"{n} of {one_line(name)}" for name, n in record.counts]
    who = " or ".join(groups) if groups else "anybody who may approve"
    return f"Keys: {who}" + (f"; at least {' and '.join(counts)}" if counts else "")


def _together(record: CardRecord) -> str:
    """One key may meet several demands; those of counted groups take a person each."""
    if len(record.needs) < 2:
        return ""
    return ". Whoever is in several groups meets each of them with one key"


def fact_rows(record: CardRecord) -> list[tuple[str, str]]:
    """Label and value, at most five."""
    target = record.target
    rows = [
        ("Workflow", f"{one_line(record.workflow)} {one_line(record.version)} › {one_line(record.step)}"),
        ("Target", f"{one_line(target.get('type', ''))} {one_line(target.get('id', ''))}"),
        ("System", f"{one_line(target.get('system', ''))} · {one_line(target.get('instance', ''))}"),
        ("Action", f"{one_line(record.connector)}.{one_line(record.operation)} ({one_line(record.kind)})"),
        ("Environment", f"{one_line(record.environment)} · {one_line(record.tenant)}"),
    ]
    if record.is_sign_off:
        return [rows[0], ("Task", one_line(target.get("id", ""))), rows[4]]
    if record.amount.strip():
        # Five rows are what a section holds; money matters more than the system's name, which joins the target.
        rows[1:3] = [("Amount", one_line(record.amount)), ("Target", f"{rows[1][1]} · {rows[2][1]}")]
    return rows


def changes(record: CardRecord, room: _Room | None = None) -> list[Block]:
    """One row per field: short values side by side, long ones in boxes."""
    # An answer stands in the order of its form.
    ranked = record.changes if record.is_sign_off else sorted(record.changes, key=lambda change: _rank(change[0]))
    rows = ranked if room is None else ranked[: room.rows]
    elements = [line(words("Answer" if record.is_sign_off else "Change", bold=True))]
    for name, before, after in rows:
        if record.is_sign_off:
            elements += _answer(_bounded(one_line(name), room), after, room)
            continue
        elements += _change(_bounded(one_line(name), room), before, after, room)
    if len(rows) < len(ranked):
        elements.append(line(words(f"+ {len(ranked) - len(rows)} more, see Review all", italic=True)))
    return elements


def _rank(name: str) -> int:
    lowered = name.lower()
    return next((n for n, word in enumerate(_first) if word in lowered.split("_") or lowered == word), len(_first))


def _change(name: str, before: str, after: str, room: _Room | None) -> list[Block]:
    label = words(name + "  ", bold=True)
    if _is_short(before) and _is_short(after):
        old, new = _bounded(visible(before), room), _bounded(visible(after), room)
        left = words(old, strike=True) if old else words("empty", italic=True)
        right = words(new, bold=True) if new else words("empty", italic=True)
        return [line(label, left, words("  →  "), right)]
    parts: list[Block] = []
    if before:
        parts = [line(label, words("was", italic=True)), box(_bounded(visible(before), room))]
    if not after:
        return [*parts, line(label, words("is cleared", italic=True))]
    said = "becomes" if before else "was empty, becomes"
    return [*parts, line(label, words(said, italic=True)), box(_bounded(visible(after), room))]


def _answer(label: str, given: str, room: _Room | None) -> list[Block]:
    """A question with what was answered."""
    question = words(label + "  ", bold=True)
    if not given:
        return [line(question, words("left empty", italic=True))]
    if _is_short(given):
        return [line(question, words(_bounded(visible(given), room)))]
    return [line(question), box(_bounded(visible(given), room))]


def _is_short(value: str) -> bool:
    return size(value) <= inline_chars_max and "\n" not in value and "\r" not in value


def rules(record: CardRecord, room: _Room | None = None) -> list[str]:
    """Which rules ask for people."""
    said = [f"Rule {one_line(code)}: {one_line(message)}" for code, message in record.reasons]
    if not said:
        said = ["Rule: the policy asks for people"]
    kept = said if room is None else said[: room.reasons]
    lost = len(said) - len(kept)
    return [_bounded(rule, room) for rule in kept] + ([f"+ {lost} more rules, see Review all"] if lost else [])


def _bounded(text: str, room: _Room | None) -> str:
    if room is None:
        return text
    rows = text.split("\n")
    kept = "\n".join(rows[: room.lines])
    clipped, _ = clip(kept, room.chars, room.weight)
    lost = size(text) - size(clipped.removesuffix("…") if clipped != text else clipped)
    return f"{clipped.removesuffix('…')}… (+{lost} characters)" if lost > 0 else text
