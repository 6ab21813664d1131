"""Turns what people do in Slack into commands, and every answer into something the person sees.

Each click: our app? our deployment? which tenant (from the installation, never from the payload's word)? one of ours, with
our MAC? a person of this workspace? Then the command decides, in one transaction, and only after it Slack is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.canonical import sha256
from engine.errors import CallerError
from engine.gate.card import CardRecord
from engine.gate.doubt import PROBE
from engine.limits import reason_chars_max
from governance.commands.answer import Filled, Told
from governance.commands.authority import Actor
from governance.commands.decide import Answer, Press
from governance.commands.resolve import Resolved, Said
from governance.slack import doubts, tasks, views
from governance.slack.api import Sent
from governance.slack.blocks import Block
from governance.slack.buttons import (
    ACTIONS,
    APPROVE,
    DOUBTS,
    FILL,
    REJECT,
    SAY_PROBE,
    Mac,
    Opened,
    Pressed,
    check_deployment,
    is_ours,
    read_metadata,
    read_value,
)
from governance.slack.slash import said
from governance.slack.text import stored
from governance.store.doubts import DoubtRecord
from governance.store.tasks import TaskRecord

Payload = dict[str, Any]

GONE = ("app_uninstalled", "tokens_revoked")
EVENTS = ("app_home_opened", *GONE)
Reply = dict[str, str]  # channel, user, thread_ts, response_url

_team = re.compile(r"[TE][A-Z0-9]{2,20}")
_user = re.compile(r"[UW][A-Z0-9]{2,20}")
_channel = re.compile(r"[CDG][A-Z0-9]{2,20}")
_response_url = re.compile(r"https?://[!-~]{1,480}")
_ts = re.compile(r"[0-9]{1,12}\.[0-9]{1,9}")

old_card = "This card is from another version of Twokeys, so your click changed nothing. Look at the newest card."
not_here = "This button was not made for this workspace, so your click changed nothing."
outsider = "Only people of the workspace that asks may decide. Your click changed nothing."
unknown_here = "This request is not known here. Your click changed nothing."
not_yours = "Somebody else opened this window. Nothing was recorded; click the button on the card yourself."
too_late = "Slack did not open the window in time. Nothing was recorded; click again, or decide in the console."


class Opener(Protocol):
    """Opens a modal; slack/modals does."""

    def open(self, tenant: str, trigger_id: str, view: Block) -> Sent: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What wiring hands in; each takes the tenant that the installation names."""

    app_id: str
    deployment: str
    mac: Mac
    tenant_of: Callable[[str], str | None]  # Slack team id -> tenant, None when it is not installed
    decide: Callable[[Press], Answer]  # also enqueues the ephemeral sentence when the press has a reply
    record_of: Callable[[str, str], CardRecord | None]  # tenant, approval
    answer: Callable[[Filled], Told]
    task_of: Callable[[str, str], TaskRecord | None]  # tenant, task
    say: Callable[[Said], Resolved]  # also enqueues the ephemeral sentence when the word has a reply
    doubt_of: Callable[[str, str], DoubtRecord | None]  # tenant, doubt
    command: Callable[[str, str, str], Payload]  # tenant, actor_ref, what was typed: the answer; slack/slash does it
    home: Callable[[str, str], None]  # tenant, actor_ref: show this person their Home tab anew
    tell: Callable[[str, Reply, str], None]  # enqueue one ephemeral sentence, in its own transaction
    gone: Callable[[str, str], None]  # tenant, event: the installation was removed or its tokens were revoked
    modals: Opener
    count: Callable[[str], None]  # one metric per name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What goes back to Slack in the HTTP answer."""

    body: Payload | str = ""
    status: int = 200


@dataclass(frozen=True, slots=True)
class _Person:
    tenant: str
    team: str
    user: str

    @property
    def ref(self) -> str:
        return f"{self.team}:{self.user}"


class Clicks:
    """Buttons, modals, the slash command and events."""

    def __init__(self, seams: Seams) -> None:
        check_deployment(seams.deployment)
        self._seams = seams

    # --- buttons ---------------------------------------------------------------------------------------------------

    def action(self, payload: Payload) -> Outcome:
        """A click on a button of a card."""
        person, reply = self._person(payload), _reply(payload)
        actions = payload.get("actions")
        action = actions[0] if isinstance(actions, list) and len(actions) == 1 and type(actions[0]) is dict else {}
        pressed = read_value(action.get("value"))
        if pressed and pressed.deployment != self._seams.deployment:
            return self._ignored("slack_foreign_deployment")
        if person is None:
            return Outcome()
        if _is_outsider(payload, person.team):
            return self._say(person, reply, outsider, "slack_outsider")
        action_id = action.get("action_id")
        if action_id not in ACTIONS or pressed is None:
            return self._say(person, reply, old_card, "slack_old_card")
        if not is_ours(pressed, person.tenant, action_id, self._seams.mac):
            return self._say(person, reply, not_here, "slack_wrong_mac")
        if action_id == FILL:
            return self._open_task(person, pressed, reply, payload)
        if action_id in DOUBTS:
            return self._doubted(person, pressed, action_id, reply, payload)
        if action_id == APPROVE:
            self._seams.count("slack_click")
            self._press(person, pressed, "key", "slack_button", "", reply, _dedupe(payload), _shown(payload))
            return Outcome()
        return self._open(person, pressed, action_id, reply, payload)

    def _open(self, person: _Person, pressed: Pressed, action_id: str, reply: Reply, payload: Payload) -> Outcome:
        record = self._seams.record_of(person.tenant, pressed.approval)
        if record is None:
            return self._say(person, reply, unknown_here, "slack_unknown_approval")
        # The window shows the request as it is now, so what it sends back names what it shows.
        now = Pressed(pressed.deployment, pressed.approval, record.card_rev, record.action_sha256[:16], pressed.mac16)
        opened = Opened(now, person.user, reply["channel"], reply["thread_ts"], "")
        make = views.reject if action_id == REJECT else views.review
        return self._show(person, make(record, opened, self._seams.mac), record.console_url, reply, payload)

    def _open_task(self, person: _Person, pressed: Pressed, reply: Reply, payload: Payload) -> Outcome:
        task = self._seams.task_of(person.tenant, pressed.approval)
        if task is None:
            return self._say(person, reply, unknown_here, "slack_unknown_task")
        opened = Opened(
            replace(tasks.named(task, pressed.deployment), mac16=pressed.mac16),
            person.user,
            reply["channel"],
            reply["thread_ts"],
            "",
        )
        return self._show(person, tasks.modal(task, opened, self._seams.mac), task.console_url, reply, payload)

    def _doubted(self, person: _Person, pressed: Pressed, action_id: str, reply: Reply, payload: Payload) -> Outcome:
        """Looking again is ordered at once; every other word needs a reason, which a window asks for."""
        doubt = self._seams.doubt_of(person.tenant, pressed.approval)
        if doubt is None:
            return self._say(person, reply, unknown_here, "slack_unknown_doubt")
        self._seams.count("slack_doubt")
        if action_id == SAY_PROBE:
            self._word(person, doubt, PROBE, "", "slack_button", _dedupe(payload), reply)
            return Outcome()
        now = replace(doubts.named(doubt, pressed.deployment), mac16=pressed.mac16)
        opened = Opened(now, person.user, reply["channel"], reply["thread_ts"], "")
        return self._show(
            person, doubts.modal(doubt, action_id, opened, self._seams.mac), doubt.console_url, reply, payload
        )

    def _word(
        self, person: _Person, doubt: DoubtRecord, how: str, reason: str, via: str, dedupe_key: str, reply: Reply
    ) -> Resolved:
        return self._seams.say(
            Said(
                person.tenant, Actor("slack", person.ref), doubt.run, doubt.promise, how, reason, via,
                doubt=doubt.doubt, dedupe_key=dedupe_key, reply=reply,
            )
        )  # fmt: skip

    def _show(self, person: _Person, view: Block, url: str, reply: Reply, payload: Payload) -> Outcome:
        trigger = payload.get("trigger_id")
        sent = self._seams.modals.open(person.tenant, trigger if isinstance(trigger, str) else "", view)
        if sent.kind != "ok":
            return self._say(person, reply, f"{too_late} {url}".strip(), "slack_modal_failed")
        return Outcome()

    # --- modals ----------------------------------------------------------------------------------------------------

    def submission(self, payload: Payload) -> Outcome:
        """Approve or Reject in a modal; the answer is the modal's next view."""
        person = self._person(payload)
        view = payload.get("view")
        if person is None or type(view) is not dict:
            return Outcome()
        callback_id = view.get("callback_id")
        if callback_id not in (*views.SUBMITS, tasks.SUBMIT_FILL, *doubts.SUBMITS):
            return _next_view("Twokeys", old_card)
        if _is_outsider(payload, person.team):
            self._seams.count("slack_outsider")
            return _next_view("Twokeys", outsider)
        opened = read_metadata(view.get("private_metadata"), person.tenant, callback_id, self._seams.mac)
        if opened is None:
            self._seams.count("slack_wrong_mac")
            return _next_view("Twokeys", not_here)
        if opened.pressed.deployment != self._seams.deployment:
            return self._ignored("slack_foreign_deployment")
        if opened.user != person.user:
            self._seams.count("slack_wrong_opener")
            return _next_view(opened.pressed.name, not_yours)
        if callback_id == tasks.SUBMIT_FILL:
            return self._filled(person, opened.pressed, view, _dedupe(payload))
        reason, fault = _reason(view, required=callback_id != views.SUBMIT_APPROVE)
        if fault:
            return Outcome({"response_action": "errors", "errors": {views.REASON: fault}})
        if callback_id in doubts.SUBMITS:
            doubt = self._seams.doubt_of(person.tenant, opened.pressed.approval)
            if doubt is None:
                return _next_view(opened.pressed.name, unknown_here)
            how = doubts.SUBMITS[callback_id]
            told = self._word(person, doubt, how, reason, "slack_modal", _dedupe(payload), {})
            return _next_view(doubt.name, told.sentence)
        kind = "reject" if callback_id == views.SUBMIT_REJECT else "key"
        self._seams.count("slack_submission")
        answer = self._press(
            person, opened.pressed, kind, "slack_modal", reason, {}, _dedupe(payload), opened.blocks_sha256
        )
        if not opened.channel:  # it was opened from the Home tab, which still shows what was decided now
            self._seams.home(person.tenant, person.ref)
        return _next_view(opened.pressed.name, answer.sentence)

    def _filled(self, person: _Person, pressed: Pressed, view: Payload, dedupe_key: str) -> Outcome:
        """A form was sent: what does not fit is said at its input, everything else is the modal's next view."""
        task = self._seams.task_of(person.tenant, pressed.approval)
        if task is None:
            return _next_view(pressed.name, unknown_here)
        self._seams.count("slack_filled")
        told = self._seams.answer(
            Filled(
                tenant=person.tenant, task=task.task, actor=Actor("slack", person.ref), digest16=pressed.digest16,
                values=tasks.typed(task, view), via="slack_form", dedupe_key=dedupe_key,
            )
        )  # fmt: skip
        faults = tasks.errors(told.faults, task)
        if faults:
            return Outcome({"response_action": "errors", "errors": faults})
        return _next_view(pressed.name, told.sentence)

    def closed(self, payload: Payload) -> Outcome:
        """Closing a window decides nothing."""
        return Outcome()

    def other(self, payload: Payload) -> Outcome:
        """Shortcuts, menus and whatever else was never part of a card of ours."""
        person = self._person(payload)
        return self._say(person, _reply(payload), old_card, "slack_old_card") if person else Outcome()

    # --- slash command and events ----------------------------------------------------------------------------------

    def command(self, form: Payload) -> Outcome:
        """`/twokeys ...`; Slack shows the HTTP answer to the person who typed it."""
        person = self._person({**form, "team": {"id": form.get("team_id")}, "user": {"id": form.get("user_id")}})
        if person is None:
            return Outcome(said("Twokeys is not set up for this workspace."))
        self._seams.count("slack_command")
        return Outcome(self._seams.command(person.tenant, person.ref, str(form.get("text") or "")))

    def event(self, payload: Payload) -> Outcome:
        """Somebody looks at their Home tab, or the installation is gone; Slack repeats what is not answered with 200."""
        event = payload.get("event")
        name = event.get("type") if type(event) is dict else None
        tenant = self._tenant(payload.get("team_id"), payload) if name in EVENTS else None
        if tenant is None or type(event) is not dict:
            return Outcome()
        if name in GONE:
            self._seams.gone(tenant, str(name))
        elif _user.fullmatch(user := _id(event.get("user"))) and event.get("tab", "home") == "home":
            self._seams.home(tenant, f"{payload['team_id']}:{user}")
        return Outcome()

    # --- parts -----------------------------------------------------------------------------------------------------

    def _person(self, payload: Payload) -> _Person | None:
        """Who acts, in which tenant; None when it is not our app or not an installation of ours."""
        view = payload.get("view")
        installed = view.get("app_installed_team_id") if type(view) is dict else None
        team = installed or _id(payload.get("team"))
        user = _id(payload.get("user"))
        tenant = self._tenant(team, payload)
        if tenant is None:
            return None
        if not _user.fullmatch(user):
            self._seams.count("slack_no_user")
            return None
        return _Person(tenant, str(team), user)

    def _tenant(self, team: object, payload: Payload) -> str | None:
        if payload.get("api_app_id") != self._seams.app_id:
            self._seams.count("slack_wrong_app")
            return None
        tenant = self._seams.tenant_of(team) if isinstance(team, str) and _team.fullmatch(team) else None
        if tenant is None:
            self._seams.count("slack_unknown_team")
        return tenant

    def _press(
        self,
        person: _Person,
        pressed: Pressed,
        kind: str,
        via: str,
        reason: str,
        reply: Reply,
        dedupe_key: str,
        blocks_sha256: str,
    ) -> Answer:
        return self._seams.decide(
            Press(
                tenant=person.tenant,
                approval=pressed.approval,
                actor_kind="slack",
                actor_ref=person.ref,
                kind=kind,
                digest16=pressed.digest16,
                card_rev=pressed.card_rev,
                via=via,
                reason=reason,
                dedupe_key=dedupe_key,
                blocks_sha256=blocks_sha256,
                reply=reply,
            )
        )

    def _say(self, person: _Person, reply: Reply, sentence: str, counted: str) -> Outcome:
        self._seams.count(counted)
        self._seams.tell(person.tenant, reply, sentence)
        return Outcome()

    def _ignored(self, counted: str) -> Outcome:
        self._seams.count(counted)
        return Outcome()


def nothing_recorded(kind: str, payload: Payload) -> Outcome:
    """The answer when we failed before a decision was stored: the person must know that nothing was."""
    sentence = "Something failed here and nothing was recorded. Try again, or decide in the console."
    if kind == "submission":
        return Outcome({"response_action": "errors", "errors": {_first_input(payload): sentence}})
    if kind == "command":
        return Outcome(said(sentence))
    # The body of an answer to a click is ignored; a status other than 200 makes Slack warn the clicker itself.
    return Outcome(status=503)


def _first_input(payload: Payload) -> str:
    """Where a window can show a fault: its first input, as Slack repeats the window."""
    view = payload.get("view")
    blocks = view.get("blocks") if type(view) is dict else None
    inputs = (
        [one for one in blocks or () if type(one) is dict and one.get("type") == "input"]
        if type(blocks) is list
        else []
    )
    name = inputs[0].get("block_id") if inputs else None
    return name if isinstance(name, str) else views.REASON


def _next_view(name: str, sentence: str) -> Outcome:
    return Outcome({"response_action": "update", "view": views.answered(name, sentence)})


def _is_outsider(payload: Payload, team: str) -> bool:
    user = payload.get("user")
    home = user.get("team_id") if type(user) is dict else None
    return isinstance(home, str) and home != team


def _reason(view: Payload, *, required: bool) -> tuple[str, str]:
    value: object = view
    for name in ("state", "values", views.REASON, views.REASON, "value"):
        value = value.get(name) if type(value) is dict else None
    text = value if isinstance(value, str) else ""
    if len(text) > reason_chars_max:
        return "", f"At most {reason_chars_max} characters."
    reason = stored(text, reason_chars_max)
    return (reason, "") if reason or not required else ("", "Say why; the requester will read it.")


def _reply(payload: Payload) -> Reply:
    container = payload.get("container")
    message = payload.get("message")
    channel = _id(payload.get("channel"))
    thread = next(
        (part["thread_ts"] for part in (message, container) if type(part) is dict and part.get("thread_ts")), ""
    )
    url = payload.get("response_url")
    return {
        "channel": channel if _channel.fullmatch(channel) else "",
        "user": _id(payload.get("user")),
        "thread_ts": thread if isinstance(thread, str) and _ts.fullmatch(thread) else "",
        "response_url": url if isinstance(url, str) and _response_url.fullmatch(url) else "",
    }


def _dedupe(payload: Payload) -> str:
    """One click, one key: Slack's trigger is unique per click."""
    trigger = payload.get("trigger_id")
    if isinstance(trigger, str) and re.fullmatch(r"[!-~]{1,200}", trigger):
        return trigger
    view = payload.get("view")
    parts = [view.get("id"), view.get("hash")] if type(view) is dict else payload.get("actions")
    return "none-" + sha256(repr(parts).encode("utf-8", "replace")).hex()


def _shown(payload: Payload) -> str:
    """The digest of the blocks that the clicked message had, as Slack repeats them."""
    message = payload.get("message")
    try:
        return views.blocks_digest(message.get("blocks")) if type(message) is dict else ""
    except CallerError:
        return ""


def _id(part: object) -> str:
    """The id of a team, user or channel, which Slack gives as an object or as a string."""
    found = part.get("id") if type(part) is dict else part
    return found if isinstance(found, str) else ""
