"""The main flow on real parts: proposal, verdict, keys, effect, receipt, bundle, verified by one file without us."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernel import rebuild
from governance.drive import Drive
from governance.evidence.sequence import trust_text
from governance.stages.advance import context_of
from governance.store import templates
from tests.kit.world import World

VERIFIER = Path(__file__).parents[2] / "governance" / "web" / "static" / "verify.py"

ALLOWED = """
name: five
version: "1"
title: Five
description: Five effects that policy allows.
trigger: {kind: manual}
inputs: {type: object, additionalProperties: false, properties: {sys_id: {type: string}}}
connectors: [servicenow]
effects: [servicenow.update]
risk_ceiling: low
steps:
"""
STEP = """
  - {id: step-%d, kind: action, connector: servicenow, operation: update, target: "${input.sys_id}", risk: low,
  fields: {work_notes: "note %d ${run.id}"}}
"""


def verify(directory: Path, bundle: bytes, trust: str) -> subprocess.CompletedProcess[str]:
    """Run the one-file verifier as an auditor would: an empty directory, no packages, no environment."""
    (directory / "bundle.zip").write_bytes(bundle)
    (directory / "policy.txt").write_text(trust)
    (directory / "verify.py").write_bytes(VERIFIER.read_bytes())
    command = [sys.executable, "-I", "-S", "verify.py", "bundle.zip", "--trust", "policy.txt"]
    return subprocess.run(command, cwd=directory, env={}, capture_output=True, text=True, check=False)


def test_a_run_with_both_gates_ends_sealed_and_verifies_offline(sealing_world: World, tmp_path: Path) -> None:
    """S004-8a..h: two gates, one of them for two people, then a bundle that needs no trust in us."""
    world = sealing_world
    run = world.start()
    world.until(run, "waiting_approval")
    assert world.waiting(run).asked.keys == 1
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    assert world.waiting(run).asked.keys == 2
    assert world.writes("close_code") == []
    world.approve(run, "bo", "cleo")
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1
    sealed = world.seal(run)

    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    trust = trust_text(world.parts.database, "test", world.tenant)
    done = verify(tmp_path, body, trust)
    assert done.returncode == 0, done.stdout + done.stderr

    broken = bytearray(body)
    broken[len(broken) // 3] ^= 1
    done = verify(tmp_path, bytes(broken), trust)
    assert done.returncode in (1, 3)
    assert re.search(r"step \(\d+\), .+ \[[a-z-]+\]", done.stdout), done.stdout


def test_a_run_with_an_outcome_that_a_person_told_verifies_offline(sealing_world: World, tmp_path: Path) -> None:
    """Must show 5: the stand-in stops after the commit, a person says that it happened, and the bundle holds."""
    world = sealing_world
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    world.servicenow.plan("crash_before_answer", method="PATCH", times=1)
    world.drain()
    world.servicenow.wait_until_down()
    world.servicenow.restart_if_down()
    unknown = next(p.promise for p in world.case(run).promises.values() if p.state == "unknown")
    world.parts.resolve.resolve(world.tenant, world.actor("bo"), run, unknown, "happened", "It is closed, I looked")
    world.until(run, "succeeded")
    assert len(world.writes("close_code")) == 1
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    done = verify(tmp_path, body, trust_text(world.parts.database, "test", world.tenant))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "I looked" not in body.decode("latin-1"), "a person's words stay outside the bundle"


def test_every_fact_of_the_run_is_in_its_chain_in_order(world: World) -> None:
    """P9: proposal before verdict, verdict before question, keys before release, intent before receipt."""
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    facts = world.entries(run)
    assert facts[:2] == ["run.queued", "run.started"]
    first = [
        facts.index(kind)
        for kind in ("action.proposed", "verdict.given", "effect.intended", "effect.receipted", "step.completed")
    ]
    assert first == sorted(first)
    asked, given, released = (facts.index(kind) for kind in ("approval.asked", "key.given", "approval.released"))
    assert asked < given < released
    # The recheck after the wait is recorded before the intent that it permits.
    assert facts[released:].index("verdict.given") < facts[released:].index("effect.intended")


def test_five_allowed_effects_cost_one_commit_each_and_one_more(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commit budget of the design: N + 1 is the target. A verdict that takes over 50 ms costs one more, so 2N + 2 is the ceiling."""
    world.apply(ALLOWED + "".join(STEP % (n, n) for n in range(5)))
    world.start("five", value={"sys_id": "9" * 32}, ref="warm")
    world.drain()  # the policy child is warm now
    counted: list[int] = []
    commit = Drive.commit
    monkeypatch.setattr(Drive, "commit", lambda drive: (commit(drive), counted.append(1))[0])
    run = world.start("five", value={"sys_id": "9" * 32}, ref="counted")
    world.drain()
    assert world.case(run).state == "succeeded"
    with capsys.disabled():
        sys.stdout.write(f"\ncommits of a run of five allowed effects: {len(counted)} (target 6, ceiling 12)\n")
    assert 6 <= len(counted) <= 12


def test_a_replay_of_the_journal_gives_the_stored_frame(world: World) -> None:
    """P8: the snapshot is a cache; the journal alone gives the same frame."""
    run = world.start()
    world.until(run, "waiting_approval")
    case = world.case(run)
    with world.parts.database.unit(world.tenant, write=False) as unit:
        definition = templates.by_digest(unit, case.origin.definition)
    assert case.frame is not None
    again = rebuild(case.stored, definition, context_of(case), case.payloads)
    assert again.to_value() == case.frame.to_value()
