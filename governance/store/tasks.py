"""Tasks: the forms that people are asked to fill in, who may, until when, and what became of each."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from engine.canonical import decode, encode, tagged
from engine.errors import CallerError
from engine.program.form import OPERATORS, Form, form_from
from engine.program.function_journal import task_name
from governance.store.case import Case
from governance.store.people import Profile
from governance.store.unit import Row, Unit

operator_level = 4
WAITING = "waiting_task"  # of a promise whose form nobody has filled in yet


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task as people see it; texts are raw and may be hostile, whoever renders them makes them harmless."""

    tenant: str
    task: str
    run: str
    promise: str
    step: str
    workflow: str
    version: str
    form: Form
    status: str  # asked | answered | expired | canceled
    asked_at: datetime.datetime
    expires_at: datetime.datetime
    decided_at: datetime.datetime | None
    requested_by: str  # a name
    answered_by: str  # a name
    answerer: str  # the person's id
    via: str
    answer: bytes | None  # the commitment of the payload that holds it
    console_url: str = ""
    error_class: str = ""  # what an operator is asked to mend, and what the operation fails with otherwise
    error: str = ""

    @property
    def is_operators(self) -> bool:
        """Whether something outside is to be mended; everything else is asked by an author."""
        return bool(self.error_class)

    @property
    def who(self) -> str:
        """Who may answer, in words."""
        return " or ".join("operators" if group == OPERATORS else f"@{group}" for group in self.form.groups)

    @property
    def name(self) -> str:
        """What people call it: `TA-1a2b3c` for `ta_1a2b3c...`."""
        return "TA-" + self.task.removeprefix("ta_")[:6]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return self.status == "asked"

    @property
    def digest16(self) -> str:
        """What an answer names: the form that was shown."""
        return self.form.digest.hex()[:16]

    @property
    def card_rev(self) -> int:
        """A form never changes, so its card has one version."""
        return 1


def id_of(run: str, promise: str) -> str:
    """The one task of an operation."""
    return "ta_" + tagged("twokeys/task/v1", f"{run}/{promise}".encode()).hex()[:16]


def stored(value: dict[str, Any]) -> bytes:
    """A form with its sign-off, as its author wrote them."""
    return encode({"form": value["form"], "sign_off": value["sign_off"]})


_columns = (
    "t.tenant, t.task, t.run, t.promise, p.step, r.workflow, r.version, t.body, t.status, t.asked_at, t.expires_at, t.decided_at, "
    "coalesce((select name from person h where h.tenant = t.tenant and h.person = r.started_by), ''), "
    "coalesce((select name from person h where h.tenant = t.tenant and h.person = t.answered_by), ''), t.answered_by, t.via, t.answer"
)
_from = (
    "from task t join run r on r.tenant = t.tenant and r.run = t.run "
    "join promise p on p.tenant = t.tenant and p.run = t.run and p.promise = t.promise where t.tenant = :tenant"
)


def run_of(unit: Unit, task: str) -> str:
    """Which run a task is of: the run is locked before the task, in every path."""
    row = unit.one("select run from task where tenant = :tenant and task = :task", task=task)
    if row is None:
        raise CallerError(
            f"task {task[:40]} is unknown here",
            code="unknown_task",
            field="task",
            next_step="`twokeys task list` shows what waits",
        )
    return str(row[0])


def load(unit: Unit, task: str, *, lock: bool = False) -> TaskRecord:
    """One task; `lock` holds its row after the run's."""
    row = unit.one(f"select {_columns} {_from} and t.task = :task" + (" for update of t" if lock else ""), task=task)
    if row is None:
        run_of(unit, task)
        raise AssertionError("a task that has a run has a row")
    return _record(row)


def of_promise(unit: Unit, run: str, promise: str) -> TaskRecord | None:
    """The task of an operation; None until it has been asked."""
    row = unit.one(f"select {_columns} {_from} and t.run = :run and t.promise = :promise", run=run, promise=promise)
    return None if row is None else _record(row)


def of_run(unit: Unit, run: str) -> tuple[TaskRecord, ...]:
    """Every task of a run, oldest first."""
    return tuple(
        map(_record, unit.all(f"select {_columns} {_from} and t.run = :run order by t.asked_at, t.task", run=run))
    )


def waiting(
    unit: Unit, groups: Collection[str] | None, after: tuple[datetime.datetime, str] | None, limit: int
) -> tuple[TaskRecord, ...]:
    """What waits for somebody of these groups (for anybody when None), the nearest deadline first."""
    where = "" if after is None else " and (t.expires_at, t.task) > (:at, :id)"
    values: dict[str, object] = {} if after is None else {"at": after[0], "id": after[1]}
    rows = unit.all(
        f"select {_columns} {_from} and t.status = 'asked' and (:everybody or t.groups && :mine){where} "
        "order by t.expires_at, t.task limit :limit",
        everybody=groups is None, mine=list(groups or ()), limit=limit, **values,
    )  # fmt: skip
    return tuple(map(_record, rows))


def waiting_count(unit: Unit, groups: Collection[str]) -> int:
    """How many of them there are."""
    row = unit.one(
        "select count(*) from task where tenant = :tenant and status = 'asked' and groups && :mine", mine=list(groups)
    )
    return 0 if row is None else int(row[0])


def groups_of(person: Profile) -> tuple[str, ...]:
    """The groups that a person answers for: their own, and the operators when they are one."""
    operates = person.level >= operator_level and not person.read_only
    return (*person.groups, OPERATORS) if operates else person.groups


def end(case: Case, task: str, status: str, *, person: str = "", via: str = "", answer: bytes | None = None) -> str:
    """A task is over: its clock stops and its card says so. Which one it is."""
    case.add("task_done", task=task, status=status, person=person, via=via, answer=answer)
    case.add("due_done", kind="task", ref=task)
    case.show_card(task)
    return task


def withdraw(case: Case, why: str) -> None:
    """Nobody waits for these answers any more."""
    for row in list(case.promises.values()):
        if row.state == WAITING:
            if row.tool == task_name:
                task = end(case, id_of(case.origin.run, row.promise), "canceled")
                case.note("task.canceled", {"task": task, "promise": row.promise, "why": why})
            else:
                asked = case.history.deliveries(f"operator:{row.promise}")
                task = end(case, id_of(case.origin.run, f"{row.promise}/operator/{asked}"), "canceled")
                case.note("operator.canceled", {"task": task, "promise": row.promise, "why": why})
            case.touch(row.promise, state="canceled")


def _record(row: Row) -> TaskRecord:
    values = list(row)
    body = decode(bytes(row[7]))
    operator = body.get("operator", {})
    values[7] = form_from(body)
    values[16] = bytes(row[16]) if row[16] is not None else None
    found = TaskRecord(*values)
    return replace(found, error_class=operator.get("error_class", ""), error=operator.get("message", ""))
