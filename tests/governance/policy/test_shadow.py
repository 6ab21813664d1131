"""A draft in the shadow is asked everything and changes nothing: differences are kept, its faults are nobody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.canonical import decode
from engine.catalog.draft import Draft
from engine.errors import CallerError, Conflict, Refused
from engine.gate.verdict import PolicyFault
from governance.policy import shadow
from governance.policy.replay import Judging
from governance.policy.shadow import Shadow
from governance.store import drafts
from tests.governance.test_cli import Cli, cli, shell
from tests.governance.test_cli_journal import finished
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]

BLOCK = '\ndeny contains {"code": "no_closing", "message": "m"} if {\n\tinput.action.operation == "close"\n}\n'
OVERLAY = "twokeys/overlay.rego"


def begin(world: World, name: str = "d", overlay: str = BLOCK) -> Draft:
    """A draft in the shadow whose overlay says this besides."""
    content = world.parts.amend.begin(world.tenant, world.actor("rita"), name).content
    content = replace(content, modules={**content.modules, OVERLAY: content.modules[OVERLAY] + overlay})
    world.parts.amend.edit(world.tenant, world.actor("rita"), name, content)
    world.parts.amend.shadow(world.tenant, world.actor("rita"), name, True)
    return content


def look(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if five seconds had gone by."""
    monkeypatch.setattr(shadow, "look_seconds", 0.0)


def found(world: World, name: str = "d") -> list[drafts.Difference]:
    while world.parts.shadow.step():
        pass
    with world.parts.database.unit(world.tenant, write=False) as unit:
        return drafts.differences(unit, name, 100)


def test_differences_are_kept_and_nothing_else_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on under the policy in force; the shadow says what the draft would have denied."""
    look(monkeypatch)
    begin(world)
    run = finished(world)
    assert world.case(run).state == "succeeded"
    seen = found(world)
    assert {(one.n, one.how, one.old, one.new) for one in seen} == {(2, "tighter", "needs_approval", "deny")}
    asked = {bytes(row["input"]) for row in world.rows("select input from verdict where tenant = :tenant")}
    assert {decode(one.body)["input"] for one in seen} <= asked
    assert [reason["code"] for reason in decode(seen[0].body)["new"]["reasons"]] == ["no_closing"]
    assert not world.rows("select 1 from verdict where tenant = :tenant and purpose not in ('enforce', 'recheck')")


def test_without_a_draft_nothing_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a draft that was taken out, or withdrawn, is asked no more."""
    look(monkeypatch)
    begin(world)
    world.parts.amend.shadow(world.tenant, world.actor("rita"), "d", False)
    finished(world)
    assert found(world) == []
    world.parts.amend.shadow(world.tenant, world.actor("rita"), "d", True)
    world.parts.amend.withdraw(world.tenant, world.actor("rita"), "d")
    finished(world, ref="second")
    assert found(world) == []
    with pytest.raises(CallerError):
        world.parts.amend.shadow(world.tenant, world.actor("rita"), "d", True)


def test_a_draft_that_cannot_be_loaded_troubles_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its faults stay in the log; runs end as they would, and a mended edit is asked again."""
    look(monkeypatch)
    good = begin(world, overlay="\nthis is no rego\n")
    run = finished(world)
    assert world.case(run).state == "succeeded"
    assert found(world) == []
    mended = replace(good, modules={**good.modules, OVERLAY: good.modules[OVERLAY].replace("this is no rego", BLOCK)})
    world.parts.amend.edit(world.tenant, world.actor("rita"), "d", mended)
    finished(world, ref="second")
    assert {one.n for one in found(world)} == {3}


def test_an_engine_that_did_not_start_once_is_started_at_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that passes by itself leaves no draft unasked for ever."""
    look(monkeypatch)
    begin(world)
    started = shadow.Judging

    def busy(_: object) -> Judging:
        raise PolicyFault("timeout", "busy")

    monkeypatch.setattr(shadow, "Judging", busy)
    finished(world)
    assert found(world) == []
    monkeypatch.setattr(shadow, "Judging", started)
    finished(world, ref="second")
    assert found(world)


def test_a_draft_that_faults_is_told_as_such(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values for one rule: OPA refuses, the live policy does not notice."""
    look(monkeypatch)
    closing = 'if input.action.operation == "close"'
    conflict = f'\ndeny contains {{"code": both, "message": "m"}} {closing}\n\nboth := "a" {closing}\n\nboth := "b" {closing}\n'
    begin(world, overlay=conflict)
    finished(world)
    assert {(one.how, one.new) for one in found(world)} == {("fault", "deny")}


def test_one_draft_of_a_tenant_is_in_the_shadow(world: World) -> None:
    """The next one takes its place; the database holds it so."""
    begin(world, "one")
    begin(world, "two")
    with world.parts.database.unit(world.tenant, write=False) as unit:
        now = drafts.shadowed(unit)
    assert now is not None
    assert now.name == "two"
    with pytest.raises(Conflict), world.parts.database.unit(world.tenant) as unit:
        unit.run("update policy_draft set shadow = true where tenant = :tenant and draft = 'one'")
    with pytest.raises(Refused):
        world.parts.amend.shadow(world.tenant, world.actor("ana"), "one", True)


def test_a_slow_shadow_drops_and_never_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded; the oldest go."""
    full = Shadow(world.parts.database, world.parts.bundle_of)
    answer = None
    for n in range(shadow.queue_max + 10):
        full.note(world.tenant, b"%d" % n, answer)  # type: ignore[arg-type]
    assert len(full._queue) == shadow.queue_max
    assert full._queue[0].input_bytes == b"10"


def test_the_command_line_switches_it_and_shows_what_differed(
    world: World, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On, off, and the list, looser ones first."""
    look(monkeypatch)
    begin(world)
    assert cli("policy", "shadow", "d", "--off", **shell(world, "rita")).code == 0
    assert cli("policy", "shadow", "d", "--on", **shell(world, "rita")).code == 0
    finished(world)
    assert found(world)
    rows = cli("policy", "shadow", "d", "-o", "json", **shell(world, "aud")).data
    assert {(row["how"], row["in_force"], row["draft"]) for row in rows} == {("tighter", "needs_approval", "deny")}
    begin(world, "broken", overlay="\nno rego\n")
    assert cli("policy", "shadow", "broken", "--on", **shell(world, "rita")).code == 1
    assert cli("policy", "shadow", "nothing", "--on", **shell(world, "rita")).code == 2
