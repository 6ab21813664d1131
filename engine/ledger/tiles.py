"""A log cut into tiles of 256 hashes and bundles of 256 entries (C2SP tlog-tiles): their names, their bytes, and proofs from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.errors import BrokenLedger
from engine.ledger.tree import Tree, consistency_path, hash_bytes, inclusion_path, root_of

tile_height = 8
tile_width = 1 << tile_height
_entry_bytes_max = 65_535  # the length before an entry has two bytes

# The stored hashes of one level from a number on, at most so many; fewer when fewer are stored. Level 0 are the leaves,
# and a hash of level k + 1 is the root of a full tile of level k.
ReadHashes = Callable[[int, int, int], Sequence[bytes]]


def hashes_at(size: int, level: int) -> int:
    """How many hashes a level has in a log of `size` entries."""
    return size >> (tile_height * level)


def tile_root(hashes: Sequence[bytes]) -> bytes:
    """What a full tile is in the level above it."""
    if len(hashes) != tile_width:
        raise BrokenLedger(f"a full tile has {tile_width} hashes, not {len(hashes)}", code="tile")
    return Tree(hashes).root()


class Tiles:
    """Proofs of a log of `size` entries from its tiles: each tile that a proof crosses is read once."""

    def __init__(self, size: int, read: ReadHashes) -> None:
        self.size = size
        self._read = read
        self._tiles: dict[tuple[int, int], Tree] = {}

    def root(self, size: int | None = None) -> bytes:
        """The root of the first `size` leaves, or of all."""
        return root_of(self._checked(size), self._node)

    def inclusion(self, index: int) -> tuple[bytes, ...]:
        """The audit path of one leaf in the whole tree."""
        return inclusion_path(index, self.size, self._node)

    def consistency(self, old: int) -> tuple[bytes, ...]:
        """The proof that the tree of the first `old` leaves is a prefix of the whole."""
        return consistency_path(old, self.size, self._node)

    def tile(self, level: int, n: int) -> tuple[bytes, ...]:
        """The hashes of one tile, as many as it has in a log of this size."""
        tile = self._tile(level, n)
        return tuple(tile.node(0, at) for at in range(tile.size))

    def _checked(self, size: int | None) -> int:
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise BrokenLedger(f"this log holds {self.size} leaves, not {size}")
        return size

    def _node(self, level: int, number: int) -> bytes:
        rows, height = divmod(level, tile_height)
        n, inside = divmod(number << height, tile_width)
        return self._tile(rows, n).node(height, inside >> height)

    def _tile(self, level: int, n: int) -> Tree:
        found = self._tiles.get((level, n))
        if found is None:
            there = min(tile_width, hashes_at(self.size, level) - n * tile_width)
            stored = list(self._read(level, n * tile_width, there))
            if level == 0 and len(stored) != there:
                raise BrokenLedger(f"the log has a gap behind {n * tile_width + len(stored)}", code="log_gap")
            # What a level above the leaves does not hold yet is worked out from the level below it.
            for number in range(n * tile_width + len(stored), n * tile_width + there):
                stored.append(self._tile(level - 1, number).root())
            found = self._tiles[level, n] = Tree(stored)
        return found


def tile_name(level: int, n: int, width: int = tile_width) -> str:
    """Where a tile of hashes stands below the log's own prefix; a partial tile names its width."""
    return f"tile/{level}/{_number(n)}{_part(width)}"


def entries_name(n: int, width: int = tile_width) -> str:
    """Where the entries of a tile of level 0 stand."""
    return f"tile/entries/{_number(n)}{_part(width)}"


def names(old: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(level, number, width) of each tile that a log of `size` entries has and one of `old` entries had not."""
    level = 0
    while level == 0 or hashes_at(size, level):
        before, after = hashes_at(old, level), hashes_at(size, level)
        for n in range(before // tile_width, -(-after // tile_width)):
            width = min(tile_width, after - n * tile_width)
            if n * tile_width + width > before:
                yield level, n, width
        level += 1


def write_entries(entries: Iterable[bytes]) -> bytes:
    """The bytes of an entry bundle: each entry behind its length."""
    parts = []
    for entry in entries:
        if len(entry) > _entry_bytes_max:
            raise BrokenLedger(f"an entry has at most {_entry_bytes_max} bytes", code="entry-size")
        parts += [len(entry).to_bytes(2, "big"), entry]
    return b"".join(parts)


def read_entries(data: bytes) -> list[bytes]:
    """The entries of an entry bundle; one that is cut off is refused."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        if at + 2 + size > len(data):
            raise BrokenLedger("an entry bundle ends in the middle of an entry", code="tile")
        found.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def read_hashes(data: bytes) -> list[bytes]:
    """The hashes of a tile."""
    if not data or len(data) % hash_bytes or len(data) > tile_width * hash_bytes:
        raise BrokenLedger("a tile is 1 to 256 hashes of 32 bytes", code="tile")
    return [data[at : at + hash_bytes] for at in range(0, len(data), hash_bytes)]


def _number(n: int) -> str:
    # Three digits to a directory, an x before each but the last: 1234067 is x001/x234/067.
    text = f"{n % 1000:03}"
    while n := n // 1000:
        text = f"x{n % 1000:03}/{text}"
    return text


def _part(width: int) -> str:
    return "" if width == tile_width else f".p/{width}"
