"""The caps of a tenant, its workspaces and its workflows: set, read, and why an item that is ready does not begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from engine.catalog.caps import TENANT, WORKFLOW, WORKSPACE, Cap, Scoped, Usage, full, tightest
from engine.program.caps import NAMES, Caps
from governance.store.people import check_workspace
from governance.store.unit import Row, Unit


@dataclass(frozen=True, slots=True)
class Set:
    """What is set for one scope; `of` is the tenant's name, a workspace or a workflow."""

    scope: str
    of: str
    caps: Caps
    weight: int


def listed(unit: Unit) -> list[Set]:
    """Everything that is set, the widest scope first."""
    rows = unit.all(
        f"select scope, name, {', '.join(NAMES)}, weight from cap where tenant = :tenant "
        "order by array_position(array['tenant','workspace','workflow'], scope), name"
    )
    return [Set(row[0], row[1] or unit.tenant, Caps(*row[2:-1]), row[-1]) for row in rows]


def over(unit: Unit, workspace: str, workflow: str) -> list[Scoped]:
    """The caps that hold for a workflow in a workspace, the widest scope first."""
    wanted = {(TENANT, unit.tenant), (WORKSPACE, workspace), (WORKFLOW, workflow)}
    return [Scoped(each.scope, each.of, each.caps) for each in listed(unit) if (each.scope, each.of) in wanted]


def put(unit: Unit, scope: str, name: str, caps: Caps, weight: int) -> None:
    """Set all of them for one scope. Runs that have begun under no cap are given their places, so that they count from now on."""
    if scope == WORKSPACE:
        check_workspace(unit, name)
    unit.ring()
    # The lock under which turns are given: what begins meanwhile has its place, or begins after this.
    unit.run("insert into turn (tenant, workspace) values (:tenant, '') on conflict do nothing")
    unit.run("select 1 from turn where tenant = :tenant and workspace = '' for update")
    columns = ", ".join(NAMES)
    unit.run(
        f"insert into cap (tenant, scope, name, {columns}, weight) values (:tenant, :scope, :name, "
        f"{', '.join(f':{each}' for each in NAMES)}, :weight) on conflict (tenant, scope, name) do update set "
        f"{', '.join(f'{each} = excluded.{each}' for each in NAMES)}, weight = excluded.weight",
        scope=scope, name="" if scope == TENANT else name, weight=weight, **asdict(caps),
    )  # fmt: skip
    if caps.max_concurrent_runs is not None or caps.max_runs_per_min is not None:
        unit.run(
            "insert into place (tenant, run, workspace, workflow, at) select r.tenant, r.run, r.workspace, r.workflow, "
            "coalesce(r.started_at, clock_timestamp()) from run r where r.tenant = :tenant and r.ended_at is null and r.parent = '' "
            "and (r.started_at is not null or exists (select from work w where w.tenant = r.tenant and w.run = r.run and w.begins "
            "and (w.turn is not null or w.state = 'leased'))) on conflict do nothing"
        )


def put_workflow(unit: Unit, workflow: str, own: Caps) -> None:
    """The caps of the version that starts from now on; whatever its tenant allows less of holds beside them."""
    if own != Caps() or any((each.scope, each.of) == (WORKFLOW, workflow) for each in listed(unit)):
        put(unit, WORKFLOW, workflow, own, 1)


def writes_cap(found: Sequence[Set], workspace: str, workflow: str, own: Caps) -> Cap | None:
    """The cap on writes that holds for a run: of its tenant, its workspace and the version it is pinned to, the smallest."""
    above = [
        Scoped(each.scope, each.of, each.caps)
        for each in found
        if each.scope == TENANT or (each.scope, each.of) == (WORKSPACE, workspace)
    ]
    return tightest("max_writes_per_run", [*above, Scoped(WORKFLOW, workflow, own)])


_held_up = """
select w.item, w.stage, w.workspace, w.workflow,
       w.begins and not exists (select from place p where p.tenant = w.tenant and p.run = w.run)
  from work w where w.tenant = :tenant and w.run = :run and w.state = 'ready' and w.turn is null and w.stage <> 'seal'
   and w.eligible_at <= clock_timestamp()
"""
_used = """
select workspace, workflow, sum(busy), sum(runs), sum(fresh) from (
  select workspace, workflow, 1 as busy, 0 as runs, 0 as fresh from work
   where tenant = :tenant and stage <> 'seal' and state = 'leased'
  union all select workspace, workflow, 1, 0, 0 from work where tenant = :tenant and state = 'ready' and turn is not null
  union all select workspace, workflow, 0, 1, (at > clock_timestamp() - interval '1 minute')::int from place
   where tenant = :tenant and not over
  union all select workspace, workflow, 0, 0, 1 from place
   where tenant = :tenant and over and at > statement_timestamp() - interval '1 minute') each
 group by workspace, workflow
"""


def held_up(unit: Unit, run: str) -> Mapping[str, Cap]:
    """The items of a run that are ready and that a cap holds back now, each with that cap; by operation, '' for the run itself."""
    items = unit.all(_held_up, run=run)
    found: dict[str, Cap] = {}
    if not items:
        return found
    used = _usage(unit.all(_used))
    for item, _, workspace, workflow, begins in items:
        for each in over(unit, workspace, workflow):
            name = "" if each.scope == TENANT else each.of
            cap = full(each, used.get((each.scope, name), Usage()), begins=begins)
            if cap is not None:
                found.setdefault(item, cap)
                break
    return found


def no_place(unit: Unit, workspace: str, workflow: str) -> Cap | None:
    """The cap that leaves no place for one more run of this workflow; None when there is one."""
    scoped = over(unit, workspace, workflow)
    if all(each.caps.max_concurrent_runs is None for each in scoped):
        return None
    used = _usage(unit.all(_used))
    for each in scoped:
        most, name = each.caps.max_concurrent_runs, "" if each.scope == TENANT else each.of
        if most is not None and used.get((each.scope, name), Usage()).runs >= most:
            return Cap("max_concurrent_runs", most, each.scope, each.of)
    return None


def _usage(rows: Sequence[Row]) -> dict[tuple[str, str], Usage]:
    found: dict[tuple[str, str], Usage] = {}
    for workspace, workflow, busy, runs, fresh in rows:
        for scope in ((TENANT, ""), (WORKSPACE, workspace), (WORKFLOW, workflow)):
            now = found.get(scope, Usage())
            found[scope] = Usage(now.concurrency + int(busy), now.runs + int(runs), now.runs_this_minute + int(fresh))
    return found
