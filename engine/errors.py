"""The engine's error tree: each class says in its first line who must act.

TwokeysError
├── AuthorError        the author of a definition
├── CallerError        whoever sent the request
├── Refused            nobody: authority, separation of duty or a rule said no
├── OperatorError      the operator: configuration, or a part that does not answer
├── StaleWake          nobody: the wait this answers is over
├── Conflict           nobody: somebody else moved first, load again
├── BrokenJournal      the operator: a journal that cannot be trusted
└── BrokenLedger       the operator and the auditor: evidence that does not hold
"""

from __future__ import annotations


class TwokeysError(Exception):
    """Base: `code` for machines, the sentence for people, `field` and `next_step` where there are any."""

    code = "error"

    def __init__(self, reason: str, *, code: str | None = None, field: str = "", next_step: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code or type(self).code
        self.field = field
        self.next_step = next_step

    def __str__(self) -> str:
        head = f"{self.field}: {self.reason}" if self.field else self.reason
        return f"{head} ({self.next_step})" if self.next_step else head


class AuthorError(TwokeysError):
    """The author must act: a definition, an expression or a document is wrong at a line and column."""

    code = "invalid_definition"


class CallerError(TwokeysError):
    """The caller must act: a field of the request is wrong."""

    code = "invalid_request"


class Refused(TwokeysError):
    """Nobody must act: who asked may not do this, or may not do it now; nothing has changed."""

    code = "refused"


class OperatorError(TwokeysError):
    """The operator must act: a setting is wrong or a part of the installation does not answer."""

    code = "unavailable"


class StaleWake(TwokeysError):
    """Nobody must act: the wait this answers is over."""

    code = "stale"


class Conflict(TwokeysError):
    """Nobody must act: somebody else moved the run first; load it again and decide again."""

    code = "conflict"


class BrokenJournal(TwokeysError):
    """The operator must act: this run's journal breaks a rule, so nothing may be appended to it."""

    code = "broken_journal"

    def __init__(self, rule: str, reason: str, *, sequence: int | None = None) -> None:
        where = f"entry {sequence}: " if sequence is not None else ""
        super().__init__(f"{rule}: {where}{reason}")
        self.rule = rule
        self.sequence = sequence


class BrokenLedger(TwokeysError):
    """The operator and the auditor must act: a piece of evidence does not hold."""

    code = "broken_ledger"
