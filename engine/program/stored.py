"""Steps as canonical values, and back: exact keys and exact types, so that what is stored means one thing."""

from __future__ import annotations

from typing import Any, TypeVar

from engine.errors import AuthorError
from engine.program.formula import Formula, formula_from, to_value
from engine.program.kinds import (
    ActionStep,
    Arm,
    AssignStep,
    BranchStep,
    CompleteStep,
    ContinueStep,
    FailStep,
    Lane,
    ParallelStep,
    ReferenceStep,
    RepeatStep,
    Routed,
    Step,
    SubworkflowStep,
    TaskStep,
    TransformStep,
    WaitStep,
)

T = TypeVar("T")
_routes = ("on_success", "on_failure", "on_timeout")


def step_value(step: Step) -> dict[str, Any]:
    """The canonical value of a step: its kind, and every key of that kind."""
    value: dict[str, Any] = {"id": step.id}
    more: dict[str, Any]
    match step:
        case AssignStep():
            return {**value, "kind": "assign", "values": {name: to_value(each) for name, each in step.values}}
        case ReferenceStep():
            return {**value, "kind": "business_reference", "value": to_value(step.value)}
        case TransformStep():
            return {**value, "kind": "transform", "value": to_value(step.value), "result": step.result}
        case CompleteStep():
            return {**value, "kind": "complete", "when": step.when, "result": to_value(step.result)}
        case FailStep():
            more = {"when": step.when, "error_class": step.error_class, "message": to_value(step.message)}
            return {**value, "kind": "fail", **more}
        case TaskStep():
            more = {"form": to_value(step.form), "sign_off": to_value(step.sign_off), "result": step.result}
            return {**_routed(step), **value, "kind": "task", **more}
        case SubworkflowStep():
            more = {"workflow": step.workflow, "input": to_value(step.input), "result": step.result}
            return {**_routed(step), **value, "kind": "subworkflow", **more}
        case ContinueStep():
            more = {"workflow": step.workflow, "input": to_value(step.input), "result": step.result}
            return {**value, "kind": "continue_with", **more}
        case WaitStep():
            return {**value, "kind": "wait", **_wait_value(step)}
        case BranchStep():
            arms = [{"when": arm.when, "steps": _values(arm.steps)} for arm in step.arms]
            return {**value, "kind": "branch", "arms": arms, "otherwise": _values(step.otherwise)}
        case RepeatStep():
            over = None if step.over is None else to_value(step.over)
            more = {"over": over, "until": step.until, "as": step.name, "most": step.most, "steps": _values(step.steps)}
            return {**value, "kind": "repeat", **more}
        case ParallelStep():
            lanes = [{"id": lane.id, "needs": list(lane.needs), "steps": _values(lane.steps)} for lane in step.lanes]
            return {**value, "kind": "parallel", "lanes": lanes}
        case ActionStep():
            return _action_value(step)


def _values(steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    return [step_value(each) for each in steps]


def _routed(step: Routed) -> dict[str, Any]:
    # Keys that a step without branches does not have, so that its digest is what it always was.
    return {name: _values(getattr(step, name)) for name in _routes if getattr(step, name)}


def _wait_value(step: WaitStep) -> dict[str, Any]:
    return {
        "seconds": None if step.seconds is None else to_value(step.seconds),
        "until": None if step.until is None else to_value(step.until),
        "signal": step.signal,
        "result": step.result,
        "deadline_s": step.deadline_s,
        "on_timeout": _values(step.on_timeout),
    }


def _action_value(step: ActionStep) -> dict[str, Any]:
    more = _routed(step)
    if step.undoes:
        more["on_failure"] = "reverse"
    if step.reversal:
        more["reversal"] = step.reversal
    return {
        **more,
        "id": step.id,
        "kind": "action",
        "connector": step.connector,
        "operation": step.operation,
        "target": {"type": to_value(step.target_type), "id": to_value(step.target_id)},
        "fields": {name: to_value(each) for name, each in step.fields},
        "risk": step.risk,
        "amount": None if step.amount is None else to_value(step.amount),
        "currency": step.currency,
        "result": step.result,
        "key": None if step.key is None else to_value(step.key),
        "deadline_s": step.deadline_s,
        "retry": {"max_attempts": step.max_attempts},
    }


# --- back -------------------------------------------------------------------------------------------------------------


def step_from(value: Any) -> Step:
    """The step that a stored canonical value holds; AuthorError for anything else."""
    kind = value.get("kind") if type(value) is dict else None
    match kind:
        case "action":
            return _action_from(value)
        case "branch" | "repeat" | "parallel" | "wait":
            return _structure_from(kind, value)
        case "task" | "subworkflow" | "continue_with":
            return _operation_from(kind, value)
        case "assign":
            parts = exact(value, "id kind values", "an assign step")
            return AssignStep(of(parts["id"], str), formulas(parts["values"]))
        case "business_reference":
            parts = exact(value, "id kind value", "a business_reference step")
            return ReferenceStep(of(parts["id"], str), formula_from(parts["value"]))
        case "transform":
            parts = exact(value, "id kind value result", "a transform step")
            return TransformStep(of(parts["id"], str), formula_from(parts["value"]), of(parts["result"], str))
        case "complete":
            parts = exact(value, "id kind when result", "a complete step")
            return CompleteStep(of(parts["id"], str), of(parts["when"], str), formula_from(parts["result"]))
        case "fail":
            parts = exact(value, "id kind when error_class message", "a fail step")
            message = formula_from(parts["message"])
            return FailStep(of(parts["id"], str), of(parts["when"], str), of(parts["error_class"], str), message)
    raise AuthorError(f"a step of a stored definition is of no known kind: {kind!r}")


def _steps(value: Any) -> tuple[Step, ...]:
    return tuple(step_from(each) for each in of(value, list))


def _structure_from(kind: str, value: Any) -> Step:
    if kind == "branch":
        parts = exact(value, "id kind arms otherwise", "a branch step")
        arms = [exact(each, "when steps", "an arm") for each in of(parts["arms"], list)]
        ways = tuple(Arm(of(each["when"], str), _steps(each["steps"])) for each in arms)
        return BranchStep(of(parts["id"], str), ways, _steps(parts["otherwise"]))
    if kind == "repeat":
        parts = exact(value, "id kind over until as most steps", "a repeat step")
        over = None if parts["over"] is None else formula_from(parts["over"])
        return RepeatStep(
            of(parts["id"], str), over, of(parts["until"], str), of(parts["as"], str), of(parts["most"], int),
            _steps(parts["steps"]),
        )  # fmt: skip
    if kind == "parallel":
        parts = exact(value, "id kind lanes", "a parallel step")
        lanes = [exact(each, "id needs steps", "a lane") for each in of(parts["lanes"], list)]
        read = tuple(
            Lane(of(each["id"], str), tuple(of(need, str) for need in of(each["needs"], list)), _steps(each["steps"]))
            for each in lanes
        )
        return ParallelStep(of(parts["id"], str), read)
    parts = exact(value, "id kind seconds until signal result deadline_s on_timeout", "a wait step")
    return WaitStep(
        id=of(parts["id"], str),
        seconds=None if parts["seconds"] is None else formula_from(parts["seconds"]),
        until=None if parts["until"] is None else formula_from(parts["until"]),
        signal=of(parts["signal"], str),
        result=of(parts["result"], str),
        deadline_s=of(parts["deadline_s"], int),
        on_timeout=_steps(parts["on_timeout"]),
    )


def _operation_from(kind: str, value: Any) -> Step:
    more: dict[str, Any] = {name: _steps(value[name]) for name in _routes if name in value}
    rest = {name: each for name, each in value.items() if name not in more}
    if kind == "task":
        parts = exact(rest, "id kind form sign_off result", "a task step")
        form, sign_off = formula_from(parts["form"]), formula_from(parts["sign_off"])
        return TaskStep(of(parts["id"], str), form, sign_off, of(parts["result"], str), **more)
    parts = exact(rest, "id kind workflow input result", f"a {kind} step")
    head = (of(parts["id"], str), of(parts["workflow"], str), formula_from(parts["input"]), of(parts["result"], str))
    if kind == "subworkflow":
        return SubworkflowStep(*head, **more)
    if more:
        raise AuthorError("a stored continue_with step has no branches")
    return ContinueStep(*head)


def _action_from(value: Any) -> ActionStep:
    more = {name: value[name] for name in (*_routes, "reversal") if name in value}
    parts = exact(
        {name: each for name, each in value.items() if name not in more},
        "id kind connector operation target fields risk amount currency result key deadline_s retry",
        "an action step",
    )
    undoes = more.get("on_failure") == "reverse"
    branches = {name: _steps(more[name]) for name in _routes if name in more and not (undoes and name == "on_failure")}
    target = exact(parts["target"], "type id", "a target")
    return ActionStep(
        id=of(parts["id"], str),
        connector=of(parts["connector"], str),
        operation=of(parts["operation"], str),
        target_type=formula_from(target["type"]),
        target_id=formula_from(target["id"]),
        fields=formulas(parts["fields"]),
        risk=of(parts["risk"], str),
        amount=None if parts["amount"] is None else formula_from(parts["amount"]),
        currency=of(parts["currency"], str),
        result=of(parts["result"], str),
        key=None if parts["key"] is None else formula_from(parts["key"]),
        deadline_s=of(parts["deadline_s"], int),
        max_attempts=of(exact(parts["retry"], "max_attempts", "retry")["max_attempts"], int),
        **branches,
        undoes=undoes,
        reversal=of(more.get("reversal", ""), str),
    )


def formulas(value: Any) -> tuple[tuple[str, Formula], ...]:
    """Named formulas, sorted by name."""
    body = of(value, dict)
    return tuple((name, formula_from(body[name])) for name in sorted(body))


def exact(value: Any, names: str, what: str) -> dict[str, Any]:
    """A map with exactly these keys."""
    if type(value) is not dict or set(value) != set(names.split()):
        raise AuthorError(f"{what} of a stored definition has exactly these keys: {names}")
    return value


def of(value: Any, kind: type[T]) -> T:
    """A value of exactly this type."""
    if type(value) is not kind:
        raise AuthorError(f"a stored definition holds {type(value).__name__} where {kind.__name__} belongs")
    return value
