"""P2: two keys are two different people, neither of them anybody in the lineage of the request."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from engine.canonical import jcs, read_json
from engine.gate.verdict import Answer as Findings
from engine.gate.verdict import Policy
from governance.commands.decide import Answer
from governance.store.approvals import Recorded
from tests.kit.world import TEAM, World


def high(world: World) -> tuple[str, Recorded]:
    """A run that waits for two people."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert found.asked.keys == 2
    return run, found


def votes(world: World, found: Recorded) -> list[str]:
    rows = world.rows(
        "select person from vote where tenant = :tenant and approval = :approval order by at", approval=found.asked.id
    )
    names = {person: name for name, person in world.who.items()}
    return [names[row["person"]] for row in rows]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("rita", "self"),
        ("olga", "not_approver"),
        ("dan", "inactive"),
        ("aud", "level"),
        ("low", "level"),
        ("robot", "not_human"),
    ],
)
def test_who_may_not_turn_a_key_is_told_so_and_nothing_changes(world: World, name: str, code: str) -> None:
    """S004-1.3c, P6: the requester, an outsider, a deactivated person, an auditor, a low level, a robot: no, with a sentence."""
    run, found = high(world)
    before = world.case(run).history.version
    answer = world.press(found, name)
    assert (answer.ok, answer.code) == (False, code)
    assert answer.sentence.endswith(".")
    assert votes(world, found) == []
    assert world.case(run).history.version == before
    assert "key.refused" in world.entries(run)


def test_the_same_person_cannot_turn_both_keys_with_a_second_slack_id_or_a_token(world: World) -> None:
    """Identities collapse to one person: neither another Slack id nor a token makes two of one."""
    run, found = high(world)
    world.parts.admit.link_slack(world.tenant, None, world.who["ana"], TEAM, "UANA2")
    assert (
        world.press(found, "ana", actor_kind="slack", ref=world.slack_ref("ana"), via="slack_button").code
        == "key_given"
    )
    for kind, ref in (("slack", f"{TEAM}:UANA2"), ("slack", world.slack_ref("ana")), ("token", "")):
        answer = world.press(found, "ana", actor_kind=kind, ref=ref)
        assert (answer.ok, answer.code) == (False, "same_person")
    assert votes(world, found) == ["ana"]
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "bo").code == "approved"


def test_an_identity_that_is_linked_to_nobody_decides_nothing(world: World) -> None:
    """An unknown Slack user is refused with a sentence and leaves an entry."""
    run, found = high(world)
    answer = world.press(found, "", actor_kind="slack", ref=f"{TEAM}:UNOBODY")
    assert (answer.ok, answer.code) == (False, "unknown_person")
    assert votes(world, found) == []
    assert world.case(run).state == "waiting_approval"


def test_a_key_of_somebody_who_left_the_group_no_longer_counts(world: World) -> None:
    """Keys are checked again when they are counted: a person removed in between does not count."""
    run, found = high(world)
    assert world.press(found, "bo").ok
    world.parts.admit.join(world.tenant, None, "incident-managers", world.who["bo"], leave=True)
    answer = world.press(found, "ana")
    assert answer.code == "key_given", answer
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "cleo").code == "approved"
    world.until(run, "succeeded")


def test_a_key_given_before_the_person_was_deactivated_does_not_release_at_resume(world: World) -> None:
    """P4: at resume the keys are counted again; without enough standing keys nothing runs and people are asked again."""
    run, found = high(world)
    assert world.press(found, "bo").ok
    assert world.press(found, "ana").code == "approved"
    world.parts.admit.deactivate(world.tenant, None, world.who["bo"])
    world.until(run, "waiting_approval")
    assert world.writes("close_code") == []
    assert world.waiting(run).asked.id != found.asked.id


def test_fifty_simultaneous_presses_by_ten_people_give_exactly_two_keys(world: World) -> None:
    """The row lock before the count: no wake-up is lost and no third key is stored."""
    run, found = high(world)
    names = ["ana", "bo", "cleo", "rita", "olga", "dan", "aud", "low", "robot", "ana"]
    answers: list[Answer] = []
    barrier = threading.Barrier(25)

    def click(name: str) -> None:
        barrier.wait()
        answers.append(world.press(found, name))

    for _ in range(2):
        threads = [threading.Thread(target=click, args=(names[n % 10],)) for n in range(25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 50
    assert sum(answer.code == "approved" for answer in answers) == 1
    assert len(votes(world, found)) == 2
    assert len(set(votes(world, found))) == 2
    assert world.entries(run).count("approval.released") == 2  # the medium step's and this one's
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1


def test_one_rejection_by_an_eligible_person_ends_it_and_the_reason_reaches_the_run(world: World) -> None:
    """S004-2.2f: rejected means no effect, the step fails terminally, the run follows."""
    run, found = high(world)
    assert world.press(found, "bo").ok
    assert world.press(found, "ana", kind="reject").code == "reason_required"
    assert world.press(found, "ana", kind="reject", reason="Customer asked to wait").code == "rejected"
    world.until(run, "failed_terminal")
    assert "Customer asked to wait" in world.steps(run)["close"]
    assert world.writes("close_code") == []
    assert world.press(found, "cleo").code == "decided"


def test_a_press_that_is_delivered_twice_counts_once_and_is_answered_alike(world: World) -> None:
    """Slack retries: the same trigger gives the same answer and no second vote."""
    _, found = high(world)
    first = world.press(found, "ana", dedupe="trigger-1")
    again = world.press(found, "ana", dedupe="trigger-1")
    assert first == again
    assert votes(world, found) == ["ana"]


def test_a_stale_card_is_refused(world: World) -> None:
    """P3: a press that shows another digest than the record's changes nothing."""
    _, found = high(world)
    assert world.press(found, "ana", digest16="0" * 16).code == "stale_card"
    assert votes(world, found) == []


def test_repeated_refusals_are_counted_and_not_dropped(world: World) -> None:
    """Design 14.10: the first is an entry at once, the others of that minute are one entry with their count."""
    run, found = high(world)
    for _ in range(5):
        assert world.press(found, "olga").code == "not_approver"
    assert world.entries(run).count("key.refused") == 1
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update refusal set minute = minute - interval '2 minutes' where tenant = :tenant")
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'refusals'")
    from governance.stages.tick import Tick

    Tick(world.parts.database).step()
    assert world.entries(run).count("key.refused") == 2
    counts = world.rows(
        "select (convert_from(body, 'UTF8')::json -> 'body' ->> 'count')::int as n from entry_pending where tenant = :tenant "
        "and chain = :run "
        "and convert_from(body, 'UTF8')::json ->> 'type' = 'key.refused' order by chain_seq",
        run=run,
    )
    assert sum(row["n"] for row in counts) == 5


class OneMoreHold:
    """The tenant's policy with a hold of its own beside: somebody of the incident managers."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def evaluate(self, input_bytes: bytes) -> Findings:
        answer = self._policy.evaluate(input_bytes)
        findings: Any = read_json(answer.findings)
        if findings["holds"]:
            more = {**findings["holds"][0], "code": "managers", "two_person": False, "groups": ["incident-managers"]}
            findings["holds"].append(more)
        return dataclasses.replace(answer, findings=jcs(findings))


def test_each_hold_is_satisfied_from_its_own_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of an incident manager opens nothing of the rule that asks for somebody on call, and the record says so."""
    judge = world.parts.worker._tools.hands.judge
    real = judge._policy_of
    monkeypatch.setattr(judge, "_policy_of", lambda tenant, revision: OneMoreHold(real(tenant, revision)))
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert [need["groups"] for need in found.asked.needs] == [["incident-managers"], ["oncall"]]
    assert found.verdict.needs == found.asked.needs
    first = world.press(found, "bo")
    assert (first.code, first.given, first.needed) == ("key_given", 1, 2)
    assert world.case(run).state == "waiting_approval"
    assert world.press(found, "ana").code == "approved"
    world.until(run, "waiting_approval")
    assert len(world.writes("state")) == 1
