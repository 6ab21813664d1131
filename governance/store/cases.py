"""Runs in and out of the database: load a case, and commit everything it adds in one transaction or not at all."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from engine.canonical import decode, encode, jcs, read_json, sha256
from engine.errors import BrokenJournal, CallerError, Conflict
from engine.gate.action import Action, action_from
from engine.ids import PromiseId
from engine.journal.history import History
from engine.journal.status import name as status_name
from engine.kernel import Payload, opened
from engine.ledger.entries import Fact
from engine.limits import family_runs_max
from engine.program.snapshot import Frame, frame_from
from governance.store import entries, journals
from governance.store.case import Case, Origin, Promise
from governance.store.dispatch import Lease
from governance.store.unit import Unit

_promise_columns = tuple(f.name for f in fields(Promise))


def insert(unit: Unit, origin: Origin, state: str) -> bool:
    """A new run, queued: no journal yet. False when its trigger has a run already."""
    names = [f.name for f in fields(Origin) if f.name not in ("tenant", "created_at")]
    values = {name: getattr(origin, name) for name in names}
    return (
        unit.run(
            f"insert into run (tenant, {', '.join(names)}, code, code_version, head, chain_head, state) values "
            f"(:tenant, {', '.join(f':{name}' for name in names)}, :definition, :version, :zero, :zero, :state) "
            "on conflict do nothing",
            **values,
            zero=bytes(32),
            state=state,
        ).rowcount
        == 1
    )


def begin(unit: Unit, origin: Origin, kept: Payload, facts: Iterable[Fact], editors: tuple[str, ...] = ()) -> bool:
    """A run with its input, its first entries and its first work; False and nothing of that when its trigger has a run already."""
    if not insert(unit, origin, "queued"):
        return False
    unit.run(
        "insert into payload (tenant, run, digest, body) values (:tenant, :run, :digest, :body)",
        run=origin.run, digest=kept.commit, body=kept.body,
    )  # fmt: skip
    if editors:
        unit.run(
            "update run set editors = :editors where tenant = :tenant and run = :run",
            run=origin.run,
            editors=list(editors),
        )
    queue_first(unit, origin)
    entries.note_run(unit, origin.run, list(facts))
    return True


def queued(origin: Origin, actor_type: str, trigger_ref: str) -> Fact:
    """The first entry of a run; the reference that started it stands there as a MAC."""
    return Fact(
        "run.queued",
        {"type": actor_type, "id": origin.started_by},
        {
            "workflow": origin.workflow, "version": origin.version, "definition_sha256": origin.definition.hex(),
            "trigger_type": origin.trigger_type, "trigger_ref": trigger_ref, "workspace": origin.workspace,
            "input_sha256": origin.input.hex(),
        },
    )  # fmt: skip


def started_by(unit: Unit, workflow: str, kind: str, ref: str) -> str:
    """The run that this trigger has started; empty when there is none."""
    row = unit.one(
        "select run from run where tenant = :tenant and workflow = :workflow and trigger_type = :kind and trigger_ref = :ref",
        workflow=workflow, kind=kind, ref=ref,
    )  # fmt: skip
    return "" if row is None else str(row[0])


def started_with(unit: Unit, run: str) -> tuple[bytes, Any, str, str] | None:
    """What a run was started with: its program's digest, its input, by whom, on whose behalf."""
    row = unit.one(
        "select r.definition, p.body, r.started_by, r.on_behalf_of from run r join payload p on p.tenant = r.tenant and p.run = r.run "
        "and p.digest = r.input where r.tenant = :tenant and r.run = :run",
        run=run,
    )
    return None if row is None else (bytes(row[0]), opened(bytes(row[1])), row[2], row[3])


def queue_first(unit: Unit, origin: Origin) -> None:
    """The first work of a run."""
    unit.run(
        "insert into work (tenant, run, item, stage, workspace, state, rank) values (:tenant, :run, '', 'advance', :workspace, 'ready', "
        "(extract(epoch from clock_timestamp()) * 1000000)::bigint)",
        run=origin.run,
        workspace=origin.workspace,
    )


def load(unit: Unit, run: str, *, lock: bool = False) -> Case:
    """The run as it is; `lock` holds its row until the unit ends (people's commands; stages check the version at commit)."""
    names = [f.name for f in fields(Origin)]
    row = unit.one(
        f"select {', '.join(names)}, chain_seq, chain_head, writes, cancel_requested, ended_at is not null, state, events, "
        "clock_timestamp(), head, code, code_version, editors from run where tenant = :tenant and run = :run"
        + (" for update" if lock else ""),
        run=run,
    )
    if row is None:
        raise CallerError(
            f"run {run} is unknown here", code="unknown_run", field="run", next_step="`twokeys run list` shows the runs"
        )
    values = dict(zip(names, row, strict=False))
    for name in ("definition", "salt_key", "input"):
        values[name] = bytes(values[name])
    rest = row[len(names) :]
    stored = journals.read(unit, run)
    journals.check_end(stored, int(rest[6]), bytes(rest[8]))
    history = History.load(PromiseId(run), stored.entries, head=stored.head)
    case = Case(
        origin=Origin(**values), history=history, frame=None, promises={}, payloads=_payloads(unit, run), chain_seq=rest[0],
        chain_head=bytes(rest[1]), writes=rest[2], cancel_requested=rest[3], ended=rest[4], state=rest[5],
        now=rest[7].astimezone(datetime.UTC), base_events=history.version, base_chain=rest[0], stored=list(stored.entries),
        code=bytes(rest[9]), code_version=rest[10], editors=tuple(rest[11]), verdicts_n={}, action_digests={}, receipts_n={},
    )  # fmt: skip
    if history.version:  # before its first event a run has nothing but what it was started with
        _fill(unit, case)
    return case


def _fill(unit: Unit, case: Case) -> None:
    run = case.origin.run
    case.frame, case.promises = _frame(unit, run, case.base_events), _promises(unit, run)
    case.verdicts_n = {
        row[0]: row[1]
        for row in unit.all(
            "select promise, max(n) from verdict where tenant = :tenant and run = :run group by promise", run=run
        )
    }
    case.action_digests = {
        row[0]: bytes(row[1])
        for row in unit.all(
            "select distinct on (promise) promise, digest from action where tenant = :tenant and run = :run order by promise, rev desc",
            run=run,
        )
    }
    case.receipts_n = {
        (row[0], row[1]): row[2]
        for row in unit.all(
            "select key, attempt, max(n) from receipt where tenant = :tenant and key in (select key from promise "
            "where tenant = :tenant and run = :run and key <> '') group by key, attempt",
            run=run,
        )
    }  # fmt: skip


def _payloads(unit: Unit, run: str) -> dict[bytes, bytes]:
    rows = unit.all("select digest, body from payload where tenant = :tenant and run = :run", run=run)
    return {bytes(row[0]): bytes(row[1]) for row in rows}


def _frame(unit: Unit, run: str, version: int) -> Frame | None:
    row = unit.one("select events, body, sha256 from snapshot where tenant = :tenant and run = :run", run=run)
    # A snapshot is a cache: one of another version, or of other bytes, is dropped and rebuilt from the journal.
    if row is None or row[0] != version or sha256(bytes(row[1])) != bytes(row[2]):
        return None
    return frame_from(decode(bytes(row[1])))


def _promises(unit: Unit, run: str) -> dict[str, Promise]:
    columns = ", ".join(_promise_columns)
    rows = unit.all(f"select {columns} from promise where tenant = :tenant and run = :run", run=run)
    found = {row[0]: Promise(*row) for row in rows}
    for promise in found.values():
        promise.result = bytes(promise.result) if promise.result is not None else None
    return found


def action(unit: Unit, run: str, promise: str, rev: int) -> Action:
    """A recorded proposal."""
    row = unit.one(
        "select body, digest from action where tenant = :tenant and run = :run and promise = :promise and rev = :rev",
        run=run, promise=promise, rev=rev,
    )  # fmt: skip
    if row is None:
        raise CallerError(f"{promise} has no proposal {rev}", code="unknown_action")
    found = action_from(bytes(row[0]))
    if found.digest != bytes(row[1]):
        raise BrokenJournal("A-1", f"the proposal of {promise} is not what its digest says")
    return found


def done_by(unit: Unit, case: Case, promise: str) -> Action:
    """What an operation of this very run has done, by its receipt, stored or about to be; refused when another run did it."""
    held = [row["action_digest"] for row in case.rows.get("receipt", ()) if (row["promise"], row["status"]) == (promise, "ok")]  # fmt: skip
    row = unit.one(
        "select a.rev from action a where a.tenant = :tenant and a.run = :run and a.promise = :promise and (a.digest = :held or exists "
        "(select from receipt r where r.tenant = a.tenant and r.run = a.run and r.promise = a.promise and r.action_digest = a.digest "
        "and r.status = 'ok')) order by a.rev desc limit 1",
        run=case.origin.run, promise=promise, held=held[0] if held else b"",
    )  # fmt: skip
    if row is None:
        raise CallerError(f"operation {promise} of this run has done nothing itself", code="nothing_to_reverse")
    return action(unit, case.origin.run, promise, int(row[0]))


def unpark(unit: Unit, run: str) -> int:
    """What is parked of a run is ready again; what nobody knows the outcome of waits on for a person's word. How many."""
    return unit.run(
        "update work w set state = 'ready', faults = 0, eligible_at = clock_timestamp() where tenant = :tenant and run = :run "
        "and state = 'parked' and not exists (select 1 from promise p where p.tenant = w.tenant and p.run = w.run "
        "and p.promise = w.item and p.state = 'unknown')",
        run=run,
    ).rowcount


def put_back(unit: Unit, lease: Lease, reason: str, most: int) -> None:
    """Give an item back with its reason, parked after `most` faults; when it is somebody else's by now, nothing."""
    mine = unit.run(
        "update work set state = case when faults >= :most then 'parked' else 'ready' end, faults = faults + 1, "
        "owner = '', lease_until = null, eligible_at = clock_timestamp() + make_interval(secs => least(60, 5 * (faults + 1))) "
        "where tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner and epoch = :epoch",
        most=most, run=lease.run, item=lease.item, stage=lease.stage, owner=lease.owner, epoch=lease.epoch,
    ).rowcount  # fmt: skip
    if mine == 1:
        table = "promise set last_error" if lease.item else "run set error"
        which = " and promise = :item" if lease.item else ""
        unit.run(
            f"update {table} = :reason where tenant = :tenant and run = :run{which}",
            run=lease.run, item=lease.item, reason=reason[:2_000],
        )  # fmt: skip


def result_under(unit: Unit, run: str, promise: str) -> dict[str, str]:
    """What the program of another run was given for this effect: a repeat of the effect gives the same result."""
    case = load(unit, run)
    result = case.history.result(case.promise_id(promise))
    value = read_json(result.encode()) if isinstance(result, str) else {}
    body = case.payloads.get(bytes.fromhex(value["ok"]["commit"])) if "ok" in value else None
    found = opened(body) if body is not None else {}
    return found if isinstance(found, dict) else {}


def commit(unit: Unit, case: Case, leases: Iterable[Lease], keeper: tuple[str, float] = ("", 0)) -> int:
    """Write everything, or raise: Conflict when the run moved meanwhile, FenceLost when a lease is no longer ours.

    `keeper` is the worker and its lease time for the work item that this decision goes on with itself; the fence of that
    item, or 0.
    """
    facts = json.dumps(_facts(case, list(leases), keeper), default=_text, separators=(",", ":"))
    kept = int(unit.run("select commit_facts(:facts)", facts=facts).scalar_one())
    seen = case.intent_seen
    if seen is not None and writes_of_others(unit, case, lock=True) != seen.writes_of_others:
        raise Conflict("what the permit rests on has changed", code="version")
    _begin_children(unit, case)
    _tell_family(unit, case)
    for row in case.rows.get("doubt", ()):
        unit.run(
            "insert into doubt (tenant, doubt, run, promise, attempt, action_digest) "
            "values (:tenant, :doubt, :run, :promise, :attempt, :action_digest)",
            run=case.origin.run, **row,
        )  # fmt: skip
    for row in case.rows.get("word", ()):
        unit.run(
            "insert into word (tenant, doubt, n, run, person, how, at, via, identity, reason) "
            "values (:tenant, :doubt, :n, :run, :person, :how, :at, :via, :identity, :reason)",
            run=case.origin.run, **row,
        )  # fmt: skip
    if unit.check_commit is not None:
        unit.check_commit(unit, case)
    unit.noted += case.noted
    return kept


def writes_of_others(unit: Unit, case: Case, *, lock: bool = False) -> int:
    """How often the other runs of its family have written: the cap of a run holds over it and its children together.

    With `lock` the family's first run is held, so that of two that write at once the second finds what the first did. It
    is locked after the run's own row, and whoever holds it waits for no other run: the order cannot close a circle.
    """
    origin = case.origin
    if not case.has_family:
        return 0
    if lock:
        unit.run("select 1 from run where tenant = :tenant and run = :root for update", root=origin.root)
    row = unit.one(
        "select coalesce(sum(writes), 0) from run where tenant = :tenant and root = :root and run <> :run",
        root=origin.root, run=origin.run,
    )  # fmt: skip
    return int(row[0]) if row else 0


def _begin_children(unit: Unit, case: Case) -> None:
    if not case.births:
        return
    root = case.origin.root
    unit.run("select 1 from run where tenant = :tenant and run = :root for update", root=root)
    row = unit.one("select count(*) from run where tenant = :tenant and root = :root", root=root)
    if row is None or row[0] + len(case.births) > family_runs_max:
        raise Conflict("the family has grown meanwhile", code="version")
    for birth in case.births:
        o = birth.origin
        active = unit.one(
            "select 1 from template where tenant = :tenant and name = :name and digest = :digest and state = 'active' for share",
            name=o.workflow, digest=o.definition,
        )  # fmt: skip
        if active is None:
            raise Conflict(f"{o.workflow} was published anew meanwhile", code="version")
        if not begin(unit, o, birth.input, birth.facts, birth.editors):
            raise BrokenJournal("child", f"operation {o.parent_promise} of run {o.parent} has a child already")


def _tell_family(unit: Unit, case: Case) -> None:
    # Only work is left for the others, never a change of their rows: no transaction holds two runs of a family but the
    # first one and its own.
    rank = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    if case.releases_children:
        unit.run(
            "insert into work (tenant, run, item, stage, workspace, state, rank) select tenant, run, '', 'cancel', workspace, 'ready', "
            f"{rank} from run where tenant = :tenant and parent = :run and ended_at is null and not cancel_requested "
            "on conflict do nothing",
            run=case.origin.run,
        )
    if case.wakes_parent:
        unit.run(
            "insert into work (tenant, run, item, stage, workspace, state, rank) values (:tenant, :parent, :item, 'advance', :workspace, "
            f"'ready', {rank}) on conflict do nothing",
            parent=case.origin.parent, item=case.origin.parent_promise, workspace=case.origin.workspace,
        )  # fmt: skip


def _text(value: object) -> str:
    """What JSON has no word for, as PostgreSQL reads it."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is in no table")


def _row(run: str, promise: Promise) -> dict[str, Any]:
    return {"run": run, **{name: getattr(promise, name) for name in _promise_columns}}


def _facts(case: Case, leases: list[Lease], keeper: tuple[str, float]) -> dict[str, list[dict[str, Any]]]:
    """Rows by table, as the function `commit_facts` takes them."""
    run, pending, done = case.origin.run, case.history.pending(), set(case.work_done)
    waits_for, waits_until = case.waits
    facts: dict[str, list[dict[str, Any]]] = {
        "runs": [{
            "run": run, "base_events": case.base_events, "base_chain": case.base_chain, "events": case.history.version,
            "head": case.history.head, "status": status_name(case.history.status) if case.history.version else "",
            "state": case.shown, "chain_seq": case.chain_seq, "chain_head": case.chain_head, "writes": case.writes,
            "cancel_requested": case.cancel_requested, "now": case.now, "ended": case.ended, "advanced": ("", "advance") in done,
            "waits_for": waits_for, "waits_until": waits_until, "code": case.code, "code_version": case.code_version,
            "editors": case.editors,
        }],
        # A receipt may come late; an intent may not: after a suspend its verdict is as old as the lease.
        "leases": [{
            "run": lease.run, "item": lease.item, "stage": lease.stage, "owner": lease.owner, "epoch": lease.epoch,
            "done": (lease.item, lease.stage) in done, "live": case.intent_seen is not None,
        } for lease in leases],
        "seen": [asdict(case.intent_seen)] if case.intent_seen else [],
        "work_done": [
            {"run": run, "item": item, "stage": stage}
            for item, stage in sorted(done.difference((lease.item, lease.stage) for lease in leases))
        ],
        "entries": [{"chain": run, "chain_seq": seq, "body": body, "leaf": leaf} for seq, body, leaf in case.built],
        "payload": [{"run": run, "digest": digest, "body": body} for digest, body in case.new_payloads.items()],
        "promise": [_row(run, case.promises[promise]) for promise in sorted(case.changed)],
        "outbox": [{"kind": kind, "ref": ref, "body": jcs(body)} for kind, ref, body in case.posts],
    }  # fmt: skip
    if pending:
        row = {
            "first_seq": pending[0].sequence,
            "events": len(pending),
            "body": case.history.row(),
            "head": case.history.head,
        }
        facts["journal"] = [{"run": run, **row}]
    if case.frame is not None:
        body = encode(case.frame.to_value())
        facts["snapshot"] = [{"run": run, "events": case.history.version, "body": body, "sha256": sha256(body)}]
    if case.approval_status:
        facts["approval_status"] = [
            {"approval": name, "status": status} for name, status in case.approval_status.items()
        ]
    for table, rows in case.rows.items():
        facts[table] = [{"run": run, **row} for row in rows]
    owner, ttl = keeper
    for row in facts.get("work", ()):
        row["owner"], row["ttl"] = (owner, ttl) if row["state"] == "leased" else ("", 0)
    return facts
