"""A tenant's caps and workspaces over /v1: the same orders as the command line's."""

from __future__ import annotations

from typing import Any

from governance.store import caps, people
from governance.web import models as shape
from governance.web.auth import reader
from governance.web.seams import Seams


def show_caps(seams: Seams, call: Any) -> shape.CapsOut:
    """GET /v1/caps."""
    with seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        found = caps.listed(unit)
    return shape.CapsOut(caps=[_cap(one) for one in found])


def set_caps(seams: Seams, call: Any) -> shape.CapOut:
    """PUT /v1/caps."""
    asked: shape.SetCaps = call.body
    given = asked.model_dump(exclude_unset=True, exclude={"workspace", "weight"})
    made = seams.caps.set(call.caller.tenant, call.caller.actor, asked.workspace, given, asked.weight)
    return _cap(made)


def list_workspaces(seams: Seams, call: Any) -> shape.WorkspacesOut:
    """GET /v1/workspaces."""
    with seams.database.unit(call.caller.tenant, write=False) as unit:
        reader(unit, call.caller)
        found = people.workspaces(unit)
    return shape.WorkspacesOut(workspaces=[shape.WorkspaceOut(workspace=one, name=name) for one, name in found.items()])


def add_workspace(seams: Seams, call: Any) -> shape.WorkspaceOut:
    """POST /v1/workspaces."""
    asked: shape.AddWorkspace = call.body
    seams.admit.workspace(call.caller.tenant, call.caller.actor, asked.workspace, asked.name)
    return shape.WorkspaceOut(workspace=asked.workspace, name=asked.name.strip() or asked.workspace)


def _cap(one: caps.Set) -> shape.CapOut:
    numbers = {name: getattr(one.caps, name) for name in type(one.caps).__slots__}
    return shape.CapOut(scope=one.scope, of=one.of, weight=one.weight, **numbers)
