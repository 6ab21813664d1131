"""Doubts: the attempts whose outcome nobody knows, what people said of each, and what it came to."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import CallerError
from engine.gate.action import Action, action_from
from engine.gate.doubt import RETRY, Doubt, Word, id_of, people_needed, unfit
from governance.store import approvals, cases
from governance.store.case import Case
from governance.store.people import Profile, as_person, profiles
from governance.store.unit import Row, Unit


@dataclass(frozen=True, slots=True)
class Spoken:
    """One word as pages show it; `who` is a name."""

    person: str
    who: str
    how: str
    at: datetime.datetime
    via: str
    reason: str


@dataclass(frozen=True, slots=True)
class DoubtRecord:
    """One doubt as people see it; texts are raw and may be hostile, whoever renders them makes them harmless."""

    tenant: str
    doubt: str
    run: str
    promise: str
    attempt: int
    step: str
    workflow: str
    version: str
    action: Action
    state: str  # open | happened | did_not | retried | canceled
    found: str  # what is said of it now: why it is unknown, or what was found when somebody looked
    asked_at: datetime.datetime
    words: tuple[Spoken, ...]
    given: int  # people who want it tried again
    needed: int
    groups: tuple[str, ...]
    excluded: tuple[str, ...]  # names of those who can never say what happened
    resolved_by: str  # a name; empty when looking at the system has settled it
    console_url: str = ""

    @property
    def name(self) -> str:
        """What people call it: `UN-1a2b3c` for `un_1a2b3c...`."""
        return "UN-" + self.doubt.removeprefix("un_")[:6]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for somebody's word."""
        return self.state == "open"

    @property
    def digest16(self) -> str:
        """What a button names: the action that may have happened."""
        return self.action.digest.hex()[:16]

    @property
    def card_rev(self) -> int:
        """What was attempted never changes, so its card has one version."""
        return 1


def ask(case: Case, action: Action) -> str:
    """Put the newest attempt of an operation before people: a doubt, its card and its entry. Which one it is."""
    promise = case.promises[action.promise]
    name = id_of(case.origin.run, promise.promise, promise.attempt)
    case.add("doubt", doubt=name, promise=promise.promise, attempt=promise.attempt, action_digest=action.digest)
    case.add("card", approval=name)
    case.show_card(name)
    case.note(
        "doubt.asked",
        {
            "doubt": name, "promise": promise.promise, "attempt": promise.attempt, "action_sha256": action.digest.hex(),
            "keys": people_needed(can_be_taken_back(action)),
            "lineage": [{"person": person, "why": why} for person, why in sorted(case.lineage.items())],
        },
    )  # fmt: skip
    return name


def newest(unit: Unit, run: str, promise: str) -> str:
    """The doubt about the newest attempt of an operation that was ever unknown; empty when none was."""
    row = unit.one(
        "select doubt from doubt where tenant = :tenant and run = :run and promise = :promise order by attempt desc limit 1",
        run=run,
        promise=promise,
    )
    return "" if row is None else str(row[0])


def run_of(unit: Unit, doubt: str) -> str:
    """Which run a doubt is about: the run is locked first, in every path."""
    row = unit.one("select run from doubt where tenant = :tenant and doubt = :doubt", doubt=doubt)
    if row is None:
        raise CallerError(f"{doubt[:40]} is unknown here", code="unknown_doubt", field="doubt",
                          next_step="`twokeys run list --state unknown` shows what waits")  # fmt: skip
    return str(row[0])


def load(unit: Unit, case: Case, doubt: str) -> Doubt:
    """One doubt of a run in hand, as the gate decides by it."""
    row = unit.one(
        "select promise, attempt from doubt where tenant = :tenant and doubt = :doubt and run = :run",
        doubt=doubt,
        run=case.origin.run,
    )
    if row is None:
        raise CallerError(f"{doubt[:40]} is unknown here", code="unknown_doubt", field="doubt")
    return about(unit, case, row[0], int(row[1]))


def about(unit: Unit, case: Case, promise: str, attempt: int) -> Doubt:
    """The doubt about this attempt."""
    now = case.promises[promise]
    action = cases.action(unit, case.origin.run, promise, now.rev)
    return Doubt(
        id=id_of(case.origin.run, promise, attempt), run=case.origin.run, promise=promise, attempt=attempt,
        reversible=can_be_taken_back(action), groups=_groups(unit, now.approval), lineage=case.lineage,
        is_open=now.state == "unknown" and now.attempt == attempt and not case.ended, canceling=case.cancel_requested,
    )  # fmt: skip


def can_be_taken_back(action: Action) -> bool:
    """Whether what was done can be undone; to try again what people are shown as irreversible takes two of them."""
    return action.reversible and action.reversal != "none"


def words(unit: Unit, doubt: str) -> tuple[Word, ...]:
    """What was said of a doubt, oldest first."""
    rows = unit.all("select person, how from word where tenant = :tenant and doubt = :doubt order by n", doubt=doubt)
    return tuple(Word(row[0], row[1]) for row in rows)


_columns = (
    "d.doubt, d.run, d.promise, d.attempt, p.step, r.workflow, r.code_version, a.body, p.state, p.attempt, p.last_error, d.at, "
    "p.approval, r.started_by, r.on_behalf_of, r.owner, r.editors, coalesce((select c.status from receipt c "
    "where c.tenant = d.tenant and c.key = p.key and c.run = d.run and c.attempt = d.attempt order by c.n desc limit 1), ''), "
    "coalesce((select w.person from word w where w.tenant = d.tenant and w.doubt = d.doubt "
    "and w.how in ('happened', 'did_not') limit 1), '')"
)
_from = (
    "from doubt d join run r on r.tenant = d.tenant and r.run = d.run "
    "join promise p on p.tenant = d.tenant and p.run = d.run and p.promise = d.promise "
    "join lateral (select body from action a where a.tenant = d.tenant and a.run = d.run and a.promise = d.promise "
    "and a.digest = d.action_digest order by rev desc limit 1) a on true where d.tenant = :tenant"
)


def record(unit: Unit, doubt: str) -> DoubtRecord:
    """One doubt, complete."""
    row = unit.one(f"select {_columns} {_from} and d.doubt = :doubt", doubt=doubt)
    if row is None:
        run_of(unit, doubt)
        raise AssertionError("a doubt that has a run has a row")
    return _record(unit, row)


def of_run(unit: Unit, run: str) -> tuple[DoubtRecord, ...]:
    """Every doubt of a run, oldest first."""
    rows = unit.all(f"select {_columns} {_from} and d.run = :run order by d.at, d.doubt", run=run)
    return tuple(_record(unit, row) for row in rows)


def waiting(unit: Unit, limit: int) -> tuple[DoubtRecord, ...]:
    """What waits for somebody's word in this tenant, the oldest first."""
    rows = unit.all(
        f"select {_columns} {_from} and r.ended_at is null and p.state = 'unknown' and p.attempt = d.attempt "
        "order by d.at, d.doubt limit :limit",
        limit=limit,
    )
    return tuple(_record(unit, row) for row in rows)


def _record(unit: Unit, row: Row) -> DoubtRecord:
    known = profiles(unit)
    state = _state(row)
    spoken = tuple(
        Spoken(one[0], _name(known, one[0]), *one[1:])
        for one in unit.all(
            "select person, how, at, via, reason from word where tenant = :tenant and doubt = :doubt order by n",
            doubt=row[0],
        )
    )
    lineage = {*row[16], *(one for one in row[13:16] if one)}
    action = action_from(bytes(row[7]))
    doubt = Doubt(
        id=row[0], run=row[1], promise=row[2], attempt=row[3], reversible=can_be_taken_back(action), groups=_groups(unit, row[12]),
        lineage=dict.fromkeys(lineage, ""), is_open=state == "open", canceling=False,
    )  # fmt: skip
    wanting = {
        one.person for one in spoken
        if one.how == RETRY and one.person in known and not unfit(doubt, as_person(known[one.person]))
    }  # fmt: skip
    return DoubtRecord(
        tenant=unit.tenant, doubt=row[0], run=row[1], promise=row[2], attempt=row[3], step=row[4], workflow=row[5], version=row[6],
        action=action, state=state, found=row[10], asked_at=row[11], words=spoken, given=len(wanting),
        needed=people_needed(doubt.reversible), groups=tuple(sorted(doubt.groups)),
        excluded=tuple(sorted(_name(known, one) for one in lineage)), resolved_by=_name(known, row[18]),
    )  # fmt: skip


def _state(row: Row) -> str:
    if row[8] == "unknown" and row[9] == row[3]:
        return "open"
    if row[17] == "ok":
        return "happened"
    if row[17] != "unknown":
        return "did_not"
    return "retried" if row[9] > row[3] or row[8] != "canceled" else "canceled"


def _groups(unit: Unit, approval: str) -> frozenset[str]:
    return approvals.load(unit, approval).asked.groups if approval else frozenset()


def _name(known: Mapping[str, Profile], person: str) -> str:
    found = known.get(person)
    return found.name if found is not None else person
