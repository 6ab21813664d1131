"""Publish a workflow: validate, keep as a draft, activate; runs stay pinned to what they started with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from engine.catalog.caps import TENANT, Scoped, tightest
from engine.catalog.template import after, check_publish
from engine.errors import CallerError
from engine.ledger.entries import Fact
from engine.program.caps import NAMES
from engine.program.function_code import Component
from engine.program.normalize import Catalog, normalize
from engine.program.one_step import NAME
from engine.program.programs import Function, Program, function_of
from governance.commands.authority import Actor, allowed
from governance.commands.schedule import forget
from governance.store import caps, entries, templates
from governance.store.unit import Database, Unit


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a file."""

    name: str
    version: str
    digest: str
    state: str


def function_from(text: bytes, filename: str, modules: Mapping[str, bytes]) -> Function:
    """The function of an author's file and the further files that it imports."""
    name = PurePosixPath(filename).name
    if name in modules:
        raise CallerError(f"{name} is given twice", field="module")
    return function_of({name: text, **modules})


class Loads(Protocol):
    """Whoever can say that code loads: a process that holds nothing else."""

    def check(self, component: Component, *, tenant: str = "") -> None:
        """Load it once, as a run would; refused when it cannot be loaded."""


class Publish:
    """Authors' orders."""

    def __init__(self, database: Database, catalog: Catalog, loads: Loads) -> None:
        self._database = database
        self._catalog = catalog
        self._loads = loads

    def check(
        self, text: bytes, filename: str, modules: Mapping[str, bytes] | None = None, *, above: Iterable[Scoped] = ()
    ) -> Program:
        """The program of this text, or every fault at once; `modules` are further files of a workflow in Python, by their paths."""
        if not filename.endswith(".py"):
            held = tuple(above)
            most = {name: (cap.value, str(cap)) for name in NAMES if (cap := tightest(name, held)) is not None}
            return normalize(text, filename, self._catalog, most)
        return function_from(text, filename, modules or {})

    def apply(
        self,
        tenant: str,
        actor: Actor,
        text: bytes,
        filename: str,
        modules: Mapping[str, bytes] | None = None,
        *,
        draft: bool = False,
    ) -> Published:
        """Store and activate in one transaction; the version that was active is archived. The same file again changes nothing.

        A draft is stored and waits to be activated.
        """
        with self._database.unit(tenant, write=False) as unit:
            above = [Scoped(each.scope, each.of, each.caps) for each in caps.listed(unit) if each.scope == TENANT]
        definition = self.check(text, filename, modules, above=above)
        if definition.name == NAME:
            raise CallerError(
                f"{NAME!r} is the product's own",
                code="name_taken",
                field="name",
                next_step="give the workflow another name",
            )
        if isinstance(definition, Function):
            # Loading runs the author's module: nobody makes us do that who may not publish.
            with self._database.unit(tenant, write=False) as unit:
                allowed(unit, actor, "publish")
            self._loads.check(definition.component, tenant=tenant)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "publish")
            who = {"type": "person", "id": person.person}
            body = {
                "name": definition.name,
                "version": definition.version,
                "definition_sha256": definition.digest.hex(),
            }
            chain = f"template/{definition.name}"
            known = templates.state_of(unit, definition.name, definition.version)
            status, stored = known if known else (None, None)
            if check_publish(status, definition.version, stored, definition.digest):
                templates.put(unit, definition, text.decode("utf-8"), person.person)
                entries.note(unit, chain, Fact("template.created", who, body))
                status = "draft"
            if draft and status == "draft":
                return Published(definition.name, definition.version, definition.digest.hex(), "draft")
            if status == "active":
                return Published(definition.name, definition.version, definition.digest.hex(), "active")
            current = templates.active(unit, definition.name)
            if current is not None and current[1] != definition.version:
                _, version, old = current
                templates.set_state(unit, definition.name, version, after(current[0], "archive"))
                fact = Fact(
                    "template.archived", who, {**body, "version": version, "definition_sha256": old.digest.hex()}
                )
                entries.note(unit, chain, fact)
            caps.put_workflow(unit, definition.name, definition.caps)
            assert status is not None
            templates.set_state(unit, definition.name, definition.version, after(status, "activate"))
            entries.note(unit, chain, Fact("template.activated", who, body))
        return Published(definition.name, definition.version, definition.digest.hex(), "active")

    def activate(self, tenant: str, actor: Actor, name: str, version: str) -> None:
        """Runs start with this version from now on; the one that was active is archived."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "activate")
            status, _ = _known(unit, name, version)
            then = after(status, "activate")
            current = templates.active(unit, name)
            if current is not None and current[1] != version:
                self._move(unit, person.person, name, current[1], "archive")
            found = templates.version(unit, name, version)
            assert found is not None
            caps.put_workflow(unit, name, found[2].caps)
            templates.set_state(unit, name, version, then)
            _told(unit, person.person, name, version, "template.activated")

    def pause(self, tenant: str, actor: Actor, name: str, version: str) -> None:
        """It starts nothing until it is activated again; runs go on, and its schedules are kept."""
        with self._database.unit(tenant) as unit:
            self._move(unit, allowed(unit, actor, "pause").person, name, version, "pause")

    def archive(self, tenant: str, actor: Actor, name: str, version: str) -> None:
        """No new runs of this version, ever; its schedules are dropped, and runs that go on finish on it."""
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "archive").person
            self._move(unit, person, name, version, "archive")
            if templates.active(unit, name) is None:
                forget(unit, name, {"type": "person", "id": person}, person)

    def _move(self, unit: Unit, person: str, name: str, version: str, deed: str) -> None:
        status, _ = _known(unit, name, version)
        templates.set_state(unit, name, version, after(status, deed))
        _told(unit, person, name, version, "template.paused" if deed == "pause" else "template.archived")


def _known(unit: Unit, name: str, version: str) -> tuple[str, bytes]:
    known = templates.state_of(unit, name, version)
    if known is None:
        raise CallerError(
            f"{name} {version} is not published", code="unknown_workflow", field="version",
            next_step=f"`twokeys workflow versions {name}` shows what is",
        )  # fmt: skip
    return known


def _told(unit: Unit, person: str, name: str, version: str, kind: str) -> None:
    _, digest = _known(unit, name, version)
    body = {"name": name, "version": version, "definition_sha256": digest.hex()}
    entries.note(unit, f"template/{name}", Fact(kind, {"type": "person", "id": person}, body))
