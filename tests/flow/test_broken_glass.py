"""Break-glass: one key, a reason, a ticket, at once; a debt until two others have reviewed it, which every later bundle tells."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import CallerError, Refused
from governance.commands.authority import token_ref
from governance.commands.decide import Answer, Press
from governance.store import glasses
from governance.store.approvals import Recorded
from tests.flow.test_windows_and_stops import WINDOW, again, high, verified
from tests.kit.policies import enforce, obliging
from tests.kit.world import World

GLASS = obliging('"type": "break_glass", "group": "incident-managers"', 'input.action.risk_tier == "high"')


def smash(world: World, found: Recorded, name: str, **more: Any) -> Answer:
    """This person breaks the glass."""
    digest16 = more.pop("digest16", found.asked.action_digest.hex()[:16])
    given = {"reason": "checkout is down", "ticket": "INC-77", "via": "api", **more}
    return world.parts.decide.decide(
        Press(
            tenant=world.tenant, approval=found.asked.id, actor_kind="token", actor_ref=token_ref(world.token(name)), kind="break_glass",
            digest16=digest16, card_rev=1, dedupe_key="", blocks_sha256="", **given,
        )
    )  # fmt: skip


def review(world: World, found: Recorded, name: str, how: str = "justified") -> int:
    return world.parts.gate.review.review(world.tenant, world.actor(name), found.asked.id, how, "I looked", "api").given


def test_one_person_breaks_the_glass_and_it_runs_at_once(world: World) -> None:
    """Whatever window there is; once, and nobody else's key is needed."""
    enforce(world, GLASS + WINDOW)
    run, found = high(world)
    answer = smash(world, found, "bo")
    assert (answer.code, answer.ok, "review" in answer.sentence) == ("glass_broken", True, True)
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1
    assert world.entries(run).count("glass.broken") == 1
    assert again(world, found).glass == world.who["bo"]
    assert smash(world, found, "cleo").code == "decided"


@pytest.mark.parametrize(
    ("name", "code", "more"),
    [
        ("rita", "self", {}),
        ("olga", "not_approver", {}),
        ("dan", "inactive", {}),
        ("low", "level", {}),
        ("robot", "not_human", {}),
        ("ana", "reason_required", {"reason": " "}),
        ("ana", "ticket_required", {"ticket": ""}),
        ("ana", "stale_card", {"digest16": "0" * 16}),
    ],
)
def test_who_may_not_break_it_and_what_it_takes(world: World, name: str, code: str, more: dict[str, Any]) -> None:
    enforce(world, GLASS)
    run, found = high(world)
    assert smash(world, found, name, **more).code == code
    assert world.waiting(run).asked.id == found.asked.id
    assert world.rows("select 1 from glass where tenant = :tenant") == []


def test_without_a_policy_that_has_one_there_is_no_glass(world: World) -> None:
    """And one that policy takes away before the effect releases nothing: people are asked again."""
    run, found = high(world)
    assert smash(world, found, "bo").code == "no_glass"
    enforce(world, GLASS)
    run, found = high(world)
    assert smash(world, found, "bo").ok
    enforce(world)
    world.until(run, "waiting_approval")
    assert world.writes("close_code") == []
    assert world.waiting(run).asked.id != found.asked.id


def test_what_cannot_be_taken_back_has_no_glass(world: World) -> None:
    """Whatever policy says."""
    enforce(world, GLASS)
    _, found = high(world)
    from engine.gate import approval as gate

    with pytest.raises(gate.VoteRefused) as info:
        gate.check_glass(
            found.asked, gate.Person("p", 4, True, "human", frozenset({"incident-managers"})), {},
            found.asked.action_digest.hex()[:16], found.asked.requested_at, reason="r", ticket="t", can_be_taken_back=False,
            overdue=0, signed_in=False,
        )  # fmt: skip
    assert info.value.code == "irreversible"


def test_a_review_is_owed_by_two_others(world: World) -> None:
    """Neither who broke it nor who asked nor an outsider; not twice by one; after two nothing is owed."""
    enforce(world, GLASS)
    run, found = high(world)
    with pytest.raises(Refused):
        review(world, found, "ana")
    smash(world, found, "bo")
    world.until(run, "succeeded")
    for name in ("bo", "rita", "olga", "dan", "low", "robot"):
        with pytest.raises(Refused):
            review(world, found, name)
    assert review(world, found, "ana") == 1
    with pytest.raises(Refused):
        review(world, found, "ana")
    with pytest.raises(CallerError):
        review(world, found, "cleo", "whatever")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert [one.approval for one in glasses.owed(unit)] == [found.asked.id]
    assert review(world, found, "cleo", "unjustified") == 2
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert glasses.owed(unit) == []
    assert world.entries(run).count("review.given") == 2


def test_an_overdue_debt_stops_the_next_glass_and_marks_every_bundle(
    sealing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier passes the run, names who broke the glass, and prints the debt; after two reviews it is paid."""
    world = sealing_world
    enforce(world, GLASS)
    run, found = high(world)
    assert smash(world, found, "bo").ok
    world.until(run, "succeeded")
    outcome, remarks = _remarks(world, run)
    assert outcome == 0
    assert any("broke the glass" in one and "two others owe a review" in one for one in remarks)
    assert not any("DEBT" in one for one in remarks)
    monkeypatch.setattr("governance.store.glasses.overdue", lambda unit: (found.asked.id,))
    run, found = high(world)
    answer = smash(world, found, "cleo")
    assert (answer.code, "First the review" in answer.sentence) == ("review_overdue", True)
    world.approve(run, "ana", "cleo")
    world.until(run, "succeeded")
    outcome, remarks = _remarks(world, run)
    assert outcome == 0
    assert any(one.startswith("DEBT: ") for one in remarks)


def test_overdue_is_what_two_others_have_not_reviewed_in_time(world: World) -> None:
    """Read from the record by the database's clock."""
    enforce(world, GLASS)
    run, found = high(world)
    smash(world, found, "bo")
    world.until(run, "succeeded")
    late = "select count(*) from glass where tenant = :tenant and due_at > clock_timestamp() + interval '23 hours'"
    assert world.rows(late)[0]["count"] == 1
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "insert into glass (tenant, approval, run, promise, person, at, due_at, ticket, reason) select tenant, :other, run, promise, "
            "person, at, clock_timestamp() - interval '1 second', ticket, reason from glass where tenant = :tenant",
            other=_older(world, run, found),
        )  # fmt: skip
        assert len(glasses.overdue(unit)) == 1


def _older(world: World, run: str, found: Recorded) -> str:
    """Another approval of the run, so that the second glass has something to stand on."""
    rows = world.rows(
        "select approval from approval where tenant = :tenant and run = :run and approval <> :mine",
        run=run,
        mine=found.asked.id,
    )
    return str(rows[0]["approval"])


def _remarks(world: World, run: str) -> tuple[int, list[str]]:
    from engine.ledger.trust import read_trust
    from engine.ledger.verify import verify
    from governance.evidence.sequence import trust_text

    assert verified(world, run)[0] == 0
    row = world.row("select object_key, version_id from bundle where tenant = :tenant and run = :run", run=run)
    assert row is not None
    trust = read_trust(trust_text(world.parts.database, "test", world.tenant).encode())
    found = verify(world.parts.vault.get(row["object_key"], row["version_id"]), trust)
    return found.outcome, list(found.remarks)
