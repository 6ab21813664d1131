"""Drafts of policies: who changed what and when, how far a replay has come, and what a draft in the shadow would have said."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

TABLES = """
create table policy_draft (
  tenant text not null references tenant, draft text not null, base_revision text not null, created_by text not null,
  created_at timestamptz not null default clock_timestamp(),
  state text not null default 'open' check (state in ('open','published','withdrawn')), revision text not null default '',
  shadow boolean not null default false, primary key (tenant, draft));
create index policy_draft_revision on policy_draft (tenant, revision) where revision <> '';
create unique index policy_draft_shadow on policy_draft (tenant) where shadow;
create table policy_edit (
  tenant text not null, draft text not null, n int not null check (n >= 1), author text not null, digest bytea not null,
  body bytea not null, at timestamptz not null default clock_timestamp(),
  primary key (tenant, draft, n), foreign key (tenant, draft) references policy_draft);
create table policy_replay (
  tenant text not null, draft text not null, n int not null, base_revision text not null, revision text not null,
  days int, since timestamptz, until timestamptz not null, run text not null default '', promise text not null default '',
  verdict_n int not null default 0, seen bigint not null default 0, done boolean not null default false,
  body bytea not null, changed_at timestamptz not null default clock_timestamp(),
  primary key (tenant, draft, n, base_revision), foreign key (tenant, draft, n) references policy_edit) with (fillfactor = 70);
create table policy_shadow (
  tenant text not null, draft text not null, n int not null, request text not null,
  how text not null check (how in ('tighter','looser','fault')), old text not null, new text not null, body bytea not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, draft, n, request), foreign key (tenant, draft, n) references policy_edit);
create trigger append_only before update or delete on policy_edit for each row execute function refuse_change();
create trigger never_empty before truncate on policy_edit for each statement execute function refuse_change();
"""
GRANTS = {
    "policy_draft": "select, insert, update (state, revision, shadow)",
    "policy_edit": "select, insert",
    "policy_shadow": "select, insert",
    "policy_replay": "select, insert, update",
}


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table, rights in GRANTS.items():
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
        op.execute(f"grant {rights} on {table} to tk_app")
