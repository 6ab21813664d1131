"""The foundation: tenants and people, templates, runs and journals, work, the gate, the log, evidence."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

ROLES = """
do $$ begin
  if not exists (select from pg_roles where rolname = 'tk_app') then create role tk_app nologin nosuperuser nobypassrls; end if;
  if not exists (select from pg_roles where rolname = 'tk_dispatch') then create role tk_dispatch nologin nosuperuser nobypassrls; end if;
  if not exists (select from pg_roles where rolname = 'tk_sequencer') then create role tk_sequencer nologin nosuperuser nobypassrls; end if;
end $$;
grant tk_dispatch to tk_app with inherit false, set true;
grant tk_sequencer to tk_app with inherit false, set true;
"""

PEOPLE = """
create table tenant (
  tenant text primary key, name text not null, environment text not null check (environment in ('prod','staging','dev')),
  kill_switch boolean not null default false, freeze_id text not null default '', salt_key bytea not null,
  created_at timestamptz not null default clock_timestamp());
create table workspace (
  tenant text not null references tenant, workspace text not null, name text not null,
  created_at timestamptz not null default clock_timestamp(), primary key (tenant, workspace));
create table person (
  tenant text not null references tenant, person text not null, name text not null,
  level int not null check (level between 1 and 6), kind text not null check (kind in ('human','service')),
  active boolean not null default true, read_only boolean not null default false,
  created_at timestamptz not null default clock_timestamp(), primary key (tenant, person));
create table identity (
  tenant text not null, kind text not null check (kind in ('slack','token')), ref text not null, person text not null,
  label text not null default '', created_at timestamptz not null default clock_timestamp(), revoked_at timestamptz,
  primary key (tenant, kind, ref), foreign key (tenant, person) references person);
create index identity_person on identity (tenant, person);
create table grp (
  tenant text not null references tenant, grp text not null, name text not null, primary key (tenant, grp));
create table membership (
  tenant text not null, grp text not null, person text not null, primary key (tenant, grp, person),
  foreign key (tenant, grp) references grp, foreign key (tenant, person) references person);
create table route (
  kind text not null check (kind in ('slack','token','source')), ref text not null, tenant text not null,
  primary key (kind, ref));
create table signing_key (
  tenant text not null references tenant, purpose text not null, key_id text not null, public bytea not null,
  sealed bytea not null, state text not null check (state in ('active','retired')),
  created_at timestamptz not null default clock_timestamp(), primary key (tenant, purpose, key_id));
create table installation (
  tenant text not null references tenant, team text not null, app_id text not null, bot_user text not null,
  token_sealed bytea not null, channel text not null, state text not null default 'active',
  primary key (tenant, team));
create table connection (
  tenant text not null references tenant, connector text not null, instance text not null, base_url text not null,
  secret_sealed bytea not null, primary key (tenant, connector));
create table source (
  tenant text not null references tenant, source text not null, kind text not null, secret_sealed bytea not null,
  workspace text not null, workflow text not null, person text not null, owner text not null,
  primary key (tenant, source), foreign key (tenant, person) references person, foreign key (tenant, owner) references person);
create table policy (
  tenant text not null references tenant, revision text not null, bundle bytea not null, bundle_sha256 bytea not null,
  state text not null check (state in ('active','retired')), activated_by text not null,
  activated_at timestamptz not null default clock_timestamp(), primary key (tenant, revision));
create unique index policy_active on policy (tenant) where state = 'active';
create table template (
  tenant text not null references tenant, name text not null, version text not null,
  kind text not null check (kind in ('definition','function')), digest bytea not null,
  body bytea not null, authored text not null, state text not null check (state in ('draft','active','paused','archived')),
  created_by text not null, created_at timestamptz not null default clock_timestamp(),
  primary key (tenant, name, version));
create unique index template_active on template (tenant, name) where state in ('active','paused');
create index template_digest on template (tenant, digest);
"""

RUNS = """
create table run (
  tenant text not null references tenant, run text not null, workspace text not null, workflow text not null,
  version text not null, definition bytea not null, trigger_type text not null, trigger_ref text not null,
  started_by text not null, on_behalf_of text not null default '', owner text not null,
  salt_key bytea not null, execution_key text not null, input bytea not null,
  events int not null default 0, head bytea not null, status text not null default '', state text not null default 'queued',
  chain_seq int not null default 0, chain_head bytea not null, writes int not null default 0,
  cancel_requested boolean not null default false, error text not null default '',
  waits_for text not null default '', waits_until timestamptz,
  created_at timestamptz not null default clock_timestamp(), started_at timestamptz, ended_at timestamptz,
  primary key (tenant, run)) with (fillfactor = 70);
create unique index run_trigger on run (tenant, workflow, trigger_type, trigger_ref);
create index run_recent on run (tenant, created_at desc, run);
create index run_open on run (tenant) where ended_at is null;
create table chain (
  tenant text not null references tenant, chain text not null, seq int not null, head bytea not null,
  primary key (tenant, chain)) with (fillfactor = 70);
create table journal (
  tenant text not null, run text not null, first_seq int not null, events int not null, body bytea not null,
  head bytea not null, at timestamptz not null default clock_timestamp(),
  primary key (tenant, run, first_seq), foreign key (tenant, run) references run);
create table snapshot (
  tenant text not null, run text not null, events int not null, body bytea not null, sha256 bytea not null,
  primary key (tenant, run)) with (fillfactor = 70);
create table payload (
  tenant text not null, digest bytea not null, run text not null, body bytea not null,
  primary key (tenant, run, digest), foreign key (tenant, run) references run);
create table promise (
  tenant text not null, run text not null, promise text not null, step text not null, step_index int not null,
  tool text not null, key text not null default '', kind text not null, state text not null check (state in
    ('ready','running','waiting_approval','waiting_task','unknown','failed_retryable','succeeded','failed_terminal','canceled')),
  attempt int not null default 0, started_at timestamptz, rev int not null default 0, approval text not null default '', verdict_n int not null default 0,
  last_error text not null default '', next_eligible_at timestamptz, deadline_at timestamptz,
  result bytea, primary key (tenant, run, promise), foreign key (tenant, run) references run) with (fillfactor = 70);
create table work (
  tenant text not null, run text not null, item text not null, stage text not null check (stage in ('advance','judge','ask','execute','seal')),
  workspace text not null, state text not null check (state in ('ready','leased','parked')), rank bigint not null,
  eligible_at timestamptz not null default clock_timestamp(), faults int not null default 0,
  owner text not null default '', epoch bigint not null default 0, lease_until timestamptz,
  primary key (tenant, run, item, stage)) with (fillfactor = 70);
create index work_runnable on work (rank, tenant, run) where state in ('ready','leased');
create table due (
  tenant text not null, kind text not null, ref text not null, at timestamptz not null, run text not null default '',
  primary key (tenant, kind, ref));
create index due_at on due (at);
create view step with (security_invoker = true) as
  select p.tenant, p.run as run_id, p.promise, p.step as step_id, p.step_index, p.tool as tool_name,
         p.key as idempotency_key, p.state as status, p.attempt, p.last_error, p.next_eligible_at,
         nullif(w.owner, '') as lease_owner, w.lease_until as lease_expires_at
    from promise p left join work w on w.tenant = p.tenant and w.run = p.run and w.item = p.promise and w.state = 'leased';
"""

GATE = """
create table action (
  tenant text not null, run text not null, promise text not null, rev int not null, digest bytea not null, body bytea not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, run, promise, rev), foreign key (tenant, run) references run);
create table verdict (
  tenant text not null, run text not null, promise text not null, n int not null, purpose text not null, effect text not null,
  action_digest bytea not null, revision text not null, body bytea not null, input bytea not null, findings bytea not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, run, promise, n), foreign key (tenant, run) references run);
create table approval (
  tenant text not null, approval text not null, run text not null, promise text not null, action_digest bytea not null,
  card_digest bytea not null, card_rev int not null default 1, tier text not null check (tier in ('low','med','high')),
  keys int not null check (keys >= 1), body bytea not null, card bytea not null, verdict_n int not null,
  status text not null check (status in ('requested','approved','rejected','expired','canceled')),
  requested_at timestamptz not null default clock_timestamp(), expires_at timestamptz not null, decided_at timestamptz,
  primary key (tenant, approval), foreign key (tenant, run) references run) with (fillfactor = 70);
create unique index approval_open on approval (tenant, run, promise) where status = 'requested';
create index approval_waiting on approval (tenant, expires_at) where status = 'requested';
create index approval_run on approval (tenant, run);
create table vote (
  tenant text not null, approval text not null, person text not null, kind text not null check (kind in ('key','reject','stop')),
  at timestamptz not null, action_digest bytea not null, card_digest bytea not null, card_rev int not null,
  policy_revision text not null, blocks_sha256 text not null, via text not null, identity text not null, reason text not null,
  primary key (tenant, approval, person, kind), foreign key (tenant, approval) references approval);
create table task (
  tenant text not null, task text not null, run text not null, promise text not null, form_digest bytea not null, body bytea not null,
  groups text[] not null, status text not null check (status in ('asked','answered','expired','canceled')),
  asked_at timestamptz not null, expires_at timestamptz not null, decided_at timestamptz,
  answered_by text not null default '', via text not null default '', answer bytea,
  primary key (tenant, task), foreign key (tenant, run) references run) with (fillfactor = 70);
create unique index task_promise on task (tenant, run, promise);
create index task_waiting on task (tenant, expires_at) where status = 'asked';
create table refusal (
  tenant text not null, approval text not null, person text not null, code text not null, minute timestamptz not null,
  count int not null, told int not null, primary key (tenant, approval, person, code, minute));
create table intent (
  tenant text not null, key text not null, turn int not null, run text not null, promise text not null, action_digest bytea not null,
  at timestamptz not null default clock_timestamp(), primary key (tenant, key, turn), foreign key (tenant, run) references run);
create table receipt (
  tenant text not null, key text not null, attempt int not null, n int not null, run text not null, promise text not null,
  status text not null check (status in ('ok','error','timeout','rejected','unknown')), action_digest bytea not null,
  body bytea not null, signature bytea not null, key_id text not null, at timestamptz not null default clock_timestamp(),
  primary key (tenant, key, attempt, n), foreign key (tenant, run) references run);
create unique index receipt_success on receipt (tenant, key) where status = 'ok';
create index receipt_run on receipt (tenant, run);
create index receipt_recent on receipt (tenant, at) where status = 'ok';
create table card (
  tenant text not null, approval text not null, channel text not null default '', ts text not null default '',
  wanted int not null default 1, rendered int not null default 0,
  blocks_sha256 text not null default '', primary key (tenant, approval)) with (fillfactor = 70);
create table outbox (
  tenant text not null, id bigint generated always as identity, kind text not null, ref text not null default '', body bytea not null,
  tries int not null default 0, last_error text not null default '', state text not null default 'ready' check (state in ('ready','failed')),
  primary key (tenant, id));
create table outbox_due (
  tenant text not null, id bigint not null, eligible_at timestamptz not null default clock_timestamp(), primary key (tenant, id));
create index outbox_due_at on outbox_due (eligible_at);
create table inbox (
  tenant text not null, dedupe text not null, answer bytea not null, at timestamptz not null default clock_timestamp(),
  primary key (tenant, dedupe));
"""

LOG = """
create table entry_pending (
  tenant text not null, id bigint generated always as identity (cache 1), chain text not null, chain_seq int not null,
  body bytea not null, leaf bytea not null, primary key (tenant, id));
create unique index entry_pending_chain on entry_pending (tenant, chain, chain_seq);
create table entry (
  tenant text not null, position bigint not null, chain text not null, chain_seq int not null, body bytea not null, leaf bytea not null,
  primary key (tenant, position), unique (tenant, chain, chain_seq));
create table audit_head (
  tenant text primary key, size bigint not null default 0, frontier bytea[] not null default '{}', root bytea not null default '\\x');
create table checkpoint (
  tenant text not null, size bigint not null, root bytea not null, frontier bytea[] not null, note bytea, published_at timestamptz,
  at timestamptz not null default clock_timestamp(), primary key (tenant, size));
create table bundle (
  tenant text not null, run text not null, state text not null check (state in ('frozen','built','uploaded','sealed')),
  checkpoint_size bigint not null, sha256 bytea, size bigint, body bytea, object_key text not null default '',
  version_id text not null default '', retain_until timestamptz, frozen_at timestamptz not null default clock_timestamp(),
  sealed_at timestamptz, primary key (tenant, run), foreign key (tenant, run) references run);
"""

GUARDS = """
create function refuse_change() returns trigger language plpgsql as $$
begin raise exception '% is append-only', tg_table_name using errcode = 'TK001'; end $$;
create function note_once() returns trigger language plpgsql as $$
begin
  if old.tenant <> new.tenant or old.size <> new.size or old.root <> new.root or old.frontier <> new.frontier or (old.note is not null and old.note is distinct from new.note)
  then raise exception 'a checkpoint is written once' using errcode = 'TK001'; end if;
  return new;
end $$;
create trigger note_once before update on checkpoint for each row execute function note_once();
do $$ declare t text; begin
  foreach t in array array['journal','entry','vote','receipt','intent','verdict','action'] loop
    execute format('create trigger append_only before update or delete on %I for each row execute function refuse_change()', t);
    execute format('create trigger never_empty before truncate on %I for each statement execute function refuse_change()', t);
  end loop;
end $$;
"""

TENANT_TABLES = (
    "tenant workspace person identity grp membership route signing_key installation connection source policy template run chain "
    "journal snapshot payload promise work due action verdict approval vote task refusal intent receipt card outbox outbox_due inbox "
    "entry_pending entry audit_head checkpoint bundle"
).split()
# What the application may do where it may not do everything: only the sequencer writes the log and its head, a stored
# payload, bundle, definition or public key never changes, and what has a state changes nothing but that.
GRANTS = {
    **dict.fromkeys(
        ("journal", "vote", "receipt", "intent", "verdict", "action", "payload", "entry_pending", "route"),
        "select, insert",
    ),
    "entry": "select",
    "audit_head": "select, insert",
    "checkpoint": "select, update (note, published_at)",
    "task": "select, insert, update (status, decided_at, answered_by, via, answer)",
    "template": "select, insert, update (state)",
    "policy": "select, insert, update (state)",
    "signing_key": "select, insert, update (state)",
}
DELETABLE = ("work", "due", "membership", "outbox", "outbox_due", "inbox", "refusal")
DISPATCH = ("work", "route", "due", "outbox_due", "audit_head")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    for block in (ROLES, PEOPLE, RUNS, GATE, LOG, GUARDS):
        op.execute(block)
    mine = "tenant = nullif(current_setting('tk.tenant', true), '')"
    for table in TENANT_TABLES:
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(f"create policy own on {table} using ({mine}) with check ({mine})")
        op.execute(
            f"grant {GRANTS.get(table, 'select, insert, update')}{', delete' if table in DELETABLE else ''} on {table} to tk_app"
        )
    for table in DISPATCH:
        op.execute(f"create policy across on {table} to tk_dispatch using (true)")
    op.execute("grant select, update on work to tk_dispatch")
    op.execute("grant select on route, due, outbox_due, audit_head to tk_dispatch")
    op.execute("grant update on outbox_due to tk_dispatch")
    op.execute("grant select, delete on entry_pending to tk_sequencer")
    op.execute("grant select, insert on entry to tk_sequencer")
    op.execute("grant select, update on audit_head to tk_sequencer")
    op.execute("grant select, insert on checkpoint to tk_sequencer")
    op.execute("grant select on step to tk_app")
