"""What people agreed to is what runs: a change voids the keys and asks again, in the same thread, with the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from engine.errors import CallerError, Refused
from governance.commands.edit import Changed, Resubmitted
from governance.store import approvals
from governance.store.approvals import Recorded
from tests.flow.test_windows_and_stops import again, high, verified
from tests.kit.policies import enforce
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World


def change(world: World, found: Recorded, name: str, fields: Mapping[str, str], **more: Any) -> Resubmitted:
    """This person wants other values."""
    digest16 = more.pop("digest16", found.asked.action_digest.hex()[:16])
    return world.parts.edit.edit(
        Changed(world.tenant, found.asked.id, world.actor(name), digest16, fields, "better so", "api", **more)
    )


def refused(code: str, world: World, found: Recorded, name: str, fields: Mapping[str, str], **more: Any) -> str:
    with pytest.raises((CallerError, Refused)) as info:
        change(world, found, name, fields, **more)
    assert info.value.code == code
    return str(info.value)


def queued(world: World, kind: str, ref: str) -> list[dict[str, Any]]:
    """What is to be posted about this request."""
    rows = world.rows(
        "select body from outbox where tenant = :tenant and kind = :kind and ref = :ref", kind=kind, ref=ref
    )
    return [json.loads(bytes(row["body"])) for row in rows]


def test_what_changed_outside_is_asked_again_in_the_same_thread_with_the_difference(world: World) -> None:
    """P4: the keys are void, nothing ran, the thread says old and new, and the old card says that it is superseded."""
    run, found = high(world)
    world.post()
    world.press(found, "ana")
    assert world.press(found, "bo").code == "approved"
    world.servicenow.change(INCIDENT, {"state": "7"})
    world.until(run, "waiting_approval")
    new = world.waiting(run)
    assert (new.asked.id != found.asked.id, new.votes, new.root) == (True, (), found.asked.id)
    assert world.writes("close_code") == []
    (said,) = queued(world, "said", found.asked.id)
    assert "Changed since it was shown" in said["text"]
    assert "state (now) 2 → 7" in said["text"]
    assert "The keys of ana and bo are void." in said["text"]
    assert queued(world, "card", new.asked.id) == [{"after": found.asked.id}]
    assert approvals.phase_of(again(world, found)) == "superseded"
    assert world.press(found, "cleo").code == "decided"
    world.approve(run, "cleo", "ana")
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1


def test_keys_stand_when_only_the_policy_changed_and_they_still_satisfy_it(world: World) -> None:
    """The same action under another revision that asks no more: nobody is asked twice."""
    run, found = high(world)
    world.approve(run, "ana", "bo")
    enforce(world, '\ngrant contains {"code": "more", "message": "m"} if {\n\tinput.action.kind == "read"\n}\n')
    world.until(run, "succeeded")
    assert again(world, found).asked.status == "approved"
    assert world.entries(run).count("approval.asked") == 2


def test_an_edit_is_a_new_proposal_and_its_editor_holds_no_key(world: World) -> None:
    """Earlier keys are void, the editor joins the lineage, the changed values are what runs."""
    run, found = high(world)
    assert world.press(found, "ana").code == "key_given"
    done = change(world, found, "bo", {"close_notes": "Closed by Bo."})
    assert (done.run, "judged anew" in done.sentence) == (run, True)
    world.until(run, "waiting_approval")
    new = world.waiting(run)
    assert new.asked.action_digest != found.asked.action_digest
    assert new.asked.lineage[world.who["bo"]] == "editor"
    assert {one.name: one.value for one in new.action.fields}["close_notes"] == "Closed by Bo."
    assert world.press(new, "bo").code == "lineage"
    assert world.press(found, "cleo").code == "decided"
    world.approve(run, "ana", "cleo")
    world.until(run, "succeeded")
    assert world.writes("close_notes") == ["Closed by Bo."]
    assert world.entries(run).count("action.edited") == 1


def test_an_edit_is_judged_like_any_proposal(world: World) -> None:
    """What policy denies is not done because a person wrote it."""
    enforce(
        world,
        '\ndeny contains {"code": "too_long", "message": "m"} if {\n\tinput.action.payload_bytes > 400\n}\n',
    )
    run, found = high(world)
    change(world, found, "ana", {"close_notes": "x" * 500})
    world.until(run, "failed_terminal")
    assert "too_long" in world.steps(run)["close"]
    assert world.writes("close_code") == []


def test_who_may_not_edit_and_what_is_no_edit_is_said(world: World) -> None:
    """Outsiders, robots and stale pages change nothing; neither does an edit of nothing, of what is not there, or after the end."""
    run, found = high(world)
    new = {"close_notes": "other"}
    refused("not_approver", world, found, "olga", new)
    refused("not_human", world, found, "robot", new)
    refused("inactive", world, found, "dan", new)
    refused("level", world, found, "low", new)
    refused("stale_card", world, found, "ana", new, digest16="0" * 16)
    refused("invalid_body", world, found, "ana", {})
    assert "close_notes" in refused("invalid_body", world, found, "ana", {"colour": "red"})
    refused("invalid_body", world, found, "ana", {"close_notes": "x" * 50_000})
    refused("invalid_body", world, found, "ana", new, amount_minor=5)
    assert world.waiting(run).asked.id == found.asked.id
    change(world, found, "rita", new)  # whoever asked may put it right
    world.until(run, "waiting_approval")
    refused("decided", world, found, "ana", {"close_notes": "again"})


def test_two_edits_at_once_and_an_edit_sent_twice_make_one_each(world: World) -> None:
    """The second finds the first's withdrawal; the same one again is answered alike."""
    run, found = high(world)
    first = change(world, found, "ana", {"close_notes": "a"}, dedupe_key="k1")
    assert change(world, found, "ana", {"close_notes": "a"}, dedupe_key="k1") == first
    refused("decided", world, found, "bo", {"close_notes": "b"})
    world.until(run, "waiting_approval")
    new = world.waiting(run)
    change(world, new, "ana", {"close_code": "Solved"})
    world.until(run, "waiting_approval")
    last = world.waiting(run)
    values = {one.name: one.value for one in last.action.fields}
    assert (values["close_notes"], values["close_code"]) == ("a", "Solved")
    assert last.asked.lineage[world.who["ana"]] == "editor"
    assert last.root == found.asked.id


def test_the_bundle_of_an_edited_run_verifies(sealing_world: World) -> None:
    """Who edited what, and that they held no key for it, is re-derived offline."""
    world = sealing_world
    run, found = high(world)
    change(world, found, "bo", {"close_notes": "Closed by Bo."})
    world.until(run, "waiting_approval")
    world.approve(run, "ana", "cleo")
    world.until(run, "succeeded")
    assert verified(world, run) == (0, [])
