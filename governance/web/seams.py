"""What wiring hands to the web application: the commands, the reads, and nothing that drives a stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute

from governance.commands.admit import Admit
from governance.commands.amend import Amend
from governance.commands.answer import Answers
from governance.commands.cancel import Cancel
from governance.commands.caps import SetCaps
from governance.commands.change import Changes
from governance.commands.decide import Decide
from governance.commands.edit import Edit
from governance.commands.freeze import Freezes
from governance.commands.gate_orders import GateOrders
from governance.commands.propose import Propose
from governance.commands.publish import Publish
from governance.commands.resolve import Resolve
from governance.commands.retry import Retry
from governance.commands.start import Start
from governance.policy.publishing import Publishing
from governance.store.unit import Database
from governance.web.scrape import Scrape


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Every callable takes the tenant that a token, a session or a route has named."""

    database: Database
    route: Callable[[str, str], str | None]  # kind, ref of an outside identity -> its tenant
    start: Start
    propose: Propose
    decide: Decide
    edit: Edit
    answers: Answers
    cancel: Cancel
    resolve: Resolve
    retry: Retry
    gate: GateOrders
    publish: Publish
    caps: SetCaps
    admit: Admit
    amend: Amend
    publishing: Publishing
    changes: Changes
    freezes: Freezes
    unseal: Callable[[str, str, bytes], str]  # tenant, purpose, sealed
    verify: Callable[[str, str, bytes, bytes], bool]  # tenant, key id, data, signature
    fetch: Callable[[str, str], bytes]  # object key, version id -> the stored bundle
    trust: Callable[[str], str]  # the trust policy of a tenant, as an auditor pins it
    slack: Sequence[BaseRoute]
    scrape: Scrape
    session_key: bytes
    public_url: str
    deployment: str
    now: Callable[[], int]  # whole seconds since 1970
    random_hex: Callable[[int], str]

    @property
    def secure(self) -> bool:
        """Whether browsers reach us by https."""
        return self.public_url.startswith("https://")
