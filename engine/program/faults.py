"""What is wrong with an authored file: every fault with its place, gathered before anything is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from engine.errors import AuthorError

faults_max = 200


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault: file, line and column from 1, the JSON pointer of the value, and what the author does about it."""

    file: str
    line: int
    column: int
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class DefinitionInvalid(AuthorError):
    """The author must act: the file has these faults, all of them at once, in the order of the file."""

    code = "invalid_definition"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(set(faults)))[:faults_max]
        super().__init__("\n".join(map(str, self.faults)))


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something known is close, else the known names."""
    names = sorted(known)
    near = get_close_matches(name, names, 1, 0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    if not names:
        return ""
    listed = ", ".join(names[:16]) + (", …" if len(names) > 16 else "")
    return f" (known: {listed})"


def step_into(pointer: str, part: str | int) -> str:
    """The JSON pointer of a part (RFC 6901)."""
    return f"{pointer}/{str(part).replace('~', '~0').replace('/', '~1')}"
