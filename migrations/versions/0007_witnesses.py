"""Cosignatures: what witnesses outside our control have seen of each tenant's log."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
create table cosignature (
  tenant text not null, size bigint not null, witness text not null, line bytea not null,
  at timestamptz not null default clock_timestamp(), primary key (tenant, size, witness),
  foreign key (tenant, size) references checkpoint);
create index cosignature_newest on cosignature (tenant, witness, size desc);
create trigger append_only before update or delete on cosignature for each row execute function refuse_change();
create trigger never_empty before truncate on cosignature for each statement execute function refuse_change();
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table cosignature enable row level security")
    op.execute("alter table cosignature force row level security")
    op.execute(f"create policy own on cosignature using ({mine}) with check ({mine})")
    op.execute("grant select, insert on cosignature to tk_app")
