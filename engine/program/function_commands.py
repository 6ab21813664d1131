"""What a Python workflow orders in one turn: each command is one event of the journal, as a plain value and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any, NoReturn, TypeAlias

from engine.errors import CallerError
from engine.ids import check_ident
from engine.limits import approval_seconds_max, attempts_max, int_max

depth_max = 24  # below the bound of the payload's own form, which wraps maps
deadline_seconds_default = 86_400
sleep_seconds_max = 366 * 86_400
name_chars_max = 100
_operation = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})\.([a-z0-9][a-z0-9_-]{0,62})")
_name = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/@-]{{0,{name_chars_max - 1}}}")
_step = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_currency = re.compile(r"[A-Z]{3}")
_key = re.compile(r"[\x21-\x7e]{1,512}")
_error_class = re.compile(r"[a-z][a-z0-9_]{0,62}")
message_chars_max = 2_000
_reserved = ("task:", "approval:")


@dataclass(frozen=True, slots=True)
class Invoke:
    """A side effect is proposed. `input` has the fields of a proposal; empty risk and target type are the catalogue's to fill."""

    child: int
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartChild:
    """Another workflow is started as a run of its own."""

    child: int
    workflow: str
    input: Any


@dataclass(frozen=True, slots=True)
class Task:
    """People are asked to fill in a form, and to sign what was answered where `sign_off` names groups."""

    child: int
    form: dict[str, Any]
    sign_off: Any


@dataclass(frozen=True, slots=True)
class Sleep:
    """A timer of this many microseconds."""

    child: int
    micros: int


@dataclass(frozen=True, slots=True)
class Random:
    """A random value is recorded."""

    child: int


@dataclass(frozen=True, slots=True)
class Now:
    """The time is recorded."""

    child: int


@dataclass(frozen=True, slots=True)
class CreateSet:
    """A join set exists from here."""

    child: int


@dataclass(frozen=True, slots=True)
class Submit:
    """An invocation belongs to a join set."""

    join_set: int
    member: int


@dataclass(frozen=True, slots=True)
class Take:
    """A member's result is taken from its join set."""

    join_set: int
    member: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The oldest signal of this name is consumed."""

    child: int
    name: str


@dataclass(frozen=True, slots=True)
class Await:
    """The turn ends: the run waits for these children (Single, Any or All)."""

    kind: str
    on: list[int]


@dataclass(frozen=True, slots=True)
class AwaitSignal:
    """The turn ends: the run waits for a signal."""

    child: int
    name: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The workflow returned this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The workflow ended with this error."""

    error_class: str
    message: str


Command: TypeAlias = (
    Invoke
    | StartChild
    | Task
    | Sleep
    | Random
    | Now
    | CreateSet
    | Submit
    | Take
    | Receive
    | Await
    | AwaitSignal
    | Complete
    | Fail
)
KINDS: dict[str, type[Command]] = {kind.__name__: kind for kind in Command.__args__}
_FIELDS = {kind: {field.name: str(field.type) for field in fields_of(kind)} for kind in KINDS.values()}


def to_value(command: Command) -> dict[str, Any]:
    """A command as a plain value: its kind under `do` and exactly its fields."""
    kind = type(command)
    return {"do": kind.__name__, **{name: getattr(command, name) for name in _FIELDS[kind]}}


def command_from(value: object) -> Command:
    """The command that a plain value says, read strictly: exact keys, exact types."""
    kind = KINDS.get(str(value.get("do"))) if type(value) is dict else None
    if type(value) is not dict or kind is None or set(value) != {"do", *_FIELDS[kind]}:
        _refuse("is not a command")
    for name, form in _FIELDS[kind].items():
        if not _CHECKS[form](value[name]):
            _refuse(f"{kind.__name__}.{name} is not {form}")
    command = kind(**{name: value[name] for name in _FIELDS[kind]})
    try:
        is_sound = _is_sound(command)
    except (ValueError, TypeError, KeyError) as error:
        _refuse(f"is no {kind.__name__} that a workflow can order: {error}")
    if not is_sound:
        _refuse(f"is no {kind.__name__} that a workflow can order")
    return command


def _is_sound(command: Command) -> bool:
    """Whether a workflow could have ordered it by the operations of its context, which its process may have got around."""
    match command:
        case Invoke():
            return command.input == _proposed_again(command)
        case StartChild():
            return workflow_name(command.workflow) != "" and plain(command.input) == command.input
        case Await():
            return command.kind in ("Single", "Any", "All") and len(set(command.on)) == len(command.on)
        case AwaitSignal():
            return signal_name(command.name) != ""
        case Task():
            return command == task_of(command.child, command.form, command.sign_off)
        case Sleep():
            return command.micros <= sleep_seconds_max * 1_000_000
        case Complete():
            return bool(plain(command.value) == command.value)
        case Fail():
            return bool(_error_class.fullmatch(command.error_class)) and len(command.message) <= message_chars_max
    return True


def _proposed_again(command: Invoke) -> dict[str, Any]:
    given = command.input
    params = {
        name: given[name] for name in ("target", "fields", "currency", "risk", "key", "deadline_s", "max_attempts")
    }
    params |= {"step": given["step_id"], "amount": given["amount_minor"]}
    return proposed(command.child, f"{given['connector']}.{given['operation']}", params)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= int_max


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "str": lambda value: type(value) is str,
    "dict[str, Any]": lambda value: type(value) is dict,
    "list[int]": lambda value: type(value) is list and bool(value) and all(map(_is_count, value)),
    "Any": lambda value: True,
}


def _refuse(reason: str) -> NoReturn:
    raise CallerError(reason, code="not_a_command")


# --- what authors write: checked where they wrote it, as ValueError and TypeError in their own code -----------------------


def plain(value: Any, what: str = "the value") -> Any:
    """A copy that a payload can carry, its maps sorted by key; anything else is the author's error."""
    return _plain(value, what, 0)


def _plain(value: Any, what: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{what} holds a text with a lone surrogate") from None
        return value
    if kind is int:
        if abs(value) > int_max:
            raise ValueError(f"{what} holds an integer of more than 53 bits; write it as text")
        return value
    if depth >= depth_max:
        raise ValueError(f"{what} is nested deeper than {depth_max}")
    if kind is list or kind is tuple:
        return [_plain(item, what, depth + 1) for item in value]
    if kind is dict:
        if any(type(name) is not str for name in value):
            raise TypeError(f"{what} holds a map with a key that is no text")
        return {_plain(name, what, depth): _plain(value[name], what, depth + 1) for name in sorted(value)}
    advice = "; write it as text" if kind is float else ""
    raise TypeError(f"{what} holds a {kind.__name__}, which no payload can carry{advice}")


def proposed(child: int, operation: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a proposal from what an author wrote: `connector.operation` and the keys of an action step."""
    named = _operation.fullmatch(operation) if type(operation) is str else None
    if named is None:
        raise ValueError(f"{operation!r} is no operation; write it as connector.operation")
    given = plain(dict(params or {}), f"params of {operation}")
    target = given.pop("target", "-")
    if type(target) is not dict:
        target = {"type": "", "id": target}
    if set(target) != {"type", "id"}:
        raise ValueError("target is an id, or a map of type and id")
    label = re.sub(r"[^a-z0-9_-]", "-", f"{named[2]}-{child}")
    found = {
        "child": child,
        "step_id": _match(_step, given.pop("step", label if label[0].isalpha() else f"op-{label}"), "step"),
        "step_index": child,
        "connector": named[1],
        "operation": named[2],
        "target": {"type": _ident(target["type"], "target.type", blank=True), "id": _ident(target["id"], "target")},
        "fields": {name: _text(value, f"fields.{name}") for name, value in _map(given.pop("fields", {})).items()},
        "amount_minor": _number(given.pop("amount", 0), "amount", 0, int_max),
        "currency": _match(_currency, given.pop("currency", ""), "currency", blank=True),
        "risk": given.pop("risk", ""),
        "key": _match(_key, given.pop("key", ""), "key", blank=True),
        "result": "",
        "deadline_s": _number(given.pop("deadline_s", deadline_seconds_default), "deadline_s", 1, approval_seconds_max),
        "max_attempts": _number(given.pop("max_attempts", attempts_max), "max_attempts", 1, attempts_max),
    }
    if found["risk"] not in ("", "low", "med", "high"):
        raise ValueError("risk is low, med or high")
    if given:
        raise ValueError(f"{operation} takes no {', '.join(given)}")
    return found


def same(recorded: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether a command is the recorded one; what a proposal leaves to the catalogue is as the journal has it."""
    if recorded == value:
        return True
    if value["do"] != "Invoke" or recorded["do"] != "Invoke":
        return False
    then, now = recorded["input"], value["input"]
    filled = {**now, "risk": now["risk"] or then.get("risk"), "target": dict(now["target"])}
    if not now["target"]["type"]:
        filled["target"]["type"] = then.get("target", {}).get("type")
    return recorded["child"] == value["child"] and bool(then == filled)


def signal_name(name: Any) -> str:
    """A name that people may send a signal under."""
    checked = _match(_name, name, "the name of a signal")
    if checked.startswith(_reserved):
        raise ValueError("names that start with task: and approval: are ours")
    return checked


def workflow_name(name: Any) -> str:
    """The name of a workflow."""
    return _match(re.compile(r"[a-z0-9][a-z0-9._-]{0,62}"), name, "the name of a workflow")


def micros_of(seconds: Any) -> int:
    """A sleep in microseconds, from whole or broken seconds or a timedelta."""
    if hasattr(seconds, "total_seconds"):
        seconds = seconds.total_seconds()
    if type(seconds) not in (int, float) or not 0 <= seconds <= sleep_seconds_max:
        raise ValueError(f"a sleep is 0 to {sleep_seconds_max} seconds")
    micros: int = round(seconds * 1_000_000)
    return micros


def task_of(child: int, form: Any, sign_off: Any) -> Task:
    """A human step as its author wrote it; whether the form can be shown to anybody is found out when it is asked."""
    asked = plain(form, "the form")
    if type(asked) is not dict:
        raise TypeError("the form is a map")
    return Task(child, asked, plain(sign_off, "sign_off"))


def _map(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError("fields is a map")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        raise TypeError(f"{what} is a text, a whole number or true or false")
    return value


def _number(value: Any, what: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is a whole number from {low} to {high}")
    return value


def _match(form: re.Pattern[str], value: Any, what: str, *, blank: bool = False) -> str:
    if type(value) is str and (form.fullmatch(value) or (blank and not value)):
        return value
    raise ValueError(f"{what} cannot be {value!r}")


def _ident(value: Any, what: str, *, blank: bool = False) -> str:
    if type(value) is not str:
        raise TypeError(f"{what} is a text")
    if blank and not value:
        return value
    try:
        return check_ident(value, what)
    except CallerError as error:
        raise ValueError(str(error)) from None
