"""What payments come to in a day: each intent of a payment leaves its amount, so that a cap on a day holds over runs that race."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"

TABLES = """
create table spending (
  tenant text not null, key text not null, turn int not null, run text not null, promise text not null, currency text not null,
  amount_minor bigint not null check (amount_minor > 0), at timestamptz not null default clock_timestamp(),
  primary key (tenant, key, turn), foreign key (tenant, run) references run);
create index spending_day on spending (tenant, currency, at);
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table spending enable row level security")
    op.execute("alter table spending force row level security")
    op.execute(f"create policy own on spending using ({mine}) with check ({mine})")
    op.execute("grant select, insert on spending to tk_app")
    op.execute(
        "create trigger append_only before update or delete on spending for each row execute function refuse_change()"
    )
    op.execute(
        "create trigger never_empty before truncate on spending for each statement execute function refuse_change()"
    )
