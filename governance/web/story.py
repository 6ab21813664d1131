"""What happened to a run in sentences: the state in a word, why it waits and for whom, and one line for each entry."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.ledger.entries import Entry
from governance.store.people import Profile
from governance.store.views import RunView, StepView
from governance.web.questions import REFUSALS, Question
from governance.web.text import lasted

# State -> what people read and how it feels.
STATES = {
    "queued": ("Queued", "plain"),
    "running": ("Running", "busy"),
    "waiting_approval": ("Waits for people", "hold"),
    "waiting_task": ("Waits for an answer", "hold"),
    "unknown": ("Outcome unknown", "alarm"),
    "failed_retryable": ("Tries again", "hold"),
    "succeeded": ("Succeeded", "good"),
    "failed_terminal": ("Failed", "bad"),
    "canceled": ("Canceled", "plain"),
    # of steps only
    "ready": ("Ready", "plain"),
    # of approvals
    "requested": ("Waits for keys", "hold"),
    "approved": ("Approved", "good"),
    "rejected": ("Rejected", "bad"),
    "expired": ("Expired", "bad"),
    # of tasks
    "asked": ("Waits for an answer", "hold"),
    "answered": ("Answered", "good"),
    # of verdicts and receipts
    "allow": ("Allowed", "good"),
    "deny": ("Denied", "bad"),
    "needs_approval": ("Needs keys", "hold"),
    "ok": ("Done", "good"),
    "error": ("Error", "bad"),
    "timeout": ("Timed out", "bad"),
    # of bundles
    "frozen": ("Frozen", "plain"),
    "built": ("Built", "busy"),
    "uploaded": ("Uploaded", "busy"),
    "sealed": ("Sealed", "good"),
    # of templates
    "active": ("Active", "good"),
    "draft": ("Draft", "plain"),
    "paused": ("Paused", "hold"),
    "archived": ("Archived", "plain"),
}
VIA = {
    "slack_button": "in Slack",
    "slack_modal": "in Slack, after the full view",
    "slack_form": "in Slack",
    "console": "in the console",
    "api": "by the API",
    "cli": "by the command line",
}


@dataclass(frozen=True, slots=True)
class Why:
    """One sentence: why a run is where it is and for whom it waits; `until` when the waiting has an end."""

    text: str
    until: datetime.datetime | None = None


def why(run: RunView, steps: Sequence[StepView], asked: Sequence[Question], now: datetime.datetime) -> Why:
    """The one sentence of the head of the page."""
    if run.ended_at is not None:
        return _ended(run, steps)
    unknown = next((s for s in steps if s.state == "unknown"), None)
    if unknown is not None:
        return Why(
            f"Nobody knows whether “{unknown.step}” happened; a person who did not ask for it must say so below."
        )
    question = next((q for q in asked if q.is_open), None)
    if question is not None:
        return _asked(question)
    task = next((s for s in steps if s.state == "waiting_task"), None)
    if task is not None:
        return Why(f"“{task.step}” waits for somebody to fill in its form, until", task.deadline_at)
    if run.cancel_requested:
        return Why("Is being canceled; what is in flight may finish, nothing new starts.")
    parked = next((s for s in steps if s.work == "parked" and s.state not in ("unknown", "succeeded")), None)
    if parked is not None:
        return Why(
            f"“{parked.step}” is parked after {parked.faults} faults and waits for the operator: {parked.last_error}"
        )
    state, _, trouble = run.trouble.partition(": ")
    if trouble:
        return Why(
            f"{'Is parked and waits for the operator' if state == 'parked' else 'Failed and is tried again by itself'}: {trouble}"
        )
    held_up = run.held_up or next((s.held_up for s in steps if s.held_up), "")
    if held_up:
        return Why(f"Waits for a free place: {held_up}. It begins by itself; no person is needed.")
    again = next((s for s in steps if s.state == "failed_retryable"), None)
    if again is not None:
        return Why(f"“{again.step}” is tried again by itself ({again.last_error}), at", again.next_eligible_at)
    busy = next((s for s in steps if s.state in ("ready", "running")), None)
    if busy is not None and busy.child:
        return Why(f"Waits for its child run of {busy.step}, {busy.child}; that run says for whom.")
    if busy is not None and busy.state == "running" and busy.started_at is not None:
        # What a worker reports of its call proves nothing: only a receipt does.
        since = lasted(busy.started_at, now)
        return Why(
            f"“{busy.step}” was handed to {busy.tool} {since} ago (attempt {busy.attempt}); no receipt says yet what came of it."
        )
    if busy is not None:
        return Why(f"“{busy.step}” is being worked on; it waits for nobody.")
    if run.waits_for:
        return Why(f"Waits for a person or a system to send the signal “{run.waits_for}”.")
    if run.waits_until is not None:
        return Why("Sleeps, as its workflow says, until", run.waits_until)
    if run.state == "queued":
        return Why(f"Waits for a free worker since {lasted(run.created_at, now)}; no person is needed.")
    return Why("Is being worked on; it waits for nobody.")


def _ended(run: RunView, steps: Sequence[StepView]) -> Why:
    assert run.ended_at is not None
    took = lasted(run.started_at or run.created_at, run.ended_at)
    if run.state == "succeeded":
        return Why(f"Ended well after {took}; it waits for nobody.")
    if run.state == "canceled":
        return Why(f"Was canceled after {took}; it waits for nobody.")
    failed = next((s for s in reversed(steps) if s.state == "failed_terminal"), None)
    reason = f" at “{failed.step}”: {failed.last_error}" if failed is not None else ""
    return Why(f"Failed after {took}{reason}")


def _asked(question: Question) -> Why:
    left = max(0, question.needed - question.given)
    keys = "1 key" if left == 1 else f"{left} keys of different people"
    names = [p.name for p in question.holders]
    who = (
        join_or(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        if names
        else "nobody who is here now"
    )
    more = f" after {question.given} of {question.needed}" if question.given else ""
    return Why(f"“{question.record.step}” waits for {keys}{more}, from {who}, until", question.expires_at)


def join_or(words: Sequence[str]) -> str:
    """`A`, `A or B`, `A, B or C`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# One line for each type of entry: tone and words, filled from its body. A type without a line is shown by its name.
_lines = {
    "run.queued": ("plain", "Queued: {workflow} {version}, by {trigger_type}"),
    "run.started": ("plain", "A worker took it up"),
    "action.proposed": ("plain", "“{step}” proposes {connector}.{operation} ({kind}, {risk} risk)"),
    "verdict.given": ("plain", "{policy_words}: {effect_words}{reasons_words}"),
    "approval.asked": ("hold", "{keys} keys asked of {groups_words}"),
    "key.given": ("good", "{person} gave key {given} of {needed}, {via_words}"),
    "key.refused": ("bad", "{person} was refused: {code_words}{count_words}"),
    "approval.released": ("good", "Released by {persons_words}"),
    "action.edited": ("hold", "{person} changed what is proposed, {via_words}; it is judged anew"),
    "rejection.given": ("bad", "{person} rejected it: {given} of {needed}"),
    "approval.rejected": ("bad", "{person} rejected it"),
    "approval.stopped": ("bad", "{person} stopped it before it began"),
    "glass.broken": ("bad", "{person} broke the glass, {via_words}: one key for all of them; two others owe a review"),
    "review.given": ("plain", "{person} reviewed the broken glass: {how}"),
    "debt.overdue": ("bad", "Reviews of broken glass were overdue when the run ended"),
    "approval.reminded": ("plain", "{persons_words} reminded; {share} % of the time was over"),
    "approval.escalated": ("plain", "Escalated to @{group}: {persons_words} told"),
    "approval.expired": ("bad", "The request expired unanswered"),
    "approval.canceled": ("plain", "The request was withdrawn ({why})"),
    "task.asked": ("hold", "“{step}” asks {groups_words} to fill in a form"),
    "task.answered": ("good", "{person} filled in the form, {via_words}"),
    "task.expired": ("bad", "Nobody filled in the form in time"),
    "task.canceled": ("plain", "The form was withdrawn ({why})"),
    "operator.asked": ("alarm", "“{step}” met {error_class}: an operator must mend it"),
    "operator.answered": ("hold", "{person} {mended_words}, {via_words}"),
    "operator.expired": ("bad", "Nobody mended it in time"),
    "operator.canceled": ("plain", "Nobody need mend it any more ({why})"),
    "effect.intended": ("plain", "Attempt {attempt} begins"),
    "effect.receipted": ("plain", "Attempt {attempt}: {status}"),
    "effect.unknown": ("alarm", "Attempt {attempt}: nobody knows whether it happened"),
    "effect.resolved": ("hold", "{person} said: {how_words}"),
    "effect.looked": ("hold", "Looked again: nobody can tell yet whether attempt {attempt} happened"),
    "doubt.asked": ("alarm", "People are asked whether attempt {attempt} happened"),
    "word.given": ("hold", "{person} {word_words}, {via_words}"),
    "word.refused": ("bad", "{person} was not heard: {code_words}{count_words}"),
    "effect.retried": ("hold", "Attempt {attempt} failed ({error_class}); it is tried again"),
    "effect.reused": ("plain", "It had happened already, in run {run}; the receipt is reused"),
    "reversal.proposed": ("hold", "“{step}” is to undo what operation {of} did"),
    "step.completed": ("good", "“{step}” is done"),
    "step.failed": ("bad", "“{step}” failed: {error_class}"),
    "cancel.requested": ("hold", "{person} asked to cancel"),
    "cancel.inherited": ("hold", "The run that started this one was canceled, or needs it no more"),
    "parent.named": ("plain", "Started by run {run}, {depth} below the first"),
    "child.started": ("plain", "Started child run {run} of {workflow} {version}"),
    "child.ended": ("plain", "Child run {run} ended: {status} {error_class}"),
    "run.migrated": (
        "hold",
        "{person} moved it to the code of {version}, after its whole journal replayed the same under it",
    ),
    "run.retried": ("hold", "{person} let what was parked go on"),
    "run.closed": ("plain", "The run is over: {status}"),
    "evidence.sealed": ("good", "The evidence bundle is sealed"),
    "evidence.downloaded": ("plain", "{person} downloaded the bundle"),
}
_effects = {"allow": ("good", "allowed"), "deny": ("bad", "denied"), "needs_approval": ("hold", "people must agree")}
_said = {"happened": "it happened", "did_not": "it did not happen"}


def line(entry: Entry, names: Mapping[str, Profile]) -> tuple[str, str]:
    """(tone, sentence) of an entry, with people by their names, which only the tenant's own pages show."""
    if entry.type not in _lines:
        return "plain", entry.type
    tone, words = _lines[entry.type]
    body = dict(entry.body)
    known = {name: p.name for name, p in names.items()}
    if "person" in body:
        body["person"] = known.get(body["person"], body["person"] or "Somebody who is linked to nobody")
    if entry.type == "verdict.given":
        tone, body["effect_words"] = _effects.get(body["effect"], ("plain", str(body["effect"])))
        body["policy_words"] = "Policy, asked again" if body["purpose"] == "recheck" else "Policy"
        body["reasons_words"] = f" ({', '.join(body['reasons'])})" if body["reasons"] else ""
    if entry.type == "effect.receipted":
        tone = STATES.get(body["status"], ("", "plain"))[1]
    body["groups_words"] = join_or([f"@{group}" for group in body.get("groups", ())]) or "nobody"
    body["persons_words"] = join_and([known.get(one, one) for one in body.get("persons", ())])
    body["via_words"] = VIA.get(str(body.get("via", "")), str(body.get("via", "")))
    body["code_words"] = REFUSALS.get(str(body.get("code", "")), str(body.get("code", "")))
    body["count_words"] = f" ({body['count']} times)" if body.get("count", 1) != 1 else ""
    if entry.type == "operator.answered":
        body["mended_words"] = "mended it and lets it go on" if body["how"] == "go_on" else "gave it up"
    if entry.type == "word.given":
        body["word_words"] = (
            "wants the system looked at"
            if body["how"] == "probe"
            else f"wants it tried again under the same key ({body['given']} of {body['needed']} people)"
        )
    body["how_words"] = _said.get(str(body.get("how", "")), str(body.get("how", "")))
    text = words.format_map(body)
    return tone, text.replace("1 keys", "1 key") if body.get("keys") == 1 else text


def join_and(words: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
