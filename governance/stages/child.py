"""Child: begin the runs that a turn asks for, hand a child's end to its parent, and pass a cancellation on."""

from __future__ import annotations

from collections.abc import Callable

from engine.ids import execution_key, run_id
from engine.kernel import CancelAsked, Files, Finished, Payload, Started, input_payload, settle_cancel
from engine.ledger.entries import Fact
from engine.limits import child_depth_max, family_runs_max
from engine.program.function_commands import StartChild
from engine.program.function_journal import Result, can_turn
from engine.program.inputs import check_input
from engine.program.programs import Program
from governance.keys import hashed
from governance.store import cases, withdrawing
from governance.store.case import CHILD, CONTINUED, SYSTEM, Birth, Case, Follows, Origin
from governance.store.dispatch import Lease
from governance.store.family import Family, child_of, family
from governance.store.unit import Database

CANCELED = Result(False, None, "canceled", "the child run was canceled")


class Children:
    """The hands of this stage: the store to look in, the tenant's key, and chance for a run's own secret."""

    def __init__(
        self, database: Database, *, hash_key: Callable[[str], bytes], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._database = database
        self._hash_key = hash_key
        self._random_bytes = random_bytes

    def begin(self, case: Case, follows: Follows) -> None:
        """Each wanted run begins with the commit of this decision, or its operation fails for good with the reason."""
        orders = follows.children
        if not orders:
            return
        with self._database.unit(case.origin.tenant, write=False) as unit:
            known = family(unit, case, [order.workflow for order in orders])
        for order in orders:
            promise = str(order.child)
            case.accept(Started(case.promise_id(promise), 1))
            if order.child in follows.apart:
                self._go_apart(case, order, known)
                continue
            refused = self._begin(case, order, known, known.runs + len(case.births))
            if refused is None:
                case.touch(promise, state="running", attempt=1, started_at=case.now)
            else:
                self._finish(case, promise, refused)
                case.note(
                    "step.failed", {"promise": promise, "step": order.workflow, "error_class": refused.error_class}
                )
        if can_turn(case.history):
            case.put_work("", "advance")

    def _begin(self, case: Case, order: StartChild, known: Family, runs: int) -> Result | None:
        """None when the run is going to begin; otherwise why it cannot."""
        found = _startable(order, known)
        if isinstance(found, Result):
            return found
        if case.origin.depth >= child_depth_max:
            return _refused("too_deep", f"runs start runs at most {child_depth_max} deep")
        if runs >= family_runs_max:
            return _refused("too_many_runs", f"a run and all that it starts are at most {family_runs_max} runs")
        self._put(case, order, found, known)
        return None

    def _put(self, case: Case, order: StartChild, program: Program, known: Family) -> None:
        salt_key, kept = self._input(order)
        mine, tenant_key = case.origin, self._hash_key(case.origin.tenant)
        promise = case.promise_id(str(order.child))
        # Parent and operation name the start, so it is the same start however often the turn is decided; whoever asked for
        # the parent asks for the child, or the two-person rule could be washed through it.
        ref = str(promise)
        key = execution_key(tenant_key, mine.tenant, program.name, CHILD, ref)
        origin = Origin(
            tenant=mine.tenant, run=run_id(program.digest, ref, key), workspace=mine.workspace, workflow=program.name,
            version=program.version, definition=program.digest, trigger_type=CHILD, trigger_ref=ref, started_by=mine.started_by,
            on_behalf_of=mine.on_behalf_of, owner=mine.owner, salt_key=salt_key, execution_key=key, input=kept.commit,
            created_at=case.now, root=mine.root, parent=mine.run, parent_promise=promise.local, depth=mine.depth + 1,
        )  # fmt: skip
        actor = "service" if known.requester_kind == "service" else "person"
        named = Fact(
            "parent.named",
            SYSTEM,
            {"run": mine.run, "promise": promise.local, "depth": origin.depth},
        )
        facts = (cases.queued(origin, actor, hashed(tenant_key, "trigger", ref)), named)
        case.births.append(Birth(origin, kept, facts, case.editors))
        case.note(
            "child.started",
            {
                "promise": promise.local, "run": origin.run, "workflow": program.name, "version": program.version,
                "definition_sha256": program.digest.hex(),
            },
        )  # fmt: skip

    def _input(self, order: StartChild) -> tuple[bytes, Payload]:
        salt_key = self._random_bytes(32)
        return salt_key, input_payload(salt_key, {} if order.input is None else order.input)

    def _go_apart(self, case: Case, order: StartChild, known: Family) -> None:
        """A run that nobody waits for and that no cancellation reaches; whoever asked for this one asks for it too.

        It begins in the commit of the turn that wants it, so it is asked for once; the operation is over in the same commit.
        """
        promise = str(order.child)
        found = _startable(order, known)
        if isinstance(found, Result):
            self._finish(case, promise, found)
            body = {"promise": promise, "step": case.promises[promise].step, "error_class": found.error_class}
            case.note("step.failed", body)
            return
        mine, tenant_key = case.origin, self._hash_key(case.origin.tenant)
        salt_key, kept = self._input(order)
        ref = str(case.promise_id(promise))
        key = execution_key(tenant_key, mine.tenant, found.name, CONTINUED, ref)
        run = run_id(found.digest, "", key)
        origin = Origin(
            tenant=mine.tenant, run=run, workspace=mine.workspace, workflow=found.name, version=found.version, definition=found.digest,
            trigger_type=CONTINUED, trigger_ref=ref, started_by=mine.started_by, on_behalf_of=mine.on_behalf_of, owner=mine.owner,
            salt_key=salt_key, execution_key=key, input=kept.commit, created_at=case.now, root=run,
        )  # fmt: skip
        actor = "service" if known.requester_kind == "service" else "person"
        queued = cases.queued(origin, actor, hashed(tenant_key, "trigger", ref))
        case.births.append(Birth(origin, kept, (queued,), case.editors))
        body = {
            "promise": promise, "run": run, "workflow": found.name, "version": found.version,
            "definition_sha256": found.digest.hex(),
        }  # fmt: skip
        case.note("run.continued", body)
        self._finish(case, promise, Result(True, {"run": run}))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def ended(self, case: Case, promise: str) -> None:
        """Give the parent what its child came to, once; whoever brings the news again finds it told."""
        invoke = case.history.invoke(case.promise_id(promise))
        if invoke is None or invoke.phase != "started":
            return
        with self._database.unit(case.origin.tenant, write=False) as unit:
            child = child_of(unit, case.origin.run, promise)
        if child is None or not child.ended:
            return
        found = _result(child)
        self._finish(case, promise, found)
        case.note(
            "child.ended",
            {
                "promise": promise, "run": child.origin.run, "status": child.state, "error_class": found.error_class,
                "journal_version": child.history.version, "journal_head": child.history.head.hex(),
            },
        )  # fmt: skip
        if settle_cancel(case.history, case.micros):
            case.close("canceled")
        elif can_turn(case.history):
            case.put_work("", "advance")

    def _finish(self, case: Case, promise: str, found: Result) -> None:
        name = case.promise_id(promise)
        case.accept(Finished(name, 1, found.ok, found.value, found.error_class, found.message))
        said = "" if found.ok else f"{found.error_class}: {found.message}"[:500]
        case.touch(promise, state="succeeded" if found.ok else "failed_terminal", attempt=1, last_error=said)

    def cancel(self, lease: Lease) -> None:
        """The run that started this one was cancelled, or has ended without waiting: this one ends by the same rules."""
        with self._database.unit(lease.tenant) as unit:
            case = cases.load(unit, lease.run, lock=True)
            case.work_done.append((lease.item, lease.stage))
            if not case.ended and not case.cancel_requested:
                o = case.origin
                case.note("cancel.inherited", {"run": o.parent, "promise": o.parent_promise})
                withdrawing.cancel(unit, case, CancelAsked(f"parent:{o.parent}"))
            cases.commit(unit, case, (lease,))


def _startable(order: StartChild, known: Family) -> Program | Result:
    """The program that such a run would have, or why it cannot begin."""
    found = known.workflows.get(order.workflow)
    if found is None:
        return _refused("unknown_workflow", f"workflow {order.workflow} has no active version")
    state, program = found
    if state != "active":
        return _refused("workflow_paused", f"workflow {order.workflow} is {state} and starts nothing")
    faults = check_input(program, {} if order.input is None else order.input)
    if faults:
        return _refused("invalid_input", "; ".join(faults[:20])[:2_000])
    return program


def _result(child: Case) -> Result:
    if child.state == "canceled":
        return CANCELED
    end = child.stored[-1].event
    files = Files(child.origin.salt_key, child.payloads)
    return files.result(getattr(end, "result", "") or getattr(end, "error", ""))


def _refused(error_class: str, message: str) -> Result:
    return Result(False, None, error_class, message)
