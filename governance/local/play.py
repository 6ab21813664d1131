"""Plays the people of a demo through the desk's own forms, then checks the evidence as an auditor would; it gives no order itself."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from engine.errors import OperatorError
from engine.ledger.onefile import one_file
from governance import clock
from governance.local.cast import CAST, Memory
from governance.local.desk.visitor import Visitor

PATIENCE_SECONDS = 60.0
APPROVE = "tk_approve"
ENDED = ("succeeded", "failed_terminal", "canceled")

Json = dict[str, Any]
Found = TypeVar("Found")


class PlayFailed(OperatorError):
    """The operator must act: the demo did not go as it must; the sentence says where."""

    code = "play_failed"


@dataclass(frozen=True)
class Asked:
    """A card at the desk that waits for keys: its message, and which approval it is about."""

    message: Json
    press: str
    approval: str


class Play:
    """One performance: who presses what, and what everybody must be told."""

    def __init__(self, where: Mapping[str, str], memory: Memory, pause: Callable[[], None], console: Console) -> None:
        self._where = where
        self._memory = memory
        self._pause = pause
        self._console = console
        self._visitor = Visitor(where["desk"])
        self._approvals: list[Json] = []

    def through(self, send_event: Callable[..., Json], trust: Callable[[], str]) -> Json:
        """The whole story: the event, the keys, the refusals, the end, the proof."""
        begun = send_event()
        run, number = str(begun["run"]), begun["number"]
        self._tell(f"{number} started run {run[:12]}")
        again = send_event(ref=begun["ref"])
        if again["run"] != run or again.get("new"):
            raise PlayFailed("the same event started a second run")
        self._tell("the same event again: the same run")
        self._first_gate(run)
        self._second_gate(run)
        state = self._ended(run)
        if state != "succeeded":
            raise PlayFailed(f"run {run} ended {state}; {self._where['web']}/runs/{run} says why")
        self._tell("the run succeeded")
        bundle = self._bundle(run)
        self._verify(run, bundle, trust())
        digest = hashlib.sha256(bundle).hexdigest()
        return {"run": run, "status": state, "approvals": self._approvals, "bundle_sha256": digest, "verified": True}

    # --- the people ---------------------------------------------------------------------------------------------------

    def _first_gate(self, run: str) -> None:
        card = self._card(run, "")
        self._press("rita", card, given=False)
        self._press("ana", card, given=True)
        self._approvals.append({"approval": card.approval, "keys": ["Ana Archer"]})

    def _second_gate(self, run: str) -> None:
        card = self._card(run, self._approvals[0]["approval"])
        self._press("adi", card, given=False)
        self._press("dan", card, given=False)
        self._press("bo", card, given=True)
        self._press("bo", card, given=False)
        self._press("cleo", card, given=True)
        self._approvals.append({"approval": card.approval, "keys": ["Bo Brandt", "Cleo Costa"]})

    def _card(self, run: str, but: str) -> Asked:
        """The card of this run that waits, not the one about this other approval."""

        def look() -> Asked | None:
            for message in self._visitor.state()["messages"]:
                found = next((b["press"] for b in message["presses"] if b["action_id"] == APPROVE), "")
                if not found or f"run {run[:12]}" not in json.dumps(message["blocks"]):
                    continue
                approval = str(json.loads(found)["value"]).split(".")[2]
                if approval != but:
                    return Asked(message, found, approval)
            return None

        return self._until(look, f"a card of run {run[:12]} with Approve on it")

    def _press(self, key: str, card: Asked, *, given: bool) -> None:
        """Press Approve as this person, who must be told that it counts, or why it does not."""
        member = next(one for one in CAST if one.key == key)
        self._visitor.become(member.slack)
        before = len(self._visitor.notes())
        # What the person has in front of them: the card they saw, even when somebody else's key has changed it since.
        self._visitor.send_press(card.message, card.press)
        notes = self._until(lambda: self._visitor.notes()[before:], f"an answer to {member.name}")
        counted = notes[-1].startswith(("Approved", "Your key is in"))
        self._tell(f"{member.name} presses Approve: {notes[-1]}")
        if counted != given:
            raise PlayFailed(f"{member.name} was told {notes[-1]!r}, which {'must not' if counted else 'must'} count")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _ended(self, run: str) -> str:
        def look() -> str:
            state = str(json.loads(self._get(f"/v1/runs/{run}"))["state"])
            if state == "unknown":
                raise PlayFailed(f"an outcome of run {run} is not known; a person must say what happened")
            return state if state in ENDED else ""

        return self._until(look, "the end of the run")

    def _bundle(self, run: str) -> bytes:
        found = self._until(lambda: self._get(f"/v1/runs/{run}/bundle", missing_ok=True), "the sealed bundle")
        self._tell(f"the evidence is sealed: {len(found)} bytes, sha256 {hashlib.sha256(found).hexdigest()}")
        return found

    def _verify(self, run: str, bundle: bytes, trust: str) -> None:
        """In an empty directory, with an interpreter that has no packages, no environment and no work but this."""
        with tempfile.TemporaryDirectory(prefix="twokeys-auditor-") as name:
            for path, content in (
                ("bundle.zip", bundle),
                ("policy.txt", trust.encode()),
                ("verify.py", one_file().encode()),
            ):
                (Path(name) / path).write_bytes(content)
            command = [sys.executable, "-I", "-S", "verify.py", "bundle.zip", "--trust", "policy.txt", "--run", run]
            self._console.print(Text(f"$ python {' '.join(command[1:])}", "bold"), soft_wrap=True)
            done = subprocess.run(command, cwd=name, env={}, capture_output=True, text=True, timeout=120, check=False)
        self._console.print(Text(done.stdout + done.stderr), soft_wrap=True)
        if done.returncode != 0:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise PlayFailed(f"the verifier ended with code {done.returncode}: {' '.join(last)}")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _get(self, path: str, *, missing_ok: bool = False) -> bytes:
        """An answer of /v1 for Rita; empty for what is not there yet."""
        address = urlsplit(self._where["web"])
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._memory.token('rita')}"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise PlayFailed(f"the web process does not answer: {error}") from None
        finally:
            connection.close()
        if answer.status == 200:
            return body
        if missing_ok and b'"not_sealed"' in body:
            return b""
        raise PlayFailed(f"{path} answered {answer.status}: {body[:300].decode('utf-8', 'replace')}")

    def _until(self, look: Callable[[], Found | None], what: str) -> Found:
        """What this gives once it gives something."""
        deadline = clock.monotonic() + PATIENCE_SECONDS
        while True:
            found = look()
            if found:
                return found
            if clock.monotonic() > deadline:
                raise PlayFailed(
                    f"{what} did not come within {PATIENCE_SECONDS:.0f} s; the logs in the state directory say more"
                )
            self._pause()

    def _tell(self, text: str) -> None:
        self._console.print(Text(f"  {text}"), soft_wrap=True)
