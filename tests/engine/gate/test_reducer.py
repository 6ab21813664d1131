"""The reducer gives a ruling for everything and never an allow that something speaks against."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import limits
from engine.gate import action, reducer
from tests.engine.gate.kit import findings, hold

LOW_WRITE = {"kind": "write", "risk_tier": "low", "reversible": True}
KEYS = {
    "effect", "deny_kind", "fault", "tier", "keys", "counts", "groups", "needs", "two_person", "expires_in_s", "reasons",
    "obligations",
}  # fmt: skip
DENIAL = {"code": "freeze", "message": "a freeze is active"}


def subject(kind: str = "write", tier: str = "low", reversible: bool = True) -> dict[str, Any]:
    return {"kind": kind, "risk_tier": tier, "reversible": reversible}


def test_the_lists_that_the_verifier_carries_are_the_products_own() -> None:
    """The reducer imports nothing, so a kind or a bound added elsewhere must be added here too."""
    assert reducer.ruling_kinds == action.KINDS
    assert reducer.ruling_tiers == action.TIERS
    assert reducer.hold_seconds_min == limits.approval_seconds_min
    assert reducer.hold_seconds_max == limits.approval_seconds_max


def test_a_grant_alone_allows_and_carries_no_gate_fields() -> None:
    """Allow has a reason, its obligations, and neither keys nor groups nor an expiry."""
    receipt = {"type": "receipt", "level": "full"}
    ruling = reducer.reduce(findings(obligations=[receipt, receipt]), LOW_WRITE)
    assert ruling["effect"] == "allow"
    assert [reason["code"] for reason in ruling["reasons"]] == ["listed_write"]
    assert ruling["obligations"] == [receipt]
    assert (ruling["keys"], ruling["counts"], ruling["groups"], ruling["expires_in_s"]) == (0, {}, [], 0)


def test_a_denial_wins_over_holds_and_grants() -> None:
    """One denial is enough, and it is of kind policy."""
    ruling = reducer.reduce(findings(denials=[DENIAL], holds=[hold()]), LOW_WRITE)
    assert (ruling["effect"], ruling["deny_kind"], ruling["keys"]) == ("deny", "policy", 0)
    assert ruling["reasons"] == [DENIAL]


@pytest.mark.parametrize("holds", [[], [hold()]], ids=["nothing", "holds alone"])
def test_without_a_grant_nothing_is_allowed(holds: list[dict[str, Any]]) -> None:
    """A hold says who must agree to what is granted; it grants nothing."""
    ruling = reducer.reduce(findings(grants=[], holds=holds), LOW_WRITE)
    assert (ruling["effect"], ruling["deny_kind"]) == ("deny", "policy")
    assert ruling["reasons"][0]["code"] == "no_grant"


def test_several_holds_become_the_strictest() -> None:
    """Tier is the highest, expiry the shortest, groups are the union, counts the maximum per group."""
    ruling = reducer.reduce(
        findings(
            holds=[
                hold(code="b", tier="med", two_person=False, groups=["oncall"], expires_in_s=900),
                hold(code="a", groups=["finance", "security"], counts={"finance": 1, "security": 1}),
                hold(code="c", groups=["finance"], counts={"finance": 2}, tier="low"),
            ]
        ),
        LOW_WRITE,
    )
    assert ruling["effect"] == "needs_approval"
    assert ruling["tier"] == "high"
    assert ruling["groups"] == ["finance", "oncall", "security"]
    assert ruling["counts"] == {"finance": 2, "security": 1}
    assert ruling["keys"] == 3
    assert ruling["two_person"] is True
    assert ruling["expires_in_s"] == 900
    assert [reason["code"] for reason in ruling["reasons"]] == ["a", "b", "c"]


def test_a_hold_of_a_low_tier_does_not_lower_the_actions_own() -> None:
    """The action was proposed as high and stays high."""
    held = hold(tier="low", two_person=False)
    assert reducer.reduce(findings(holds=[held]), subject(tier="high"))["tier"] == "high"


@pytest.mark.parametrize(
    ("kind", "tier", "reversible", "least"),
    [
        ("read", "low", True, 0),
        ("read", "high", True, 1),
        ("write", "low", True, 0),
        ("write", "high", True, 1),
        ("write", "low", False, 1),
        ("delete", "low", True, 0),
        ("delete", "low", False, 2),
        ("payment", "med", False, 2),
        ("message", "high", False, 0),
        ("message", "low", False, 0),
    ],
)
def test_the_products_floor_lies_below_every_policy(kind: str, tier: str, reversible: bool, least: int) -> None:
    """High and irreversible are never a plain allow; an irreversible delete or payment needs two keys whatever policy says."""
    plain = reducer.reduce(findings(), subject(kind, tier, reversible))
    one_key = reducer.reduce(findings(holds=[hold(two_person=False)]), subject(kind, tier, reversible))
    if least:
        assert (plain["effect"], plain["deny_kind"], plain["fault"]) == ("deny", "fault", "below_floor")
    else:
        assert plain["effect"] == "allow"
    assert one_key["effect"] == "needs_approval"
    assert one_key["keys"] == max(1, least)


def broken(path: str, value: object) -> dict[str, Any]:
    """Valid findings with one of everything, and one thing put wrong."""
    whole: dict[str, Any] = copy.deepcopy(
        findings(
            denials=[dict(DENIAL)],
            holds=[hold(counts={"oncall": 2})],
            obligations=[{"type": "step_up", "max_age_s": 300}, {"type": "receipt", "level": "full"}],
        )
    )
    *parents, last = path.split("/")
    at: Any = whole
    for name in parents:
        at = at[int(name)] if name.isdigit() else at[name]
    if value is ...:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value
    return whole


RULES = [
    ("schema", "twokeys.policy.findings/v2", "schema_unknown"),
    ("schema", ..., "shape"),
    ("extra", 1, "shape"),
    ("echo", [], "shape"),
    ("echo/request_id", ..., "shape"),
    ("echo/request_id", "", "text"),
    ("echo/action_sha256", "A" * 64, "not_a_digest"),
    ("echo/action_sha256", "a" * 64 + "\n", "not_a_digest"),
    ("policy/revision", "", "not_a_digest"),
    ("policy/revision", 7, "not_a_digest"),
    ("policy/package", "", "text"),
    ("policy/more", "x", "shape"),
    ("denials", {}, "shape"),
    ("denials/0", "freeze", "shape"),
    ("denials/0/message", ..., "shape"),
    ("denials/0/code", "Freeze", "code"),
    ("denials/0/code", "freeze\n", "code"),
    ("denials/0/code", "x" * 65, "code"),
    ("denials/0/code", True, "code"),
    ("denials/0/message", "", "text"),
    ("denials/0/message", "x" * 501, "text"),
    ("denials/0/message", "a\u202eb", "text"),
    ("denials/0/message", "a\u200bb", "text"),
    ("denials/0/message", "a\x00b", "text"),
    ("denials/0/message", "a\x85b", "text"),
    ("denials/0/message", "a\ud800b", "text"),
    ("denials/0/message", None, "text"),
    ("grants", None, "shape"),
    ("grants", [{"code": "a", "message": "b"}] * 51, "too_many_reasons"),
    ("holds/0/tier", "medium", "tier"),
    ("holds/0/tier", ["low"], "tier"),
    ("holds/0/two_person", 1, "shape"),
    ("holds/0/expires_in_s", 59, "expiry"),
    ("holds/0/expires_in_s", 604_800, "expiry"),
    ("holds/0/expires_in_s", 900.0, "expiry"),
    ("holds/0/expires_in_s", True, "expiry"),
    ("holds/0/groups", [], "group"),
    ("holds/0/groups", ["oncall", "oncall"], "group"),
    ("holds/0/groups", ["On Call"], "group"),
    ("holds/0/groups", [f"g{n}" for n in range(21)], "group"),
    ("holds/0/groups", "oncall", "shape"),
    ("holds/0/more", 1, "shape"),
    ("holds/0/counts", {"oncall": 0}, "counts"),
    ("holds/0/counts", {"oncall": 10}, "counts"),
    ("holds/0/counts", {"oncall": True}, "counts"),
    ("holds/0/counts", {"oncall": 1}, "counts"),
    ("holds/0/counts", {"finance": 2}, "shape"),
    ("holds/0/counts", None, "shape"),
    ("obligations", "x", "shape"),
    ("obligations/0", {"type": "dance"}, "obligation_unknown"),
    ("obligations/0", {}, "obligation_unknown"),
    ("obligations/0", "receipt", "obligation_unknown"),
    ("obligations/0", {"type": ["receipt"]}, "obligation_unknown"),
    ("obligations/0/max_age_s", 0, "obligation_value"),
    ("obligations/0/max_age_s", True, "obligation_value"),
    ("obligations/0/max_age_s", 86_401, "obligation_value"),
    ("obligations/0/more", 1, "shape"),
    ("obligations/1/level", "", "text"),
    ("obligations/1/level", "x" * 201, "text"),
    ("obligations", [{"type": "reason"}] * 21, "too_many_obligations"),
]


@pytest.mark.parametrize(
    ("path", "value", "code"), RULES, ids=[f"{path}={str(value)[:20]!a}" for path, value, _ in RULES]
)
def test_every_rule_of_the_validator_denies_when_broken(path: str, value: object, code: str) -> None:
    """The findings break exactly one rule; the ruling is a denial of kind fault with that rule's code."""
    ruling = reducer.reduce(broken(path, value), LOW_WRITE)
    assert (ruling["effect"], ruling["deny_kind"], ruling["fault"]) == ("deny", "fault", code)


def test_more_than_twenty_groups_over_all_holds_is_a_fault() -> None:
    """Each hold is within its own bound, the sum is not."""
    holds = [hold(code=f"h{n}", groups=[f"g{n}-{m}" for m in range(10)]) for n in range(3)]
    assert reducer.reduce(findings(holds=holds), LOW_WRITE)["fault"] == "too_many_groups"


@pytest.mark.parametrize(
    "odd",
    [None, {}, {**LOW_WRITE, "kind": "poke"}, {**LOW_WRITE, "risk_tier": "medium"}, {**LOW_WRITE, "reversible": 1},
     {**LOW_WRITE, "kind": ["write"]}],
)  # fmt: skip
def test_an_action_that_is_not_understood_is_denied(odd: object) -> None:
    """The floor needs three facts; without them there is no allow."""
    ruling = reducer.reduce(findings(), odd)
    assert (ruling["effect"], ruling["deny_kind"]) == ("deny", "fault")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
reasons = st.lists(
    st.fixed_dictionaries({"code": st.sampled_from(["a", "b", "A", ""]), "message": st.sampled_from(["m", "n", ""])}),
    max_size=3,
)
groups = st.lists(st.sampled_from(["oncall", "finance", "it"]), min_size=1, max_size=3, unique=True)
holds = st.lists(
    groups.flatmap(
        lambda names: st.fixed_dictionaries(
            {
                "code": st.sampled_from(["h", "k"]),
                "message": st.just("m"),
                "tier": st.sampled_from(["low", "med", "high"]),
                "two_person": st.booleans(),
                "groups": st.just(names),
                "expires_in_s": st.integers(50, 4000),
            },
            optional={"counts": st.fixed_dictionaries({name: st.integers(0, 3) for name in names})},
        )
    ),
    max_size=3,
)
subjects = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(action.KINDS),
        "risk_tier": st.sampled_from(action.TIERS),
        "reversible": st.booleans(),
    }
)


@given(anything, anything)
def test_everything_has_a_ruling(found: object, about: object) -> None:
    """No value makes the reducer raise, and none that is not findings makes it allow."""
    ruling = reducer.reduce(found, about)
    assert set(ruling) == KEYS
    assert (ruling["effect"], ruling["deny_kind"]) == ("deny", "fault")


@given(reasons, holds, reasons, subjects)
def test_nothing_that_speaks_against_an_action_is_ever_lost(
    denials: list[Any], held: list[Any], grants: list[Any], about: dict[str, Any]
) -> None:
    """Allow means: no denial, no hold, a grant, nothing below the floor. Held means: enough keys for every single hold."""
    ruling = reducer.reduce(findings(denials=denials, holds=held, grants=grants), about)
    assert set(ruling) == KEYS
    assert ruling["reasons"]
    least = reducer.floor_keys(kind=about["kind"], tier=about["risk_tier"], reversible=about["reversible"])
    if denials or not grants:
        assert ruling["effect"] == "deny"
    if ruling["effect"] == "allow":
        assert not held
        assert least == 0
    if ruling["effect"] == "needs_approval":
        assert ruling["keys"] >= max(1, least, sum(ruling["counts"].values()))
        for one in held:
            assert reducer.ruling_tiers.index(ruling["tier"]) >= reducer.ruling_tiers.index(one["tier"])
            assert ruling["expires_in_s"] <= one["expires_in_s"]
            assert set(one["groups"]) <= set(ruling["groups"])
            assert ruling["keys"] >= (2 if one["two_person"] else 1)
            assert all(ruling["counts"][name] >= count for name, count in one.get("counts", {}).items())
    else:
        assert (ruling["keys"], ruling["groups"], ruling["expires_in_s"]) == (0, [], 0)


people = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from(["oncall", "finance", "it"])).map(sorted), max_size=6
)


@given(st.integers(0, 4), st.dictionaries(st.sampled_from(["oncall", "finance"]), st.integers(1, 2)), people)
def test_a_person_fills_one_place_and_only_one_that_is_theirs(
    keys: int, counts: dict[str, int], holders: dict[str, list[str]]
) -> None:
    """The count equals the best assignment that a brute-force search finds."""
    wanted = {"keys": keys, "counts": counts, "groups": ["finance", "oncall"]}
    filled, needed = reducer.progress(wanted, holders)
    assert needed == reducer.keys_needed(keys, counts)
    assert filled <= min(needed, len(holders))
    assert filled == _best(
        [[g] for g in sorted(counts) for _ in range(counts[g])]
        + [["finance", "oncall"]] * (needed - sum(counts.values())),
        holders,
    )


def _best(slots: list[list[str]], holders: dict[str, list[str]]) -> int:
    if not slots:
        return 0
    best = _best(slots[1:], holders)
    for person, theirs in holders.items():
        if set(theirs) & set(slots[0]):
            rest = {name: groups for name, groups in holders.items() if name != person}
            best = max(best, 1 + _best(slots[1:], rest))
        if best == len(slots):
            break
    return best


def test_each_hold_keeps_its_own_groups() -> None:
    """Two managers, and besides somebody on call: two on call are not enough, whoever is both meets both."""
    ruling = reducer.reduce(
        findings(holds=[hold(groups=["managers"]), hold(code="b", two_person=False, groups=["oncall"])]), LOW_WRITE
    )
    assert ruling["needs"] == [
        {"keys": 1, "counts": [], "groups": ["oncall"]},
        {"keys": 2, "counts": [], "groups": ["managers"]},
    ]
    assert (ruling["keys"], ruling["groups"]) == (2, ["managers", "oncall"])
    for holders, said in (
        ({}, (0, 2)),
        ({"a": ["oncall"], "b": ["oncall"]}, (1, 3)),
        ({"a": ["managers"], "b": ["managers"]}, (2, 3)),
        ({"a": ["managers"], "b": ["oncall"]}, (2, 3)),
        ({"a": ["managers"], "b": ["managers", "oncall"]}, (2, 2)),
        ({"a": ["managers"], "b": ["managers"], "c": ["oncall"]}, (3, 3)),
    ):
        assert reducer.progress(ruling, holders) == said, holders
        assert reducer.is_satisfied(ruling, holders) == (said[0] == said[1])


def test_counts_of_several_holds_take_different_people() -> None:
    """One of finance for one rule and one of security for another are two people, as in one quorum."""
    ruling = reducer.reduce(
        findings(
            holds=[
                hold(groups=["finance"], counts={"finance": 1}, two_person=False),
                hold(code="b", groups=["security"], counts={"security": 1}, two_person=False),
            ]
        ),
        LOW_WRITE,
    )
    assert ruling["keys"] == 2
    assert not reducer.is_satisfied(ruling, {"a": ["finance", "security"]})
    assert reducer.is_satisfied(ruling, {"a": ["finance", "security"], "b": ["finance"]})


def test_what_another_hold_implies_is_not_asked_for_twice() -> None:
    """Two of managers are also one of managers or on call; holds that say the same are one."""
    wider, own = hold(code="b", two_person=False, groups=["managers", "oncall"]), hold(groups=["managers"])
    ruling = reducer.reduce(findings(holds=[wider, own, hold(code="c", groups=["managers"])]), LOW_WRITE)
    assert ruling["needs"] == [{"keys": 2, "counts": [], "groups": ["managers"]}]
    assert reducer.reduce(findings(holds=[own, hold(code="c", groups=["managers"])]), LOW_WRITE)["needs"] == []


def test_too_many_different_demands_are_a_doubt() -> None:
    """Nobody could read such a card."""
    names = [f"g{n}" for n in range(7)]
    pairs = [[one, other] for one in names for other in names if one < other][:21]
    ruling = reducer.reduce(findings(holds=[hold(groups=pair) for pair in pairs]), LOW_WRITE)
    assert (ruling["effect"], ruling["fault"]) == ("deny", "too_many_needs")


@given(holds, holds, subjects, people)
def test_a_further_hold_never_lets_anybody_else_decide(
    held: list[Any], more: list[Any], about: dict[str, Any], holders: dict[str, list[str]]
) -> None:
    """Whoever may release an action under more holds may release it under fewer, and each hold is satisfied by itself."""
    # The product's own rule holds what cannot be undone with as many keys as the floor asks for.
    floor = [hold(code="irreversible", groups=["oncall", "finance"])]
    fewer = reducer.reduce(findings(holds=floor + held), about)
    both = reducer.reduce(findings(holds=floor + held + more), about)
    if "needs_approval" not in (fewer["effect"], both["effect"]) or both["effect"] == "deny":
        return
    assert fewer["effect"] == "needs_approval"
    if reducer.is_satisfied(both, holders):
        assert reducer.is_satisfied(fewer, holders)
        for one in floor + held + more:
            alone = reducer.reduce(findings(holds=[one]), {"kind": "message", "risk_tier": "low", "reversible": True})
            assert reducer.is_satisfied(alone, holders)
    given_now, needed = reducer.progress(both, holders)
    assert (given_now == needed) == reducer.is_satisfied(both, holders) == (reducer.shortfall(both, holders) == 0)
    assert needed >= both["keys"] or given_now >= both["keys"]


@given(st.lists(holds, min_size=2, max_size=2), people)
def test_what_implies_is_satisfied_by_fewer(pair: list[Any], holders: dict[str, list[str]]) -> None:
    """`implies` compares requirements; satisfying the stricter satisfies the milder."""
    rulings = [reducer.reduce(findings(holds=held), LOW_WRITE) for held in pair if held]
    wanted = [one for ruling in rulings if ruling["groups"] for one in reducer.requirements(ruling)]
    for one in wanted:
        for other in wanted:
            if reducer.implies(one, other) and reducer.is_satisfied({**one, "needs": []}, holders):
                assert reducer.is_satisfied({**other, "needs": []}, holders)


def test_an_answer_to_something_else_is_named() -> None:
    """Echo, package and revision are each compared with what was asked."""
    found = findings()
    request, sha = found["echo"]["request_id"], found["echo"]["action_sha256"]
    assert reducer.source_fault(found, request, sha, "a" * 64) == ""
    assert reducer.source_fault(found, "other", sha, "a" * 64) == "echo_mismatch"
    assert reducer.source_fault(found, request, "b" * 64, "a" * 64) == "echo_mismatch"
    assert reducer.source_fault(found, request, sha, "b" * 64) == "revision_mismatch"
    found["policy"]["package"] = "twokeys.other"
    assert reducer.source_fault(found, request, sha, "a" * 64) == "package_mismatch"
