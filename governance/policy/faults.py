"""What is wrong with policy files: every fault with its file, line, column, the line itself and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from governance.policy.bundle import BundleInvalid

faults_max = 200


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault: its place from 1, the rule of the house profile that it breaks, the line as it is, and a hint."""

    file: str
    line: int
    column: int
    rule: str
    message: str
    text: str = ""
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.message}"
        return f"{head}; {self.hint}" if self.hint else head


class PolicyInvalid(BundleInvalid):
    """The author of a policy must act: the files have these faults, all of them at once, in the order of the files."""

    code = "invalid_policy"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(set(faults)))[:faults_max]
        super().__init__("\n".join(map(str, self.faults)))
