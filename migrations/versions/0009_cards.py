"""Cards in Slack: what each of them shows, what its people were told, and its copies in direct messages."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"

TABLES = """
alter table card add column shown text not null default '', add column told text not null default '',
  add column settled boolean not null default false;
create index card_unsettled on card (tenant, approval) where not settled;
create index outbox_due_tenant on outbox_due (tenant, eligible_at, id);
create table card_copy (
  tenant text not null, approval text not null, person text not null, member text not null, channel text not null default '',
  ts text not null default '', shown text not null default '', primary key (tenant, approval, person),
  foreign key (tenant, person) references person) with (fillfactor = 70);
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table card_copy enable row level security")
    op.execute("alter table card_copy force row level security")
    op.execute(f"create policy own on card_copy using ({mine}) with check ({mine})")
    op.execute("grant select, insert, update on card_copy to tk_app")
