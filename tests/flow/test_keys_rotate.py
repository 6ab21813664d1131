"""Keys change while auditors keep what they pinned, and a key that may be stolen is believed no more."""

from __future__ import annotations

import pytest

from engine.errors import BrokenLedger, CallerError, Refused
from engine.ledger.notes import read_note
from engine.ledger.trust import read_trust
from engine.ledger.verify import verify
from governance.commands.keys import Rotate
from governance.keys import signed_by
from tests.kit.seams import begin, notes
from tests.kit.world import World


def orders(world: World) -> Rotate:
    return Rotate(world.parts.database, world.parts.secrets)


def bundle_of(world: World, name: str) -> bytes:
    run = begin(world, notes(name, "note"))
    world.until(run, "succeeded")
    sealed = world.seal(run)
    return world.parts.vault.get(sealed["object_key"], sealed["version_id"])


def policy(world: World) -> bytes:
    return world.parts.trust(world.tenant).encode()


def codes(bundle: bytes, trust: bytes) -> list[str]:
    return [finding.code for finding in verify(bundle, read_trust(trust)).findings]


def signatures(world: World) -> int:
    (row,) = world.rows(
        "select note from checkpoint where tenant = :tenant and note is not null order by size desc limit 1"
    )
    return len(read_note(bytes(row["note"])).signatures)


def test_a_log_key_is_rotated_with_overlap_and_then_distrusted(sealing_world: World) -> None:
    world, rotate = sealing_world, orders(sealing_world)
    before, first = policy(world), bundle_of(world, "first")
    old = next(key for key in rotate.listed(world.tenant) if key.purpose == "log")
    rotate.rotate(world.tenant, "log", 30)
    second = bundle_of(world, "second")
    assert signatures(world) == 2
    assert codes(first, policy(world)) == codes(second, policy(world)) == []
    assert codes(second, before) == [], "whoever pinned the old key still verifies"

    rotate.compromised(world.tenant, old.key_id)
    third = bundle_of(world, "third")
    assert signatures(world) == 1
    assert codes(third, policy(world)) == []
    assert codes(third, before) == ["note-nosig"]
    assert old.public.hex() not in {key.public.hex() for key in read_trust(policy(world)).logs}
    assert codes(first, policy(world)) == ["note-nosig"]
    assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []
    assert "key.rotated" in world.entries("key/log")


def test_bundle_and_receipt_keys_are_rotated_and_what_the_old_ones_signed_stays_valid(sealing_world: World) -> None:
    world, rotate = sealing_world, orders(sealing_world)
    before, first = policy(world), bundle_of(world, "first")
    for purpose in ("bundle", "receipt"):
        rotate.rotate(world.tenant, purpose)
    second = bundle_of(world, "second")
    assert codes(first, policy(world)) == codes(second, policy(world)) == []
    assert codes(second, before) == ["dsse-sig"]


def test_another_process_follows_within_half_a_minute(sealing_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from governance.store import secrets as room
    from governance.store.secrets import Secrets

    world = sealing_world
    other = Secrets(world.parts.database, bytes.fromhex(world.parts.settings.master_key))
    before = other.signer(world.tenant, "log").key_id
    made = orders(world).rotate(world.tenant, "log", 0)
    assert other.signer(world.tenant, "log").key_id == before
    monkeypatch.setattr(room, "known_seconds_max", -1.0)
    assert other.signer(world.tenant, "log").key_id == made
    assert other.beside(world.tenant) == ()


def test_what_cannot_be_is_refused(world: World) -> None:
    rotate = orders(world)
    active = {key.purpose: key.key_id for key in rotate.listed(world.tenant)}
    with pytest.raises(Refused, match="signs what is happening"):
        rotate.compromised(world.tenant, active["log"])
    for wrong in (lambda: rotate.rotate(world.tenant, "hash"), lambda: rotate.rotate(world.tenant, "log", -1),
                  lambda: rotate.compromised(world.tenant, "feedfacefeedface")):  # fmt: skip
        with pytest.raises(CallerError):
            wrong()


def test_a_key_of_small_order_checks_nothing() -> None:
    with pytest.raises(BrokenLedger):
        signed_by(bytes(32), b"anything", bytes(64))
