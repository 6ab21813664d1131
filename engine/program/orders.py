"""What a definition is run with, and what it wants when it stops: operations to be done, a wait, or the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.program.snapshot import Frame


@dataclass(frozen=True, slots=True)
class Context:
    """What a run is, fixed at its start; expressions see it as `run`, `trigger` and `input`."""

    tenant: str
    workspace: str
    run: str
    workflow: str
    version: str
    started_at: str  # RFC 3339
    trigger: dict[str, str]  # type, ref
    input: dict[str, Any]
    business_reference: str = ""

    def roots(self, reference: str) -> dict[str, Any]:
        """What an expression reads that steps do not make; a step may have set the reference since."""
        return {
            "input": self.input,
            "trigger": self.trigger,
            "run": {
                "id": self.run,
                "tenant": self.tenant,
                "workspace": self.workspace,
                "workflow": self.workflow,
                "version": self.version,
                "started_at": self.started_at,
                "business_reference": reference or self.business_reference,
            },
        }


RUN_NAMES = ("id", "tenant", "workspace", "workflow", "version", "started_at", "business_reference")
TRIGGER_NAMES = ("type", "ref")


@dataclass(frozen=True, slots=True)
class Propose:
    """The program wants this done and waits for the outcome; every expression in it has been evaluated."""

    child: int
    step_id: str
    step_index: int
    connector: str
    operation: str
    target: dict[str, str]  # type, id
    fields: dict[str, str]
    amount_minor: int
    currency: str
    risk: str
    key: str  # empty: the connector's template decides
    result: str
    deadline_s: int
    max_attempts: int
    reverses: str = ""  # the operation whose effect is to be undone; its fields are then those of before it


@dataclass(frozen=True, slots=True)
class AskPerson:
    """The program wants people to fill in a form, and others to sign the answer, and waits for what they say."""

    child: int
    form: dict[str, Any]
    step_id: str
    step_index: int
    sign_off: Any = None


@dataclass(frozen=True, slots=True)
class StartRun:
    """The program wants another workflow started: as its child, whose end it waits for, or to go its own way."""

    child: int
    workflow: str
    input: Any
    step_id: str
    step_index: int
    apart: bool


@dataclass(frozen=True, slots=True)
class Sleep:
    """The program waits for so many microseconds, or until so many after 1970."""

    child: int
    micros: int
    until: int = 0


@dataclass(frozen=True, slots=True)
class Listen:
    """The program waits for a signal, for so long at most (0: as long as it takes)."""

    child: int
    name: str
    deadline_s: int
    step_id: str
    step_index: int


@dataclass(frozen=True, slots=True)
class Take:
    """The program consumes the oldest signal of this name; it was there."""

    child: int
    name: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The program has ended and gives this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The program has ended without success."""

    error_class: str
    message: str


Single = Propose | AskPerson | StartRun | Sleep | Listen


@dataclass(frozen=True, slots=True)
class Several:
    """The program wants these, in this order, and waits until any of its open operations has ended."""

    orders: tuple[Single | Take, ...]
    on: tuple[int, ...]


Outcome = Single | Several | Complete | Fail


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to a wait or to the end: where the run stands now, and what follows."""

    frame: Frame
    outcome: Outcome
    consumed: tuple[Single | Take, ...] = ()  # of a turn that ends the run: up to the last signal that was consumed

    @property
    def orders(self) -> tuple[Single | Take, ...]:
        """What stands in the journal, in order; of a run that has ended only what it has consumed."""
        if isinstance(self.outcome, Several):
            return self.outcome.orders
        return self.consumed if isinstance(self.outcome, Complete | Fail) else (self.outcome,)
