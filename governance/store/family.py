"""What a run must know of its family: the workflows that it may start, how many there are already, and how a child has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.program.programs import Program
from governance.store import cases, people, templates
from governance.store.case import Case
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Family:
    """Read before children begin; the commit that begins them finds it unchanged or is decided again."""

    workflows: Mapping[str, tuple[str, Program]]  # name to state and program, of those that are there
    runs: int
    requester_kind: str  # human | service


def family(unit: Unit, case: Case, workflows: Iterable[str]) -> Family:
    """What beginning children of these workflows rests on."""
    found = {name: active for name in set(workflows) if (active := templates.active(unit, name)) is not None}
    row = unit.one("select count(*) from run where tenant = :tenant and root = :root", root=case.origin.root)
    starter = people.profiles(unit).get(case.origin.started_by)
    return Family(
        {name: (state, program) for name, (state, _, program) in found.items()},
        int(row[0]) if row else 0,
        starter.kind if starter else "human",
    )


def child_of(unit: Unit, run: str, promise: str) -> Case | None:
    """The child run that an operation started; None when there is none."""
    row = unit.one(
        "select run from run where tenant = :tenant and parent = :run and parent_promise = :promise",
        run=run,
        promise=promise,
    )
    return None if row is None else cases.load(unit, row[0])
