"""What a test does between two instructions of a worker: somebody else's deed, a lost answer, a lease that is about to run out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from engine.errors import OperatorError
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from governance.drive import Drive
from governance.stages.execute import Execute
from governance.store.unit import Database
from governance.worker import Worker
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

NOTES = """
name: {name}
version: "1"
title: Notes
description: Notes on an incident, each of them one effect that policy allows.
trigger: {{kind: manual}}
inputs: {{type: object, additionalProperties: false, properties: {{sys_id: {{type: string}}}}}}
connectors: [servicenow]
effects: [servicenow.update]
risk_ceiling: low
steps:
"""
NOTE = """
  - {{id: {step}, kind: action, connector: servicenow, operation: update, target: "${{input.sys_id}}", risk: low{more},
     fields: {{{fields}}}}}
"""


def notes(name: str, *steps: str, more: str = "") -> str:
    """A workflow that appends these words one after the other; a step may also give its fields itself."""
    fields = (f'work_notes: "{step}"' if ":" not in step else step for step in steps)
    return NOTES.format(name=name) + "".join(
        NOTE.format(step=f"step-{n}", more=more, fields=one) for n, one in enumerate(fields)
    )


def begin(world: World, text: str, ref: str = "") -> str:
    """Publish it and start a run of it."""
    return world.start(world.apply(text), value={"sys_id": INCIDENT}, ref=ref)


def another(world: World, name: str = "other", *, lease_seconds: float = 30) -> Worker:
    """A second worker process as far as the database can tell; it seals where the first one does."""
    made = Worker(world.parts.database, world.parts.worker._tools.hands, name=name, lease_seconds=lease_seconds)
    if "_seals" in vars(world.parts.worker):
        made._seals = world.parts.worker._seals  # type: ignore[method-assign]
    return made


def work(world: World, run: str) -> list[dict[str, Any]]:
    """The work items of a run and how long each is still held."""
    return world.rows(
        "select item, stage, state, owner, epoch, faults, extract(epoch from lease_until - clock_timestamp())::float as held, "
        "extract(epoch from eligible_at - clock_timestamp())::float as wait from work where tenant = :tenant and run = :run",
        run=run,
    )


def age_leases(world: World, left_seconds: float) -> None:
    """As if the time of every lease were nearly over."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update work set lease_until = clock_timestamp() + make_interval(secs => :left) where tenant = :tenant and state = 'leased'",
            left=left_seconds,
        )


def beat_once(worker: Worker) -> None:
    """One beat of the heart, at once."""
    rounds = iter((False, True))

    class Over:
        def wait(self, seconds: float) -> bool:
            return next(rounds)

    over, worker._over = worker._over, Over()  # type: ignore[assignment]
    worker._beats()
    worker._over = over


def before_commit(
    monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object], *, when: Callable[[Any], bool] = lambda drive: True
) -> list[Any]:
    """Do this once, right before the first commit that is meant; the list says whether it came to that."""
    commit, done = Drive.commit, []

    def committed(drive: Drive) -> None:
        if not done and when(drive):
            done.append(drive)
            deed()
        commit(drive)

    monkeypatch.setattr(Drive, "commit", committed)
    return done


def intends(drive: Any) -> bool:
    """Whether this commit writes an intent."""
    return drive.case.intent_seen is not None


def during_call(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object], *, sent: bool = True) -> list[Permit]:
    """Do this once right after (or, not `sent`, before) the one call of an effect; the list holds the permits of every call."""
    perform, calls = Execute.perform, []

    def performed(execute: Execute, granted: Permit) -> Outcome:
        calls.append(granted)
        if not sent and len(calls) == 1:
            deed()
        outcome = perform(execute, granted)
        if sent and len(calls) == 1:
            deed()
        return outcome

    monkeypatch.setattr(Execute, "perform", performed)
    return calls


def die() -> None:
    """The process is gone: nothing of ours runs any more."""
    raise KeyboardInterrupt


def killed(monkeypatch: pytest.MonkeyPatch, world: World, *, sent: bool) -> None:
    """Drain with a worker that is killed right before or right after its first call, and let its lease run out."""
    with monkeypatch.context() as patch:
        during_call(patch, die, sent=sent)
        with pytest.raises(KeyboardInterrupt):
            world.drain()
    world.expire_leases()


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, *, when: Callable[[Any], bool]) -> list[Any]:
    """The database commits what is meant and the connection breaks before it has said so."""
    commit, unit, lost = Drive.commit, Database.unit, []

    @contextmanager
    def broken(database: Database, tenant: str, **how: Any) -> Any:
        with unit(database, tenant, **how) as inner:
            yield inner
        raise OperatorError("the database does not answer: the connection is lost", code="database")

    def committed(drive: Drive) -> None:
        if lost or not when(drive):
            commit(drive)
            return
        lost.append(drive)
        with monkeypatch.context() as patch:
            patch.setattr(Database, "unit", broken)
            commit(drive)

    monkeypatch.setattr(Drive, "commit", committed)
    return lost
