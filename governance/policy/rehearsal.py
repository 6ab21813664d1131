"""Walks a definition with an example input and says which verdict each of its actions would get; nothing outside is touched."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from engine.errors import CallerError
from engine.gate.action import Action, Field, OperationSpec, Target, effect_key
from engine.gate.question import Facts, People, Usage, ask, moment, request_id
from engine.gate.verdict import judge
from engine.kernel import name_of
from engine.program.definition import Definition
from engine.program.faults import hint
from engine.program.inputs import check_input
from engine.program.interpreter import begin, deliver, run_to_wait
from engine.program.normalize import Catalog
from engine.program.orders import (
    AskPerson,
    Complete,
    Context,
    Fail,
    Listen,
    Propose,
    Single,
    Sleep,
    StartRun,
    Take,
    Turn,
)
from governance import clock
from governance.policy.bundle import Bundle
from governance.policy.embedded import Embedded

rows_max = 500
engine_seconds = 2.0
_people = frozenset(f"per_example{n}" for n in range(9))
_examples = {
    "text": "a text", "long_text": "a long text", "integer": 1, "decimal": "1.50", "date": "2026-08-21", "yes_no": True,
}  # fmt: skip


class _Everybody(dict[str, frozenset[str]]):
    """Groups that are all there and have people in them: whether a tenant's have is found out when it asks."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> frozenset[str]:
        return _people


class Rehearsal:
    """One walk: what is proposed is judged, every question is answered yes, and every wait is over at once.

    `answers` says otherwise by the id of a step: its result, or `{"error": class}` for a step that fails.
    """

    def __init__(
        self,
        definition: Definition,
        catalog: Catalog,
        bundle: Bundle,
        value: dict[str, Any],
        answers: Mapping[str, Any],
    ) -> None:
        self._definition = definition
        self._catalog = catalog
        self._bundle = bundle
        self._answers = dict(answers)
        self._rows: list[dict[str, Any]] = []
        self._inbox: dict[str, list[Any]] = {}
        self._value = value
        faults = check_input(definition, value)
        if faults:
            raise CallerError("; ".join(faults[:20]), code="invalid_input", field="input")
        known = [each.step.id for each in definition.flat]
        for name in self._answers:
            if name not in known:
                raise CallerError(f"there is no step {name!r}{hint(name, known)}", code="unknown_step", field="answer")

    def walk(self) -> list[dict[str, Any]]:
        """Every operation in order, what policy says of it and how the walk goes on, and the end."""
        engine = Embedded(deadline_seconds=engine_seconds)
        engine.load(self._bundle)
        try:
            return self._walk(engine)
        finally:
            engine.close()

    def _walk(self, engine: Embedded) -> list[dict[str, Any]]:
        definition, frame = self._definition, begin()
        opened: dict[int, Single] = {}
        context = Context(
            "example", "main", "0" * 32, definition.name, definition.version, "2026-01-01T00:00:00+00:00",
            {"type": "manual", "ref": "example"}, self._value,
        )  # fmt: skip
        while True:
            turn: Turn = run_to_wait(definition, frame, context, self._inbox)
            for order in turn.orders:
                if isinstance(order, Take):
                    self._inbox[order.name].pop(0)
                else:
                    opened[order.child] = order
            if isinstance(turn.outcome, Complete | Fail):
                self._rows.append(_end(turn.outcome))
                return self._rows
            if len(self._rows) >= rows_max:
                self._rows.append(
                    {"step": "", "does": f"stopped after {rows_max} operations", "verdict": "", "then": ""}
                )
                return self._rows
            frame = turn.frame
            order = opened.pop(frame.open[0])
            ok, result, error_class, verdict = self._outcome(order, engine)
            then = "succeeds" if ok else f"fails: {error_class}"
            step = definition.flat[getattr(order, "step_index", 0)].step.id
            step = "" if isinstance(order, Sleep) else step
            self._rows.append({"step": step, "does": _does(order), "verdict": verdict, "then": then})
            frame = deliver(definition, frame, ok, result, error_class, "as the example says", child=order.child)

    def _outcome(self, order: Single, engine: Embedded) -> tuple[bool, Any, str, str]:
        said = "" if isinstance(order, Sleep) else self._definition.flat[order.step_index].step.id
        verdict = self._verdict(order, engine) if isinstance(order, Propose) else ""
        if verdict.startswith("deny"):
            return False, None, "policy_denied", verdict
        if said in self._answers:
            given = self._answers[said]
            if type(given) is dict and set(given) == {"error"}:
                return False, None, str(given["error"]), verdict
            if isinstance(order, Listen):
                self._inbox.setdefault(order.name, []).append(given)
            return True, given, "", verdict
        if isinstance(order, Listen):
            self._inbox.setdefault(order.name, []).append(None)
        return True, self._example(order), "", verdict

    def _example(self, order: Single) -> Any:
        """What a step gives when nobody says: something of the right shape."""
        match order:
            case Propose():
                spec = self._catalog[order.connector, order.operation]
                return {name: f"the {name}" for name in spec.result_fields}
            case AskPerson(_, form):
                return {
                    one["name"]: one["options"][0]
                    if one.get("kind") == "choice"
                    else _examples[one.get("kind", "text")]
                    for one in form["fields"]
                }
            case StartRun():
                return {"run": "0" * 32} if order.apart else {}
        return None

    def _verdict(self, order: Propose, engine: Embedded) -> str:
        if order.reverses:
            return "undoes an operation; judged on what it did"
        spec = self._catalog[order.connector, order.operation]
        action = self._action(order, spec)
        now = datetime.datetime.fromtimestamp(clock.epoch_seconds(), datetime.UTC)
        facts = Facts(
            environment="prod", kill_switch=False, trigger_type="manual", run_attempt=1, risk_ceiling=self._definition.risk_ceiling,
            step_index=order.step_index, step_attempt=1, actor_type="user", actor_id="per_requester",
        )  # fmt: skip
        question = ask(
            action, request=request_id(clock.random_bytes(16)), purpose="enforce", facts=facts, usage=Usage(0, 0, 0, 0, 0),
            at=moment(now, "UTC"), people=People(_Everybody(), frozenset({"per_requester"})), tenant_key=bytes(32),
        )  # fmt: skip
        verdict = judge(question, engine, accepted=(self._bundle.revision,), monotonic=clock.monotonic).verdict
        why = "; ".join(f"{reason.code}: {reason.message}" for reason in verdict.reasons)
        keys = f" ({verdict.keys} key(s) of {', '.join(verdict.groups)})" if verdict.effect == "needs_approval" else ""
        return f"{verdict.effect}{keys}" + (f" because {why}" if why else "")

    def _action(self, order: Propose, spec: OperationSpec) -> Action:
        declared = {each.name: each for each in spec.fields}
        fields = tuple(
            Field(name, "clear" if text == "" else declared[name].op, text, declared[name].classification)
            for name, text in sorted(order.fields.items())
        )
        target = Target(spec.connector, order.target["type"], order.target["id"], "example")
        return Action(
            tenant="example", workspace="main", run="0" * 32, promise=str(order.child), step=order.step_id, workflow=self._definition.name,
            version=self._definition.version, definition=self._definition.digest.hex(), connector=spec.connector,
            operation=spec.operation, kind=spec.kind, risk=order.risk, reversible=spec.reversible, reversal=spec.reversal, target=target,
            fields=fields, amount_minor=order.amount_minor, currency=order.currency, preconditions=(),
            key=effect_key(spec, target, fields, f"{'0' * 32}.{order.child}", order.key), summary=spec.summary, salt="0" * 32,
        )  # fmt: skip


def _does(order: Single) -> str:
    match order:
        case Propose(target=target):
            return f"{name_of(order)} {target['id']}"
        case AskPerson(_, form):
            return f"asks {', '.join(form.get('groups', ()))}: {form.get('title', '')}"
        case Sleep(_, micros, until):
            return "waits until a moment" if until else f"waits {micros // 1_000_000} s"
        case Listen():
            return f"waits for the signal {order.name}"
        case StartRun():
            return f"{'continues with' if order.apart else 'runs'} {order.workflow}"


def _end(outcome: Complete | Fail) -> dict[str, Any]:
    if isinstance(outcome, Complete):
        return {"step": "", "does": "the run completes", "verdict": "", "then": str(outcome.value)}
    return {"step": "", "does": "the run fails", "verdict": "", "then": f"{outcome.error_class}: {outcome.message}"}
