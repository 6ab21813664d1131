"""Changes of the product's own rules that people are asked about, and which policy came into force when, by whose word."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from engine.canonical import sha256
from engine.errors import Conflict
from engine.gate.own import Change, fields_from
from engine.ledger.entries import Fact, stamp
from governance.store import entries, templates
from governance.store.case import SYSTEM
from governance.store.unit import Row, Unit


class Moved(Conflict):
    """Whoever proposed it must act: another policy has come into force, so this change is not what people agreed to."""

    code = "policy_moved"


@dataclass(frozen=True, slots=True)
class Activation:
    """A policy that came into force."""

    n: int
    revision: str
    base_revision: str
    how: str  # published | rolled_back | loosened | reverted | adopted
    run: str
    by: str
    at: datetime.datetime
    until: datetime.datetime | None


def put(unit: Unit, run: str, change: Change, by: str) -> None:
    """What this run will do, for ever as it was proposed."""
    unit.run(
        "insert into own_change (tenant, run, operation, target, draft, n, base_revision, revision, bundle, people, minutes, body, by) "
        "values (:tenant, :run, :operation, :target, :draft, :n, :base, :revision, :bundle, :people, :minutes, :body, :by)",
        run=run, operation=change.operation, target=change.target, draft=change.draft, n=change.n, base=change.base_revision,
        revision=change.revision, bundle=change.bundle or None, people=change.people, minutes=change.minutes, body=change.body, by=by,
    )  # fmt: skip


def of_run(unit: Unit, run: str) -> Change | None:
    """The change that a run was begun for; None when it was begun for something else."""
    row = unit.one(
        "select operation, target, body, people, draft, n, base_revision, revision, bundle, minutes from own_change "
        "where tenant = :tenant and run = :run",
        run=run,
    )
    if row is None:
        return None
    bundle = bytes(row[8]) if row[8] is not None else b""
    return Change(
        row[0], row[1], fields_from(bytes(row[2])), row[3], row[4], row[5], row[6], row[7], bundle,
        sha256(bundle).hex() if bundle else "", row[9],
    )  # fmt: skip


def open_run(unit: Unit, operation: str, target: str) -> str:
    """The run that waits for people about this already; empty when there is none."""
    row = unit.one(
        "select c.run from own_change c join run r on r.tenant = c.tenant and r.run = c.run where c.tenant = :tenant and "
        "c.operation = :operation and c.target = :target and r.ended_at is null order by c.at desc limit 1",
        operation=operation, target=target,
    )  # fmt: skip
    return "" if row is None else str(row[0])


def open_runs_of_draft(unit: Unit, draft: str) -> list[str]:
    """Runs that would publish this draft, in the order in which they are locked."""
    rows = unit.all(
        "select c.run from own_change c join run r on r.tenant = c.tenant and r.run = c.run "
        "where c.tenant = :tenant and c.draft = :draft and r.ended_at is null order by c.run",
        draft=draft,
    )
    return [str(row[0]) for row in rows]


def keys_given(unit: Unit, approval: str) -> int:
    """How many people gave a key for this; nobody for no approval at all."""
    row = unit.one(
        "select count(distinct v.person) from vote v join approval a on a.tenant = v.tenant and a.approval = v.approval "
        "where v.tenant = :tenant and v.approval = :approval and v.kind = 'key' and a.status = 'approved'",
        approval=approval,
    )
    return int(row[0]) if row is not None else 0


_columns = "n, revision, base_revision, how, run, by, at, until"


def activations(unit: Unit, limit: int) -> list[Activation]:
    """Which policies came into force by a change, the newest first."""
    rows = unit.all(
        f"select {_columns} from policy_activation where tenant = :tenant order by n desc limit :limit", limit=limit
    )
    return [_activation(row) for row in rows]


def activated_by(unit: Unit, run: str) -> Activation | None:
    """What this run brought into force."""
    row = unit.one(
        f"select {_columns} from policy_activation where tenant = :tenant and run = :run and how <> 'reverted'", run=run
    )
    return None if row is None else _activation(row)


def activate(unit: Unit, change: Change, how: str, *, run: str, by: str) -> Activation:
    """Bring the change's revision into force, if what it was made from still is; a second time by the same run finds the first."""
    live = unit.one("select revision from policy where tenant = :tenant and state = 'active' for update")
    before = activated_by(unit, run) if run else None
    if before is not None:
        return before
    if live is None or live[0] != change.base_revision:
        now = "none" if live is None else str(live[0])[:16]
        raise Moved(
            f"the policy in force is {now} and this was made from {change.base_revision[:16]}",
            field="draft", next_step="`twokeys policy rebase` brings the draft up to date; then propose it again",
        )  # fmt: skip
    digest = sha256(change.bundle)
    templates.put_policy(unit, change.revision, change.bundle, digest, by)
    row = unit.one(
        f"insert into policy_activation (tenant, n, revision, base_revision, how, run, by, until) select :tenant, "
        f"coalesce(max(n), 0) + 1, :revision, :base, :how, :run, :by, case when :minutes > 0 then clock_timestamp() + "
        f"make_interval(mins => :minutes) end from policy_activation where tenant = :tenant returning {_columns}",
        revision=change.revision, base=change.base_revision, how=how, run=run, by=by, minutes=change.minutes,
    )  # fmt: skip
    made = _activation(row)
    if made.until is not None:
        unit.run(
            "insert into due (tenant, kind, ref, at, run) values (:tenant, 'policy', :ref, :at, :run)",
            ref=str(made.n), at=made.until, run=run,
        )  # fmt: skip
    body = {
        "revision": made.revision, "bundle_sha256": digest.hex(), "base_revision": made.base_revision, "draft": change.draft,
        "n": change.n, "how": how, "run": run, "until": stamp(made.until) if made.until else "",
    }  # fmt: skip
    entries.note(unit, "policy/main", Fact("policy.published", SYSTEM, body))
    return made


def revert(unit: Unit, n: int) -> Activation | None:
    """The time of a loosening is over: what was in force before it is again, unless something else has come since."""
    row = unit.one(f"select {_columns} from policy_activation where tenant = :tenant and n = :n", n=n)
    if row is None:
        return None
    loosened = _activation(row)
    if loosened.until is None or unit.now() < loosened.until:
        return None
    live = unit.one("select revision from policy where tenant = :tenant and state = 'active' for update")
    newest = activations(unit, 1)[0]
    if live is None or newest.n != n:
        return None
    bundle = templates.policy(unit, loosened.base_revision).bundle
    back = Change("", "", {}, 1, base_revision=loosened.revision, revision=loosened.base_revision, bundle=bundle)
    return activate(unit, back, "reverted", run="", by=loosened.run)


def _activation(row: Row) -> Activation:
    return Activation(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7])
