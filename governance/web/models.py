"""The shapes of /v1: what is read is exactly this and nothing else, and the OpenAPI document is made from the same classes."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.limits import approval_seconds_max, attempts_max, int_max, reason_chars_max

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Ref = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/@-]{1,128}$")]
# PostgreSQL's text holds no NUL.
Reason = Annotated[str, Field(max_length=reason_chars_max, pattern=r"^[^\x00]*$")]
Needed = Annotated[str, Field(min_length=1, max_length=reason_chars_max, pattern=r"^[^\x00]*$")]
Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# --- in ---------------------------------------------------------------------------------------------------------------


class StartRun(_Shape):
    """Start a run of the active version of a workflow; the same `ref` again finds the same run."""

    workflow: Name
    input: dict[str, Any]
    ref: Ref | None = None
    workspace: Name = "main"


class ProposeAction(_Shape):
    """Propose one action; `operation` is connector.operation, `on_behalf_of` whoever you act for, who then holds no key."""

    operation: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*\.[a-z][a-z0-9_]*$", max_length=128)]
    target: Ref
    fields: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")], Annotated[str, Field(pattern=r"^[^\x00]*$")]
    ] = Field(default_factory=dict, max_length=100)
    risk: Literal["", "low", "med", "high"] = ""
    amount_minor: Annotated[int, Field(ge=0, le=int_max)] | None = None
    currency: Annotated[str, Field(pattern=r"^([A-Z]{3})?$")] = ""
    deadline_s: Annotated[int, Field(ge=1, le=approval_seconds_max)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=attempts_max)] | None = None
    on_behalf_of: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]*$")] = ""
    workspace: Name = "main"


class WaitAction(_Shape):
    """How many seconds the request may stay open for an end, 0 to 60; without it the answer comes at once."""

    wait_s: Annotated[str, Field(pattern=r"^([0-9]|[1-5][0-9]|60)?$")] = ""


class CancelRun(_Shape):
    """Ask for the end of a run."""

    reason: Needed


class ResolveRun(_Shape):
    """Say what happened to an operation whose outcome nobody knows, have it looked at, or want it tried again.

    `reason` may be left out for a probe only. `doubt` is the one that was shown to you; a word about another attempt counts for nothing.
    """

    promise: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=100)]
    how: Literal["probe", "happened", "did_not", "retry"]
    reason: Reason = ""
    doubt: Annotated[str, Field(pattern=r"^(un_[0-9a-f]{16})?$")] = ""


class DecideApproval(_Shape):
    """Give a key, reject, or stop what was approved and has not begun; `digest16` is the start of the action's digest as shown to you."""

    kind: Literal["key", "reject", "stop", "break_glass"]
    digest16: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    reason: Reason = ""
    ticket: Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")] = ""


class SetCaps(_Shape):
    """Change the caps that are given and leave the others; null takes one away. Without a workspace they are the tenant's own."""

    workspace: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] = ""
    max_concurrency: int | None = None
    max_concurrent_runs: int | None = None
    max_runs_per_min: int | None = None
    max_writes_per_run: int | None = None
    weight: int | None = None


class AddWorkspace(_Shape):
    """One more part of the tenant, with caps and a share of its own."""

    workspace: Name
    name: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]*$")] = ""


class ListRuns(_Shape):
    """Filter and place of a list of runs."""

    state: str = ""
    workflow: str = ""
    after: str = ""


class AnswerTask(_Shape):
    """Fill in a form; `digest16` is the start of the form's digest as it was shown to you, `values` are by the fields' names."""

    digest16: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    values: dict[str, str | int | bool | None]


class ListTasks(_Shape):
    """Place in the list of what waits for you."""

    after: str = ""


class ListApprovals(_Shape):
    """Place in the list of what waits."""

    after: str = ""


# --- out --------------------------------------------------------------------------------------------------------------


class BegunOut(_Shape):
    """The run that a start came to; `new` is false when this reference had started it before."""

    run: str
    new: bool


class CapOut(_Shape):
    """What is set for a tenant, a workspace or a workflow; null where nothing is."""

    scope: str
    of: str
    weight: int
    max_concurrency: int | None
    max_concurrent_runs: int | None
    max_runs_per_min: int | None
    max_writes_per_run: int | None


class CapsOut(_Shape):
    """Every cap of the tenant, the widest scope first."""

    caps: list[CapOut]


class WorkspaceOut(_Shape):
    """A part of the tenant."""

    workspace: str
    name: str


class WorkspacesOut(_Shape):
    """Every workspace of the tenant."""

    workspaces: list[WorkspaceOut]


class ActionOut(_Shape):
    """A proposed action now: what policy said, whose keys it waits for, and what came of it; `action` is the id of its run."""

    action: str
    operation: str
    state: str
    ended: bool
    effect: str
    reasons: list[tuple[str, str]]
    policy_revision: str
    action_sha256: str
    approval: str
    approval_url: str
    keys_needed: int
    keys_given: int
    expires_at: datetime.datetime | None
    attempt: int
    next_eligible_at: datetime.datetime | None
    error_class: str
    message: str
    result: dict[str, str]
    receipt_status: str
    receipt_sha256: Sha256
    evidence_sha256: Sha256


class RunOut(_Shape):
    """A run as listed."""

    run: str
    workflow: str
    version: str
    state: str
    trigger_type: str
    trigger_ref: str
    started_by: str
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None


class RunsOut(_Shape):
    """One page; `next` is the value of `after` for the next one, empty at the end."""

    runs: list[RunOut]
    next: str


class StepOut(_Shape):
    """One operation of a run."""

    promise: str
    step: str
    tool: str
    kind: str
    state: str
    attempt: int
    approval: str
    last_error: str
    next_eligible_at: datetime.datetime | None
    child: str
    held_up: str


class DoubtOut(_Shape):
    """One attempt whose outcome nobody knew: `open` waits for somebody's word; `given` of `needed` people want it tried again."""

    doubt: str
    promise: str
    attempt: int
    state: str
    found: str
    given: int
    needed: int


class VerdictOut(_Shape):
    """What policy decided about one action."""

    promise: str
    n: int
    at: datetime.datetime
    purpose: str
    effect: str
    tier: str
    keys: int
    reasons: list[tuple[str, str]]
    action_sha256: Sha256
    policy_revision: str
    engine: str


class ReceiptOut(_Shape):
    """What an attempt came to; `sound` says that its signature holds, `fields` digests of each field before and after."""

    promise: str
    key: str
    attempt: int
    n: int
    status: str
    at: datetime.datetime
    how: str
    resolved_by: str
    reversible: bool
    error: str
    executor: str
    fields: list[dict[str, str]]
    sha256: Sha256
    key_id: str
    sound: bool


class BundleOut(_Shape):
    """How far the evidence is."""

    state: str
    sha256: Sha256
    size: int
    object_key: str
    version_id: str
    retain_until: datetime.datetime | None
    sealed_at: datetime.datetime | None


class RunDetailOut(RunOut):
    """A run with everything that happened in it."""

    why: str
    waits_until: datetime.datetime | None
    definition_sha256: Sha256
    code_sha256: Sha256
    parent: str
    parent_promise: str
    cancel_requested: bool
    steps: list[StepOut]
    verdicts: list[VerdictOut]
    approvals: list[str]
    receipts: list[ReceiptOut]
    doubts: list[DoubtOut]
    bundle: BundleOut | None


class StateOut(_Shape):
    """Where the run stands after an order."""

    run: str
    state: str


class ResolvedOut(StateOut):
    """Where the run stands after a person's word."""

    promise: str
    how: str
    sentence: str
    given: int
    needed: int


class KeyOut(_Shape):
    """A recorded decision."""

    person: str
    kind: str
    at: datetime.datetime
    via: str
    reason: str


class DemandOut(_Shape):
    """What one rule asks for by itself: so many keys of these groups, of which so many of each counted group."""

    keys: int
    counts: list[tuple[str, int]]
    groups: list[str]


class ApprovalOut(_Shape):
    """One request: the whole action, what is needed, who may hold a key, what was given.

    `needs` says more than keys, counts and groups where rules ask for different people: each must be met by itself.
    """

    approval: str
    status: str
    run: str
    workflow: str
    version: str
    step: str
    tier: str
    keys: int
    given: int
    counts: list[tuple[str, int]]
    groups: list[str]
    needs: list[DemandOut]
    requested_by: str
    requested_at: datetime.datetime
    expires_at: datetime.datetime
    summary: str
    connector: str
    operation: str
    kind: str
    reversible: bool
    target: dict[str, str]
    changes: list[tuple[str, str, str]]
    amount: str
    reasons: list[tuple[str, str]]
    policy_revision: str
    action_sha256: Sha256
    digest16: str
    holders: list[str]
    excluded: list[tuple[str, str]]
    decisions: list[KeyOut]
    refused_to_you: str


class ApprovalsOut(_Shape):
    """What waits, the nearest deadline first."""

    approvals: list[ApprovalOut]
    next: str


class DecidedOut(_Shape):
    """The answer to a decision."""

    code: str
    sentence: str
    status: str
    given: int
    needed: int


class TaskFieldOut(_Shape):
    """One question of a form: text, long_text, choice, integer, decimal, date or yes_no."""

    name: str
    label: str
    kind: str
    required: bool
    max_chars: int | None
    options: list[str]


class TaskOut(_Shape):
    """One task: the form, who may answer and sign, and what was answered."""

    task: str
    status: str
    run: str
    workflow: str
    version: str
    step: str
    title: str
    text: str
    fields: list[TaskFieldOut]
    groups: list[str]
    signers: list[str]
    digest16: str
    requested_by: str
    asked_at: datetime.datetime
    expires_at: datetime.datetime
    decided_at: datetime.datetime | None
    answered_by: str
    answer: dict[str, str | int | bool | None] | None
    sign_off: str
    refused_to_you: str


class TasksOut(_Shape):
    """What waits for your answer, the nearest deadline first."""

    tasks: list[TaskOut]
    next: str


class AnsweredOut(_Shape):
    """The answer to an answer."""

    code: str
    sentence: str
    status: str


class JournalRowOut(_Shape):
    """One commit of a run's journal."""

    first_seq: int
    head: Sha256
    entries: list[dict[str, Any]]


class JournalOut(_Shape):
    """The journal of a run, as it is replayed."""

    run: str
    rows: list[JournalRowOut]


class PublishedOut(_Shape):
    """What became of a workflow file."""

    name: str
    version: str
    digest: str
    state: str


class ProblemOut(BaseModel):
    """An error (RFC 9457); `code` is for machines, `detail` and `next_step` are for people."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str = ""
    next_step: str = ""
    errors: dict[str, str] = {}
