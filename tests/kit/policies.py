"""Another policy in force for a test's tenant: the shipped rules with more text at the end of one of them, judged by real OPA."""

from __future__ import annotations

from typing import Any

from engine.canonical import sha256
from governance.policy.bundle import build, read_source, shipped_directory
from governance.store import templates
from tests.kit.world import World

BASE = "twokeys/base.rego"


def obliging(body: str, when: str = 'input.action.kind == "write"') -> str:
    """A rule that owes this obligation, given as the fields of a JSON object, whenever `when` holds."""
    return f"\nobligations contains {{{body}}} if {{\n\t{when}\n}}\n"


def holding(body: str, when: str = 'input.action.kind == "write"') -> str:
    """A hold with these fields whenever `when` holds."""
    return f"\nhold contains {{{body}}} if {{\n\t{when}\n}}\n"


def enforce(world: World, text: str = "", *, path: str = BASE, **own: Any) -> str:
    """From now on the tenant is judged by the shipped rules with this text added, and this data of its own. The revision."""
    source = read_source(shipped_directory())
    modules = {**source.modules, path: source.modules[path] + text}
    bundle = build(modules, source.data, {world.tenant: own})
    with world.parts.database.unit(world.tenant) as unit:
        templates.put_policy(unit, bundle.revision, bundle.archive, sha256(bundle.archive), "test")
    return bundle.revision
