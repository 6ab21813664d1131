"""Reads the steps that give a definition its shape, wait, ask people or start other workflows, and notes what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from engine.errors import CallerError
from engine.ids import check_name
from engine.limits import lanes_max, repeat_items_max
from engine.program.evaluating import moment, wait_seconds_max
from engine.program.expression import ExprError
from engine.program.faults import hint, step_into
from engine.program.form import FormInvalid, form_from
from engine.program.formula import Formula, Literal, expressions, parse
from engine.program.kinds import (
    Arm,
    AssignStep,
    BranchStep,
    ContinueStep,
    Lane,
    ParallelStep,
    ReferenceStep,
    RepeatStep,
    Step,
    SubworkflowStep,
    TaskStep,
    TransformStep,
    WaitStep,
)
from engine.program.layout import bodies, routes
from engine.program.steps import StepReader
from engine.program.values import NAME, Names

repeat_turns_default = 100  # of a step that repeats until something holds
_lane_id = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_signal = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,99}")
_reserved = ("task:", "approval:", "operator:")
_form_place = re.compile(r"([a-z_]+)|\[([0-9]+)\]")
_routes: dict[str, type | None] = {"on_success": list, "on_failure": list, "on_timeout": list}


class StructureReader(StepReader):
    """Reads every kind of step."""

    def _kinds(self) -> dict[str, Callable[[str, str, dict[str, Any]], Step | None]]:
        return {
            **super()._kinds(),
            "business_reference": self._reference,
            "transform": self._transform,
            "branch": self._branching,
            "repeat": self._repeat,
            "parallel": self._parallel,
            "wait": self._wait,
            "task": self._task,
            "subworkflow": self._subworkflow,
            "continue_with": self._continue_with,
        }

    # --- values -------------------------------------------------------------------------------------------------------

    def _reference(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "value": None}
        parts = self._reader.shape(pointer, value, kinds, ("id", "value"), "a business_reference step")
        if self._lane:
            self._ledger.at_value(pointer, "business_reference stands outside of parallel steps")
        return ReferenceStep(ident, self._values.text(f"{pointer}/value", parts.get("value", "")))

    def _transform(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "value": None, "result": str}
        parts = self._reader.shape(pointer, value, kinds, ("id", "value", "result"), "a transform step")
        made = self._values.any(f"{pointer}/value", parts.get("value"))
        return TransformStep(ident, made, self._result(pointer, parts, None))

    # --- shape --------------------------------------------------------------------------------------------------------

    def _branching(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "arms": list, "otherwise": list}
        parts = self._reader.shape(pointer, value, kinds, ("id", "arms"), "a branch step")
        given = parts.get("arms", [])
        if "arms" in parts and not given:
            self._ledger.at_value(f"{pointer}/arms", "a branch has at least one arm: {when, steps}")
        before, left, arms = self._names.fork(), [], []
        for number, each in enumerate(given):
            below = f"{pointer}/arms/{number}"
            arm = self._reader.shape(below, each, {"when": str, "steps": list}, ("when", "steps"), "an arm")
            self._names.restore(before.fork())
            when = self._values.condition(f"{below}/when", arm["when"]) if "when" in arm else ""
            steps, goes_on = self._inside(f"{below}/steps", "steps", arm["steps"]) if "steps" in arm else ((), True)
            arms.append(Arm(when, steps))
            if goes_on:
                left.append(self._names.fork())
        self._names.restore(before.fork())
        otherwise: tuple[Step, ...] = ()
        goes_on = True
        if "otherwise" in parts:
            otherwise, goes_on = self._inside(f"{pointer}/otherwise", "otherwise", parts["otherwise"])
        if goes_on:
            left.append(self._names.fork())
        self._names.restore(before)
        if not left:
            self._ended_by = self._ended_by or ident
        else:
            # Behind the branch is there what every way that comes out of it has made.
            self._names.state |= set.intersection(*(each.state for each in left))
            common = set.intersection(*(set(each.results) for each in left))
            self._names.results |= {name: left[0].results[name] for name in sorted(common)}
        return BranchStep(ident, tuple(arms), otherwise)

    def _repeat(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "over": None, "until": str, "as": str, "most": int, "steps": list}
        parts = self._reader.shape(pointer, value, kinds, ("id", "steps"), "a repeat step")
        if ("over" in parts) == ("until" in parts):
            self._ledger.at_value(pointer, "a repeat step has either over, a list, or until, a condition")
        over: Formula | None = None
        if "over" in parts:
            over = self._values.of_kind(
                f"{pointer}/over", parts["over"], ("LIST",), "over is a list, or ${...} giving one"
            )
            if isinstance(over, Literal) and type(over.value) is list and len(over.value) > repeat_items_max:
                self._ledger.at_value(f"{pointer}/over", f"{len(over.value)} items; at most {repeat_items_max}")
        name = parts.get("as", "item")
        if not NAME.fullmatch(name) or name.endswith("_index"):
            self._ledger.at_value(f"{pointer}/as", f"{name[:40]!r} is not a name that an item can have")
        elif name in self._names.each:
            self._ledger.at_value(
                f"{pointer}/as", f"each.{name} is an item of a repeat around this one; take another name"
            )
        most = self._number(
            pointer, parts, "most", repeat_items_max if over else repeat_turns_default, repeat_items_max
        )
        before = self._names.fork()
        self._names.each |= {name, f"{name}_index"} if over is not None else {f"{name}_index"}
        steps, goes_on = self._inside(f"{pointer}/steps", "steps", parts["steps"]) if "steps" in parts else ((), True)
        until = ""
        if "until" in parts:
            until = self._values.condition(f"{pointer}/until", parts["until"])
            self._names.each = before.each
            if not goes_on:
                self._ended_by = self._ended_by or ident
        else:
            self._names.restore(before)  # of no items it makes nothing
        return RepeatStep(ident, over, until, name, most, steps)

    def _parallel(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "lanes": list}
        parts = self._reader.shape(pointer, value, kinds, ("id", "lanes"), "a parallel step")
        given: list[tuple[str, dict[str, Any]]] = []
        for number, each in enumerate(parts.get("lanes", [])[:lanes_max]):
            below = f"{pointer}/lanes/{number}"
            shape = {"id": str, "needs": list, "steps": list}
            given.append((below, self._reader.shape(below, each, shape, ("id", "steps"), "a lane")))
        if not 2 <= len(parts.get("lanes", ())) <= lanes_max and "lanes" in parts:
            self._ledger.at_value(
                f"{pointer}/lanes", f"a parallel step has 2 to {lanes_max} lanes: {{id, needs, steps}}"
            )
        needs = self._needs(given)
        before = self._names.fork()
        made: dict[int, Names] = {}
        found: dict[int, Lane] = {}
        ends = False
        self._lane += 1
        for number in _in_order(needs):
            below, lane = given[number]
            self._names.restore(before.fork())
            for earlier in sorted(_behind(needs, number)):
                self._names.state |= made[earlier].state
                self._names.results |= made[earlier].results
            start = self._names.fork()
            steps, goes_on = self._inside(f"{below}/steps", "steps", lane["steps"]) if "steps" in lane else ((), True)
            ends = ends or not goes_on
            self._races(below, before.state, start.state, steps)
            made[number] = self._names.fork()
            names = tuple(given[each][1].get("id", "") for each in sorted(needs[number]))
            found[number] = Lane(lane.get("id", ""), names, steps)
        self._lane -= 1
        self._join(given, needs, before, made)
        if ends:
            self._ended_by = self._ended_by or ident
        return ParallelStep(ident, tuple(found[number] for number in sorted(found)))

    def _needs(self, given: list[tuple[str, dict[str, Any]]]) -> list[set[int]]:
        """Which lanes each lane needs, by number; what is unknown or goes round in a circle is a fault and left out."""
        known: dict[str, int] = {}
        for number, (below, lane) in enumerate(given):
            name = lane.get("id", "")
            if "id" in lane and not _lane_id.fullmatch(name):
                self._ledger.at_value(f"{below}/id", f"{name[:40]!r} is not a lane id; use 1-63 of a-z 0-9 _ -")
            elif name in known:
                self._ledger.at_value(f"{below}/id", f"the lane id {name!r} stands twice")
            else:
                known[name] = number
        needs: list[set[int]] = []
        for below, lane in given:
            wanted = set()
            for place, name in self._reader.texts(f"{below}/needs", lane.get("needs", [])):
                if name in known:
                    wanted.add(known[name])
                else:
                    self._ledger.at_value(place, f"there is no lane {name!r} here{hint(name, known)}")
            needs.append(wanted)
        for number, (below, _) in enumerate(given):
            if number in _behind(needs, number):
                circle = ", ".join(given[each][1].get("id", "") for each in sorted(_behind(needs, number)))
                self._ledger.at_value(f"{below}/needs", f"these lanes need each other and none could begin: {circle}")
                needs[number] = set()
        return needs

    def _races(self, below: str, outside: set[str], start: set[str], steps: tuple[Step, ...]) -> None:
        """A lane sets names of its own: what is there when the lanes begin may be read by all of them at any moment."""
        for name in sorted(assigned(steps) & outside & start):
            self._ledger.at_value(
                f"{below}/steps",
                f"state.{name} is set before the lanes begin and others may read it; set another name here",
            )

    def _join(
        self, given: list[tuple[str, dict[str, Any]]], needs: list[set[int]], before: Any, made: dict[int, Names]
    ) -> None:
        """Behind the lanes is there what any of them has made; two that go on at the same time may not make the same."""
        for number in sorted(made):
            for other in range(number):
                if other in _behind(needs, number) or number in _behind(needs, other) or other not in made:
                    continue
                own = (made[number].state - before.state) & (made[other].state - before.state)
                results = (set(made[number].results) & set(made[other].results)) - set(before.results)
                for name in sorted({f"state.{each}" for each in own} | {f"steps.{each}" for each in results}):
                    lanes = f"{given[other][1].get('id', '')!r} and {given[number][1].get('id', '')!r}"
                    self._ledger.at_value(
                        f"{given[number][0]}/steps", f"lanes {lanes} both make {name}, and nobody knows which is last"
                    )
        self._names.restore(before)
        for each in made.values():
            self._names.state |= each.state
            self._names.results |= each.results

    # --- waits --------------------------------------------------------------------------------------------------------

    def _wait(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds: dict[str, type | None] = {
            "id": str, "kind": str, "seconds": None, "until": None, "signal": str, "result": str, "deadline_s": int,
            "on_timeout": list,
        }  # fmt: skip
        parts = self._reader.shape(pointer, value, kinds, ("id",), "a wait step")
        if len({"seconds", "until", "signal"} & set(parts)) != 1 and not self._wrong(value, parts):
            self._ledger.at_value(pointer, "a wait step has exactly one of seconds, until and signal")
        for name in ("result", "deadline_s", "on_timeout"):
            if name in parts and "signal" in value and "signal" not in parts:
                continue
            if name in parts and "signal" not in parts:
                self._ledger.at_value(
                    f"{pointer}/{name}", f"{name} stands beside signal only; a time that is over gives nothing"
                )
        if "on_timeout" in parts and "deadline_s" not in parts:
            self._ledger.at_value(f"{pointer}/on_timeout", "on_timeout is never reached without a deadline_s")
        seconds = until = None
        if "seconds" in parts:
            what = f"seconds is a whole number from 0 to {wait_seconds_max}, or ${{...}} giving one"
            seconds = self._values.of_kind(f"{pointer}/seconds", parts["seconds"], ("INT",), what)
            if (
                isinstance(seconds, Literal)
                and type(seconds.value) is int
                and not 0 <= seconds.value <= wait_seconds_max
            ):
                self._ledger.at_value(f"{pointer}/seconds", what)
        if "until" in parts:
            until = self._values.text(f"{pointer}/until", parts["until"])
            if isinstance(until, Literal) and type(until.value) is str:
                self._moment(f"{pointer}/until", until.value)
        signal = parts.get("signal", "")
        if "signal" in parts and (not _signal.fullmatch(signal) or signal.startswith(_reserved)):
            self._ledger.at_value(f"{pointer}/signal", f"{signal[:40]!r} is no name that a signal can be sent under")
        result = self._result(pointer, parts, None)
        deadline = self._number(pointer, parts, "deadline_s", 0, wait_seconds_max)
        late = self._branch(pointer, "on_timeout", parts, result=result)
        return WaitStep(ident, seconds, until, signal, result, deadline, late)

    def _wrong(self, value: dict[str, Any], parts: dict[str, Any]) -> bool:
        """Whether a key is there and has been reported already."""
        return any(name in value and name not in parts for name in ("seconds", "until", "signal"))

    def _moment(self, pointer: str, written: str) -> None:
        try:
            moment(written)
        except ExprError as error:
            self._ledger.at_value(pointer, error.message)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _task(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "form": dict, "sign_off": None, "result": str, **_routes}
        parts = self._reader.shape(pointer, value, kinds, ("id", "form"), "a task step")
        form = self._values.any(f"{pointer}/form", parts.get("form", {}))
        sign_off = self._values.any(f"{pointer}/sign_off", parts.get("sign_off"))
        fields: tuple[str, ...] = ()
        if "form" in parts:
            fields = self._form(pointer, parts["form"], parts.get("sign_off"))
        result = self._result(pointer, parts, None)
        if result in self._names.results:
            self._names.results[result] = fields
        ways = self._ways(pointer, parts, result)
        return TaskStep(ident, form, sign_off, result, *ways)

    def _form(self, pointer: str, form: dict[str, Any], sign_off: Any) -> tuple[str, ...]:
        """The names of the fields of a form that could be shown; what no value of its expressions can mend is a fault now."""
        try:
            read = form_from({"form": _shown(form), "sign_off": _shown(sign_off)})
        except FormInvalid as error:
            below = f"{pointer}/sign_off" if error.field.startswith("sign_off") else f"{pointer}/form"
            for name, number in _form_place.findall(error.field.removeprefix("sign_off")):
                below = step_into(below, name or number)
            self._ledger.at_value(below, f"{error.field} {error.reason}")
            return ()
        return tuple(one.name for one in read.fields)

    def _ways(
        self, pointer: str, parts: dict[str, Any], result: str
    ) -> tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]:
        return (
            self._branch(pointer, "on_success", parts, result=""),
            self._branch(pointer, "on_failure", parts, result=result),
            self._branch(pointer, "on_timeout", parts, result=result),
        )

    def _subworkflow(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "workflow": str, "input": None, "result": str, **_routes}
        parts = self._reader.shape(pointer, value, kinds, ("id", "workflow"), "a subworkflow step")
        name, given = self._other(pointer, parts)
        result = self._result(pointer, parts, None)
        return SubworkflowStep(ident, name, given, result, *self._ways(pointer, parts, result))

    def _continue_with(self, pointer: str, ident: str, value: dict[str, Any]) -> Step:
        kinds = {"id": str, "kind": str, "workflow": str, "input": None, "result": str}
        parts = self._reader.shape(pointer, value, kinds, ("id", "workflow"), "a continue_with step")
        name, given = self._other(pointer, parts)
        result = self._result(pointer, parts, None)
        if result in self._names.results:
            self._names.results[result] = ("run",)
        return ContinueStep(ident, name, given, result)

    def _other(self, pointer: str, parts: dict[str, Any]) -> tuple[str, Formula]:
        name = parts.get("workflow", "")
        if "workflow" in parts:
            try:
                check_name(name, "workflow")
            except CallerError as error:
                self._ledger.at_value(f"{pointer}/workflow", f"{error.reason}; {error.next_step}")
        what = "input is a map, or ${...} giving one"
        return name, self._values.of_kind(f"{pointer}/input", parts.get("input", {}), ("MAP",), what)


def assigned(steps: tuple[Step, ...]) -> set[str]:
    """The names of the state that these steps set, those inside them included."""
    found: set[str] = set()
    for step in steps:
        if isinstance(step, AssignStep):
            found |= {name for name, _ in step.values}
        for inner in (*routes(step), *bodies(step)):
            found |= assigned(inner)
    return found


def _behind(needs: list[set[int]], number: int) -> set[int]:
    """Every lane that must be done before this one begins; itself among them when they go round in a circle."""
    found: set[int] = set()
    waiting = list(needs[number])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += needs[one]
    return found


def _in_order(needs: list[set[int]]) -> Iterator[int]:
    """The lanes, each behind those that it needs, in the order of the file where nothing is needed."""
    done: set[int] = set()
    while len(done) < len(needs):
        number = next(n for n in range(len(needs)) if n not in done and needs[n] <= done)
        done.add(number)
        yield number


def _shown(value: Any, place: tuple[str | int, ...] = ()) -> Any:
    """A form with something that fits in the place of each text that is only known when people are asked."""
    if type(value) is dict:
        return {name: _shown(each, (*place, name)) for name, each in value.items()}
    if type(value) is list:
        return [_shown(each, (*place, number)) for number, each in enumerate(value)]
    if type(value) is not str:
        return value
    try:
        if not expressions(parse(value)):
            return value
    except ExprError:
        return value
    if place[-1:] in (("deadline_s",), ("max_chars",)):
        return 300
    if place[-1:] in (("fields",), ("groups",), ("options",)):
        return value  # the shape of a form is written out, so that it can be checked
    return "x" + "-".join(str(part) for part in place if type(part) is int)
