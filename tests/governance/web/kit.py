"""A browser and an API client in front of the web application over a real tenant."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from governance.keys import hook_signature
from tests.kit.world import World

_field = re.compile(r'name="([a-z0-9_]+)" value="([^"]*)"')


@dataclass
class Browser:
    """Keeps cookies and sends forms as a page's form would be sent."""

    client: TestClient
    world: World
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        return self._sent("GET", path)

    def post(self, path: str, form: dict[str, str], **more: Any) -> Any:
        return self._sent("POST", path, data=form, **more)

    def _sent(self, method: str, path: str, **more: Any) -> Any:
        headers = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
            **more.pop("headers", {}),
        }
        self.client.cookies.clear()
        answer = self.client.request(method, path, headers=headers, follow_redirects=False, **more)
        for name, value in answer.cookies.items():
            self.cookies[name] = value
        if "Max-Age=0" in answer.headers.get("set-cookie", ""):
            self.cookies.clear()
        return answer

    def hidden(self, path: str, action: str = "") -> dict[str, str]:
        """The hidden fields of the form of a page that is sent to `action` (the page itself when empty)."""
        text = self.get(path).text
        form = re.search(rf'<form method="post" action="{re.escape(action or path)}".*?</form>', text, re.S)
        assert form, f"{path} has no form for {action or path}"
        return {name: value for name, value in _field.findall(form[0]) if f'type="hidden" name="{name}"' in form[0]}

    def sign_in(self, name: str) -> Any:
        return self.enter(self.world.token(name))

    def enter(self, token: str, to: str = "") -> Any:
        hidden = self.hidden("/sign-in" + (f"?next={to}" if to else ""), "/sign-in")
        return self.post("/sign-in", {**hidden, "token": token})

    def decide(self, approval: str, kind: str, reason: str = "", **changed: str) -> Any:
        path = f"/approvals/{approval}"
        return self.post(path, {**self.hidden(path), "kind": kind, "reason": reason, **changed})


@dataclass
class Api:
    """Speaks /v1 with one person's token."""

    client: TestClient
    token: str

    def get(self, path: str) -> Any:
        return self._sent("GET", path)

    def post(self, path: str, body: Any, **headers: str) -> Any:
        return self._with_body("POST", path, body, headers)

    def put(self, path: str, body: Any, **headers: str) -> Any:
        return self._with_body("PUT", path, body, headers)

    def _with_body(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._sent(method, path, content=raw, headers={"Content-Type": "application/json", **headers})

    def _sent(self, method: str, path: str, **more: Any) -> Any:
        self.client.cookies.clear()
        headers = {**more.pop("headers", {}), **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        return self.client.request(method, path, headers=headers, **more)


def hook(client: TestClient, path: str, body: bytes, secret: str, at: int, **changed: str) -> Any:
    """A signed post of another system."""
    headers = {"X-Twokeys-Timestamp": str(at), "X-Twokeys-Signature": hook_signature(secret, str(at), body)}
    return client.post(path, content=body, headers={**headers, "Content-Type": "application/json", **changed})
