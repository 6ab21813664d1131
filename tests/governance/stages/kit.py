"""One-step workflows, and what is recorded of a step: its attempts, its receipts and what the journal says of both."""

from __future__ import annotations

import datetime

from engine.journal.events import InvokeCompleted, InvokeRetrying, InvokeStarted, decode_row
from governance.store import journals
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

HEAD = """
name: {name}
version: "1"
title: One step
description: One step.
trigger: {{kind: manual}}
inputs: {{type: object, additionalProperties: false, properties: {{word: {{type: string}}}}}}
connectors: [servicenow]
effects: [servicenow.update, servicenow.lookup]
risk_ceiling: low
steps:
  - {{id: only, kind: action, connector: servicenow, operation: {operation}, target: "{target}", result: seen{more}}}
  - {{id: done, kind: complete, result: {{done: "yes"}}}}
"""
WRITE = ', risk: low, fields: {urgency: "1"}'


def one_step(name: str, more: str = "", *, operation: str = "update", target: str = INCIDENT) -> str:
    """A workflow that sets the urgency to 1, or looks."""
    written = WRITE if operation == "update" else ""
    return HEAD.format(name=name, operation=operation, target=target, more=written + more)


def begin(world: World, text: str, ref: str = "") -> str:
    """Publish it and start a run of it."""
    return world.start(world.apply(text), value={}, ref=ref)


def receipts(world: World, run: str) -> list[tuple[int, int, str]]:
    """(attempt, n, status) in the order they were written."""
    rows = world.rows(
        "select attempt, n, status from receipt where tenant = :tenant and run = :run order by attempt, n", run=run
    )
    return [(row["attempt"], row["n"], row["status"]) for row in rows]


def attempts(world: World, run: str) -> list[tuple[str, int]]:
    """What the journal says of the step: its starts, its retries and its end."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        rows = journals.rows(unit, run)
    found: list[tuple[str, int]] = []
    for entry in (entry for _, body, _ in rows for entry in decode_row(body)):
        match entry.event:
            case InvokeStarted(attempt=n):
                found.append(("Started", n))
            case InvokeRetrying(failed_attempt=n):
                found.append(("Retrying", n))
            case InvokeCompleted():
                found.append(("Completed", world.case(run).promises["0"].attempt))
    return found


def wait_seconds(world: World, run: str) -> float:
    """How long the step waits for its next try from now on, by the database clock."""
    (row,) = world.rows(
        "select extract(epoch from next_eligible_at - clock_timestamp())::float as left from promise where tenant = :tenant and run = :run",
        run=run,
    )
    return float(row["left"])


def now(world: World) -> datetime.datetime:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return unit.now()
