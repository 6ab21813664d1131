"""Makes the evidence of a period: every entry between two checkpoints, and what the targets' own change logs say beside it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import CallerError, TwokeysError
from engine.ledger.entries import instant, read_entry
from engine.ledger.stretch import PeriodContents, build_period
from engine.ledger.tree import Frontier
from governance.keys import Signer
from governance.store import cosigned, published, trees
from governance.store.entries import Checkpoint
from governance.store.unit import Database, Unit

entries_max = 250_000  # of one bundle: it is read into memory by whoever verifies it
page = 2_000
slack_seconds = 5  # by which an outside system's clock may differ from ours
kept_max = 500  # changes of one kind that a bundle lists


class ChangeSeen(Protocol):
    """A change as the outside system's own log tells it."""

    @property
    def target(self) -> str:
        """The record that was changed."""

    @property
    def field(self) -> str:
        """What of it."""

    @property
    def by(self) -> str:
        """The account that did it."""

    @property
    def at(self) -> str:
        """When, as an entry's stamp."""


@dataclass(frozen=True, slots=True)
class Outside:
    """One outside system with a change log of its own, and the account that is ours there."""

    connector: str
    instance: str
    account: str
    changes: Callable[[datetime.datetime, datetime.datetime], Sequence[ChangeSeen]]  # raises when it cannot be read
    named: Callable[[str, str], str]  # how entries name a target or an account: (kind, name)


def boundary(unit: Unit, text: str, what: str) -> Checkpoint | None:
    """The checkpoint that a size or a day names: the newest one until then; None for the begin of the log."""
    if text.isdigit():
        found = published.exactly(unit, int(text)) if int(text) else None
        if found is None and int(text):
            raise CallerError(
                f"the log has no checkpoint of {text} entries", code="no_checkpoint", field=what,
                next_step="give a day like 2026-11-30: the newest checkpoint until then is taken",
            )  # fmt: skip
        return found
    try:
        day = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CallerError(
            f"{text!r} is neither a size nor a day like 2026-11-30", code="bad_value", field=what
        ) from None
    return published.newest_until(unit, day if day.tzinfo else day.replace(tzinfo=datetime.UTC))


class Period:
    """Builds bundles of periods of one installation."""

    def __init__(
        self,
        database: Database,
        *,
        signer: Callable[[str], Signer],
        trust: Callable[[str], str],
        verifier: bytes,
        outside: Callable[[str], Iterable[Outside]],
    ) -> None:
        """`outside` names the systems of a tenant that keep a change log which we may read."""
        self._database = database
        self._signer, self._trust, self._verifier = signer, trust, verifier
        self._outside = outside

    def build(self, tenant: str, since: str, until: str) -> bytes:
        """The bundle from one boundary to the other; an empty `until` is the newest checkpoint."""
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            before = boundary(unit, since, "--from")
            end = boundary(unit, until, "--to") if until else cosigned.newest_signed(unit)
            start = before.size if before else 0
            if end is None or end.note is None or end.size <= start:
                raise CallerError("there is no entry between these checkpoints", code="empty_period", field="--to")
            if end.size - start > entries_max:
                raise CallerError(
                    f"{end.size - start} entries are too many for one bundle; {entries_max} are the most",
                    code="long_period", field="--to", next_step="make one bundle after the other, each from where the last one ended",
                )  # fmt: skip
            note = end.note + b"".join(cosigned.lines(unit, end.size))
            proof = trees.tiles_of(unit, end.size).consistency(start)
        bodies = self._bodies(tenant, start, end.size)
        # An effect that was in flight at the begin was intended a little before it.
        earlier = self._bodies(tenant, max(0, start - page), start)
        signer = self._signer(tenant)
        contents = PeriodContents(
            entries=tuple(bodies), before=before.frontier if before else Frontier(),
            note_before=before.note or b"" if before else b"", note=note, proof=proof,
            reconciled=tuple(reconcile(one, bodies, earlier) for one in self._outside(tenant)),
            trust=self._trust(tenant), verifier=self._verifier, public=signer.public, sign=signer.sign,
        )  # fmt: skip
        return build_period(contents)

    def _bodies(self, tenant: str, start: int, end: int) -> list[bytes]:
        found: list[bytes] = []
        for at in range(start, end, page):
            with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
                found += published.bodies(unit, at, min(at + page, end))
        return found


def reconcile(system: Outside, bodies: Sequence[bytes], earlier: Sequence[bytes] = ()) -> dict[str, Any]:
    """What a system's own log tells of the time that these entries span, held against the effects among them and just before."""
    read = [read_entry(body) for body in bodies]
    first, last = min(entry.at for entry in read), max(entry.at for entry in read)
    slack = datetime.timedelta(seconds=slack_seconds)
    said: dict[str, Any] = {
        "connector": system.connector, "instance": system.instance, "read_to": last, "ours": 0, "foreign": [], "unexplained": [],
        "error": "",
    }  # fmt: skip
    try:
        changes = system.changes(instant(first) - slack, instant(last) + slack)
    except TwokeysError as error:
        return {**said, "error": error.reason[:200]}
    read = [*map(read_entry, earlier), *read]
    proposed = {
        (entry.chain, entry.body["promise"]): entry.body["target"]
        for entry in read
        if entry.type == "action.proposed" and entry.body["connector"] == system.connector
    }
    intended: dict[str, str] = {}
    for entry in read:
        target = proposed.get((entry.chain, entry.body.get("promise", "")), "")
        if entry.type == "effect.intended" and target:
            intended.setdefault(target, entry.at)
    for change in changes:
        target, account = system.named("target", change.target), system.named("account", change.by)
        told = {"at": change.at, "by": account[:16], "field": change.field, "target": target}
        if change.by != system.account:
            said["foreign"].append(told)
        elif target in intended and instant(intended[target]) <= instant(change.at) + slack:
            said["ours"] += 1
        else:
            said["unexplained"].append(told)
    said["foreign"], said["unexplained"] = said["foreign"][:kept_max], said["unexplained"][:kept_max]
    return said
