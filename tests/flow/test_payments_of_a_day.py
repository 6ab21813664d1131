"""A cap on what a day's payments come to holds over runs that race: each is judged on what all the others have begun."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engine.canonical import jcs, read_json
from engine.gate.action import Action
from engine.gate.verdict import Answer, Policy
from engine.program.one_step import Proposal
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

CAP = 500


class DayCap:
    """The tenant's policy with a cap on the day for whatever has an amount, as guard.rego has it for payments."""

    def __init__(self, policy: Policy, asked: list[int]) -> None:
        self._policy, self._asked = policy, asked

    def evaluate(self, input_bytes: bytes) -> Answer:
        answer = self._policy.evaluate(input_bytes)
        findings: Any = read_json(answer.findings)
        today = read_json(input_bytes)["usage"]["amount_today_minor"]  # type: ignore[index, call-overload]
        self._asked.append(today)
        if today > CAP:
            findings["denials"].append({"code": "cap_amount_today", "message": "enough for today"})
        return dataclasses.replace(answer, findings=jcs(findings))


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each question said of the day."""
    judge, found = world.parts.worker._tools.hands.judge, list[int]()
    real = judge._policy_of
    monkeypatch.setattr(judge, "_policy_of", lambda tenant, revision: DayCap(real(tenant, revision), found))
    return found


def pay(world: World, n: int, amount: int = 200, currency: str = "EUR") -> str:
    proposal = Proposal(
        "servicenow", "update", INCIDENT, {"work_notes": f"paid {n}"}, amount_minor=amount, currency=currency
    )
    return world.parts.propose.propose(world.tenant, world.actor("olga"), proposal, f"pay-{n}", "").run


def states(world: World, runs: list[str]) -> list[str]:
    return sorted(world.case(run).state for run in runs)


def test_runs_that_race_never_come_above_the_cap(
    world: World, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six payments of 200 and a cap of 500, each judged before any other began: two are made, the others are judged again."""
    judge = world.parts.worker._tools.hands.judge
    runs = [pay(world, n) for n in range(6)]
    early, real = set(runs), judge._spent_of

    def spent(action: Action) -> int:
        if action.run in early:
            early.remove(action.run)
            return 0
        return real(action)

    monkeypatch.setattr(judge, "_spent_of", spent)
    for run in runs:
        world.until(run, "succeeded", "failed_terminal")
    assert states(world, runs) == ["failed_terminal"] * 4 + ["succeeded"] * 2
    row = world.row("select sum(amount_minor)::int as total, count(*)::int as n from spending where tenant = :tenant")
    assert row == {"total": 400, "n": 2}
    assert len(world.writes("work_notes")) == 2
    # Each but the first saw nothing spent at first, and what there was when it was judged again.
    assert asked.count(200) == 6


def test_what_certainly_failed_is_given_back_and_currencies_are_apart(world: World, asked: list[int]) -> None:
    """A refused payment leaves the day as it was; one in another currency never touches it."""
    first = pay(world, 1, 300)
    world.servicenow.plan("too_many_requests", method="PATCH", times=4, seconds=0)
    world.until(first, "failed_terminal")
    second, other = pay(world, 2, 300), pay(world, 3, 450, "USD")
    world.until(second, "succeeded")
    world.until(other, "succeeded")
    assert (asked[0], asked[-2:]) == (300, [300, 450])
    third = pay(world, 4, 300)
    world.until(third, "failed_terminal")
    assert asked[-1] == 600
    assert "cap_amount_today" in next(iter(world.steps(third).values()))


def test_what_is_tried_again_counts_once(world: World, asked: list[int]) -> None:
    """The second attempt of a payment is not a second payment."""
    run = pay(world, 1, 400)
    world.servicenow.plan("too_many_requests", method="PATCH", times=1, seconds=0)
    world.until(run, "succeeded")
    assert set(asked) == {400}
    rows = world.rows("select amount_minor from spending where tenant = :tenant")
    assert [row["amount_minor"] for row in rows] == [400]
