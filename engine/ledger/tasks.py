"""The rules that the entries of a task must obey: who was asked what, who answered in time, and whose signature the answer needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from engine.errors import BrokenLedger
from engine.ledger.entries import Entry, instant

sign_seconds_max = 604_800  # nobody waits longer for a signature


@dataclass(slots=True)
class Task:
    """One form that people were asked to fill in, as its entries tell it."""

    body: dict[str, Any]
    state: str = "open"  # open | answered | expired | canceled
    person: str = ""


class Tasks:
    """The tasks of a run by their promises; each verb refuses what could not have happened."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __contains__(self, promise: str) -> bool:
        return promise in self._tasks

    def asked(self, entry: Entry) -> None:
        """People were asked."""
        body = entry.body
        if body["promise"] in self._tasks:
            _task_broken("task-twice", f"promise {body['promise']} is asked twice")
        if not body["form_sha256"] or instant(body["expires_at"]) <= instant(entry.at):
            _task_broken("task-empty", f"{body['task']} names no form or has no time")
        if bool(body["signers"]) != bool(body["keys"]):
            _task_broken("task-empty", f"{body['task']} does not say who signs and how many")
        self._tasks[body["promise"]] = Task(body)

    def answered(self, entry: Entry) -> None:
        """Somebody of the groups answered, first and in time."""
        body = entry.body
        task = self._open(body)
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _task_broken("task-person", f"the answer of {body['person']} was given by {entry.actor['id']}")
        if not set(body["groups"]) & set(task.body["groups"]):
            _task_broken("task-group", f"{body['person']} is in none of the groups that were asked")
        if body["form_sha256"] != task.body["form_sha256"] or not body["answer_sha256"]:
            _task_broken("task-form", f"{body['person']} answered another form than was asked")
        if list(entry.commit) != [body["answer_sha256"]]:
            _task_broken("task-form", "an answer commits to exactly what was answered")
        if instant(entry.at) >= instant(task.body["expires_at"]):
            _task_broken("task-late", f"the answer of {body['person']} came after {task.body['expires_at']}")
        task.state, task.person = "answered", body["person"]

    def ended(self, entry: Entry) -> None:
        """Nobody answered: the time is up, or nobody waits any more."""
        task = self._open(entry.body)
        if entry.type == "task.expired" and instant(entry.at) < instant(task.body["expires_at"]):
            _task_broken("task-late", f"{entry.body['task']} ends only at {task.body['expires_at']}")
        task.state = entry.type.partition(".")[2]

    @staticmethod
    def mended(entry: Entry) -> None:
        """An operator says that what was wrong outside is put right, or will not be."""
        if entry.actor != {"type": "person", "id": entry.body["person"]} or not entry.body["person"]:
            _task_broken("task-person", "what an operator says about mending is said by a person who is named")

    def signatures(self, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What a request to sign must ask for, and for how long at most."""
        task = self._tasks[body["promise"]]
        if task.state != "answered" or not task.body["signers"]:
            _task_broken("sign-off", f"{body['approval']} asks to sign a task that has no answer or wants no signature")
        if body["verdict_n"] or body["policy_revision"]:
            _task_broken("sign-off", f"{body['approval']} signs an answer, which no policy judges")
        if task.person not in {ancestor["person"] for ancestor in body["lineage"]}:
            _task_broken("sign-off", f"{task.person} answered and may not sign; the lineage leaves that out")
        return {**task.body, "groups": task.body["signers"]}, sign_seconds_max

    def check_done(self, promise: str, *, is_signed: bool) -> None:
        """Return when the task was answered and what had to be signed is signed."""
        task = self._tasks[promise]
        if task.state != "answered":
            _task_broken("step-unproved", f"task {task.body['task']} completed and is {task.state}")
        if task.body["signers"] and not is_signed:
            _task_broken("step-unproved", f"task {task.body['task']} completed and its answer is not signed")

    def _open(self, body: dict[str, Any]) -> Task:
        task = self._tasks.get(body["promise"])
        if task is None or task.body["task"] != body["task"]:
            _task_broken("task-unknown", f"{body['task'][:40]!r} was never asked")
        if task.state != "open":
            _task_broken("task-late", f"{body['task']} is already {task.state}")
        return task


def _task_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
