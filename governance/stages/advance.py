"""Advance: run the program to its next wait or its end, and hand over what it wants."""

from __future__ import annotations

from engine.errors import BrokenJournal
from engine.journal.status import Blocked
from engine.kernel import advance, delivered, opened, rebuild
from engine.program.definition import Definition
from engine.program.function_journal import task_name
from engine.program.interpreter import AskPerson, Complete, Context, Propose, begin
from governance.store.case import Case, Promise


def context_of(case: Case) -> Context:
    """What expressions may see of this run."""
    o = case.origin
    return Context(
        tenant=o.tenant, workspace=o.workspace, run=o.run, workflow=o.workflow, version=o.version,
        started_at=o.created_at.isoformat(), trigger={"type": o.trigger_type, "ref": o.trigger_ref}, input=opened(case.payloads[o.input]),
    )  # fmt: skip


def step(case: Case, definition: Definition) -> str | None:
    """One turn of the program. Returns the promise to judge next, None when the run has ended or still waits."""
    history, now = case.history, case.micros
    if case.ended or case.cancel_requested:
        return None
    frame = case.frame
    if frame is None:
        frame = rebuild(history, definition, context_of(case), case.payloads) if history.started else begin()
    if isinstance(history.status, Blocked):
        if not history.can_resume():
            case.frame = frame
            return None
        if frame.waiting is not None:
            invoke = history.invoke(history.execution.child(frame.waiting))
            if invoke is None or invoke.phase != "completed":
                raise BrokenJournal("frame", f"the frame waits for operation {frame.waiting}, which has no result")
            frame = delivered(definition, frame, invoke.result, case.payloads)
    first = not history.started
    advanced = advance(history, definition, frame, context_of(case), case.origin.salt_key, case.start, now)
    case.frame = advanced.frame
    for kept in advanced.payloads:
        case.keep(kept.commit, kept.body)
    if first:
        case.note("run.started", {"journal_version": history.version})
        case.state = "running"
    if isinstance(advanced.outcome, AskPerson):
        asked = advanced.outcome
        return _put(case, asked.child, asked.step_id, asked.step_index, task_name)
    if isinstance(advanced.outcome, Propose):
        return _proposed(case, advanced.outcome)
    case.close("succeeded" if isinstance(advanced.outcome, Complete) else "failed_terminal")
    return None


def _proposed(case: Case, proposal: Propose) -> str:
    tool = f"{proposal.connector}.{proposal.operation}"
    local = _put(case, proposal.child, proposal.step_id, proposal.step_index, tool)
    if proposal.reverses:
        case.note("reversal.proposed", {"promise": local, "step": proposal.step_id, "of": proposal.reverses})
    return local


def _put(case: Case, child: int, step: str, index: int, tool: str) -> str:
    local = case.history.execution.child(child).local
    case.promises[local] = Promise(
        promise=local, step=step, step_index=index, tool=tool, key="", kind="", state="ready"
    )
    case.touch(local)
    case.state = "running"
    return local
