"""Tiles give the proofs of the whole tree from a few reads, and are named and written as C2SP tlog-tiles says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BrokenLedger
from engine.ledger.tiles import (
    Tiles,
    entries_name,
    hashes_at,
    names,
    read_entries,
    read_hashes,
    tile_name,
    tile_root,
    tile_width,
    write_entries,
)
from engine.ledger.tree import Tree, verify_consistency, verify_inclusion

LEAVES = [hashlib.sha256(n.to_bytes(4, "big")).digest() for n in range(66_200)]
LEVELS = [LEAVES]
while len(LEVELS[-1]) >= tile_width:
    row = LEVELS[-1]
    LEVELS.append([tile_root(row[n : n + tile_width]) for n in range(0, len(row) - tile_width + 1, tile_width)])
TREE = Tree(LEAVES)
EDGES = (1, 2, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, 65_792, 66_200)


class Stored:
    """Levels as a database holds them: above the leaves only as many as were stored."""

    def __init__(self, size: int, missing: int = 0) -> None:
        self.size, self.missing, self.reads = size, missing, 0

    def read(self, level: int, since: int, count: int) -> Sequence[bytes]:
        self.reads += 1
        there = hashes_at(self.size, level) - (self.missing if level else 0)
        return LEVELS[level][since : min(since + count, max(there, since))] if level < len(LEVELS) else []


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.sampled_from(EDGES), st.integers(1, len(LEAVES))), st.data())
def test_proofs_from_tiles_are_those_of_the_whole_tree(size: int, data: st.DataObject) -> None:
    stored = Stored(size)
    tiles = Tiles(size, stored.read)
    index = data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(0, size))
    assert tiles.root() == TREE.root(size)
    assert tiles.inclusion(index) == TREE.inclusion(index, size)
    assert tiles.consistency(old) == TREE.consistency(old, size)
    verify_inclusion(LEAVES[index], index, size, tiles.inclusion(index), TREE.root(size))
    verify_consistency(old, size, TREE.root(old), TREE.root(size), tiles.consistency(old))


def test_one_proof_reads_two_tiles_of_a_level_at_most() -> None:
    for size in EDGES:
        for index in (0, size // 2, size - 1):
            stored = Stored(size)
            Tiles(size, stored.read).inclusion(index)
            levels = sum(1 for level in range(4) if hashes_at(size, level))
            assert stored.reads <= 2 * levels, (size, index)


@pytest.mark.parametrize("missing", [1, 3, 1000])
def test_what_is_not_stored_yet_is_worked_out_from_the_leaves(missing: int) -> None:
    size = 65_800
    assert Tiles(size, Stored(size, missing).read).inclusion(17) == TREE.inclusion(17, size)


def test_a_gap_in_the_leaves_is_named() -> None:
    with pytest.raises(BrokenLedger, match="gap behind 300"):
        Tiles(400, Stored(300).read).inclusion(5)


def test_names_are_those_of_the_specification() -> None:
    assert tile_name(0, 1_234_067) == "tile/0/x001/x234/067"
    assert tile_name(3, 5, 17) == "tile/3/005.p/17"
    assert entries_name(1_000) == "tile/entries/x001/000"
    assert entries_name(0, 1) == "tile/entries/000.p/1"


def test_a_longer_log_has_these_tiles_more() -> None:
    assert list(names(0, 1)) == [(0, 0, 1)]
    assert list(names(0, 256)) == [(0, 0, 256), (1, 0, 1)]
    assert list(names(256, 257)) == [(0, 1, 1)]
    assert list(names(200, 600)) == [(0, 0, 256), (0, 1, 256), (0, 2, 88), (1, 0, 2)]
    assert list(names(600, 600)) == []
    # Whoever follows from checkpoint to checkpoint has every tile of the last one.
    for middle in (1, 255, 256, 65_536):
        full = {one for one in names(0, 66_000) if one[2] == tile_width}
        steps = {*names(0, middle), *names(middle, 66_000)}
        assert full <= steps


def test_bundles_of_entries_and_tiles_are_read_as_they_were_written() -> None:
    entries = [b"", b"a" * 65_535, b"{}"]
    assert read_entries(write_entries(entries)) == entries
    assert read_hashes(b"".join(LEAVES[:3])) == LEAVES[:3]
    with pytest.raises(BrokenLedger):
        write_entries([b"a" * 65_536])
    with pytest.raises(BrokenLedger):
        read_entries(write_entries(entries)[:-1])
    for wrong in (b"", b"x" * 31, b"x" * 32 * 257):
        with pytest.raises(BrokenLedger):
            read_hashes(wrong)
    with pytest.raises(BrokenLedger):
        tile_root(LEAVES[:255])
