"""Takes back what a run has asked of others: when it is cancelled under its lock, and when it ends before they have answered."""

from __future__ import annotations

from engine.kernel import CancelAsked, Signalled, settle_cancel
from governance.store import approvals, tasks
from governance.store.case import Case
from governance.store.unit import Unit


def cancel(unit: Unit, case: Case, asked: CancelAsked) -> None:
    """Add the cancellation to the case; the caller has locked the run, said who wants it, and commits."""
    case.cancel_requested = True
    case.releases_children = True
    open_ones = [approvals.load(unit, one, lock=True).asked for one in approvals.open_of_run(unit, case.origin.run)]
    for one in open_ones:
        case.approval_status[one.id] = "canceled"
        case.add("due_done", kind="approval", ref=one.id)
        body = {
            "approval": one.id,
            "promise": one.promise,
            "action_sha256": one.action_digest.hex(),
            "why": "run_canceled",
        }
        case.note("approval.canceled", body)
        case.posts.append(("card", one.id, {}))
    tasks.withdraw(case, "run_canceled")
    if not case.history.started:
        # A run that never began has no journal to cancel: it ends queued to canceled, with its entries.
        case.work_done.append(("", "advance"))
        case.close("canceled")
        return
    case.accept(asked)
    for one in open_ones:
        case.accept(Signalled(f"approval:{one.id}", "canceled"))
    if settle_cancel(case.history, case.micros):
        case.work_done.extend((p, s) for p in ("", *case.promises) for s in ("advance", "judge", "execute"))
        case.close("canceled")


def ended(case: Case) -> None:
    """The run is about to end: nobody waits for these questions any more."""
    for promise in case.promises.values():
        if promise.state == "waiting_approval" and promise.approval:
            approval = promise.approval
            case.approval_status[approval] = "canceled"
            case.add("due_done", kind="approval", ref=approval)
            digest = case.action_digests[promise.promise].hex()
            body = {"approval": approval, "promise": promise.promise, "action_sha256": digest, "why": "run_ended"}
            case.note("approval.canceled", body)
            case.show_card(approval)
            case.accept(Signalled(f"approval:{approval}", "canceled"))
    tasks.withdraw(case, "run_ended")
