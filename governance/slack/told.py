"""What is said of an approval beside its card, as it goes on: to the person who asked, and in the card's thread."""

from __future__ import annotations

from dataclasses import dataclass

from engine.gate.card import CardRecord
from governance.slack import phases
from governance.slack.body import holders, needed
from governance.slack.text import clip, one_line

_results = ("done", "failed", "unknown", "rejected", "expired", "canceled")
_summary_chars_max = 200
_reason_chars_max = 2_000


@dataclass(frozen=True, slots=True)
class News:
    """One thing to say: `dm` to the person who asked, `said` in the thread of the card."""

    kind: str
    text: str


def mark(record: CardRecord) -> str:
    """How far people have been told; compared with the next one, it says what is new."""
    return f"{record.phase}/{len(record.given)}"


def news(before: str, record: CardRecord) -> list[News]:
    """What to say now that the card has gone from one mark to the other; nothing twice, nothing that is on the card alone."""
    phase, _, keys = before.partition("/")
    given = int(keys) if keys.isdigit() else 0
    found: list[News] = []
    what = f"{record.name}, {clip(one_line(record.summary), _summary_chars_max)[0]}"
    if not phase and record.is_open:
        until = phases.clock_time(record.expires_at)
        many = f"{needed(record)} key{'s' if needed(record) > 1 else ''}"
        found.append(News("dm", f"Your request {what}, waits for {many}, until {until}. {holders(record)}."))
    if record.phase == phase and record.is_open and len(record.given) > given:
        who = one_line(record.given[-1][0])
        found.append(News("dm", f"{who} gave key {len(record.given)} of {needed(record)} for your request {what}."))
    if record.phase != phase and record.phase == "decided":
        names = " and ".join(one_line(name) for name, _, _ in record.given)
        found.append(News("dm", f"Your request {what}, was approved by {names or 'its keys'}. It runs now."))
    if record.phase != phase and record.phase in _results:
        found.append(News("dm", f"Your request {what}: {_result(record)}"))
        if phase:  # a card that was never posted before has no thread that anybody follows
            found.append(News("said", f"{record.name}: {_result(record)}"))
    return found


def _result(record: CardRecord) -> str:
    sign, word, note = phases.settled(record)
    said = clip(one_line(record.outcome), _reason_chars_max)[0]
    if said.lower().startswith(word.lower()):
        return f"{sign} {said}"
    return " ".join(
        part
        for part in (f"{sign} {word}.", said if said.strip(".").lower() != word.lower() else "", "" if said else note)
        if part
    )
