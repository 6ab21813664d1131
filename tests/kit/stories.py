"""Runs from start to seal as one may go on with them after any crash: every deed of the people in them may be done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from engine.errors import Refused
from engine.ledger.trust import read_trust
from engine.ledger.verify import verify
from governance.evidence.fsck import of_run
from governance.evidence.sequence import trust_text
from governance.stages.tick import Tick
from governance.store import approvals, cases, tasks
from governance.store.case import Case, Promise
from tests.kit.seams import notes
from tests.kit.servicenow import INCIDENT
from tests.kit.world import INPUT, SAMPLE, World

HEAD = "from twokeys import Failed, InvokeFailed, workflow\n\n\n@workflow\n"
# A repeated change of other fields would leave no trace in the stand-in; a note always does.
TWO_PEOPLE = (
    SAMPLE.read_text()
    .replace("name: incident-triage", "name: two-people")
    .replace('      state: "2"\n', '      state: "2"\n      work_notes: Raised.\n')
)
# Looking is no writing, and passes.
DENIED = (
    notes("denied", "never")
    .replace("effects: [", "effects: [servicenow.lookup, ")
    .replace(
        "steps:\n",
        """steps:
  - {id: look, kind: action, connector: servicenow, operation: lookup, target: "${input.sys_id}"}""",
    )
)
CHILD = """async def note_it(ctx, input):
    await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": input["note"]}})
    return input["note"]
"""
PARENT = """async def both(ctx, input):
    calls = await ctx.join_set()
    for n in range(2):
        await calls.submit_child("note-it", {"sys_id": input["sys_id"], "note": f"child {n}"})
    await calls.submit_child("nobody-published-this", {})
    return [each.value if each.ok else each.error_class for each in await calls.all()]
"""
TASK = """async def ask_somebody(ctx, input):
    form = {"title": "What happened?", "groups": ["oncall"], "fields": [{"name": "cause", "label": "Cause"}]}
    said = await ctx.task(form, sign_off=["incident-managers"])
    await ctx.invoke("servicenow.update", {"target": input["sys_id"], "fields": {"work_notes": said["cause"]}})
    return said
"""

# Two changes that are taken back, newest first, because the third finds no record.
UNDONE = """
name: undone
version: "1"
title: Undone
description: Two changes and a third that fails.
trigger: {kind: manual}
inputs: {type: object, additionalProperties: false, properties: {sys_id: {type: string}}}
connectors: [servicenow]
effects: [servicenow.update]
risk_ceiling: low
steps:
  - {id: one, kind: action, connector: servicenow, operation: update, target: "${input.sys_id}", risk: low, fields: {urgency: "1"}}
  - {id: two, kind: action, connector: servicenow, operation: update, target: "${input.sys_id}", risk: low, fields: {impact: "1"}}
  - {id: bad, kind: action, connector: servicenow, operation: update, target: "00000000000000000000000000000000", risk: low,
     fields: {state: "2"}, on_failure: reverse}
"""


@dataclass(frozen=True)
class Story:
    """A workflow, how its run ends when nothing disturbs it, and what the outside does on the way."""

    name: str
    files: dict[str, str]
    workflow: str
    ends: str
    value: dict[str, Any] = field(default_factory=lambda: {"sys_id": INCIDENT})
    faults: tuple[dict[str, Any], ...] = ()
    cancelled: bool = False  # by a person, as soon as people are asked
    frozen: bool = False  # nothing may be written: policy denies it
    spoiled: bool = False  # the account at the other system is wrong until an operator mends it
    proof: str = "run.closed"  # an entry without which the story has not happened
    again: bool = False  # what is unknown and did not happen is tried again at people's word, instead of called undone

    def publish(self, world: World) -> None:
        for name, text in self.files.items():
            world.parts.publish.apply(world.tenant, world.actor("rita"), text.encode(), name)
        if self.frozen:
            with world.parts.database.unit(world.tenant) as unit:
                unit.run("update tenant set freeze_id = 'fr1' where tenant = :tenant")


def _of_notes(name: str, *texts: str, ends: str = "succeeded", **more: Any) -> Story:
    return Story(name, {"workflow.yaml": notes(name, *texts)}, name, ends, **more)


STORIES = {
    story.name: story
    for story in (
        _of_notes("allowed", "first", "second", "third"),
        Story("two-people", {"workflow.yaml": TWO_PEOPLE}, "two-people", "succeeded", INPUT),
        Story("denied", {"workflow.yaml": DENIED}, "denied", "failed_terminal", frozen=True),
        _of_notes("retried", "first", "second", faults=({"fault": "too_many_requests", "method": "PATCH", "seconds": 0},)),
        _of_notes("unknown", "first", "second", faults=({"fault": "drop_connection"},)),
        _of_notes("tried-again", "first", "second", faults=({"fault": "error_500", "method": "PATCH"},), again=True, proof="word.given"),
        _of_notes("mended", "first", "second", spoiled=True, proof="operator.answered"),
        Story("undone", {"workflow.yaml": UNDONE}, "undone", "failed_terminal", proof="reversal.proposed"),
        Story("cancelled", {"workflow.yaml": TWO_PEOPLE}, "two-people", "canceled", INPUT, cancelled=True),
        Story("family", {"note_it.py": HEAD + CHILD, "both.py": HEAD + PARENT}, "both", "succeeded"),
        Story("task", {"task.py": HEAD + TASK}, "ask-somebody", "succeeded"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class End:
    """What a story came to, as far as it must be the same whatever happened on the way."""

    states: dict[str, str]  # of its runs, by workflow and operation of the parent
    effects: Counter[tuple[str, ...]]


def play(world: World, story: Story, ref: str, *, quietly: Callable[[], Any] = nullcontext) -> str:
    """Start it, or go on from wherever it stands, until everything of it is over and sealed. The run.

    `quietly` surrounds what only a test does, so that nobody dies in the middle of it.
    """
    run = world.start(story.workflow, value=story.value, ref=ref)
    tick = Tick(world.parts.database)
    for _ in range(80):
        world.drain()
        while world.parts.log.step():
            pass
        world.parts.publisher.step()
        while world.parts.delivery.step():
            pass
        tick.step()
        with quietly():
            family = cases_of(world, run)
            if over(world, family):
                return run
        for case in family:
            people_act(world, case, story)
        with quietly():
            hurry(world)
    raise AssertionError(
        f"{story.name} does not end: {[(case.state, world.steps(case.origin.run)) for case in family]}"
    )


def cases_of(world: World, run: str) -> list[Case]:
    """A run and everything that it started."""
    rows = world.rows("select run from run where tenant = :tenant and root = :run order by depth, run", run=run)
    return [world.case(row["run"]) for row in rows]


def over(world: World, family: list[Case]) -> bool:
    sealed = {row["run"] for row in world.rows("select run from bundle where tenant = :tenant and state = 'sealed'")}
    left = world.rows("select 1 from outbox where tenant = :tenant and state = 'ready'")
    return not left and all(case.ended and case.origin.run in sealed for case in family)


def hurry(world: World) -> None:
    """Time passes: whatever waits for a later moment is due now."""
    world.hurry()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update outbox_due set eligible_at = clock_timestamp() where tenant = :tenant")


def spoil(world: World) -> None:
    """From now on the other system refuses our account."""
    sn = world.servicenow
    world.parts.admit.connection(world.tenant, "servicenow", "dev1", sn.base_url, sn.user, "wrong")


def mend(world: World) -> None:
    sn = world.servicenow
    world.parts.admit.connection(world.tenant, "servicenow", "dev1", sn.base_url, sn.user, sn.password)
    world.parts.reach.forget()


def people_act(world: World, case: Case, story: Story | None = None, *, cause: str = "a disk") -> None:
    """Whatever a run waits for from people, they do; done before, it changes nothing."""
    run = case.origin.run
    for promise in case.promises.values():
        if promise.state == "unknown":
            did_not = "retry" if story and story.again else "did_not"
            how = "happened" if happened(world, case, promise) else did_not
            for name in ("cleo", "bo"):  # a word that needs no second one makes that one late
                with suppress(Refused):
                    world.parts.resolve.resolve(world.tenant, world.actor(name), run, promise.promise, how, "I looked")
    if story and story.cancelled and case.state == "waiting_approval" and not case.cancel_requested:
        world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
        return
    with world.parts.database.unit(world.tenant, write=False) as unit:
        asked = [approvals.load(unit, name) for name in approvals.open_of_run(unit, run)]
        forms = [one for one in tasks.of_run(unit, run) if one.is_open]
    for found in forms:
        if found.is_operators:
            mend(world)
            world.fill(found, "olga", {"what_now": "Go on"})
        else:
            world.fill(found, "ana", {"cause": cause})
    for found in asked:
        for name in ("ana", "bo", "cleo"):
            if world.press(found, name).code == "approved":
                break


def happened(world: World, case: Case, promise: Promise) -> bool:
    """What somebody who looks at the other system sees."""
    with world.parts.database.unit(world.tenant, write=False) as unit:
        action = cases.action(unit, case.origin.run, promise.promise, promise.rev)
    if action.connector == "slack":
        return action.fields[0].value in world.slack.texts("chat.postMessage")
    return all(one.value in world.writes(one.name) for one in action.fields)


def outcome(world: World, run: str) -> End:
    """What the runs came to and every trace that they left outside."""
    family = cases_of(world, run)
    changes = world.servicenow.call("GET", "/_control/changes")["result"]
    effects = Counter((one["documentkey"], one["fieldname"], one["newvalue"]) for one in changes)
    effects.update(("slack", text) for text in world.slack.texts("chat.postMessage") if text.startswith("INC"))
    return End({f"{c.origin.workflow}/{c.origin.parent_promise}": c.state for c in family}, effects)


def check_record(world: World, run: str) -> None:
    """One success per key, one close per run, nothing left to do, each run sound, and every bundle verifies without us."""
    rows = world.rows("select key, count(*) as n from receipt where tenant = :tenant and status = 'ok' group by key")
    assert [row for row in rows if row["n"] != 1] == []
    assert world.rows("select run, item, stage, state from work where tenant = :tenant") == []
    assert world.rows("select i.key from intent i where tenant = :tenant and not exists (select 1 from receipt r "
                      "where r.tenant = i.tenant and r.key = i.key)") == []  # fmt: skip
    trust = read_trust(trust_text(world.parts.database, "test", world.tenant).encode())
    for case in cases_of(world, run):
        assert list(fsck_of(world, case.origin.run)) == []
        assert world.entries(case.origin.run).count("run.closed") == 1
        sealed = world.row(
            "select object_key, version_id from bundle where tenant = :tenant and run = :run and state = 'sealed'",
            run=case.origin.run,
        )
        assert sealed is not None
        found = verify(world.parts.vault.get(sealed["object_key"], sealed["version_id"]), trust)
        assert found.outcome == 0, found.findings


def fsck_of(world: World, run: str) -> Iterator[Any]:
    """What fsck finds in one run, in a moment; the whole tenant takes longer with every run of it."""

    def verify(key: str, data: bytes, signature: bytes) -> bool:
        return world.parts.secrets.verify(world.tenant, key, data, signature)

    with world.parts.database.unit(world.tenant, write=False) as unit:
        yield from of_run(unit, run, verify)


def asked_people(world: World, run: str) -> int:
    """How often nobody could know what happened, and somebody said it."""
    return sum(world.entries(case.origin.run).count("effect.resolved") for case in cases_of(world, run))
