"""Commits of several runs in one call: each of them whole or not at all, and none of them for what another found changed."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

# Decisions of one tenant, any number of runs, in one call that sets the tenant itself. `f` holds an array of rows under the
# name of each table, each row with its run, bytes as `\\x` and hexadecimal digits. What comes back is a row for each run that
# is refused, with the reason and nothing of it written, and one for each work item that the caller goes on with, with its
# fence. Whatever raises stops all of it. Plans are pinned to the keys by loops, because a session may have made them when a
# table was empty.
COMMIT = """
create function commit_facts(t text, f jsonb) returns table (of_run text, refused text, kept bigint) language plpgsql
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  together boolean := jsonb_array_length(f->'runs') > 1;
  lost text[] := '{}';
  one record;
  name text;
begin
  perform set_config('tk.tenant', t, true);
  kept := 0;
  -- Runs before their work, both in order, so that two calls that share a run wait for each other and never in a circle. A
  -- run that somebody holds, a click perhaps, keeps no other one waiting: it is decided again alone.
  for one in select * from jsonb_to_recordset(f->'runs') as r(run text, base_events int, base_chain int) order by r.run loop
    if together then
      perform 1 from run where tenant = t and run = one.run and events = one.base_events and chain_seq = one.base_chain
        for update skip locked;
    else
      perform 1 from run where tenant = t and run = one.run and events = one.base_events and chain_seq = one.base_chain for update;
    end if;
    if not found then
      lost := lost || one.run;
      of_run := one.run; refused := 'version'; return next;
    end if;
  end loop;
  for one in select * from jsonb_to_recordset(f->'leases') as l(run text, item text, stage text, owner text, epoch bigint, live boolean)
      where not l.run = any(lost) order by l.run, l.item, l.stage loop
    perform 1 from work where tenant = t and run = one.run and item = one.item and stage = one.stage and owner = one.owner
       and epoch = one.epoch and state = 'leased' and (not one.live or lease_until > clock_timestamp()) for update;
    if not found then
      lost := lost || one.run;
      of_run := one.run; refused := 'fence'; return next;
    end if;
  end loop;
  for one in select s.revision, s."freeze", s.persons, array_agg(s.run) as runs
      from jsonb_to_recordset(f->'seen') as s(run text, revision text, "freeze" text, persons text[])
      where not s.run = any(lost) group by s.revision, s."freeze", s.persons loop
    perform 1 from tenant n join policy p on p.tenant = n.tenant and p.state = 'active' where n.tenant = t
        and not n.kill_switch and n.freeze_id = one."freeze" and p.revision = one.revision and not exists
        (select from person h where h.tenant = t and h.person = any(one.persons) and not h.active);
    if not found then
      lost := lost || one.runs;
      foreach name in array one.runs loop
        of_run := name; refused := 'seen'; return next;
      end loop;
    end if;
  end loop;
  if lost <> '{}' then
    if not exists (select from jsonb_to_recordset(f->'runs') as r(run text) where not r.run = any(lost)) then return; end if;
    select jsonb_object_agg(e.key, (select coalesce(jsonb_agg(r), '[]') from jsonb_array_elements(e.value) r
      where not r->>'run' = any(lost))) into f from jsonb_each(f) e;
  end if;

  for one in select * from jsonb_to_recordset(f->'runs') as r(run text, events int, head bytea, status text, state text, chain_seq int,
      chain_head bytea, writes int, cancel_requested boolean, now timestamptz, ended boolean, advanced boolean, waits_for text,
      waits_until timestamptz, code bytea, code_version text, editors text[]) loop
    update run set events = one.events, head = one.head, status = one.status, state = one.state, chain_seq = one.chain_seq,
           chain_head = one.chain_head, writes = one.writes, cancel_requested = one.cancel_requested,
           started_at = coalesce(started_at, case when one.events > 0 then one.now end),
           ended_at = case when one.ended then coalesce(ended_at, one.now) end,
           error = case when one.advanced then '' else error end, waits_for = one.waits_for, waits_until = one.waits_until,
           code = one.code, code_version = one.code_version, editors = one.editors
     where tenant = t and run = one.run;
  end loop;
  for one in select * from jsonb_to_recordset(f->'work_done') as d(run text, item text, stage text) loop
    delete from work where tenant = t and run = one.run and item = one.item and stage = one.stage;
  end loop;
  insert into journal (tenant, run, first_seq, events, body, head)
    select t, r.run, r.first_seq, r.events, r.body, r.head from jsonb_populate_recordset(null::journal, f->'journal') r;
  insert into entry_pending (tenant, chain, chain_seq, body, leaf)
    select t, r.chain, r.chain_seq, r.body, r.leaf from jsonb_populate_recordset(null::entry_pending, f->'entries') r;
  insert into payload (tenant, run, digest, body)
    select t, r.run, r.digest, r.body from jsonb_populate_recordset(null::payload, f->'payload') r on conflict do nothing;
  insert into promise (tenant, run, promise, step, step_index, tool, key, kind, state, attempt, started_at, rev, approval, verdict_n,
      last_error, next_eligible_at, deadline_at, result)
    select t, r.run, r.promise, r.step, r.step_index, r.tool, r.key, r.kind, r.state, r.attempt, r.started_at, r.rev, r.approval,
      r.verdict_n, r.last_error, r.next_eligible_at, r.deadline_at, r.result from jsonb_populate_recordset(null::promise, f->'promise') r
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
  for one in select * from jsonb_to_recordset(f->'approval_status') as s(approval text, status text) loop
    update approval set status = one.status, decided_at = clock_timestamp() where tenant = t and approval = one.approval;
  end loop;
  if f ? 'approval' then
    insert into approval (tenant, approval, run, promise, action_digest, card_digest, tier, keys, body, card, verdict_n, status,
        requested_at, expires_at)
      select t, r.approval, r.run, r.promise, r.action_digest, r.card_digest, r.tier, r.keys, r.body, r.card, r.verdict_n, 'requested',
        r.requested_at, r.expires_at from jsonb_populate_recordset(null::approval, f->'approval') r;
  end if;
  if f ? 'vote' then
    insert into vote (tenant, approval, person, kind, at, action_digest, card_digest, card_rev, policy_revision, blocks_sha256, via,
        identity, reason)
      select t, r.approval, r.person, r.kind, r.at, r.action_digest, r.card_digest, r.card_rev, r.policy_revision, r.blocks_sha256, r.via,
        r.identity, r.reason from jsonb_populate_recordset(null::vote, f->'vote') r;
  end if;
  if f ? 'task' then
    insert into task (tenant, task, run, promise, form_digest, body, groups, status, asked_at, expires_at)
      select t, r.task, r.run, r.promise, r.form_digest, r.body, r.groups, 'asked', r.asked_at, r.expires_at
        from jsonb_populate_recordset(null::task, f->'task') r;
  end if;
  for one in select * from jsonb_to_recordset(f->'task_done') as d(task text, status text, person text, via text, answer bytea) loop
    update task set status = one.status, decided_at = clock_timestamp(), answered_by = one.person, via = one.via, answer = one.answer
     where tenant = t and task = one.task and status = 'asked';
  end loop;
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
  for one in select * from jsonb_to_recordset(f->'due_done') as d(kind text, ref text) loop
    delete from due where tenant = t and kind = one.kind and ref = one.ref;
  end loop;
  for one in select * from jsonb_to_recordset(f->'work') as w(run text, item text, stage text, workspace text, state text, wait float8,
      faults int, owner text, ttl float8) loop
    insert into work (tenant, run, item, stage, workspace, state, rank, eligible_at, faults, owner, epoch, lease_until)
      values (t, one.run, one.item, one.stage, one.workspace, one.state, (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        clock_timestamp() + make_interval(secs => one.wait), one.faults, one.owner,
        (extract(epoch from clock_timestamp()) * 1000000)::bigint, clock_timestamp() + make_interval(secs => one.ttl))
      on conflict (tenant, run, item, stage) do update set state = excluded.state, eligible_at = excluded.eligible_at,
        faults = excluded.faults, owner = excluded.owner, epoch = greatest(work.epoch + 1, excluded.epoch),
        lease_until = excluded.lease_until
      returning epoch into kept;
    if one.state = 'leased' then
      of_run := one.run; refused := ''; return next;
    end if;
  end loop;
  if f ? 'outbox' then
    with o as (insert into outbox (tenant, kind, ref, body)
        select t, r.kind, r.ref, r.body from jsonb_populate_recordset(null::outbox, f->'outbox') r returning tenant, id)
      insert into outbox_due (tenant, id) select tenant, id from o;
  end if;
end $$;
revoke execute on function commit_facts(text, jsonb) from public;
grant execute on function commit_facts(text, jsonb) to tk_app;
"""

# Everything that is stored of a run, at one moment and in one call that sets the tenant itself: (what, its columns, and up to
# two of bytes, which JSON would double). A run without a journal has nothing but its input.
LOAD = """
create function load_run(t text, wanted text) returns table (what text, columns jsonb, x bytea, y bytea) language plpgsql
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  begun boolean;
begin
  perform set_config('tk.tenant', t, true);
  select events > 0 into begun from run where tenant = t and run = wanted;
  if not begun then
    return query select 'run', to_jsonb(r) || jsonb_build_object('at', clock_timestamp()), null::bytea, null::bytea from run r
      where r.tenant = t and r.run = wanted and r.events = 0;
    if found then
      return query select 'payload', null::jsonb, p.digest, p.body from payload p where p.tenant = t and p.run = wanted;
      return;
    end if;
  end if;
  return query
    select 'run', to_jsonb(r) || jsonb_build_object('at', clock_timestamp()), null::bytea, null::bytea from run r
      where r.tenant = t and r.run = wanted
    union all select 'journal', jsonb_build_object('first_seq', j.first_seq), j.body, j.head from journal j
      where j.tenant = t and j.run = wanted
    union all select 'payload', null, p.digest, p.body from payload p where p.tenant = t and p.run = wanted
    union all select 'snapshot', jsonb_build_object('events', s.events), s.body, s.sha256 from snapshot s
      where s.tenant = t and s.run = wanted
    union all select 'promise', to_jsonb(p) - 'result', p.result, null from promise p where p.tenant = t and p.run = wanted
    union all select 'verdict', jsonb_build_object('promise', v.promise, 'n', max(v.n)), null, null from verdict v
      where v.tenant = t and v.run = wanted group by v.promise
    union all (select distinct on (a.promise) 'action', jsonb_build_object('promise', a.promise), a.digest, null from action a
      where a.tenant = t and a.run = wanted order by a.promise, a.rev desc)
    union all select 'receipt', jsonb_build_object('key', c.key, 'attempt', c.attempt, 'n', max(c.n)), null, null from receipt c
      where c.tenant = t and c.key in (select p.key from promise p where p.tenant = t and p.run = wanted and p.key <> '')
      group by c.key, c.attempt;
end $$;
revoke execute on function load_run(text, text) from public;
grant execute on function load_run(text, text) to tk_app;
"""

# What the release before this one calls: one run in the transaction that it has opened, refused by raising. What is done was
# named with its lease then.
BEFORE = """
create or replace function commit_facts(f jsonb) returns bigint language plpgsql as $$
declare
  one record;
  mine text := f->'runs'->0->>'run';
  last bigint := 0;
begin
  f := f || jsonb_build_object(
    'seen', (select coalesce(jsonb_agg(s || jsonb_build_object('run', mine)), '[]') from jsonb_array_elements(f->'seen') s),
    'work_done', coalesce(f->'work_done', '[]') || (select coalesce(jsonb_agg(l), '[]') from jsonb_array_elements(f->'leases') l
      where (l->>'done')::boolean));
  for one in select * from commit_facts(current_setting('tk.tenant', true), f) loop
    if one.refused = 'fence' then raise exception 'the lease on run % was taken over', mine using errcode = 'TK003'; end if;
    if one.refused <> '' then raise exception 'run % moved', mine using errcode = 'TK002'; end if;
    last := one.kept;
  end loop;
  return last;
end $$;
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(COMMIT)
    op.execute(LOAD)
    op.execute(BEFORE)
    # A verdict with its input is a little over two kilobytes: it stays in one piece instead of being compressed and cut up.
    op.execute("alter table verdict set (toast_tuple_target = 4080)")
