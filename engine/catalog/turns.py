"""Turns: who is next when many wait, by weighted virtual time over tenants and, inside a tenant, over its workspaces.

Virtual time is counted in turns, not in seconds: it stands where the newest claimed item stood. A backlog is ranked one
window at a time, so whoever comes late to it waits for one batch and not for the backlog; inside a workspace the order is
that of arrival. A turn is given only where every cap leaves a place, and the place is held from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.catalog.caps import TENANT, WORKFLOW, WORKSPACE, Scoped, Usage, full
from engine.limits import turns_ahead_max
from engine.program.caps import Caps

unit = 1_000_000  # one turn of a tenant of weight 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item without a turn; `begins` when it is to begin a run that has no place yet."""

    workspace: str
    workflow: str
    run: str
    item: str
    stage: str
    rank: int  # when its run arrived: the order inside a workspace
    begins: bool


@dataclass(slots=True)
class Queue:
    """One tenant: what waits, how far each workspace is, what is under way, and the caps over it."""

    tenant: str
    waiting: Sequence[Waiting]
    ranked: int = 0  # items that have a turn and nobody has claimed yet
    busy: frozenset[str] = frozenset()  # workspaces with such items
    reached: dict[str, int] = field(default_factory=dict)  # workspace -> the newest turn it was given
    weight: int = 1
    weights: Mapping[str, int] = field(default_factory=dict)  # of workspaces; 1 where nothing is said
    caps: Mapping[tuple[str, str], Caps] = field(default_factory=dict)  # by scope and name; the tenant's name is empty
    used: dict[tuple[str, str], Usage] = field(default_factory=dict)

    def scopes(self, workspace: str, workflow: str) -> Iterable[Scoped]:
        """The caps that an item of this workspace and workflow stands under."""
        for scope, name in ((TENANT, ""), (WORKSPACE, workspace), (WORKFLOW, workflow)):
            if (scope, name) in self.caps:
                yield Scoped(scope, name or self.tenant, self.caps[scope, name])


def give(queue: Queue, clock: int) -> list[tuple[Waiting, int]]:
    """The next turns of this tenant, at most one window; `queue` says afterwards how far its workspaces are and what they use."""
    lines: dict[str, deque[Waiting]] = {}
    for one in sorted(queue.waiting, key=lambda each: (each.rank, each.run, each.item, each.stage)):
        lines.setdefault(one.workspace, deque()).append(one)
    costs = _costs(queue, frozenset(lines) | queue.busy)
    given: list[tuple[Waiting, int]] = []
    while queue.ranked + len(given) < turns_ahead_max:
        heads = [
            (max(queue.reached.get(name, 0), clock) + costs[name], name)
            for name in lines
            if _drop_full(queue, lines[name])
        ]
        if not heads:
            break
        turn, name = min(heads)
        one = lines[name].popleft()
        queue.reached[name] = turn
        for scope in _names(one):
            now = queue.used.get(scope, Usage())
            more = int(one.begins)
            queue.used[scope] = Usage(now.concurrency + 1, now.runs + more, now.runs_this_minute + more)
        given.append((one, turn))
    return given


def _costs(queue: Queue, active: frozenset[str]) -> dict[str, int]:
    """What a turn costs each workspace: together the active ones get the tenant's share, however many there are."""
    together = sum(queue.weights.get(name, 1) for name in active)
    return {name: max(1, unit * together // (queue.weight * queue.weights.get(name, 1))) for name in active}


def _drop_full(queue: Queue, line: deque[Waiting]) -> bool:
    """Whether an item of this line may go next; those that no cap leaves a place for are passed over, and wait."""
    while line:
        one = line[0]
        if not any(
            full(
                each, queue.used.get((each.scope, "" if each.scope == TENANT else each.of), Usage()), begins=one.begins
            )
            for each in queue.scopes(one.workspace, one.workflow)
        ):
            return True
        line.popleft()
    return False


def _names(one: Waiting) -> tuple[tuple[str, str], ...]:
    return ((TENANT, ""), (WORKSPACE, one.workspace), (WORKFLOW, one.workflow))
