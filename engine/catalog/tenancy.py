"""The levels of people, what each of them may do, in one table, and who is asked before anything changes."""

from __future__ import annotations

from engine.errors import Refused

LEVELS = {1: "auditor", 2: "viewer", 3: "member", 4: "operator", 5: "author", 6: "owner"}

# The least level for each thing that people do. A level may do everything that the levels below it may.
_LEAST = {
    "read": 1,
    "audit": 1,  # evidence, entries and verdicts; reading them changes nothing
    "complete_task": 3,
    "start": 4,
    "cancel": 4,
    "schedule": 4,  # asked again at each moment that the schedule is due
    "signal": 4,  # say to a run what it waits for
    "retry": 4,  # go on with what was parked; nothing that may have happened is done again
    "decide": 4,  # approvals; that the approver is not in the lineage is judged elsewhere
    "freeze": 4,  # stop things, and ask for going on
    "resolve": 4,  # say what happened to an unknown effect
    "publish": 5,
    "migrate": 5,  # let a run go on under other code
    "activate": 5,
    "pause": 5,
    "archive": 5,
    "policy": 5,
    "people": 6,  # add, link, deactivate, groups and levels
    "tenant": 6,
}
DEEDS = tuple(_LEAST)
_READING = ("read", "audit")


def least_level(deed: str) -> int:
    """The least level that may do this."""
    return _LEAST[deed]


def may(deed: str, level: int, *, active: bool = True, auditor: bool = False) -> bool:
    """Whether a person of this level may do this. A deed or a level that is not in the table may do nothing."""
    if type(level) is not int or level not in LEVELS or deed not in _LEAST or not active:
        return False
    if auditor and deed not in _READING:
        return False
    return level >= _LEAST[deed]


def require(deed: str, level: int, *, active: bool = True, auditor: bool = False) -> None:
    """Refused, with a sentence for the person, unless they may do this."""
    if may(deed, level, active=active, auditor=auditor):
        return
    if not active:
        raise Refused("your account is deactivated", code="inactive", next_step="ask an owner of your tenant")
    if auditor and deed in _LEAST and deed not in _READING:
        raise Refused("an auditor reads and changes nothing", code="auditor", next_step="ask an operator or author")
    least = _LEAST.get(deed, 7)
    name = LEVELS.get(least, "nobody")
    raise Refused(
        f"this takes level {least} ({name}); yours is {level}", code="level", next_step="ask an owner of your tenant"
    )
