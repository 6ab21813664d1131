"""The connectors that come with the product, in one list for the processes and for whoever only checks a workflow."""

from __future__ import annotations

from typing import NoReturn

from engine.errors import OperatorError
from governance.connectors.registry import ConnectionOf, Connector, Registry
from governance.connectors.servicenow import ServiceNow
from governance.connectors.slack import Post, SlackMessages


def shipped(connection_of: ConnectionOf, post: Post, own: Connector | None = None) -> Registry:
    """The registry of an installation."""
    return Registry({"servicenow": ServiceNow(connection_of), "slack": SlackMessages(post)}, own)


def declared() -> Registry:
    """What the connectors declare, connected to nothing."""
    return shipped(_unconnected, _unconnected)


def _unconnected(*_: str) -> NoReturn:
    raise OperatorError("this registry only says what there is", code="not_connected")
