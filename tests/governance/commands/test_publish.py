"""P12, P13: a version names one content for ever, one version is active at a time, and a run stays with what it started from."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import AuthorError, Conflict, Refused, TwokeysError
from governance.commands.publish import Published
from tests.governance.commands.kit import small, stored, unique
from tests.kit.world import INPUT, SAMPLE, World

ONE_KEY = """
name: one-key
version: "{version}"
title: One key
description: Raises an incident.
trigger: {{kind: manual}}
inputs: {{type: object, required: [sys_id], additionalProperties: true, properties: {{sys_id: {{type: string}}}}}}
connectors: [servicenow]
effects: [servicenow.update]
risk_ceiling: med
steps:
  - {{id: raise, kind: action, connector: servicenow, operation: update, target: "${{input.sys_id}}", risk: med,
  fields: {{impact: "{impact}"}}}}
"""


def apply(world: World, text: bytes, by: str = "rita") -> Published:
    return world.parts.publish.apply(world.tenant, world.actor(by), text, "small.yaml")


def versions(world: World, name: str) -> dict[str, str]:
    found = world.rows("select version, state from template where tenant = :tenant and name = :name", name=name)
    return {row["version"]: row["state"] for row in found}


def test_the_same_file_again_changes_nothing(company: World) -> None:
    name = unique()
    first = apply(company, small(name))
    before = stored(company)
    assert apply(company, small(name)) == first
    # Another layout of the same content is the same content.
    assert apply(company, small(name) + b"\n# a remark\n") == first
    assert stored(company) == before


def test_a_version_never_gets_another_content(company: World) -> None:
    name = unique()
    first = apply(company, small(name))
    before = stored(company)
    with pytest.raises(Refused, match="version 1 is published already with other content") as caught:
        apply(company, small(name, "1", "Another one."))
    assert (caught.value.code, caught.value.next_step) == ("version_taken", "raise the version")
    assert stored(company) == before
    company.parts.publish.archive(company.tenant, company.actor("l5"), name, "1")
    with pytest.raises(Refused, match="other content"):
        apply(company, small(name, "1", "Another one."))
    assert first.state == "active"


def test_a_new_version_takes_over_and_the_old_one_is_archived(company: World) -> None:
    name = unique()
    apply(company, small(name))
    apply(company, small(name, "2", "Better."))
    assert versions(company, name) == {"1": "archived", "2": "active"}
    assert company.entries(f"template/{name}") == [
        "template.created", "template.activated", "template.created", "template.archived", "template.activated",
    ]  # fmt: skip


def test_an_archived_version_does_not_come_back(company: World) -> None:
    name = unique()
    apply(company, small(name))
    apply(company, small(name, "2", "Better."))
    before = stored(company)
    with pytest.raises(Refused, match="cannot activate a template that is archived"):
        apply(company, small(name))
    assert stored(company) == before


def test_archiving_twice_or_something_unknown_is_refused(company: World) -> None:
    name = unique()
    apply(company, small(name))
    archive = company.parts.publish.archive
    archive(company.tenant, company.actor("l5"), name, "1")
    with pytest.raises(Refused, match="archived"):
        archive(company.tenant, company.actor("l5"), name, "1")
    for known, version in ((name, "9"), ("never-seen", "1")):
        with pytest.raises(TwokeysError, match=f"{known} {version} is not published"):
            archive(company.tenant, company.actor("l5"), known, version)


def test_what_is_invalid_is_refused_with_every_fault_at_its_place_and_nothing_is_stored(company: World) -> None:
    text = small("broken").replace(b"kind: assign", b"kind: asign").replace(b"risk_ceiling: low", b"risk_ceiling: tiny")
    before = stored(company)
    with pytest.raises(AuthorError) as caught:
        apply(company, text)
    assert "small.yaml:" in str(caught.value)
    assert "asign" in str(caught.value)
    assert "risk_ceiling" in str(caught.value)
    assert stored(company) == before


def test_checking_needs_nobody_and_stores_nothing(company: World) -> None:
    before = stored(company)
    assert company.parts.publish.check(small("checked"), "x.yaml").name == "checked"
    with pytest.raises(AuthorError):
        company.parts.publish.check(b"name: [", "x.yaml")
    assert stored(company) == before


def test_versions_that_are_published_at_once_leave_one_active(company: World) -> None:
    name = company.apply(small(unique()))
    barrier = threading.Barrier(6)

    def go(version: int) -> str:
        barrier.wait()
        try:
            return apply(company, small(name, str(version), f"Number {version}.")).state
        except (Conflict, Refused) as error:
            return error.code

    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(go, range(2, 8)))
    assert "active" in said
    found = versions(company, name)
    assert list(found.values()).count("active") == 1
    assert set(found.values()) == {"active", "archived"}
    # Whoever was told that it is active was, and whoever was refused left nothing.
    assert len(found) == 1 + said.count("active")


def test_the_same_file_published_at_once_is_one_version(company: World) -> None:
    name = unique()
    barrier = threading.Barrier(6)

    def go(_: int) -> str:
        barrier.wait()
        try:
            return apply(company, small(name)).state
        except Conflict as error:
            return error.code

    with ThreadPoolExecutor(6) as pool:
        said = set(pool.map(go, range(6)))
    assert "active" in said
    assert versions(company, name) == {"1": "active"}
    assert company.entries(f"template/{name}") == ["template.created", "template.activated"]


def test_a_run_stays_with_the_version_it_started_from(world: World) -> None:
    """Queued, and waiting for a person, when the new version comes."""
    value = {"sys_id": INPUT["sys_id"]}
    apply(world, ONE_KEY.format(version="1", impact="1").encode())
    waiting = world.start("one-key", value=value, ref="waiting")
    world.until(waiting, "waiting_approval")
    queued = world.start("one-key", value=value, ref="queued")
    apply(world, ONE_KEY.format(version="2", impact="2").encode())
    later = world.start("one-key", value=value, ref="later")

    world.approve(waiting, "ana")
    world.until(waiting, "succeeded")
    assert world.writes("impact") == ["1"]
    world.until(queued, "succeeded", "waiting_approval")
    world.until(later, "waiting_approval")
    assert [(f.name, f.value) for f in world.waiting(later).action.fields] == [("impact", "2")]
    pinned = {run: world.case(run).origin.version for run in (waiting, queued, later)}
    assert pinned == {waiting: "1", queued: "1", later: "2"}


def test_the_sample_is_published_as_it_is_shipped(company: World) -> None:
    before = stored(company)
    published = apply(company, SAMPLE.read_bytes())
    assert (published.name, published.state) == ("incident-triage", "active")
    assert stored(company) == before
