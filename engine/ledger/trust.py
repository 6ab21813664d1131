"""The trust policy: whose keys and how many witnesses a verifier believes, obtained outside the bundle and pinned.

The lines `log`, `witness`, `group` and `quorum` are C2SP tlog-policy. Four more are ours: `bundle <vkey>` (who may seal
a bundle), `receipt <vkey>` (who may sign a receipt), `tenant <name>` and `min-size <n>` (refuse older checkpoints).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from engine.canonical import tagged
from engine.errors import BrokenLedger
from engine.ledger.notes import COSIGNATURE, ED25519, Note, VerifierKey, cosigned_at, read_vkey

trust_bytes_max = 262_144
_trust_number = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Group:
    """So many of these witnesses or groups."""

    needed: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """A parsed trust policy."""

    logs: tuple[VerifierKey, ...]
    bundles: tuple[VerifierKey, ...]
    receipts: dict[str, VerifierKey] = field(default_factory=dict)
    witnesses: dict[str, VerifierKey] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    quorum: str = "none"
    tenant: str = ""
    size_min: int = 0

    def witnessed(self, note: Note) -> dict[str, int]:
        """Which witnesses cosigned, and when (POSIX seconds)."""
        seen = {name: cosigned_at(note, key) for name, key in self.witnesses.items()}
        return {name: at for name, at in seen.items() if at is not None}

    def has_quorum(self, seen: dict[str, int], name: str | None = None) -> bool:
        """Whether these witnesses are enough."""
        name = self.quorum if name is None else name
        if name == "none":
            return True
        if name in self.witnesses:
            return name in seen
        group = self.groups[name]
        return sum(self.has_quorum(seen, member) for member in group.members) >= group.needed


def public_id(public: bytes) -> str:
    """The name by which entries and envelopes call a signing key: 16 hex digits of its hash."""
    return tagged("twokeys/key/v1", public).hex()[:16]


def write_trust(
    logs: tuple[str, ...],
    bundles: tuple[str, ...],
    receipts: tuple[str, ...],
    tenant: str = "",
    size_min: int = 0,
    witnesses: tuple[str, ...] = (),
) -> str:
    """The policy text of a deployment, from vkeys; with witnesses, one of them has to have cosigned."""
    lines = ["# Twokeys trust policy. Keep it where nobody who could change a bundle can change it."]
    lines += [f"log {key}" for key in logs]
    lines += [f"bundle {key}" for key in bundles]
    lines += [f"receipt {key}" for key in receipts]
    lines += [f"tenant {tenant}"] if tenant else []
    lines += [f"min-size {size_min}"] if size_min else []
    names = [f"w{n}" for n in range(1, len(witnesses) + 1)]
    lines += [f"witness {name} {key}" for name, key in zip(names, witnesses, strict=True)]
    lines += [f"group witnesses any {' '.join(names)}"] if len(names) > 1 else []
    quorum = "none" if not names else names[0] if len(names) == 1 else "witnesses"
    return "\n".join([*lines, f"quorum {quorum}", ""])


def read_trust(data: bytes) -> Trust:
    """Parse a policy file, strictly; an unknown line is refused, because it might be a condition."""
    if len(data) > trust_bytes_max:
        _bad_trust("a trust policy has at most 262,144 bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        _bad_trust("a trust policy is UTF-8 text")
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", text):
        _bad_trust("a trust policy holds no control characters but tab and newline")
    reader = _TrustReader()
    for number, line in enumerate(text.split("\n"), 1):
        words = re.split("[ \t]+", line.strip(" \t"))
        if words != [""] and not words[0].startswith("#"):
            reader.take(number, words)
    return reader.done()


class _TrustReader:
    def __init__(self) -> None:
        self.keys: dict[str, list[VerifierKey]] = {"log": [], "bundle": [], "receipt": []}
        self.witnesses: dict[str, VerifierKey] = {}
        self.groups: dict[str, Group] = {}
        self.once: dict[str, str] = {}

    def take(self, number: int, words: list[str]) -> None:
        word, rest = words[0], words[1:]
        try:
            if word in self.keys and len(rest) in ((1, 2) if word == "log" else (1,)):
                self._key(word, rest[0])
            elif word == "witness" and len(rest) in (2, 3):
                self._witness(rest[0], rest[1])
            elif word == "group" and len(rest) >= 3:
                self._group(rest[0], rest[1], tuple(rest[2:]))
            elif word in ("quorum", "tenant", "min-size") and len(rest) == 1 and word not in self.once:
                self._single(word, rest[0])
            else:
                _bad_trust(f"{' '.join(words)[:60]!r} is not a line of a trust policy")
        except BrokenLedger as error:
            raise BrokenLedger(f"line {number}: {error.reason}", code=error.code) from None

    def done(self) -> Trust:
        if "quorum" not in self.once:
            _bad_trust("a trust policy has one quorum line; `quorum none` asks for no witness")
        if not self.keys["log"] or not self.keys["bundle"] or not self.keys["receipt"]:
            _bad_trust("a trust policy names at least one log, one bundle and one receipt key")
        return Trust(
            logs=tuple(self.keys["log"]),
            bundles=tuple(self.keys["bundle"]),
            receipts={public_id(key.public): key for key in self.keys["receipt"]},
            witnesses=self.witnesses,
            groups=self.groups,
            quorum=self.once["quorum"],
            tenant=self.once.get("tenant", ""),
            size_min=int(self.once.get("min-size", "0")),
        )

    def _key(self, word: str, text: str) -> None:
        key = read_vkey(text)
        if key.kind != ED25519:
            _bad_trust(f"a {word} key is of type 1")
        if any(key.public == known.public for keys in self.keys.values() for known in keys):
            _bad_trust(f"the key {key.name} stands twice, or is used for two purposes")
        self.keys[word].append(key)

    def _witness(self, name: str, text: str) -> None:
        key = read_vkey(text)
        if key.kind != COSIGNATURE:
            _bad_trust("a witness's key is of type 4")
        known = [*self.witnesses.values(), *(one for keys in self.keys.values() for one in keys)]
        if any(key.public == one.public for one in known):
            _bad_trust(f"the key {key.name} stands twice, or is used for two purposes")
        self._fresh(name)
        self.witnesses[name] = key

    def _group(self, name: str, count: str, members: tuple[str, ...]) -> None:
        if count not in ("any", "all") and not _trust_number.fullmatch(count):
            _bad_trust(f"{count[:20]!r} is not any, all or a number")
        needed = {"any": 1, "all": len(members)}.get(count) or int(count)
        used = {member for group in self.groups.values() for member in group.members}
        for member in members:
            if member not in self.witnesses and member not in self.groups:
                _bad_trust(f"{member!r} is not defined above")
            if member in used or members.count(member) > 1:
                _bad_trust(f"{member!r} counts twice")
        if not 1 <= needed <= len(members):
            _bad_trust(f"a group of {len(members)} cannot need {needed}")
        self._fresh(name)
        self.groups[name] = Group(needed, members)

    def _single(self, word: str, value: str) -> None:
        if word == "quorum" and value != "none" and value not in self.witnesses and value not in self.groups:
            _bad_trust(f"{value!r} is not defined above")
        if word == "min-size" and not _trust_number.fullmatch(value):
            _bad_trust(f"{value[:40]!r} is not a number")
        self.once[word] = value

    def _fresh(self, name: str) -> None:
        if name == "none" or name in self.witnesses or name in self.groups:
            _bad_trust(f"the name {name!r} is taken")


def _bad_trust(reason: str) -> NoReturn:
    raise BrokenLedger(reason, code="trust-policy")
