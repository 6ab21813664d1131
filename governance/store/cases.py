"""Runs in and out of the database: load a case, and commit everything it adds in one transaction or not at all."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import fields

from engine.canonical import decode, encode, read_json, sha256
from engine.errors import BrokenJournal, CallerError, Conflict
from engine.gate.action import Action, action_from
from engine.ids import PromiseId
from engine.journal.events import Entry, decode_row
from engine.journal.history import History
from engine.journal.status import name as status_name
from engine.kernel import opened
from engine.program.snapshot import Frame, frame_from
from governance.store import entries, outbox
from governance.store.case import Case, FenceLost, Origin, Promise
from governance.store.dispatch import Lease
from governance.store.unit import Unit

_promise_columns = tuple(f.name for f in fields(Promise))


def insert(unit: Unit, origin: Origin, state: str) -> bool:
    """A new run, queued: no journal yet. False when its trigger has a run already."""
    values = {f.name: getattr(origin, f.name) for f in fields(Origin) if f.name not in ("tenant", "created_at")}
    return (
        unit.run(
            "insert into run (tenant, run, workspace, workflow, version, definition, trigger_type, trigger_ref, started_by, "
            "on_behalf_of, owner, salt_key, execution_key, input, head, chain_head, state) values (:tenant, :run, :workspace, "
            ":workflow, :version, "
            ":definition, :trigger_type, :trigger_ref, :started_by, :on_behalf_of, :owner, :salt_key, :execution_key, :input, "
            ":zero, :zero, :state) "
            "on conflict do nothing",
            **values,
            zero=bytes(32),
            state=state,
        ).rowcount
        == 1
    )


def started_by(unit: Unit, workflow: str, kind: str, ref: str) -> str:
    """The run that this trigger has started; empty when there is none."""
    row = unit.one(
        "select run from run where tenant = :tenant and workflow = :workflow and trigger_type = :kind and trigger_ref = :ref",
        workflow=workflow, kind=kind, ref=ref,
    )  # fmt: skip
    return "" if row is None else str(row[0])


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
        "clock_timestamp() from run where tenant = :tenant and run = :run" + (" for update" if lock else ""),
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
    history, stored = _history(unit, run, int(rest[6]))
    return Case(
        origin=Origin(**values), history=history, frame=_frame(unit, run, history.version), promises=_promises(unit, run),
        payloads={bytes(r[0]): bytes(r[1]) for r in unit.all("select digest, body from payload where tenant = :tenant and run = "
                                                             ":run", run=run)},
        chain_seq=rest[0], chain_head=bytes(rest[1]), writes=rest[2], cancel_requested=rest[3], ended=rest[4], state=rest[5],
        now=rest[7].astimezone(datetime.UTC), base_events=history.version, base_chain=rest[0], stored=stored,
        verdicts_n={
            row[0]: row[1]
            for row in unit.all("select promise, max(n) from verdict where tenant = :tenant and run = :run group by promise", run=run)
        },
        action_digests={
            row[0]: bytes(row[1])
            for row in unit.all(
                "select distinct on (promise) promise, digest from action where tenant = :tenant and run = :run order by promise, rev desc",
                run=run,
            )
        },
        receipts_n={(r[0], r[1]): r[2] for r in unit.all(
            "select key, attempt, max(n) from receipt where tenant = :tenant and key in (select key from promise "
                "where tenant = :tenant and run = :run and key <> '') group by key, attempt", run=run)},
    )  # fmt: skip


def _history(unit: Unit, run: str, events: int) -> tuple[History, list[Entry]]:
    found: list[Entry] = []
    head = bytes(32)
    for _, body, after in journal_rows(unit, run):
        found.extend(decode_row(body))
        head = after
    history = History.load(PromiseId(run), found)
    if history.version != events:
        raise BrokenJournal("J-1", f"the run says {events} events, its journal holds {history.version}")
    if history.head != head:
        raise BrokenJournal("J-2", "the stored events do not hash to the journal's head")
    return history, found


def journal_rows(unit: Unit, run: str) -> list[tuple[int, bytes, bytes]]:
    """(first sequence, stored bytes, head after it) of each commit."""
    rows = unit.all(
        "select first_seq, body, head from journal where tenant = :tenant and run = :run order by first_seq", run=run
    )
    return [(int(row[0]), bytes(row[1]), bytes(row[2])) for row in rows]


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


def epoch_of(unit: Unit, run: str, item: str, stage: str) -> int:
    """The fence of a work item that this transaction has just leased to itself."""
    row = unit.one(
        "select epoch from work where tenant = :tenant and run = :run and item = :item and stage = :stage",
        run=run,
        item=item,
        stage=stage,
    )
    assert row is not None
    return int(row[0])


def result_under(unit: Unit, run: str, promise: str) -> dict[str, str]:
    """What the program of another run was given for this effect: a repeat of the effect gives the same result."""
    case = load(unit, run)
    result = case.history.result(case.promise_id(promise))
    value = read_json(result.encode()) if isinstance(result, str) else {}
    body = case.payloads.get(bytes.fromhex(value["ok"]["commit"])) if "ok" in value else None
    found = opened(body) if body is not None else {}
    return found if isinstance(found, dict) else {}


def commit(unit: Unit, case: Case, leases: Iterable[Lease], keeper: tuple[str, float] = ("", 0)) -> None:
    """Write everything, or raise: Conflict when the run moved meanwhile, FenceLost when a lease is no longer ours.

    `keeper` is the worker and its lease time for the work items that this decision goes on with itself.
    """
    o = case.origin
    pending = case.history.pending()
    waits_for, waits_until = case.waits
    moved = unit.run(
        "update run set events = :events, head = :head, status = :status, state = :state, chain_seq = :seq, chain_head = :chain, "
        "writes = :writes, cancel_requested = :cancel, started_at = coalesce(started_at, case when :events > 0 then :now end), "
        "ended_at = case when :ended then coalesce(ended_at, :now) end, error = case when :advanced then '' else error end, "
        "waits_for = :waits_for, waits_until = :waits_until "
        "where tenant = :tenant and run = :run and events = :base_events and chain_seq = :base_chain",
        run=o.run, events=case.history.version, head=case.history.head, status=_status(case), state=case.shown, seq=case.chain_seq,
        chain=case.chain_head, writes=case.writes, cancel=case.cancel_requested, ended=case.ended, now=case.now,
        base_events=case.base_events, base_chain=case.base_chain, advanced=("", "advance") in case.work_done,
        waits_for=waits_for, waits_until=waits_until,
    ).rowcount  # fmt: skip
    if moved != 1:
        raise Conflict(f"run {o.run} moved", code="version")
    _fence(unit, case, list(leases))
    _still_permitted(unit, case)
    if pending:
        unit.run(
            "insert into journal (tenant, run, first_seq, events, body, head) values (:tenant, :run, :seq, :n, :body, :head)",
            run=o.run, seq=pending[0].sequence, n=len(pending), body=case.history.row(), head=case.history.head,
        )  # fmt: skip
    if case.frame is not None:
        body = encode(case.frame.to_value())
        unit.run(
            "insert into snapshot (tenant, run, events, body, sha256) values (:tenant, :run, :n, :body, :sha) "
            "on conflict (tenant, run) do update set events = excluded.events, body = excluded.body, sha256 = excluded.sha256",
            run=o.run, n=case.history.version, body=body, sha=sha256(body),
        )  # fmt: skip
    _write_rows(unit, case, keeper)
    entries.put_built(unit, o.run, case.built)
    for kind, ref, post in case.posts:
        outbox.put(unit, kind, ref, post)


def _status(case: Case) -> str:
    return status_name(case.history.status) if case.history.version else ""


def _still_permitted(unit: Unit, case: Case) -> None:
    # An intent rests on what was read before it was judged; if any of that has changed nothing is written and it is judged again.
    seen = case.intent_seen
    if seen is None:
        return
    found = unit.one(
        "select 1 from tenant t join policy p on p.tenant = t.tenant and p.state = 'active' where t.tenant = :tenant "
        "and not t.kill_switch and t.freeze_id = :freeze and p.revision = :revision and not exists "
        "(select 1 from person h where h.tenant = :tenant and h.person = any(:persons) and not h.active)",
        freeze=seen.freeze, revision=seen.revision, persons=list(seen.persons),
    )  # fmt: skip
    if found is None:
        raise Conflict("what the permit rests on has changed", code="version")


def _fence(unit: Unit, case: Case, leases: list[Lease]) -> None:
    # Each lease this decision was made under must still be ours; what it finished is deleted under the same check.
    done = set(case.work_done)
    for lease in leases:
        name = {
            "run": case.origin.run,
            "item": lease.item,
            "stage": lease.stage,
            "owner": lease.owner,
            "epoch": lease.epoch,
        }
        mine = (
            "tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner and epoch = :epoch "
            "and state = 'leased'"
        )
        if case.intent_seen is not None:
            # A receipt may come late; an intent may not: after a suspend its verdict is as old as the lease.
            mine += " and lease_until > clock_timestamp()"
        if (lease.item, lease.stage) in done:
            count = unit.run(f"delete from work where {mine}", **name).rowcount
            done.discard((lease.item, lease.stage))
        else:
            count = len(unit.all(f"select 1 from work where {mine} for update", **name))
        if count != 1:
            raise FenceLost(f"the lease on {lease.stage} of {case.origin.run} was taken over")
    unit.many(
        "delete from work where tenant = :tenant and run = :run and item = :item and stage = :stage",
        [{"run": case.origin.run, "item": item, "stage": stage} for item, stage in sorted(done)],
    )


_inserts = {
    "action": "(tenant, run, promise, rev, digest, body) values (:tenant, :run, :promise, :rev, :digest, :body)",
    "verdict": "(tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings) values "
    "(:tenant, :run, :promise, :n, :purpose, :effect, :action_digest, :revision, :body, :input, :findings)",
    "intent": "(tenant, key, turn, run, promise, action_digest) values (:tenant, :key, :turn, :run, :promise, :action_digest)",
    "receipt": "(tenant, key, attempt, n, run, promise, status, action_digest, body, signature, key_id) values "
    "(:tenant, :key, :attempt, :n, :run, :promise, :status, :action_digest, :body, :signature, :key_id)",
    "approval": "(tenant, approval, run, promise, action_digest, card_digest, tier, keys, body, card, verdict_n, status, requested_at, "
    "expires_at) values (:tenant, :approval, :run, :promise, :action_digest, :card_digest, :tier, :keys, :body, :card, :verdict_n, "
    "'requested', :requested_at, :expires_at)",
    "vote": "(tenant, approval, person, kind, at, action_digest, card_digest, card_rev, policy_revision, blocks_sha256, via, identity, "
    "reason) values (:tenant, :approval, :person, :kind, :at, :action_digest, :card_digest, :card_rev, :policy_revision, "
    ":blocks_sha256, :via, :identity, :reason)",
    "task": "(tenant, task, run, promise, form_digest, body, groups, status, asked_at, expires_at) values (:tenant, :task, :run, "
    ":promise, :form_digest, :body, :groups, 'asked', :asked_at, :expires_at)",
    "due": "(tenant, kind, ref, at, run) values (:tenant, :kind, :ref, :at, :run) on conflict (tenant, kind, ref) do update set "
           "at = excluded.at",
    "card": "(tenant, approval) values (:tenant, :approval)",
    "bundle": "(tenant, run, state, checkpoint_size) values (:tenant, :run, 'frozen', 0) on conflict do nothing",
    "work": "(tenant, run, item, stage, workspace, state, rank, eligible_at, faults, owner, epoch, lease_until) values (:tenant, :run, "
    ":item, :stage, :workspace, :state, (extract(epoch from clock_timestamp()) * 1000000)::bigint, "
    "clock_timestamp() + make_interval(secs => :wait), :faults, :owner, (extract(epoch from clock_timestamp()) * 1000000)::bigint, "
    "clock_timestamp() + make_interval(secs => :ttl)) "
    "on conflict (tenant, run, item, stage) do update set state = excluded.state, eligible_at = excluded.eligible_at, "
    "faults = excluded.faults, owner = excluded.owner, epoch = greatest(work.epoch + 1, excluded.epoch), lease_until = "
    "excluded.lease_until",
}  # fmt: skip


def _write_rows(unit: Unit, case: Case, keeper: tuple[str, float]) -> None:
    run = case.origin.run
    unit.many(
        "insert into payload (tenant, run, digest, body) values (:tenant, :run, :digest, :body) on conflict do nothing",
        [{"run": run, "digest": digest, "body": body} for digest, body in case.new_payloads.items()],
    )
    columns = ", ".join(_promise_columns)
    values = ", ".join(f":{name}" for name in _promise_columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in _promise_columns if name != "promise")
    unit.many(
        f"insert into promise (tenant, run, {columns}) values (:tenant, :run, {values}) "
        f"on conflict (tenant, run, promise) do update set {changes}",
        [{"run": run, **{c: getattr(case.promises[p], c) for c in _promise_columns}} for p in sorted(case.changed)],
    )
    unit.many(
        "update approval set status = :status, decided_at = clock_timestamp() where tenant = :tenant and approval = :approval",
        [{"approval": a, "status": s} for a, s in case.approval_status.items()],
    )
    unit.many(
        "update task set status = :status, decided_at = clock_timestamp(), answered_by = :person, via = :via, answer = :answer "
        "where tenant = :tenant and task = :task and status = 'asked'",
        case.rows.get("task_done", ()),
    )
    owner, ttl = keeper
    for row in case.rows.get("work", ()):
        row["owner"], row["ttl"] = (owner, ttl) if row["state"] == "leased" else ("", 0)
    for table, statement in _inserts.items():
        unit.many(f"insert into {table} {statement}", [{"run": run, **row} for row in case.rows.get(table, ())])
    unit.many(
        "delete from due where tenant = :tenant and kind = :kind and ref = :ref",
        [{"kind": row["kind"], "ref": row["ref"]} for row in case.rows.get("due_done", ())],
    )
