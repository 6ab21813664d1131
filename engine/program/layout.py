"""Where each step of a definition stands, and where the program goes on from there: the graph that is interpreted and drawn."""

from __future__ import annotations

from dataclasses import dataclass

from engine.program.kinds import (
    ActionStep,
    BranchStep,
    ParallelStep,
    RepeatStep,
    Step,
    SubworkflowStep,
    TaskStep,
    WaitStep,
)

LANE_END = -2  # behind the last step of a lane


@dataclass(frozen=True, slots=True)
class Placed:
    """A step at its place in the program, and where the program goes on: behind it, or into a branch (-1: there is none)."""

    step: Step
    next: int
    success: int = -1
    failure: int = -1
    timeout: int = -1
    into: tuple[
        int, ...
    ] = ()  # the ways of a branch and then its otherwise, the body of a repeat, the lanes of a parallel


def laid_out(steps: tuple[Step, ...]) -> tuple[Placed, ...]:
    """Every step at its place: those of the definition first, those of branches behind them; its length is the end."""
    placed: list[Placed] = []
    _lay_out(steps, _count(steps), placed)
    return tuple(placed)


def routes(step: Step) -> tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]:
    """What follows success, failure and a time that is up."""
    if isinstance(step, ActionStep | TaskStep | SubworkflowStep):
        return step.on_success, step.on_failure, step.on_timeout
    return (), (), step.on_timeout if isinstance(step, WaitStep) else ()


def bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The lines of steps that a step of structure has inside it."""
    match step:
        case BranchStep(arms=arms, otherwise=otherwise):
            return (*(arm.steps for arm in arms), otherwise)
        case RepeatStep(steps=steps):
            return (steps,)
        case ParallelStep(lanes=lanes):
            return tuple(lane.steps for lane in lanes)
    return ()


def _count(steps: tuple[Step, ...]) -> int:
    return sum(1 + sum(map(_count, (*routes(step), *bodies(step)))) for step in steps)


def _lay_out(steps: tuple[Step, ...], after: int, placed: list[Placed]) -> int:
    """Put steps behind what is placed already; `after` is where the last of them goes on. The place of the first, -1 for none."""
    if not steps:
        return -1
    start = len(placed)
    placed.extend(Placed(step, start + n + 1 if n + 1 < len(steps) else after) for n, step in enumerate(steps))
    for at, step in enumerate(steps, start):
        follows = placed[at].next
        ways = [_lay_out(branch, follows, placed) for branch in routes(step)]
        behind = follows if isinstance(step, BranchStep) else at if isinstance(step, RepeatStep) else LANE_END
        into = tuple(_lay_out(body, behind, placed) for body in bodies(step))
        placed[at] = Placed(step, follows, ways[0], ways[1], ways[2], into)
    return start
