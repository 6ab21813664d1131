"""Out of office: a person says, or an owner says for them, that they are away, and who may turn keys in their place."""

from __future__ import annotations

import datetime

from engine.catalog.tenancy import require
from engine.errors import CallerError, Refused
from engine.gate.approval import APPROVER_LEVEL_MIN
from engine.ledger.entries import Fact, stamp
from governance.commands.authority import Actor, who
from governance.store import absences, entries, people
from governance.store.absences import Absence
from governance.store.people import Profile
from governance.store.unit import Database, Unit

OPERATOR = {"type": "system", "id": "operator"}
away_days_max = 366


class Absent:
    """The only way anybody stands in for anybody. It never makes two people of one: that is counted where keys are."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def away(
        self, tenant: str, actor: Actor | None, person: str, until: datetime.datetime, *, delegate: str = "",
        since: datetime.datetime | None = None,
    ) -> Absence:  # fmt: skip
        """This person is away until then; `delegate` may turn keys in their place meanwhile."""
        with self._database.unit(tenant) as unit:
            by, found = self._by(unit, actor, person)
            now = unit.now()
            begins = max(since or now, now)
            if not now < until <= now + datetime.timedelta(days=away_days_max) or begins >= until:
                raise CallerError(
                    f"an absence ends after it begins and within {away_days_max} days",
                    code="invalid_body",
                    field="until",
                )
            other = people.find(unit, delegate) if delegate else None
            if other is not None:
                self._check(found, other)
            return self._put(unit, by, Absence(found.person, other.person if other else "", begins, until))

    def back(self, tenant: str, actor: Actor | None, person: str) -> Absence:
        """They are back: from now on nobody stands in for them. Keys that were turned in their place stand."""
        with self._database.unit(tenant) as unit:
            by, found = self._by(unit, actor, person)
            known = absences.known(unit).get(found.person)
            if known is None:
                raise Refused(f"{found.name} is not away", code="not_away")
            now = unit.now()
            return self._put(unit, by, Absence(found.person, "", min(known.from_at, now), now))

    def _put(self, unit: Unit, by: dict[str, str], absence: Absence) -> Absence:
        absences.put(unit, absence, by["id"])
        body = {
            "person": absence.person, "delegate": absence.delegate, "from_at": stamp(absence.from_at), "until_at": stamp(absence.until_at),
        }  # fmt: skip
        entries.note(unit, f"person/{absence.person}", Fact("person.away", by, body))
        return absence

    def _check(self, found: Profile, other: Profile) -> None:
        if other.person == found.person:
            raise CallerError("nobody stands in for themselves", code="invalid_body", field="delegate")
        if other.kind != "human" or not other.active or other.read_only or other.level < APPROVER_LEVEL_MIN:
            raise CallerError(
                f"{other.name} could hold no key: a person of level {APPROVER_LEVEL_MIN} who is active stands in",
                code="invalid_body", field="delegate",
            )  # fmt: skip

    def _by(self, unit: Unit, actor: Actor | None, person: str) -> tuple[dict[str, str], Profile]:
        """Who says so: the person, an owner, or the operator's shell."""
        found = people.find(unit, person) if person or actor is None else who(unit, actor)
        if found.kind != "human":
            raise CallerError(f"{found.name} is a service and is never away", code="not_human", field="person")
        if actor is None:
            return OPERATOR, found
        me = who(unit, actor)
        if me.person != found.person or not me.active:
            require("people", me.level, active=me.active, auditor=me.read_only)
        return {"type": "person", "id": me.person}, found
