"""Opens modals in the click's own thread: after the commit, within two seconds, once, and never carrying a decision."""

from __future__ import annotations

from collections.abc import Callable

from governance.slack.api import Sent, call, check_base, client
from governance.slack.blocks import Block

open_seconds_max = 2  # a trigger lives three seconds and the click's answer waits for this


class Modals:
    """The one way to Slack beside the outbox: a trigger would be dead before an outbox row is read."""

    def __init__(self, base_url: str, token_of: Callable[[str], str], *, allow_local: bool, proxy: str = "") -> None:
        self._base_url = check_base(base_url, allow_local=allow_local)
        self._token_of = token_of
        self._proxy = proxy

    def open(self, tenant: str, trigger_id: str, view: Block) -> Sent:
        """Show the view to whoever clicked."""
        token = self._token_of(tenant)
        if not token:
            return Sent("rejected", error="not_installed")
        caller = client(self._base_url, token, open_seconds_max, self._proxy)
        return call(caller, "views.open", {"trigger_id": trigger_id, "view": view})
