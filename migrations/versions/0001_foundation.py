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
  code bytea not null, code_version text not null, editors text[] not null default '{}',
  root text not null, parent text not null default '', parent_promise text not null default '', depth int not null default 0,
  events int not null default 0, head bytea not null, status text not null default '', state text not null default 'queued',
  chain_seq int not null default 0, chain_head bytea not null, writes int not null default 0,
  cancel_requested boolean not null default false, error text not null default '',
  waits_for text not null default '', waits_until timestamptz,
  created_at timestamptz not null default clock_timestamp(), started_at timestamptz, ended_at timestamptz,
  primary key (tenant, run)) with (fillfactor = 70);
create unique index run_trigger on run (tenant, workflow, trigger_type, trigger_ref);
create index run_recent on run (tenant, created_at desc, run);
create index run_open on run (tenant) where ended_at is null;
create index run_family on run (tenant, root);
create unique index run_child on run (tenant, parent, parent_promise) where parent <> '';
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
  tenant text not null, run text not null, item text not null, stage text not null check (stage in ('advance','judge','ask','execute','seal','cancel')),
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

# A decision's whole commit in one call. `f` holds an array of rows under the name of each table, bytes as `\\x` and hexadecimal
# digits; it stands or falls as one. Plans are pinned to the keys, because a session may have made them when a table was empty.
COMMIT = """
create function commit_facts(f jsonb) returns bigint language plpgsql
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  t text := nullif(current_setting('tk.tenant', true), '');
  one record;
  mine boolean;
  kept bigint := 0;
begin
  for one in select * from jsonb_to_recordset(f->'runs') as r(run text, base_events int, base_chain int, events int, head bytea,
      status text, state text, chain_seq int, chain_head bytea, writes int, cancel_requested boolean, now timestamptz, ended boolean,
      advanced boolean, waits_for text, waits_until timestamptz, code bytea, code_version text, editors text[]) loop
    update run set events = one.events, head = one.head, status = one.status, state = one.state, chain_seq = one.chain_seq,
           chain_head = one.chain_head, writes = one.writes, cancel_requested = one.cancel_requested,
           started_at = coalesce(started_at, case when one.events > 0 then one.now end),
           ended_at = case when one.ended then coalesce(ended_at, one.now) end,
           error = case when one.advanced then '' else error end, waits_for = one.waits_for, waits_until = one.waits_until,
           code = one.code, code_version = one.code_version, editors = one.editors
     where tenant = t and run = one.run and events = one.base_events and chain_seq = one.base_chain;
    if not found then raise exception 'run % moved', one.run using errcode = 'TK002'; end if;
  end loop;
  for one in select * from jsonb_to_recordset(f->'leases') as l(run text, item text, stage text, owner text, epoch bigint,
      done boolean, live boolean) loop
    if one.done then
      delete from work where tenant = t and run = one.run and item = one.item and stage = one.stage and owner = one.owner
         and epoch = one.epoch and state = 'leased' and (not one.live or lease_until > clock_timestamp());
      mine := found;
    else
      perform 1 from work where tenant = t and run = one.run and item = one.item and stage = one.stage and owner = one.owner
         and epoch = one.epoch and state = 'leased' and (not one.live or lease_until > clock_timestamp()) for update;
      mine := found;
    end if;
    if not mine then raise exception 'the lease on % of % was taken over', one.stage, one.run using errcode = 'TK003'; end if;
  end loop;
  for one in select * from jsonb_to_recordset(f->'seen') as s(revision text, "freeze" text, persons text[]) loop
    perform 1 from tenant n join policy p on p.tenant = n.tenant and p.state = 'active' where n.tenant = t
        and not n.kill_switch and n.freeze_id = one."freeze" and p.revision = one.revision and not exists
        (select from person h where h.tenant = t and h.person = any(one.persons) and not h.active);
    if not found then raise exception 'what the permit rests on has changed' using errcode = 'TK002'; end if;
  end loop;
  delete from work w using jsonb_populate_recordset(null::work, f->'work_done') d
   where w.tenant = t and w.run = d.run and w.item = d.item and w.stage = d.stage;
  insert into journal (tenant, run, first_seq, events, body, head)
    select t, r.run, r.first_seq, r.events, r.body, r.head from jsonb_populate_recordset(null::journal, f->'journal') r;
  insert into entry_pending (tenant, chain, chain_seq, body, leaf)
    select t, r.chain, r.chain_seq, r.body, r.leaf from jsonb_populate_recordset(null::entry_pending, f->'entries') r;
  insert into payload (tenant, run, digest, body)
    select t, r.run, r.digest, r.body from jsonb_populate_recordset(null::payload, f->'payload') r on conflict do nothing;
  insert into promise
    select (jsonb_populate_record(null::promise, r || jsonb_build_object('tenant', t))).* from jsonb_array_elements(f->'promise') r
    on conflict (tenant, run, promise) do update set step = excluded.step, step_index = excluded.step_index, tool = excluded.tool,
      key = excluded.key, kind = excluded.kind, state = excluded.state, attempt = excluded.attempt,
      started_at = excluded.started_at, rev = excluded.rev, approval = excluded.approval, verdict_n = excluded.verdict_n,
      last_error = excluded.last_error, next_eligible_at = excluded.next_eligible_at, deadline_at = excluded.deadline_at,
      result = excluded.result;
  if f ? 'snapshot' then
    insert into snapshot (tenant, run, events, body, sha256)
      select t, r.run, r.events, r.body, r.sha256 from jsonb_populate_recordset(null::snapshot, f->'snapshot') r
      on conflict (tenant, run) do update set events = excluded.events, body = excluded.body, sha256 = excluded.sha256;
  end if;
  if f ? 'action' then
    insert into action (tenant, run, promise, rev, digest, body)
      select t, r.run, r.promise, r.rev, r.digest, r.body from jsonb_populate_recordset(null::action, f->'action') r;
  end if;
  if f ? 'verdict' then
    insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings)
      select t, r.run, r.promise, r.n, r.purpose, r.effect, r.action_digest, r.revision, r.body, r.input, r.findings
        from jsonb_populate_recordset(null::verdict, f->'verdict') r;
  end if;
  if f ? 'intent' then
    insert into intent (tenant, key, turn, run, promise, action_digest)
      select t, r.key, r.turn, r.run, r.promise, r.action_digest from jsonb_populate_recordset(null::intent, f->'intent') r;
  end if;
  if f ? 'receipt' then
    insert into receipt (tenant, key, attempt, n, run, promise, status, action_digest, body, signature, key_id)
      select t, r.key, r.attempt, r.n, r.run, r.promise, r.status, r.action_digest, r.body, r.signature, r.key_id
        from jsonb_populate_recordset(null::receipt, f->'receipt') r;
  end if;
  if f ? 'approval_status' then
    update approval a set status = s.status, decided_at = clock_timestamp()
      from jsonb_populate_recordset(null::approval, f->'approval_status') s where a.tenant = t and a.approval = s.approval;
  end if;
  if f ? 'approval' then
    insert into approval (tenant, approval, run, promise, action_digest, card_digest, tier, keys, body, card, verdict_n, status,
        requested_at, expires_at)
      select t, r.approval, r.run, r.promise, r.action_digest, r.card_digest, r.tier, r.keys, r.body, r.card, r.verdict_n, 'requested',
        r.requested_at, r.expires_at from jsonb_populate_recordset(null::approval, f->'approval') r;
  end if;
  if f ? 'vote' then
    insert into vote
      select (jsonb_populate_record(null::vote, r || jsonb_build_object('tenant', t))).* from jsonb_array_elements(f->'vote') r;
  end if;
  if f ? 'task' then
    insert into task (tenant, task, run, promise, form_digest, body, groups, status, asked_at, expires_at)
      select t, r.task, r.run, r.promise, r.form_digest, r.body, r.groups, 'asked', r.asked_at, r.expires_at
        from jsonb_populate_recordset(null::task, f->'task') r;
  end if;
  if f ? 'task_done' then
    for one in select * from jsonb_to_recordset(f->'task_done') as d(task text, status text, person text, via text, answer bytea) loop
      update task set status = one.status, decided_at = clock_timestamp(), answered_by = one.person, via = one.via,
             answer = one.answer
       where tenant = t and task = one.task and status = 'asked';
    end loop;
  end if;
  if f ? 'card' then
    insert into card (tenant, approval) select t, r.approval from jsonb_populate_recordset(null::card, f->'card') r;
  end if;
  if f ? 'bundle' then
    insert into bundle (tenant, run, state, checkpoint_size)
      select t, r.run, 'frozen', 0 from jsonb_populate_recordset(null::bundle, f->'bundle') r on conflict do nothing;
  end if;
  if f ? 'due' then
    insert into due (tenant, kind, ref, at, run)
      select t, r.kind, r.ref, r.at, r.run from jsonb_populate_recordset(null::due, f->'due') r
      on conflict (tenant, kind, ref) do update set at = excluded.at;
  end if;
  if f ? 'due_done' then
    delete from due d using jsonb_populate_recordset(null::due, f->'due_done') r
     where d.tenant = t and d.kind = r.kind and d.ref = r.ref;
  end if;
  for one in select * from jsonb_to_recordset(f->'work') as w(run text, item text, stage text, workspace text, state text, wait float8,
      faults int, owner text, ttl float8) loop
    insert into work (tenant, run, item, stage, workspace, state, rank, eligible_at, faults, owner, epoch, lease_until)
      values (t, one.run, one.item, one.stage, one.workspace, one.state, (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        clock_timestamp() + make_interval(secs => one.wait), one.faults, one.owner,
        (extract(epoch from clock_timestamp()) * 1000000)::bigint, clock_timestamp() + make_interval(secs => one.ttl))
      on conflict (tenant, run, item, stage) do update set state = excluded.state, eligible_at = excluded.eligible_at,
        faults = excluded.faults, owner = excluded.owner, epoch = greatest(work.epoch + 1, excluded.epoch),
        lease_until = excluded.lease_until
      returning case when state = 'leased' then epoch else kept end into kept;
  end loop;
  with o as (insert into outbox (tenant, kind, ref, body)
      select t, r.kind, r.ref, r.body from jsonb_populate_recordset(null::outbox, f->'outbox') r returning tenant, id)
    insert into outbox_due (tenant, id) select tenant, id from o;
  return kept;
end $$;
revoke execute on function commit_facts(jsonb) from public;
grant execute on function commit_facts(jsonb) to tk_app;
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
    for block in (ROLES, PEOPLE, RUNS, GATE, LOG, GUARDS, COMMIT):
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
