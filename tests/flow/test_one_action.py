"""An agent's action without a workflow goes through the same gate: judged, asked, done at most once, receipted, and provable."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CallerError, Conflict, Refused
from engine.program.one_step import Proposal, one_step
from governance.stages.tick import Tick
from governance.store import proposals
from governance.store.proposals import ActionView
from tests.flow.test_children import verified
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World, settle


@pytest.fixture
def rival(world: World) -> Iterator[World]:
    """Another tenant of the same installation."""
    made = settle(world.parts, world.slack, world.servicenow)
    yield made
    made.forget()


READ = Proposal("servicenow", "lookup", INCIDENT)
NOTE = Proposal("servicenow", "update", INCIDENT, {"work_notes": "the agent was here"})
CLOSE = Proposal(
    "servicenow", "close", INCIDENT, {"close_code": "Solved (Permanently)", "close_notes": "done", "state": "7"}
)


def propose(world: World, proposal: Proposal, key: str = "k-1", *, by: str = "olga", behalf: str = "") -> str:
    return world.parts.propose.propose(world.tenant, world.actor(by), proposal, key, behalf).run


def seen(world: World, action: str) -> ActionView:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return proposals.load(unit, action)


def test_what_policy_allows_is_done_at_once_and_its_result_comes_back(world: World) -> None:
    action = propose(world, READ)
    assert (seen(world, action).state, seen(world, action).ended) == ("queued", False)
    world.drain()
    found = seen(world, action)
    assert (found.state, found.ended, found.effect, found.approval) == ("done", True, "allow", "")
    assert found.result["number"] == "INC0010001"
    assert found.tool == "servicenow.lookup"


def test_what_people_must_see_waits_for_their_keys_and_is_done_once(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    action = propose(world, CLOSE)
    world.until(action, "waiting_approval")
    found = seen(world, action)
    assert (found.state, found.effect, found.keys_needed, found.keys_given) == (
        "waiting_approval",
        "needs_approval",
        2,
        0,
    )
    world.approve(action, "bo")
    assert seen(world, action).keys_given == 1
    assert propose(world, CLOSE) == action
    world.approve(action, "cleo")
    world.until(action, "succeeded")
    assert propose(world, CLOSE) == action
    assert len(world.writes("close_code")) == 1
    verified(world, action, tmp_path / "auditor")
    assert len(seen(world, action).evidence_sha256) == 64


def test_a_denial_says_why(world: World) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")
    action = propose(world, NOTE)
    world.until(action, "failed_terminal")
    found = seen(world, action)
    assert (found.state, found.ended, found.effect) == ("denied", True, "deny")
    assert "kill_switch" in dict(found.reasons)
    assert world.writes("work_notes") == []


@pytest.mark.parametrize(("by", "state"), [("reject", "rejected"), ("expire", "expired"), ("cancel", "canceled")])
def test_every_end_has_its_word(world: World, by: str, state: str) -> None:
    action = propose(world, CLOSE)
    world.until(action, "waiting_approval")
    if by == "reject":
        assert world.press(world.waiting(action), "bo", kind="reject", reason="no").ok
    elif by == "cancel":
        world.parts.cancel.cancel(world.tenant, world.actor("olga"), action, "changed my mind")
    else:
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update approval set expires_at = clock_timestamp() where tenant = :tenant")
            unit.run("update due set at = clock_timestamp() where tenant = :tenant")
        Tick(world.parts.database).step()
    world.drain()
    assert (seen(world, action).state, seen(world, action).ended) == (state, True)


def test_twenty_requests_with_one_key_are_one_action(world: World) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = set(pool.map(lambda _: propose(world, NOTE), range(20)))
    assert len(found) == 1
    world.until(found.pop(), "succeeded")
    assert len(world.writes("work_notes")) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"proposal": replace(NOTE, fields={"work_notes": "something else"})}, {"proposal": replace(NOTE, operation="lookup", fields={})},
        {"proposal": replace(NOTE, risk="high")}, {"by": "ana"}, {"behalf": "Ana"},
    ],
)  # fmt: skip
def test_a_key_that_was_used_for_another_action_is_refused(world: World, other: dict[str, Any]) -> None:
    """The answer to somebody else's action would be a lie."""
    propose(world, NOTE)
    with pytest.raises(Conflict, match="another action") as caught:
        propose(
            world,
            other.get("proposal", NOTE),
            by=other.get("by", "olga"),
            behalf=world.who["ana"] if "behalf" in other else "",
        )
    assert caught.value.code == "key_used"
    assert len(world.rows("select run from run where tenant = :tenant")) == 1


def test_the_same_key_in_another_tenant_is_another_action(world: World, rival: World) -> None:
    assert propose(world, NOTE) != propose(rival, NOTE)


# --- whose action it is -----------------------------------------------------------------------------------------------


def test_a_service_for_which_nobody_answers_starts_nothing(world: World) -> None:
    with pytest.raises(Refused, match="nobody answers") as caught:
        propose(world, NOTE, by="robot")
    assert "twokeys person own" in caught.value.next_step
    with pytest.raises(Refused, match="nobody answers"):
        world.start(by="robot")
    assert world.rows("select run from run where tenant = :tenant") == []


@pytest.mark.parametrize(
    ("by", "behalf", "excluded"),
    [("bo", "", "bo"), ("olga", "bo", "bo"), ("robot", "", "bo"), ("robot", "cleo", "cleo")],
)
def test_nobody_of_the_lineage_holds_a_key(world: World, by: str, behalf: str, excluded: str) -> None:
    """P2: requester, on-behalf-of and the agent's owner."""
    world.parts.admit.own(world.tenant, None, world.who["robot"], world.who["bo"])
    action = propose(world, CLOSE, by=by, behalf=world.who[behalf] if behalf else "")
    world.until(action, "waiting_approval")
    answer = world.press(world.waiting(action), excluded)
    assert not answer.ok
    assert seen(world, action).keys_given == 0


@pytest.mark.parametrize(
    ("service", "owner", "code"),
    [("ana", "bo", "not_service"), ("robot", "robot", "not_human"), ("robot", "dan", "not_human")],
)
def test_only_an_active_person_answers_and_only_for_a_service(
    world: World, service: str, owner: str, code: str
) -> None:
    with pytest.raises(CallerError) as caught:
        world.parts.admit.own(world.tenant, None, world.who[service], world.who[owner])
    assert caught.value.code == code


@pytest.mark.parametrize("by", ["low", "aud", "dan"])
def test_a_level_that_may_not_start_proposes_nothing(world: World, by: str) -> None:
    with pytest.raises(Refused):
        propose(world, READ, by=by)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proposal", "field", "words"),
    [
        (replace(NOTE, connector="servicenoww"), "connector", "did you mean 'servicenow'?"),
        (replace(NOTE, operation="updat"), "operation", "did you mean 'update'?"),
        (replace(NOTE, fields={"work_note": "x"}), "fields.work_note", "did you mean 'work_notes'?"),
        (replace(NOTE, fields={"work_notes": "x" * 4_001}), "fields.work_notes", "at most 4000"),
        (replace(NOTE, target="no such id with spaces"), "target", "is not an id"),
        (replace(CLOSE, risk="low"), "risk", "at least high"),
        (replace(NOTE, risk="extreme"), "risk", "'extreme'"),
        (replace(NOTE, amount_minor=5), "currency", "needs its currency"),
        (replace(NOTE, currency="EUR"), "amount_minor", "needs an amount"),
        (Proposal("slack", "post", "C0APPROVALS"), "fields.text", "needs this field"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_operation_is_refused_by_the_fields_name(
    world: World, proposal: Proposal, field: str, words: str
) -> None:
    with pytest.raises(CallerError) as caught:
        propose(world, proposal)
    assert caught.value.field == field
    assert words in caught.value.reason
    assert world.rows("select 1 from run where tenant = :tenant") == []


def test_an_action_without_a_key_is_refused(world: World) -> None:
    with pytest.raises(CallerError) as caught:
        propose(world, NOTE, "")
    assert caught.value.field == "Idempotency-Key"


def test_a_value_is_never_an_expression(world: World) -> None:
    """What an agent was told to write stands there, also when it looks like a program."""
    text = "${run.id} ${1 + 1} {{x}} *anchor"
    action = propose(world, replace(NOTE, fields={"work_notes": text}))
    world.until(action, "succeeded")
    assert world.writes("work_notes") == [text]


def test_proposals_of_one_shape_share_a_definition_that_holds_none_of_their_values(world: World) -> None:
    catalog = world.parts.registry.catalog
    secret = replace(NOTE, fields={"work_notes": "hunter2"})
    assert one_step(NOTE, catalog).digest == one_step(secret, catalog).digest
    assert b"hunter2" not in one_step(secret, catalog).body
    assert one_step(NOTE, catalog).digest != one_step(replace(NOTE, risk="high"), catalog).digest


def test_no_author_takes_the_products_own_name(world: World) -> None:
    text = 'name: action\nversion: "1"\ntrigger: {kind: manual}\neffects: []\nsteps:\n  - {id: end, kind: complete}\n'
    with pytest.raises(CallerError) as caught:
        world.apply(text)
    assert caught.value.code == "name_taken"


def test_a_workflows_run_is_no_action(world: World) -> None:
    run = world.start()
    with pytest.raises(CallerError) as caught:
        seen(world, run)
    assert caught.value.code == "unknown_action"
