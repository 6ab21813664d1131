"""The Merkle tree agrees with a second, recursive reading of RFC 6962 for every small size, and rejects every change."""

from __future__ import annotations

import hashlib

import pytest

from engine.errors import BrokenLedger
from engine.ledger.tree import (
    Frontier,
    Tree,
    empty_root,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)

LEAVES = [leaf_hash(bytes([n])) for n in range(131)]
ROOTS: list[bytes] = []


def mth(leaves: list[bytes]) -> bytes:
    """RFC 6962 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """RFC 6962 2.1.1, word for word."""
    if len(leaves) == 1:
        return []
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m < k:
        return [*path(m, leaves[:k]), mth(leaves[k:])]
    return [*path(m - k, leaves[k:]), mth(leaves[:k])]


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """RFC 6962 2.1.2, word for word."""
    n = len(leaves)
    if m == n:
        return [] if whole else [mth(leaves)]
    k = 1
    while k * 2 < n:
        k *= 2
    if m <= k:
        return [*subproof(m, leaves[:k], whole), mth(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), mth(leaves[:k])]


def roots() -> list[bytes]:
    if not ROOTS:
        ROOTS.extend(mth(LEAVES[:n]) for n in range(len(LEAVES) + 1))
    return ROOTS


def test_frontier_and_tree_have_the_root_of_the_specification_at_every_size() -> None:
    frontier, tree = Frontier(), Tree()
    for size, leaf in enumerate(LEAVES):
        assert frontier.root == tree.root() == roots()[size]
        frontier = frontier.append(leaf)
        tree.append(leaf)
    assert frontier == Frontier().extend(LEAVES)
    assert [tree.root(size) for size in range(len(LEAVES) + 1)] == roots()


def test_every_inclusion_proof_of_every_small_tree_holds_and_no_changed_hash_does() -> None:
    tree, proofs = Tree(LEAVES), 0
    for size in range(1, len(LEAVES)):
        for index in range(size):
            proof = tree.inclusion(index, size)
            if size < 40:
                assert list(proof) == path(index, LEAVES[:size])
            verify_inclusion(LEAVES[index], index, size, proof, roots()[size])
            proofs += 1
    assert proofs == 130 * 131 // 2
    for size in range(1, 34):
        for index in range(size):
            proof = list(tree.inclusion(index, size))
            for place in range(len(proof)):
                with pytest.raises(BrokenLedger):
                    verify_inclusion(LEAVES[index], index, size, flipped(proof, place), roots()[size])
            for wrong in (proof[:-1] if proof else [LEAVES[0]], [*proof, LEAVES[0]]):
                with pytest.raises(BrokenLedger):
                    verify_inclusion(LEAVES[index], index, size, wrong, roots()[size])
            for other in range(size):
                if other != index:
                    with pytest.raises(BrokenLedger):
                        verify_inclusion(LEAVES[index], other, size, proof, roots()[size])


def test_every_consistency_proof_of_every_small_pair_holds_and_no_changed_hash_does() -> None:
    tree = Tree(LEAVES)
    for new in range(66):
        for old in range(new + 1):
            proof = tree.consistency(old, new)
            if old:
                assert list(proof) == subproof(old, LEAVES[:new], True)
            verify_consistency(old, new, roots()[old], roots()[new], proof)
            for place in range(len(proof)):
                with pytest.raises(BrokenLedger):
                    verify_consistency(old, new, roots()[old], roots()[new], flipped(list(proof), place))
            for wrong in ([*proof, LEAVES[0]], list(proof)[:-1] if proof else [LEAVES[1]]):
                with pytest.raises(BrokenLedger):
                    verify_consistency(old, new, roots()[old], roots()[new], wrong)
            if 0 < old < new:
                with pytest.raises(BrokenLedger):
                    verify_consistency(old, new, roots()[old], roots()[new - 1 if new - 1 != old else 0], proof)
                with pytest.raises(BrokenLedger):
                    verify_consistency(old, new, roots()[new], roots()[new], proof)


def test_an_index_outside_the_tree_is_refused_before_anything_is_hashed() -> None:
    tree = Tree(LEAVES[:4])
    for index, size in ((-1, 4), (4, 4), (0, 0), (0, -1), (0, 2**70)):
        with pytest.raises(BrokenLedger):
            verify_inclusion(LEAVES[0], index, size, (), roots()[1])
    for index, size in ((4, 4), (0, 5), (-1, 4)):
        with pytest.raises(BrokenLedger):
            tree.inclusion(index, size)
    for old, new in ((3, 2), (-1, 2), (1, 5)):
        with pytest.raises(BrokenLedger):
            tree.consistency(old, new)
        with pytest.raises(BrokenLedger):
            verify_consistency(old, new, LEAVES[0], LEAVES[1], ())


def test_an_inner_node_is_no_leaf() -> None:
    left, right = LEAVES[0], LEAVES[1]
    assert leaf_hash(left + right) != node_hash(left, right)
    assert empty_root().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_frontier_or_a_hash_of_the_wrong_shape_is_refused() -> None:
    for size, nodes in ((1, ()), (0, (LEAVES[0],)), (1, (b"short",)), (-1, ())):
        with pytest.raises(BrokenLedger):
            Frontier(size, nodes)
    with pytest.raises(BrokenLedger):
        Frontier().append(b"short")
    with pytest.raises(BrokenLedger):
        Tree([b"short"])
    with pytest.raises(BrokenLedger):
        verify_inclusion(LEAVES[0], 0, 1, (), b"short")


def flipped(proof: list[bytes], place: int) -> list[bytes]:
    changed = bytearray(proof[place])
    changed[place % 32] ^= 1 << (place % 8)
    return [*proof[:place], bytes(changed), *proof[place + 1 :]]
