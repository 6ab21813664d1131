"""Schedules: which workflow somebody wants started when, with what, and when it is due next."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"

# The input is what somebody gave, as canonical bytes; which moments a schedule has fired at stands in the log and in the
# trigger references of its runs.
TABLES = """
create table schedule (
  tenant text not null references tenant, schedule text not null, workflow text not null, kind text not null check (kind in ('once','cron')),
  at text not null, zone text not null, zones text not null, catch_up text not null check (catch_up in ('skip','one','all')),
  most int not null check (most between 1 and 100), overlap text not null check (overlap in ('skip','queue','cancel')),
  input bytea not null, person text not null, next_at timestamptz, waits text not null default '',
  state text not null default 'active' check (state in ('active','done','dropped')),
  created_at timestamptz not null default clock_timestamp(), primary key (tenant, schedule));
create index schedule_of on schedule (tenant, workflow) where state = 'active';
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table schedule enable row level security")
    op.execute("alter table schedule force row level security")
    op.execute(f"create policy own on schedule using ({mine}) with check ({mine})")
    op.execute("grant select, insert on schedule to tk_app")
    op.execute("grant update (next_at, waits, state) on schedule to tk_app")
