"""Finds the line and column of a fault: of a value, of a key, and of a place inside an expression inside a value."""

from __future__ import annotations

from engine.program.document import Document
from engine.program.faults import DefinitionInvalid, Fault


class Ledger:
    """The faults of one file, each at its place; a value that is already at fault is not reported twice."""

    def __init__(self, document: Document, filename: str) -> None:
        self._document = document
        self._filename = filename
        self._faults = list(document.faults)
        self._known = {fault.pointer for fault in document.faults}

    def at_value(self, pointer: str, message: str) -> None:
        """The value is wrong, or something is missing from it."""
        if pointer not in self._known:
            self._add(self._place(pointer), pointer, message)

    def at_key(self, pointer: str, message: str) -> None:
        """The key should not be there."""
        self._add(self._document.keys.get(pointer, self._place(pointer)), pointer, message)

    def in_expression(self, pointer: str, source: str, message: str, line: int, col: int) -> None:
        """Something inside an expression inside this value is wrong; line and column are those inside the expression."""
        if pointer not in self._known:
            place = self._inside(pointer, source, line, col) if line else None
            self._add(place or self._place(pointer), pointer, message)

    def line(self, pointer: str) -> int:
        """The line in which a value starts."""
        return self._place(pointer)[0]

    def refuse(self) -> None:
        """Raise when there is any fault."""
        if self._faults:
            raise DefinitionInvalid(self._faults)

    def _add(self, place: tuple[int, int], pointer: str, message: str) -> None:
        self._faults.append(Fault(self._filename, *place, pointer, message))

    def _place(self, pointer: str) -> tuple[int, int]:
        positions = self._document.positions
        while pointer and pointer not in positions:
            pointer = pointer.rpartition("/")[0]
        return positions.get(pointer, (1, 1))

    def _inside(self, pointer: str, source: str, line: int, col: int) -> tuple[int, int] | None:
        """Look the line of the expression up in the file: how it is quoted and folded does not matter where it stands verbatim."""
        parts = source.split("\n")
        wanted = parts[line - 1] if line <= len(parts) else ""
        indent = len(wanted) - len(wanted.lstrip())
        wanted = wanted.strip()
        row, start = self._place(pointer)
        lines = self._document.lines
        last = self._last_line(pointer, row)
        for number in range(row, min(last, len(lines)) + 1):
            at = lines[number - 1].find(wanted, start - 1 if number == row else 0) if wanted else -1
            if at >= 0:
                return number, at + max(1, col - indent)
        return None

    def _last_line(self, pointer: str, row: int) -> int:
        """The line before which the next value begins, at the latest."""
        later = [place[0] for place in self._document.positions.values() if place[0] > row]
        return min(later, default=len(self._document.lines))
