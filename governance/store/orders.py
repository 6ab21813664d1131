"""What decisions write: their rows as the function `commit_facts` takes them, several runs in one call, and what it answers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from engine.canonical import encode, jcs, sha256
from engine.errors import Conflict
from engine.journal.status import name as status_name
from governance.store.case import Case, FenceLost, Promise
from governance.store.dispatch import Lease
from governance.store.unit import ByteStrings, Database, Unit

_promise_columns = tuple(f.name for f in fields(Promise))
_promise_row, _promise_values = ("run", *_promise_columns), attrgetter(*_promise_columns)
_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)
_call = "select of_run, refused, kept from commit_facts(%s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Order:
    """One decision to be written, with the leases that it is made under.

    `keeper` is the worker and its lease time for the work item that this decision goes on with itself.
    """

    case: Case
    leases: tuple[Lease, ...]
    keeper: tuple[str, float] = ("", 0)


Answers = Mapping[str, tuple[str, int]]  # by run: why it was refused, or nothing and the fence of what is gone on with


def write(unit: Unit, orders: Sequence[Order]) -> Answers:
    """These in the transaction of the unit; what is refused has written nothing, and `answered` says why."""
    return {row[0]: (row[1], int(row[2])) for row in unit.driver(_call, (unit.tenant, *_facts(orders)))}


def write_alone(database: Database, tenant: str, orders: Sequence[Order]) -> Answers:
    """The same as one statement that is a transaction by itself."""
    return {row[0]: (row[1], int(row[2])) for row in database.call(_call, (tenant, *_facts(orders)))}


def answered(order: Order, answers: Answers) -> int:
    """The fence of the item that is gone on with, or 0; raises what the database refused this order for."""
    run = order.case.origin.run
    refused, kept = answers.get(run, ("", 0))
    if refused == "fence":
        raise FenceLost(f"the lease on {order.leases[0].stage} of run {run} was taken over")
    if refused:
        reason = "what the permit rests on has changed" if refused == "seen" else f"run {run} moved"
        raise Conflict(reason, code="version")
    return kept


def _facts(orders: Sequence[Order]) -> tuple[str, ByteStrings]:
    facts: dict[str, list[dict[str, Any]]] = {}
    for order in orders:
        for table, rows in _rows(order).items():
            facts.setdefault(table, []).extend(rows)
    found: list[bytes] = []
    for rows in facts.values():
        for row in rows:
            _take_bytes(row, found)
    return _json.encode(facts), ByteStrings(found)


def _take_bytes(row: dict[str, Any], found: list[bytes]) -> None:
    """What JSON has no word for: bytes stand in the array beside it, a moment as PostgreSQL reads it."""
    for name, value in row.items():
        kind = type(value)
        if kind is str or kind is int:
            continue
        if kind is bytes:
            found.append(value)
            row[name] = len(found)
        elif kind is datetime.datetime:
            row[name] = value.isoformat()


def _rows(order: Order) -> dict[str, list[dict[str, Any]]]:
    """Rows by table; every one of them names its run, so that a refused run's can be told from the others."""
    case, run = order.case, order.case.origin.run
    facts = {table: [{"run": run, **row} for row in rows] for table, rows in case.rows.items() if rows}
    facts["runs"] = [_run(case)]
    if order.leases:
        # A receipt may come late; an intent may not: after a suspend its verdict is as old as the lease.
        live = case.intent_seen is not None
        facts["leases"] = [
            {"run": one.run, "item": one.item, "stage": one.stage, "owner": one.owner, "epoch": one.epoch, "live": live}
            for one in order.leases
        ]
    if case.intent_seen is not None:
        seen = case.intent_seen
        facts["seen"] = [
            {"run": run, "revision": seen.revision, "freeze": seen.freeze, "persons": seen.persons, "own": seen.own}
        ]
    if case.work_done:
        facts["work_done"] = [{"run": run, "item": item, "stage": stage} for item, stage in sorted(set(case.work_done))]
    if case.built:
        facts["entries"] = [
            {"run": run, "chain": run, "chain_seq": n, "body": body, "leaf": leaf} for n, body, leaf in case.built
        ]
    if case.new_payloads:
        facts["payload"] = [{"run": run, "digest": digest, "body": body} for digest, body in case.new_payloads.items()]
    if case.changed:
        facts["promise"] = [_promise(run, case.promises[promise]) for promise in sorted(case.changed)]
    if case.posts:
        facts["outbox"] = [{"run": run, "kind": kind, "ref": ref, "body": jcs(body)} for kind, ref, body in case.posts]
    if case.approval_status:
        facts["approval_status"] = [
            {"run": run, "approval": name, "status": status} for name, status in case.approval_status.items()
        ]
    pending = case.history.pending()
    if pending:
        facts["journal"] = [{
            "run": run, "first_seq": pending[0].sequence, "events": len(pending), "body": case.history.row(), "head": case.history.head,
        }]  # fmt: skip
    if case.frame is not None:
        body = encode(case.frame.to_value())
        facts["snapshot"] = [{"run": run, "events": case.history.version, "body": body, "sha256": sha256(body)}]
    for row in facts.get("work", ()):
        row["owner"], row["ttl"] = order.keeper if row["state"] == "leased" else ("", 0)
    return facts


def _run(case: Case) -> dict[str, Any]:
    waits_for, waits_until = case.waits
    return {
        "run": case.origin.run, "base_events": case.base_events, "base_chain": case.base_chain, "events": case.history.version,
        "head": case.history.head, "status": status_name(case.history.status) if case.history.version else "", "state": case.next_state,
        "chain_seq": case.chain_seq, "chain_head": case.chain_head, "writes": case.writes, "cancel_requested": case.cancel_requested,
        "now": case.now, "ended": case.ended, "advanced": ("", "advance") in case.work_done, "waits_for": waits_for,
        "waits_until": waits_until, "code": case.code, "code_version": case.code_version, "editors": case.editors,
    }  # fmt: skip


def _promise(run: str, promise: Promise) -> dict[str, Any]:
    return dict(zip(_promise_row, (run, *_promise_values(promise)), strict=True))
