"""What the product does to its own rules: changes that people were asked about, revisions that came into force, and freezes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TABLES = """
create table own_change (
  tenant text not null, run text not null, operation text not null, target text not null, draft text not null default '',
  n int not null default 0, base_revision text not null default '', revision text not null default '', bundle bytea,
  people int not null check (people between 1 and 2), minutes int not null default 0, body bytea not null, by text not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, run), foreign key (tenant, run) references run);
create index own_change_draft on own_change (tenant, draft) where draft <> '';
create table policy_activation (
  tenant text not null references tenant, n bigint not null check (n >= 1), revision text not null, base_revision text not null,
  how text not null check (how in ('published','rolled_back','loosened','reverted','adopted')), run text not null default '',
  by text not null, at timestamptz not null default clock_timestamp(), until timestamptz,
  primary key (tenant, n), foreign key (tenant, revision) references policy);
create unique index policy_activation_run on policy_activation (tenant, run, how) where run <> '';
create table standstill (
  tenant text not null references tenant, id text not null, scope text not null
  check (scope in ('tenant','workspace','connector','kill_switch')), name text not null default '', reason text not null,
  by text not null, at timestamptz not null default clock_timestamp(), ended_at timestamptz, ended_by text not null default '',
  primary key (tenant, id));
create unique index standstill_open on standstill (tenant, scope, name) where ended_at is null;
create trigger append_only before update or delete on own_change for each row execute function refuse_change();
create trigger never_empty before truncate on own_change for each statement execute function refuse_change();
create trigger append_only before update or delete on policy_activation for each row execute function refuse_change();
create trigger never_empty before truncate on policy_activation for each statement execute function refuse_change();
"""
GRANTS = {
    "own_change": "select, insert",
    "policy_activation": "select, insert",
    "standstill": "select, insert, update (ended_at, ended_by)",
}
# `own` says that a permit is for what mends a standstill: the kill switch stops everything else. Whatever else the function
# has become stays as it is.
SEEN = (
    (
        """select s.revision, s."freeze", s.persons, array_agg(s.run) as runs""",
        """select s.revision, s."freeze", s.persons, coalesce(s.own, false) as own, array_agg(s.run) as runs""",
    ),
    (
        """as s(run text, revision text, "freeze" text, persons text[])""",
        """as s(run text, revision text, "freeze" text, persons text[], own boolean)""",
    ),
    (
        """group by s.revision, s."freeze", s.persons loop""",
        """group by s.revision, s."freeze", s.persons, coalesce(s.own, false) loop""",
    ),
    ("""and not n.kill_switch and""", """and (one.own or not n.kill_switch) and"""),
)


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
    op.execute("grant update (base_revision) on policy_draft to tk_app")
    found = op.get_bind().execute(
        sa.text("select pg_get_functiondef(oid) from pg_proc where proname = 'commit_facts' and pronargs = 2")
    )
    for (text,) in found.all():
        for before, after in SEEN:
            if text.count(before) != 1:
                raise RuntimeError(f"commit_facts does not say {before!r} once")
            text = text.replace(before, after)
        op.get_bind().exec_driver_sql(text.replace("%", "%%"))
