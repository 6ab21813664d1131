"""A change of policy is an action like any other: proved, replayed, agreed to by others, done once, and in force on every worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.canonical import sha256
from engine.catalog.draft import Draft
from engine.errors import AuthorError, CallerError, Refused
from engine.gate.own import CONNECTOR, LOOSEN, PUBLISH
from engine.gate.permit import Judgement, Permit, Release, permit
from engine.gate.receipt import Outcome
from engine.program.one_step import Proposal
from governance.connectors.own import Own
from governance.policy.bundle import CANARY_TENANT, build
from governance.stages.tick import Tick
from governance.store import changes, drafts, templates
from tests.flow.test_children import verified
from tests.flow.test_one_action import NOTE, propose
from tests.kit.world import World

Edit = Callable[[dict[str, Any]], None]


def live(world: World) -> str:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return templates.active_revision(unit)


def drafted(world: World, name: str, edit: Edit, *, by: str = "rita", rego: str = "") -> str:
    """A draft in which the data are changed so, and the overlay goes on with this."""
    begun = world.parts.amend.begin(world.tenant, world.actor(by), name)
    edited(world, name, begun.content, edit, by=by, rego=rego)
    return name


def edited(world: World, name: str, content: Draft, edit: Edit, *, by: str = "rita", rego: str = "") -> Draft:
    data = json.loads(json.dumps(content.data))
    edit(data)
    overlay = "twokeys/overlay.rego"
    changed = replace(content, data=data, modules={**content.modules, overlay: content.modules[overlay] + rego})
    world.parts.amend.edit(world.tenant, world.actor(by), name, changed)
    return changed


def written_to(world: World) -> int:
    """How often anything was written outside."""
    return len(world.servicenow.call("GET", "/_control/changes")["result"])


def writes(most: int) -> Edit:
    return lambda data: data["caps"].update(max_writes_per_run=most)


def published(world: World, name: str, *keys: str, by: str = "rita") -> str:
    """The run that publishes this draft, with the keys of these people given."""
    run = world.parts.changes.publish(world.tenant, world.actor(by), name).run
    world.until(run, "waiting_approval")
    for key in keys:
        assert world.press(world.waiting(run), key).ok
    return run


def test_a_limit_is_raised_by_two_people_besides_its_author(sealing_world: World, tmp_path: Path) -> None:
    """Draft, proposal, two keys, in force: with a receipt, and a bundle that an auditor verifies."""
    world = sealing_world
    before = live(world)
    drafted(world, "more-writes", writes(80))
    run = published(world, "more-writes", "ana")
    assert live(world) == before
    assert not world.press(world.waiting(run), "rita").ok
    assert world.press(world.waiting(run), "bo").ok
    world.until(run, "succeeded")
    assert live(world) != before
    with world.parts.database.unit(world.tenant, write=False) as unit:
        made = changes.activations(unit, 10)
        draft = drafts.load(unit, "more-writes")
    assert [(one.revision, one.base_revision, one.how, one.run) for one in made] == [
        (live(world), before, "published", run)
    ]
    assert (draft.state, draft.revision) == ("published", live(world))
    assert (
        world.parts.bundle_of(world.tenant, live(world)).data["tenants"][world.tenant]["caps"]["max_writes_per_run"]
        == 80
    )
    verified(world, run, tmp_path / "auditor")


def test_what_provably_only_tightens_takes_one_key(world: World) -> None:
    drafted(world, "fewer", writes(10))
    run = published(world, "fewer", "bo")
    assert world.waiting_no_more(run)
    world.until(run, "succeeded")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert changes.activations(unit, 1)[0].run == run


def test_nobody_who_ever_edited_it_holds_a_key(world: World) -> None:
    """Not its first author, not who corrected one line: both are editors in the lineage."""
    made = world.parts.amend.begin(world.tenant, world.actor("rita"), "shared")
    edited(world, "shared", made.content, writes(80))
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update person set level = 5 where tenant = :tenant and name = 'ana'")
    edited(world, "shared", made.content, writes(70), by="ana")
    run = published(world, "shared")
    found = world.waiting(run)
    assert found.asked.lineage == {world.who["rita"]: "requester", world.who["ana"]: "editor"}
    assert world.press(found, "ana").code == "lineage"
    assert world.press(found, "bo").ok
    assert world.press(found, "cleo").ok
    world.until(run, "succeeded")


def test_the_card_shows_the_impact_the_weight_and_the_text(world: World) -> None:
    for _ in range(3):
        world.until(propose(world, NOTE, f"k-{_}"), "succeeded", "failed_terminal")
    drafted(world, "notes", lambda data: data["allowed_operations"].update(servicenow=["lookup"]))
    run = published(world, "notes")
    shown = world.parts.records.approval(world.tenant, world.waiting(run).asked.id)
    said = {name: after for name, _, after in shown.changes}
    assert shown.target["id"] == "notes"
    assert said["weight"].splitlines()[0] == "takes one person besides its authors"
    assert "tightens data.allowed_operations: servicenow: no longer: close, update" in said["weight"]
    assert "looser 0, tighter 1, the same 0" in said["impact"] or "tighter" in said["impact"]
    assert '-      "update"' in said["diff"]
    assert ("revision", live(world), said["revision"]) in shown.changes


def test_of_two_who_publish_at_once_the_second_is_told_to_rebase(world: World) -> None:
    """Both were proposed against the same policy; what the second's people saw is no longer true."""
    drafted(world, "one", writes(80))
    drafted(world, "two", writes(90))
    first, second = published(world, "one", "ana"), published(world, "two", "ana")
    assert world.press(world.waiting(first), "bo").ok
    world.until(first, "succeeded")
    after = live(world)
    assert world.press(world.waiting(second), "bo").ok
    world.until(second, "failed_terminal")
    assert live(world) == after
    assert "rebase" in world.steps(second)[PUBLISH]
    with pytest.raises(Refused, match="rebase") as refused:
        world.parts.changes.publish(world.tenant, world.actor("rita"), "two")
    assert refused.value.code == "policy_moved"


def test_an_edit_after_the_ask_voids_it(world: World) -> None:
    begun = world.parts.amend.begin(world.tenant, world.actor("rita"), "late")
    edited(world, "late", begun.content, writes(80))
    run, before = published(world, "late", "ana"), live(world)
    edited(world, "late", begun.content, writes(5_000))
    assert world.case(run).state == "canceled"
    assert live(world) == before
    # And where the withdrawal itself came too late, the recheck refuses: the digest is of another edit.
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert changes.open_runs_of_draft(unit, "late") == []


def test_a_draft_that_was_withdrawn_is_not_published(world: World) -> None:
    drafted(world, "gone", writes(80))
    run, before = published(world, "gone", "ana"), live(world)
    world.parts.amend.withdraw(world.tenant, world.actor("rita"), "gone")
    assert world.case(run).state == "canceled"
    assert live(world) == before


def test_a_second_proposal_of_the_same_edit_finds_the_first(world: World) -> None:
    drafted(world, "twice", writes(80))
    one = world.parts.changes.publish(world.tenant, world.actor("rita"), "twice")
    other = world.parts.changes.publish(world.tenant, world.actor("rita"), "twice")
    assert (one.new, other.new, one.run == other.run) == (True, False, True)


def test_the_next_verdict_is_of_the_new_policy_and_what_waits_is_judged_again(world: World) -> None:
    """A run that people had released meets the policy that came into force before it went on."""
    run = world.start()
    world.until(run, "waiting_approval")
    blocked, written = world.waiting(run).action.target.id, written_to(world)
    drafted(world, "block", lambda data: data["blocked_targets"].append(blocked))
    world.until(published(world, "block", "ana"), "succeeded")
    world.approve(run, "ana")
    world.until(run, "failed_terminal", "succeeded")
    assert any("overlay_blocked_target" in said for said in world.steps(run).values()), world.steps(run)
    assert written_to(world) == written


def test_an_earlier_policy_comes_back_by_the_same_gate(world: World) -> None:
    first = live(world)
    drafted(world, "fewer", writes(10))
    world.until(published(world, "fewer", "ana"), "succeeded")
    run = world.parts.changes.roll_back(world.tenant, world.actor("rita"), first[:12], "too tight").run
    world.until(run, "waiting_approval")
    asked = world.waiting(run)
    assert (asked.asked.keys, asked.action.operation) == (2, "policy_rollback")
    assert world.press(asked, "ana").ok
    assert live(world) != first
    assert world.press(asked, "bo").ok
    world.until(run, "succeeded")
    assert live(world) == first
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert [one.how for one in changes.activations(unit, 10)] == ["rolled_back", "published"]


def test_a_loosening_in_a_hurry_goes_away_by_itself(world: World) -> None:
    before = live(world)
    drafted(world, "hurry", writes(500))
    for minutes in (0, 241):
        with pytest.raises(CallerError, match="1 to 240"):
            world.parts.changes.loosen(world.tenant, world.actor("rita"), "hurry", "outage", minutes)
    with pytest.raises(CallerError, match="say why"):
        world.parts.changes.loosen(world.tenant, world.actor("rita"), "hurry", " ", 30)
    run = world.parts.changes.loosen(world.tenant, world.actor("rita"), "hurry", "outage", 30).run
    world.until(run, "waiting_approval")
    world.approve(run, "ana", "cleo")
    world.until(run, "succeeded")
    loosened = live(world)
    assert loosened != before
    # What rests on it cannot become permanent by the way.
    drafted(world, "on-top", writes(400))
    with pytest.raises(Refused, match="loosened until"):
        world.parts.changes.publish(world.tenant, world.actor("rita"), "on-top")
    Tick(world.parts.database).step()
    assert live(world) == loosened
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update due set at = clock_timestamp() where tenant = :tenant and kind = 'policy'")
    Tick(world.parts.database).step()
    assert live(world) == loosened, "a clock that rings too early changes nothing"


def test_when_its_time_is_over_what_was_before_is_in_force_again(world: World) -> None:
    """The clock of the database decides; both the beginning and the end are entries of the log."""
    before = live(world)
    drafted(world, "hurry", writes(500))
    change = replace(world.parts.publishing.prepare(world.tenant, "hurry", LOOSEN), minutes=1)
    with world.parts.database.unit(world.tenant) as unit:
        made = changes.activate(unit, change, "loosened", run="", by="test")
    assert made.until is not None
    with world.parts.database.unit(world.tenant) as unit:
        assert changes.revert(unit, made.n) is None, "not before its time"
    with world.parts.database.unit(world.tenant) as unit:
        unit.now = lambda: made.until  # type: ignore[method-assign]
        back = changes.revert(unit, made.n)
    assert back is not None
    assert (back.how, back.revision, live(world)) == ("reverted", before, before)
    with world.parts.database.unit(world.tenant) as unit:
        unit.now = lambda: made.until  # type: ignore[method-assign]
        assert changes.revert(unit, made.n) is None, "once"
    assert world.entries("policy/main").count("policy.published") == 2


def test_what_came_after_a_loosening_is_not_taken_away_with_it(world: World) -> None:
    drafted(world, "hurry", writes(500))
    change = replace(world.parts.publishing.prepare(world.tenant, "hurry", LOOSEN), minutes=1)
    with world.parts.database.unit(world.tenant) as unit:
        made = changes.activate(unit, change, "loosened", run="", by="test")
    back = replace(change, base_revision=made.revision, revision=made.base_revision, minutes=0)
    with world.parts.database.unit(world.tenant) as unit:
        changes.activate(
            unit,
            replace(back, bundle=templates.policy(unit, made.base_revision).bundle),
            "rolled_back",
            run="",
            by="test",
        )
    with world.parts.database.unit(world.tenant) as unit:
        unit.now = lambda: made.until  # type: ignore[method-assign, return-value]
        assert changes.revert(unit, made.n) is None
    assert live(world) == made.base_revision


def test_a_worker_that_dies_after_publishing_publishes_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect is in force and the receipt is lost: whoever takes over looks, finds it, and does nothing twice."""
    drafted(world, "more", writes(80))
    run = published(world, "more", "ana")
    done: list[str] = []
    perform = Own.perform

    def dies(self: Own, permit: Permit) -> Outcome:
        outcome = perform(self, permit)
        done.append(outcome.status)
        raise KeyboardInterrupt

    monkeypatch.setattr(Own, "perform", dies)
    assert world.press(world.waiting(run), "bo").ok
    with pytest.raises(KeyboardInterrupt):
        world.until(run, "succeeded", rounds=3)
    monkeypatch.undo()
    after = live(world)
    world.expire_leases()
    world.until(run, "succeeded")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert [one.revision for one in changes.activations(unit, 10)] == [after]
    assert done == ["ok"]


def test_a_worker_that_dies_before_publishing_leaves_it_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted(world, "more", writes(80))
    run, before = published(world, "more", "ana"), live(world)

    def dies(self: Own, permit: Permit) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Own, "perform", dies)
    assert world.press(world.waiting(run), "bo").ok
    with pytest.raises(KeyboardInterrupt):
        world.until(run, "succeeded", rounds=3)
    monkeypatch.undo()
    assert live(world) == before
    world.expire_leases()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update promise set started_at = started_at - interval '5 minutes' where tenant = :tenant and run = :run",
            run=run,
        )
    world.until(run, "succeeded")
    assert live(world) != before


@pytest.mark.inconsistent("an approval is made to look approved with one key of two")
def test_the_connector_counts_the_keys_whatever_the_policy_asked_for(world: World) -> None:
    """A guard of before, or one that somebody got in, may allow it; one key is not two."""
    drafted(world, "more", writes(80))
    run, before = published(world, "more", "ana"), live(world)
    found = world.waiting(run)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update approval set status = 'approved' where tenant = :tenant and approval = :ap", ap=found.asked.id)
    verdict = Judgement(1, "allow", found.action.digest.hex(), 0, "high", before)
    release = Release(found.asked.id, found.action.digest, ("per_x",), 0, "high")
    given = permit(found.action, verdict, release, attempt=1, deadline_seconds=5)
    outcome = world.parts.registry.of(CONNECTOR).perform(given)
    assert (outcome.status, outcome.error_class) == ("rejected", "not_enough_keys")
    bare = permit(found.action, verdict, None, attempt=1, deadline_seconds=5)
    assert world.parts.registry.of(CONNECTOR).perform(bare).error_class == "not_enough_keys"
    assert live(world) == before


def test_nobody_else_may_do_what_the_product_does_to_its_own_rules(world: World) -> None:
    """Not an agent, not an author: the operations are in nobody's catalogue."""
    with pytest.raises(CallerError, match="there is no connector 'twokeys'"):
        propose(world, Proposal(CONNECTOR, PUBLISH, "x", {"revision": "0" * 64}))
    with pytest.raises(AuthorError):
        world.apply(
            "name: sly\nversion: '1'\ntitle: Sly\ntrigger: {kind: manual}\nconnectors: [twokeys]\neffects: [twokeys.thaw]\n"
            "steps: [{id: a, kind: action, connector: twokeys, operation: thaw, target: x, fields: {lifts: all, reason: b}}]\n"
        )


def test_a_draft_is_brought_up_to_date(world: World) -> None:
    """What only one side changed is taken over, what both changed is named."""
    drafted(world, "mine", lambda data: data["blocked_targets"].append("INC1"))
    drafted(world, "clash", writes(70))
    drafted(world, "theirs", writes(20))
    world.until(published(world, "theirs", "ana"), "succeeded")
    made = world.parts.amend.rebase(world.tenant, world.actor("rita"), "mine")
    assert made.base_revision == live(world)
    assert (made.content.data["caps"]["max_writes_per_run"], made.content.data["blocked_targets"]) == (20, ["INC1"])
    with pytest.raises(CallerError, match=r"tenant.json caps.max_writes_per_run"):
        world.parts.amend.rebase(world.tenant, world.actor("rita"), "clash")


def test_after_an_upgrade_the_operator_adopts_the_releases_own_rules(world: World) -> None:
    assert world.parts.changes.adopt(world.tenant) == ""
    old = live(world)
    bundle = world.parts.bundle_of(world.tenant, old)
    guard = dict(bundle.modules)["twokeys/guard.rego"].replace("own_seconds := 86400", "own_seconds := 7200")
    own = {name: data for name, data in bundle.data["tenants"].items() if name != CANARY_TENANT}
    modules = {**dict(bundle.modules), "twokeys/guard.rego": guard}
    earlier = build(modules, {"defaults": {}, "tenants": {}}, own)
    with world.parts.database.unit(world.tenant) as unit:
        templates.put_policy(unit, earlier.revision, earlier.archive, sha256(earlier.archive), "test")
    assert world.parts.changes.adopt(world.tenant) == live(world) == old
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert changes.activations(unit, 1)[0].how == "adopted"
