"""The zip container of a bundle: one writing per content, STORED, and a reader that accepts no other bytes.

Read and written here, because the ordinary readers accept doubled names, junk around the archive and members that
overlap. Nothing is ever extracted to a disk.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Iterator, Mapping
from typing import NoReturn

from engine.errors import BrokenLedger

container_bytes_max = 1_073_741_824
container_files_max = 65_000
name_chars_max = 200

_file_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_local = struct.Struct("<IHHHHHIIIHH")
_central = struct.Struct("<IHHHHHHIIIHHHHHII")
_end = struct.Struct("<IHHHHIIH")
_local_mark, _central_mark, _end_mark = 0x04034B50, 0x02014B50, 0x06054B50
_version, _made_on_unix = 10, 3 << 8 | 10
_first_day = 1 << 5 | 1  # 1980-01-01, the first day that a zip can name
_mode = 0o100644 << 16


def write_container(files: Mapping[str, bytes]) -> bytes:
    """The one archive of these files."""
    for name in files:
        _check_name(name)
    return b"".join(bytes(piece) for piece in _pieces({name: memoryview(data) for name, data in files.items()}))


def read_container(data: bytes) -> dict[str, memoryview]:
    """The members of an archive by name, as views of its bytes; what is not one plain sequence of files is refused."""
    if len(data) > container_bytes_max:
        _bad_zip("zip-size", f"{len(data)} bytes; a bundle has at most {container_bytes_max}")
    view = memoryview(data)
    count, start, end = _read_end(data)
    files: dict[str, memoryview] = {}
    folded: set[str] = set()
    at, offset, before = start, 0, ""
    for _ in range(count):
        if at + _central.size > end:
            _bad_zip("zip-layout", "the directory ends early")
        head = _central.unpack_from(data, at)
        if head[0] != _central_mark:
            _bad_zip("zip-layout", f"no directory record stands at byte {at}")
        name = _read_name(data, at + _central.size, head[10])
        if head[4]:
            _bad_zip("zip-method", f"{name} is compressed; members are stored as they are")
        if name.lower() in folded:
            _bad_zip("zip-dup", f"{name} stands twice")
        folded.add(name.lower())
        if name <= before:
            _bad_zip("zip-layout", f"{name} is not in its place; names are sorted")
        if head[16] != offset or head[8] != head[9]:
            _bad_zip("zip-layout", f"{name} does not follow the member before it")
        body = offset + _local.size + len(name)
        offset = body + head[9]
        if offset > start:
            _bad_zip("zip-layout", f"{name} reaches into the directory")
        files[name] = view[body:offset]
        before, at = name, at + _central.size + head[10] + head[11] + head[12]
    if offset != start or at != end:
        _bad_zip("zip-prefix" if offset < start else "zip-layout", "bytes that belong to no member")
    return files


def check_canonical(data: bytes, files: Mapping[str, memoryview]) -> None:
    """Return when writing these members again gives exactly these bytes; raise otherwise."""
    view, at = memoryview(data), 0
    for piece in _pieces(files):
        if view[at : at + len(piece)] != piece:
            _bad_zip("zip-noncanonical", f"from byte {at} on this is not how these members are written")
        at += len(piece)
    if at != len(data):
        _bad_zip("zip-noncanonical", "bytes follow the archive")


def _pieces(files: Mapping[str, memoryview]) -> Iterator[bytes | memoryview]:
    directory: list[bytes] = []
    offset = 0
    for name in sorted(files):
        raw, body = name.encode("ascii"), files[name]
        crc, size = binascii.crc32(body), len(body)
        if offset + size >= 2**32 - 1 or len(directory) >= container_files_max:
            _bad_zip("zip-size", "a bundle stays below 4 GiB and 65,000 files")
        shared = (0, 0, 0, _first_day, crc, size, size, len(raw), 0)
        directory.append(_central.pack(_central_mark, _made_on_unix, _version, *shared, 0, 0, 0, _mode, offset) + raw)
        yield _local.pack(_local_mark, _version, *shared) + raw
        yield body
        offset += _local.size + len(raw) + size
    yield from directory
    length = sum(len(record) for record in directory)
    yield _end.pack(_end_mark, 0, 0, len(directory), len(directory), length, offset, 0)


def _read_end(data: bytes) -> tuple[int, int, int]:
    """How many members there are, and where their directory starts and ends."""
    at = len(data) - _end.size
    if at < 0 or data[at : at + 4] != _end_mark.to_bytes(4, "little"):
        where = data.rfind(_end_mark.to_bytes(4, "little"))
        _bad_zip("zip-trailing" if where >= 0 else "zip-layout", "the file does not end as a plain zip archive ends")
    _, disk, first_disk, here, count, length, start, comment = _end.unpack_from(data, at)
    if comment:
        _bad_zip("zip-comment", "the archive carries a comment")
    if disk or first_disk or here != count or count > container_files_max:
        _bad_zip("zip-layout", "the archive is not in one piece")
    if start + length != at:
        _bad_zip("zip-prefix" if start + length < at else "zip-layout", "the directory is not where it should be")
    return count, start, at


def _read_name(data: bytes, at: int, size: int) -> str:
    raw = data[at : at + size]
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        _bad_zip("zip-name", f"{raw[:60]!r} is not a plain name")
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if len(name) > name_chars_max or not _file_name.fullmatch(name):
        _bad_zip("zip-name", f"{name[:60]!r} is not a plain name: letters, digits, dots, dashes and slashes")


def _bad_zip(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
