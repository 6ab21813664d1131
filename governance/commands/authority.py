"""Who is asking and whether they may: the one choke point of levels for Slack, console, API, CLI and MCP."""

from __future__ import annotations

from dataclasses import dataclass

from engine.canonical import sha256
from engine.catalog.tenancy import require
from engine.errors import Refused
from governance.store import people
from governance.store.people import Profile
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Actor:
    """An identity as an entry presents it: a Slack id `T1:U1`, a personal token's hash, or a person already signed in with one."""

    kind: str  # slack | token
    ref: str


def token_ref(token: str) -> str:
    """What is stored of a personal token: its hash, never the token."""
    return sha256(token.encode()).hex()


def who(unit: Unit, actor: Actor) -> Profile:
    """The person behind an identity."""
    found = people.by_identity(unit, actor.kind, actor.ref)
    if found is None:
        raise Refused(
            "this identity belongs to nobody here", code="unknown_person", next_step="ask an owner to link it"
        )
    return found


def allowed(unit: Unit, actor: Actor, deed: str) -> Profile:
    """The person, if their level lets them do this; Refused with the reason otherwise."""
    person = who(unit, actor)
    require(deed, person.level, active=person.active, auditor=person.read_only)
    return person
