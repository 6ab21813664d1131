"""Say where a tenant's log is exported to, pause and go on, move or forget it: an owner's order, or the operator's."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import CallerError
from engine.ids import check_name
from engine.ledger.entries import Fact
from engine.ledger.lines import FORMS, PLAIN
from governance.commands.authority import Actor, allowed
from governance.store import entries, exports, people, published
from governance.store.exports import Export
from governance.store.secrets import Secrets
from governance.store.unit import Database, Unit

OPERATOR = {"type": "system", "id": "operator"}
TARGETS = ("s3", "webhook")
secret_chars_min = 16


class SetExport:
    """The orders about named exports, and the note that somebody took a stretch of the log along."""

    def __init__(self, database: Database, secrets: Secrets, check_url: Callable[[str], None]) -> None:
        """`check_url` refuses an address that nothing may be posted to."""
        self._database = database
        self._secrets = secrets
        self._check_url = check_url

    def set(
        self,
        tenant: str,
        actor: Actor | None,
        name: str,
        *,
        target: str,
        form: str = PLAIN,
        url: str = "",
        secret: str = "",
        position: int | None = None,
    ) -> Export:
        """Make an export, or let the one of this name go elsewhere; it goes on from where it is unless a position is given."""
        check_name(name, "name")
        if target not in TARGETS:
            raise CallerError(f"{target[:40]!r} is not a target", field="target", next_step=" or ".join(TARGETS))
        if form not in FORMS:
            raise CallerError(f"{form[:40]!r} is not a form", field="form", next_step=" or ".join(FORMS))
        if target == "webhook":
            if len(secret) < secret_chars_min:
                raise CallerError(f"a signing secret has at least {secret_chars_min} characters", field="secret")
            self._check_url(url)
        elif url or secret:
            raise CallerError(
                "is for webhooks", field="url" if url else "secret", next_step="an export to S3 uses our bucket"
            )
        sealed = self._secrets.seal(tenant, f"export/{name}", secret) if secret else b""
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            size = published.size(unit)
            if position is not None and not 0 <= position <= size:
                raise CallerError(f"the published log has {size} entries", field="from", next_step=f"0 to {size}")
            made = exports.set_up(unit, name, target, form, url, sealed, position)
            self._note(unit, who, made, "set")
        return made

    def pause(self, tenant: str, actor: Actor | None, name: str) -> None:
        """Send nothing more; what is on its way may still arrive."""
        self._change(tenant, actor, name, "paused")

    def go_on(self, tenant: str, actor: Actor | None, name: str) -> None:
        """Go on at once from where it is, after a pause, a stop or a fault."""
        self._change(tenant, actor, name, "active")

    def remove(self, tenant: str, actor: Actor | None, name: str) -> None:
        """Forget it and its position."""
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            found = self._named(unit, name)
            exports.remove(unit, name)
            self._note(unit, who, found, "removed")

    def taken(self, tenant: str, actor: Actor | None, position: int) -> None:
        """Somebody is about to take the log from this index on: written down before the first line leaves."""
        with self._database.unit(tenant) as unit:
            people.tenant(unit)
            who = OPERATOR if actor is None else {"type": "person", "id": allowed(unit, actor, "audit").person}
            person = "" if actor is None else who["id"]
            fact = Fact("log.exported", who, {"person": person, "position": position, "size": published.size(unit)})
            entries.note(unit, "log/export", fact)

    def _change(self, tenant: str, actor: Actor | None, name: str, state: str) -> None:
        with self._database.unit(tenant) as unit:
            who = self._by(unit, actor)
            found = self._named(unit, name)
            exports.set_state(unit, name, state)
            self._note(unit, who, found, "paused" if state == "paused" else "resumed")

    def _named(self, unit: Unit, name: str) -> Export:
        found = exports.named(unit, name)
        if found is None:
            raise CallerError(
                f"there is no export {name[:60]!r}",
                code="unknown_export",
                field="name",
                next_step="`twokeys evidence exports`",
            )
        return found

    def _note(self, unit: Unit, who: dict[str, str], export: Export, change: str) -> None:
        body = {
            "export": export.name,
            "change": change,
            "target": export.target,
            "form": export.form,
            "position": export.position,
        }
        entries.note(unit, f"export/{export.name}", Fact("export.changed", who, body))

    def _by(self, unit: Unit, actor: Actor | None) -> dict[str, str]:
        people.tenant(unit)
        return OPERATOR if actor is None else {"type": "person", "id": allowed(unit, actor, "tenant").person}
