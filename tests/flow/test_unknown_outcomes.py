"""P5: what nobody knows is asked of people, looked at, or tried again under the same key by the word of enough of them; never blindly."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import Refused
from governance.commands.resolve import Resolved, Said
from governance.evidence.sequence import trust_text
from governance.stages.tick import Tick
from governance.store import doubts
from governance.store.doubts import DoubtRecord
from tests.flow.test_a_governed_run import verify
from tests.governance.stages.kit import attempts, begin, one_step, receipts
from tests.kit.world import World


def lost(world: World, name: str = "lost", more: str = "") -> str:
    """A run whose only write happened, and whose answer was lost."""
    run = begin(world, one_step(name, more))
    world.servicenow.plan("drop_connection", method="PATCH", times=1)
    world.drain()
    assert world.case(run).promises["0"].state == "unknown"
    return run


def said(world: World, run: str, name: str, how: str, reason: str = "I looked", **more: str) -> Resolved:
    return world.parts.resolve.say(Said(world.tenant, world.actor(name), run, "0", how, reason, "api", **more))


def doubt(world: World, run: str) -> DoubtRecord:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return doubts.of_run(unit, run)[-1]


def unsettle(world: World) -> None:
    """As if the time in which an attempt may still be on the road were over."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update promise set started_at = started_at - interval '1 hour' where tenant = :tenant")


def test_people_are_asked_by_a_card_with_four_answers(world: World) -> None:
    run = lost(world)
    world.post()
    (card,) = [arguments for method, arguments in world.slack.calls if method == "chat.postMessage"]
    labels = [e["text"]["text"] for block in card["blocks"] if block["type"] == "actions" for e in block["elements"]]
    assert labels == ["It happened", "It did not", "Probe again", "Retry with the same key"]
    assert doubt(world, run).is_open
    assert world.entries(run)[-2:] == ["effect.unknown", "doubt.asked"]


def test_probing_says_what_it_found_and_changes_nothing_while_nobody_can_tell(world: World) -> None:
    run = lost(world)
    world.post()
    answer = said(world, run, "bo", "probe", "")
    assert (answer.ok, answer.state) == (True, "unknown")
    world.drain()
    world.post()
    assert world.entries(run)[-2:] == ["word.given", "effect.looked"]
    (reply,) = [a for m, a in world.slack.calls if m == "chat.postMessage" and a.get("thread_ts")]
    assert "cannot prove whether it happened" in reply["text"]
    assert world.case(run).promises["0"].state == "unknown"
    assert receipts(world, run) == [(1, 1, "unknown")]
    assert world.writes("urgency") == ["1"]


def test_probing_settles_what_the_outside_can_prove(sealing_world: World, tmp_path: Path) -> None:
    """A second look finds the target unchanged after the attempt can no longer be on the road: it is made again, once."""
    world = sealing_world
    run = begin(world, one_step("unchanged"))
    world.servicenow.plan("error_500", method="PATCH", times=1)
    world.drain()
    assert world.case(run).promises["0"].state == "unknown"
    unsettle(world)
    assert said(world, run, "bo", "probe", "").ok
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "unknown"), (1, 2, "rejected"), (2, 1, "ok")]
    assert world.writes("urgency") == ["1"]
    assert doubt(world, run).state == "did_not"
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_retry_reuses_the_key_and_is_judged_again(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    run = lost(world)
    answer = said(world, run, "bo", "retry")
    assert (answer.ok, answer.given, answer.needed) == (True, 1, 1), answer
    case = world.until(run, "succeeded")
    assert case.promises["0"].attempt == 2
    assert receipts(world, run) == [(1, 1, "unknown"), (2, 1, "ok")]
    assert len(world.rows("select 1 from intent where tenant = :tenant and run = :run", run=run)) == 1
    verdicts = world.rows("select purpose from verdict where tenant = :tenant and run = :run order by n", run=run)
    assert [row["purpose"] for row in verdicts] == ["enforce", "recheck"]
    assert ("Retrying", 1) in attempts(world, run)
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stayed unknown and was made again" in done.stdout


@pytest.fixture
def irreversible(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which an update cannot be taken back; policy asks one person for it."""
    spec = world.parts.registry.spec("servicenow", "update")
    changed = {
        **world.parts.registry.catalog,
        ("servicenow", "update"): replace(spec, reversible=False, reversal="none"),
    }
    monkeypatch.setattr(world.parts.registry, "catalog", changed)
    return world


def test_what_cannot_be_taken_back_is_tried_again_by_two_different_people_only(irreversible: World) -> None:
    world = irreversible
    run = begin(world, one_step("for-good"))
    world.until(run, "waiting_approval")
    world.approve(run, *("bo", "cleo")[: world.waiting(run).asked.keys])
    world.servicenow.plan("drop_connection", method="PATCH", times=1)
    world.drain()
    found = doubt(world, run)
    assert (found.state, found.given, found.needed) == ("open", 0, 2)
    answer = said(world, run, "bo", "retry")
    assert (answer.ok, answer.given, answer.needed, answer.state) == (True, 1, 2, "unknown")
    assert said(world, run, "bo", "retry").code == "same_person"
    world.hurry()
    world.drain()
    assert len(world.writes("urgency")) == 1, "one person's word tries nothing again"
    assert doubt(world, run).given == 1
    answer = said(world, run, "cleo", "retry")
    assert (answer.ok, answer.given) == (True, 2)
    for _ in range(3):
        world.hurry()
        world.drain()
    # The first attempt did happen, so the target is not what people agreed to: the keys are asked for again.
    assert world.case(run).state == "waiting_approval"
    world.approve(run, *("ana", "cleo")[: world.waiting(run).asked.keys])
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "unknown"), (2, 1, "ok")]


def test_the_word_of_somebody_who_has_left_counts_no_more(irreversible: World) -> None:
    world = irreversible
    run = begin(world, one_step("left"))
    world.until(run, "waiting_approval")
    world.approve(run, *("bo", "cleo")[: world.waiting(run).asked.keys])
    world.servicenow.plan("drop_connection", method="PATCH", times=1)
    world.drain()
    assert said(world, run, "bo", "retry").given == 1
    world.parts.admit.deactivate(world.tenant, None, world.who["bo"])
    answer = said(world, run, "cleo", "retry")
    assert (answer.ok, answer.given, answer.needed, answer.state) == (True, 1, 2, "unknown")
    assert said(world, run, "ana", "retry").given == 2


def test_a_retry_after_a_denial_does_nothing(world: World) -> None:
    run = lost(world)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")
    assert said(world, run, "bo", "retry").ok
    world.until(run, "failed_terminal")
    assert world.writes("urgency") == ["1"], "only what happened before"


def test_whoever_asked_for_it_may_have_it_looked_at_and_say_nothing(world: World) -> None:
    run = lost(world)
    for how in ("happened", "did_not", "retry"):
        answer = said(world, run, "rita", how)
        assert (answer.ok, answer.code) == (False, "lineage")
    assert said(world, run, "rita", "probe", "").ok
    assert world.entries(run)[-2:] == ["word.refused", "word.given"]
    assert world.case(run).promises["0"].state == "unknown"


@pytest.mark.parametrize(
    ("name", "code"), [("low", "level"), ("aud", "auditor"), ("dan", "inactive"), ("robot", "not_human")]
)
def test_others_are_told_why_they_may_not_speak(world: World, name: str, code: str) -> None:
    run = lost(world)
    answer = said(world, run, name, "happened")
    assert (answer.ok, answer.code) == (False, code), answer
    assert answer.sentence
    assert world.entries(run)[-1] == "word.refused"


def test_the_same_refusal_of_a_minute_is_counted_and_not_repeated(world: World) -> None:
    run = lost(world)
    for _ in range(5):
        said(world, run, "low", "happened")
    assert world.entries(run).count("word.refused") == 1
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update refusal set minute = minute - interval '2 minutes' where tenant = :tenant")
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'refusals'")
    Tick(world.parts.database).step()
    assert world.entries(run).count("word.refused") == 2


def test_a_double_click_changes_nothing_and_gets_the_same_answer(world: World) -> None:
    run = lost(world)
    once = said(world, run, "bo", "happened", dedupe_key="one-click")
    assert said(world, run, "bo", "happened", dedupe_key="one-click") == once
    late = said(world, run, "cleo", "did_not")
    assert (late.ok, late.code) == (False, "not_unknown")
    world.until(run, "succeeded")
    assert receipts(world, run) == [(1, 1, "unknown"), (1, 2, "ok")]
    assert doubt(world, run).state == "happened"


def test_a_word_about_an_earlier_attempt_changes_nothing(world: World) -> None:
    run = lost(world)
    first = doubt(world, run).doubt
    assert said(world, run, "bo", "retry").ok
    world.servicenow.plan("drop_connection", method="PATCH", times=1)
    world.hurry()
    world.drain()
    assert doubt(world, run).attempt == 2
    late = said(world, run, "cleo", "happened", doubt=first)
    assert (late.ok, late.code) == (False, "not_unknown")
    assert world.case(run).promises["0"].state == "unknown"


def test_when_all_attempts_are_used_people_may_only_say_what_happened(world: World) -> None:
    run = lost(world)
    for _ in range(3):
        assert said(world, run, "bo", "retry").ok
        world.servicenow.plan("drop_connection", method="PATCH", times=1)
        world.hurry()
        world.drain()
    answer = said(world, run, "bo", "retry")
    assert (answer.ok, answer.code) == (False, "attempts_used_up")
    assert said(world, run, "bo", "happened").ok
    world.until(run, "succeeded")


def test_a_run_that_is_being_cancelled_tries_nothing_again(world: World) -> None:
    run = lost(world)
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "no more")
    answer = said(world, run, "bo", "retry")
    assert (answer.ok, answer.code) == (False, "canceling")
    assert said(world, run, "bo", "did_not").ok
    assert world.case(run).state == "canceled"
    assert receipts(world, run) == [(1, 1, "unknown"), (1, 2, "rejected")]


_count = itertools.count()
HISTORIES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["rita", "ana", "bo", "cleo", "low"]), st.sampled_from(["probe", "happened", "did_not", "retry"])
        ),
        st.sampled_from([("", "lost"), ("", "work"), ("", "settles"), ("", "cancel")]),
    ),
    min_size=2,
    max_size=9,
)  # fmt: skip


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=HISTORIES)
def test_whatever_people_say_in_whatever_order_nothing_is_done_again_without_their_word(
    world: World, history: list[tuple[str, str]]
) -> None:
    """One attempt, and one more for each that certainly did not happen or that people wanted again; no effect without an attempt."""
    world.servicenow.reset()
    run, wanted = lost(world, f"any-{next(_count)}"), 0
    for who, what in history:
        if what == "lost":
            world.servicenow.plan("drop_connection", method="PATCH", times=1)
        elif what == "work":
            world.hurry()
            world.drain()
        elif what == "settles":
            unsettle(world)
        elif what == "cancel":
            with suppress(Refused):
                world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "enough")
        else:
            answer = said(world, run, who, what, "" if what == "probe" else "I know")
            assert answer.sentence
            assert not answer.ok or (who != "low" and (who != "rita" or what == "probe"))
            wanted += answer.ok and what == "retry"
        certain = sum(status == "rejected" for _, _, status in receipts(world, run))
        assert world.case(run).promises["0"].attempt <= 1 + certain + wanted
    world.servicenow.call("DELETE", "/_control/faults")
    for _ in range(3):
        world.hurry()
        world.drain()
    case = world.case(run)
    assert case.ended or case.promises["0"].state == "unknown"
    if not case.ended:
        assert said(world, run, "bo", "happened").ok
