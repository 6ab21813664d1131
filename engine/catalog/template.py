"""The life of a published definition: draft, active, paused, archived, and what each of these lets happen."""

from __future__ import annotations

from engine.errors import Refused

DRAFT, ACTIVE, PAUSED, ARCHIVED = "draft", "active", "paused", "archived"
STATUSES = (DRAFT, ACTIVE, PAUSED, ARCHIVED)

# deed: (statuses it may be done in, the status after it)
_MOVES = {
    "activate": ((DRAFT, PAUSED), ACTIVE),
    "pause": ((ACTIVE,), PAUSED),
    "archive": ((ACTIVE, PAUSED), ARCHIVED),
}


def after(status: str, deed: str) -> str:
    """The status that a deed leads to; Refused when it may not be done in this one."""
    if deed not in _MOVES or status not in STATUSES:
        raise Refused(f"a template that is {status!r} knows no {deed!r}", code="template_status")
    allowed, then = _MOVES[deed]
    if status not in allowed:
        wanted = " or ".join(allowed)
        raise Refused(f"cannot {deed} a template that is {status}; it has to be {wanted}", code="template_status")
    return then


def check_start(status: str, name: str) -> None:
    """Only an active template starts runs; those that have started go on, whatever becomes of it."""
    if status == ACTIVE:
        return
    next_step = {
        DRAFT: "activate it first",
        PAUSED: "activate it again first",
        ARCHIVED: "publish a new version",
    }.get(status, "")
    raise Refused(f"workflow {name!r} is {status} and starts no runs", code="template_status", next_step=next_step)


def check_publish(status: str | None, version: str, stored: bytes | None, given: bytes) -> bool:
    """Whether this digest must be stored: a version names one content for ever, and the same content again changes nothing."""
    if status is None or stored is None:
        return True
    if stored != given:
        raise Refused(
            f"version {version} is published already with other content",
            code="version_taken",
            next_step="raise the version",
        )
    return False
