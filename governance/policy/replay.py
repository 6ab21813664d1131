"""Replay: every recorded question of a tenant, put again to the policy in force and to a draft, by the code that enforces."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate import reducer
from engine.gate.question import read_input
from engine.gate.replay import Past, Tally
from engine.gate.verdict import Answer, PolicyFault, read_findings
from governance import clock
from governance.policy.bundle import Bundle
from governance.policy.embedded import Embedded, batch_max
from governance.store import drafts
from governance.store.drafts import Decision, Position
from governance.store.unit import Database

deadline_seconds = 5.0  # of a batch; nobody's run waits for it
page = batch_max * 8  # decisions between two stored positions


@dataclass(frozen=True, slots=True)
class Job:
    """What is replayed: one edit of a draft against one revision in force, over a time."""

    tenant: str
    draft: str
    n: int
    base: Bundle
    candidate: Bundle
    days: int | None = None  # only what was decided in so many days before it began


def size(database: Database, job: Job) -> int:
    """About how many decisions there are to replay."""
    with database.unit(job.tenant, write=False, statement_seconds=30) as unit:
        now = unit.now()
        return drafts.count_decisions(unit, _since(job, now), now)


def _since(job: Job, now: datetime.datetime) -> datetime.datetime | None:
    return None if job.days is None else now - datetime.timedelta(days=job.days)


def run(
    database: Database,
    job: Job,
    *,
    told: Callable[[int], None] = lambda steps: None,
    again: bool = False,
    seconds: float | None = None,
) -> Position:
    """Replay until everything that was recorded before now is counted; an interrupted replay goes on where it was.

    With `seconds` it may come back before it is done. `told` hears after every page how many it had. The position is
    stored with the tally in the same commit.
    """
    at = _position(database, job, again)
    told(at.seen)
    if at.done:
        return at
    with engines(job.base, job.candidate) as (base, candidate):
        late = clock.monotonic() + seconds if seconds is not None else math.inf
        while not at.done and clock.monotonic() < late:
            with database.unit(job.tenant, write=False, statement_seconds=30) as unit:
                after = (at.run, at.promise, at.verdict_n)
                found = drafts.decisions(unit, at.since, at.until, after, page)
            weigh(found, base, candidate, at.tally)
            at.seen += len(found)
            at.done = len(found) < page
            if found:
                at.run, at.promise, at.verdict_n = found[-1].run, found[-1].promise, found[-1].n
            with database.unit(job.tenant) as unit:
                drafts.keep_position(unit, at)
            told(len(found))
    return at


def _position(database: Database, job: Job, again: bool) -> Position:
    with database.unit(job.tenant, write=False, statement_seconds=30) as unit:
        at = None if again else drafts.position(unit, job.draft, job.n, job.base.revision)
        if at is not None and at.revision == job.candidate.revision and at.days == job.days:
            return at
        now = unit.now()
        return Position(
            draft=job.draft, n=job.n, base_revision=job.base.revision, revision=job.candidate.revision, days=job.days,
            since=_since(job, now), until=now, run="", promise="", verdict_n=0, seen=0, done=False, tally=Tally(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A recorded question that can be asked again."""

    input_bytes: bytes
    request_id: str
    action_sha256: str
    subject: Mapping[str, Any]


def asked_again(input_bytes: bytes) -> Asked:
    """The question that these stored bytes are; CallerError when they are none of today's."""
    document = read_input(input_bytes)
    return Asked(input_bytes, document["request"]["id"], document["action"]["sha256"], reducer.subject_of(document))


class Judging:
    """One policy that recorded questions are put to; the embedded engine, whatever the installation enforces with."""

    def __init__(self, bundle: Bundle) -> None:
        self.revision = bundle.revision
        self._engine = Embedded(deadline_seconds=deadline_seconds)
        self._engine.load(bundle)

    def rulings(self, asked: Sequence[Asked]) -> Iterator[dict[str, Any]]:
        """What the gate makes of each answer: the same reader, the same checks of the source, the same reduction."""
        for start in range(0, len(asked), batch_max):
            batch = asked[start : start + batch_max]
            answers = self._engine.evaluate_many([one.input_bytes for one in batch])
            for one, answer in zip(batch, answers, strict=True):
                yield ruling_of(one, answer, self.revision)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def ruling_of(asked: Asked, answer: Answer | PolicyFault, revision: str) -> dict[str, Any]:
    """The ruling over one answer; every doubt is a denial of kind fault, as it is for a real action."""
    try:
        if isinstance(answer, PolicyFault):
            raise answer
        findings = read_findings(answer.findings)
        differs = reducer.source_fault(findings, asked.request_id, asked.action_sha256, revision)
        if differs:
            raise PolicyFault(differs, "the answer is not to this question")
        return reducer.reduce(findings, asked.subject)
    except PolicyFault as fault:
        return reducer.fault_ruling(fault.code, fault.reason)


@contextmanager
def engines(base: Bundle, candidate: Bundle) -> Iterator[tuple[Judging, Judging]]:
    """Both policies, ended together."""
    one = Judging(base)
    try:
        other = Judging(candidate)
        try:
            yield one, other
        finally:
            other.close()
    finally:
        one.close()


def weigh(found: Sequence[Decision], base: Judging, candidate: Judging, tally: Tally) -> None:
    """Count these decisions: what cannot be asked again is reported, everything else is asked under both policies."""
    usable: list[Decision] = []
    questions: list[Asked] = []
    for one in found:
        if not one.input_bytes:
            tally.lack("the question could not be put at the time")
            continue
        try:
            questions.append(asked_again(one.input_bytes))
        except CallerError as error:
            tally.lack(f"the recorded question is not one of today's: {error.reason}"[:200])
        else:
            usable.append(one)
    for one, old, new in zip(usable, base.rulings(questions), candidate.rulings(questions), strict=True):
        if one.revision == base.revision and _differs(one, old):
            tally.differs += 1
        tally.add(Past(one.run, one.promise, one.n, one.purpose == "enforce", one.decided), old, new)


def _differs(one: Decision, old: Mapping[str, Any]) -> bool:
    """Whether the policy says something else now than the record; a fault of that time, or of people, says nothing."""
    return one.effect != old["effect"] and bool(read_json(one.body).get("deny_kind") != "fault")


@dataclass(frozen=True, slots=True)
class Burden:
    """What a draft would ask of people: keys more or less, and minutes at the pace that keys were given here."""

    keys: int
    minutes: float | None  # nobody knows before a key was given here
    pace_seconds: float
    measured: int


def burden(database: Database, tenant: str, tally: Tally) -> Burden:
    """The keys that a draft would have cost more or less, in the approvers' own time."""
    with database.unit(tenant, write=False, statement_seconds=30) as unit:
        measured, pace = drafts.key_seconds(unit)
    keys = tally.keys_after - tally.keys_before
    return Burden(keys, keys * pace / 60 if measured else None, pace, measured)
