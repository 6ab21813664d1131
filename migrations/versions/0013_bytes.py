"""Commits take what is bytes as bytes: one array beside the rows, which name their place in it."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"

# Decisions of one tenant, any number of runs, in one call that sets the tenant itself. `f` holds an array of rows under the
# name of each table, each row with its run; where a column is of bytes the row has their place in `b`, counted from 1. What
# comes back is a row for each run that is refused, with the reason and nothing of it written, and one for each work item that
# the caller goes on with, with its fence. Whatever raises stops all of it. Plans are pinned to the keys by loops, because a
# session may have made them when a table was empty.
COMMIT = """
create function commit_facts(t text, f jsonb, b bytea[]) returns table (of_run text, refused text,
  kept bigint) language plpgsql
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
  for one in select *
    from jsonb_to_recordset(f->'runs') as r(run text, base_events int, base_chain int) order by r.run loop
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
  for one in select *
    from jsonb_to_recordset(f->'leases') as l(run text, item text, stage text, owner text, epoch bigint, live boolean)
      where not l.run = any(lost) order by l.run, l.item, l.stage loop
    perform 1 from work where tenant = t and run = one.run and item = one.item and stage = one.stage and owner = one.owner
       and epoch = one.epoch and state = 'leased' and (not one.live or lease_until > clock_timestamp()) for update;
    if not found then
      lost := lost || one.run;
      of_run := one.run; refused := 'fence'; return next;
    end if;
  end loop;
  for one in select s.revision, s."freeze", s.persons, coalesce(s.own, false) as own, array_agg(s.run) as runs
      from jsonb_to_recordset(f->'seen') as s(run text, revision text, "freeze" text, persons text[], own boolean)
      where not s.run = any(lost) group by s.revision, s."freeze", s.persons, coalesce(s.own, false) loop
    perform 1 from tenant n join policy p on p.tenant = n.tenant and p.state = 'active' where n.tenant = t
        and (one.own or not n.kill_switch) and n.freeze_id = one."freeze" and p.revision = one.revision and not exists
        (select from person h where h.tenant = t and h.person = any(one.persons) and not h.active);
    if not found then
      lost := lost || one.runs;
      foreach name in array one.runs loop
        of_run := name; refused := 'seen'; return next;
      end loop;
    end if;
  end loop;
  if lost <> '{}' then
    if not exists (select
      from jsonb_to_recordset(f->'runs') as r(run text) where not r.run = any(lost)) then return; end if;
    select jsonb_object_agg(e.key, (select coalesce(jsonb_agg(r), '[]') from jsonb_array_elements(e.value) r
      where not r->>'run' = any(lost))) into f from jsonb_each(f) e;
  end if;

  for one in select *
    from jsonb_to_recordset(f->'runs') as r(run text, events int, head int, status text, state text, chain_seq int,
      chain_head int, writes int, cancel_requested boolean, now timestamptz, ended boolean, advanced boolean,
        waits_for text,
      waits_until timestamptz, code int, code_version text, editors text[]) loop
    update run set events = one.events, head = b[one.head], status = one.status, state = one.state,
      chain_seq = one.chain_seq,
           chain_head = b[one.chain_head], writes = one.writes, cancel_requested = one.cancel_requested,
           started_at = coalesce(started_at, case when one.events > 0 then one.now end),
           ended_at = case when one.ended then coalesce(ended_at, one.now) end,
           error = case when one.advanced then '' else error end, waits_for = one.waits_for,
             waits_until = one.waits_until,
           code = b[one.code], code_version = one.code_version, editors = one.editors
     where tenant = t and run = one.run;
    if one.ended then update place set over = true where tenant = t and run = one.run and not over; end if;
  end loop;
  for one in select * from jsonb_to_recordset(f->'work_done') as d(run text, item text, stage text) loop
    delete from work where tenant = t and run = one.run and item = one.item and stage = one.stage;
  end loop;
  if f ? 'journal' then
    insert into journal (tenant, run, first_seq, events, body, head)
      select t, r.run, r.first_seq, r.events, b[r.body], b[r.head]
        from jsonb_to_recordset(f->'journal') as r(run text, first_seq int, events int, body int, head int);
  end if;
  if f ? 'entries' then
    insert into entry_pending (tenant, chain, chain_seq, body, leaf)
      select t, r.chain, r.chain_seq, b[r.body], b[r.leaf]
        from jsonb_to_recordset(f->'entries') as r(chain text, chain_seq int, body int, leaf int);
  end if;
  if f ? 'payload' then
    insert into payload (tenant, run, digest, body)
      select t, r.run, b[r.digest], b[r.body]
        from jsonb_to_recordset(f->'payload') as r(run text, digest int, body int) on conflict do nothing;
  end if;
  if f ? 'promise' then
    insert into promise (tenant, run, promise, step, step_index, tool, key, kind, state, attempt, started_at, rev,
      approval, verdict_n,
        last_error, next_eligible_at, deadline_at, result)
      select t, r.run, r.promise, r.step, r.step_index, r.tool, r.key, r.kind, r.state, r.attempt, r.started_at,
        r.rev, r.approval,
        r.verdict_n, r.last_error, r.next_eligible_at, r.deadline_at, b[r.result]
          from jsonb_to_recordset(f->'promise') as r(run text, promise text, step text, step_index int, tool text,
            key text, kind text, state text, attempt int,
        started_at timestamptz, rev int, approval text, verdict_n int, last_error text, next_eligible_at timestamptz,
        deadline_at timestamptz, result int)
      on conflict (tenant, run, promise) do update set step = excluded.step, step_index = excluded.step_index,
        tool = excluded.tool,
        key = excluded.key, kind = excluded.kind, state = excluded.state, attempt = excluded.attempt,
        started_at = excluded.started_at, rev = excluded.rev, approval = excluded.approval,
          verdict_n = excluded.verdict_n,
        last_error = excluded.last_error, next_eligible_at = excluded.next_eligible_at,
          deadline_at = excluded.deadline_at,
        result = excluded.result;
  end if;
  if f ? 'snapshot' then
    insert into snapshot (tenant, run, events, body, sha256)
      select t, r.run, r.events, b[r.body], b[r.sha256]
        from jsonb_to_recordset(f->'snapshot') as r(run text, events int, body int, sha256 int)
      on conflict (tenant, run) do update set events = excluded.events, body = excluded.body, sha256 = excluded.sha256;
  end if;
  if f ? 'action' then
    insert into action (tenant, run, promise, rev, digest, body)
      select t, r.run, r.promise, r.rev, b[r.digest], b[r.body]
        from jsonb_to_recordset(f->'action') as r(run text, promise text, rev int, digest int, body int);
  end if;
  if f ? 'verdict' then
    insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings)
      select t, r.run, r.promise, r.n, r.purpose, r.effect, b[r.action_digest], r.revision, b[r.body], b[r.input],
        b[r.findings]
          from jsonb_to_recordset(f->'verdict') as r(run text, promise text, n int, purpose text, effect text,
            action_digest int,
        revision text, body int, input int, findings int);
  end if;
  if f ? 'intent' then
    insert into intent (tenant, key, turn, run, promise, action_digest)
      select t, r.key, r.turn, r.run, r.promise, b[r.action_digest]
        from jsonb_to_recordset(f->'intent') as r(key text, turn int, run text, promise text, action_digest int);
  end if;
  if f ? 'receipt' then
    insert into receipt (tenant, key, attempt, n, run, promise, status, action_digest, body, signature, key_id)
      select t, r.key, r.attempt, r.n, r.run, r.promise, r.status, b[r.action_digest], b[r.body], b[r.signature],
        r.key_id
        from jsonb_to_recordset(f->'receipt') as r(key text, attempt int, n int, run text, promise text, status text,
        action_digest int, body int, signature int, key_id text);
  end if;
  if f ? 'approval_status' then
    for one in select * from jsonb_to_recordset(f->'approval_status') as s(approval text, status text) loop
      update approval set status = one.status,
        decided_at = clock_timestamp() where tenant = t and approval = one.approval;
    end loop;
  end if;
  if f ? 'approval' then
    insert into approval (tenant, approval, run, promise, action_digest, card_digest, tier, keys, body, card,
      verdict_n, status,
        requested_at, expires_at)
      select t, r.approval, r.run, r.promise, b[r.action_digest], b[r.card_digest], r.tier, r.keys, b[r.body],
        b[r.card], r.verdict_n, 'requested',
        r.requested_at, r.expires_at
          from jsonb_to_recordset(f->'approval') as r(approval text, run text, promise text, action_digest int,
            card_digest int,
        tier text, keys int, body int, card int, verdict_n int, requested_at timestamptz, expires_at timestamptz);
  end if;
  if f ? 'vote' then
    insert into vote (tenant, approval, person, kind, at, action_digest, card_digest, card_rev, policy_revision,
      blocks_sha256, via,
        identity, reason)
      select t, r.approval, r.person, r.kind, r.at, b[r.action_digest], b[r.card_digest], r.card_rev,
        r.policy_revision, r.blocks_sha256, r.via,
        r.identity, r.reason
          from jsonb_to_recordset(f->'vote') as r(approval text, person text, kind text, at timestamptz,
            action_digest int,
        card_digest int, card_rev int, policy_revision text, blocks_sha256 text, via text, identity text, reason text);
  end if;
  if f ? 'task' then
    insert into task (tenant, task, run, promise, form_digest, body, groups, status, asked_at, expires_at)
      select t, r.task, r.run, r.promise, b[r.form_digest], b[r.body], r.groups, 'asked', r.asked_at, r.expires_at
          from jsonb_to_recordset(f->'task') as r(task text, run text, promise text, form_digest int, body int,
            groups text[],
        asked_at timestamptz, expires_at timestamptz);
  end if;
  if f ? 'task_done' then
    for one in select *
      from jsonb_to_recordset(f->'task_done') as d(task text, status text, person text, via text, answer int) loop
      update task set status = one.status, decided_at = clock_timestamp(), answered_by = one.person, via = one.via,
        answer = b[one.answer]
       where tenant = t and task = one.task and status = 'asked';
    end loop;
  end if;
  if f ? 'card' then
    insert into card (tenant, approval) select t, r.approval from jsonb_to_recordset(f->'card') as r(approval text);
  end if;
  if f ? 'bundle' then
    insert into bundle (tenant, run, state, checkpoint_size)
      select t, r.run, 'frozen', 0 from jsonb_to_recordset(f->'bundle') as r(run text) on conflict do nothing;
  end if;
  if f ? 'due' then
    insert into due (tenant, kind, ref, at, run)
      select t, r.kind, r.ref, r.at, r.run
        from jsonb_to_recordset(f->'due') as r(kind text, ref text, at timestamptz, run text)
      on conflict (tenant, kind, ref) do update set at = excluded.at;
  end if;
  if f ? 'due_done' then
    for one in select * from jsonb_to_recordset(f->'due_done') as d(kind text, ref text) loop
      delete from due where tenant = t and kind = one.kind and ref = one.ref;
    end loop;
  end if;
  for one in select *
    from jsonb_to_recordset(f->'work') as w(run text, item text, stage text, workspace text, state text, wait float8,
      faults int, owner text, ttl float8, workflow text, rank bigint) loop
    insert into work (tenant, run, item, stage, workspace, workflow, state, asleep, rank, eligible_at, faults, owner,
      epoch, lease_until)
      values (t, one.run, one.item, one.stage, one.workspace, coalesce(one.workflow, ''), one.state,
        one.state = 'ready' and one.wait > 0,
        coalesce(one.rank, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
        clock_timestamp() + make_interval(secs => one.wait), one.faults, one.owner,
        (extract(epoch from clock_timestamp()) * 1000000)::bigint, clock_timestamp() + make_interval(secs => one.ttl))
      on conflict (tenant, run, item, stage) do update set state = excluded.state, asleep = excluded.asleep,
        turn = case when excluded.state = 'leased' then work.turn end, eligible_at = excluded.eligible_at,
        faults = excluded.faults, owner = excluded.owner, epoch = greatest(work.epoch + 1, excluded.epoch),
        lease_until = excluded.lease_until
      returning epoch into kept;
    if one.state = 'leased' then
      of_run := one.run; refused := ''; return next;
    end if;
  end loop;
  if f ? 'outbox' then
    with o as (insert into outbox (tenant, kind, ref, body)
        select t, r.kind, r.ref, b[r.body]
          from jsonb_to_recordset(f->'outbox') as r(kind text, ref text, body int) returning tenant, id)
      insert into outbox_due (tenant, id) select tenant, id from o;
  end if;
end $$;
revoke execute on function commit_facts(text, jsonb, bytea[]) from public;
grant execute on function commit_facts(text, jsonb, bytea[]) to tk_app;
"""

# What the release before this one calls: its rows hold bytes as `\\x` and hexadecimal digits. No column that is text has the
# name of one that is bytes.
BEFORE = """
create or replace function commit_facts(t text, f jsonb) returns table (of_run text, refused text, kept bigint) language sql as $$
  with cell as (
    select e.key as fact, r.n, c.key as col, c.value as was, jsonb_typeof(c.value) = 'string' and c.key in ('head', 'chain_head', 'code',
           'body', 'leaf', 'digest', 'result', 'sha256', 'action_digest', 'input', 'findings', 'signature', 'card_digest', 'card',
           'form_digest', 'answer') as bytes
      from jsonb_each(f) e cross join jsonb_array_elements(e.value) with ordinality r(facts, n) cross join jsonb_each(r.facts) c),
  placed as (select *, row_number() over (partition by bytes order by fact, n, col) as place from cell),
  made as (
    select fact, n, jsonb_object_agg(col, case when bytes then to_jsonb(place) else was end) as facts from placed group by fact, n),
  given as (select fact, jsonb_agg(facts order by n) as rows from made group by fact)
  select * from commit_facts(t, (select jsonb_object_agg(fact, rows) from given),
    (select coalesce(array_agg((was #>> '{}')::bytea order by place), '{}') from placed where bytes));
$$;
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(COMMIT)
    op.execute(BEFORE)
    # Nobody has asked by rank since turns are given: every change of a work item paid for it.
    op.execute("drop index work_runnable")
