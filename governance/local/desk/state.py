"""What the desk remembers: messages, private notes, views, deliveries and the short-lived handles given out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from governance import clock
from governance.local import standin
from governance.local.desk import Workspace

TRIGGER_SECONDS = 3.0
RESPONSE_USES = 5
RESPONSE_SECONDS = 1800
KEPT_DELIVERIES = 60
HANDLE_ALPHABET_BYTES = 5

Json = dict[str, Any]


class SlackError(Exception):
    """The caller of the Web API must act: Slack's own error code, and what exactly was wrong."""

    def __init__(self, code: str, *messages: str) -> None:
        super().__init__(code)
        self.code = code
        self.messages = list(messages)


@dataclass
class Trigger:
    """The right to open one view for one person, for three seconds."""

    user: str
    expires: float
    used: bool = False


class Desk:
    """The desk's memory, written to its file after every change, so that a restart keeps the cards."""

    def __init__(self, workspace: Workspace, state_file: Path) -> None:
        self.workspace = workspace
        self.base_url = ""
        self._file = state_file
        self._triggers: dict[str, Trigger] = {}
        self.state: Json = {
            "messages": [],
            "ephemerals": [],
            "views": {},
            "homes": {},
            "deliveries": [],
            "responses": {},
            "notices": {},
            "errors": {},
            "fault": {},
            "last_ts": 0,
        }
        if state_file.exists():
            self.state.update(json.loads(state_file.read_text()))

    def save(self) -> None:
        standin.write_whole(self._file, json.dumps(self.state, ensure_ascii=False))

    def new_ts(self) -> str:
        """Slack's message timestamp: unique, rising, seconds with six digits."""
        micros = max(int(clock.now_utc().timestamp() * 1_000_000), self.state["last_ts"] + 1)
        self.state["last_ts"] = micros
        return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"

    # Messages

    def messages(self, channel: str) -> list[Json]:
        return [message for message in self.state["messages"] if message["channel"] == channel]

    def message(self, channel: str, ts: str) -> Json | None:
        return next((m for m in self.messages(channel) if m["ts"] == ts), None)

    def add_message(self, channel: str, content: Json, thread_ts: str = "") -> Json:
        message = {**self._message(channel, content), **({"thread_ts": thread_ts} if thread_ts else {})}
        self.state["messages"].append(message)
        self.save()
        return message

    def replace_message(self, message: Json, content: Json) -> None:
        message.pop("blocks", None)
        message.update(content)
        # Slack marks an edit only when the text was changed without blocks.
        if "blocks" not in content:
            message["edited"] = {"user": self.workspace.bot_user_id, "ts": self.new_ts()}
        self.save()

    def delete_message(self, message: Json) -> None:
        self.state["messages"].remove(message)
        self.save()

    # Private notes

    def ephemerals(self, channel: str, user: str) -> list[Json]:
        return [e for e in self.state["ephemerals"] if e["channel"] == channel and e["addressee"] == user]

    def ephemeral(self, user: str, ts: str) -> Json | None:
        return next((e for e in self.state["ephemerals"] if e["ts"] == ts and e["addressee"] == user), None)

    def add_ephemeral(self, channel: str, user: str, content: Json, thread_ts: str = "") -> Json:
        note = {**self._message(channel, content), "addressee": user, "is_ephemeral": True}
        note |= {"thread_ts": thread_ts} if thread_ts else {}
        self.state["ephemerals"].append(note)
        self.save()
        return note

    def delete_ephemeral(self, note: Json) -> None:
        self.state["ephemerals"].remove(note)
        self.save()

    # Views: one modal per person and one home tab per person

    def view(self, user: str) -> Json | None:
        found: Json | None = self.state["views"].get(user)
        return found

    def view_by_id(self, view_id: str) -> tuple[str, Json] | None:
        return next(((user, view) for user, view in self.state["views"].items() if view["id"] == view_id), None)

    def show_view(self, user: str, content: Json, view_id: str = "") -> Json:
        """Open a view, or replace one: what the person has typed stays where the ids are the same."""
        view = self._view(content, view_id or self.handle("V"))
        old = self.view(user)
        if old is not None and old["id"] == view_id:
            view["state"] = old["state"]
        self.state["views"][user] = view
        self.state["errors"].pop(user, None)
        self.save()
        return view

    def keep_typed(self, user: str, values: Json, errors: Json) -> None:
        """Remember the inputs of this person's modal and what is wrong with them."""
        self.state["views"][user]["state"] = {"values": values}
        self.state["errors"][user] = errors
        self.save()

    def close_view(self, user: str) -> None:
        self.state["views"].pop(user, None)
        self.state["errors"].pop(user, None)
        self.save()

    def publish_home(self, user: str, content: Json) -> Json:
        view = self._view(content, self.handle("V"))
        self.state["homes"][user] = view
        self.save()
        return view

    # Faults of the next calls

    def plan_fault(self, kind: str, times: int) -> None:
        self.state["fault"] = {"kind": kind, "left": times} if times else {}
        self.save()

    def take_fault(self) -> str:
        """The fault that this call meets, empty when it meets none."""
        fault = self.state["fault"]
        if not fault:
            return ""
        self.plan_fault(fault["kind"], fault["left"] - 1)
        return str(fault["kind"])

    # Handles given to the product

    def handle(self, prefix: str) -> str:
        return prefix + clock.random_hex(HANDLE_ALPHABET_BYTES).upper()

    def new_trigger(self, user: str) -> str:
        trigger_id = f"{int.from_bytes(clock.random_bytes(4))}.{clock.epoch_seconds()}.{clock.random_hex(16)}"
        self._triggers[trigger_id] = Trigger(user, clock.monotonic() + TRIGGER_SECONDS)
        return trigger_id

    def spend_trigger(self, trigger_id: str) -> str:
        """The person for whom this trigger opens a view; once, and for three seconds only."""
        trigger = self._triggers.get(trigger_id)
        if trigger is None:
            raise SlackError("invalid_trigger_id")
        if trigger.used:
            raise SlackError("exchanged_trigger_id")
        if clock.monotonic() > trigger.expires:
            raise SlackError("expired_trigger_id")
        trigger.used = True
        return trigger.user

    def new_response_url(self, channel: str, user: str, message: Json | None) -> str:
        key = clock.random_hex(24)
        place = {"channel": channel, "user": user, "uses": RESPONSE_USES}
        place |= {"expires": clock.epoch_seconds() + RESPONSE_SECONDS}
        if message is not None:
            place |= {"ts": message["ts"], "ephemeral": bool(message.get("is_ephemeral"))}
        self.state["responses"][key] = place
        self.save()
        return f"{self.base_url}/response/{key}"

    def spend_response(self, key: str) -> Json:
        """The place a response URL points to; five times within thirty minutes."""
        place: Json | None = self.state["responses"].get(key)
        if place is None or place["uses"] <= 0 or clock.epoch_seconds() > place["expires"]:
            raise SlackError("expired_url")
        place["uses"] -= 1
        self.save()
        return place

    # Deliveries to the product and what a person is told about them

    def add_delivery(self, delivery: Json) -> Json:
        deliveries = self.state["deliveries"]
        delivery["id"] = deliveries[-1]["id"] + 1 if deliveries else 1
        deliveries.append(delivery)
        del deliveries[:-KEPT_DELIVERIES]
        self.save()
        return delivery

    def delivery(self, delivery_id: int) -> Json | None:
        return next((d for d in self.state["deliveries"] if d["id"] == delivery_id), None)

    def notify(self, user: str, text: str) -> None:
        """Tell this person something about the last thing they did; an empty text takes it away."""
        if text:
            self.state["notices"][user] = text
        else:
            self.state["notices"].pop(user, None)
        self.save()

    def _message(self, channel: str, content: Json) -> Json:
        who = {"user": self.workspace.bot_user_id, "bot_id": self.workspace.bot_id, "app_id": self.workspace.app_id}
        head = {"type": "message", "channel": channel, "ts": self.new_ts(), "team": self.workspace.team_id}
        return {**head, **who, **content}

    def _view(self, content: Json, view_id: str) -> Json:
        ids: Json = {"id": view_id, "team_id": self.workspace.team_id, "app_id": self.workspace.app_id}
        ids |= {"app_installed_team_id": self.workspace.team_id, "bot_id": self.workspace.bot_id}
        ids |= {"root_view_id": view_id, "previous_view_id": None, "hash": f"{self.new_ts()}.{clock.random_hex(4)}"}
        defaults: Json = {"private_metadata": "", "callback_id": "", "external_id": "", "state": {"values": {}}}
        defaults |= {"title": None, "submit": None, "close": None, "clear_on_close": False, "notify_on_close": False}
        return {**defaults, **content, **ids}
