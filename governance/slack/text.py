"""Makes text that others wrote harmless: what cannot be seen is shown, what is too long is clipped and says so."""

from __future__ import annotations

import json
import re
import unicodedata

# Invisible although Unicode files them under letters, marks or symbols: fillers, joiners, blank Braille.
_blank = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_hidden_categories = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_marks = frozenset({"Mn", "Me"})
# More marks than any script stacks on one letter: the rest would paint over the lines around it.
_marks_in_a_row_max = 4
_breaks = re.compile(r"\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")
_mark_weight = 6  # of the "…"
_entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def visible(text: str) -> str:
    """The text with every control, direction, zero-width and other unseen character as `\\u{...}`; newlines stay."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n"))
    # Work on the few different characters, not on the many of a long text.
    used = set(text)
    marks = "".join(char for char in used if unicodedata.category(char) in _marks)
    if marks:
        text = re.sub(f"[{re.escape(marks)}]{{{_marks_in_a_row_max + 1},}}", _unstacked, text)
    return text.translate({ord(char): _named(char) for char in used if _is_unseen(char)})


def _is_unseen(char: str) -> bool:
    if char == "\n":
        return False
    # Variation selectors are invisible, and enough of them spell a message.
    selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return selector or char in _blank or unicodedata.category(char) in _hidden_categories


def _unstacked(found: re.Match[str]) -> str:
    stack = found.group()
    return stack[:_marks_in_a_row_max] + "".join(map(_named, stack[_marks_in_a_row_max:]))


def _named(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"


def one_line(text: str) -> str:
    """The same on one line, so that nobody writes a second line that looks like ours."""
    flat = _breaks.sub(" ⏎ ", text)
    return re.sub(" +", " ", visible(flat)).strip()


def size(text: str) -> int:
    """Length in UTF-16 units: never less than what Slack counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def weight(text: str) -> int:
    """How much of a message's total the text takes: its length as it travels, in ASCII JSON."""
    return len(json.dumps(text)) - 2


def _char_weight(char: str) -> int:
    if " " <= char <= "~":
        return 2 if char in '"\\' else 1
    return 12 if char > "\uffff" else 6


def clip(text: str, size_max: int, weight_max: int = 0) -> tuple[str, bool]:
    """The text within its bounds, and whether anything was lost."""
    heavy = bool(weight_max) and weight(text) > weight_max
    if size(text) <= size_max and not heavy:
        return text, False
    used, used_weight, end = 0, 0, 0
    for char in text:
        used += 2 if char > "\uffff" else 1
        used_weight += _char_weight(char) if weight_max else 0
        if used > size_max - 1 or used_weight > max(0, weight_max - _mark_weight):
            break
        end += 1
    return text[:end] + "…", True


def escaped(text: str, chars_max: int) -> str:
    """For the one place that Slack parses (the fallback text): one line, entities, never cut inside an entity."""
    line = one_line(text)
    pieces = [_entities.get(char, char) for char in line]
    if sum(map(size, pieces)) <= chars_max:
        return "".join(pieces)
    kept, used = [], 1
    for piece in pieces:
        used += size(piece)
        if used > chars_max:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def stored(text: str, chars_max: int) -> str:
    """What a person typed, fit to be stored: no lone surrogates, no NUL, no blank ends, bounded."""
    whole = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    return whole.strip()[:chars_max]
