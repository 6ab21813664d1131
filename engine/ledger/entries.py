"""Audit entries: the published catalogue, building one entry's exact bytes, and reading one strictly."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from engine.canonical import read_json
from engine.errors import BrokenLedger, CallerError
from engine.ledger.tree import leaf_hash
from engine.limits import entry_bytes_max, int_max, json_depth_max

GENESIS = bytes(32)
ACTOR_TYPES = ("person", "system", "service")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One type of fact per line, dotted and past tense, with exactly the keys of its body.
CATALOGUE: dict[str, tuple[str, ...]] = {
    "run.queued": _words("workflow version definition_sha256 trigger_type trigger_ref workspace input_sha256"),
    "run.started": _words("journal_version"),
    "action.proposed": _words(
        "promise rev step connector operation kind risk reversible target_type target key_sha256 action_sha256"
    ),
    "action.edited": _words("approval promise action_sha256 person fields_sha256 via"),
    "verdict.given": _words(
        "promise n purpose effect deny_kind retryable tier keys counts groups expires_in_s reasons "
        "action_sha256 policy_revision engine engine_version input_sha256 findings_sha256"
    ),
    "approval.asked": _words(
        "approval promise action_sha256 card_sha256 tier keys counts groups expires_at lineage "
        "verdict_n policy_revision"
    ),
    "key.given": _words(
        "approval person level groups action_sha256 card_sha256 card_rev policy_revision blocks_sha256 via given needed"
    ),
    "key.refused": _words("approval person code via count"),
    "rejection.given": _words("approval person level groups action_sha256 via given needed reason_sha256"),
    "approval.stopped": _words("approval promise action_sha256 person reason_sha256"),
    "approval.released": _words("approval promise action_sha256 persons"),
    "approval.rejected": _words("approval promise action_sha256 person reason_sha256"),
    "glass.broken": _words(
        "approval promise person level groups action_sha256 card_sha256 policy_revision via ticket_sha256 reason_sha256 due_at"
    ),
    "review.given": _words("approval person groups how via given needed reason_sha256"),
    "debt.overdue": _words("reviews"),
    "approval.reminded": _words("approval promise share persons"),
    "approval.escalated": _words("approval promise group persons"),
    "approval.expired": _words("approval promise action_sha256"),
    "approval.canceled": _words("approval promise action_sha256 why"),
    "effect.intended": _words("promise attempt key_sha256 action_sha256 verdict_n approval policy_revision"),
    "effect.receipted": _words("promise attempt n status key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.unknown": _words("promise attempt n key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.resolved": _words("promise attempt n how person key_sha256 action_sha256 receipt_sha256 signed_by"),
    "effect.retried": _words("promise attempt error_class retry_at"),
    "effect.reused": _words("promise key_sha256 action_sha256 receipt_sha256 run"),
    "effect.looked": _words("promise attempt error_class"),
    "doubt.asked": _words("doubt promise attempt action_sha256 keys lineage"),
    "word.given": _words("doubt promise attempt person groups how via given needed reason_sha256"),
    "word.refused": _words("doubt person how code via count"),
    "reversal.proposed": _words("promise step of"),
    "step.completed": _words("promise step"),
    "step.failed": _words("promise step error_class"),
    "task.asked": _words("task promise step form_sha256 groups expires_at keys counts signers"),
    "task.answered": _words("task promise person groups form_sha256 answer_sha256 via"),
    "task.expired": _words("task promise"),
    "task.canceled": _words("task promise why"),
    "operator.asked": _words("task promise step error_class expires_at"),
    "operator.answered": _words("task promise person how via"),
    "operator.expired": _words("task promise"),
    "operator.canceled": _words("task promise why"),
    "signal.sent": _words("person name delivery payload_sha256"),
    "cancel.requested": _words("person reason_sha256"),
    "cancel.inherited": _words("run promise"),
    "parent.named": _words("run promise depth"),
    "child.started": _words("promise run workflow version definition_sha256"),
    "child.ended": _words("promise run status error_class journal_version journal_head"),
    "run.continued": _words("promise run workflow version definition_sha256"),
    "run.migrated": _words("person from_sha256 definition_sha256 version journal_version"),
    "run.retried": _words("person count"),
    "change.proposed": _words(
        "operation target draft n base_revision revision bundle_sha256 people authors reason_sha256"
    ),
    "run.closed": _words("status entries journal_version journal_head"),
    "evidence.sealed": _words("sha256 size key version_id"),
    "evidence.downloaded": _words("sha256 person"),
    "template.created": _words("name version definition_sha256"),
    "template.activated": _words("name version definition_sha256"),
    "template.archived": _words("name version definition_sha256"),
    "template.paused": _words("name version definition_sha256"),
    "schedule.set": _words("schedule workflow person kind zone catch_up most overlap input_sha256"),
    "schedule.dropped": _words("schedule workflow person why"),
    "schedule.fired": _words("schedule workflow person run due_at"),
    "schedule.skipped": _words("schedule workflow count why"),
    "person.added": _words("person level kind"),
    "person.linked": _words("person identity_kind identity_sha256"),
    "person.owned": _words("person owner"),
    "person.deactivated": _words("person"),
    "person.away": _words("person delegate from_at until_at"),
    "group.changed": _words("group person change"),
    "tenant.created": _words("tenant"),
    "workspace.added": _words("workspace"),
    "caps.changed": _words("scope name max_concurrency max_concurrent_runs max_runs_per_min max_writes_per_run weight"),
    "gate.changed": _words("rule_author zone quiet_from quiet_until review_seconds"),
    "policy.activated": _words("revision bundle_sha256"),
    "policy.published": _words("revision bundle_sha256 base_revision draft n how run until"),
    "policy.drafted": _words("draft n base_revision draft_sha256"),
    "policy.withdrawn": _words("draft"),
    "policy.shadowed": _words("draft change"),
    "freeze.begun": _words("freeze scope name person reason_sha256"),
    "freeze.ended": _words("freeze scope name run"),
    "key.created": _words("purpose key_id"),
    "key.rotated": _words("purpose key_id before signs_until"),
    "key.compromised": _words("purpose key_id"),
    "export.changed": _words("export change target form position"),
    "log.exported": _words("person position size"),
}

# What a body has only where there is something to say. `needs`: the holds on an action ask for different things, and each
# must be satisfied on its own. `for_person`: who was away, in whose groups and in whose place a key was turned.
# `seconds` and `viewed`: how long the person took, and whether the whole request had been before them.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "verdict.given": ("needs",),
    "approval.asked": ("needs",),
    "key.given": ("for_person", "seconds", "viewed"),
}

_body_keys = {kind: frozenset(keys) for kind, keys in CATALOGUE.items()}
_optional_keys = {kind: frozenset(OPTIONAL.get(kind, ())) for kind in CATALOGUE}

# What a body key holds; a key named in none of these holds text.
_numbers = frozenset(
    _words(
        "rev n keys expires_in_s verdict_n card_rev given needed count attempt level entries size journal_version delivery depth "
        "share quiet_from quiet_until review_seconds seconds "
        "max_concurrency max_concurrent_runs max_runs_per_min max_writes_per_run weight people most position"
    )
)
_flags = frozenset(_words("retryable reversible rule_author viewed"))
_text_lists = frozenset(_words("groups reasons persons signers authors reviews"))
_by_rule = frozenset(_words("counts needs lineage version"))

_entry_keys = frozenset(_words("v tenant chain chain_seq prev at type actor body commit"))
_actor_keys = frozenset(("type", "id"))
_entry_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_entry_digest = re.compile(r"[0-9a-f]{64}")
_tenant = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_chain = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
_at = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


_quoted = json.encoder.encode_basestring


def _form(name: str) -> str:
    if name in _numbers:
        return "number"
    if name in _flags or name in _text_lists or name in _by_rule:
        return "rule"
    return "digest" if name.endswith("sha256") or name == "journal_head" else "text"


# Of each type its body's keys in their order, each with the text before its value and how that is written.
_plans = {kind: tuple((name, f'"{name}":', _form(name)) for name in sorted(keys)) for kind, keys in CATALOGUE.items()}


@dataclass(frozen=True, slots=True)
class Fact:
    """What happened and who did it, before it has a place in a chain."""

    type: str
    actor: dict[str, str]
    body: dict[str, Any]
    commit: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One audit entry as read from its exact bytes."""

    tenant: str
    chain: str
    chain_seq: int
    prev: str
    at: str
    type: str
    actor: dict[str, str]
    body: dict[str, Any]
    commit: tuple[str, ...]
    leaf: bytes


def build(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> tuple[bytes, bytes]:
    """The bytes to store and their leaf hash; `prev` is the leaf hash of the chain's last entry, GENESIS for the first."""
    data = _quickly(fact, tenant, chain, chain_seq, prev, at)
    if data is None:
        data = _slowly(fact, tenant, chain, chain_seq, prev, at)
    if len(data) > entry_bytes_max:
        _bad_entry("entry-size", f"{fact.type} has {len(data)} bytes; an entry has at most {entry_bytes_max}")
    return data, leaf_hash(data)


def _slowly(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> bytes:
    """By the rules one after the other; whatever is wrong is refused here, with its reason."""
    value = {
        "v": 1,
        "tenant": tenant,
        "chain": chain,
        "chain_seq": chain_seq,
        "prev": prev.hex(),
        "at": stamp(at),
        "type": fact.type,
        "actor": fact.actor,
        "body": fact.body,
        "commit": list(fact.commit),
    }
    _check_entry(value)
    return _canonical_entry(value)


def _quickly(fact: Fact, tenant: str, chain: str, chain_seq: int, prev: bytes, at: datetime) -> bytes | None:
    """What nearly every fact is, written around its type's constant text; None when anything is not as it should be."""
    plan, actor, body = _plans.get(fact.type), fact.actor, fact.body
    if plan is None or type(actor) is not dict or len(actor) != 2 or fact.commit or len(prev) != len(GENESIS):
        return None
    if type(body) is not dict or len(body) != len(plan) or type(tenant) is not str or type(chain) is not str:
        return None
    who, kind = actor.get("id"), actor.get("type")
    if type(who) is not str or kind not in ACTOR_TYPES or type(chain_seq) is not int or not 0 <= chain_seq <= int_max:
        return None
    if at.tzinfo is None or not _tenant.fullmatch(tenant) or not _chain.fullmatch(chain):
        return None
    parts = []
    for name, before, form in plan:
        item = body.get(name)
        if form == "text":
            if type(item) is not str:
                return None
            parts.append(before + _quoted(item))
        elif form == "digest":
            if type(item) is not str or (item and not _entry_digest.fullmatch(item)):
                return None
            parts.append(f'{before}"{item}"')
        elif form == "number":
            if type(item) is not int or not 0 <= item <= int_max:
                return None
            parts.append(f"{before}{item}")
        elif name not in body or not _holds(name, item):
            return None
        else:
            parts.append(before + _entry_encoder.encode(item))
    text = (
        f'{{"actor":{{"id":{_quoted(who)},"type":"{kind}"}},"at":"{stamp(at)}","body":{{{",".join(parts)}}},"chain":"{chain}",'
        f'"chain_seq":{chain_seq},"commit":[],"prev":"{prev.hex()}","tenant":"{tenant}","type":"{fact.type}","v":1}}'
    )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


def read_entry(data: bytes) -> Entry:
    """The entry these bytes hold; anything but the canonical bytes of a catalogued fact is refused."""
    value = _plainly(data)
    if value is None:
        value = _strictly(data)
    parts = {name: item for name, item in value.items() if name not in ("v", "commit")}
    return Entry(**parts, commit=tuple(value["commit"]), leaf=leaf_hash(data))


def _strictly(data: bytes) -> dict[str, Any]:
    if len(data) > entry_bytes_max:
        _bad_entry("entry-size", f"{len(data)} bytes; an entry has at most {entry_bytes_max}")
    try:
        value = read_json(data, bytes_max=entry_bytes_max)
    except CallerError as error:
        _bad_entry("entry-parse", error.reason)
    _check_entry(value)
    instant(value["at"])
    if _canonical_entry(value) != data:
        _bad_entry("entry-noncanonical", "the bytes are not the canonical form of what they say")
    assert type(value) is dict, "what was checked is an entry"
    return value


def _plainly(data: bytes) -> dict[str, Any] | None:
    """What nearly every entry is, read without the strict reader: its checks say nothing that canonical bytes do not say too.

    Doubled keys, fractions, marks and whatever else they refuse would not be written again as these very bytes. Anything
    that does not pass here is read again, strictly, for the reason.
    """
    if len(data) > entry_bytes_max or data.count(b"[") + data.count(b"{") > json_depth_max:
        return None
    try:
        value = json.loads(data.decode("utf-8"))
        _check_entry(value)
        instant(value["at"])
        same = _canonical_entry(value) == data
    except (ValueError, BrokenLedger):
        return None
    return value if same and type(value) is dict else None


def _canonical_entry(value: dict[str, Any]) -> bytes:
    # After _check_entry every key and every type is known to be of the JCS profile; only the text is left to check.
    try:
        return _entry_encoder.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        _bad_entry("entry-noncanonical", f"{value['type']}: text is valid Unicode (a lone surrogate is not)")


def stamp(at: datetime) -> str:
    """UTC with six digits and a Z: fixed width, so that text order is time order."""
    if at.tzinfo is None:
        _bad_entry("entry-time", "a time without a zone says nothing")
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def instant(text: str) -> datetime:
    """The moment that a stamp names."""
    if not _at.fullmatch(text):
        _bad_entry("entry-time", f"{text[:40]!r} is not a time like 2026-08-21T10:11:12.345678Z")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        _bad_entry("entry-time", f"{text!r} is not a moment of the calendar")


def _check_entry(value: Any) -> None:
    if type(value) is not dict or value.keys() != _entry_keys:
        _bad_entry("entry-shape", f"an entry has exactly the keys {', '.join(sorted(_entry_keys))}")
    if type(value["v"]) is not int or value["v"] != 1:
        _bad_entry("entry-shape", "the version of an entry is 1")
    _check_written(value["tenant"], _tenant, "tenant")
    _check_written(value["chain"], _chain, "chain")
    if type(value["chain_seq"]) is not int or not 0 <= value["chain_seq"] <= int_max:
        _bad_entry("entry-shape", "chain_seq counts from 0")
    _check_written(value["prev"], _entry_digest, "prev")
    _check_written(value["at"], _at, "at")
    actor = value["actor"]
    if type(actor) is not dict or actor.keys() != _actor_keys or actor["type"] not in ACTOR_TYPES:
        _bad_entry("entry-shape", "the actor is {type: person|system|service, id}")
    if type(actor["id"]) is not str:
        _bad_entry("entry-shape", "the actor's id is text")
    if type(value["commit"]) is not list:
        _bad_entry("entry-shape", "commit is a list")
    for commitment in value["commit"]:
        _check_written(commitment, _entry_digest, "commitment")
    check_body(value["type"], value["body"])


def check_body(kind: Any, body: Any) -> None:
    """Return when the body has exactly the keys of its type and each holds what its name says; raise otherwise."""
    if type(kind) is not str or kind not in CATALOGUE:
        _bad_entry("entry-type", f"{str(kind)[:60]!r} is not in the catalogue of entries")
    if type(body) is not dict or body.keys() - _optional_keys[kind] != _body_keys[kind]:
        given = set(body) if type(body) is dict else set()
        wrong = sorted(str(name) for name in given ^ _body_keys[kind])
        _bad_entry("entry-body", f"{kind}: missing or unknown keys: {', '.join(wrong)}")
    for name, item in body.items():
        if not _holds(name, item):
            _bad_entry("entry-body", f"{kind}: {name} does not hold what its name says")


def _holds(name: str, item: Any) -> bool:
    if name in _numbers:
        return type(item) is int and 0 <= item <= int_max
    if name in _flags:
        return type(item) is bool
    if name in _text_lists:
        return type(item) is list and all(type(one) is str for one in item)
    if name == "counts":
        return type(item) is list and all(_is_count(one) for one in item)
    if name == "needs":
        return type(item) is list and len(item) > 0 and all(_is_need(one) for one in item)
    if name == "lineage":
        return type(item) is list and all(_is_ancestor(one) for one in item)
    if name == "version":
        return type(item) is str or (type(item) is int and 0 <= item <= int_max)
    if type(item) is not str:
        return False
    if name.endswith("sha256") or name == "journal_head":
        return not item or _entry_digest.fullmatch(item) is not None
    return True


def holds_of(name: str) -> str:
    """What a body key holds, in a word for people; empty for text."""
    if name in _numbers:
        return "number"
    if name in _flags:
        return "true or false"
    if name in _text_lists or name in ("counts", "lineage"):
        return "list"
    return "digest" if name.endswith("sha256") or name == "journal_head" else ""


def _is_count(item: Any) -> bool:
    # A group's name may hold a dash, which a key of the canonical form may not: hence pairs.
    return (
        type(item) is list and len(item) == 2 and type(item[0]) is str and type(item[1]) is int and 1 <= item[1] <= 99
    )


def _is_need(item: Any) -> bool:
    names = ("counts", "groups", "keys")
    return type(item) is dict and tuple(sorted(item)) == names and all(_holds(name, item[name]) for name in names)


def _is_ancestor(item: Any) -> bool:
    return type(item) is dict and set(item) == {"person", "why"} and all(type(part) is str for part in item.values())


def _check_written(item: Any, pattern: re.Pattern[str], what: str) -> None:
    if type(item) is not str or not pattern.fullmatch(item):
        _bad_entry("entry-shape", f"{str(item)[:60]!r} is not a {what}")


def _bad_entry(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
