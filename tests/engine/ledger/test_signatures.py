"""Ed25519, notes and statements accept one writing of what a key signed, and agree with other implementations."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.canonical import encode
from engine.errors import BrokenLedger
from engine.gate.receipt import signed_bytes
from engine.journal.events import FIRST_PREV, decode_row, entry_bytes, link
from engine.ledger.container import read_container
from engine.ledger.ed25519 import check_public, verify_signature
from engine.ledger.layout import journal_events, journal_head, receipt_signed_bytes
from engine.ledger.notes import (
    COSIGNATURE,
    Checkpoint,
    VerifierKey,
    cosigned_at,
    log_origin,
    read_checkpoint,
    read_note,
    read_vkey,
    sign_note,
    signed_by_log,
    tenant_of,
    write_vkey,
)
from engine.ledger.statement import pre_authentication
from engine.ledger.trust import public_id
from governance import keys
from tests.bundles.cases import cosigned
from tests.engine.ledger.factory import BUNDLE, LOG, ORIGIN, RECEIPT, THIEF, WITNESS, trust_text, two_person_run

ORDER = 2**252 + 27742317777372353535851937790883648493
# Every encoding of a point of order 1, 2, 4 or 8, the two that are not reduced included.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
# RFC 8032 7.1: public key, message, signature of tests 1 to 3.
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize("arithmetic", [True, False])
def test_both_ways_hold_the_vectors_of_rfc_8032(arithmetic: bool) -> None:
    for public, message, signature in RFC_8032:
        raw = [bytes.fromhex(part) for part in (public, message, signature)]
        assert verify_signature(raw[0], raw[1], raw[2], arithmetic=arithmetic)
        assert not verify_signature(raw[0], raw[1] + b"\0", raw[2], arithmetic=arithmetic)


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_signature_has_one_writing(arithmetic: bool) -> None:
    message = b"text"
    signature = LOG.sign(message)
    larger = (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    for wrong in (signature[:32] + larger, signature[:-1], signature + b"\0", b"", bytes(64), signature[32:] * 2):
        assert not verify_signature(LOG.public, message, wrong, arithmetic=arithmetic)


@pytest.mark.parametrize("arithmetic", [True, False])
@pytest.mark.parametrize("text", SMALL_ORDER)
def test_a_key_of_small_order_signs_nothing(text: str, arithmetic: bool) -> None:
    public = bytes.fromhex(text)
    with pytest.raises(BrokenLedger):
        check_public(public)
    forged = b"\x01" + bytes(63)
    assert not verify_signature(public, b"anything", forged, arithmetic=arithmetic)
    with pytest.raises(BrokenLedger):
        write_vkey("x", public)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 511), st.booleans())
def test_both_ways_agree_with_the_library_about_changed_signatures(message: bytes, bit: int, change: bool) -> None:
    signature = bytearray(LOG.sign(message))
    if change:
        signature[bit // 8] ^= 1 << (bit % 8)
    try:
        Ed25519PublicKey.from_public_bytes(LOG.public).verify(bytes(signature), message)
        expected = True
    except InvalidSignature:
        expected = False
    for arithmetic in (True, False):
        assert verify_signature(LOG.public, message, bytes(signature), arithmetic=arithmetic) is expected


# The published example of the Go note package.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NOTE = """If you think cryptography is the answer to your problem,
then you don't know what your problem is.

— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
"""


def test_a_note_of_another_implementation_holds() -> None:
    key = read_vkey(NEUMANN)
    assert write_vkey(key.name, key.public) == NEUMANN
    assert signed_by_log(read_note(NOTE.encode()), key)
    with pytest.raises(BrokenLedger):
        signed_by_log(read_note(NOTE.replace("know", "knew").encode()), key)
    assert not signed_by_log(read_note(NOTE.encode()), VerifierKey("x", 1, LOG.public))


def test_every_mangled_key_is_refused() -> None:
    for place in range(len(NEUMANN)):
        for wrong in (NEUMANN[:place], NEUMANN[:place] + chr(ord(NEUMANN[place]) + 1) + NEUMANN[place + 1 :]):
            with pytest.raises(BrokenLedger):
                read_vkey(wrong)
        for end in range(place + 1, len(NEUMANN)):
            with pytest.raises(BrokenLedger):
                read_vkey(NEUMANN[place:end])


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "text\n",
        "text\n\n",
        "text\n\n— x\n",
        NOTE[:-1],
        NOTE.replace("— ", "- "),
        NOTE.replace("— ", "—  "),
        NOTE.replace("=\n", "\n"),
        NOTE.replace("PeterNeumann x", "Peter+Neumann x"),
        NOTE + "x\n",
        NOTE.replace("\n\n", "\n"),
        NOTE.replace("your", "your\t"),
        NOTE.replace("your", "your\r"),
        NOTE + NOTE.split("\n\n")[1] * 100,
    ],
)
def test_a_malformed_note_is_refused(wrong: str) -> None:
    with pytest.raises(BrokenLedger):
        read_note(wrong.encode())


def test_a_note_is_text_of_a_bounded_size() -> None:
    for wrong in (b"\xff" + NOTE.encode(), b"x" * 70_000 + NOTE.encode()):
        with pytest.raises(BrokenLedger):
            read_note(wrong)


def test_a_checkpoint_has_three_lines_and_one_writing() -> None:
    text = b"example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    found = read_checkpoint(text)
    assert (found.origin, found.size, found.text) == ("example.com/behind-the-sofa", 20852163, text)
    for wrong in (
        text + b"extension\n",
        text[:-1],
        text.replace(b"20852163", b"020852163"),
        text.replace(b"20852163", b"-1"),
        text.replace(b"20852163", b"99999999999999999999"),
        text.replace(b"20852163", "٣".encode()),
        text.replace(b"CsUY", b"CsU"),
        text.replace(b"CsUY", b"Cs-Y"),
        text.replace(b"example.com", b"exam ple"),
        b"\xff" + text,
    ):
        with pytest.raises(BrokenLedger):
            read_checkpoint(wrong)


def test_a_logs_name_names_its_tenant() -> None:
    assert tenant_of(log_origin("twokeys.example", "acme")) == "acme"
    assert tenant_of(log_origin("twokeys.example/eu", "acme", 3)) == "acme"
    for other in ("twokeys.example", "twokeys.example/log/acme", "log/acme/0", "x/log/acme/00", "x/logs/acme/0"):
        assert tenant_of(other) == ""


def test_a_cosignature_covers_time_and_text() -> None:
    key = read_vkey(write_vkey("witness.example", WITNESS.public, COSIGNATURE))
    note = sign_note(Checkpoint(ORIGIN, 3, bytes(32)).text, ORIGIN, LOG.public, LOG.sign)
    assert cosigned_at(read_note(note), key) is None
    assert cosigned_at(read_note(cosigned(note, seconds=7)), key) == 7
    with pytest.raises(BrokenLedger):
        cosigned_at(read_note(cosigned(note, b"another text\n")), key)
    with pytest.raises(BrokenLedger):
        cosigned_at(read_note(cosigned(note, seconds=2**63)), key)
    assert cosigned_at(read_note(cosigned(note, key=THIEF)), key) is None


def test_the_pae_is_that_of_the_specification() -> None:
    # DSSE protocol.md, test vectors.
    assert pre_authentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_product_and_verifier_call_things_by_the_same_names() -> None:
    assert public_id(LOG.public) == keys.key_id(LOG.public)
    made = two_person_run()
    head = FIRST_PREV
    for row in made.journal():
        for entry in decode_row(row):
            head = link(head, entry_bytes(entry))
    assert journal_head(journal_events(made.journal())) == (head, len(made.events))
    assert [encode(event) for event in journal_events(made.journal())]
    assert receipt_signed_bytes(b"body") == signed_bytes(b"body")


def test_ordinary_tools_check_manifest_and_attestation(tmp_path: Path) -> None:
    files = {name: bytes(body) for name, body in read_container(two_person_run().bundle()).items()}
    for name, body in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)
    done = subprocess.run(["sha256sum", "--quiet", "-c", "manifest-sha256.txt"], cwd=tmp_path, check=False)
    assert done.returncode == 0
    envelope = json.loads(files["attestation.intoto.jsonl"])
    payload = base64.b64decode(envelope["payload"])
    digest = json.loads(payload)["subject"][0]["digest"]["sha256"]
    assert digest == hashlib.sha256(files["manifest-sha256.txt"]).hexdigest()
    (tmp_path / "message").write_bytes(pre_authentication(envelope["payloadType"], payload))
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    key = bytes.fromhex("302a300506032b6570032100") + BUNDLE.public
    (tmp_path / "key.der").write_bytes(key)
    command = "openssl pkeyutl -verify -rawin -pubin -keyform DER -inkey key.der -sigfile signature -in message"
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_trust_policy_names_every_key_once() -> None:
    text = trust_text()
    for key in (LOG, BUNDLE, RECEIPT):
        assert text.count(base64.b64encode(b"\x01" + key.public).decode()) == 1
