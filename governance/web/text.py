"""Text that others wrote, made visible: what cannot be seen is shown as its number, in a frame that text cannot draw itself."""

from __future__ import annotations

import datetime
import unicodedata

from markupsafe import Markup, escape

_unseen = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Invisible although Unicode files them under letters, marks or symbols: fillers, joiners, blank Braille.
_blank = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_marks_in_a_row_max = 4


def visible(text: object) -> Markup:
    """Escaped, with every control, direction, zero-width and other unseen character shown as a framed number; newlines stay."""
    parts: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", str(text).replace("\r\n", "\n")):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if char != "\n" and (is_unseen(char) or marks > _marks_in_a_row_max):
            parts.append(f'<span class="unseen" title="U+{ord(char):04X}">\\u{{{ord(char):x}}}</span>')
        else:
            parts.append(str(escape(char)))
    return Markup("".join(parts))  # noqa: S704 - every character was escaped above


def hides(text: str) -> bool:
    """Whether a reader of the plain text would miss something, so that it may not stand where it cannot be framed."""
    return str(visible(text)) != str(escape(text.replace("\r\n", "\n")))


def is_unseen(char: str) -> bool:
    """Whether a reader would not notice this character."""
    selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return unicodedata.category(char) in _unseen or char in _blank or selector


def one_line(text: object) -> str:
    """The same text on one line, so that nobody writes a second line that looks like ours."""
    return " ⏎ ".join(part.strip() for part in str(text).splitlines() if part.strip())


def moment(at: datetime.datetime | None) -> Markup:
    """A <time> in UTC to the second; the exact instant is its machine-readable value."""
    if at is None:
        return Markup("–")
    utc = at.astimezone(datetime.UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def utc(at: datetime.datetime) -> datetime.datetime:
    """The same moment as outsiders read it."""
    return at.astimezone(datetime.UTC)


def lasted(begun: datetime.datetime, ended: datetime.datetime) -> str:
    """How long, in words."""
    return span(int(max(0.0, (ended - begun).total_seconds())))


def span(seconds: int) -> str:
    """Seconds in the two largest units that say something."""
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return f"{seconds} s"
    for size, name, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {name}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("a minute was handled by its unit")


def until(deadline: datetime.datetime, now: datetime.datetime) -> str:
    """How much time is left, in words."""
    seconds = int((deadline - now).total_seconds())
    return f"{span(seconds)} left" if seconds > 0 else "time is up"


def size(count: int) -> str:
    """Bytes in words."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.1f} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"
