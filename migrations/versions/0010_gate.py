"""The gate in full: absences and who stands in, edits of proposals, what a voter had seen, broken glass and its reviews, reminders."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"

# `away`: the newest row of a person holds. `mandate`: a key that was turned for somebody who was away. `action_edit`: what a
# person changed of a proposal before it was approved; its values are a payload of the run. `viewing`: who had the whole request
# before them. `attention`: how each decision was made. `glass`: one key where policy wanted more, with the review that it owes.
TABLES = """
create table gate (
  tenant text primary key references tenant, rule_author boolean not null default true, zone text not null default 'UTC',
  quiet_from int not null default 0 check (quiet_from between 0 and 1439),
  quiet_until int not null default 0 check (quiet_until between 0 and 1439),
  review_seconds int not null default 86400 check (review_seconds between 1 and 2592000));
create table away (
  tenant text not null, person text not null, n int not null, delegate text not null default '',
  from_at timestamptz not null, until_at timestamptz not null, by_person text not null,
  at timestamptz not null default clock_timestamp(), check (from_at <= until_at),
  primary key (tenant, person, n), foreign key (tenant, person) references person);
create table mandate (
  tenant text not null, approval text not null, person text not null, for_person text not null,
  primary key (tenant, approval, person), foreign key (tenant, approval) references approval);
create table action_edit (
  tenant text not null, run text not null, promise text not null, n int not null, approval text not null, person text not null,
  at timestamptz not null, via text not null, identity text not null, fields bytea not null, reason text not null,
  primary key (tenant, run, promise, n), foreign key (tenant, approval) references approval);
create table viewing (
  tenant text not null, approval text not null, person text not null, via text not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, approval, person), foreign key (tenant, approval) references approval);
create table attention (
  tenant text not null, approval text not null, person text not null, kind text not null, at timestamptz not null,
  seconds int not null, viewed boolean not null,
  primary key (tenant, approval, person, kind), foreign key (tenant, approval) references approval);
create index attention_person on attention (tenant, person, at);
create table glass (
  tenant text not null, approval text not null, run text not null, promise text not null, person text not null,
  at timestamptz not null, due_at timestamptz not null, ticket text not null, reason text not null,
  primary key (tenant, approval), foreign key (tenant, approval) references approval);
create table review (
  tenant text not null, approval text not null, person text not null, how text not null check (how in ('justified','unjustified')),
  at timestamptz not null, via text not null, identity text not null, reason text not null,
  primary key (tenant, approval, person), foreign key (tenant, approval) references glass);
"""
HISTORY = ("away", "mandate", "action_edit", "viewing", "attention", "glass", "review")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(TABLES)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table in (*HISTORY, "gate"):
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
        op.execute(f"grant select, insert{', update' if table == 'gate' else ''} on {table} to tk_app")
    for table in HISTORY:
        op.execute(
            f"create trigger append_only before update or delete on {table} for each row execute function refuse_change()"
        )
        op.execute(
            f"create trigger never_empty before truncate on {table} for each statement execute function refuse_change()"
        )
