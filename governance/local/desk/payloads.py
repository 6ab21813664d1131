"""The payloads Slack would send for what a person does, with Slack's keys."""

from __future__ import annotations

from typing import Any

from governance import clock
from governance.local.desk import Persona
from governance.local.desk.blocks import interactive
from governance.local.desk.state import Desk, Json
from governance.local.desk.webapi import direct_channel, username


def block_actions(desk: Desk, persona: Persona, action: Json, message: Json, values: Json) -> Json:
    """A press on a message; a private note is not repeated in the payload, as in Slack."""
    private = bool(message.get("is_ephemeral"))
    container = {"type": "message", "message_ts": message["ts"], "channel_id": message["channel"]}
    container |= {"is_ephemeral": private}
    container |= {"thread_ts": message["thread_ts"]} if "thread_ts" in message else {}
    payload = _interaction(desk, persona, "block_actions")
    payload |= {"container": container, "channel": _channel(desk, message["channel"])}
    payload |= {"trigger_id": desk.new_trigger(persona.id), "state": {"values": values}}
    payload |= {"response_url": desk.new_response_url(message["channel"], persona.id, message)}
    payload |= {"actions": [{**action, "action_ts": desk.new_ts()}]}
    return payload if private else {**payload, "message": message}


def view_actions(desk: Desk, persona: Persona, action: Json, view: Json) -> Json:
    """A press inside a modal or on the home tab: a view, and neither channel nor message."""
    payload = _interaction(desk, persona, "block_actions")
    payload |= {"container": {"type": "view", "view_id": view["id"]}, "view": view}
    payload |= {"trigger_id": desk.new_trigger(persona.id), "actions": [{**action, "action_ts": desk.new_ts()}]}
    return payload


def view_submission(desk: Desk, persona: Persona, view: Json) -> Json:
    payload = _interaction(desk, persona, "view_submission")
    return {**payload, "trigger_id": desk.new_trigger(persona.id), "view": view, "response_urls": []}


def view_closed(desk: Desk, persona: Persona, view: Json) -> Json:
    return {**_interaction(desk, persona, "view_closed"), "view": view, "is_cleared": False}


def slash_command(desk: Desk, persona: Persona, channel: str, text: str) -> Json:
    space = desk.workspace
    fields = {"token": space.verification_token, "team_id": space.team_id, "team_domain": space.team_name.lower()}
    fields |= {"channel_id": channel, "channel_name": _channel(desk, channel)["name"]}
    fields |= {"user_id": persona.id, "user_name": username(persona), "command": space.command, "text": text}
    fields |= {"api_app_id": space.app_id, "is_enterprise_install": "false"}
    fields |= {"response_url": desk.new_response_url(channel, persona.id, None)}
    return {**fields, "trigger_id": desk.new_trigger(persona.id)}


def home_opened(desk: Desk, persona: Persona) -> Json:
    space = desk.workspace
    event: Json = {"type": "app_home_opened", "user": persona.id, "channel": direct_channel(persona), "tab": "home"}
    home = desk.state["homes"].get(persona.id)
    event |= {"event_ts": desk.new_ts()} | ({"view": home} if home else {})
    authorization: Json = {"enterprise_id": None, "team_id": space.team_id, "user_id": space.bot_user_id}
    authorization |= {"is_bot": True, "is_enterprise_install": False}
    envelope: Json = {"token": space.verification_token, "team_id": space.team_id, "api_app_id": space.app_id}
    envelope |= {"event": event, "type": "event_callback", "event_id": desk.handle("Ev")}
    return {**envelope, "event_time": clock.epoch_seconds(), "authorizations": [authorization]}


def typed_values(blocks: list[Json], form: dict[str, list[str]]) -> Json:
    """`state.values` from a posted form, where each input's field is named by its two ids."""
    values: Json = {}
    for block in blocks:
        for element in interactive(block):
            if element["type"] == "button":
                continue
            posted = form.get(field_name(block, element), [])
            value = _value(element, posted)
            values.setdefault(block["block_id"], {})[element["action_id"]] = {"type": element["type"], **value}
    return values


def field_name(block: Json, element: Json) -> str:
    return f"field {block['block_id']} {element['action_id']}"


def input_errors(blocks: list[Json], values: Json) -> Json:
    """What Slack's own client refuses before it asks the app: missing or badly sized inputs, by block id."""
    errors: Json = {}
    for block in blocks:
        if block["type"] != "input":
            continue
        element = block["element"]
        typed = values[block["block_id"]][element["action_id"]]
        given = typed.get("value") or typed.get("selected_option") or typed.get("selected_options")
        if not given and not block.get("optional", False):
            errors[block["block_id"]] = "Please complete this required field."
        elif given and element["type"] == "plain_text_input":
            if len(given) < element.get("min_length", 0):
                errors[block["block_id"]] = f"Please enter at least {element['min_length']} characters."
            elif len(given) > element.get("max_length", 3000):
                errors[block["block_id"]] = f"Please enter at most {element.get('max_length', 3000)} characters."
    return errors


def _value(element: Json, posted: list[str]) -> dict[str, Any]:
    if element["type"] == "plain_text_input":
        # A browser sends line ends as CR LF; Slack sends LF.
        text = posted[0].replace("\r\n", "\n") if posted else ""
        return {"value": text or None}
    chosen = [option for option in element["options"] if option["value"] in posted]
    if element["type"] == "checkboxes":
        return {"selected_options": chosen}
    return {"selected_option": chosen[0] if chosen else None}


def _interaction(desk: Desk, persona: Persona, kind: str) -> Json:
    space = desk.workspace
    user = {"id": persona.id, "username": username(persona), "name": username(persona)}
    user |= {"team_id": space.team_of(persona)}
    team = {"id": space.team_id, "domain": space.team_name.lower()}
    payload = {"type": kind, "team": team, "user": user, "api_app_id": space.app_id, "enterprise": None}
    return {**payload, "token": space.verification_token, "is_enterprise_install": False}


def _channel(desk: Desk, channel_id: str) -> Json:
    for channel in desk.workspace.channels:
        if channel.id == channel_id:
            return {"id": channel.id, "name": channel.name}
    return {"id": channel_id, "name": "directmessage"}
