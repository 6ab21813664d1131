"""Caps, turns and places: how much each tenant, workspace and workflow may have under way, and who is next."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

# `turn` is null until an item has one; `asleep` while it waits for a time, so that nobody reads past it; `begins` when it
# begins a run. What the previous release inserts has the defaults, and waits for its turn like everything else.
WORK = """
alter table work add column workflow text not null default '', add column begins boolean not null default false,
  add column asleep boolean not null default false, add column turn bigint;
create index work_waiting on work (tenant, workspace, workflow, begins, rank, run)
  where state = 'ready' and turn is null and not asleep and stage <> 'seal';
create index work_asleep on work (eligible_at) where state = 'ready' and asleep;
create index work_next on work (turn, tenant, run) where state = 'ready' and turn is not null;
create index work_ranked on work (tenant, workspace, workflow) where state = 'ready' and turn is not null;
create index work_leased on work (lease_until) where state = 'leased';
create index work_seals on work (eligible_at) where state = 'ready' and stage = 'seal';
"""

# Which runs hold an outcome that nobody knows: the list of runs asked every operation there ever was.
UNKNOWN = "create index promise_unknown on promise (tenant, run) where state = 'unknown'"

CAPS = """
create table cap (
  tenant text not null references tenant, scope text not null check (scope in ('tenant','workspace','workflow')), name text not null,
  max_concurrency int check (max_concurrency >= 1), max_concurrent_runs int check (max_concurrent_runs >= 1),
  max_runs_per_min int check (max_runs_per_min >= 1), max_writes_per_run int check (max_writes_per_run >= 1),
  weight int not null default 1 check (weight between 1 and 1000), primary key (tenant, scope, name));
create table turn (
  tenant text not null, workspace text not null, reached bigint not null default 0, primary key (tenant, workspace))
  with (fillfactor = 70);
create table place (
  tenant text not null, run text not null, workspace text not null, workflow text not null,
  at timestamptz not null default clock_timestamp(), over boolean not null default false, primary key (tenant, run));
create index place_open on place (tenant) where not over;
create index place_over on place (tenant, at) where over;
create table pace (
  tenant text not null references tenant, connector text not null, instance text not null, free_at timestamptz not null,
  primary key (tenant, connector, instance)) with (fillfactor = 70);
alter table connection add column calls_per_min int check (calls_per_min >= 1);
create sequence turn_clock as bigint minvalue 0 start 0;
"""

# Seconds until an outside system may be called; 0 when it may be now, and then the call is counted. A tenth of a minute's calls may
# come at once and the others follow evenly, so that no sixty seconds hold more. It does not wait for the disk: what a crash
# forgets are calls of the last moment.
PACE = """
create function take_pace(t text, c text, i text, per_min int) returns float8 language plpgsql as $$
declare
  burst int := greatest(1, per_min / 10);
  step interval := make_interval(secs => 60.0 / greatest(1, per_min - burst));
begin
  perform set_config('tk.tenant', t, true), set_config('synchronous_commit', 'off', true);
  insert into pace as p (tenant, connector, instance, free_at) values (t, c, i, clock_timestamp() + step)
    on conflict (tenant, connector, instance) do update set free_at = greatest(p.free_at, clock_timestamp()) + step
      where p.free_at <= clock_timestamp() + step * (burst - 1);
  if found then return 0; end if;
  return (select greatest(0.001, extract(epoch from p.free_at - step * (burst - 1) - clock_timestamp())) from pace p
    where p.tenant = t and p.connector = c and p.instance = i);
end $$;
revoke execute on function take_pace(text, text, text, int) from public;
grant execute on function take_pace(text, text, text, int) to tk_app;
"""

# What commit_facts does more, in the text that it has when this runs: a run that ends gives its place back, and work carries
# its workflow, when its run arrived, and whether it sleeps. A turn stays only with what stays in somebody's hands.
COMMIT = (
    ("     where tenant = t and run = one.run;\n  end loop;\n  for one in select * from jsonb_to_recordset(f->'work_done')",
     "     where tenant = t and run = one.run;\n"
     "    if one.ended then update place set over = true where tenant = t and run = one.run and not over; end if;\n"
     "  end loop;\n  for one in select * from jsonb_to_recordset(f->'work_done')"),
    ("faults int, owner text, ttl float8) loop", "faults int, owner text, ttl float8, workflow text, rank bigint) loop"),
    ("insert into work (tenant, run, item, stage, workspace, state, rank, eligible_at,",
     "insert into work (tenant, run, item, stage, workspace, workflow, state, asleep, rank, eligible_at,"),
    ("one.workspace, one.state, (extract(epoch from clock_timestamp()) * 1000000)::bigint,",
     "one.workspace, coalesce(one.workflow, ''), one.state, one.state = 'ready' and one.wait > 0,\n"
     "        coalesce(one.rank, (extract(epoch from clock_timestamp()) * 1000000)::bigint),"),
    ("do update set state = excluded.state, eligible_at", "do update set state = excluded.state, asleep = excluded.asleep,\n"
     "        turn = case when excluded.state = 'leased' then work.turn end, eligible_at"),
)  # fmt: skip

TABLES = ("cap", "turn", "place", "pace")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(WORK)
    op.execute(CAPS)
    op.execute(UNKNOWN)
    text = (
        op.get_bind()
        .exec_driver_sql("select pg_get_functiondef('commit_facts(text, jsonb)'::regprocedure)")
        .scalar_one()
    )
    for before, after in COMMIT:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    op.execute(text.replace(":", "\\:"))
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table in TABLES:
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
    op.execute(PACE)
    for table in ("cap", "turn", "place"):
        op.execute(f"create policy across on {table} to tk_dispatch using (true)")
    op.execute("grant select, insert, update on cap to tk_app")
    op.execute("grant select, insert, update on turn to tk_app")
    op.execute("grant select, insert, update on place, pace to tk_app")
    op.execute("grant select on cap to tk_dispatch")
    op.execute("grant select, insert, update on turn to tk_dispatch")
    op.execute("grant select, insert, delete on place to tk_dispatch")
    op.execute("grant select, update on sequence turn_clock to tk_dispatch")
