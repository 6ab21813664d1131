"""Every kind of clicker at every door gets the one answer that is theirs; fifty clicks at once are two keys; each field bites."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from engine.gate import reducer
from governance.commands.decide import Answer
from governance.store import attention, drafts, templates
from governance.store.approvals import Recorded
from tests.engine.gate.kit import findings, hold
from tests.flow.test_drift_and_edits import change
from tests.flow.test_windows_and_stops import high, soon_away
from tests.kit.policies import enforce
from tests.kit.seams import notes
from tests.kit.servicenow import INCIDENT
from tests.kit.world import TEAM, World

ONE_STEP = (
    notes("one-high", "closing").replace("risk: low", "risk: high").replace("risk_ceiling: low", "risk_ceiling: high")
)
DOORS = ("slack_button", "slack_modal", "console", "api", "cli")
# Who presses what has been asked for two people of @incident-managers or @oncall, and the one code that they are answered.
CLICKERS = {
    "requester": ("rita", "self"),
    "editor": ("cleo", "lineage"),
    "outsider": ("olga", "not_approver"),
    "deactivated": ("dan", "inactive"),
    "auditor": ("aud", "level"),
    "low level": ("low", "level"),
    "service": ("robot", "not_human"),
    "linked to nobody": ("", "unknown_person"),
    "the same person again": ("ana", "same_person"),
    "delegate of a key": ("deputy", "delegate"),
}


def press_at(world: World, found: Recorded, name: str, door: str) -> Answer:
    """This person at this door: Slack knows them by their Slack id, the others by their token."""
    if door.startswith("slack"):
        ref = world.slack_ref(name) if name else f"{TEAM}:UNOBODY"
        return world.press(found, name, via=door, actor_kind="slack", ref=ref)
    return world.press(found, name, via=door, ref="" if name else "0" * 64)


def test_ten_kinds_of_clicker_at_five_doors_get_one_code_each(world: World) -> None:
    """One choke point: whatever door somebody comes through, they are told the same, it is recorded, and nothing changes."""
    deputy = world.parts.admit.person(world.tenant, None, name="deputy", level=4)
    world.who["deputy"] = deputy
    world.parts.admit.token_known(world.tenant, deputy, world.token("deputy"), "test")
    world.parts.admit.link_slack(world.tenant, None, deputy, TEAM, "UDEPUTY")
    run, found = high(world)
    change(world, found, "cleo", {"close_notes": "Edited."})
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    soon_away(world, "ana", "deputy")
    assert world.press(found, "ana").code == "key_given"
    assert len(CLICKERS) * len(DOORS) == 50
    got = {
        (kind, door): press_at(world, found, name, door).code
        for kind, (name, _) in CLICKERS.items()
        for door in DOORS
    }  # fmt: skip
    assert got == {(kind, door): code for kind, (_, code) in CLICKERS.items() for door in DOORS}
    assert len(world.rows("select 1 from vote where tenant = :tenant and approval = :a", a=found.asked.id)) == 1
    refused = world.rows("select code, sum(count) as n from refusal where tenant = :tenant group by code")
    assert {row["code"]: row["n"] for row in refused} == Counter(code for _, code in CLICKERS.values() for _ in DOORS)
    assert world.press(found, "bo").code == "approved"
    world.until(run, "succeeded")


def fifty_at_once(world: World) -> None:
    """Fifty clicks by ten people on a card that takes two keys."""
    run = world.start("one-high", value={"sys_id": INCIDENT})
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    assert found.asked.keys == 2
    names = ["ana", "bo", "cleo", "rita", "olga", "dan", "aud", "low", "robot", "ana"]
    answers: list[Answer] = []
    barrier = threading.Barrier(50)

    def click(n: int) -> None:
        barrier.wait()
        answers.append(world.press(found, names[n % 10], dedupe=f"{run}-{n}"))

    threads = [threading.Thread(target=click, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 50
    for name in names[:3]:  # who was told to try again does
        if any(answer.code == "try_again" for answer in answers):
            answers.append(world.press(found, name))
    codes = Counter(answer.code for answer in answers)
    assert (codes["approved"], codes["key_given"]) == (1, 1)
    votes = world.rows("select person from vote where tenant = :tenant and approval = :a", a=found.asked.id)
    assert len({row["person"] for row in votes}) == len(votes) == 2
    assert world.entries(run).count("approval.released") == 1
    world.until(run, "succeeded")


def test_fifty_clicks_at_once_are_two_keys_and_one_release_twenty_times_over(world: World) -> None:
    world.apply(ONE_STEP)
    for _ in range(20):
        fifty_at_once(world)
    assert len(world.writes("work_notes")) == 20


@pytest.mark.deep
def test_fifty_clicks_at_once_are_two_keys_and_one_release_two_hundred_times_over(world: World) -> None:
    world.apply(ONE_STEP)
    for _ in range(200):
        fifty_at_once(world)
    assert len(world.writes("work_notes")) == 200


# What is put in the place of each field of a hold, and of each obligation beside it, and what must be different by it.
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"code": "other_rule"}, "reasons"),
    "message": ({"message": "because of something else"}, "reasons"),
    "tier": ({"tier": "high"}, "tier"),
    "two_person": ({"two_person": True}, "keys"),
    "groups": ({"groups": ["finance"]}, "groups"),
    "expires_in_s": ({"expires_in_s": 61}, "expires_in_s"),
    "counts": ({"counts": {"oncall": 3}}, "counts"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_hold_changes_what_is_asked(field: str) -> None:
    """A knob that nobody reads is how gates of others failed."""
    assert set(FIELDS) == reducer._hold_keys | {"counts"}
    changed, part = FIELDS[field]
    subject = {"kind": "write", "risk_tier": "low", "reversible": True}
    plain = hold(tier="med", two_person=False, groups=["oncall"], expires_in_s=600)
    before = reducer.reduce(findings(holds=[plain]), subject)
    after = reducer.reduce(findings(holds=[{**plain, **changed}]), subject)
    assert before["effect"] == after["effect"] == "needs_approval"
    assert before[part] != after[part]


# --- the author of a rule -----------------------------------------------------------------------------------------------


def test_the_last_author_of_the_rule_that_set_the_tier_holds_no_key(world: World) -> None:
    """Bo changed the rule tier_high in a draft that was published, Cleo another rule of it; the tenant may switch that off."""
    base = _published(world)
    world.parts.amend.begin(world.tenant, world.actor("rita"), "stricter")
    draft = _draft(world, "stricter")
    _edit(world, "stricter", "bo", draft, "high risk: two people decide", "high risk: two people decide, said Bo")
    draft = _draft(world, "stricter")
    _edit(world, "stricter", "cleo", draft, "medium risk: one person decides", "medium risk: one decides, said Cleo")
    revision = enforce(world, "\n# as published\n")
    with world.parts.database.unit(world.tenant) as unit:
        drafts.close(unit, "stricter", "published", revision)
    assert revision != base
    run, found = high(world, first="ana")
    assert found.asked.lineage.get(world.who["bo"]) == "rule_author"
    assert world.who["cleo"] not in found.asked.lineage
    answer = world.press(found, "bo")
    assert (answer.code, answer.sentence) == (
        "lineage",
        "You wrote the rule that asks for this; another person must decide.",
    )
    world.parts.gate.settings.set(world.tenant, None, {"rule_author": False})
    run, found = high(world, first="cleo")
    assert world.who["bo"] not in found.asked.lineage
    assert world.press(found, "bo").code == "key_given"
    assert world.case(run).state == "waiting_approval"


def _published(world: World) -> str:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return templates.active_revision(unit)


def _draft(world: World, name: str) -> Any:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return drafts.load(unit, name).draft


def _edit(world: World, name: str, who: str, draft: Any, old: str, new: str) -> None:
    from engine.catalog.draft import Draft

    path = "twokeys/base.rego"
    assert old in draft.modules[path]
    modules = {**draft.modules, path: draft.modules[path].replace(old, new)}
    with world.parts.database.unit(world.tenant) as unit:
        drafts.edit(unit, name, world.who[who], Draft(modules, draft.tests, draft.data, draft.dropped))


# --- attention ----------------------------------------------------------------------------------------------------------


def test_how_each_decision_was_made_is_recorded_and_summed_up(world: World) -> None:
    """Seconds from the question to the decision, and whether the whole of it had been before the person."""
    run, found = high(world)
    assert world.press(found, "ana", via="slack_button", actor_kind="slack", ref=world.slack_ref("ana")).ok
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update approval set requested_at = requested_at - interval '90 seconds' where tenant = :tenant")
    assert world.press(found, "olga", via="slack_modal").code == "not_approver"
    assert world.press(found, "bo", kind="reject", reason="no").code == "rejected"
    with world.parts.database.unit(world.tenant, write=False) as unit:
        known = {one.person: one for one in attention.figures(unit)}
    ana, bo = known[world.who["ana"]], known[world.who["bo"]]
    assert (ana.decisions, ana.viewed, ana.rejected) == (1, 0, 0)
    assert ana.median_seconds < 80
    assert (bo.decisions, bo.viewed, bo.rejected) == (1, 1, 1)
    assert 90 <= bo.median_seconds < 170
    viewed = world.rows("select person from viewing where tenant = :tenant and approval = :a", a=found.asked.id)
    assert {row["person"] for row in viewed} == {world.who["bo"], world.who["olga"]}
    body = "(convert_from(body, 'UTF8')::json -> 'body')"
    said = world.rows(
        f"select {body} ->> 'viewed' as viewed from entry_pending where tenant = :tenant and chain = :run "
        "and convert_from(body, 'UTF8')::json ->> 'type' = 'key.given' order by chain_seq desc limit 1",
        run=run,
    )
    assert [row["viewed"] for row in said] == ["false"]
