"""What is called a tightening is one: over real engines, no question is answered more freely, and every doubt is a loosening."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from engine.gate.question import canonical_input
from engine.gate.replay import LOOSER, weigh
from engine.gate.tightening import Comparison, Side, compare, people_needed, rule_digest, shipped_rules
from governance.policy import bundle
from governance.policy.bundle import Bundle, build, complete_data, read_source, shipped_directory
from governance.policy.reader import Reader
from governance.policy.replay import Judging, asked_again
from tests.governance.policy.test_table import generated

SOURCE = read_source(shipped_directory())
TENANT = complete_data(SOURCE.data, SOURCE.data["tenants"]["test"], "test")
OVERLAY, BASE = "twokeys/overlay.rego", "twokeys/base.rego"
HOLD = '{{"code": "mine", "message": "m", "tier": "low", "two_person": false, "groups": {groups}, "expires_in_s": 60}}'


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader() as made:
        yield made


def trees(reader: Reader, **added: str) -> dict[str, Any]:
    """The shipped modules, with this added to base or overlay."""
    files = {path: text + added.get(path[8:-5], "") for path, text in SOURCE.modules.items()}
    read = reader.read(files)
    assert not read.faults, read.faults
    return {path: module.tree for path, module in read.modules.items()}


def changed(
    reader: Reader, data: dict[str, Any] | None = None, old: str = "", was: dict[str, Any] | None = None, **added: str
) -> Comparison:
    """What is said of a change from the shipped policy, whose overlay may say `old` besides, and its data be `was`."""
    known = shipped_rules(trees(reader))
    before = Side(trees(reader, overlay=old), {**TENANT, **(was or {})})
    after = Side(
        trees(reader, **{**added, "overlay": old + added.get("overlay", "")}), {**TENANT, **(was or {}), **(data or {})}
    )
    return compare(before, after, known)


def deny(condition: str, code: str = "mine") -> str:
    return f'\ndeny contains {{"code": "{code}", "message": "m"}} if {{\n\t{condition}\n}}\n'


def hold(groups: str, condition: str = 'input.action.kind == "write"') -> str:
    return f"\nhold contains {HOLD.format(groups=groups)} if {{\n\t{condition}\n}}\n"


CAPS, TIERS = TENANT["caps"], TENANT["approver_groups"]
QUORUM = TENANT["quorums"][0]
TIGHTER: dict[str, dict[str, Any]] = {
    "no change": {},
    "a comment": {"base": "\n# words\n"},
    "a denial in the overlay": {"overlay": deny('input.action.kind == "delete"')},
    "a denial with a rule of its own": {
        "overlay": deny("not small") + "\nsmall if input.action.payload_bytes < 9\n",
    },
    "a cap": {"data": {"caps": {**CAPS, "max_writes_per_run": 4}}},
    "a connector less": {"data": {"connectors": ["servicenow", "slack"]}},
    "an operation less": {"data": {"allowed_operations": {**TENANT["allowed_operations"], "bank": ["pay"]}}},
    "a connector's operations gone": {"data": {"allowed_operations": {"slack": ["post"]}}},
    "a group less": {"data": {"approver_groups": {**TIERS, "high": ["oncall"]}}},
    "a shorter time": {"data": {"approval_ttl_s": {**TENANT["approval_ttl_s"], "med": 60}}},
    "a blocked target": {"data": {"blocked_targets": ["INC0000666", "INC1"]}},
    "switched off": {"data": {"enabled": False}},
    "a window": {"data": {"freeze_windows": [*TENANT["freeze_windows"], {"code": "w", "from_ms": 1, "until_ms": 9}]}},
    "a weekly window": {
        "data": {"weekly_freezes": [*TENANT["weekly_freezes"], {"code": "w", "weekdays": [1], "from_minute": 1, "until_minute": 9}]},
    },
    # Each hold keeps its own groups, so a further one adds to what is asked whoever it names.
    "another quorum": {"data": {"quorums": [QUORUM, {**QUORUM, "code": "q", "counts": {"interns": 1}}]}},
    "a hold of others": {"overlay": hold('["interns"]')},
    "a hold whose groups are computed": {"overlay": hold("tenant.connectors")},
    "a hold beside one that computes its groups": {
        "old": hold('[g | some g in ["bosses"]; g != "counts"]'), "overlay": hold('["oncall"]'),
    },
    "the hold after hours": {"data": {"after_hours_hold": True}, "was": {"after_hours_hold": False}},
    "lower amounts": {"data": {"payment_holds": {"one_key_above_minor": 1, "two_keys_above_minor": 2}}},
}  # fmt: skip
LOOSER_ONES: dict[str, dict[str, Any]] = {
    "a cap": {"data": {"caps": {**CAPS, "max_amount_minor": 50_001}}},
    "a cap up and one down": {"data": {"caps": {"max_amount_minor": 1, "max_writes_per_run": 6}}},
    "a cap of another type": {"data": {"caps": {**CAPS, "max_writes_per_run": True}}},
    "a connector": {"data": {"connectors": ["bank", "jira", "servicenow", "slack"]}},
    "an operation": {"data": {"allowed_operations": {**TENANT["allowed_operations"], "bank": ["pay", "refund", "x"]}}},
    "a group": {"data": {"approver_groups": {**TIERS, "med": ["oncall", "everybody"]}}},
    "a longer time": {"data": {"approval_ttl_s": {**TENANT["approval_ttl_s"], "med": 3601}}},
    "a target unblocked": {"data": {"blocked_targets": []}},
    "a window gone": {"data": {"freeze_windows": []}},
    "a window moved": {"data": {"weekly_freezes": [{**TENANT["weekly_freezes"][0], "from_minute": 1021}]}},
    "a quorum gone": {"data": {"quorums": []}},
    "a quorum with other groups": {"data": {"quorums": [{**QUORUM, "counts": {"finance": 2}}]}},
    "no hold after hours": {"data": {"after_hours_hold": False}},
    "a part of the data nobody knows": {"data": {"more": 1}},
    "a denial in base": {"base": deny('input.action.kind == "delete"')},
    "a grant": {"base": '\ngrant contains {"code": "g", "message": "m"} if {\n\tinput.action.kind == "write"\n}\n'},
    "a helper of a rule that is there": {"base": '\nis_change if input.action.kind == "message"\n'},
    "a hold where nothing else holds what is of high risk": {
        "base": "\n\ntenant := {} if {\n\tinput.action.connector == \"bank\"\n}\n",
        "overlay": hold('["interns"]'),
    },
    "a denial that a grant reads": {
        "overlay": deny('input.action.kind == "delete"'),
        "base": '\ngrant contains {"code": "g", "message": "m"} if {\n\tcount(data.twokeys.overlay.deny) > 1\n}\n',
    },
    "a cap that a rule of one's own turns round": {
        "old": deny("not data.twokeys.guard.under_write_cap") + hold('["oncall"]', "tenant.caps.max_writes_per_run < 9"),
        "data": {"caps": {**CAPS, "max_writes_per_run": 4}},
    },
    "a cap that a rule of one's own reads through another": {
        "old": deny("roomy") + "\nroomy if limit > 5\n\nlimit := tenant.caps.max_writes_per_run\n",
        "data": {"caps": {**CAPS, "max_writes_per_run": 4}},
    },
    "a cap that a rule reads with the whole tenant": {
        "old": deny("count(everything) > 5") + "\neverything := tenant\n",
        "data": {"caps": {**CAPS, "max_writes_per_run": 4}},
    },
    "a rule named like a local name": {
        "old": '\ndeny contains {"code": "x", "message": "m"} if {\n\tinput.action.fields[i].classification == "sensitive"\n}\n',
        "overlay": "\ni := 99\n",
    },
    "a hold that a denial waits for": {
        "old": deny("count(data.twokeys.overlay.hold) == 0"),
        "overlay": hold('["oncall"]', 'input.action.kind == "read"'),
        "was": {"quorums": []},
    },
    "a rule named like a function": {"old": deny("count(input.action.fields) > 1"), "overlay": "\ncount(_) := 0\n"},
}  # fmt: skip


@pytest.mark.parametrize("name", TIGHTER)
def test_a_change_that_only_tightens_is_known(reader: Reader, name: str) -> None:
    """One person is enough to publish it, and each part of it is told."""
    found = changed(reader, **TIGHTER[name])
    assert found.only_tightens, found.loosening
    assert found.unchanged == (name in ("no change", "a comment"))


@pytest.mark.parametrize("name", LOOSER_ONES)
def test_a_change_that_may_loosen_is_never_called_tighter(reader: Reader, name: str) -> None:
    """Also where it would take a careful reader to see why."""
    assert not changed(reader, **LOOSER_ONES[name]).only_tightens


def test_a_hold_is_no_tightening_where_it_lifts_what_the_floor_refuses(reader: Reader) -> None:
    """High risk that no rule holds is refused; any hold beside it would let people release it."""
    unheld = SOURCE.modules[BASE].replace('input.action.risk_tier == "high"', 'input.action.risk_tier == "none"')
    known = shipped_rules(trees(reader))
    files = {**SOURCE.modules, BASE: unheld}
    sides = []
    for more in ("", hold('["interns"]', 'input.action.risk_tier == "high"')):
        read = reader.read({**files, OVERLAY: files[OVERLAY] + more})
        sides.append(Side({path: module.tree for path, module in read.modules.items()}, TENANT))
    assert not compare(sides[0], sides[1], known).only_tightens
    for data in (
        {"after_hours_hold": True},
        {"quorums": [QUORUM, {**QUORUM, "code": "q"}]},
        {"payment_holds": {"one_key_above_minor": 1, "two_keys_above_minor": 2}},
    ):
        before = Side(sides[0].modules, {**TENANT, "after_hours_hold": False})
        assert not compare(before, Side(before.modules, {**before.data, **data}), known).only_tightens


def test_one_person_is_enough_only_where_nothing_at_all_was_looser(reader: Reader) -> None:
    """The proof and the replay have to agree; either alone asks for two."""
    tighter, looser = changed(reader, TIGHTER["a cap"]["data"]), changed(reader, LOOSER_ONES["a cap"]["data"])
    assert [people_needed(tighter, 0), people_needed(tighter, 1), people_needed(looser, 0)] == [1, 2, 2]


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, {"rules": 1}, {"rules": [{"head": None}], "package": {}}])
def test_what_cannot_be_understood_may_loosen(reader: Reader, value: Any) -> None:
    """The comparison never raises and never guesses."""
    good = trees(reader)
    for old, new in (
        (Side(good, TENANT), Side({**good, OVERLAY: value}, TENANT)),
        (Side({OVERLAY: value}, {}), Side(good, {})),
    ):
        assert not compare(old, new, shipped_rules(good)).only_tightens
    assert not compare(Side(good, TENANT), Side(good, {**TENANT, "caps": value}), shipped_rules(good)).only_tightens


def test_a_rule_is_what_it_means(reader: Reader) -> None:
    """Comments and places do not matter, order of keys does not, a changed constant does."""
    one = trees(reader, overlay=deny("input.kill_switch"))[OVERLAY]["rules"][-1]
    other = trees(reader, overlay="\n# more\n" + deny("input.kill_switch"))[OVERLAY]["rules"][-1]
    assert rule_digest(one) == rule_digest(dict(reversed(list(other.items()))))
    third = trees(reader, overlay=deny("input.kill_switch", "other"))[OVERLAY]["rules"][-1]
    assert rule_digest(one) != rule_digest(third)


# --- over real engines ------------------------------------------------------------------------------------------------


def any_change(dice: random.Random) -> tuple[dict[str, Any], str]:
    """Some changes at once, of data and overlay, of which some loosen."""
    pool = {**TIGHTER, **LOOSER_ONES}
    tidy = [name for name in pool if not {"base", "old", "was"} & set(pool[name])]
    data: dict[str, Any] = {}
    overlay: list[str] = []
    for name in dice.sample(tidy, dice.randint(1, 3)):
        data.update(pool[name].get("data", {}))
        overlay.append(pool[name].get("overlay", ""))
    if dice.random() < 0.4:
        overlay.append(hold(json.dumps(dice.sample(["oncall", "incident-managers", "interns"], dice.randint(1, 2)))))
    data = {
        name: value
        for name, value in data.items()
        if name != "more" and value != LOOSER_ONES["a cap of another type"]["data"]["caps"]
    }
    return data, "".join(dict.fromkeys(overlay))


def bundle_with(data: dict[str, Any], overlay: str) -> Bundle:
    modules = {**SOURCE.modules, OVERLAY: SOURCE.modules[OVERLAY] + overlay}
    return build(modules, {"defaults": {}, "tenants": {}}, {"test": {**TENANT, **data}})


@pytest.mark.parametrize("rounds", [8, pytest.param(120, marks=pytest.mark.deep)])
def test_no_question_is_answered_more_freely_after_a_tightening(reader: Reader, rounds: int) -> None:
    """Random changes, random questions, the real engine and reducer: `tightens` implies that nothing is looser."""
    dice = random.Random(5)
    known = shipped_rules(trees(reader))
    documents = [generated(dice, odd=0) for _ in range(600)]
    valid = [document for document in documents if document["action"]["target"]["id"].isascii()]
    questions = [asked_again(canonical_input(document)) for document in valid]
    with closing(Judging(bundle_with({}, ""))) as before:
        old = list(before.rulings(questions))
    tightened = loosened = 0
    for _ in range(rounds):
        data, overlay = any_change(dice)
        found = compare(Side(trees(reader), TENANT), Side(trees(reader, overlay=overlay), {**TENANT, **data}), known)
        with closing(Judging(bundle_with(data, overlay))) as judging:
            pairs = zip(questions, old, judging.rulings(questions), strict=True)
            looser = [
                (json.loads(asked.input_bytes), one, other)
                for asked, one, other in pairs
                if weigh(one, other) == LOOSER
            ]
        assert not (found.only_tightens and looser), (data, overlay, looser[0])
        tightened += found.only_tightens
        loosened += bool(looser)
    assert tightened
    assert loosened


def test_the_shipped_data_names_its_groups() -> None:
    """So that the questions above have somebody to ask."""
    assert set(TENANT["approver_groups"]["high"]) == {"incident-managers", "oncall"}
    assert bundle.CANARY_TENANT not in SOURCE.data["tenants"]
