"""Proves what the card record says of itself, and that the card digest keeps action and body apart."""

from __future__ import annotations

import dataclasses

import pytest

from engine.canonical import sha256
from engine.errors import CallerError
from engine.gate.card import OPEN, PHASES, CardRecord, card_digest


def a_record(**changed: object) -> CardRecord:
    blank = {f.name: () if f.type.startswith("tuple") else "" for f in dataclasses.fields(CardRecord)}
    values = {**blank, "keys": 2, "expires_epoch": 0, "card_rev": 1, "reversible": True, "target": {}, **changed}
    return CardRecord(**values)  # type: ignore[arg-type]


def test_people_read_a_short_name() -> None:
    assert a_record(approval="ap_1a2b3c4d5e6f7081").name == "AP-1a2b3c"


def test_only_the_asked_phase_is_open() -> None:
    assert [phase for phase in PHASES if a_record(phase=phase).is_open] == [OPEN]


@pytest.mark.parametrize(
    ("reversible", "reversal", "irreversible"),
    [
        (True, "inverse", False),
        (True, "manual", False),
        (True, "none", True),
        (False, "inverse", True),
        (False, "none", True),
    ],
)
def test_what_has_no_way_back_is_irreversible(reversible: bool, reversal: str, irreversible: bool) -> None:
    assert a_record(reversible=reversible, reversal=reversal).irreversible is irreversible


def test_the_card_digest_is_tagged_and_covers_action_and_body() -> None:
    action = "ab" * 32
    assert card_digest(action, b"[]") == sha256(b"twokeys/card/v1\x00" + bytes.fromhex(action) + b"[]")
    assert len({card_digest(action, b"[]"), card_digest("cd" * 32, b"[]"), card_digest(action, b"[1]")}) == 3


@pytest.mark.parametrize("digest", ["", "ab" * 31, "ab" * 33])
def test_a_digest_of_another_length_is_refused(digest: str) -> None:
    with pytest.raises(CallerError, match="32 bytes"):
        card_digest(digest, b"[]")
