"""One task as a person is shown it: the form, who may answer, what was answered, and whether the reader may answer now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.kernel import opened
from engine.program.form import shown
from governance.commands.answer import why_not
from governance.store import approvals, tasks, views
from governance.store.people import Profile
from governance.store.tasks import TaskRecord
from governance.store.unit import Unit
from governance.web import models as shape
from governance.web.text import utc

prefix = "f_"  # of a form's own fields among the fields of the page


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that an answer needs to have seen, as it is now."""

    record: TaskRecord
    yours: str  # why the reader cannot answer; empty when they can
    answer: dict[str, Any] | None
    sign_off: str  # the request to sign the answer, when there is one

    @property
    def said(self) -> dict[str, str]:
        """The answer in words."""
        return shown(self.answer or {})


def load(unit: Unit, task: str, me: Profile) -> Shown:
    """The task as it is at this moment."""
    return of(unit, tasks.load(unit, task), me)


def of(unit: Unit, record: TaskRecord, me: Profile) -> Shown:
    """The same for a task that is in hand."""
    body = views.kept(unit, record.run, record.answer) if record.answer is not None else None
    sign_off = "" if record.is_operators else approvals.newest_of(unit, record.run, record.promise)
    return Shown(record, why_not(record, me, unit.now()), opened(body) if body is not None else None, sign_off)


def typed(record: TaskRecord, form: Mapping[str, str]) -> dict[str, str]:
    """What a page's form says about the task's own fields."""
    return {one.name: form[prefix + one.name] for one in record.form.fields if prefix + one.name in form}


def out(one: Shown) -> shape.TaskOut:
    """The task as the API says it."""
    r, form = one.record, one.record.form
    fields = [
        shape.TaskFieldOut(
            name=f.name, label=f.label, kind=f.kind, required=f.required, options=list(f.options),
            max_chars=f.max_chars if f.kind in ("text", "long_text") else None,
        )
        for f in form.fields
    ]  # fmt: skip
    return shape.TaskOut(
        task=r.task, status=r.status, run=r.run, workflow=r.workflow, version=r.version, step=r.step, title=form.title, text=form.text,
        fields=fields, groups=list(form.groups), signers=list(form.sign_off.groups) if form.sign_off else [], digest16=r.digest16,
        requested_by=r.requested_by, asked_at=utc(r.asked_at), expires_at=utc(r.expires_at),
        decided_at=utc(r.decided_at) if r.decided_at else None, answered_by=r.answered_by, answer=one.answer,
        sign_off=one.sign_off, refused_to_you=one.yours if r.is_open else "",
    )  # fmt: skip
