"""Every attack of the table is caught, named by its code and answered with its exit code, and nothing else is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import pytest

from engine.errors import BrokenLedger
from engine.ledger.command import run_verifier
from engine.ledger.container import read_container, write_container
from engine.ledger.trust import read_trust
from engine.ledger.verify import verify
from tests.bundles.cases import CASES, VALID, Case
from tests.engine.ledger.factory import resealed, small_run, trust_text, two_person_run


def answered(given: Case) -> tuple[int, dict[str, object]]:
    files = {"b.zip": given.bundle, "policy.txt": (given.trust or trust_text()).encode()}
    written: list[str] = []
    trust = [] if given.trust == "none" else ["--trust", "policy.txt"]
    code = run_verifier(["b.zip", *trust, "--json", *given.arguments], files.__getitem__, written.append)
    return code, json.loads(written[0]) if written[0].startswith("{") else {}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_attack_is_caught_and_named(name: str) -> None:
    given = CASES[name]()
    code, said = answered(given)
    findings = said.get("findings", [])
    assert isinstance(findings, list)
    assert (code, [finding["code"] for finding in findings]) == (given.exit, [given.code] if given.code else [])
    assert all(finding["record"] and finding["reason"] for finding in findings)


@pytest.mark.parametrize("name", sorted(VALID))
def test_an_honest_bundle_is_valid(name: str) -> None:
    code, said = answered(VALID[name]())
    assert (code, said["findings"]) == (0, [])
    assert len(said["steps"]) == 10  # type: ignore[arg-type]


def test_a_rewrite_with_every_stolen_key_passes_without_a_witness_and_is_called_unwitnessed() -> None:
    code, said = answered(VALID["two_person"]())
    assert code == 0
    assert any("unwitnessed" in remark for remark in said["remarks"])  # type: ignore[attr-defined]
    code, said = answered(VALID["witnessed"]())
    assert code == 0
    assert said["remarks"] == []


def test_every_byte_of_a_bundle_matters() -> None:
    bundle, trust = small_run().bundle(), read_trust(trust_text().encode())
    assert verify(bundle, trust).outcome == 0
    for place in range(len(bundle)):
        changed = bytearray(bundle)
        changed[place] ^= 1 << (place % 8)
        assert verify(bytes(changed), trust).outcome in (1, 3), place


SIGNED = ("manifest-sha256.txt", "data/checkpoint", "attestation.intoto.jsonl", "bagit.txt")


def test_every_byte_of_manifest_checkpoint_and_attestation_matters_in_a_well_formed_archive() -> None:
    flip_signed_files(lambda place: (place % 8,))


@pytest.mark.deep
def test_every_bit_of_manifest_checkpoint_and_attestation_matters_in_a_well_formed_archive() -> None:
    flip_signed_files(lambda place: range(8))


def flip_signed_files(bits: Callable[[int], Iterable[int]]) -> None:
    bundle, trust = small_run().bundle(), read_trust(trust_text().encode())
    files = {name: bytes(body) for name, body in read_container(bundle).items()}
    for name in SIGNED:
        for place in range(len(files[name])):
            for bit in bits(place):
                changed = bytearray(files[name])
                changed[place] ^= 1 << bit
                flipped = write_container({**files, name: bytes(changed)})
                assert verify(flipped, trust).outcome == 1, (name, place, bit)


def test_every_byte_of_the_log_and_its_records_matters_to_a_thief_of_the_bundle_key() -> None:
    trust = read_trust(trust_text().encode())
    files = {name: bytes(body) for name, body in read_container(small_run().bundle()).items()}
    # What is derived, and says so, carries no weight; everything else must break under one flipped bit.
    derived = {"data/README.txt", "data/report.html", "data/trust.txt", "data/verify.py"}
    evidence = sorted(name for name in files if name.startswith("data/") and name not in derived)
    for name in evidence:
        for place in range(0, len(files[name]), 11):
            changed = bytearray(files[name])
            changed[place] ^= 1 << (place % 8)
            flipped = write_container(resealed({**files, name: bytes(changed)}))
            assert verify(flipped, trust).outcome in (1, 2), (name, place)


def test_the_same_contents_give_the_same_bytes() -> None:
    assert hashlib.sha256(two_person_run().bundle()).digest() == hashlib.sha256(two_person_run().bundle()).digest()


def test_trust_policies_are_read_strictly() -> None:
    good = trust_text()
    assert read_trust(good.encode()).quorum == "none"
    log = next(line for line in good.split("\n") if line.startswith("log"))
    for wrong in (
        "",
        good.replace("quorum none", ""),
        good + "quorum none\n",
        good + "trusted yes\n",
        good + log + "\n",
        good + "witness w\n",
        good + "group g 1 nobody\n",
        good.replace("quorum none", "quorum nobody"),
        good.replace("tenant", "min-size"),
        good + "\x00",
        good.replace(log, ""),
        good.replace(log, log[:-4]),
        good.replace(log, log[:-1] + ("A" if log[-1] != "A" else "B")),
    ):
        with pytest.raises(BrokenLedger):
            read_trust(wrong.encode())
    with pytest.raises(BrokenLedger):
        read_trust(b"\xff" + good.encode())


def test_quorums_count_members_of_groups() -> None:
    from engine.ledger.notes import COSIGNATURE, write_vkey
    from tests.engine.ledger.factory import Key

    keys = [f"witness w{n} {write_vkey(f'w{n}.example', Key(f'w{n}').public, COSIGNATURE)}" for n in range(4)]
    text = trust_text().replace("quorum none", "") + "\n".join(keys)
    trust = read_trust(f"{text}\ngroup a 2 w0 w1 w2\ngroup b any w3\ngroup c all a b\nquorum c\n".encode())
    for seen, enough in (("", False), ("w0 w1", False), ("w0 w3", False), ("w0 w2 w3", True), ("w0 w1 w2 w3", True)):
        assert trust.has_quorum(dict.fromkeys(seen.split(), 1)) is enough
    for wrong in ("group a 0 w0", "group a 3 w0 w1", "group a 1 w0 w0", "group none any w0", "group w1 any w0"):
        with pytest.raises(BrokenLedger):
            read_trust(f"{text}\n{wrong}\nquorum none\n".encode())
