"""Advance: run the program to its next wait or its end, and hand over what it wants."""

from __future__ import annotations

import datetime

from engine.journal.status import Blocked
from engine.kernel import Advanced, advance, delivered, name_of, opened, rebuild
from engine.program.definition import Definition
from engine.program.function_commands import StartChild
from engine.program.interpreter import begin
from engine.program.orders import AskPerson, Complete, Context, Fail, Listen, Propose, Sleep, StartRun, Take
from engine.program.snapshot import Frame
from governance.store import withdrawing
from governance.store.case import CHILD, Case, Follows, Promise, timer_ref

_epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def context_of(case: Case) -> Context:
    """What expressions may see of this run."""
    o = case.origin
    return Context(
        tenant=o.tenant, workspace=o.workspace, run=o.run, workflow=o.workflow, version=o.version,
        started_at=o.created_at.isoformat(), trigger={"type": o.trigger_type, "ref": o.trigger_ref}, input=opened(case.payloads[o.input]),
    )  # fmt: skip


def step(case: Case, definition: Definition) -> Follows:
    """One turn of the program, and what it wants; nothing when the run has ended or still waits."""
    history = case.history
    if case.ended or case.cancel_requested:
        return Follows()
    if case.frame is None:
        events = (*case.stored, *history.pending())
        case.frame = rebuild(events, definition, context_of(case), case.payloads) if history.started else begin()
    if isinstance(history.status, Blocked) and not history.can_resume():
        return Follows()
    frame = _told(case, definition, case.frame)
    first = not history.started
    advanced = _advanced(case, definition, frame)
    if advanced is None:
        case.releases_children = True
        return Follows()  # whatever comes of what is in flight brings the run here again
    case.frame = advanced.frame
    for kept in advanced.payloads:
        case.keep(kept.commit, kept.body)
    if first:
        case.note("run.started", {"journal_version": history.version})
        case.state = "running"
    if isinstance(advanced.outcome, Complete | Fail):
        case.close("succeeded" if isinstance(advanced.outcome, Complete) else "failed_terminal")
        return Follows()
    return _follow(case, advanced)


def _told(case: Case, definition: Definition, frame: Frame) -> Frame:
    """The frame that knows of everything that has ended and that it waited for."""
    for child in frame.open:
        result = case.history.result(case.history.execution.child(child))
        if result is not None:
            frame = delivered(definition, frame, str(result), case.payloads, child)
    return frame


def _advanced(case: Case, definition: Definition, frame: Frame) -> Advanced | None:
    return advance(
        case.history, definition, frame, context_of(case), case.origin.salt_key, case.start, case.micros, case.payloads,
        ends=lambda: withdrawing.ended(case),
    )  # fmt: skip


def _follow(case: Case, advanced: Advanced) -> Follows:
    for promise, fire_at in advanced.timers:
        case.add("due", kind="timer", ref=timer_ref(promise), at=_epoch + datetime.timedelta(microseconds=fire_at))
    judge: list[str] = []
    children: list[StartChild] = []
    apart: set[int] = set()
    for order in advanced.orders:
        match order:
            case Propose():
                judge.append(_put(case, order.child, order.step_id, order.step_index, name_of(order)))
                if order.reverses:
                    body = {"promise": judge[-1], "step": order.step_id, "of": order.reverses}
                    case.note("reversal.proposed", body)
            case AskPerson():
                judge.append(_put(case, order.child, order.step_id, order.step_index, name_of(order)))
            case StartRun():
                kind = "" if order.apart else CHILD
                _put(case, order.child, order.step_id, order.step_index, name_of(order), kind)
                children.append(StartChild(order.child, order.workflow, order.input))
                apart |= {order.child} if order.apart else set()
            case Listen():
                _listen(case, order)
            case Sleep() | Take():
                case.state = "running"
    return Follows(tuple(judge), tuple(children), frozenset(apart))


def _listen(case: Case, order: Listen) -> None:
    _put(case, order.child, order.step_id, order.step_index, name_of(order))
    if order.deadline_s:
        until = case.now + datetime.timedelta(seconds=order.deadline_s)
        case.add("due", kind="signal", ref=timer_ref(case.history.execution.child(order.child)), at=until)
        case.touch(case.history.execution.child(order.child).local, deadline_at=until)


def _put(case: Case, child: int, step: str, index: int, tool: str, kind: str = "") -> str:
    local = case.history.execution.child(child).local
    case.promises[local] = Promise(
        promise=local, step=step, step_index=index, tool=tool, key="", kind=kind, state="ready"
    )
    case.touch(local)
    case.state = "running"
    return local
