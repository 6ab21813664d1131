"""The attack table: each case forges a valid bundle as far as its attacker could, and says how it must be caught.

Numbers are those of the table in the audit reference. `code` and `exit` are written by hand.
"""

from __future__ import annotations

import io
import json
import struct
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from engine.canonical import jcs, sha256, tagged
from engine.ids import PromiseId
from engine.journal.events import InvokeCompleted, InvokeScheduled, InvokeStarted
from engine.ledger import notes
from engine.ledger.bundle import build
from engine.ledger.container import read_container, write_container
from engine.ledger.entries import Fact
from engine.ledger.layout import COMPONENT_TAG, code_name
from engine.ledger.notes import COSIGNATURE, Checkpoint, key_hash, sign_note, write_vkey
from engine.ledger.statement import pre_authentication, write_envelope
from engine.ledger.tree import Tree, leaf_hash
from tests.engine.ledger.factory import (
    BUNDLE,
    LOG,
    NEMO,
    OLGA,
    ORIGIN,
    PAUL,
    RECEIPT,
    REQUESTER,
    RUN,
    START,
    THIEF,
    WITNESS,
    Key,
    Synthetic,
    hold,
    person,
    resealed,
    small_run,
    trust_text,
    two_person_run,
    unknown_run,
)

ATTESTATION, MANIFEST, ENTRIES, PROOFS = (
    "attestation.intoto.jsonl",
    "manifest-sha256.txt",
    "data/entries.jsonl",
    "data/proofs.jsonl",
)


@dataclass(frozen=True)
class Case:
    """What is handed to the verifier, and what it must say."""

    bundle: bytes
    exit: int
    code: str
    trust: str = ""
    arguments: tuple[str, ...] = ()


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def members(bundle: bytes) -> dict[str, bytes]:
    return {name: bytes(body) for name, body in read_container(bundle).items()}


def edited(files: dict[str, bytes], name: str, old: bytes, new: bytes) -> dict[str, bytes]:
    assert old in files[name], name
    return {**files, name: files[name].replace(old, new, 1)}


def lines_of(files: dict[str, bytes], name: str) -> list[bytes]:
    return files[name].split(b"\n")[:-1]


def with_lines(files: dict[str, bytes], entries: list[bytes], proofs: list[bytes]) -> dict[str, bytes]:
    joined = {ENTRIES: entries, PROOFS: proofs}
    return {**files, **{name: b"".join(line + b"\n" for line in lines) for name, lines in joined.items()}}


def raw_chain(made: Synthetic, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """A bundle of entry bytes as the attacker wrote them, in a log that the attacker could sign."""
    return build(replace(made.contents(), **_in_log(change(made.entries()))))


def _in_log(chain: list[bytes]) -> dict[str, Any]:
    tree = Tree(leaf_hash(data) for data in chain)
    text = Checkpoint(ORIGIN, tree.size, tree.root()).text
    return {
        "entries": tuple(chain),
        "indexes": tuple(range(len(chain))),
        "proofs": tuple(tree.inclusion(index) for index in range(len(chain))),
        "checkpoint": sign_note(text, ORIGIN, LOG.public, LOG.sign),
    }


def rewritten(made: Synthetic, number: int, old: bytes, new: bytes) -> bytes:
    """One entry with other bytes; leaf, tree, checkpoint, manifest and attestation all fit them."""
    files = members(made.bundle())
    chain = made.entries()
    assert old in chain[number]
    chain[number] = chain[number].replace(old, new, 1)
    log = _in_log(chain)
    tree = Tree(leaf_hash(data) for data in chain)
    proofs = [jcs({"index": n, "hashes": [node.hex() for node in proof]}) for n, proof in enumerate(log["proofs"])]
    files = with_lines(files, chain, proofs) | {"data/checkpoint": log["checkpoint"]}
    return write_container(resealed(files, tree_size=tree.size, root=tree.root().hex()))


def forged(exit_code: int, code: str, change: Callable[[Synthetic], None], make: Any = two_person_run) -> Case:
    """A history that its writer invented, with every hash and every signature of the operator in order."""
    made = make()
    change(made)
    return Case(made.bundle(), exit_code, code)


# --- entries and log: 1 to 22 -------------------------------------------------------------------------------------


@case
def a01_edited_entry() -> Case:
    files = edited(members(two_person_run().bundle()), ENTRIES, b"succeeded", b"succeedeD")
    return Case(write_container(files), 1, "manifest-hash")


@case
def a02_edited_entry_resealed_with_the_stolen_bundle_key() -> Case:
    files = edited(members(two_person_run().bundle()), ENTRIES, b'"code":"self"', b'"code":"fine"')
    return Case(write_container(resealed(files)), 1, "inclusion")


@case
def a03_resealed_with_the_attackers_key() -> Case:
    return Case(write_container(resealed(members(two_person_run().bundle()), THIEF)), 1, "dsse-sig")


@case
def a04_middle_entry_deleted() -> Case:
    files = members(two_person_run().bundle())
    entries, proofs = lines_of(files, ENTRIES), lines_of(files, PROOFS)
    del entries[8], proofs[8]
    return Case(write_container(resealed(with_lines(files, entries, proofs), entries=len(entries))), 1, "entry-chain")


@case
def a05_entries_reordered() -> Case:
    files = members(two_person_run().bundle())
    entries, proofs = lines_of(files, ENTRIES), lines_of(files, PROOFS)
    entries[7], entries[8] = entries[8], entries[7]
    proofs[7], proofs[8] = proofs[8], proofs[7]
    return Case(write_container(resealed(with_lines(files, entries, proofs))), 1, "entry-chain")


@case
def a06_tail_cut_off() -> Case:
    files = members(two_person_run().bundle())
    entries, proofs = lines_of(files, ENTRIES)[:-1], lines_of(files, PROOFS)[:-1]
    files = resealed(with_lines(files, entries, proofs), entries=len(entries), status="")
    return Case(write_container(files), 2, "no-terminal")


@case
def a06_tail_cut_off_and_the_count_left() -> Case:
    files = members(two_person_run().bundle())
    entries, proofs = lines_of(files, ENTRIES)[:-1], lines_of(files, PROOFS)[:-1]
    return Case(write_container(resealed(with_lines(files, entries, proofs))), 1, "entry-count")


@case
def a07_head_cut_off() -> Case:
    files = members(two_person_run().bundle())
    entries, proofs = lines_of(files, ENTRIES)[1:], lines_of(files, PROOFS)[1:]
    return Case(write_container(resealed(with_lines(files, entries, proofs), entries=len(entries))), 1, "entry-chain")


@case
def a08_genuine_entry_of_another_run_spliced_in() -> Case:
    other = small_run()
    other.run = "f" * 32
    foreign = other.entries()[1]
    return Case(raw_chain(two_person_run(), lambda chain: [*chain[:3], foreign, *chain[3:]]), 1, "entry-chain")


@case
def a09_valid_bundle_of_another_run() -> Case:
    return Case(two_person_run().bundle(), 1, "wrong-run", arguments=("--run", "f" * 32))


@case
def a09_valid_bundle_that_is_not_the_stamped_one() -> Case:
    return Case(two_person_run().bundle(), 1, "stamp", arguments=("--sha256", "0" * 64))


def witnessed_trust(**more: Any) -> str:
    text = trust_text(**more).replace("quorum none", "")
    key = write_vkey("witness.example", WITNESS.public, COSIGNATURE)
    return f"{text}witness w1 {key}\nquorum w1\n"


def cosigned(checkpoint: bytes, over: bytes | None = None, key: Key = WITNESS, seconds: int = 1_787_000_000) -> bytes:
    text = notes.read_note(checkpoint).text
    signature = key.sign(notes.cosigned_text(seconds, over or text))
    raw = key_hash("witness.example", COSIGNATURE, key.public) + seconds.to_bytes(8, "big") + signature
    return checkpoint + notes.signature_line("witness.example", raw)


@case
def a10_log_rewritten_with_the_stolen_log_key() -> Case:
    return Case(two_person_run().bundle(), 2, "cp-quorum", witnessed_trust())


@case
def a11_old_cosignature_on_the_rewritten_head() -> Case:
    contents = two_person_run().contents()
    old = Checkpoint(ORIGIN, 3, bytes(32)).text
    return Case(
        build(replace(contents, checkpoint=cosigned(contents.checkpoint, old))), 1, "note-badsig", witnessed_trust()
    )


@case
def a12_old_checkpoint_served() -> Case:
    return Case(two_person_run().bundle(), 1, "cp-rollback", trust_text(size_min=1_000))


@case
def a13_backdated_entry() -> Case:
    made = two_person_run()
    fact, at = made.facts[9]
    made.facts[9] = (fact, at - timedelta(days=1))
    return Case(made.bundle(), 1, "time-order")


@case
def a14_own_key_under_the_logs_name() -> Case:
    return Case(build(two_person_run().contents(log=THIEF)), 1, "note-nosig")


@case
def a15_checkpoint_of_another_tenants_log() -> Case:
    made = two_person_run()
    contents, origin = made.contents(), ORIGIN.replace("acme", "globex")
    text = notes.read_note(contents.checkpoint).text.replace(ORIGIN.encode(), origin.encode())
    bundle = build(replace(contents, checkpoint=sign_note(text, origin, LOG.public, LOG.sign)))
    return Case(bundle, 1, "cp-origin")


@case
def a16_trusted_key_of_small_order() -> Case:
    identity = b"\x01" + bytes(31)
    key = f"{ORIGIN}+{key_hash(ORIGIN, 1, identity).hex()}+AQ" + "E" + "A" * 41
    text = trust_text(logs=(key,))
    return Case(two_person_run().bundle(), 3, "", text)


def _resized(size: bytes, key: Key) -> bytes:
    contents = two_person_run().contents()
    text = notes.read_note(contents.checkpoint).text.split(b"\n")
    text[1] = size
    files = members(build(contents))
    files["data/checkpoint"] = sign_note(b"\n".join(text), ORIGIN, LOG.public, key.sign)
    return write_container(resealed(files))


@case
def a17_size_changed_in_the_note() -> Case:
    contents = two_person_run().contents()
    files = members(build(contents))
    files["data/checkpoint"] = contents.checkpoint.replace(b"\n39\n", b"\n40\n")
    return Case(write_container(resealed(files, tree_size=40)), 1, "note-badsig")


@case
def a17_size_with_a_leading_zero() -> Case:
    return Case(_resized(b"039", LOG), 1, "cp-size")


@case
def a17_size_with_an_underscore() -> Case:
    return Case(_resized(b"3_9", LOG), 1, "cp-size")


@case
def a17_size_with_a_sign() -> Case:
    return Case(_resized(b"+39", LOG), 1, "cp-size")


@case
def a18_doubled_json_key() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"v":1', b'"v":1,"v":1'), 1, "entry-parse")


def _normalised(files: dict[str, bytes]) -> dict[str, bytes]:
    name = next(name for name in sorted(files) if name.startswith("data/payloads/"))
    text = files[name].decode().replace("tenant", "tenänt", 1)
    return {**files, name: unicodedata.normalize("NFD", text).encode()}


@case
def a19_payload_in_another_unicode_form() -> Case:
    return Case(write_container(_normalised(members(two_person_run().bundle()))), 1, "manifest-hash")


@case
def a19_payload_in_another_unicode_form_resealed() -> Case:
    return Case(write_container(resealed(_normalised(members(two_person_run().bundle())))), 1, "payload-hash")


@case
def a20_float_for_an_integer() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"v":1', b'"v":1.0'), 1, "entry-parse")


@case
def a20_exponent_for_an_integer() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"chain_seq":10', b'"chain_seq":1e1'), 1, "entry-parse")


@case
def a20_leading_zero() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"chain_seq":10', b'"chain_seq":010'), 1, "entry-parse")


@case
def a20_thirty_digits() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"chain_seq":10', b'"chain_seq":' + b"9" * 30), 1, "entry-parse")


@case
def a20_float_in_a_proof() -> Case:
    files = edited(members(two_person_run().bundle()), PROOFS, b'"index":1}', b'"index":1.0}')
    return Case(write_container(resealed(files)), 1, "proof-parse")


@case
def a21_whitespace_in_an_entry() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"v":1', b'"v": 1'), 1, "entry-noncanonical")


@case
def a21_keys_of_an_entry_in_another_order() -> Case:
    made = two_person_run()
    line = made.entries()[10]
    backwards = json.dumps(dict(reversed(json.loads(line).items())), separators=(",", ":"), ensure_ascii=False).encode()
    return Case(rewritten(made, 10, line, backwards), 1, "entry-noncanonical")


@case
def a21_escaped_letter() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"self"', b'"sel\\u0066"'), 1, "entry-noncanonical")


@case
def a22_deep_nesting_in_an_entry() -> Case:
    return Case(rewritten(two_person_run(), 10, b'"commit":[]', b'"commit":' + b"[" * 30_000), 1, "entry-parse")


@case
def a22_deep_nesting_in_the_withheld_list() -> Case:
    files = members(two_person_run().bundle())
    files["data/withheld.json"] = b'{"withheld":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return Case(write_container(resealed(files)), 1, "withheld-parse")


@case
def a22_deep_nesting_in_findings() -> Case:
    made = two_person_run()
    deep = b"[" * 100_000
    place = made.place("verdict.given")
    made.documents[1] = deep
    fact, at = made.facts[place]
    digests = (fact.commit[0], sha256(deep).hex())
    body = {**fact.body, "findings_sha256": digests[1]}
    made.facts[place] = (replace(fact, body=body, commit=digests), at)
    return Case(made.bundle(), 1, "verdict-documents")


# --- the container: 23 to 28 --------------------------------------------------------------------------------------


def _plain_zip(extra: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, body in sorted({**members(two_person_run().bundle()), **extra}.items()):
            archive.writestr(zipfile.ZipInfo(name), body, compression)
    return out.getvalue()


def _patched(bundle: bytes, mark: bytes, offset: int, form: str, value: int, nth: int = 0) -> bytes:
    at = -1
    for _ in range(nth + 1):
        at = bundle.index(mark, at + 1)
    changed = bytearray(bundle)
    struct.pack_into(form, changed, at + offset, value)
    return bytes(changed)


@case
def a23_path_that_climbs_out() -> Case:
    return Case(_plain_zip({"../../etc/cron.d/x": b""}), 3, "zip-name")


@case
def a23_absolute_path() -> Case:
    return Case(_plain_zip({"/etc/passwd": b""}), 3, "zip-name")


@case
def a23_backslash_in_a_name() -> Case:
    return Case(_plain_zip({"data\\x": b""}), 3, "zip-name")


@case
def a24_doubled_member() -> Case:
    bundle = two_person_run().bundle()
    return Case(bundle.replace(b"data/proofs.jsonl", b"data/report.html "[:17]), 3, "zip-name")


@case
def a24_member_that_differs_in_case_only() -> Case:
    return Case(_plain_zip({"data/README.TXT": b"", "data/readme.txt": b""}), 3, "zip-dup")


@case
def a25_bytes_before() -> Case:
    return Case(b"#!/bin/sh\n" + two_person_run().bundle(), 3, "zip-prefix")


@case
def a25_bytes_behind() -> Case:
    return Case(two_person_run().bundle() + b"\n", 3, "zip-trailing")


@case
def a25_archive_comment() -> Case:
    return Case(two_person_run().bundle()[:-2] + struct.pack("<H", 5) + b"hello", 3, "zip-trailing")


@case
def a25_comment_that_looks_like_an_end() -> Case:
    comment = b"PK\x05\x06" + bytes(18)
    return Case(two_person_run().bundle()[:-2] + struct.pack("<H", len(comment)) + comment, 3, "zip-prefix")


@case
def a25_comment_of_a_length_only() -> Case:
    return Case(two_person_run().bundle()[:-2] + struct.pack("<H", 5), 3, "zip-comment")


@case
def a26_compressed_members() -> Case:
    return Case(_plain_zip({}, zipfile.ZIP_DEFLATED), 3, "zip-method")


@case
def a26_members_that_overlap() -> Case:
    return Case(_patched(two_person_run().bundle(), b"PK\x01\x02", 42, "<I", 0, nth=3), 3, "zip-layout")


@case
def a26_member_larger_than_the_file() -> Case:
    bundle = _patched(two_person_run().bundle(), b"PK\x01\x02", 24, "<I", 2**31)
    return Case(_patched(bundle, b"PK\x01\x02", 20, "<I", 2**31), 3, "zip-layout")


@case
def a27_date_of_a_member() -> Case:
    return Case(_patched(two_person_run().bundle(), b"PK\x03\x04", 12, "<H", 0x5A21), 3, "zip-noncanonical")


@case
def a27_attributes_of_a_member() -> Case:
    return Case(_patched(two_person_run().bundle(), b"PK\x01\x02", 38, "<I", 0o100755 << 16), 3, "zip-noncanonical")


@case
def a28_unlisted_file() -> Case:
    return Case(write_container({**members(two_person_run().bundle()), "data/more.txt": b"x"}), 1, "manifest-set")


@case
def a28_unlisted_file_outside_data() -> Case:
    return Case(write_container({**members(two_person_run().bundle()), "more.txt": b"x"}), 1, "manifest-set")


@case
def a28_payload_that_nobody_committed_to() -> Case:
    files = members(two_person_run().bundle())
    files[f"data/payloads/{sha256(b'{}').hex()}.json"] = b"{}"
    return Case(write_container(resealed(files)), 1, "payload-foreign")


# --- payloads and signatures: 29 to 35 ----------------------------------------------------------------------------


def _first_payload(files: dict[str, bytes]) -> str:
    return next(name for name in sorted(files) if name.startswith("data/payloads/"))


@case
def a29_payload_removed() -> Case:
    files = members(two_person_run().bundle())
    del files[_first_payload(files)]
    return Case(write_container(resealed(files)), 1, "payload-missing")


@case
def a29_listed_payload_removed() -> Case:
    files = members(two_person_run().bundle())
    del files[_first_payload(files)]
    return Case(write_container(files), 1, "manifest-set")


@case
def a29_findings_said_to_be_withheld() -> Case:
    made = two_person_run()
    made.documents = made.documents[:-1]
    return Case(made.bundle(), 1, "verdict-documents")


@case
def a30_payloads_swapped() -> Case:
    files = members(two_person_run().bundle())
    one, two = [name for name in sorted(files) if name.startswith("data/payloads/")][:2]
    files[one], files[two] = files[two], files[one]
    return Case(write_container(resealed(files)), 1, "payload-hash")


@case
def a31_payload_said_to_be_erased() -> Case:
    files = members(two_person_run().bundle())
    name = _first_payload(files)
    digest = name.removeprefix("data/payloads/").removesuffix(".json")
    del files[name]
    withheld = json.loads(files["data/withheld.json"])["withheld"]
    files["data/withheld.json"] = jcs({"erased": [digest], "withheld": withheld})
    return Case(write_container(resealed(files)), 1, "withheld-parse")


@case
def a32_payload_of_another_type() -> Case:
    files = members(two_person_run().bundle())
    files[ATTESTATION] = files[ATTESTATION].replace(b"application/vnd.in-toto+json", b"application/json")
    return Case(write_container(files), 1, "dsse-type")


@case
def a32_no_signatures() -> Case:
    files = members(two_person_run().bundle())
    envelope = json.loads(files[ATTESTATION])
    envelope["signatures"] = []
    files[ATTESTATION] = json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return Case(write_container(files), 1, "dsse-sig")


@case
def a32_envelope_of_another_bundle() -> Case:
    files = members(two_person_run().bundle())
    files[ATTESTATION] = members(small_run().bundle())[ATTESTATION]
    return Case(write_container(files), 1, "stmt-subject")


@case
def a32_signature_over_the_bare_payload() -> Case:
    files = members(two_person_run().bundle())
    envelope = json.loads(files[ATTESTATION])
    payload = notes.read_base64(envelope["payload"])
    assert payload is not None
    files[ATTESTATION] = write_envelope(payload, BUNDLE.public, lambda message: BUNDLE.sign(payload))
    assert pre_authentication("x", payload) != payload
    return Case(write_container(files), 1, "dsse-sig")


@case
def a33_one_key_for_two_purposes() -> Case:
    keys = (write_vkey("twokeys.example/receipt", BUNDLE.public),)
    return Case(two_person_run().bundle(), 3, "", trust_text(receipts=keys))


@case
def a35_truncated_proof() -> Case:
    contents = two_person_run().contents()
    return Case(build(replace(contents, proofs=(contents.proofs[0][:-1], *contents.proofs[1:]))), 1, "inclusion")


@case
def a35_extended_proof() -> Case:
    contents = two_person_run().contents()
    return Case(
        build(replace(contents, proofs=((*contents.proofs[0], bytes(32)), *contents.proofs[1:]))), 1, "inclusion"
    )


@case
def a35_index_beyond_the_tree() -> Case:
    contents = two_person_run().contents()
    return Case(build(replace(contents, indexes=(*contents.indexes[:-1], 10_000))), 1, "inclusion")


# --- people: 36 to 38, every key of the operator stolen and everything hashed again ----------------------------------


@case
def a36_same_person_twice() -> Case:
    return forged(1, "two-person", lambda made: made.change("key.given", 1, person=OLGA, actor=person(OLGA)))


@case
def a36_one_key_counted_as_two() -> Case:
    def change(made: Synthetic) -> None:
        made.remove("key.given", 1)
        made.change("approval.released", persons=[OLGA, OLGA])

    return forged(1, "two-person", change)


@case
def a36_second_key_forged() -> Case:
    def change(made: Synthetic) -> None:
        made.remove("key.given", 1)

    return forged(1, "forged-key", change)


@case
def a36_second_key_inserted_with_the_stolen_bundle_key() -> Case:
    made = two_person_run()
    made.remove("key.given", 1)
    contents, forgery = made.contents(), two_person_run().contents()
    return Case(build(replace(forgery, checkpoint=contents.checkpoint)), 1, "inclusion")


@case
def a36_second_key_of_the_requester() -> Case:
    def change(made: Synthetic) -> None:
        made.change("key.given", 1, person=REQUESTER, actor=person(REQUESTER))
        made.change("approval.released", persons=[OLGA, REQUESTER])

    return forged(1, "key-lineage", change)


@case
def a36_requester_left_out_of_the_lineage() -> Case:
    return forged(1, "approval-lineage", lambda made: made.change("approval.asked", lineage=[]))


@case
def a36_key_pressed_by_somebody_else() -> Case:
    return forged(1, "key-person", lambda made: made.change("key.given", 1, actor=person(NEMO)))


@case
def a36_key_of_a_person_below_the_level() -> Case:
    return forged(1, "key-level", lambda made: made.change("key.given", 1, level=3))


@case
def a36_key_of_a_person_outside_the_groups() -> Case:
    return forged(1, "key-group", lambda made: made.change("key.given", 1, groups=["sales"]))


@case
def a36_release_with_one_key() -> Case:
    return forged(1, "two-person", lambda made: made.change("approval.released", persons=[OLGA]))


@case
def a37_approved_one_executed_another() -> Case:
    return forged(1, "unproposed", lambda made: made.change("effect.intended", 1, action_sha256="ab" * 32))


@case
def a37_key_for_another_action() -> Case:
    return forged(1, "key-digest", lambda made: made.change("key.given", 1, action_sha256="ab" * 32))


@case
def a37_key_for_another_card() -> Case:
    return forged(1, "key-digest", lambda made: made.change("key.given", 1, card_sha256="ab" * 32))


@case
def a37_executed_without_the_approval() -> Case:
    return forged(1, "executed-unapproved", lambda made: made.change("effect.intended", 1, approval=""))


@case
def a37_executed_before_the_release() -> Case:
    return forged(1, "executed-unapproved", lambda made: made.remove("approval.released"))


@case
def a38_key_after_expiry() -> Case:
    def change(made: Synthetic) -> None:
        expiry = made.facts[made.place("approval.asked")][1] + timedelta(hours=2)
        for place in range(made.place("key.given", 1), len(made.facts)):
            fact, _ = made.facts[place]
            made.facts[place] = (fact, expiry + timedelta(seconds=place))

    return forged(1, "key-expired", change)


@case
def a38_key_replayed_after_the_release() -> Case:
    def change(made: Synthetic) -> None:
        place = made.place("approval.released")
        made.facts[place - 1], made.facts[place] = (
            (made.facts[place][0], made.facts[place - 1][1]),
            (made.facts[place - 1][0], made.facts[place][1]),
        )
        made.change("approval.released", persons=[OLGA])

    return forged(1, "two-person", change)


@case
def a38_expiry_stretched() -> Case:
    return forged(
        1, "approval-expiry", lambda made: made.change("approval.asked", expires_at="2027-08-21T10:00:00.000000Z")
    )


# --- verdicts, effects and the end of the run ---------------------------------------------------------------------


@case
def b01_verdict_made_an_allow() -> Case:
    changes = {"effect": "allow", "keys": 0, "groups": [], "expires_in_s": 0}
    return forged(1, "verdict-derived", lambda made: made.change("verdict.given", 1, **changes))


@case
def b02_fewer_keys_than_the_findings_give() -> Case:
    return forged(1, "verdict-derived", lambda made: made.change("verdict.given", 1, keys=1))


@case
def b03_fewer_keys_asked_than_the_verdict_says() -> Case:
    return forged(1, "approval-verdict", lambda made: made.change("approval.asked", keys=1))


@case
def b04_findings_that_answer_another_question() -> Case:
    def change(made: Synthetic) -> None:
        raw = made.documents[1].replace(
            b"00000000-0000-4000-8000-000000000000", b"00000000-0000-4000-8000-000000000009"
        )
        made.documents[1] = raw
        place = made.place("verdict.given")
        fact, at = made.facts[place]
        body = {**fact.body, "findings_sha256": sha256(raw).hex()}
        made.facts[place] = (replace(fact, body=body, commit=(fact.commit[0], sha256(raw).hex())), at)

    return forged(1, "verdict-echo", change)


@case
def b05_findings_of_another_policy_revision() -> Case:
    return forged(1, "verdict-echo", lambda made: made.change("verdict.given", 0, policy_revision="cd" * 32))


@case
def b06_action_said_to_be_of_lower_risk() -> Case:
    return forged(1, "verdict-input", lambda made: made.change("action.proposed", 1, risk="low"))


@case
def b07_intent_without_a_verdict() -> Case:
    def change(made: Synthetic) -> None:
        made.remove("verdict.given", 0)
        del made.documents[:2]

    return forged(1, "no-verdict", change)


@case
def b08_receipt_without_an_intent() -> Case:
    return forged(1, "no-intent", lambda made: made.remove("effect.intended", 0))


@case
def b09_receipt_before_its_intent() -> Case:
    def change(made: Synthetic) -> None:
        one, two = made.place("effect.intended"), made.place("effect.receipted")
        (a, at), (b, bt) = made.facts[one], made.facts[two]
        made.facts[one], made.facts[two] = (b, at), (a, bt)

    return forged(1, "no-intent", change)


@case
def b10_intent_without_an_outcome() -> Case:
    def change(made: Synthetic) -> None:
        made.remove("effect.receipted", 0)
        made.receipts = []

    return forged(1, "intent-open", change, small_run)


@case
def b11_second_success_of_one_effect() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action)
    for attempt in (1, 2):
        made.intend(action, attempt=attempt)
        made.settle(action, attempt=attempt)
    made.close()
    return Case(made.bundle(), 1, "effect-twice")


@case
def b12_receipt_signed_by_another_key() -> Case:
    made = Synthetic(receipt_key=THIEF)
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action)
    made.intend(action)
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "receipt-sig")


@case
def b13_receipt_with_another_signature() -> Case:
    made = two_person_run()
    first = made.receipts[0]
    made.receipts[0] = replace(first, signature=THIEF.sign(first.body))
    return Case(made.bundle(), 1, "receipt-sig")


@case
def b14_receipt_left_out() -> Case:
    made = two_person_run()
    made.receipts = made.receipts[1:]
    return Case(made.bundle(), 1, "receipt-missing")


@case
def b15_receipt_of_another_attempt() -> Case:
    return forged(1, "receipt-other", lambda made: made.change("effect.receipted", 0, n=5))


@case
def b16_receipt_that_no_entry_names() -> Case:
    made = two_person_run()
    made.receipts.append(unknown_run().receipts[0])
    return Case(made.bundle(), 1, "receipt-foreign")


@case
def b17_failure_recorded_as_success() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action)
    made.intend(action)
    made.settle(action, "error")
    made.change("effect.receipted", status="ok")
    made.close()
    return Case(made.bundle(), 1, "receipt-other")


@case
def b18_unknown_resolved_by_nobody() -> Case:
    return forged(
        1,
        "resolved-person",
        lambda made: made.change("effect.resolved", person="", actor={"type": "system", "id": ""}),
        unknown_run,
    )


@case
def b19_unknown_resolved_by_somebody_else_than_the_receipt_says() -> Case:
    return forged(
        1, "resolved-person", lambda made: made.change("effect.resolved", person=PAUL, actor=person(PAUL)), unknown_run
    )


@case
def b20_unknown_resolved_by_the_requester() -> Case:
    change = {"person": REQUESTER, "actor": person(REQUESTER)}
    return forged(1, "resolved-person", lambda made: made.change("effect.resolved", **change), unknown_run)


@case
def b21_succeeded_with_an_unknown_outcome() -> Case:
    def change(made: Synthetic) -> None:
        made.remove("effect.resolved")
        made.remove("step.completed")
        made.receipts = made.receipts[:1]

    return forged(1, "intent-open", change, unknown_run)


@case
def b22_closing_entry_that_counts_wrong() -> Case:
    made = two_person_run()
    fact, at = made.facts[-1]
    made.facts[-1] = (replace(fact, body={**fact.body, "entries": 3}), at)
    return Case(made.bundle(), 1, "entry-count")


@case
def b23_journal_with_a_row_removed() -> Case:
    made = two_person_run()
    return Case(made.bundle(journal=made.journal()[:-1]), 1, "journal-head")


@case
def b24_effect_that_the_journal_does_not_know() -> Case:
    made = small_run()
    made.facts.pop()
    made.events = [
        event for event in made.events if type(event).__name__ not in ("InvokeStarted", "ExecutionCompleted")
    ]
    made.close()
    return Case(made.bundle(), 1, "intent-journal")


@case
def b25_another_definition() -> Case:
    return Case(two_person_run().bundle(definition=b"\xa0"), 1, "definition")


@case
def b26_policy_text_changed() -> Case:
    files = members(two_person_run().bundle())
    name = next(name for name in files if name.endswith(".rego"))
    files[name] = b"package twokeys.main\ndefault allow := true\n"
    return Case(write_container(resealed(files)), 1, "policy-hash")


@case
def b27_policy_files_that_do_not_make_the_revision() -> Case:
    made = two_person_run()
    sources = [replace(source, revision="ab" * 32) for source in made.contents().policies]
    return Case(made.bundle(policies=tuple(sources)), 1, "policy-revision")


@case
def b28_step_completed_without_a_receipt() -> Case:
    def change(made: Synthetic) -> None:
        made.change("step.completed", 0, promise="1", step="step-1")

    return forged(1, "step-unproved", change)


@case
def b29_denied_and_executed() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action, denials=[{"code": "freeze", "message": "writes are frozen"}])
    made.intend(action)
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "executed-denied")


@case
def b30_denied_then_judged_again_until_allowed() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action, denials=[{"code": "freeze", "message": "writes are frozen"}])
    made.judge(action)
    made.intend(action)
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "executed-denied")


@case
def b31_held_then_judged_again_until_allowed() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action, holds=[hold(two_person=False)])
    made.judge(action)
    made.intend(action)
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "executed-unapproved")


@case
def b32_recheck_that_wants_more_keys_than_were_turned() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0")
    made.propose(action)
    made.judge(action, holds=[hold(two_person=False)])
    made.ask(action, "ap_1")
    made.key(action, "ap_1", OLGA, 1, 1)
    made.release(action, "ap_1", OLGA)
    made.judge(action, holds=[hold()], purpose="recheck")
    made.intend(action, "ap_1")
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "two-person")


@case
def b33_rejected_and_executed() -> Case:
    made = two_person_run()
    place = made.place("approval.released")
    fact, at = made.facts[place]
    body = {name: fact.body[name] for name in ("approval", "promise", "action_sha256")}
    actor = person(NEMO)
    rejected = replace(fact, type="approval.rejected", actor=actor, body={**body, "person": NEMO, "reason_sha256": ""})
    made.facts.insert(place + 1, (rejected, at))
    made.recount()
    return Case(made.bundle(), 1, "executed-unapproved")


@case
def b34_group_counts_not_met() -> Case:
    made = Synthetic()
    made.begin()
    action = made.action("0", risk="high")
    made.propose(action)
    made.judge(action, holds=[hold(groups=["ops", "risk"], counts={"ops": 1, "risk": 1})])
    made.ask(action, "ap_1")
    made.key(action, "ap_1", OLGA, 1, 2)
    made.key(action, "ap_1", PAUL, 1, 2)
    made.release(action, "ap_1", OLGA, PAUL)
    made.intend(action, "ap_1")
    made.settle(action)
    made.close()
    return Case(made.bundle(), 1, "two-person")


@case
def b35_no_trust_policy() -> Case:
    return Case(two_person_run().bundle(), 2, "no-trust", trust="none")


@case
def b36_trust_policy_of_another_tenant() -> Case:
    return Case(two_person_run().bundle(), 1, "cp-origin", trust_text(tenant="globex"))


@case
def b37_not_a_bundle_at_all() -> Case:
    return Case(b"<html>404</html>", 3, "zip-layout")


@case
def b38_empty_file() -> Case:
    return Case(b"", 3, "zip-layout")


# --- families, and runs that were moved to other code ---------------------------------------------------------------------

CHILD_RUN, CODE = "c" * 32, b"the code that the run was moved to"
CODE_SHA256 = tagged(COMPONENT_TAG, CODE).hex()


def family_run() -> Synthetic:
    """A run that another one started and that started one itself, and was moved to other code on the way."""
    made = Synthetic()
    made.begin()
    fact, at = made.facts[0]
    made.facts[0] = (replace(fact, body={**fact.body, "trigger_type": "child"}), at)
    made.add("parent.named", {"run": "a" * 32, "promise": "3.1", "depth": 1})
    made.facts[1], made.facts[2] = (made.facts[2][0], made.facts[1][1]), (made.facts[1][0], made.facts[2][1])
    made.events[0] = replace(made.events[0], parent_id=PromiseId("a" * 32, (3, 1)))
    moved = {"person": OLGA, "from_sha256": fact.body["definition_sha256"], "definition_sha256": CODE_SHA256}
    made.add("run.migrated", {**moved, "version": "2", "journal_version": 1}, person(OLGA))
    place = PromiseId(made.run, (0,))
    made.events += [InvokeScheduled(place, "Function", "workflow:other", "{}", ""), InvokeStarted(place, 1)]
    started = {"promise": "0", "run": CHILD_RUN, "workflow": "other", "version": "1", "definition_sha256": "ab" * 32}
    made.add("child.started", started)
    made.events.append(InvokeCompleted(place, "{}", 1))
    ended = {"promise": "0", "run": CHILD_RUN, "status": "succeeded", "error_class": ""}
    made.add("child.ended", {**ended, "journal_version": 3, "journal_head": "cd" * 32})
    made.close()
    return made


def family_case(code: str, forge: Callable[[Synthetic], object], *, moved_to: tuple[bytes, ...] = (CODE,)) -> Case:
    """Whoever forges this holds every key and hashes everything again."""
    made = family_run()
    forge(made)
    made.recount()
    return Case(made.bundle(moved_to=moved_to), 1, code)


@case
def c01_parent_that_the_journal_does_not_name() -> Case:
    return family_case("journal-parent", lambda made: made.change("parent.named", run="b" * 32))


@case
def c02_parent_left_out() -> Case:
    def forge(made: Synthetic) -> None:
        made.remove("parent.named")
        made.events[0] = replace(made.events[0], parent_id=PromiseId(made.run))
        made.facts.pop()
        made.events.pop()
        made.close()

    return family_case("parent-named", forge)


@case
def c03_parent_named_for_a_run_that_a_person_started() -> Case:
    return family_case("parent-named", lambda made: made.change("run.queued", trigger_type="manual"))


@case
def c04_child_whose_end_is_left_out() -> Case:
    return family_case("child-open", lambda made: made.remove("child.ended"))


@case
def c05_end_of_another_child() -> Case:
    return family_case("child-other", lambda made: made.change("child.ended", run="d" * 32))


@case
def c06_child_that_the_journal_never_started() -> Case:
    return family_case("child-journal", lambda made: made.change("child.started", promise="7"))


@case
def c07_two_children_of_one_operation() -> Case:
    def forge(made: Synthetic) -> None:
        place = made.place("child.started")
        made.facts.insert(place, made.facts[place])

    return family_case("child-twice", forge)


@case
def c08_code_that_the_run_was_moved_to_left_out() -> Case:
    return family_case("code-missing", lambda made: None, moved_to=())


@case
def c09_code_that_the_run_was_never_moved_to() -> Case:
    return family_case("code-foreign", lambda made: None, moved_to=(CODE, b"more"))


@case
def c10_move_left_out() -> Case:
    return family_case("code-foreign", lambda made: made.remove("run.migrated"))


@case
def c11_move_from_code_that_it_did_not_run_on() -> Case:
    return family_case("code-order", lambda made: made.change("run.migrated", from_sha256="ef" * 32))


@case
def c13_move_by_somebody_else_than_the_entry_says() -> Case:
    return family_case("move-person", lambda made: made.change("run.migrated", person=PAUL))


@case
def c14_editor_left_out_of_the_lineage() -> Case:
    made = two_person_run()
    place, fact = made.place("approval.asked"), made.facts[0][0]
    moved = {"person": PAUL, "from_sha256": fact.body["definition_sha256"], "definition_sha256": CODE_SHA256}
    moved |= {"version": "2", "journal_version": 1}
    made.facts.insert(place, (Fact("run.migrated", person(PAUL), moved, ()), made.facts[place][1]))
    made.recount()
    return Case(made.bundle(moved_to=(CODE,)), 1, "approval-lineage")


@case
def c12_other_code_under_the_name() -> Case:
    files = members(family_run().bundle(moved_to=(CODE,)))
    files[f"data/{code_name(CODE_SHA256)}"] = b"other code"
    return Case(write_container(resealed(files)), 1, "code-digest")


VALID: dict[str, Callable[[], Case]] = {
    "two_person": lambda: Case(two_person_run().bundle(), 0, ""),
    "unknown_then_resolved": lambda: Case(unknown_run().bundle(), 0, ""),
    "family": lambda: Case(family_run().bundle(moved_to=(CODE,)), 0, ""),
    "small": lambda: Case(small_run().bundle(), 0, ""),
    "witnessed": lambda: _witnessed(),
    "expected_run": lambda: Case(small_run().bundle(), 0, "", arguments=("--run", RUN)),
}


def _witnessed() -> Case:
    contents = two_person_run().contents()
    return Case(build(replace(contents, checkpoint=cosigned(contents.checkpoint))), 0, "", witnessed_trust())


__all__ = ["CASES", "RECEIPT", "START", "VALID", "Case"]
