"""Task: what an author wants people to say becomes a task, a clock and a card; an answer that must be signed becomes a thing to sign."""

from __future__ import annotations

import datetime

from engine.gate.action import Action, Field, Target
from engine.gate.verdict import Judged
from engine.kernel import opened, reference_of
from engine.ledger.entries import stamp
from engine.program.form import FormInvalid, check_groups, form_from, shown
from governance.keys import mac
from governance.store import tasks
from governance.store.approvals import by_author
from governance.store.around import Around
from governance.store.case import Case
from governance.store.tasks import TaskRecord


def ask(case: Case, around: Around, promise: str) -> None:
    """Put the form before people; one that nobody could be shown fails its operation at once, with the place of its fault."""
    invoke = case.history.invoke(case.promise_id(promise))
    assert invoke is not None
    commitment = reference_of(invoke.scheduled.input)
    value = opened(case.payloads[commitment])
    try:
        form = form_from(value)
        check_groups(form, around.groups)
    except FormInvalid as error:
        case.finish(promise, ok=False, error_class=error.code, message=str(error))
        case.put_work("", "advance", keep=True)
        return
    task, until = tasks.id_of(case.origin.run, promise), case.now + datetime.timedelta(seconds=form.deadline_s)
    case.add(
        "task", task=task, promise=promise, form_digest=form.digest, body=tasks.stored(value), groups=list(form.groups),
        asked_at=case.now, expires_at=until,
    )  # fmt: skip
    case.add("card", approval=task)
    case.add("due", kind="task", ref=task, at=until)
    case.show_card(task)
    case.touch(promise, state=tasks.WAITING, deadline_at=until)
    case.state = tasks.WAITING
    wanted = form.sign_off
    case.note(
        "task.asked",
        {
            "task": task, "promise": promise, "step": case.promises[promise].step, "form_sha256": commitment.hex(),
            "groups": list(form.groups), "expires_at": stamp(until), "keys": wanted.keys if wanted else 0,
            "counts": [[group, count] for group, count in wanted.counts] if wanted else [],
            "signers": list(wanted.groups) if wanted else [],
        },
    )  # fmt: skip


def to_sign(case: Case, task: TaskRecord) -> tuple[Action, Judged]:
    """The answer as something to sign: a signature binds to every word of it and to the form that it answers."""
    o, wanted = case.origin, task.form.sign_off
    assert task.answer is not None
    assert wanted is not None
    answer = shown(opened(case.payloads[task.answer]))
    # By the questions, not by their names: a signature binds to what the signer reads.
    said = ((one.label, answer[one.name]) for one in task.form.fields)
    fields = tuple(Field(label, "set" if text else "clear", text, "internal") for label, text in said)
    action = Action(
        tenant=o.tenant, workspace=o.workspace, run=o.run, promise=task.promise, step=task.step, workflow=o.workflow, version=o.version,
        definition=o.definition.hex(), connector="task", operation="sign_off", kind="read", risk="low", reversible=True, reversal="inverse",
        target=Target("twokeys", "task", task.task, o.workspace), fields=fields, amount_minor=0, currency="",
        preconditions=(("answer.sha256", task.answer.hex()), ("form.sha256", task.form.digest.hex())), key=f"task:{task.task}",
        summary=f"Sign what {task.answered_by} answered to “{task.form.title}”",
        salt=mac(o.salt_key, "twokeys/action/v1", task.promise).hex()[:32],
    )  # fmt: skip
    verdict = by_author(wanted.keys, wanted.counts, wanted.groups, task.form.deadline_s, action.digest.hex())
    return action, Judged(verdict, b"", b"")
