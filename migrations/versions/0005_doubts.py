"""Doubts: attempts whose outcome nobody knows, and what each person said of them; both are kept as they were written."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

TABLES = """
create table doubt (
  tenant text not null, doubt text not null, run text not null, promise text not null, attempt int not null,
  action_digest bytea not null, at timestamptz not null default clock_timestamp(),
  primary key (tenant, doubt), foreign key (tenant, run) references run);
create index doubt_run on doubt (tenant, run, promise);
create table word (
  tenant text not null, doubt text not null, n int not null, run text not null, person text not null,
  how text not null check (how in ('probe','happened','did_not','retry')),
  at timestamptz not null, via text not null, identity text not null, reason text not null,
  primary key (tenant, doubt, n), foreign key (tenant, doubt) references doubt);
-- An operation may be mended more than once: each time is a task of its own, and the primary key stays its identity.
create index work_parked on work (tenant, eligible_at) where state = 'parked';
drop index task_promise;
create index task_promise on task (tenant, run, promise);
create unique index word_once on word (tenant, doubt, person, how) where how <> 'probe';
create index word_run on word (tenant, run);
"""
# What nobody knows and is parked is looked at once more: whoever looks asks people, which an earlier release did not. The owner
# sees rows without a tenant for these statements only, in this transaction.
ASK = """
alter table work no force row level security;
alter table promise no force row level security;
update work w set state = 'ready', eligible_at = clock_timestamp() from promise p
 where p.tenant = w.tenant and p.run = w.run and p.promise = w.item and p.state = 'unknown' and w.state = 'parked';
alter table work force row level security;
alter table promise force row level security;
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    op.execute(ASK)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table in ("doubt", "word"):
        op.execute(
            f"create trigger append_only before update or delete on {table} for each row execute function refuse_change()"
        )
        op.execute(
            f"create trigger never_empty before truncate on {table} for each statement execute function refuse_change()"
        )
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
        op.execute(f"grant select, insert on {table} to tk_app")
