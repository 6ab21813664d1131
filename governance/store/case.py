"""A run in hand: what is known of it, and the verbs by which one decision adds to it before its single commit."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.canonical import jcs
from engine.errors import TwokeysError
from engine.gate.action import Action
from engine.gate.receipt import Receipt
from engine.gate.verdict import Judged
from engine.ids import PromiseId, promise_of
from engine.journal.events import AwaitSignal, Entry, ExecutionStarted
from engine.journal.history import History
from engine.journal.moves import check_run, check_step
from engine.journal.status import Blocked
from engine.kernel import Finished, News, Payload, Started, accept, signal_prefix
from engine.ledger.entries import Fact, build
from engine.program.function_commands import StartChild
from engine.program.function_journal import Feed
from engine.program.snapshot import Frame

SYSTEM = {"type": "system", "id": "twokeys"}
# The triggers that are ours: no source may be called so, because a trigger's name is part of what a start is about.
MANUAL, CHILD, ACTION, CONTINUED, SCHEDULE = "manual", "child", "action", "continued", "schedule"
RESERVED = (MANUAL, CHILD, ACTION, CONTINUED, SCHEDULE)
_epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_micro = datetime.timedelta(microseconds=1)
# Of a run that goes on, by what its operations are doing: the first of these that any of them is.
_shown = (
    ("running", ("ready", "running")),
    ("waiting_approval", ("waiting_approval",)),
    ("waiting_task", ("waiting_task",)),
    ("failed_retryable", ("failed_retryable",)),
)


class FenceLost(TwokeysError):
    """Nobody must act: another worker holds this work now, and what this one did late changes nothing."""

    code = "fence_lost"


@dataclass(slots=True)
class Promise:
    """The projection of one operation of a run: what pages and the step view show of it."""

    promise: str
    step: str
    step_index: int
    tool: str
    key: str
    kind: str
    state: str
    attempt: int = 0
    started_at: datetime.datetime | None = None  # of the newest attempt
    rev: int = 0
    approval: str = ""
    verdict_n: int = 0
    last_error: str = ""
    next_eligible_at: datetime.datetime | None = None
    deadline_at: datetime.datetime | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run is, fixed at its start."""

    tenant: str
    run: str
    workspace: str
    workflow: str
    version: str
    definition: bytes
    trigger_type: str
    trigger_ref: str
    started_by: str
    on_behalf_of: str
    owner: str
    salt_key: bytes
    execution_key: str
    input: bytes
    created_at: datetime.datetime
    root: str  # the first run of its family: itself, when nobody's child
    parent: str = ""
    parent_promise: str = ""
    depth: int = 0

    @property
    def lineage(self) -> dict[str, str]:
        """Who can never hold a key for this run's actions, and why; the requester's reason wins over the others."""
        found = {self.owner: "owner"}
        if self.on_behalf_of:
            found[self.on_behalf_of] = "on_behalf_of"
        found[self.started_by] = "requester"
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What a permit rests on; the intent's commit finds all of it unchanged or writes nothing."""

    revision: str
    freeze: str
    persons: tuple[str, ...]
    writes_of_others: int = 0
    own: bool = False  # what mends a standstill, which the kill switch lets pass
    payment: Action | None = None  # the action, when it has an amount
    spent_by_others: int = 0  # today, in its currency


@dataclass(frozen=True, slots=True)
class Birth:
    """A run that is to begin with the commit of the decision that wants it: what it is, its input, and its first entries."""

    origin: Origin
    input: Payload
    facts: tuple[Fact, ...]
    editors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Follows:
    """What a turn wants: promises to be judged, runs to be begun, and which of these go their own way."""

    judge: tuple[str, ...] = ()
    children: tuple[StartChild, ...] = ()
    apart: frozenset[int] = frozenset()


@dataclass(slots=True)
class Case:
    """One run: what the database holds, and what this decision adds to it."""

    origin: Origin
    history: History
    frame: Frame | None
    promises: dict[str, Promise]
    payloads: dict[bytes, bytes]
    chain_seq: int
    chain_head: bytes
    writes: int
    cancel_requested: bool
    ended: bool
    now: datetime.datetime
    base_events: int
    base_chain: int
    verdicts_n: dict[str, int]
    receipts_n: dict[tuple[str, int], int]
    action_digests: dict[str, bytes]  # of the newest proposal of each promise
    stored: list[Entry]  # the journal as the database has it
    code: bytes  # the digest of what it runs on: what it started with, until a person moved it
    code_version: str
    editors: tuple[str, ...] = ()  # who moved it, or a run above it, to other code
    feed: Feed | None = None  # of a function: what its host was told
    debts: tuple[
        str, ...
    ] = ()  # broken glasses of the tenant whose reviews are overdue: its bundle is marked with them
    # what the next commit adds
    built: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)  # the types of these
    new_payloads: dict[bytes, bytes] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    work_done: list[tuple[str, str]] = field(default_factory=list)
    posts: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    approval_status: dict[str, str] = field(default_factory=dict)
    state: str = "queued"
    was: str = "queued"  # as it is stored
    intent_seen: Seen | None = None  # what an intent of this commit was permitted under
    births: list[Birth] = field(default_factory=list)
    wakes_parent: bool = False
    releases_children: bool = False  # those that are open are to be cancelled

    def note(
        self, kind: str, body: Mapping[str, Any], *, actor: Mapping[str, str] | None = None, commit: Iterable[str] = ()
    ) -> None:
        """One more entry of this run's chain."""
        fact = Fact(kind, dict(actor or SYSTEM), dict(body), tuple(commit))
        data, leaf = build(fact, self.origin.tenant, self.origin.run, self.chain_seq, self.chain_head, self.now)
        self.built.append((self.chain_seq, data, leaf))
        self.noted.append(kind)
        self.chain_seq, self.chain_head = self.chain_seq + 1, leaf

    def keep(self, digest: bytes, body: bytes) -> None:
        """Store a payload file of this run."""
        self.payloads[digest] = body
        self.new_payloads[digest] = body

    def touch(self, promise: str, **changes: Any) -> Promise:
        """Change a promise's projection."""
        found = self.promises[promise]
        if "state" in changes:
            check_step(found.state, changes["state"])
        for name, value in changes.items():
            setattr(found, name, value)
        self.changed.add(promise)
        return found

    def add(self, table: str, **row: Any) -> None:
        """Queue one row; the run and the tenant are filled in."""
        self.rows.setdefault(table, []).append(row)

    def put_work(
        self,
        item: str,
        stage: str,
        *,
        wait_seconds: float = 0,
        faults: int = 0,
        parked: bool = False,
        keep: bool = False,
    ) -> None:
        """Hand over to a stage; `keep` leases the item to whoever commits this, so that it goes on without a claim."""
        state = "leased" if keep else "parked" if parked else "ready"
        self.add(
            "work",
            item=item,
            stage=stage,
            workspace=self.origin.workspace,
            workflow=self.origin.workflow,
            rank=(self.origin.created_at - _epoch)
            // _micro,  # when its run came: what it waits for anew is no new arrival
            wait=wait_seconds,
            faults=faults,
            state=state,
        )

    def put_action(self, action: Action, rev: int) -> None:
        """A proposal as complete as it will be judged, asked and run."""
        self.action_digests[action.promise] = action.digest
        self.add("action", promise=action.promise, rev=rev, digest=action.digest, body=action.body)

    def put_verdict(self, promise: str, judged: Judged) -> int:
        """Record a verdict; its number names it from now on."""
        v = judged.verdict
        n = self.verdicts_n.get(promise, 0) + 1
        self.verdicts_n[promise] = n
        self.add(
            "verdict", promise=promise, n=n, purpose=v.purpose, effect=v.effect, action_digest=bytes.fromhex(v.action_sha256),
            revision=v.policy_revision, body=jcs(v.to_value()), input=judged.input_bytes, findings=judged.findings_bytes,
        )  # fmt: skip
        return n

    def put_receipt(self, receipt: Receipt, key: str) -> None:
        """Record what an attempt came to."""
        self.receipts_n[(key, receipt.attempt)] = receipt.n
        self.add(
            "receipt", key=key, attempt=receipt.attempt, n=receipt.n, promise=receipt.origin.promise, status=receipt.status,
            action_digest=bytes.fromhex(receipt.action_sha256), body=receipt.body, signature=receipt.signature, key_id=receipt.key_id,
        )  # fmt: skip

    @property
    def micros(self) -> int:
        """The case's database time as journal entries carry it, exact to the microsecond."""
        return (self.now - _epoch) // _micro

    def promise_id(self, promise: str) -> PromiseId:
        """The full id of a promise of this run."""
        return promise_of(self.origin.run, promise)

    @property
    def start(self) -> ExecutionStarted:
        """The first event of its journal; its parent is the operation that started it, or itself."""
        o = self.origin
        reference = f'{{"commit":"{o.input.hex()}","size":{len(self.payloads[o.input])}}}'
        parent = promise_of(o.parent or o.run, o.parent_promise)
        return ExecutionStarted(f"sha256:{o.definition.hex()}", reference, parent, o.execution_key)

    def accept(self, news: News) -> None:
        """Append news to the journal and keep its payloads."""
        for kept in accept(self.history, news, self.origin.salt_key, self.micros):
            self.keep(kept.commit, kept.body)

    def finish(self, promise: str, *, ok: bool, value: Any = None, error_class: str = "", message: str = "") -> None:
        """The operation has its result for ever; an operation that never started is started and ended in one commit, without an intent."""
        found = self.promises[promise]
        name = self.promise_id(promise)
        invoke = self.history.invoke(name)
        assert invoke is not None
        attempt = invoke.attempt
        if invoke.phase != "started":
            attempt += 1
            self.accept(Started(name, attempt))
        self.accept(Finished(name, attempt, ok, value, error_class, message))
        if not ok:
            self.note("step.failed", {"promise": promise, "step": found.step, "error_class": error_class})
        elif not found.tool.startswith(signal_prefix):  # who sent a signal stands in the log already
            self.note("step.completed", {"promise": promise, "step": found.step})
        self.touch(
            promise, state="succeeded" if ok else "failed_terminal", attempt=attempt, next_eligible_at=None,
            last_error="" if ok else f"{error_class}: {message}"[:500],
        )  # fmt: skip
        self.show_card(found.approval)
        self.state = "running"

    def show_card(self, approval: str) -> None:
        """The card of this approval says what it has come to; there may be none."""
        if approval and ("card", approval, {}) not in self.posts:
            self.posts.append(("card", approval, {}))

    def close(self, state: str) -> None:
        """The run is over: its last entry counts itself, nothing of it waits any more, and the seal is due."""
        self.state, self.ended = state, True
        for timer in self.history.open_timers():
            self.add("due_done", kind="timer", ref=timer_ref(timer.promise_id))
        for promise in self.promises.values():
            if promise.state not in ("succeeded", "failed_terminal", "canceled"):
                self.touch(promise.promise, state="canceled")
                if promise.tool.startswith(signal_prefix):
                    self.add("due_done", kind="signal", ref=timer_ref(self.promise_id(promise.promise)))
        if self.debts:
            self.note("debt.overdue", {"reviews": list(self.debts)[:100]})
        head, version = self.history.head.hex(), self.history.version
        self.note(
            "run.closed",
            {"status": state, "entries": self.chain_seq + 1, "journal_version": version, "journal_head": head},
        )
        self.put_work("", "seal")
        self.wakes_parent = self.origin.parent != ""

    def committed(self) -> None:
        """Everything is stored: the next decision on this case starts clean."""
        self.was = self.shown
        self.stored += self.history.pending()
        self.history.saved()
        self.base_events, self.base_chain = self.history.version, self.chain_seq
        self.built, self.noted, self.new_payloads, self.rows, self.changed = [], [], {}, {}, set()
        self.work_done, self.posts, self.approval_status, self.intent_seen = [], [], {}, None
        self.births, self.wakes_parent, self.releases_children = [], False, False

    @property
    def lineage(self) -> dict[str, str]:
        """Who can hold no key for what it proposes: those of its start, and whoever has edited what it does since."""
        return {**dict.fromkeys(self.editors, "editor"), **self.origin.lineage}

    @property
    def has_family(self) -> bool:
        """Whether other runs belong to it: the one that started it, or those that it started."""
        return bool(self.origin.parent) or any(promise.kind == CHILD for promise in self.promises.values())

    @property
    def shown(self) -> str:
        """The state that people see: several operations may be under way, so it is what they come to together."""
        if self.ended:
            return self.state
        found = {promise.state for promise in self.promises.values()}
        return next((word for word, of in _shown if found.intersection(of)), self.state)

    @property
    def next_state(self) -> str:
        """The state that it is stored in next; a move that nothing leads to stops the run instead of being shown."""
        return check_run(self.was, self.shown)

    @property
    def waits(self) -> tuple[str, datetime.datetime | None]:
        """What a function waits for that no operation of its brings: the name of a signal, the end of a sleep."""
        status = self.history.status
        if self.ended or not isinstance(status, Blocked):
            return "", None
        if isinstance(status.kind, AwaitSignal):
            return status.kind.name, None
        for invoke in self.history.open_invokes():
            if (
                invoke.scheduled.function_name.startswith(signal_prefix)
                and invoke.scheduled.promise_id in status.waiting_on
            ):
                return invoke.scheduled.function_name.removeprefix(signal_prefix), None
        ends = [timer.fire_at for timer in self.history.open_timers() if timer.promise_id in status.waiting_on]
        return "", _epoch + min(ends) * _micro if ends else None

    @property
    def leaves_work(self) -> bool:
        """Whether this decision leaves something to do at once for somebody else than whoever commits it."""
        ready = any(row["state"] == "ready" and not row["wait"] for row in self.rows.get("work", ()))
        return ready or bool(self.posts or self.wakes_parent or self.releases_children)


def timer_ref(promise: PromiseId) -> str:
    """How the table of what is due names a timer of a run."""
    return f"{promise.root}/{promise.local}"
