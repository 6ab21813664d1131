"""`twokeys demo` as a person starts it, what they read off their terminal, and what they do at the desk and in the console."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page, expect

from governance.local.cast import incident
from governance.local.children import Children, Command, free_port
from tests.kit.wait import is_gone, until

TWOKEYS = Path(sys.executable).with_name("twokeys")
ENDED = ("succeeded", "failed_terminal", "canceled")
PATIENCE_MS = 40_000
UP = "Ctrl-C stops everything."


class Demo:
    """A demo that runs; `desk`, `console`, `servicenow` and `tokens` are what its own table says."""

    def __init__(self, children: Children, state: Path) -> None:
        self.state = state
        # A demo that finds its port busy takes another; two that start at the same moment are spared the race.
        (state / "demo.json").write_text(json.dumps({"web_port": free_port()}))
        (state / "demo.json").chmod(0o600)
        around = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        self._children = children
        self._seen: set[int] = set()
        self._process = children.start(
            Command(
                "demo", [str(TWOKEYS), "demo", "--state", str(state)], {**around, "LC_ALL": "C.UTF-8"},
                stop_signal=signal.SIGINT, grace_seconds=40,
            ),
            ready=lambda child: UP in child.log_path.read_text("utf-8", "replace"), seconds=90,
        )  # fmt: skip
        self.desk, self.console, table = (self._row(name)[0] for name in ("Slack desk", "Console", "ServiceNow"))
        self.servicenow = table.partition("/api/")[0]
        self.servicenow_login = self._row("ServiceNow")[1].replace(" / ", ":")
        self.tokens = dict(re.findall(r"^  (\w+) \w+ +(tk_\S+)", self.said(), re.M))

    def said(self) -> str:
        """What the demo wrote to the terminal."""
        return self._process.log_path.read_text("utf-8", "replace")

    def _row(self, name: str) -> list[str]:
        found = re.search(rf"^  {name}  +(\S.*)$", self.said(), re.M)
        assert found, f"{name} is not in the table:\n{self.said()}"
        return re.split(r"\s{2,}", found[1].strip())

    # --- processes ----------------------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """The demo's children and their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            except (OSError, ValueError):
                continue
            if parent == self._process.pid:
                found[int(entry.name)] = command
        self._seen |= set(found)
        return found

    def pid_of(self, ending: str) -> int:
        """The child whose command line has this, which is one."""
        found = [pid for pid, command in self.processes().items() if ending in command]
        assert len(found) == 1, (ending, self.processes())
        return found[0]

    def kill(self, ending: str) -> None:
        """End one child as a crash would."""
        pid = self.pid_of(ending)
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid))

    def stop(self) -> int | None:
        """Ctrl-C; its exit code, once nothing that it started is left."""
        self.processes()
        self._children.stop(self._process)
        until(lambda: all(is_gone(pid) for pid in self._seen), 10)
        return self._process.exit_code

    # --- other systems ------------------------------------------------------------------------------------------------

    def event(self, n: int, **data: str) -> str:
        """ServiceNow says that incident n was created; the run it started. As signed as ServiceNow would sign."""
        secret = json.loads((self.state / "demo.json").read_text())["webhook_secret"]
        found = incident(n)
        fields = {name: found[name] for name in ("number", "sys_id", "short_description", "priority", "category")}
        event = {"event": "incident.created", "ref": f"{found['number']}/test", "data": {**fields, **data}}
        body, moment = json.dumps(event).encode(), str(int(time.time()))
        signed = hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {"X-Twokeys-Timestamp": moment, "X-Twokeys-Signature": f"v1={signed}"}
        return str(self._call(self.console, "POST", "/hooks/demo/servicenow", event, headers, raw=body)["run"])

    def v1(self, name: str, path: str) -> Any:
        """A GET of /v1 with this person's token."""
        return self._call(self.console, "GET", path, None, {"Authorization": f"Bearer {self.tokens[name]}"})

    def decide(self, name: str, approval: str, kind: str = "key") -> None:
        """A decision over /v1, where a test is about something else."""
        shown = self.v1(name, f"/v1/approvals/{approval}")
        body = {"kind": kind, "digest16": shown["digest16"], "reason": "seen"}
        token = {"Authorization": f"Bearer {self.tokens[name]}"}
        self._call(self.console, "POST", f"/v1/approvals/{approval}/decide", body, token)

    def waiting(self, run: str, tier: str) -> str:
        """The approval of this tier that the run waits for, once it waits."""
        found: list[str] = []

        def asked() -> bool:
            for one in self.v1("Rita", "/v1/approvals")["approvals"]:
                if one["run"] == run and one["tier"] == tier:
                    found.append(one["approval"])
            return bool(found)

        until(asked, 60)
        return found[0]

    def ended(self, run: str) -> str:
        """The state that the run ends in."""
        until(lambda: self.v1("Rita", f"/v1/runs/{run}")["state"] in ENDED, 60)
        return str(self.v1("Rita", f"/v1/runs/{run}")["state"])

    def control(self, method: str, path: str, document: object = None) -> Any:
        """The stand-in's door for tests: faults, and who changed what."""
        pair = base64.b64encode(self.servicenow_login.encode()).decode()
        return self._call(self.servicenow, method, f"/_control/{path}", document, {"Authorization": f"Basic {pair}"})

    def written(self, sys_id: str, field_name: str) -> list[str]:
        """Every value that was written to a field of a record."""
        changes = self.control("GET", "changes")["result"]
        return [c["newvalue"] for c in changes if c["documentkey"] == sys_id and c["fieldname"] == field_name]

    def _call(
        self, base: str, method: str, path: str, document: object, headers: dict[str, str], raw: bytes = b""
    ) -> Any:
        address = urlsplit(base)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
        try:
            body = raw or (json.dumps(document).encode() if document is not None else None)
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status in (200, 202), (path, answer.status, text)
        return json.loads(text)


@dataclass
class Visits:
    """Opens browser windows, and remembers everything that their consoles said."""

    browser: Browser
    shots: Path
    messages: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def open(self, **how: Any) -> Page:
        """A window of somebody who was never here before."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self._heard(page, message))
        page.on("pageerror", lambda error: self.messages.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: self._asked(page, dialog))
        return page

    def _asked(self, page: Page, dialog: Dialog) -> None:
        self.messages.append(f"{page.url}: a dialog says {dialog.message}")
        dialog.dismiss()

    def _heard(self, page: Page, message: ConsoleMessage) -> None:
        # A page that answers 403 or 404 on purpose is written to the console as well; a missing picture is a fault.
        if not (message.text.startswith("Failed to load resource") and message.location["url"] == page.url):
            self.messages.append(f"{page.url}: {message.text}")

    def shot(self, page: Page, name: str) -> None:
        page.screenshot(path=self.shots / f"{name}.png", full_page=True)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        self.contexts.clear()


class Desk:
    """The Slack desk in a browser."""

    def __init__(self, page: Page, demo: Demo) -> None:
        self.page = page
        self._home = demo.desk

    def be(self, name: str) -> None:
        """Choose who sits here; the page then belongs to them."""
        self.page.goto(self._home)
        window = self.page.get_by_role("dialog")
        if window.count():  # whoever shared this desk before left it open, and nothing else can be pressed meanwhile
            self._sent(lambda: window.get_by_role("button", name="Close", exact=True).first.click())
        self._sent(lambda: self.page.get_by_role("button", name=re.compile(name)).click())
        expect(self.page.locator("button[name=persona][aria-pressed=true]")).to_contain_text(name)

    def card(self, title: str, run: str = "") -> Locator:
        """The card of a run with this title."""
        head = self.page.get_by_role("heading", name=re.compile(title))
        return self.page.locator("article.message", has=head).filter(has_text=f"run {run[:12]}")

    def press(self, card: Locator, name: str) -> None:
        """Press a button of a card; where Slack asks once more, say yes."""
        expect(card).to_be_visible()
        self._sent(lambda: card.get_by_role("button", name=re.compile(f"^{name}")).click())
        again = self.page.get_by_role("alertdialog")
        if again.count():
            self._sent(lambda: again.get_by_role("button", name=name).click())

    def shows(self, where: Locator, text: str) -> None:
        """Reload until this is there; a person would wait the three seconds after which the page reloads itself."""
        _until_shown(self.page, where.filter(has_text=text), text)

    def told(self, sentence: str) -> None:
        """The person here reads this in a note that only they see."""
        self.shows(self.page.locator("article.private"), sentence)

    def _sent(self, act: Callable[[], None]) -> None:
        """The form has reached the product and its answer is drawn: the page also reloads itself, which is no answer."""
        with self.page.expect_response(lambda answer: answer.request.method == "POST"):
            act()
        self.page.wait_for_load_state()


class Console:
    """The console in a browser."""

    def __init__(self, page: Page, demo: Demo) -> None:
        self.page = page
        self._base = demo.console.rstrip("/")
        self._demo = demo

    def sign_in(self, name: str) -> Console:
        self.page.goto(f"{self._base}/sign-in")
        self.page.get_by_label("Personal token").fill(self._demo.tokens[name])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator(".me")).to_contain_text(name)
        return self

    def open(self, path: str) -> int:
        answer = self.page.goto(self._base + path)
        assert answer is not None
        return answer.status

    def shows(self, where: Locator, text: str) -> None:
        """Reload until this is there: these pages do not change by themselves."""
        _until_shown(self.page, where.filter(has_text=text), text)


def check_accessible(page: Page, *rules: str) -> None:
    """axe finds nothing: by these rules, else by all of WCAG 2 A and AA. Not in a window without scripts: it waits for ever."""
    wanted = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": ["wcag2a", "wcag2aa"]}
    found = Axe().run(page, options={"runOnly": wanted, "resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()


def _until_shown(page: Page, wanted: Locator, text: str) -> None:
    def look() -> bool:
        if wanted.count():
            return True
        page.reload()
        return bool(wanted.count())

    try:
        until(look, PATIENCE_MS / 1000)
    except AssertionError:
        raise AssertionError(f"{text!r} is not on {page.url}:\n{page.inner_text('main')}") from None
