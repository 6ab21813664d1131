"""What findings mean: strict validation of what Rego returned and its total reduction to an effect, with the product's own floor.

It imports nothing but `re`, because the offline verifier carries this very text; a test holds its lists equal to the
product's own. Every value in gives a ruling out, and what is not understood is a denial of kind fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

FINDINGS_SCHEMA = "twokeys.policy.findings/v1"
FINDINGS_PACKAGE = "twokeys.main"
ruling_kinds = ("read", "write", "delete", "message", "payment")
ruling_tiers = ("low", "med", "high")
findings_reasons_max = 50
findings_obligations_max = 20
findings_groups_max = 20
findings_needs_max = 20
hold_seconds_min = 60
hold_seconds_max = 604_800
hold_count_max = 9

# Nothing that a reader cannot see, or that changes the order of what is read, may reach a card.
hidden_character = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_finding_code = re.compile(r"[a-z][a-z0-9_]{0,63}")
_finding_group = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_hex64 = re.compile(r"[0-9a-f]{64}")
_finding_keys = frozenset(("schema", "echo", "policy", "denials", "holds", "grants", "obligations"))
_hold_keys = frozenset(("code", "message", "tier", "two_person", "groups", "expires_in_s"))
# What an obligation carries besides its type: text, or a number of seconds up to this many.
_obligation_keys: dict[str, dict[str, int]] = {
    "receipt": {"level": 0},
    "redact": {"field": 0},
    "notify": {"channel": 0},
    "step_up": {"max_age_s": 86_400},
    "reason": {},
    "hold_window": {"seconds": 604_800},
    "rejections": {"needed": 9},
    "break_glass": {"group": 0},
    "escalate": {"group": 0, "after_s": 604_800},
}


class Unfit(Exception):
    """The operator must act: findings that no effect may be read from; the code says which rule they break."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def reduce(findings: object, subject: object) -> dict[str, Any]:
    """The ruling over findings; `subject` is {kind, risk_tier, reversible} of the action. Never raises, never guesses.

    The ruling has effect, deny_kind, fault, tier, keys, counts, groups, needs, two_person, expires_in_s, reasons,
    obligations.
    """
    try:
        kind, tier, reversible = _subject_facts(subject)
    except Unfit as unfit:
        return fault_ruling(unfit.code, unfit.message)
    try:
        parts = check_findings(findings)
        if parts["denials"]:
            return _ruling("deny", "policy", "", tier, _reasons(parts["denials"]))
        if not parts["grants"]:
            return _ruling("deny", "policy", "", tier, [{"code": "no_grant", "message": "no rule grants this action"}])
        floor = floor_keys(kind, tier, reversible)
        if parts["holds"]:
            return _held(parts, tier, floor)
        if floor:
            _unfit("below_floor", "policy granted without a hold what always needs a person's key")
    except Unfit as unfit:
        return fault_ruling(unfit.code, unfit.message, tier)
    allowed = _ruling("allow", "", "", tier, _reasons(parts["grants"]))
    allowed["obligations"] = parts["obligations"]
    return allowed


def fault_ruling(code: str, message: str, tier: str = "high") -> dict[str, Any]:
    """The ruling of doubt: a denial of kind fault with its code."""
    return _ruling("deny", "fault", code, tier, [{"code": code, "message": message}])


def floor_keys(kind: str, tier: str, reversible: bool) -> int:
    """How many keys the product itself demands, below any policy: 0, 1 or 2 (messages are outside the floor)."""
    if kind == "message":
        return 0
    if not reversible and kind in ("delete", "payment"):
        return 2
    return 1 if tier == "high" or (not reversible and kind == "write") else 0


def subject_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The three facts that a reduction needs, out of an input document."""
    action = document["action"]
    return {"kind": action["kind"], "risk_tier": action["risk_tier"], "reversible": action["reversible"]}


def source_fault(findings: Mapping[str, Any], request_id: str, action_sha256: str, revision: str) -> str:
    """Empty when checked findings answer exactly this request under this revision, else the code of what differs."""
    if findings["echo"] != {"request_id": request_id, "action_sha256": action_sha256}:
        return "echo_mismatch"
    if findings["policy"]["package"] != FINDINGS_PACKAGE:
        return "package_mismatch"
    return "" if findings["policy"]["revision"] == revision else "revision_mismatch"


def requirements(wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What must be satisfied, each on its own: every hold's requirement, and the counts of all holds by different people.

    `wanted` has keys, counts, groups and, only where holds ask for different things, needs: a list of the same three.
    """
    needs = list(wanted.get("needs", ()))
    if not needs:
        return [wanted]
    counts = dict(wanted["counts"])
    if counts:
        needs.append({"keys": sum(counts.values()), "counts": counts, "groups": sorted(counts)})
    return needs


def progress(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> tuple[int, int]:
    """How many people's keys count, and how many that makes with those who are still missing at least.

    `holders` maps a person to that person's groups. What is wanted is satisfied when the two are equal.
    """
    turned: set[str] = set()
    missing = 0
    for one in requirements(wanted):
        placed = _placed(one, holders)
        turned |= placed
        missing = max(missing, _needed(one) - len(placed))
    return len(turned), len(turned) + missing


def is_satisfied(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> bool:
    """Whether these people's keys satisfy every single requirement."""
    return shortfall(wanted, holders) == 0


def shortfall(wanted: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> int:
    """How much is missing over all requirements: a key that does not lower it opens nothing."""
    return sum(_needed(one) - len(_placed(one, holders)) for one in requirements(wanted))


def implies(stricter: Mapping[str, Any], milder: Mapping[str, Any]) -> bool:
    """Whether whoever satisfies one requirement satisfies the other too."""
    more = dict(stricter["counts"])
    return (
        set(stricter["groups"]) <= set(milder["groups"])
        and _needed(stricter) >= _needed(milder)
        and all(more.get(group, 0) >= count for group, count in dict(milder["counts"]).items())
    )


def keys_needed(keys: int, counts: Mapping[str, int]) -> int:
    """How many keys a requirement asks for; nothing that is held is ever free."""
    return max(1, keys, sum(counts.values()))


def _needed(one: Mapping[str, Any]) -> int:
    return keys_needed(one["keys"], dict(one["counts"]))


def _placed(one: Mapping[str, Any], holders: Mapping[str, Collection[str]]) -> set[str]:
    """The people who fill the places of one requirement: one person fills at most one, each counted group has its own."""
    counts, groups = dict(one["counts"]), one["groups"]
    slots: list[Collection[str]] = [(group,) for group in sorted(counts) for _ in range(counts[group])]
    slots += [groups] * (_needed(one) - len(slots))
    fits = {
        person: [n for n, wanted in enumerate(slots) if any(group in wanted for group in theirs)]
        for person, theirs in holders.items()
        if any(group in groups for group in theirs)
    }
    filled: dict[int, str] = {}

    def place(person: str, tried: set[int]) -> bool:
        for slot in fits[person]:
            if slot in tried:
                continue
            tried.add(slot)
            if slot not in filled or place(filled[slot], tried):
                filled[slot] = person
                return True
        return False

    for person in sorted(fits):
        place(person, set())
    return set(filled.values())


# --- the reduction ------------------------------------------------------------------------------------------------


def _held(parts: dict[str, Any], tier: str, floor: int) -> dict[str, Any]:
    holds = parts["holds"]
    counts: dict[str, int] = {}
    for hold in holds:
        for group, count in hold.get("counts", {}).items():
            counts[group] = max(counts.get(group, 0), count)
    each = [_hold_keys_needed(hold) for hold in holds]
    keys = keys_needed(max(floor, *each), counts)
    groups = sorted({group for hold in holds for group in hold["groups"]})
    if len(groups) > findings_groups_max:
        _unfit("too_many_groups", f"at most {findings_groups_max} groups hold the keys of one action")
    highest = max((tier, *(hold["tier"] for hold in holds)), key=ruling_tiers.index)
    ruling = _ruling("needs_approval", "", "", highest, _reasons(holds))
    ruling["keys"] = keys
    ruling["counts"] = dict(sorted(counts.items()))
    ruling["groups"] = groups
    # The floor is met by any hold that asks for as many keys itself; where none does, it lies under each of them.
    ruling["needs"] = _needs(ruling, holds, floor if floor > max(each) else 1)
    ruling["two_person"] = keys >= 2
    ruling["expires_in_s"] = min(hold["expires_in_s"] for hold in holds)
    ruling["obligations"] = parts["obligations"]
    return ruling


def _hold_keys_needed(hold: dict[str, Any]) -> int:
    return sum(hold["counts"].values()) if "counts" in hold else 2 if hold["two_person"] else 1


def _needs(ruling: dict[str, Any], holds: list[dict[str, Any]], least: int) -> list[dict[str, Any]]:
    """What each hold asks for by itself, without what another one implies; nothing where keys, counts and groups say it all."""
    own = [
        {
            "keys": max(least, _hold_keys_needed(hold)),
            "counts": [[group, count] for group, count in sorted(hold.get("counts", {}).items())],
            "groups": sorted(hold["groups"]),
        }
        for hold in holds
    ]
    distinct = [one for _, one in sorted({str(one): one for one in own}.items())]
    if len(distinct) > findings_needs_max:
        _unfit("too_many_needs", f"at most {findings_needs_max} different demands for keys on one action")
    needs = [one for one in distinct if not any(implies(other, one) for other in distinct if other is not one)]
    return [] if len(needs) == 1 and implies(needs[0], ruling) and implies(ruling, needs[0]) else needs


def _ruling(effect: str, deny_kind: str, fault: str, tier: str, reasons: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "effect": effect,
        "deny_kind": deny_kind,
        "fault": fault,
        "tier": tier,
        "keys": 0,
        "counts": {},
        "groups": [],
        "needs": [],
        "two_person": False,
        "expires_in_s": 0,
        "reasons": reasons,
        "obligations": [],
    }


def _reasons(found: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"code": code, "message": message} for code, message in sorted({(f["code"], f["message"]) for f in found})]


# --- the shape ----------------------------------------------------------------------------------------------------


def check_findings(findings: object) -> dict[str, Any]:
    """The findings, if exactly of the known shape; else Unfit with the code of the rule that they break."""
    value = _record(findings, _finding_keys, "findings")
    if value["schema"] != FINDINGS_SCHEMA:
        _unfit("schema_unknown", "the findings are of another schema")
    echo = _record(value["echo"], frozenset(("request_id", "action_sha256")), "echo")
    policy = _record(value["policy"], frozenset(("package", "revision")), "policy")
    _text(echo["request_id"], 128, "echo.request_id")
    _text(policy["package"], 128, "policy.package")
    for digest, name in ((echo["action_sha256"], "echo.action_sha256"), (policy["revision"], "policy.revision")):
        if type(digest) is not str or not _hex64.fullmatch(digest):
            _unfit("not_a_digest", f"{name} is 64 hexadecimal digits")
    plain = frozenset(("code", "message"))
    denials = [_reason(item, plain, "denials") for item in _items(value["denials"], "denials")]
    grants = [_reason(item, plain, "grants") for item in _items(value["grants"], "grants")]
    holds = [_hold(item) for item in _items(value["holds"], "holds")]
    if len(denials) + len(grants) + len(holds) > findings_reasons_max:
        _unfit("too_many_reasons", f"at most {findings_reasons_max} reasons")
    obligations = [_obligation(item) for item in _items(value["obligations"], "obligations")]
    if len(obligations) > findings_obligations_max:
        _unfit("too_many_obligations", f"at most {findings_obligations_max} obligations")
    ordered = {str(sorted(item.items())): item for item in obligations}
    value = dict(value)
    value.update(denials=denials, grants=grants, holds=holds, obligations=[ordered[name] for name in sorted(ordered)])
    return value


def _subject_facts(subject: object) -> tuple[str, str, bool]:
    value = _record(subject, frozenset(("kind", "risk_tier", "reversible")), "subject")
    kind, tier, reversible = value["kind"], value["risk_tier"], value["reversible"]
    if type(kind) is not str or kind not in ruling_kinds:
        _unfit("subject_invalid", "the action is of an unknown kind")
    if type(tier) is not str or tier not in ruling_tiers:
        _unfit("subject_invalid", "the action is of an unknown tier")
    if type(reversible) is not bool:
        _unfit("subject_invalid", "the action does not say whether it can be reversed")
    return kind, tier, reversible


def _record(value: object, keys: frozenset[str], name: str) -> dict[str, Any]:
    if type(value) is not dict or frozenset(value) != keys:
        _unfit("shape", f"{name} has exactly the keys {', '.join(sorted(keys))}")
    return value


def _items(value: object, name: str) -> list[Any]:
    if type(value) is not list:
        _unfit("shape", f"{name} is a list")
    return value


def _text(value: object, chars_max: int, name: str) -> str:
    if type(value) is not str or not 1 <= len(value) <= chars_max:
        _unfit("text", f"{name} is text of 1 to {chars_max} characters")
    if hidden_character.search(value):
        _unfit("text", f"{name} holds a control, zero-width or direction character")
    return value


def _reason(item: object, keys: frozenset[str], name: str) -> dict[str, Any]:
    value = _record(item, keys, name)
    if type(value["code"]) is not str or not _finding_code.fullmatch(value["code"]):
        _unfit("code", f"a code of {name} is lower case letters, digits and underscores")
    _text(value["message"], 500, f"{name}.message")
    return value


def _hold(item: object) -> dict[str, Any]:
    counted = type(item) is dict and "counts" in item
    value = _reason(item, _hold_keys | {"counts"} if counted else _hold_keys, "holds")
    if type(value["tier"]) is not str or value["tier"] not in ruling_tiers:
        _unfit("tier", "a hold's tier is low, med or high")
    if type(value["two_person"]) is not bool:
        _unfit("shape", "two_person is true or false")
    seconds = value["expires_in_s"]
    if type(seconds) is not int or not hold_seconds_min <= seconds < hold_seconds_max:
        _unfit("expiry", f"expires_in_s is at least {hold_seconds_min} and below {hold_seconds_max}")
    groups = _items(value["groups"], "holds.groups")
    for group in groups:
        if type(group) is not str or not _finding_group.fullmatch(group):
            _unfit("group", "a group's name is lower case letters, digits, _ and -")
    if not groups or len(groups) > findings_groups_max or len(set(groups)) != len(groups):
        _unfit("group", f"a hold names 1 to {findings_groups_max} groups, each once")
    if counted:
        _check_counts(value)
    return value


def _check_counts(hold: dict[str, Any]) -> None:
    counts = _record(hold["counts"], frozenset(hold["groups"]), "counts")
    for count in counts.values():
        if type(count) is not int or not 1 <= count <= hold_count_max:
            _unfit("counts", f"a group's count is 1 to {hold_count_max}")
    if hold["two_person"] and sum(counts.values()) < 2:
        _unfit("counts", "two_person with counts needs at least two keys")


def _obligation(item: object) -> dict[str, Any]:
    known = _obligation_keys.get(item["type"]) if type(item) is dict and type(item.get("type")) is str else None
    if known is None:
        _unfit("obligation_unknown", "an obligation of a type that this product does not know")
    value = _record(item, frozenset(("type", *known)), "obligation")
    for name, seconds_max in known.items():
        if not seconds_max:
            _text(value[name], 200, f"obligation.{name}")
        elif type(value[name]) is not int or not 1 <= value[name] <= seconds_max:
            _unfit("obligation_value", f"obligation.{name} is 1 to {seconds_max}")
    return value


def _unfit(code: str, message: str) -> NoReturn:
    raise Unfit(code, message)
