"""What of a card changes from phase to phase: status line, people, keys given, outcome; none of it is part of the digest."""

from __future__ import annotations

from engine.gate.card import CardRecord
from governance.slack.blocks import Block, context, deadline, facts, line, link, plain, rich, words
from governance.slack.body import needed
from governance.slack.text import clip, escaped, one_line

# Together these keep what surrounds a body of 7,000 characters below the 6,000 that are left of the total.
_name_chars_max = 80
_name_weight_max = 150
_reason_weight_max = 180
_outcome_weight_max = 600
_approvers_weight_max = 200
_excluded_weight_max = 450
_keys_shown_max = 3

# Sign, word, and what the reader should know without asking.
_settled = {
    "held": ("⏸️", "Approved · held", "One person who could hold a key may still stop it."),
    "decided": ("✅", "Approved", "It runs next, after one more look at the target."),
    "running": ("▶️", "Approved · running…", ""),
    "done": ("✅", "Done", ""),
    "failed": ("❌", "Failed", ""),
    "unknown": ("❓", "Outcome unknown", "Nothing is tried again until a person says what happened."),
    "rejected": ("❌", "Rejected", "Nothing was executed."),
    "expired": ("⌛", "Expired", "Nothing was executed."),
    "superseded": ("♻️", "Superseded", "What it was about has changed. The newer request is in this thread."),
    "canceled": ("🚫", "Canceled", "Nothing was executed."),
}


def status(record: CardRecord) -> Block:
    """One line: how far it is, until when, and its name."""
    total = max(needed(record), record.wanted)
    count = f"{min(len(record.given), total)} of {total} {'key' if total == 1 else 'keys'}"
    if record.is_open:
        parts: list[Block | None] = [
            plain(f"⏳ {count}"),
            deadline("expires", record.expires_epoch, clock_time(record.expires_at)),
        ]
    else:
        sign, word, _ = settled(record)
        parts = [plain(f"{sign} {word}"), plain(f"🔑 {count}")]
    return context("tk_status", [*parts, plain(record.name)])


def who(record: CardRecord) -> Block:
    """Who asks, and for whom."""
    rows = [("Requested by", _short(record.requested_by))]
    if record.on_behalf_of.strip():
        rows.append(("On behalf of", _short(record.on_behalf_of)))
    return facts("tk_who", rows)


def excluded(record: CardRecord) -> Block | None:
    """Who can never hold a key here, and why."""
    if not record.excluded:
        return None
    names = ", ".join(f"not {_short(name)} ({_short(why, 60).replace('_', ' ')})" for name, why in record.excluded)
    return context("tk_not", [plain(clip(names, 400, _excluded_weight_max)[0])])


def keys_given(record: CardRecord) -> list[Block]:
    """One line per key that stands."""
    if not record.given:
        return []
    lines = []
    for number, (name, at, reason) in enumerate(record.given[:_keys_shown_max], 1):
        parts = [words(f"🔑 {_short(name)}", bold=True), words(f" gave key {number} · {clock_time(at)}")]
        if reason.strip():
            parts.append(words(f" · “{_short(reason, 160, _reason_weight_max)}”", italic=True))
        lines.append(line(*parts, *([words("\n")] if number < min(len(record.given), _keys_shown_max) else [])))
    lost = len(record.given) - len(lines)
    if lost:
        lines.append(line(words(f"\n+ {lost} more keys", italic=True)))
    return [rich("tk_keys", lines)]


def outcome(record: CardRecord) -> Block:
    """How it ended, in the place of the buttons."""
    sign, word, note = settled(record)
    said = _short(record.outcome, 600, _outcome_weight_max)
    names = " and ".join(one_line(name) for name, _, _ in record.given[:_keys_shown_max])
    approvers = _short(names, 200, _approvers_weight_max)
    if record.phase in ("decided", "running") and approvers:
        word = f"Approved by {approvers}" + (" · running…" if record.phase == "running" else "")
    elif said.lower().startswith(word.lower()):
        word, said = said, ""  # "Rejected by Li: not today" needs no headline above it
    parts = [words(f"{sign} {word}", bold=True)]
    if said:
        parts.append(words(f"\n{said}"))
    if note and not said:
        parts.append(words(f"\n{note}", italic=True))
    return rich("tk_outcome", [line(*parts)])


def footer(record: CardRecord) -> Block:
    """Where to look further."""
    return context(
        "tk_more",
        [
            plain(f"run {one_line(record.run[:12])}"),
            None if record.is_sign_off else plain(f"policy {one_line(record.policy_revision[:12])}"),
            link(record.console_url, "Open in the console"),
        ],
    )


def fallback(record: CardRecord) -> str:
    """What screen readers and notifications say: verdict first, then what and who; Slack parses it, so it is escaped."""
    summary = one_line(record.summary)
    target = one_line(record.target.get("id", ""))
    what = summary if not target or target in summary else f"{summary} on {target}"
    if record.is_open:
        given = f", {len(record.given)} of {max(needed(record), record.wanted)} keys given" if record.given else ""
        lasting = "irreversible" if record.irreversible and record.kind != "read" else "reversible"
        head = f"Approval {record.name} needs {needed(record)} key{'s' if needed(record) > 1 else ''}{given}"
        text = f"{head} ({_short(record.tier, 8)} risk, {lasting}, until {clock_time(record.expires_at)})"
    else:
        _, word, note = settled(record)
        text = f"Approval {record.name}: {word.lower()}. {note}".strip()
    tail = f"requested by {_short(record.requested_by, 60)}"
    said = f" {one_line(record.outcome)}" if record.outcome.strip() and not record.is_open else ""
    return escaped(f"{text}: {clip(what, 120)[0]}, {tail}.{said}", 300)


def clock_time(at: str) -> str:
    """`2026-11-18T14:02:33.000000Z` as people read it."""
    text = _short(at, 40)
    day, _, rest = text.partition("T")
    return f"{day} {rest[:5]} UTC" if len(day) == 10 and len(rest) >= 5 else text or "–"


def settled(record: CardRecord) -> tuple[str, str, str]:
    """Sign, word and note of a phase in which nobody is asked."""
    return _settled.get(record.phase, ("•", _short(record.phase, 20), ""))


def _short(text: str, chars: int = _name_chars_max, heavy: int = _name_weight_max) -> str:
    return clip(one_line(text), chars, heavy)[0]
