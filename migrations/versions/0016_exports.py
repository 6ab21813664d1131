"""Exports: where a tenant's log goes besides the bucket, and the one position that each of them has reached."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"

# `sending`: the end of the slice that is on its way, fixed before it leaves, so that whoever sends it again sends the same.
TABLES = """
create table export (
  tenant text not null references tenant, name text not null, target text not null check (target in ('s3','webhook')),
  form text not null check (form in ('plain','cloudevents')), url text not null default '', secret_sealed bytea not null default '',
  position bigint not null default 0 check (position >= 0), sending bigint, epoch bigint not null default 0,
  state text not null default 'active' check (state in ('active','paused','stopped')), tries int not null default 0,
  last_error text not null default '', eligible_at timestamptz not null default clock_timestamp(), delivered_at timestamptz,
  check (sending > position), primary key (tenant, name));
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table export enable row level security")
    op.execute("alter table export force row level security")
    op.execute(f"create policy own on export using ({mine}) with check ({mine})")
    op.execute("grant select, insert, update, delete on export to tk_app")
