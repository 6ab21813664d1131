"""The breaker opens after repeated faults, refuses at once while open, and closes only on a right denial."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.gate.verdict import Answer, PolicyFault
from governance.policy import breaker as room
from governance.policy.breaker import Breaker

REVISION = "a" * 64


class Engine:
    """Answers or fails as told, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails: BaseException | None = None
        self.codes = ["kill_switch"]

    def evaluate(self, input_bytes: bytes) -> Answer:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        asked: dict[str, Any] = json.loads(input_bytes)
        findings = {
            "schema": "twokeys.policy.findings/v1",
            "echo": {"request_id": asked["request"]["id"], "action_sha256": asked["action"]["sha256"]},
            "policy": {"package": "twokeys.main", "revision": REVISION},
            "denials": [{"code": code, "message": "m"} for code in self.codes],
            "holds": [],
            "grants": [],
            "obligations": [],
        }
        return Answer(json.dumps(findings).encode(), REVISION, "test", "1")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.engine = Engine()
        self.breaker = Breaker(self.engine, revision=lambda: REVISION, monotonic=lambda: self.now)

    def ask(self) -> str:
        """The fault's code, or nothing."""
        question = {"request": {"id": "x"}, "action": {"sha256": "b" * 64}}
        try:
            self.breaker.evaluate(json.dumps(question).encode())
        except PolicyFault as fault:
            return fault.code
        except RuntimeError:
            return "other"
        return ""


@pytest.fixture
def world() -> World:
    return World()


def test_five_faults_in_a_row_open_it(world: World) -> None:
    """The sixth question does not reach the engine."""
    world.engine.fails = PolicyFault("timeout", "slow")
    assert [world.ask() for _ in range(6)] == ["timeout"] * 5 + ["breaker_open"]
    assert world.engine.asked == 5
    assert world.breaker.is_open


def test_any_exception_counts_as_a_fault(world: World) -> None:
    """Not only the faults that somebody thought of."""
    world.engine.fails = RuntimeError("not foreseen")
    assert [world.ask() for _ in range(6)] == ["other"] * 5 + ["breaker_open"]


def test_half_of_the_last_twenty_open_it(world: World) -> None:
    """Flapping is not health."""
    codes = []
    for n in range(room.window + 1):
        world.engine.fails = PolicyFault("refused", "gone") if n % 2 else None
        codes.append(world.ask())
    assert codes[:-1] == ["", "refused"] * 10
    assert codes[-1] == "breaker_open"


def test_few_faults_do_not_open_it(world: World) -> None:
    """A fault now and then is what retries are for."""
    for n in range(100):
        world.engine.fails = PolicyFault("refused", "gone") if n % 5 == 0 else None
        assert world.ask() != "breaker_open"


def opened(world: World) -> None:
    world.engine.fails = PolicyFault("timeout", "slow")
    for _ in range(room.in_a_row_max):
        world.ask()


def test_after_the_pause_one_right_denial_closes_it(world: World) -> None:
    """One probe, then the question itself."""
    opened(world)
    world.engine.fails = None
    world.now = room.open_seconds - 0.01
    assert world.ask() == "breaker_open"
    world.now = room.open_seconds
    asked = world.engine.asked
    assert world.ask() == ""
    assert world.engine.asked == asked + 2
    assert not world.breaker.is_open


@pytest.mark.parametrize("codes", [[], ["freeze"]])
def test_an_engine_that_no_longer_denies_stays_shut_out(world: World, codes: list[str]) -> None:
    """The probe's right answer is a denial by the kill switch."""
    opened(world)
    world.engine.fails = None
    world.engine.codes = codes
    world.now = room.open_seconds
    assert world.ask() == "canary_failed"
    assert world.ask() == "breaker_open"
    world.engine.codes = ["kill_switch"]
    world.now = 2 * room.open_seconds
    assert world.ask() == ""


def test_a_probe_that_fails_opens_it_again_for_the_whole_pause(world: World) -> None:
    """And only the prober's question reached the engine."""
    opened(world)
    world.now = room.open_seconds
    asked = world.engine.asked
    assert world.ask() == "timeout"
    assert world.ask() == "breaker_open"
    assert world.engine.asked == asked + 1


def test_only_one_question_probes_at_a_time(world: World) -> None:
    """Everybody else is refused meanwhile, at once."""
    opened(world)
    world.now = room.open_seconds
    seen: list[str] = []

    class Slow(Engine):
        def evaluate(self, input_bytes: bytes) -> Answer:
            if not seen:
                seen.append("probing")
                seen.append(world.ask())
            return super().evaluate(input_bytes)

    world.breaker._policy = Slow()
    assert world.ask() == ""
    assert seen == ["probing", "breaker_open"]
