"""What a witness cosigns: for any log and any lies about it, never two checkpoints of which the later does not continue the earlier."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import BrokenLedger
from engine.ledger.notes import (
    COSIGNATURE,
    Checkpoint,
    cosigned_at,
    cosigned_text,
    read_note,
    read_vkey,
    sign_note,
    write_vkey,
)
from engine.ledger.tree import Tree, empty_root, leaf_hash
from engine.ledger.witnessing import (
    Seen,
    Submission,
    cosignature,
    read_submission,
    refusal,
    submission_bytes_max,
    write_submission,
)
from tests.bundles.cases import THIEF, WITNESS, Key

ORIGIN = "acme/log/t1/0"
LOG = Key("a log")
KEYS = (read_vkey(write_vkey(ORIGIN, LOG.public)),)


def tree_of(leaves: list[bytes]) -> Tree:
    return Tree(leaf_hash(leaf) for leaf in leaves)


def note(tree: Tree, size: int, key: Key = LOG, origin: str = ORIGIN) -> bytes:
    root = tree.root(size) if size else empty_root()
    return sign_note(Checkpoint(origin, size, root).text, origin, key.public, key.sign)


def ask(tree: Tree, old: int, new: int, **changes: Any) -> Submission:
    proof = tree.consistency(old, new) if 0 < old < new else ()
    return replace(read_submission(write_submission(old, proof, note(tree, new))), **changes)


def seen(tree: Tree, size: int) -> Seen:
    return Seen(size, tree.root(size) if size else empty_root())


TREE = tree_of([bytes([n]) for n in range(20)])
FORK = tree_of([bytes([n]) if n != 3 else b"forged" for n in range(20)])


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_log_that_grows_is_cosigned_from_every_size_to_every_later_one(first: int, second: int) -> None:
    old, new = sorted((first, second))
    assert refusal(ask(TREE, old, new), KEYS, seen(TREE, old) if old else None) is None


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 30), max_size=6)), max_size=12
    )
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_whatever_is_asked_in_whatever_order_what_was_cosigned_is_one_history(
    moves: list[tuple[bool, int, int, list[int]]],
) -> None:
    """A forger holds the log's key and may send any proof made of hashes of either history."""
    pool = [*(TREE.root(n) for n in range(1, 21)), *(FORK.root(n) for n in range(1, 21))]
    state: Seen | None = None
    cosigned: list[tuple[int, bytes]] = []
    for forged, old, new, picks in moves:
        tree = FORK if forged else TREE
        asked = (
            ask(tree, *sorted((old, new)))
            if not picks
            else replace(ask(tree, 0, new), old=old, proof=tuple(pool[n] for n in picks))
        )
        if refusal(asked, KEYS, state) is None:
            state = Seen(asked.checkpoint.size, asked.checkpoint.root)
            cosigned.append((state.size, state.root))
    sizes = [size for size, _ in cosigned]
    assert sizes == sorted(sizes)
    for history in (TREE, FORK):
        if all(root == (history.root(size) if size else empty_root()) for size, root in cosigned):
            break
    else:
        raise AssertionError(cosigned)


@pytest.mark.parametrize(
    ("asked", "state", "status", "size"),
    [
        (ask(TREE, 5, 9), None, 409, 0),
        (ask(TREE, 0, 9), seen(TREE, 5), 409, 5),
        (ask(TREE, 5, 9), seen(TREE, 7), 409, 7),
        (replace(ask(TREE, 0, 5), old=7), seen(TREE, 7), 400, None),
        (ask(FORK, 5, 5), seen(TREE, 5), 409, 5),
        (ask(FORK, 5, 9), seen(TREE, 5), 422, None),
        (ask(TREE, 5, 9, proof=()), seen(TREE, 5), 422, None),
        (ask(TREE, 5, 5, proof=(TREE.root(5),)), seen(TREE, 5), 422, None),
        (ask(TREE, 0, 5, proof=(TREE.root(5),)), None, 422, None),
        (ask(TREE, 0, 0, checkpoint=Checkpoint(ORIGIN, 0, TREE.root(3))), None, 422, None),
    ],
)  # fmt: skip
def test_every_refusal_has_the_status_that_the_specification_gives_it(
    asked: Submission, state: Seen | None, status: int, size: int | None
) -> None:
    found = refusal(asked, KEYS, state)
    assert found is not None
    assert (found.status, found.seen) == (status, size), found


def test_a_log_that_nobody_named_and_a_signature_of_somebody_else_are_refused() -> None:
    by_thief = read_submission(write_submission(0, (), note(TREE, 5, THIEF)))
    assert refusal(by_thief, (), None).status == 404  # type: ignore[union-attr]
    assert refusal(by_thief, KEYS, None).status == 403  # type: ignore[union-attr]
    theirs = (read_vkey(write_vkey(ORIGIN, THIEF.public)),)
    assert refusal(by_thief, (*KEYS, *theirs), None) is None, "a log may have two keys while one replaces the other"
    broken = bytearray(note(TREE, 5))
    broken[-3] = broken[-3] ^ 1
    forged = read_submission(write_submission(0, (), base(bytes(broken))))
    assert refusal(forged, KEYS, None).status == 403  # type: ignore[union-attr]


def base(given: bytes) -> bytes:
    """The same note with another signature of the right length."""
    text, _, line = given.rpartition(b"\n\n")
    name = line.split(b" ")[1]
    raw = KEYS[0].id + b"\x07" * 64
    return text + b"\n\n" + b"\xe2\x80\x94 " + name + b" " + base64.b64encode(raw) + b"\n"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"old", b"old 1", b"old 01\n\n" + note(TREE, 5), b"old -1\n\n" + note(TREE, 5), b"old 1\n" + note(TREE, 5)[:5],
        b"old 99999999999999999999\n\n" + note(TREE, 5), b"OLD 1\n\n" + note(TREE, 5), b"old 1\nxx\n\n" + note(TREE, 5),
        b"old 1\n" + b"AAAA\n" + b"\n" + note(TREE, 5), b"old 1\n" + base64.b64encode(bytes(32)) + b" \n\n" + note(TREE, 5),
        b"old 1\n" + (base64.b64encode(bytes(32)) + b"\n") * 64 + b"\n" + note(TREE, 5), b"old 1\n\n", b"old 1\n\nno note\n",
        b"old \xff\n\n" + note(TREE, 5), b"old 1\n\n" + note(TREE, 5) + b"x" * submission_bytes_max,
    ],
)  # fmt: skip
def test_what_is_not_a_submission_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenLedger):
        read_submission(body)


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_no_bytes_break_the_reader(body: bytes) -> None:
    for given_ in (body, b"old 0\n\n" + body, b"old 0\n" + body):
        try:
            read_submission(given_)
        except BrokenLedger:
            continue


def test_what_is_written_is_read_again() -> None:
    proof = TREE.consistency(5, 9)
    found = read_submission(write_submission(5, proof, note(TREE, 9)))
    assert (found.old, found.proof, found.checkpoint.size) == (5, proof, 9)


def test_a_cosignature_holds_over_the_note_it_is_added_to() -> None:
    signed = note(TREE, 9)
    line = cosignature(
        "w/1", WITNESS.public, WITNESS.sign(cosigned_text(1_787_000_000, read_note(signed).text)), 1_787_000_000
    )
    key = read_vkey(write_vkey("w/1", WITNESS.public, COSIGNATURE))
    assert cosigned_at(read_note(signed + line), key) == 1_787_000_000
