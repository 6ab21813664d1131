"""The kinds of steps that a definition is made of, as plain immutable values."""

from __future__ import annotations

from dataclasses import dataclass

from engine.program.formula import Formula


@dataclass(frozen=True, slots=True)
class AssignStep:
    """Writes business state; every value sees the state as it was before the step."""

    id: str
    values: tuple[tuple[str, Formula], ...]


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """Sets what people call this piece of business by; runs, tasks and pages show it."""

    id: str
    value: Formula


@dataclass(frozen=True, slots=True)
class TransformStep:
    """Computes a value and keeps it as a result."""

    id: str
    value: Formula
    result: str


@dataclass(frozen=True, slots=True)
class ActionStep:
    """Proposes one side effect (or read) and waits for its outcome."""

    id: str
    connector: str
    operation: str
    target_type: Formula
    target_id: Formula
    fields: tuple[tuple[str, Formula], ...]
    risk: str
    amount: Formula | None  # in the smallest unit of the currency
    currency: str
    result: str  # the name under `steps`, empty when nobody reads it
    key: Formula | None  # the effect key, when the author gives one
    deadline_s: int
    max_attempts: int
    on_success: tuple[Step, ...] = ()
    on_failure: tuple[Step, ...] = ()  # after it the run goes on behind this step, unless the branch ends it
    on_timeout: tuple[Step, ...] = ()
    undoes: bool = False  # on_failure: reverse
    reversal: str = ""  # skip | by:<operation> | person; only in a definition that undoes


@dataclass(frozen=True, slots=True)
class TaskStep:
    """Asks people to fill in a form, and others to sign what was answered where `sign_off` names groups."""

    id: str
    form: Formula
    sign_off: Formula
    result: str
    on_success: tuple[Step, ...] = ()
    on_failure: tuple[Step, ...] = ()
    on_timeout: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class SubworkflowStep:
    """Runs another workflow as a run of its own and waits for its result."""

    id: str
    workflow: str
    input: Formula
    result: str
    on_success: tuple[Step, ...] = ()
    on_failure: tuple[Step, ...] = ()
    on_timeout: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class ContinueStep:
    """Starts another workflow that goes its own way; this run does not wait for it."""

    id: str
    workflow: str
    input: Formula
    result: str


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Waits for a while, until a moment, or for a signal: exactly one of `seconds`, `until` and `signal` is there."""

    id: str
    seconds: Formula | None
    until: Formula | None
    signal: str
    result: str
    deadline_s: int  # for a signal; 0: as long as it takes
    on_timeout: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of a branch: the condition, and what is done when it is the first that holds."""

    when: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class BranchStep:
    """Takes the first way whose condition holds, or the steps of `otherwise`."""

    id: str
    arms: tuple[Arm, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class RepeatStep:
    """Does its steps once for each item of a collection, or again until a condition holds; never more often than `most`."""

    id: str
    over: Formula | None
    until: str
    name: str  # what expressions call the item: each.<name>
    most: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of steps of a parallel step, begun when the lanes it needs are done."""

    id: str
    needs: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ParallelStep:
    """Goes along several lanes at once and goes on when all of them are done."""

    id: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class CompleteStep:
    """Ends the run as succeeded; with a condition, only when it holds."""

    id: str
    when: str
    result: Formula


@dataclass(frozen=True, slots=True)
class FailStep:
    """Ends the run as failed; with a condition, only when it holds."""

    id: str
    when: str
    error_class: str
    message: Formula


Routed = ActionStep | TaskStep | SubworkflowStep  # an operation whose outcome chooses a branch
Step = (
    AssignStep
    | ReferenceStep
    | TransformStep
    | ActionStep
    | TaskStep
    | SubworkflowStep
    | ContinueStep
    | WaitStep
    | BranchStep
    | RepeatStep
    | ParallelStep
    | CompleteStep
    | FailStep
)
