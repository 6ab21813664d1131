"""Turn: advance a workflow in Python: ask its host what comes next, append it by the guards, and hand over what it wants."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.gate.action import OperationSpec
from engine.ids import PromiseId
from engine.kernel import Files, advance_function, begun
from engine.program import function_commands as do
from engine.program.function import Turn
from engine.program.function_code import Component, check_pinned
from engine.program.function_journal import Applied, Feed, can_turn, child_prefix, task_name
from engine.program.programs import Function
from governance.store import withdrawing
from governance.store.case import CHILD, Case, Follows, Promise, timer_ref

_epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Hosting(Protocol):
    """The processes that run authors' code."""

    def turn(self, component: Component, feed: Feed, *, now: int, entropy: bytes, tenant: str) -> Turn:
        """What follows from a journal."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One turn as it is asked: asking again gives the same answer, and applying it needs the same moment and chance."""

    component: Component
    feed: Feed
    now: int
    entropy: bytes


class Turns:
    """The hands of this stage: the hosts, the catalogue of operations, and chance."""

    def __init__(
        self,
        hosts: Hosting,
        *,
        catalog: Callable[[], Mapping[tuple[str, str], OperationSpec]],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._hosts = hosts
        self._catalog = catalog
        self._random_bytes = random_bytes

    def prepare(self, case: Case, function: Function) -> Asking | None:
        """What to ask the host; None while the run waits for something that has not come, or is over. Changes no run."""
        if case.ended or case.cancel_requested:
            return None
        history = begun(case.history, case.start, case.micros)
        if not can_turn(history):
            return None
        check_pinned(f"sha256:{case.code.hex()}", function.component)
        feed = case.feed or Feed(Files(case.origin.salt_key, case.payloads))
        case.feed = None  # until the answer is there: what is asked in vain is asked of a new feed
        feed.take(case.stored[feed.version :])
        feed.take(history.pending())
        return Asking(function.component, feed, case.micros, self._random_bytes(32))

    def ask(self, case: Case, asking: Asking) -> Turn:
        """The host's answer. Nothing of the case is read or changed but its tenant's name, so it may be asked from the side."""
        return self._hosts.turn(
            asking.component, asking.feed, now=asking.now, entropy=asking.entropy, tenant=case.origin.tenant
        )

    def take(self, case: Case, asking: Asking, turn: Turn) -> Follows:
        """Append the turn and keep what it needs. A run ends when nothing of it is in flight."""
        case.feed = asking.feed
        ends = any(isinstance(command, do.Complete | do.Fail) for command in turn.commands)
        if ends and any(invoke.phase == "started" for invoke in case.history.open_invokes()):
            case.releases_children = True
            return Follows()  # whatever comes of that effect or that child brings the run here again
        if ends:
            withdrawing.ended(case)
        first = not case.history.started
        history = begun(case.history, case.start, asking.now)
        files = Files(case.origin.salt_key, case.payloads)
        applied = advance_function(history, turn, files, self._proposed, now=asking.now, entropy=asking.entropy)
        case.history = history
        for kept in files.new:
            case.keep(kept.commit, kept.body)
        if first:
            case.note("run.started", {"journal_version": history.version})
            case.state = "running"
        return self._follow(case, applied)

    def _follow(self, case: Case, applied: Applied) -> Follows:
        for promise, fire_at in applied.timers:
            at = _epoch + datetime.timedelta(microseconds=fire_at)
            case.add("due", kind="timer", ref=timer_ref(promise), at=at)
        for promise, command in applied.invokes:
            asked = command.input
            _put(case, promise, asked["step_id"], asked["step_index"], f"{asked['connector']}.{asked['operation']}")
        for promise, task in applied.tasks:
            _put(case, promise, f"task-{task.child}", task.child, task_name)
        for promise, wanted in applied.children:
            _put(case, promise, wanted.workflow, wanted.child, f"{child_prefix}{wanted.workflow}", CHILD)
        if applied.ended is not None:
            case.close("succeeded" if isinstance(applied.ended, do.Complete) else "failed_terminal")
            return Follows()
        return Follows(
            tuple(promise.local for promise, _ in (*applied.invokes, *applied.tasks)),
            tuple(wanted for _, wanted in applied.children),
        )

    def _proposed(self, command: do.Invoke) -> dict[str, Any]:
        """A proposal with what its author left to the catalogue; an operation that is not there is refused when it is judged."""
        value = dict(command.input)
        spec = self._catalog().get((value["connector"], value["operation"]))
        value["risk"] = value["risk"] or (spec.risk if spec else "high")
        kind = value["target"]["type"] or (spec.target_type if spec else "unknown")
        value["target"] = {"type": kind, "id": value["target"]["id"]}
        return value


def _put(case: Case, promise: PromiseId, step: str, index: int, tool: str, kind: str = "") -> None:
    case.promises[promise.local] = Promise(
        promise=promise.local, step=step, step_index=index, tool=tool, key="", kind=kind, state="ready"
    )
    case.touch(promise.local)
    case.state = "running"
