"""Reads what a person in Slack asks to see, as far as they may: their desk, one request, one run."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from engine.gate import approval as gate
from engine.gate.card import CardRecord
from governance.commands.authority import Actor, allowed
from governance.slack.records import Records
from governance.store import approvals, home, people, views
from governance.store.doubts import DoubtRecord
from governance.store.home import Desk
from governance.store.tasks import TaskRecord
from governance.store.unit import Database

steps_max = 15


@dataclass(frozen=True, slots=True)
class Asked:
    """One request with what it means for whoever looks: why they cannot give a key, or nothing."""

    record: CardRecord
    yours: str


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run as a few lines say it."""

    run: str
    workflow: str
    version: str
    state: str
    started_by: str
    steps: tuple[tuple[str, str, str], ...]  # step, state, why
    more: int
    console_url: str


@dataclass(frozen=True, slots=True)
class Looks:
    """The readings behind the Home tab and the slash command."""

    database: Database
    records: Records

    def desk(self, tenant: str, ref: str) -> tuple[str, Desk] | None:
        """The person's name and what they have before them; None when the account is linked to nobody."""
        with self.database.unit(tenant, write=False) as unit:
            me = people.by_identity(unit, "slack", ref)
            return None if me is None else (me.name, home.desk(unit, me))

    def asked(self, tenant: str, ref: str, name: str) -> Asked | TaskRecord | DoubtRecord:
        """What people call `AP-1a2b3c`; refused to whoever may not read."""
        with self.database.unit(tenant, write=False) as unit:
            me = allowed(unit, Actor("slack", ref), "read")
            found = home.named(unit, name)
            if not found.startswith("ap_"):
                recorded = None
            else:
                recorded = approvals.load(unit, found)
                crowd = {one: people.as_person(p) for one, p in people.profiles(unit).items()}
                yours = _yours(recorded, crowd, people.as_person(me), unit.now())
        if recorded is None:
            shown = self.records.of(tenant, found)
            assert not isinstance(shown, CardRecord)
            return shown
        return Asked(self.records.approval(tenant, found), yours)

    def run(self, tenant: str, ref: str, name: str) -> RunLine:
        """How far a run is; refused to whoever may not read."""
        with self.database.unit(tenant, write=False) as unit:
            allowed(unit, Actor("slack", ref), "read")
            found = views.run(unit, home.run_named(unit, name))
            steps = views.steps(unit, found.run)
            known = people.profiles(unit)
        by = known[found.started_by].name if found.started_by in known else found.started_by
        return RunLine(
            run=found.run, workflow=found.workflow, version=found.version, state=found.state, started_by=by,
            steps=tuple((step.step, step.state, step.last_error) for step in steps[:steps_max]), more=max(0, len(steps) - steps_max),
            console_url=f"{self.records.base}/runs/{found.run}",
        )  # fmt: skip


def _yours(found: approvals.Recorded, crowd: dict[str, gate.Person], me: gate.Person, now: datetime.datetime) -> str:
    """What the choke point would answer; only shown, decided there."""
    try:
        gate.vote(
            found.asked, found.votes, crowd, me, "key", found.asked.action_digest.hex()[:16], now, "a reason", signed_in=True
        )  # fmt: skip
    except gate.VoteRefused as refused:
        return refused.sentence
    return ""
