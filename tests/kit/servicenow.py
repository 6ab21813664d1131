"""A running ServiceNow stand-in for a test, with its control door."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Any

from governance.local import servicenow
from governance.local.children import LOOPBACK, Children
from governance.local.standin import StandIn

USER, PASSWORD = "twokeys", "not-a-secret"
INCIDENT = "46d44a23a9fe19810012d100cca80666"
GROUP = "287ebd7da9fe198100f92cc8d1d2154e"
SEED: tuple[dict[str, str], ...] = (
    {"sys_id": INCIDENT, "number": "INC0010001", "short_description": "Checkout answers 502", "priority": "1"},
    {"sys_id": "9" * 32, "number": "INC0010002", "short_description": "Printer on fire", "priority": "4"},
)


class ServiceNow:
    """The stand-in's process; it keeps its port and its records over a crash."""

    user, password = USER, PASSWORD

    def __init__(self, children: Children, state_directory: Path) -> None:
        self._children = children
        self._directory = state_directory
        self._running = self._start()

    @property
    def base_url(self) -> str:
        return self._running.base_url

    @property
    def port(self) -> int:
        return self._running.port

    def is_up(self) -> bool:
        return self._running.child.alive()

    def wait_until_down(self, seconds: float = 10.0) -> None:
        assert self._running.child.wait(seconds) is not None, "the stand-in still runs"

    def restart_if_down(self) -> None:
        if not self.is_up():
            self._children.stop(self._running.child)
            self._running = self._start()

    def kill(self) -> None:
        self._children.kill(self._running.child)

    def reset(self) -> None:
        self.call("POST", "/_control/reset")

    def plan(self, fault: str, **how: Any) -> None:
        """The next matching requests suffer this fault: `times`, `method`, `seconds`."""
        self.call("POST", "/_control/faults", {"fault": fault, **how})

    def change(self, sys_id: str, fields: dict[str, str], user: str = "somebody.else") -> None:
        """Somebody else writes to a record."""
        self.call("POST", "/_control/change", {"sys_id": sys_id, "fields": fields, "user": user})

    def writes(self, field: str, user: str = USER) -> list[str]:
        """The values this user wrote to a field, oldest first."""
        changes = self.call("GET", "/_control/changes")["result"]
        return [c["newvalue"] for c in changes if c["fieldname"] == field and c["user"] == user]

    def record(self, sys_id: str = INCIDENT) -> dict[str, Any]:
        result: dict[str, Any] = self.call("GET", f"/api/now/table/incident/{sys_id}")["result"]
        return result

    def call(self, method: str, path: str, document: object = None) -> Any:
        """A request that must succeed."""
        status, _, answer = self.request(method, path, document)
        assert status == 200, (status, answer)
        return answer

    def request(
        self, method: str, path: str, document: object = None, *, user: str = USER, password: str = PASSWORD
    ) -> tuple[int, dict[str, str], Any]:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=10)
        try:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            connection.request(method, path, body if document is not None else None, headers)
            answer = connection.getresponse()
            seen = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, seen, json.loads(answer.read())
        finally:
            connection.close()

    def _start(self) -> StandIn:
        return servicenow.start(
            self._children, self._directory, user=USER, password=PASSWORD, incidents=SEED, environment="test"
        )
