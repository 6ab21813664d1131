"""Uses the desk as a person's browser would: a cookie, the forms of the page, one press at a time."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode, urlsplit

from engine.errors import OperatorError
from governance.local.desk.state import Json

SECONDS = 10.0
NOTHING: Mapping[str, str] = MappingProxyType({})


class Visitor:
    """One browser at the desk; `become` chooses who sits in front of it."""

    def __init__(self, base_url: str) -> None:
        self._address = urlsplit(base_url)
        self._me = ""
        self._cookie = ""

    def become(self, user_id: str) -> None:
        self._post("/persona", {"persona": user_id, "back": "/"})
        self._me = user_id

    def state(self) -> Json:
        """Everything on the desk, with what each button would send."""
        status, _, body = self._request("GET", "/_state")
        if status != 200:
            raise OperatorError(f"the desk answered {status}")
        document = json.loads(body)
        assert isinstance(document, dict)
        return document

    def fault(self, kind: str, times: int = 1) -> None:
        """Let so many of Slack's next answers go wrong in this way."""
        self._post("/faults", {"kind": kind, "times": str(times)})

    def page(self, path: str) -> tuple[int, str]:
        """A page's status and HTML, redirects not followed."""
        status, _, body = self._request("GET", path)
        return status, body

    def notes(self) -> list[str]:
        """The texts of the private notes addressed to the present person, oldest first."""
        return [note["text"] for note in self.state()["ephemerals"] if note["addressee"] == self._me]

    def view(self) -> Json | None:
        """The modal that is open for the present person."""
        found: Json | None = self.state()["views"].get(self._me)
        return found

    def press(
        self, surface: Json, action_id: str, *, confirmed: bool = True, answers: Mapping[str, str] = NOTHING
    ) -> None:
        """Press a button of a message, a note or a modal from `state()`, and say yes when Slack asks."""
        button = next((b for b in surface["presses"] if b["action_id"] == action_id), None)
        if button is None:
            offered = ", ".join(b["action_id"] for b in surface["presses"]) or "none"
            raise OperatorError(f"there is no button {action_id!r} to press; there are: {offered}")
        self.send_press(surface, button["press"], confirmed=confirmed, answers=answers)

    def send_press(
        self, surface: Json, press: str, *, confirmed: bool = True, answers: Mapping[str, str] = NOTHING
    ) -> None:
        """Send what a press would, also one that no button on the desk offers any more."""
        place = {"channel": surface["channel"], "ts": surface["ts"]} if "ts" in surface else {"view": surface["id"]}
        yes = {"confirmed": "yes"} if confirmed else {}
        self._post("/click", {**self._fields(surface, answers), **place, "press": press, **yes})

    def submit(self, answers: Mapping[str, str]) -> None:
        """Send the open modal; inputs are named by their block id or their action id."""
        view = self.view()
        if view is None:
            raise OperatorError("no modal is open for this person")
        self._post("/submit", {**self._fields(view, answers), "view": view["id"]})

    def close(self) -> None:
        view = self.view()
        if view is not None:
            self._post("/close", {"view": view["id"]})

    def command(self, channel: str, text: str) -> None:
        self._post("/command", {"channel": channel, "text": text})

    def open_home(self) -> None:
        """Look at the home tab, as the product is told."""
        self._post("/app-home", {})

    def deliver_again(self, delivery_id: int, variant: str = "again") -> None:
        """Send an earlier delivery once more: `again`, `wrong_signature` or `late`."""
        self._post(f"/deliveries/{delivery_id}", {"variant": variant})

    def _fields(self, surface: Json, answers: Mapping[str, str]) -> dict[str, str]:
        """The form's input fields: what the person types, else what the page shows already."""
        fields: dict[str, str] = {}
        for block in surface.get("blocks", []):
            element = block.get("element")
            if block["type"] != "input":
                continue
            block_id, action_id = block["block_id"], element["action_id"]
            chosen = element.get("initial_option", {}).get("value", "")
            shown = element.get("initial_value") or chosen
            fields[f"field {block_id} {action_id}"] = answers.get(block_id, answers.get(action_id, shown))
        return fields

    def _post(self, path: str, fields: Mapping[str, Any]) -> None:
        body = urlencode({"back": "/", "as": self._me, **fields})
        status, headers, text = self._request("POST", path, body)
        if status == 303:
            self._cookie = headers.get("set-cookie", "").split(";")[0] or self._cookie
        elif status != 200:
            raise OperatorError(f"the desk refused {path}: {status} {text[:300]}")

    def _request(self, method: str, path: str, body: str = "") -> tuple[int, dict[str, str], str]:
        headers = {"Cookie": self._cookie} if self._cookie else {}
        if method == "POST":
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": self._address.geturl()}
        connection = http.client.HTTPConnection(str(self._address.hostname), self._address.port, timeout=SECONDS)
        try:
            connection.request(method, path, body.encode() if method == "POST" else None, headers)
            answer = connection.getresponse()
            seen = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, seen, answer.read().decode()
        finally:
            connection.close()
