"""The tree above the leaves: the root of every full tile of 256, so that a proof needs no read of the whole log."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

# Level 1 is over 256 entries, level 2 over 256 of level 1. What is missing is worked out from the level below and stored
# by the next sequencer that comes by, so that a release that knows nothing of it may go on writing the log meanwhile.
TABLES = """
create table node (
  tenant text not null, level int not null check (level between 1 and 7), position bigint not null, hash bytea not null,
  primary key (tenant, level, position));
create trigger append_only before update or delete on node for each row execute function refuse_change();
create trigger never_empty before truncate on node for each statement execute function refuse_change();
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    op.execute("alter table node enable row level security")
    op.execute("alter table node force row level security")
    op.execute(f"create policy own on node using ({mine}) with check ({mine})")
    op.execute("grant select on node to tk_app")
    op.execute("grant select, insert on node to tk_sequencer")
