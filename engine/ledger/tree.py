"""The Merkle tree of a tenant's log: RFC 6962 hashing, frontier, inclusion and consistency proofs, and checking them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.errors import BrokenLedger

hash_bytes = 32
size_max = 2**63 - 1


def leaf_hash(entry: bytes) -> bytes:
    """sha256(0x00, entry): the prefix keeps an inner node from being offered as an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """sha256(0x01, left, right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def empty_root() -> bytes:
    """The root of a tree without leaves: sha256 of nothing."""
    return hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """All that appending needs: the size and the roots of its complete subtrees, the largest (leftmost) first."""

    size: int = 0
    nodes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.nodes) != self.size.bit_count():
            raise BrokenLedger(f"{len(self.nodes)} nodes are no frontier of {self.size} leaves")
        if any(len(node) != hash_bytes for node in self.nodes):
            raise BrokenLedger("a frontier holds hashes of 32 bytes")

    def extend(self, leaves: Iterable[bytes]) -> Frontier:
        """The frontier after these leaf hashes."""
        size, nodes = self.size, list(self.nodes)
        for leaf in leaves:
            _check_hash(leaf, "leaf")
            node, carry = leaf, size
            while carry & 1:
                node = node_hash(nodes.pop(), node)
                carry >>= 1
            nodes.append(node)
            size += 1
        return Frontier(size, tuple(nodes))

    def append(self, leaf: bytes) -> Frontier:
        """The frontier after one leaf hash."""
        return self.extend((leaf,))

    @property
    def root(self) -> bytes:
        """The root of the tree with exactly this size."""
        if not self.nodes:
            return empty_root()
        node = self.nodes[-1]
        for left in reversed(self.nodes[:-1]):
            node = node_hash(left, node)
        return node


# The root of a complete subtree: (level, number) stands for the leaves from number << level up to (number + 1) << level.
Node = Callable[[int, int], bytes]


def root_of(size: int, node: Node) -> bytes:
    """The root of the first `size` leaves."""
    return _range(0, size, node) if size else empty_root()


def inclusion_path(index: int, size: int, node: Node) -> tuple[bytes, ...]:
    """The audit path of one leaf in the tree of the first `size` leaves, from the leaf upwards: O(log n) nodes are asked for."""
    if not 0 <= index < size:
        raise BrokenLedger(f"leaf {index} is not in a tree of {size}")
    path: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split_size(high - low)
        if index < middle:
            path.append(_range(middle, high, node))
            high = middle
        else:
            path.append(_range(low, middle, node))
            low = middle
    return tuple(reversed(path))


def consistency_path(old: int, new: int, node: Node) -> tuple[bytes, ...]:
    """The proof that the tree of the first `old` leaves is a prefix of that of the first `new`."""
    if not 0 <= old <= new:
        raise BrokenLedger(f"a tree of {old} is no prefix of a tree of {new}")
    if old in (0, new):
        return ()
    path: list[bytes] = []
    low, high, whole = 0, new, True
    while old != high:
        middle = low + _split_size(high - low)
        if old <= middle:
            path.append(_range(middle, high, node))
            high = middle
        else:
            path.append(_range(low, middle, node))
            low, whole = middle, False
    if not whole:
        path.append(_range(low, high, node))
    return tuple(reversed(path))


def _range(low: int, high: int, node: Node) -> bytes:
    # Every range asked for starts at a multiple of the power of two that covers it, so its complete parts are nodes.
    level = (high - low - 1).bit_length()
    if high - low == 1 << level and low % (high - low) == 0:
        return node(level, low >> level)
    middle = low + _split_size(high - low)
    return node_hash(_range(low, middle, node), _range(middle, high, node))


class Tree:
    """A whole tree in memory: every complete subtree is hashed once, so a proof costs O(log n)."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        _check_hash(leaf, "leaf")
        self._levels[0].append(leaf)
        level = 0
        while len(self._levels[level]) % 2 == 0:
            if level + 1 == len(self._levels):
                self._levels.append([])
            row = self._levels[level]
            self._levels[level + 1].append(node_hash(row[-2], row[-1]))
            level += 1

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return len(self._levels[0])

    def node(self, level: int, number: int) -> bytes:
        """The root of one complete subtree."""
        return self._levels[level][number]

    def root(self, size: int | None = None) -> bytes:
        """The root of the first `size` leaves, or of all."""
        return root_of(self._checked(size), self.node)

    def inclusion(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """The audit path of one leaf in the tree of the first `size` leaves, from the leaf upwards."""
        return inclusion_path(index, self._checked(size), self.node)

    def consistency(self, old: int, new: int | None = None) -> tuple[bytes, ...]:
        """The proof that the tree of the first `old` leaves is a prefix of that of the first `new`."""
        return consistency_path(old, self._checked(new), self.node)

    def _checked(self, size: int | None) -> int:
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise BrokenLedger(f"this tree holds {self.size} leaves, not {size}")
        return size


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Return when the leaf stands at the index of the tree with this size and root; raise otherwise."""
    if not 0 <= index < size <= size_max:
        raise BrokenLedger(f"leaf {index} is not in a tree of {size}", code="inclusion")
    _check_hashes((leaf, root, *proof))
    inner = (index ^ (size - 1)).bit_length()
    border = (index >> inner).bit_count()
    if len(proof) != inner + border:
        raise BrokenLedger(f"the proof has {len(proof)} hashes, not {inner + border}", code="inclusion")
    node = leaf
    for level, other in enumerate(proof):
        if level < inner and not index >> level & 1:
            node = node_hash(node, other)
        else:
            node = node_hash(other, node)
    if node != root:
        raise BrokenLedger(f"leaf {index} does not lead to the root of the tree of {size}", code="inclusion")


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Return when the old tree is a prefix of the new one; raise otherwise."""
    if not 0 <= old <= new <= size_max:
        raise BrokenLedger(f"a tree of {old} is no prefix of a tree of {new}", code="consistency")
    _check_hashes((old_root, new_root, *proof))
    if old in (0, new):
        if proof or old_root != (new_root if old else empty_root()):
            raise BrokenLedger(f"the trees of {old} and {new} do not fit", code="consistency")
        return
    # The proof starts at the largest complete subtree that ends where the old tree ends.
    shift = (old & -old).bit_length() - 1
    inner = ((old - 1) ^ (new - 1)).bit_length() - shift
    border = ((old - 1) >> (inner + shift)).bit_count()
    start = 0 if old == 1 << shift else 1
    if len(proof) != start + inner + border:
        raise BrokenLedger(f"the proof has {len(proof)} hashes, not {start + inner + border}", code="consistency")
    seed = proof[0] if start else old_root
    path, mask = proof[start:], (old - 1) >> shift
    before, after = seed, seed
    for level, other in enumerate(path):
        if level < inner and not mask >> level & 1:
            after = node_hash(after, other)
        else:
            before, after = node_hash(other, before), node_hash(other, after)
    if before != old_root:
        raise BrokenLedger(f"the proof does not lead to the root of the tree of {old}", code="consistency")
    if after != new_root:
        raise BrokenLedger(f"the proof does not lead to the root of the tree of {new}", code="consistency")


def _split_size(size: int) -> int:
    return 1 << ((size - 1).bit_length() - 1)


def _check_hash(value: bytes, what: str) -> None:
    if type(value) is not bytes or len(value) != hash_bytes:
        raise BrokenLedger(f"a {what} is a hash of 32 bytes", code="hash_size")


def _check_hashes(values: Sequence[bytes]) -> None:
    for value in values:
        _check_hash(value, "proof")
