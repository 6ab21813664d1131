"""Propose: one governed action, asked for from outside, becomes a run of one step; the same key again finds the same run."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import CallerError, Conflict
from engine.ledger.entries import Fact
from engine.program.normalize import Catalog
from engine.program.one_step import Proposal, input_of, one_step
from governance.commands.authority import Actor, allowed
from governance.commands.start import Begun, Start, owner_of
from governance.store import cases, entries, people, templates
from governance.store.case import ACTION
from governance.store.unit import Database, Unit


class Propose:
    """The door for agents: what they want done is judged, perhaps asked, done once, and receipted, like any step."""

    def __init__(
        self, database: Database, catalog: Callable[[], Catalog], start: Start, hash_key: Callable[[str], bytes]
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._start = start
        self._hash_key = hash_key

    def propose(
        self,
        tenant: str,
        actor: Actor,
        proposal: Proposal,
        key: str,
        on_behalf_of: str = "",
        workspace: str = people.MAIN,
    ) -> Begun:
        """Begin it, or find what this key has begun; `on_behalf_of` names whoever the agent acts for, who then holds no key."""
        if not key:
            raise CallerError(
                "is needed", code="missing_key", field="Idempotency-Key",
                next_step="send a reference of your own; the same one again never does anything twice",
            )  # fmt: skip
        hash_key, definition, value = self._hash_key(tenant), one_step(proposal, self._catalog()), input_of(proposal)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "start")
            people.check_workspace(unit, workspace)
            owner, behalf = owner_of(person), self._behalf(unit, on_behalf_of)
            if templates.keep(unit, definition, person.person):
                body = {
                    "name": definition.name,
                    "version": definition.version,
                    "definition_sha256": definition.digest.hex(),
                }
                who = {"type": "person", "id": person.person}
                entries.note(unit, f"template/{definition.name}", Fact("template.created", who, body))
            begun = self._start.begin(
                unit, hash_key, definition, workspace, ACTION, key, value, person.person, owner, on_behalf_of=behalf
            )
            if not begun.new:
                self._same(unit, begun.run, (definition.digest, value, person.person, behalf, workspace))
        return begun

    def _behalf(self, unit: Unit, given: str) -> str:
        if not given:
            return ""
        found = people.find(unit, given)
        if not found.active:
            raise CallerError(f"{found.name} is deactivated", code="inactive", field="on_behalf_of")
        return found.person

    def _same(self, unit: Unit, run: str, asked: tuple[bytes, dict[str, object], str, str, str]) -> None:
        """A key names one proposal for ever: the answer to another one would be somebody else's."""
        if cases.started_with(unit, run) != asked:
            raise Conflict(
                "another action was proposed under this key", code="key_used", field="Idempotency-Key",
                next_step="a new action takes a new key",
            )  # fmt: skip
