"""Runs in and out of the database: load a case, and commit everything it adds in one transaction or not at all."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from engine.canonical import decode, read_json, sha256
from engine.errors import BrokenJournal, CallerError, Conflict
from engine.gate.action import Action, action_from
from engine.ids import PromiseId
from engine.journal.history import History
from engine.kernel import Payload, opened
from engine.ledger.entries import Fact
from engine.limits import family_runs_max
from engine.program.snapshot import Frame, frame_from
from governance.store import entries, glasses, journals, spending
from governance.store.case import Case, Origin, Promise
from governance.store.dispatch import Lease
from governance.store.orders import Order, answered, write
from governance.store.unit import Database, Row, Unit

_promise_columns = tuple(f.name for f in fields(Promise))
_origin_columns = tuple(f.name for f in fields(Origin))
_load = "select what, columns, x, y from load_run(%s, %s)"


# What a commit writes beside the one call: a person's doubts are rare and need not be fast.
# Tables that the one call does not take, and whether their rows name the run.
WRITTEN_APART = {
    "doubt": True,
    "word": True,
    "spending": True,
    "action_edit": True,
    "glass": True,
    "mandate": False,
    "attention": False,
}


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


def started_with(unit: Unit, run: str) -> tuple[bytes, Any, str, str, str] | None:
    """What a run was started with: its program's digest, its input, by whom, on whose behalf, in which workspace."""
    row = unit.one(
        "select r.definition, p.body, r.started_by, r.on_behalf_of, r.workspace from run r join payload p "
        "on p.tenant = r.tenant and p.run = r.run and p.digest = r.input where r.tenant = :tenant and r.run = :run",
        run=run,
    )
    return None if row is None else (bytes(row[0]), opened(bytes(row[1])), *row[2:])


def queue_first(unit: Unit, origin: Origin) -> None:
    """The first work of a run."""
    unit.run(
        "insert into work (tenant, run, item, stage, workspace, workflow, state, rank, begins) values (:tenant, :run, '', 'advance', "
        ":workspace, :workflow, 'ready', (extract(epoch from clock_timestamp()) * 1000000)::bigint, :begins)",
        run=origin.run, workspace=origin.workspace, workflow=origin.workflow, begins=not origin.parent,
    )  # fmt: skip
    unit.ring()


def load(unit: Unit, run: str, *, lock: bool = False) -> Case:
    """The run as it is; `lock` holds its row until the unit ends (people's commands; stages check the version at commit)."""
    if lock:
        unit.run("select 1 from run where tenant = :tenant and run = :run for update", run=run)
    found = _case(run, unit.driver(_load, (unit.tenant, run)))
    if lock:
        found.debts = glasses.overdue(unit)
    return found


def load_alone(database: Database, tenant: str, run: str) -> Case:
    """The same as one statement that is a transaction by itself."""
    return _case(run, database.call(_load, (tenant, run), write=False))


def _case(run: str, rows: Sequence[Row]) -> Case:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    if "run" not in found:
        raise CallerError(
            f"run {run} is unknown here", code="unknown_run", field="run", next_step="`twokeys run list` shows the runs"
        )
    own = found["run"][0][1]
    values = {name: own[name] for name in _origin_columns}
    for name in ("definition", "salt_key", "input"):
        values[name] = _bytes(values[name])
    values["created_at"] = _time(values["created_at"])
    journal = [(int(row[1]["first_seq"]), bytes(row[2]), bytes(row[3])) for row in found.get("journal", ())]
    stored = journals.chained(sorted(journal))
    journals.check_end(stored, own["events"], _bytes(own["head"]))
    history = History.load(PromiseId(run), stored.entries, head=stored.head)
    promises = [_promise(row[1], row[2]) for row in found.get("promise", ())]
    return Case(
        origin=Origin(**values), history=history, frame=_frame(found.get("snapshot", ()), history.version),
        promises={promise.promise: promise for promise in promises},
        payloads={bytes(row[2]): bytes(row[3]) for row in found.get("payload", ())},
        chain_seq=own["chain_seq"], chain_head=_bytes(own["chain_head"]), writes=own["writes"],
        cancel_requested=own["cancel_requested"], ended=own["ended_at"] is not None, state=own["state"], was=own["state"],
        now=_time(own["at"]),
        base_events=history.version, base_chain=own["chain_seq"], stored=list(stored.entries), code=_bytes(own["code"]),
        code_version=own["code_version"], editors=tuple(own["editors"]),
        verdicts_n={row[1]["promise"]: row[1]["n"] for row in found.get("verdict", ())},
        action_digests={row[1]["promise"]: bytes(row[2]) for row in found.get("action", ())},
        receipts_n={(row[1]["key"], row[1]["attempt"]): row[1]["n"] for row in found.get("receipt", ())},
    )  # fmt: skip


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def _frame(rows: Sequence[Row], version: int) -> Frame | None:
    # A snapshot is a cache: one of another version, or of other bytes, is dropped and rebuilt from the journal.
    for _, columns, body, digest in rows:
        if columns["events"] == version and sha256(bytes(body)) == bytes(digest):
            return frame_from(decode(bytes(body)))
    return None


def _promise(columns: dict[str, Any], result: bytes | None) -> Promise:
    values: dict[str, Any] = {name: columns.get(name) for name in _promise_columns}
    for name in ("started_at", "next_eligible_at", "deadline_at"):
        values[name] = _time(values[name]) if values[name] else None
    return Promise(**{**values, "result": None if result is None else bytes(result)})


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
    unit.ring()
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
        "owner = '', lease_until = null, turn = null, asleep = true, "
        "eligible_at = clock_timestamp() + make_interval(secs => least(60, 5 * (faults + 1))) "
        "where tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner and epoch = :epoch",
        most=most, run=lease.run, item=lease.item, stage=lease.stage, owner=lease.owner, epoch=lease.epoch,
    ).rowcount  # fmt: skip
    if mine == 1:
        _say_why(unit, lease, reason)


lost_text = "the worker that had this was lost each time; it may be what ends them"


def count_loss(unit: Unit, lease: Lease, most: int) -> bool:
    """Another worker was lost with this item; after so many it is parked, and says why."""
    row = unit.one(
        "update work set faults = faults + 1, state = case when faults >= :most then 'parked' else state end, "
        "owner = case when faults >= :most then '' else owner end, lease_until = case when faults >= :most then null else lease_until end, "
        "turn = case when faults >= :most then null else turn end, asleep = faults >= :most "
        "where tenant = :tenant and run = :run and item = :item and stage = :stage and owner = :owner and epoch = :epoch "
        "returning state = 'parked'",
        most=most, run=lease.run, item=lease.item, stage=lease.stage, owner=lease.owner, epoch=lease.epoch,
    )  # fmt: skip
    if row is None or not row[0]:
        return False
    _say_why(unit, lease, lost_text)
    return True


def _say_why(unit: Unit, lease: Lease, reason: str) -> None:
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
    order = Order(case, tuple(leases), keeper)
    kept = answered(order, write(unit, [order]))
    if case.leaves_work:
        unit.ring()
    seen = case.intent_seen
    if seen is not None and writes_of_others(unit, case, lock=True) != seen.writes_of_others:
        raise Conflict("what the permit rests on has changed", code="version")
    if seen is not None and seen.payment is not None:
        spending.hold(unit, seen.payment, seen.spent_by_others)
    _begin_children(unit, case)
    _tell_family(unit, case)
    _put_apart(unit, case)
    if unit.check_commit is not None:
        unit.check_commit(unit, case)
    unit.noted += case.noted
    return kept


def _put_apart(unit: Unit, case: Case) -> None:
    for table, names_run in WRITTEN_APART.items():
        for row in case.rows.get(table, ()):
            columns = ["tenant", *(["run"] if names_run else []), *row]
            values = ", ".join(f":{name}" for name in columns)
            unit.run(
                f"insert into {table} ({', '.join(columns)}) values ({values})",
                **({"run": case.origin.run} if names_run else {}), **row,
            )  # fmt: skip


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
    children = sum(birth.origin.root == root for birth in case.births)
    if row is None or row[0] + children > family_runs_max:
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
            "insert into work (tenant, run, item, stage, workspace, workflow, state, rank) select tenant, run, '', 'cancel', workspace, "
            f"workflow, 'ready', {rank} from run where tenant = :tenant and parent = :run and ended_at is null and not cancel_requested "
            "on conflict do nothing",
            run=case.origin.run,
        )
    if case.wakes_parent:
        unit.run(
            "insert into work (tenant, run, item, stage, workspace, workflow, state, rank) select tenant, run, :item, 'advance', "
            f"workspace, workflow, 'ready', {rank} from run where tenant = :tenant and run = :parent on conflict do nothing",
            parent=case.origin.parent, item=case.origin.parent_promise,
        )  # fmt: skip
