"""Entries are built only from the catalogue, and only their canonical bytes are read_entry back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import jcs
from engine.errors import BrokenLedger
from engine.ledger.entries import CATALOGUE, GENESIS, Fact, _slowly, build, check_body, instant, read_entry, stamp
from engine.ledger.tree import leaf_hash

AT = datetime(2026, 8, 21, 10, 11, 12, 345678, tzinfo=UTC)
KEY = Fact(
    "key.refused",
    {"type": "person", "id": "per_0011223344556677"},
    {"approval": "ap_1", "person": "per_1", "code": "self", "via": "api", "count": 1},
)


def made(fact: Fact = KEY) -> bytes:
    return build(fact, "acme", "run-1", 3, GENESIS, AT)[0]


def changed(**parts: Any) -> bytes:
    return jcs({**json.loads(made()), **parts})


def refused(data: bytes) -> str:
    with pytest.raises(BrokenLedger) as caught:
        read_entry(data)
    return caught.value.code


def test_what_is_built_is_what_is_read() -> None:
    data, leaf = build(KEY, "acme", "run-1", 3, b"\x01" * 32, AT)
    entry = read_entry(data)
    assert (entry.tenant, entry.chain, entry.chain_seq, entry.prev) == ("acme", "run-1", 3, "01" * 32)
    assert (entry.type, entry.actor, entry.body, entry.commit) == (KEY.type, KEY.actor, KEY.body, ())
    assert entry.at == "2026-08-21T10:11:12.345678Z"
    assert instant(entry.at) == AT
    assert entry.leaf == leaf == leaf_hash(data)
    assert data == rfc8785.dumps(json.loads(data))


def test_times_are_utc_with_six_digits() -> None:
    assert stamp(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-02T01:04:05.000000Z"
    with pytest.raises(BrokenLedger):
        stamp(datetime(2026, 1, 2))
    for text in ("2026-01-02T01:04:05Z", "2026-13-02T01:04:05.000000Z", "2026-01-02T01:04:05.000000+00:00", ""):
        with pytest.raises(BrokenLedger):
            instant(text)


@pytest.mark.parametrize(
    ("fact", "code"),
    [
        (Fact("key.stolen", KEY.actor, KEY.body), "entry-type"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "more": 1}), "entry-body"),
        (Fact("key.refused", KEY.actor, {"approval": "a"}), "entry-body"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "count": True}), "entry-body"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "count": -1}), "entry-body"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "count": 1.0}), "entry-body"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "person": None}), "entry-body"),
        (Fact("key.refused", {"type": "robot", "id": "x"}, KEY.body), "entry-shape"),
        (Fact("key.refused", {"type": "person", "id": "x", "more": ""}, KEY.body), "entry-shape"),
        (Fact("key.refused", KEY.actor, KEY.body, ("abc",)), "entry-shape"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "person": "\ud800"}), "entry-noncanonical"),
        (Fact("key.refused", KEY.actor, {**KEY.body, "person": "x" * 70_000}), "entry-size"),
    ],
)
def test_a_fact_outside_the_catalogue_is_not_built(fact: Fact, code: str) -> None:
    with pytest.raises(BrokenLedger) as caught:
        made(fact)
    assert caught.value.code == code


def test_the_wrong_place_is_not_built() -> None:
    for tenant, chain, seq, prev in (
        ("Acme", "c", 0, GENESIS),
        ("acme", "", 0, GENESIS),
        ("acme", "c d", 0, GENESIS),
        ("acme", "c", -1, GENESIS),
        ("acme", "c", 0, b""),
    ):
        with pytest.raises(BrokenLedger):
            build(KEY, tenant, chain, seq, prev, AT)


def test_every_other_writing_of_an_entry_is_refused() -> None:
    data = made()
    text = data.decode()
    assert refused(text.replace('"count":1', '"count":1.0').encode()) == "entry-parse"
    assert refused(text.replace('"count":1', '"count":1e0').encode()) == "entry-parse"
    assert refused(text.replace('"count":1', '"count":01').encode()) == "entry-parse"
    assert refused(text.replace('"count":1', '"count":' + "1" * 30).encode()) == "entry-parse"
    assert refused(text.replace('"count":1', '"count":NaN').encode()) == "entry-parse"
    assert refused(text.replace('"count":1', '"count":1,"count":1').encode()) == "entry-parse"
    assert refused(b"\xef\xbb\xbf" + data) == "entry-parse"
    assert refused(b"[" * 100_000) == "entry-size"
    assert refused(b"[" * 60_000) == "entry-parse"
    assert refused(data + b" ") == "entry-noncanonical"
    assert refused(json.dumps(json.loads(data), sort_keys=True).encode()) == "entry-noncanonical"
    backwards = dict(reversed(json.loads(data).items()))
    assert refused(json.dumps(backwards, separators=(",", ":")).encode()) == "entry-noncanonical"
    assert refused(text.replace("self", "sel\\u0066").encode()) == "entry-noncanonical"
    assert refused(data[:-1]) == "entry-parse"
    assert refused(changed(v=2)) == "entry-shape"
    assert refused(changed(v=True)) == "entry-shape"
    assert refused(changed(more=1)) == "entry-shape"
    assert refused(changed(at="2026-08-21T10:11:12Z")) == "entry-shape"
    assert refused(changed(at="2026-02-30T10:11:12.000000Z")) == "entry-time"
    assert refused(b"[]") == "entry-shape"


def test_unicode_forms_of_one_text_are_different_entries() -> None:
    composed = made(Fact("key.refused", KEY.actor, {**KEY.body, "person": "\u00e9"}))
    apart = made(Fact("key.refused", KEY.actor, {**KEY.body, "person": "e\u0301"}))
    assert leaf_hash(composed) != leaf_hash(apart)
    assert read_entry(composed).body["person"] == "\u00e9"


NUMBERS = {"rev", "n", "keys", "expires_in_s", "verdict_n", "card_rev", "given", "needed", "count", "attempt", "level"}
NUMBERS |= {"entries", "size", "journal_version", "delivery", "depth"}
NUMBERS |= {
    "max_concurrency",
    "max_concurrent_runs",
    "max_runs_per_min",
    "max_writes_per_run",
    "weight",
    "people",
    "most",
}
NUMBERS |= {"share", "quiet_from", "quiet_until", "review_seconds"}
NUMBERS |= {"position"}
OTHERS: dict[str, Any] = {
    "counts": [["ops-eu", 2]],
    "lineage": [{"person": "per_1", "why": "requester"}],
    "groups": ["ops"],
    "reasons": ["no_grant"],
    "persons": ["per_1"],
    "signers": ["ops"],
    "authors": ["per_1"],
    "reviews": ["ap_1"],
    "rule_author": True,
    "retryable": False,
    "reversible": True,
}


def sample(key: str) -> Any:
    return 1 if key in NUMBERS else OTHERS.get(key, "ab" * 32)


def test_every_type_of_the_catalogue_knows_what_its_keys_hold() -> None:
    for kind, keys in CATALOGUE.items():
        body = {key: sample(key) for key in keys}
        check_body(kind, body)
        for key in keys:
            for wrong in (None, 1.5, {}, [None], "x" if key in NUMBERS | set(OTHERS) else 1.0, b""):
                with pytest.raises(BrokenLedger):
                    check_body(kind, {**body, key: wrong})
            with pytest.raises(BrokenLedger):
                check_body(kind, {name: item for name, item in body.items() if name != key})


def test_what_may_be_left_out_still_holds_what_its_name_says() -> None:
    """`needs` is there only where holds ask for different things, and is never empty then."""
    need = {"keys": 1, "counts": [["ops-eu", 1]], "groups": ["ops-eu"]}
    for kind in ("verdict.given", "approval.asked"):
        body = {key: sample(key) for key in CATALOGUE[kind]}
        check_body(kind, {**body, "needs": [need]})
        for wrong in ([], None, need, [{**need, "more": 1}], [{**need, "keys": "1"}], [{**need, "counts": {"a": 1}}]):
            with pytest.raises(BrokenLedger):
                check_body(kind, {**body, "needs": wrong})
    with pytest.raises(BrokenLedger):
        check_body("key.given", {**{key: sample(key) for key in CATALOGUE["key.given"]}, "needs": [need]})


def test_a_digest_is_64_hex_digits_or_empty() -> None:
    body = {"sha256": "", "person": "per_1"}
    check_body("evidence.downloaded", body)
    for wrong in ("ab" * 31, "AB" * 32, "ab" * 32 + "\n"):
        with pytest.raises(BrokenLedger):
            check_body("evidence.downloaded", {**body, "sha256": wrong})


@given(st.text(max_size=40), st.integers(0, 2**53 - 1))
def test_any_text_and_number_comes_back_as_it_was(text: str, count: int) -> None:
    fact = Fact("key.refused", {"type": "system", "id": text}, {**KEY.body, "person": text, "count": count})
    data = made(fact)
    assert read_entry(data).body == fact.body
    assert data == rfc8785.dumps(json.loads(data))


ODD = st.sampled_from(
    (None, True, -1, 2**53, 1.5, "", "ab" * 32, "\ud800", 'é"\\\n', "x", [], ["a"], [["g", 1]], {}, b"")
)


@given(st.data())
def test_an_entry_that_is_built_quickly_is_the_one_that_the_rules_build(data: st.DataObject) -> None:
    """Byte for byte, for every type; and what the rules refuse is refused for their reason."""
    kind = data.draw(st.sampled_from([*sorted(CATALOGUE), "nothing.happened"]))
    body = {key: sample(key) for key in CATALOGUE.get(kind, ())}
    wrong = data.draw(st.dictionaries(st.sampled_from([*sorted(body), "more"]), ODD, max_size=2))
    left = data.draw(st.sets(st.sampled_from(sorted(body) or ["more"]), max_size=1))
    fact = Fact(
        kind,
        data.draw(
            st.sampled_from(
                ({"type": "person", "id": "p"}, {"type": "system", "id": "é"}, {"type": "x", "id": "p"}, {"id": "p"})
            )
        ),
        {name: item for name, item in {**body, **wrong}.items() if name not in left},
        data.draw(st.sampled_from(((), ("ab" * 32,), ("no",)))),
    )
    at = data.draw(st.sampled_from((AT, AT.astimezone(timezone(timedelta(hours=5))), AT.replace(tzinfo=None))))
    place = data.draw(
        st.sampled_from((("acme", "run-1", 3), ("acme", "person/é", 3), ("", "run-1", 3), ("acme", "run-1", -1)))
    )

    def tried(make: Any) -> Any:
        try:
            return make(fact, *place, GENESIS, at)
        except BrokenLedger as error:
            return error.code, error.reason

    built, by_rule = tried(build), tried(_slowly)
    assert built == ((by_rule, leaf_hash(by_rule)) if type(by_rule) is bytes else by_rule)


def test_the_sample_of_every_type_is_built_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would hold the rules to themselves."""
    monkeypatch.setattr("engine.ledger.entries._slowly", lambda *_: pytest.fail("by the rules"))
    for kind, keys in CATALOGUE.items():
        assert made(Fact(kind, {"type": "system", "id": "twokeys"}, {key: sample(key) for key in keys}))
