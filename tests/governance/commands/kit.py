"""Small workflows, people of any level, and everything of a tenant that a command could have changed."""

from __future__ import annotations

from governance import clock
from tests.kit.world import World

LEVELS = (1, 2, 3, 4, 5, 6)
SMALL = """
name: {name}
version: "{version}"
title: Small
description: {description}
trigger: {{kind: manual}}
inputs:
  type: object
  required: [number]
  additionalProperties: false
  properties:
    number: {{type: string, pattern: "^INC[0-9]+$"}}
    urgent: {{type: boolean}}
connectors: []
effects: []
risk_ceiling: low
steps:
  - {{id: shape, kind: assign, values: {{seen: "${{input.number}}"}}}}
  - {{id: done, kind: complete, result: {{description: "{description}"}}}}
"""
CHANGING = (
    "run person identity grp membership template policy source connection installation entry_pending entry chain work payload "
    "approval vote due outbox journal action verdict intent receipt"
).split()


def small(name: str = "small", version: str = "1", description: str = "A small one.") -> bytes:
    return SMALL.format(name=name, version=version, description=description).encode()


def staff(
    world: World, name: str, level: int, *, read_only: bool = False, groups: tuple[str, ...] = ("oncall",)
) -> str:
    """Somebody new with a token and a Slack id."""
    person = world.parts.admit.person(world.tenant, None, name=name, level=level, read_only=read_only)
    world.who[name] = person
    world.parts.admit.token_known(world.tenant, person, world.token(name), "test")
    for group in groups:
        world.parts.admit.join(world.tenant, None, group, person)
    return person


def begin(world: World) -> str:
    """A run that has no effects, queued."""
    return world.start("small", value={"number": "INC1"}, ref=unique())


def unique(prefix: str = "x") -> str:
    return f"{prefix}{clock.random_hex(5)}"


def stored(world: World) -> dict[str, object]:
    """How many rows the tenant has where a command writes, and where its templates and runs stand."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        counts = {table: unit.run(f"select count(*) from {table}").scalar_one() for table in CHANGING}
        states = unit.all(
            "select name, version, state from template union all select run, '', state || cancel_requested::text from run order by 1, 2"
        )
        people = unit.all("select person, active, level from person order by 1")
    return {**counts, "states": [tuple(row) for row in states], "people": [tuple(row) for row in people]}
