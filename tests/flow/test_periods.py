"""Completeness: every entry between two checkpoints, every effect with what it needed, and what the target's own log tells beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.canonical import jcs
from engine.errors import CallerError
from engine.ledger.container import read_container, write_container
from engine.ledger.notes import log_origin
from engine.ledger.onefile import one_file
from engine.ledger.statement import PERIOD_TYPE, read_envelope, read_statement, write_envelope, write_statement
from engine.ledger.trust import read_trust
from engine.ledger.verify import Verified, verify
from tests.flow.test_published_logs import recorded
from tests.kit.seams import begin, notes
from tests.kit.world import INCIDENT, World

Files = dict[str, bytes]


@pytest.fixture
def made(sealing_world: World) -> tuple[World, bytes]:
    """A governed run with two people's keys, sealed, and one that waits; the evidence of everything until now."""
    world = sealing_world
    run = world.start()
    world.until(run, "waiting_approval")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    world.until(run, "succeeded")
    world.seal(run)
    waiting = world.start(ref="waits")
    world.until(waiting, "waiting_approval")
    while world.parts.log.step():
        pass
    return world, world.parts.period.build(world.tenant, "0", "")


def trust_of(world: World) -> bytes:
    return world.parts.trust(world.tenant).encode()


def checked(world: World, bundle: bytes) -> Verified:
    return verify(bundle, read_trust(trust_of(world)))


def test_a_period_is_verified_by_the_one_file_alone(made: tuple[World, bytes], tmp_path: Path) -> None:
    world, bundle = made
    (tmp_path / "b.zip").write_bytes(bundle)
    (tmp_path / "policy.txt").write_bytes(trust_of(world))
    (tmp_path / "verify.py").write_text(one_file())
    done = subprocess.run(
        [sys.executable, "-I", "-S", "verify.py", "b.zip", "--trust", "policy.txt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none is missing, none is beside" in done.stdout
    assert f"log of tenant {world.tenant} from 0 to" in done.stdout.splitlines()[-1]
    facts = checked(world, bundle).facts
    assert facts["completeness"]["runs"] == 2
    assert facts["completeness"]["counts"]["effect_intended"] >= 3
    assert facts["unsealed"] == 0
    assert world.parts.period.build(world.tenant, "0", "") == bundle, "the same period gives the same bytes"


def test_what_the_targets_own_log_tells_is_held_against_the_effects(made: tuple[World, bytes]) -> None:
    world, _ = made
    world.servicenow.change(INCIDENT, {"state": "7"}, user="somebody.else")
    recorded(world, "later")
    bundle = world.parts.period.build(world.tenant, "0", "")
    (system,) = json.loads(bytes(read_container(bundle)["data/reconciled.json"]))["systems"]
    assert system["error"] == ""
    assert system["ours"] >= 2
    assert system["unexplained"] == []
    assert [change["field"] for change in system["foreign"]] == ["state"]
    result = checked(world, bundle)
    assert result.outcome == 0
    assert any("1 changes by others" in remark for remark in result.remarks)


def test_a_change_with_our_credentials_that_no_effect_explains_is_named(sealing_world: World) -> None:
    world = sealing_world
    world.servicenow.change(INCIDENT, {"impact": "1"}, user=world.servicenow.user)
    begin(world, notes("late", "note"))
    while world.parts.log.step():
        pass
    start = "0"
    bundle = world.parts.period.build(world.tenant, start, "")
    result = checked(world, bundle)
    assert result.outcome == 0
    assert any("our credentials that no effect explains" in remark for remark in result.remarks), result.remarks


def test_a_target_that_does_not_answer_is_said(made: tuple[World, bytes]) -> None:
    world, _ = made
    world.servicenow.plan("error_500", times=5)
    bundle = world.parts.period.build(world.tenant, "0", "")
    result = checked(world, bundle)
    assert result.outcome == 0
    assert any("could not be read" in remark for remark in result.remarks)


def test_a_period_goes_on_where_the_last_one_ended(made: tuple[World, bytes]) -> None:
    world, first = made
    middle = checked(world, first).facts["tree_size"]
    (run,) = [row["run"] for row in world.rows("select run from run where tenant = :tenant and ended_at is null")]
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    while world.parts.log.step():
        pass
    second = checked(world, world.parts.period.build(world.tenant, str(middle), ""))
    assert second.outcome == 0, second.findings
    assert second.facts["from_size"] == middle
    assert any("what happened before the period" in remark for remark in second.remarks)
    assert checked(world, world.parts.period.build(world.tenant, "0", "2099-01-01")).outcome == 0
    for since, until in (("1", ""), ("0", "1"), ("never", ""), ("2099-01-01", "2000-01-01")):
        with pytest.raises(CallerError):
            world.parts.period.build(world.tenant, since, until)


# --- attacks ----------------------------------------------------------------------------------------------------------


def resealed(world: World, files: Files, **said: Any) -> bytes:
    """Whoever does this holds the bundle key."""
    signer = world.parts.secrets.signer(world.tenant, "bundle")
    payload, _ = read_envelope(files["attestation.intoto.jsonl"])
    _, predicate = read_statement(payload, PERIOD_TYPE)
    from hashlib import sha256

    data = {name: body for name, body in files.items() if name.startswith("data/")}
    manifest = "".join(f"{sha256(data[name]).hexdigest()}  {name}\n" for name in sorted(data)).encode()
    statement = write_statement(sha256(manifest).hexdigest(), {**predicate, **said}, PERIOD_TYPE)
    files["manifest-sha256.txt"] = manifest
    files["attestation.intoto.jsonl"] = write_envelope(statement, signer.public, signer.sign)
    return write_container(files)


def lines(files: Files) -> list[bytes]:
    return files["data/entries.jsonl"].split(b"\n")[:-1]


def without_line(world: World, files: Files) -> bytes:
    kept = lines(files)
    del kept[5]
    files["data/entries.jsonl"] = b"".join(line + b"\n" for line in kept)
    return resealed(world, files, entries=len(kept))


def truncated(world: World, files: Files) -> bytes:
    kept = lines(files)[:-3]
    files["data/entries.jsonl"] = b"".join(line + b"\n" for line in kept)
    return resealed(world, files, entries=len(kept))


def exchanged(world: World, files: Files) -> bytes:
    kept = lines(files)
    kept[3], kept[4] = kept[4], kept[3]
    files["data/entries.jsonl"] = b"".join(line + b"\n" for line in kept)
    return resealed(world, files)


def kinder_report(world: World, files: Files) -> bytes:
    value = json.loads(files["data/completeness.json"])
    value["runs"] += 1
    files["data/completeness.json"] = jcs(value)
    return resealed(world, files)


def later_begin(world: World, files: Files) -> bytes:
    value = json.loads(files["data/period.json"])
    value["from_size"] = 1
    value["frontier"] = ["ab" * 32]
    files["data/period.json"] = jcs(value)
    kept = lines(files)[1:]
    files["data/entries.jsonl"] = b"".join(line + b"\n" for line in kept)
    return resealed(world, files, entries=len(kept), from_size=1)


def of_a_run(world: World, files: Files) -> bytes:
    del files["data/period.json"]
    return resealed(world, files)


ATTACKS: dict[str, tuple[Callable[[World, Files], bytes], str]] = {
    "an entry left out": (without_line, "root"),
    "the end cut off": (truncated, "root"),
    "two entries exchanged": (exchanged, "root"),
    "a kinder report": (kinder_report, "completeness"),
    "another begin": (later_begin, "root"),
    "said to be of a run": (of_a_run, "manifest-set"),
}


def test_attacks_by_whoever_holds_the_bundle_key_are_caught_and_named(made: tuple[World, bytes]) -> None:
    world, bundle = made
    for name, (attack, code) in ATTACKS.items():
        files = {key: bytes(body) for key, body in read_container(bundle).items()}
        result = checked(world, attack(world, files))
        assert (result.outcome, [finding.code for finding in result.findings]) == (1, [code]), name
    assert log_origin("test", world.tenant) == checked(world, bundle).facts["origin"]


def test_what_is_no_known_kind_of_period_is_refused(made: tuple[World, bytes]) -> None:
    world, bundle = made
    for place in range(0, len(bundle), 997):
        changed = bytearray(bundle)
        changed[place] ^= 1
        assert checked(world, bytes(changed)).outcome in (1, 3), place
