"""Every bound of the product as a named constant with its unit, and the relations between bounds."""

from __future__ import annotations

# Doors: what is refused before it is understood.
json_bytes_max = 1_048_576
json_depth_max = 32
yaml_bytes_max = 262_144
webhook_bytes_max = 262_144
int_max = 2**53 - 1  # the largest integer that every JSON reader keeps exactly
cbor_depth_max = 32
cbor_bytes_max = 16_777_216
id_chars_max = 128

# Entries (C2SP tlog-tiles allows 65,535 bytes to one entry).
entry_bytes_soft = 16_384
entry_bytes_max = 65_535

# Journal.
signals_waiting_max = 1_000  # of one name, sent and not yet received
turns_per_commit_max = 16  # of a function whose operations end at once
child_depth_max = 8  # of runs that start runs: a recursion ends here
family_runs_max = 1_000  # a run with its children and theirs: depth alone would let each of them start thousands
attempts_max = 4  # seed 004's delays, cut to SE-5's three retries
retries_max = attempts_max - 1
retry_delays_seconds = (5, 30, 120)
fault_delay_first_seconds = 5
fault_delay_max_seconds = 60

# Leases: a worker may miss two heartbeats and still hold its work.
lease_seconds = 30
heartbeat_seconds = 10
claim_batch = 16
runs_per_commit_max = 16  # of one tenant, written by one call
faults_max = 9  # an item that came back this often is parked and shown
hold_receipt_seconds_max = 0.05  # a receipt waits this long for the next verdict, never longer
heartbeats_per_lease_min = 3
poll_seconds = 0.25  # without wake-ups, whoever is free looks this often
poll_idle_seconds = 2.0  # with them, for what no wake-up tells: a time that has come, a wake-up that was lost

# Caps and turns.
cap_max = 1_000_000
weight_max = 1_000  # units of a tenant's or a workspace's share
turns_ahead_max = 2 * claim_batch  # items of a tenant that have a turn and that nobody has claimed
turns_seconds = 0.05  # a busy worker gives turns this often: whoever is new waits no longer for one

# Schedules.
catch_up_max = 100  # runs for moments that were missed
schedule_late_seconds = 60  # a moment is not missed yet
schedule_missed_max = 5_000  # moments looked at one by one
schedule_retry_seconds = 15  # until a schedule that had to wait is looked at again

# Policy.
policy_bytes_max = 65_536
policy_deadline_seconds = 0.5
policy_server_connect_seconds = 0.25
policy_server_total_seconds = 1.0
policy_input_fields_max = 500
policy_input_depth_max = 8
policy_draft_bytes_max = 4_194_304
policy_reading_seconds = 20.0  # to parse, compile and test a draft; nobody's run waits for it
policy_reading_bytes_max = 67_108_864  # of syntax trees, which are some twenty times their text
policy_reading_depth_max = 160  # of a syntax tree

# Approvals.
approval_seconds_min = 60
approval_seconds_max = 604_800
reason_chars_max = 2_000
click_lock_seconds = 1
click_statement_seconds = 2

# Tasks: a form fits one Slack modal, and an answer fits one console form although every byte may travel as three.
task_title_chars_max = 150
task_text_chars_max = 2_000
task_fields_max = 20
task_options_max = 50
task_groups_max = 10
task_line_chars_max = 300
task_chars_max = 3_000
task_answer_bytes_max = 18_000

# Expressions.
expression_bytes_max = 4_096
expression_input_bytes_max = 262_144
expression_loops_nested_max = 2
steps_max = 1_000
steps_per_turn_max = 20_000  # that an interpreter does before it must have come to a wait
repeat_items_max = 1_000  # of one collection that a step goes through
lanes_max = 32  # of one parallel step

# Slack (slack_sdk's models and the undocumented total of bolt-js#2509).
slack_header_chars_max = 150
slack_text_chars_max = 3_000
slack_blocks_max = 50
slack_blocks_total_chars_max = 13_000
slack_request_bytes_max = 1_048_576
slack_skew_seconds_max = 300

assert heartbeat_seconds * heartbeats_per_lease_min <= lease_seconds
assert len(retry_delays_seconds) == retries_max
assert child_depth_max < family_runs_max
assert entry_bytes_soft < entry_bytes_max
assert approval_seconds_min < approval_seconds_max
assert policy_server_connect_seconds < policy_server_total_seconds
