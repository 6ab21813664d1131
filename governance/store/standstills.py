"""Freezes and the kill switch: what stands still in a tenant since when and why, and the mark by which every commit sees a change."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import CallerError
from governance.store.unit import Row, Unit

TENANT, WORKSPACE, CONNECTOR, KILL_SWITCH = SCOPES = ("tenant", "workspace", "connector", "kill_switch")


@dataclass(frozen=True, slots=True)
class Standstill:
    """One freeze; the kill switch is the one that stops reads too."""

    freeze: str
    scope: str
    name: str  # of the workspace or the connector
    reason: str
    by: str
    at: datetime.datetime

    def stops(self, workspace: str, connector: str) -> bool:
        """Whether it is about what this connector does in this workspace; the kill switch is a fact of its own."""
        return {TENANT: True, WORKSPACE: self.name == workspace, CONNECTOR: self.name == connector}.get(
            self.scope, False
        )

    def __str__(self) -> str:
        what = {TENANT: "everything", KILL_SWITCH: "kill switch"}.get(self.scope, f"{self.scope} {self.name}")
        return f"{what}, since {self.at.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def begin(unit: Unit, one: Standstill) -> None:
    """From the commit of this on nothing that it is about passes."""
    mark, there = _locked(unit), open_ones(unit)
    if one.scope != KILL_SWITCH and mark and not any(each.scope != KILL_SWITCH for each in there):
        raise CallerError(
            f"everything stands still already: {mark!r} was set in the database by an operator's own hand",
            code="frozen",
        )
    if any((each.scope, each.name) == (one.scope, one.name) for each in there):
        raise CallerError(
            "stands still already", code="frozen", field=one.scope, next_step="`twokeys thaw --list` shows since when"
        )
    unit.run(
        "insert into standstill (tenant, id, scope, name, reason, by) values (:tenant, :freeze, :scope, :name, :reason, :by)",
        freeze=one.freeze, scope=one.scope, name=one.name, reason=one.reason, by=one.by,
    )  # fmt: skip
    _mark(unit, one.scope, one.freeze, on=True)


def end(unit: Unit, one: Standstill, by: str) -> bool:
    """It is lifted; False when it was not in force any more."""
    _locked(unit)
    done = unit.run(
        "update standstill set ended_at = clock_timestamp(), ended_by = :by where tenant = :tenant and id = :freeze "
        "and ended_at is null",
        freeze=one.freeze, by=by,
    )  # fmt: skip
    if done.rowcount:
        _mark(unit, one.scope, f"{one.freeze}-{by}"[:100], on=False)
    return done.rowcount == 1


def _locked(unit: Unit) -> str:
    """The mark, with nobody else changing it until we commit: a statement after this sees what they left."""
    row = unit.one("select freeze_id from tenant where tenant = :tenant for no key update")
    return "" if row is None else str(row[0])


def _mark(unit: Unit, scope: str, mark: str, *, on: bool) -> None:
    # An intent's commit compares the mark with the one that its verdict was given under: whatever changed since, it is
    # judged again. An earlier release reads any mark as a freeze of everything.
    if scope == KILL_SWITCH:
        unit.run("update tenant set kill_switch = :on where tenant = :tenant", on=on)
        return
    unit.run(
        "update tenant set freeze_id = case when exists (select from standstill s where s.tenant = :tenant and "
        "s.scope <> 'kill_switch' and s.ended_at is null) then :mark else '' end where tenant = :tenant",
        mark=mark,
    )


def open_ones(unit: Unit) -> tuple[Standstill, ...]:
    """What stands still, the oldest first."""
    rows = unit.all(
        "select id, scope, name, reason, by, at from standstill where tenant = :tenant and ended_at is null order by at, id"
    )
    return tuple(_one(row) for row in rows)


def of_id(unit: Unit, freeze: str) -> Standstill | None:
    """One freeze that is in force."""
    return next((one for one in open_ones(unit) if one.freeze == freeze), None)


def ended_by(unit: Unit, run: str) -> str:
    """The freeze that this run lifted; empty when it lifted none."""
    row = unit.one("select id from standstill where tenant = :tenant and ended_by = :run limit 1", run=run)
    return "" if row is None else str(row[0])


def freeze_of(mark: str, found: Sequence[Standstill], workspace: str, connector: str) -> str:
    """The freeze that stops this connector's writes in this workspace; empty when none does.

    A mark that no freeze explains was set by an operator's own hand, and stops everything.
    """
    if not mark:
        return ""
    freezes = [one for one in found if one.scope != KILL_SWITCH]
    if not freezes:
        return mark
    return next((one.freeze for one in freezes if one.stops(workspace, connector)), "")


def _one(row: Row) -> Standstill:
    return Standstill(row[0], row[1], row[2], row[3], row[4], row[5])
