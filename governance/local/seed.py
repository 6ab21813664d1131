"""Settles the demo's tenant: people, groups, identities, connections, source and workflow; a second time changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from engine.errors import OperatorError
from governance.commands.admit import Admit
from governance.commands.authority import Actor, token_ref
from governance.commands.publish import Publish
from governance.local import cast
from governance.local.cast import CAST, TENANT, Memory
from governance.local.children import PACKAGE_ROOT
from governance.store import people
from governance.store.unit import Database

SAMPLE = PACKAGE_ROOT / "docs" / "examples" / "incident-triage.yaml"


class Product(Protocol):
    """The part of wiring that a demo needs; the orders are the same ones that an operator gives at the shell."""

    @property
    def database(self) -> Database: ...

    @property
    def admit(self) -> Admit: ...

    @property
    def publish(self) -> Publish: ...

    def close(self) -> None: ...


def settle(product: Product, memory: Memory, servicenow_url: str) -> None:
    """Everything that the demo's runs need."""
    admit = product.admit
    with product.database.unit(TENANT, write=False) as unit:
        known = unit.one("select 1 from tenant where tenant = :tenant") is not None
    if not known:
        admit.tenant(TENANT, "Demo", "prod")
    with product.database.unit(TENANT, write=False) as unit:
        groups = set(people.group_members(unit))
    for group, name in cast.GROUPS.items():
        if group not in groups:
            admit.group(TENANT, None, group, name)
    ids = _people(product, memory)
    admit.connection(TENANT, "servicenow", "demo", servicenow_url, cast.SERVICENOW_USER, memory.servicenow_password)
    admit.source(
        TENANT, cast.SOURCE, kind="servicenow", secret=memory.webhook_secret, workflow=cast.WORKFLOW, person=ids[cast.ROBOT],
        owner=ids[cast.OWNER],
    )  # fmt: skip
    admit.slack(
        TENANT, team=cast.TEAM, app_id=cast.APP, bot_user=cast.BOT, token=memory.bot_token, channel=cast.CHANNELS[0].id
    )
    author = Actor("token", token_ref(memory.token(cast.AUTHOR)))
    product.publish.apply(TENANT, author, _sample(SAMPLE), SAMPLE.name)


def _people(product: Product, memory: Memory) -> dict[str, str]:
    """Person ids by key of the cast, and the robot's by its name."""
    admit = product.admit
    with product.database.unit(TENANT, write=False) as unit:
        known = {p.name: p for p in people.profiles(unit).values()}
    ids: dict[str, str] = {}
    for member in (m for m in CAST if m.level):
        found = known.get(member.name)
        person = found.person if found else admit.person(
            TENANT, None, name=member.name, level=member.level, read_only=member.read_only
        )  # fmt: skip
        ids[member.key] = person
        for group in sorted(set(member.groups) - set(found.groups if found else ())):
            admit.join(TENANT, None, group, person)
        _identities(product, memory, member, person)
        if not member.active and (found is None or found.active):
            admit.deactivate(TENANT, None, person)
    robot = known.get(cast.ROBOT)
    ids[cast.ROBOT] = robot.person if robot else admit.person(TENANT, None, name=cast.ROBOT, level=4, kind="service")
    return ids


def _identities(product: Product, memory: Memory, member: cast.Member, person: str) -> None:
    with product.database.unit(TENANT, write=False) as unit:
        linked = people.by_identity(unit, "slack", f"{member.team}:{member.slack}") is not None
    if not linked:
        product.admit.link_slack(TENANT, None, person, member.team, member.slack)
    product.admit.token_known(TENANT, person, memory.token(member.key), "demo")


def _sample(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise OperatorError(
            "the sample workflow is not there", field=str(path), next_step="run the demo from a checkout"
        ) from None
