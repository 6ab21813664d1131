"""Start a run: by hand or by a trigger, once per trigger reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.errors import CallerError, Refused
from engine.ids import check_name, execution_key, run_id
from engine.kernel import input_payload
from engine.ledger.entries import Fact
from engine.program.inputs import check_input
from engine.program.programs import Program
from governance.commands.authority import Actor, allowed
from governance.keys import hashed
from governance.store import caps, cases, people, templates
from governance.store.case import ACTION, MANUAL, Origin
from governance.store.people import Profile
from governance.store.unit import Database, Unit


@dataclass(frozen=True, slots=True)
class Begun:
    """The run a start came to; `new` is False when this trigger had started it before."""

    run: str
    new: bool


class Start:
    """Every way to begin a run."""

    def __init__(
        self, database: Database, hash_key: Callable[[str], bytes], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._database = database
        self._hash_key = hash_key
        self._random_bytes = random_bytes

    def by_hand(
        self, tenant: str, actor: Actor, workflow: str, value: dict[str, Any], ref: str, workspace: str = people.MAIN
    ) -> Begun:
        """A person starts it; `ref` makes a repeated request find the same run."""
        check_name(workflow, "workflow")
        hash_key = self._hash_key(tenant)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "start")
            people.check_workspace(unit, workspace)
            definition = _startable(unit, workflow)
            if not cases.started_by(unit, workflow, MANUAL, ref):
                _has_place(unit, workspace, workflow)
            return self.begin(
                unit,
                hash_key,
                definition,
                workspace,
                MANUAL,
                ref or self._random_bytes(8).hex(),
                value,
                person.person,
                owner_of(person),
            )

    def by_event(self, tenant: str, source: str, ref: str, value: dict[str, Any]) -> Begun:
        """A verified event of a source starts the source's workflow as its service principal; its owner is in the lineage."""
        hash_key = self._hash_key(tenant)
        with self._database.unit(tenant) as unit:
            found = templates.source(unit, source)
            if found is None:
                raise CallerError(f"source {source} is unknown here", code="unknown_source", field="source")
            starter = people.profiles(unit)[found.person]
            if not starter.active or starter.level < 4:
                raise Refused(f"the service principal of {source} may not start runs", code="level")
            definition = _startable(unit, found.workflow)
            if not any(each.source == source for each in definition.subscriptions):
                raise Refused(f"{found.workflow} does not subscribe to {source}", code="not_subscribed")
            return self.begin(
                unit, hash_key, definition, found.workspace, source, ref, value, found.person, found.owner
            )

    def begin(
        self, unit: Unit, hash_key: bytes, definition: Program, workspace: str, kind: str, ref: str, value: dict[str, Any],
        person: str, owner: str, *, on_behalf_of: str = "", facts: tuple[Fact, ...] = (), editors: tuple[str, ...] = (),
    ) -> Begun:  # fmt: skip
        """The run of this trigger, begun now unless it was before; whoever calls has found that it may be.

        `facts` are entries that follow its first, `editors` those who wrote what it is about, who then hold no key for it.
        """
        known = cases.started_by(unit, definition.name, kind, ref)
        if known:
            return Begun(known, new=False)
        faults = check_input(definition, value)
        if faults:
            raise CallerError(
                "; ".join(faults[:20]),
                code="invalid_input",
                field="input",
                next_step=f"see the inputs of {definition.name}",
            )
        key = execution_key(hash_key, unit.tenant, definition.name, kind, ref)
        run = run_id(definition.digest, "", key)
        salt_key = self._random_bytes(32)
        kept = input_payload(salt_key, value)
        now = unit.now()
        origin = Origin(
            tenant=unit.tenant, run=run, workspace=workspace, workflow=definition.name, version=definition.version,
            definition=definition.digest, trigger_type=kind, trigger_ref=ref, started_by=person, on_behalf_of=on_behalf_of, owner=owner,
            salt_key=salt_key, execution_key=key, input=kept.commit, created_at=now, root=run,
        )  # fmt: skip
        # Twenty posts of one trigger race here: the first row wins, the others wait for it and find it. A version that
        # was published meanwhile gives the run another id, so the one that won is looked up.
        queued = cases.queued(
            origin, "person" if kind in (MANUAL, ACTION) else "service", hashed(hash_key, "trigger", ref)
        )
        if not cases.begin(unit, origin, kept, [queued, *facts], editors):
            return Begun(cases.started_by(unit, definition.name, kind, ref), new=False)
        return Begun(run, new=True)


def owner_of(starter: Profile) -> str:
    """Who answers for what this person starts, and so never holds a key for it: themselves, or the owner of a service."""
    if starter.kind != "service":
        return starter.person
    if not starter.owner:
        raise Refused(
            f"nobody answers for the service {starter.name}, so it starts nothing", code="no_owner",
            next_step="an owner of the tenant names somebody: `twokeys person own`",
        )  # fmt: skip
    return starter.owner


def _has_place(unit: Unit, workspace: str, workflow: str) -> None:
    """A person is told at once that there is no place; what events start waits in the queue."""
    full = caps.no_place(unit, workspace, workflow)
    if full is not None:
        raise Refused(
            f"{full} is reached: so many runs have begun and not ended", code="runs_full",
            next_step="wait until one has ended, cancel one, or ask an owner for a higher cap",
        )  # fmt: skip


def _startable(unit: Unit, workflow: str) -> Program:
    found = templates.active(unit, workflow)
    if found is None:
        raise CallerError(
            f"workflow {workflow} has no active version",
            code="unknown_workflow",
            field="workflow",
            next_step="`twokeys workflow apply` publishes one",
        )
    state, version, definition = found
    if state != "active":
        raise Refused(f"{workflow} {version} is {state} and starts nothing", code="paused")
    return definition
