"""Whether a change of policy provably only tightens: a total comparison of rules and data, in which every doubt is a loosening.

A side is what one revision says to one tenant: the syntax trees of its modules and the tenant's complete data. What is
known to tighten is a short list, and each part of it holds for reasons that are written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.canonical import encode, sha256
from engine.errors import CallerError

BASE, OVERLAY = "twokeys/base.rego", "twokeys/overlay.rego"
TIERS = ("low", "med", "high")
_additive = ("deny", "hold")


class Change(NamedTuple):
    """One difference: where, what, and whether it provably tightens."""

    place: str
    what: str
    tightens: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One revision as one tenant meets it."""

    modules: Mapping[str, Any]  # path: OPA's syntax tree
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every difference between two sides, in order."""

    changes: tuple[Change, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the two say the same, whatever their comments."""
        return not self.changes

    @property
    def only_tightens(self) -> bool:
        """Whether it is proved that nothing is allowed, or released, that was not before. True also for no change at all."""
        return all(change.tightens for change in self.changes)

    @property
    def loosening(self) -> tuple[Change, ...]:
        """What may loosen."""
        return tuple(change for change in self.changes if not change.tightens)


def people_needed(comparison: Comparison, looser: int) -> int:
    """How many people besides the authors must agree: one to what is proved to tighten, where no replayed decision was looser."""
    return 1 if comparison.only_tightens and looser == 0 else 2


def rule_digest(rule: object) -> bytes:
    """The identity of a rule's meaning: its tree without places and comments."""
    return sha256(encode(_plain(rule)))


def shipped_rules(modules: Mapping[str, Any]) -> frozenset[bytes]:
    """The digests of rules whose use of the data is known: those of the product."""
    return frozenset(rule_digest(rule) for tree in modules.values() for rule in _rules(tree))


def compare(old: Side, new: Side, known: frozenset[bytes]) -> Comparison:
    """Compare two sides. Never raises: what cannot be understood may loosen.

    `known` are the digests of the product's own rules, in which it is known what each part of the data does.
    """
    try:
        changes = (*_module_changes(old, new, known), *_data_changes(old, new, known))
    except (CallerError, KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        changes = (Change("policy", f"cannot be compared ({type(error).__name__})", False),)
    return Comparison(changes)


# --- modules ----------------------------------------------------------------------------------------------------------


def _module_changes(old: Side, new: Side, known: frozenset[bytes]) -> Iterator[Change]:
    for path in sorted({*old.modules, *new.modules}):
        if path not in new.modules:
            yield Change(path, "the module is gone", False)
        elif path not in old.modules:
            yield Change(path, "the module is new", False)
        else:
            yield from _module_change(path, old, new, known)


def _module_change(path: str, old: Side, new: Side, known: frozenset[bytes]) -> Iterator[Change]:
    before, after = old.modules[path], new.modules[path]
    if _head(before) != _head(after):
        yield Change(path, "its package or its imports changed", False)
    was, now = _by_digest(before), _by_digest(after)
    gone = [rule for digest, rules in was.items() for rule in rules[len(now.get(digest, ())) :]]
    added = [rule for digest, rules in now.items() for rule in rules[len(was.get(digest, ())) :]]
    for rule in gone:
        yield Change(path, f"a rule of `{_name(rule)}` is changed or gone", False)
    for rule in added:
        yield _added(path, rule, old, new, known)


def _added(path: str, rule: Any, old: Side, new: Side, known: frozenset[bytes]) -> Change:
    name = _name(rule)
    before = _rules(old.modules[path])
    what = f"a rule of `{name}` is added"
    if path != OVERLAY:
        return Change(path, what, False)
    if name not in _additive and all(_name(one) != name for one in before):
        # A rule that was there may use the same name for a local one, or for a function of OPA, and would now read this.
        return Change(path, f"the rule `{name}` is new", not _reads(name, before) and not _overlay_is_read(new))
    if name not in _additive or "key" not in rule["head"] or rule.get("default") or "else" in rule:
        return Change(path, what, False)
    if _reads(name, _rules(new.modules[path])) or _overlay_is_read(new):
        # A grant that reads the overlay's denials could be given because of one.
        return Change(path, f"{what}, and other rules read it", False)
    if name == "hold" and not _high_is_held(new, known):
        # What the product's floor refuses because nobody holds it would wait for the keys of this hold instead.
        return Change(path, f"{what}, and without it what is of high risk is refused", False)
    return Change(path, what, True)


def _reads(name: str, rules: list[Any]) -> bool:
    """Whether rules of the overlay read a name of it, or the overlay by its whole path."""
    nameless = [_without_name(rule) for rule in rules]
    return any(name in _names_in(rule) or "overlay" in set(_texts(rule)) for rule in nameless)


def _overlay_is_read(side: Side) -> bool:
    """Whether anything but the product's main, which only adds up, knows of the overlay."""
    return any(
        "overlay" in set(_texts(tree))
        for path, tree in side.modules.items()
        if path not in (OVERLAY, "twokeys/main.rego")
    )


def _without_name(rule: Any) -> Any:
    return {**rule, "head": {part: value for part, value in rule["head"].items() if part not in ("name", "ref")}}


def _high_is_held(side: Side, known: frozenset[bytes]) -> bool:
    """Whether the product's own rule holds everything of high risk; guard.rego holds what cannot be undone."""
    rules = _rules(side.modules[BASE])
    aliases = [rule_digest(rule) in known for rule in rules if _name(rule) == "tenant"]
    held = [rule for rule in rules if _name(rule) == "hold" and "tier_high" in set(_texts(rule["head"]["key"]))]
    return bool(aliases) and all(aliases) and any(rule_digest(rule) in known for rule in held)


# --- data -------------------------------------------------------------------------------------------------------------


def _data_changes(old: Side, new: Side, known: frozenset[bytes]) -> Iterator[Change]:
    # An unknown rule may do anything with the data that it reads, in the old policy as in the new one.
    read = _data_names(old.modules, known) | _data_names(new.modules, known)
    for name in sorted({*old.data, *new.data}):
        before, after = old.data.get(name), new.data.get(name)
        if before == after and type(before) is type(after):
            continue
        judge = _directions.get(name)
        place = f"data.{name}"
        if judge is None:
            yield Change(place, "is not known to tighten", False)
        elif name in read or None in read:
            yield Change(place, "changed, and a rule that is not the product's own reads it", False)
        else:
            for what, tightens in judge(before, after, new, known):
                yield Change(place, what, tightens)


def _data_names(modules: Mapping[str, Any], known: frozenset[bytes]) -> frozenset[str | None]:
    """What rules that are not the product's own read of a tenant's data, themselves or through others; None: anything."""
    by_name: dict[str, list[Any]] = {}
    imported: set[str] = set()
    for tree in modules.values():
        for rule in _rules(tree):
            by_name.setdefault(_name(rule), []).append(rule)
        imported |= {str(one.get("alias") or one["path"]["value"][-1]["value"]) for one in tree.get("imports") or ()}
    waiting = [rule for rules in by_name.values() for rule in rules if rule_digest(rule) not in known]
    found: set[str | None] = set()
    seen: set[str] = set()
    while waiting:
        rule = waiting.pop()
        names: set[str] = set()
        for reference in _references(rule):
            found |= _read_by(reference)
            names |= _rules_named(reference)
        for term in _bare(_without_name(rule)):
            # The tenant, or a whole module, as a value of its own: anything of it may be read wherever it goes.
            found |= {None} if term["value"] == "tenant" or term["value"] in imported else set()
            names.add(str(term["value"]))
        for name in names & by_name.keys() - seen - {"tenant"}:
            seen.add(name)
            waiting += by_name[name]
    return frozenset(found)


def _rules_named(reference: list[Any]) -> set[str]:
    """The names in a reference that may be those of rules."""
    first = str(reference[0].get("value"))
    if first in ("input", "tenant"):
        return set()
    return {first, *(str(part["value"]) for part in reference[1:] if part["type"] == "string")}


def _read_by(reference: list[Any]) -> set[str | None]:
    """What a reference reads of the tenant's data."""
    first, parts = reference[0].get("value"), [part.get("value") for part in reference]
    if first == "input":
        return set()
    if first == "data" and len(parts) > 1 and parts[1] == "tenants":
        at = 3
    elif "tenant" in parts:
        at = parts.index("tenant") + 1
    else:
        return {None} if first == "data" and len(parts) < 4 else set()
    return {reference[at]["value"] if at < len(reference) and reference[at]["type"] == "string" else None}


Judged = Iterator[tuple[str, bool]]


def _switch_on(before: Any, after: Any, *_: Any) -> Judged:
    """`enabled`: off denies everything."""
    yield f"{before} -> {after}", before is True and after is False


def _subset(before: Any, after: Any, *_: Any) -> Judged:
    """A list of what is allowed: fewer is tighter."""
    more, fewer = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    if more:
        yield f"allows more: {', '.join(map(str, more))}", False
    if fewer:
        yield f"no longer: {', '.join(map(str, fewer))}", True


def _superset(before: Any, after: Any, *_: Any) -> Judged:
    """A list of what is forbidden: more is tighter."""
    for what, tightens in _subset(after, before):
        yield ("blocks more" if tightens else "blocks less") + ":" + what.partition(":")[2], tightens


def _subsets(before: Any, after: Any, *_: Any) -> Judged:
    for name in sorted({*before, *after}):
        for what, tightens in _subset(before.get(name, ()), after.get(name, ())):
            yield f"{name}: {what}", tightens


def _lower(before: Any, after: Any, *_: Any) -> Judged:
    """Numbers of which less is tighter: caps and expiries."""
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one != other:
            numbers = type(one) is int and type(other) is int
            yield f"{name}: {_shown(one)} -> {_shown(other)}", numbers and other < one


def _groups(before: Any, after: Any, *_: Any) -> Judged:
    """Fewer groups are fewer people who may give a key; the keys that are needed stay the same."""
    for what, tightens in _subsets(before, after):
        yield (
            what.replace("allows more", "may give keys now").replace("no longer", "may not give keys any more"),
            tightens,
        )


def _hold_switch(before: Any, after: Any, new: Side, known: frozenset[bytes]) -> Judged:
    """`after_hours_hold`: a further hold."""
    yield f"{_shown(before)} -> {_shown(after)}", before is False and after is True and _high_is_held(new, known)


def _payment_holds(before: Any, after: Any, new: Side, known: frozenset[bytes]) -> Judged:
    """Lower amounts mean more holds."""
    if after is None:
        yield "payments wait for no keys by amount any more", False
        return
    for name in ("one_key_above_minor", "two_keys_above_minor"):
        for what, tightens in _lower({name: before[name]} if before else {}, {name: after[name]}):
            yield what, (tightens or before is None) and _high_is_held(new, known)


def _items_added(before: Any, after: Any, *_: Any) -> Judged:
    """Freeze windows: each only denies."""
    was, now = list(before or ()), list(after or ())
    for item in was:
        if item not in now:
            yield f"{item.get('code', 'a window')} is changed or gone", False
    for item in now:
        if item not in was:
            yield f"{item.get('code', 'a window')} is added", True


def _quorums(before: Any, after: Any, new: Side, known: frozenset[bytes]) -> Judged:
    """Each holds."""
    for what, tightens in _items_added(before, after):
        yield what, tightens and _high_is_held(new, known)


_directions: dict[str, Callable[[Any, Any, Side, frozenset[bytes]], Judged]] = {
    "enabled": _switch_on,
    "connectors": _subset,
    "allowed_operations": _subsets,
    "caps": _lower,
    "approver_groups": _groups,
    "approval_ttl_s": _lower,
    "blocked_targets": _superset,
    "after_hours_hold": _hold_switch,
    "payment_holds": _payment_holds,
    "quorums": _quorums,
    "freeze_windows": _items_added,
    "weekly_freezes": _items_added,
}


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


# --- trees ------------------------------------------------------------------------------------------------------------


def _rules(tree: Any) -> list[Any]:
    return list(tree.get("rules") or ())


def _name(rule: Any) -> str:
    return str(rule["head"]["ref"][0]["value"])


def _head(tree: Any) -> bytes:
    imports = sorted(rule_digest(one) for one in tree.get("imports") or ())
    return rule_digest(tree["package"]) + b"".join(imports)


def _by_digest(tree: Any) -> dict[bytes, list[Any]]:
    found: dict[bytes, list[Any]] = {}
    for rule in _rules(tree):
        found.setdefault(rule_digest(rule), []).append(rule)
    return found


def _plain(value: Any) -> Any:
    """The tree without what does not matter: places, and numbers as OPA writes them."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items() if name not in ("location", "comments")}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _names_in(value: Any) -> set[str]:
    """Every name that a tree reads as a variable or at the head of a reference."""
    return {str(term["value"]) for term in _terms(value) if term.get("type") == "var"}


def _terms(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if "type" in value and "value" in value:
            yield value
        for part in value.values():
            yield from _terms(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _terms(part)


def _references(rule: Any) -> Iterator[list[Any]]:
    for term in _terms(rule):
        if term["type"] == "ref" and term["value"]:
            yield list(term["value"])


def _bare(value: Any) -> Iterator[Mapping[str, Any]]:
    """Variables that stand alone, not at the head of a reference."""
    if isinstance(value, Mapping):
        if value.get("type") == "ref":
            for part in value["value"][1:]:
                yield from _bare(part)
            return
        if value.get("type") == "var":
            yield value
        for part in value.values():
            yield from _bare(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _bare(part)
