"""Runs a definition from one durable wait to the next: pure, so that the same frame always gives the same turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import BrokenJournal, StaleWake
from engine.limits import repeat_items_max, steps_per_turn_max
from engine.program import evaluating
from engine.program.definition import Definition
from engine.program.expression import ExprError, Scope, admit, check_size
from engine.program.kinds import (
    ActionStep,
    AssignStep,
    BranchStep,
    CompleteStep,
    ContinueStep,
    FailStep,
    ParallelStep,
    ReferenceStep,
    RepeatStep,
    SubworkflowStep,
    TaskStep,
    TransformStep,
    WaitStep,
)
from engine.program.layout import LANE_END, Placed
from engine.program.orders import Complete, Context, Fail, Listen, Several, Single, StartRun, Take, Turn
from engine.program.snapshot import Frame
from engine.program.undoing import begin_undo, next_undo, undone

# Time was up: of a call, of people who were asked, or of the step before it could be tried again.
TIMEOUTS = ("timeout", "approval_expired", "deadline", "expired")
_bad_result = "bad_result"
_expression_error = "expression_error"
_too_many_steps = "too_many_steps"


def begin() -> Frame:
    """Before the first step."""
    return Frame()


def run_to_wait(
    definition: Definition, frame: Frame, context: Context, inbox: Mapping[str, Sequence[Any]] | None = None
) -> Turn:
    """Go on from this frame until something must be done outside, or the program ends.

    `inbox` has the signals that came and were not consumed, by name, the oldest first.
    """
    if frame.waiting is not None and not frame.lanes:
        raise StaleWake(f"the run waits for its operation {frame.waiting}; deliver that outcome first")
    if frame.step > len(definition.flat):
        raise BrokenJournal("frame", f"the frame is at step {frame.step} of {len(definition.flat)}")
    if frame.undo:
        return next_undo(definition, frame)
    if frame.error_class:
        return Turn(frame, Fail(frame.error_class, frame.error))
    return _Machine(definition, frame, context, inbox or {}).run()


@dataclass(slots=True)
class _Line:
    """One line of steps on its way: the run's own, or a lane of a parallel step."""

    id: str  # empty: the run's own; else the line that it branched off from, the place and the number of its lane
    under: str
    place: int
    lane: int
    step: int
    waiting: int | None
    caught: dict[str, str]
    loops: list[list[Any]]  # [place, turn, items]; the innermost last

    def to_value(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _line_keys}


_line_keys = ("id", "under", "place", "lane", "step", "waiting", "caught", "loops")


class _Machine:
    """One turn: every line goes on until each waits, is done, or the run has ended."""

    def __init__(
        self, definition: Definition, frame: Frame, context: Context, inbox: Mapping[str, Sequence[Any]]
    ) -> None:
        self._flat = definition.flat
        self._frame = frame
        self._context = context
        self._inbox = {name: list(found) for name, found in inbox.items()}
        self._state = frame.state
        self._steps = frame.steps
        self._reference = frame.reference
        self._next_child = frame.next_child
        own = _Line("", "", -1, -1, frame.step, frame.waiting, frame.caught, [list(each) for each in frame.loops])
        self._lines = {"": own}
        for each in frame.lanes:
            line = _Line(**{**each, "loops": [list(loop) for loop in each["loops"]]})
            self._lines[line.id] = line
        self._joins = {
            str(line): list(done) for line, done in frame.joins
        }  # what of a fork is done, by the line that waits
        self._orders: list[Single | Take] = []
        self._count = 0
        self._where = "the input"

    def run(self) -> Turn:
        """The turn."""
        line = self._runnable()
        if line is None:
            raise StaleWake("the run waits for its operations; deliver an outcome first")
        try:
            while line is not None:
                ended = self._go(line)
                if ended is not None:
                    return Turn(self._now(), ended, self._consumed())
                line = self._runnable()
        except ExprError as error:
            return Turn(self._now(), Fail(_expression_error, f"{self._where}: {error.message}"), self._consumed())
        on = tuple(sorted(each.waiting for each in self._lines.values() if each.waiting is not None))
        if len(self._orders) == 1 == len(on) and not isinstance(self._orders[0], Take):
            return Turn(self._now(), self._orders[0])
        return Turn(self._now(), Several(tuple(self._orders), on))

    def _consumed(self) -> tuple[Single | Take, ...]:
        last = max((n for n, order in enumerate(self._orders) if isinstance(order, Take)), default=-1)
        return tuple(self._orders[: last + 1])

    def _runnable(self) -> _Line | None:
        for line in self._lines.values():
            if line.waiting is None and line.id not in self._joins:
                return line
        return None

    def _now(self) -> Frame:
        own, *lanes = self._lines.values()
        return replace(
            self._frame, step=own.step, state=self._state, steps=self._steps, next_child=self._next_child, waiting=own.waiting,
            caught=own.caught, loops=own.loops, lanes=[each.to_value() for each in lanes], reference=self._reference,
            joins=[[line, done] for line, done in self._joins.items()],
        )  # fmt: skip

    # --- one line -----------------------------------------------------------------------------------------------------

    def _go(self, line: _Line) -> Complete | Fail | None:
        """On to a wait, to the end of a lane, or to the end of the run."""
        size = admit(self._roots(line), -2)  # two levels around the values: the roots and the names in them
        while line.waiting is None and line.id not in self._joins:
            if line.step == LANE_END:
                self._lane_done(line)
                return None
            if line.step >= len(self._flat):
                return Complete({})
            self._count += 1
            here = self._flat[line.step]
            self._where = f"step {here.step.id!r}"
            if self._count > steps_per_turn_max:
                return Fail(_too_many_steps, f"{self._where}: more than {steps_per_turn_max} steps without a wait")
            check_size(size)
            state, steps = self._state, self._steps
            ended = self._do(line, here, Scope(self._roots(line)))
            if ended is not None:
                return ended
            if isinstance(here.step, RepeatStep):
                size = admit(self._roots(line), -2)
            elif self._state is not state or self._steps is not steps:
                size += _grown(state, self._state) + _grown(steps, self._steps)
        return None

    def _roots(self, line: _Line) -> dict[str, Any]:
        roots = self._context.roots(self._reference)
        roots["state"], roots["steps"] = self._state, self._steps
        if line.caught:
            roots["run"]["error"] = line.caught
        if each := self._each(line):
            roots["each"] = each
        return roots

    def _each(self, line: _Line) -> dict[str, Any]:
        """The items of the loops that the line is in, those of the lines that it branched off from included."""
        found = self._each(self._lines[line.under]) if line.id else {}
        for place, turn, items in line.loops:
            step = self._flat[place].step
            assert isinstance(step, RepeatStep)
            if items is not None:
                found[step.name] = items[turn]
            found[f"{step.name}_index"] = turn
        return found

    def _do(self, line: _Line, here: Placed, scope: Scope) -> Complete | Fail | None:
        step = here.step
        match step:
            case AssignStep():
                # A new map, because the scope of a step shows the state as it was before that step.
                values = {name: evaluating.named(name, each, scope) for name, each in step.values}
                self._state = {**self._state, **values}
            case TransformStep():
                self._steps = {**self._steps, step.result: evaluating.named("value", step.value, scope)}
            case ReferenceStep():
                self._reference = evaluating.text("value", step.value, scope)[:200]
            case BranchStep():
                line.step = self._way(here, step, scope)
                return None
            case RepeatStep():
                line.step = self._repeat(line, here, step, scope)
                return None
            case ParallelStep():
                self._fork(line, step)
                return None
            case CompleteStep() | FailStep():
                if evaluating.applies(step, scope):
                    return evaluating.end(step, scope)
            case WaitStep(signal=name) if name and self._inbox.get(name):
                value = self._inbox[name].pop(0)
                self._orders.append(Take(self._allocate(), name))
                if step.result:
                    admit(value)
                    self._steps = {**self._steps, step.result: value}
            case _:
                self._order(line, step, scope)
                return None
        line.step = here.next
        return None

    def _order(
        self,
        line: _Line,
        step: ActionStep | TaskStep | SubworkflowStep | ContinueStep | WaitStep,
        scope: Scope,
    ) -> None:
        """Something is to be done outside, and this line waits for it."""
        at, child = line.step, self._next_child
        order: Single
        match step:
            case ActionStep():
                order = evaluating.proposal(step, at, child, scope)
            case TaskStep():
                order = evaluating.question(step, at, child, scope)
            case SubworkflowStep() | ContinueStep():
                value = evaluating.named("input", step.input, scope)
                order = StartRun(child, step.workflow, value, step.id, at, isinstance(step, ContinueStep))
            case WaitStep():
                if step.signal:
                    order = Listen(child, step.signal, step.deadline_s, step.id, at)
                else:
                    order = evaluating.pause(step, child, scope)
        line.waiting = self._allocate()
        self._orders.append(order)

    def _allocate(self) -> int:
        self._next_child += 1
        return self._next_child - 1

    def _way(self, here: Placed, step: BranchStep, scope: Scope) -> int:
        for number, arm in enumerate(step.arms):
            if evaluating.holds(f"arms[{number}].when", arm.when, scope):
                return here.into[number]
        return here.into[-1] if here.into[-1] >= 0 else here.next

    # --- repeating ----------------------------------------------------------------------------------------------------

    def _repeat(self, line: _Line, here: Placed, step: RepeatStep, scope: Scope) -> int:
        """Where the line goes on: into the next turn of the loop, or behind it."""
        if line.loops and line.loops[-1][0] == line.step:
            loop = line.loops.pop()
            turn, items = loop[1] + 1, loop[2]
            over = turn >= len(items) if items is not None else evaluating.holds("until", step.until, scope)
            if over:
                return here.next
            if turn >= step.most:
                raise ExprError(f"until does not hold after {step.most} turns, which is the most that the step allows")
        else:
            turn, items = 0, None
            if step.over is not None:
                items = evaluating.named("over", step.over, scope)
                if type(items) is not list:
                    raise ExprError("over: a list can stand here")
                most = min(step.most, repeat_items_max)
                if len(items) > most:
                    raise ExprError(f"over: {len(items)} items; this step takes at most {most}")
                if not items:
                    return here.next
        line.loops.append([line.step, turn, items])
        return here.into[0]

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _fork(self, line: _Line, step: ParallelStep) -> None:
        self._joins[line.id] = []
        self._begin_lanes(line, step, [])

    def _begin_lanes(self, line: _Line, step: ParallelStep, done: Sequence[int]) -> None:
        """Every lane whose needs are done and that has not begun."""
        here, names = self._flat[line.step], {step.lanes[number].id for number in done}
        for number, lane in enumerate(step.lanes):
            ident = f"{line.id}/{line.step}.{number}"
            if number not in done and ident not in self._lines and names.issuperset(lane.needs):
                self._lines[ident] = _Line(ident, line.id, line.step, number, here.into[number], None, line.caught, [])

    def _lane_done(self, line: _Line) -> None:
        del self._lines[line.id]
        above = self._lines[line.under]
        here = self._flat[above.step]
        assert isinstance(here.step, ParallelStep)
        done = sorted([*self._joins[above.id], line.lane])
        self._joins[above.id] = done
        if len(done) == len(here.step.lanes):
            del self._joins[above.id]
            above.step = here.next
        else:
            self._begin_lanes(above, here.step, done)


def _grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """By how much a map has grown that was copied to change it."""
    if before is after:
        return 0
    changed = [name for name in after if before.get(name) is not after[name]]
    return sum(admit(after[name]) - admit(before.get(name)) for name in changed)


# --- outcomes ---------------------------------------------------------------------------------------------------------


def deliver(
    definition: Definition,
    frame: Frame,
    ok: bool,
    value: Any = None,
    error_class: str = "",
    message: str = "",
    *,
    child: int | None = None,
) -> Frame:
    """The step that waits for this operation gets its outcome; a failure that nobody deals with ends the run at its next turn."""
    wanted = frame.waiting if child is None else child
    if wanted is None or wanted not in frame.open:
        raise StaleWake("the run waits for no operation" if wanted is None else f"nothing waits for operation {wanted}")
    if frame.undo:
        return undone(definition, frame, ok, value, error_class, message)
    place, caught = frame.step, frame.caught
    for lane in frame.lanes:
        if lane["waiting"] == wanted:
            place, caught = lane["step"], lane["caught"]
    here = definition.flat[place] if place < len(definition.flat) else None
    if here is None or not isinstance(here.step, _waiting):
        raise BrokenJournal("frame", f"the frame waits at step {place}, which waits for nothing")
    if not ok:
        return _failed(definition, frame, here, wanted, error_class or "failed", message)
    if isinstance(here.step, WaitStep) and here.step.signal:
        return _moved(frame, wanted, place, caught)  # to the same step again, which finds the signal
    steps, done = frame.steps, frame.done
    result = "" if isinstance(here.step, WaitStep) else here.step.result
    if result:
        try:
            admit(value)
        except ExprError as error:
            message = f"step {here.step.id!r}: the result cannot be used: {error.message}"
            return _ended(_moved(frame, wanted, place, caught), _bad_result, message)
        steps = {**steps, result: value}
    if definition.reverses and isinstance(here.step, ActionStep):
        done = [*done, [wanted, place]]
    at = here.success if here.success >= 0 else here.next
    return replace(_moved(frame, wanted, at, caught), steps=steps, done=done)


_waiting = (ActionStep, TaskStep, SubworkflowStep, ContinueStep, WaitStep)


def _failed(definition: Definition, frame: Frame, here: Placed, child: int, error_class: str, message: str) -> Frame:
    """A branch of its author's deals with the failure, or what was done before is undone, or the run fails."""
    at = here.timeout if error_class in TIMEOUTS and here.timeout >= 0 else here.failure
    if at >= 0:
        return _moved(frame, child, at, {"step": here.step.id, "error_class": error_class, "message": message})
    failed = _ended(_moved(frame, child, None, None), error_class, message)
    if isinstance(here.step, ActionStep) and here.step.undoes and not frame.error_class:
        return begin_undo(definition, failed)
    return failed


def _ended(frame: Frame, error_class: str, message: str) -> Frame:
    """The first failure that nobody deals with is what the run fails with."""
    return frame if frame.error_class else replace(frame, error_class=error_class, error=message)


def _moved(frame: Frame, child: int, at: int | None, caught: dict[str, str] | None) -> Frame:
    """The line that waits for this operation waits no more; it goes on at another place when one is given."""
    if frame.waiting == child:
        return replace(
            frame,
            waiting=None,
            step=frame.step if at is None else at,
            caught=frame.caught if caught is None else caught,
        )
    lanes = [dict(lane) for lane in frame.lanes]
    for lane in lanes:
        if lane["waiting"] == child:
            lane["waiting"] = None
            lane["step"] = lane["step"] if at is None else at
            lane["caught"] = lane["caught"] if caught is None else caught
    return replace(frame, lanes=lanes)
