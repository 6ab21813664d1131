"""Caps, turns and places: how much each tenant, workspace and workflow may have under way, and who is next."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

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

TABLES = ("cap", "turn", "place", "pace")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(WORK)
    op.execute(CAPS)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table in TABLES:
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
    for table in ("cap", "turn", "place"):
        op.execute(f"create policy across on {table} to tk_dispatch using (true)")
    op.execute("grant select, insert, update on cap to tk_app")
    op.execute("grant select, insert, update on turn to tk_app")
    op.execute("grant select, insert, update on place, pace to tk_app")
    op.execute("grant select on cap to tk_dispatch")
    op.execute("grant select, insert, update on turn to tk_dispatch")
    op.execute("grant select, insert, delete on place to tk_dispatch")
    op.execute("grant select, update on sequence turn_clock to tk_dispatch")
