"""The workflows in docs/examples, as a new user meets them: valid, rehearsed without effects, and run to their ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.program.drawing import svg
from engine.program.normalize import normalize
from governance.connectors.shipped import declared
from governance.policy.bundle import shipped
from governance.policy.rehearsal import Rehearsal
from tests.flow.test_steps_of_every_kind import ended, lapse, turn
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ACCESS = {"sys_id": INCIDENT, "person": "Noor", "system": "billing", "hours": 2}
DEPLOY = {"sys_id": INCIDENT, "service": "checkout", "build": "1234"}
REFUND = {"sys_id": INCIDENT, "customer": "Kim", "reason": "broken on arrival"}
SYS = "b" * 32


def rehearse(name: str, value: dict[str, Any], **answers: Any) -> list[tuple[str, str, str]]:
    """(step, effect of the verdict, what then) of every operation."""
    definition = normalize((EXAMPLES / f"{name}.yaml").read_bytes(), name, declared().catalog)
    said = {step.replace("_", "-"): answer for step, answer in answers.items()}
    rows = Rehearsal(definition, declared().catalog, shipped({"example": {}}), value, said).walk()
    return [(row["step"], row["verdict"].partition(" because")[0], row["then"]) for row in rows]


TWO = "needs_approval (2 key(s) of incident-managers, oncall)"
ONE = "needs_approval (1 key(s) of oncall)"


def test_the_examples_are_rehearsed_without_anything_being_done() -> None:
    assert rehearse("access-request", ACCESS)[:2] == [("why", "", "succeeds"), ("grant", TWO, "succeeds")]
    assert rehearse("access-request", ACCESS, why={"error": "expired"})[-1][2].startswith("unanswered")
    ready = {"verdict": "It is ready", "evidence": "x"}
    deployed = rehearse("deploy-gate", DEPLOY, tested=ready, pipeline={"ok": True, "note": "n"})
    assert {step: verdict for step, verdict, _ in deployed}["open-gate"] == TWO
    assert rehearse("deploy-gate", DEPLOY, tested=ready, pipeline={"error": "timeout"})[-1][2].startswith("no_word")
    for cents, expected in ((4_999, "allow"), (50_000, ONE), (50_001, TWO)):
        assert rehearse("refund", {**REFUND, "cents": cents})[0][1] == expected
    assert rehearse("refund", {**REFUND, "cents": 500_001})[0][2].startswith("above_limit: 5000.01 EUR")
    night = rehearse(
        "nightly-deletion", {"records": [SYS, INCIDENT]}, window={"error": "timeout"}, retire={"error": "x"}
    )
    assert [step for step, _, _ in night] == ["announce", "window", "retire", "retire", ""]
    assert night[-1][2] == str({"failed": [SYS, INCIDENT], "retired": 0})


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_every_example_can_be_drawn(name: str) -> None:
    from xml.etree import ElementTree

    definition = normalize((EXAMPLES / f"{name}.yaml").read_bytes(), name, declared().catalog)
    drawn = ElementTree.fromstring(svg(definition))
    boxes = [each for each in drawn.iter() if each.tag.endswith("rect")]
    assert len(boxes) == len(definition.flat)


def apply(world: World, name: str, **changes: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    world.apply(text)


def test_access_is_granted_with_two_keys_and_taken_back_when_the_time_is_over(world: World) -> None:
    text = (EXAMPLES / "access-request.yaml").read_text(encoding="utf-8")
    world.apply(text.replace("input.hours * 3600", "input.hours * 0"))
    run = world.start("access-request", value=ACCESS)
    turn(world)
    assert world.fill(world.task(run), "low", {"needed": "yes", "reason": "month end"}).ok
    turn(world)
    assert world.case(run).state == "waiting_approval"
    assert world.press(world.waiting(run), "rita").ok is False, "whoever asked holds no key"
    world.approve(run, "ana", "bo")
    turn(world)
    assert ended(world, run) == ("succeeded", {"granted": True, "reason": "month end"})
    assert [text.split(" ")[0] for text in world.writes("work_notes")] == ["Noor", "Access"]


def test_access_that_is_not_needed_grants_nothing(world: World) -> None:
    apply(world, "access-request")
    run = world.start("access-request", value=ACCESS)
    turn(world)
    assert world.fill(world.task(run), "ana", {"needed": "no", "reason": "left"}).ok
    turn(world)
    assert ended(world, run) == ("succeeded", {"granted": False})
    assert world.writes("work_notes") == []


def test_a_deploy_waits_for_its_signature_its_keys_and_its_pipeline(world: World) -> None:
    apply(world, "deploy-gate")
    run = world.start("deploy-gate", value=DEPLOY)
    turn(world)
    assert world.fill(world.task(run), "low", {"verdict": "It is ready", "evidence": "run 77"}).ok
    turn(world)
    world.approve(run, "bo")
    turn(world)
    assert world.writes("work_notes") == [], "signed, and the gate is still shut"
    world.approve(run, "ana", "cleo")
    turn(world)
    assert world.writes("work_notes") == ["checkout 1234 may go to production. Tests: run 77"]
    world.parts.signal.send(world.tenant, world.actor("ana"), run, "deployed", {"ok": True, "note": "live"})
    turn(world)
    state, value = ended(world, run)
    assert (state, value["note"]) == ("succeeded", "live")
    assert world.row("select count(*) as n from promise where tenant = :tenant and run = :run", run=run) == {"n": 5}


def test_a_pipeline_that_says_nothing_fails_the_deploy(world: World) -> None:
    apply(world, "deploy-gate")
    run = world.start("deploy-gate", value=DEPLOY)
    turn(world)
    assert world.fill(world.task(run), "low", {"verdict": "It is not ready", "evidence": "red"}).ok
    turn(world)
    world.approve(run, "bo")
    turn(world)
    assert ended(world, run) == ("failed_terminal", ("not_ready", "Quality assurance: red"))


@pytest.mark.parametrize(("cents", "keys"), [(1_205, ()), (20_000, ("ana",)), (90_000, ("ana", "cleo"))])
def test_a_refund_takes_as_many_keys_as_its_amount(world: World, cents: int, keys: tuple[str, ...]) -> None:
    apply(world, "refund")
    run = world.start("refund", value={**REFUND, "cents": cents})
    turn(world)
    if keys:
        assert world.waiting(run).asked.keys == len(keys)
        world.approve(run, *keys)
        turn(world)
    text = f"{cents // 100}.{cents % 100:02d} EUR"
    assert ended(world, run) == ("succeeded", {"refunded": text})
    assert world.writes("work_notes") == [f"Refund {text}: broken on arrival"]


def test_a_refund_above_the_limit_proposes_nothing(world: World) -> None:
    apply(world, "refund")
    run = world.start("refund", value={**REFUND, "cents": 500_001})
    turn(world)
    assert ended(world, run)[1][0] == "above_limit"
    assert world.case(run).promises == {}


def test_a_night_goes_on_when_nobody_stops_it_and_notes_what_failed(world: World) -> None:
    apply(world, "nightly-deletion")
    run = world.start("nightly-deletion", value={"records": [INCIDENT, SYS]})
    turn(world)
    assert world.writes("state") == [], "the window is open"
    lapse(world)
    turn(world)
    assert ended(world, run) == ("succeeded", {"retired": 1, "failed": [SYS]})
    assert world.writes("state") == ["8"]


def test_a_night_that_is_stopped_retires_nothing(world: World) -> None:
    apply(world, "nightly-deletion")
    run = world.start("nightly-deletion", value={"records": [INCIDENT]})
    turn(world)
    world.parts.signal.send(world.tenant, world.actor("olga"), run, "stop", "legal hold")
    turn(world)
    assert ended(world, run)[1] == ("stopped", "Somebody stopped this night.")
    assert world.writes("state") == []
    assert json.dumps(world.entries(run)).count("signal.sent") == 1
