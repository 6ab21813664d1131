"""A tenant's data is of one shape, every fault of it is told at once, and what was stored before stays what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governance.policy import bundle, tenant_data
from governance.policy.bundle import build, complete_data, read_source, shipped_directory
from governance.policy.stored import opened

SOURCE = read_source(shipped_directory())
PLAIN = complete_data(SOURCE.data, {}, "acme")
QUORUM = {"code": "q", "connector": "bank", "operations": ["refund"], "counts": {"finance": 1}, "expires_in_s": 600}
WINDOW = {"code": "w", "from_ms": 1, "until_ms": 2}
WEEKLY = {"code": "w", "weekdays": [4], "from_minute": 0, "until_minute": 1440}


def test_the_published_schema_is_the_one_that_is_enforced() -> None:
    """After a change write tenant_schema() to the file again."""
    text = (shipped_directory() / "schema" / "tenant.json").read_text(encoding="utf-8")
    assert text == json.dumps(tenant_data.tenant_schema(), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        ({"quorums": [{**QUORUM, "counts": {}}]}, ".quorums[0].counts", "at least one"),
        ({"quorums": [{**QUORUM, "counts": {"Finance": 1}}]}, ".quorums[0].counts.Finance", "lower case"),
        ({"quorums": [{**QUORUM, "counts": {"finance": 0}}]}, ".quorums[0].counts.finance", "1 to 9"),
        ({"quorums": [{**QUORUM, "counts": {"finance": True}}]}, ".quorums[0].counts.finance", "1 to 9"),
        ({"quorums": [{**QUORUM, "code": "Q!"}]}, ".quorums[0].code", "lower case"),
        ({"quorums": [{**QUORUM, "code": "q\n"}]}, ".quorums[0].code", "lower case"),
        ({"quorums": [{**QUORUM, "expires_in_s": 59}]}, ".quorums[0].expires_in_s", "from 60"),
        (
            {"quorums": [{name: QUORUM[name] for name in QUORUM if name != "connector"}]},
            ".quorums[0].connector",
            "missing",
        ),
        ({"quorums": QUORUM}, ".quorums", "list"),
        ({"freeze_windows": [{**WINDOW, "from_ms": 2}]}, ".freeze_windows[0]", "until_ms is after from_ms"),
        ({"freeze_windows": [{**WINDOW, "from_ms": 1.5}]}, ".freeze_windows[0].from_ms", "whole number"),
        ({"weekly_freezes": [{**WEEKLY, "weekdays": [7]}]}, ".weekly_freezes[0].weekdays[0]", "0 to 6"),
        ({"weekly_freezes": [{**WEEKLY, "weekdays": []}]}, ".weekly_freezes[0].weekdays", "at least one"),
        ({"weekly_freezes": [{**WEEKLY, "until_minute": 0}]}, ".weekly_freezes[0]", "until_minute is after"),
        ({"payment_holds": {"one_key_above_minor": 2, "two_keys_above_minor": 1}}, ".payment_holds", "at least"),
        ({"payment_holds": {"one_key_above_minor": 2}}, ".payment_holds.two_keys_above_minor", "missing"),
        ({"conectors": []}, ".conectors", "did you mean 'connectors'"),
        ({1: []}, "", "names of text"),
    ],
)
def test_each_fault_is_told_with_its_place(changes: dict[Any, Any], place: str, says: str) -> None:
    """A rule over data of another shape would be silent."""
    found = tenant_data.faults({**PLAIN, **changes})
    assert [where for where, _ in found] == [place]
    assert says in found[0][1]


def test_all_faults_are_told_at_once() -> None:
    """And nothing at all is a fault too."""
    found = tenant_data.faults({**PLAIN, "enabled": 1, "caps": {}, "more": 1})
    assert {place for place, _ in found} == {
        ".enabled", ".caps.max_amount_minor", ".caps.max_writes_per_run", ".more",
    }  # fmt: skip
    assert tenant_data.faults(None) == [("", "is an object")]
    assert (
        tenant_data.faults({**PLAIN, "quorums": [QUORUM], "freeze_windows": [WINDOW], "weekly_freezes": [WEEKLY]}) == []
    )


def test_a_bundle_of_before_opens_to_the_byte() -> None:
    """What was activated under an earlier release has no later keys, and gets none by being read."""
    old = {name: value for name, value in PLAIN.items() if name not in tenant_data._later}
    stored = build(SOURCE.modules, {"defaults": {}, "tenants": {}}, {"acme": old})
    again = opened(stored.archive, stored.revision)
    assert (again.archive, again.data) == (stored.archive, stored.data)
    assert set(again.data["tenants"]["acme"]) == set(old)
    assert set(again.data["tenants"][bundle.CANARY_TENANT]) == set(old)
