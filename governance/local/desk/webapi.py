"""The Web API the product calls: Slack's methods, argument forms and error codes, for one bot token."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from governance.local.desk import Channel, Persona, faults
from governance.local.desk.blocks import check_message, check_metadata, check_view, with_ids
from governance.local.desk.state import Desk, Json, SlackError

MOST_TEXT = 40_000
SCOPES = ("chat:write", "commands")  # what the manifest asks for; a test holds the two together
JSON_ARGUMENTS = ("blocks", "view", "metadata", "attachments")


async def call(request: Request) -> Response:
    """POST or GET /api/{method}: always 200 with `ok`, as Slack answers, unless a fault was planned."""
    desk: Desk = request.app.state.desk
    arguments = await _arguments(request)
    fault = desk.take_fault()
    if fault and fault != "accept_then_drop":
        return await faults.instead(fault)
    try:
        _authenticate(desk, request, arguments)
        method = METHODS.get(request.path_params["method"])
        if method is None:
            raise SlackError("unknown_method")
        answer = method(desk, arguments)
    except SlackError as error:
        failure: Json = {"ok": False, "error": error.code}
        if error.messages:
            failure |= {"errors": error.messages, "response_metadata": {"messages": error.messages}}
        return JSONResponse(failure)
    whole = JSONResponse({"ok": True, **answer}, headers={"x-oauth-scopes": ",".join(SCOPES)})
    return faults.dropped(whole) if fault else whole


async def respond(request: Request) -> Response:
    """POST /response/{key}: the response URL of one interaction, five uses in thirty minutes."""
    desk: Desk = request.app.state.desk
    try:
        document = json.loads(await request.body())
        if not isinstance(document, dict):
            raise SlackError("invalid_payload")
        content = content_of(document) if not document.get("delete_original") else {}
        place = desk.spend_response(request.path_params["key"])
    except ValueError:
        return PlainTextResponse("invalid_payload", status_code=400)
    except SlackError as error:
        return PlainTextResponse(error.code, status_code=404 if error.code == "expired_url" else 400)
    _apply_response(desk, place, document, content)
    return PlainTextResponse("ok")


def _apply_response(desk: Desk, place: Json, document: Json, content: Json) -> None:
    """Replace or delete the message the interaction came from, or add a message beside it."""
    find = desk.ephemeral if place.get("ephemeral") else desk.message
    original = find(place["user"] if place.get("ephemeral") else place["channel"], place.get("ts", ""))
    if document.get("delete_original") and original is not None:
        (desk.delete_ephemeral if place.get("ephemeral") else desk.delete_message)(original)
    elif document.get("replace_original") and original is not None:
        desk.replace_message(original, content)
    elif document.get("response_type") == "in_channel":
        desk.add_message(place["channel"], content, str(document.get("thread_ts", "")))
    elif content:
        desk.add_ephemeral(place["channel"], place["user"], content, str(document.get("thread_ts", "")))


async def _arguments(request: Request) -> Json:
    """Query, form or JSON, whichever the caller used; structured values in a form are JSON text."""
    arguments: Json = dict(request.query_params)
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            body = json.loads(await request.body() or b"{}")
        except ValueError:
            body = {}
        arguments |= body if isinstance(body, dict) else {}
    elif request.method == "POST":
        form = await request.form()
        arguments |= {name: value for name, value in form.items() if isinstance(value, str)}
    for name in JSON_ARGUMENTS:
        if isinstance(arguments.get(name), str):
            try:
                arguments[name] = json.loads(arguments[name])
            except ValueError:
                arguments[name] = None
    return arguments


def _authenticate(desk: Desk, request: Request, arguments: Json) -> None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ") or str(arguments.get("token", ""))
    if not token:
        raise SlackError("not_authed")
    if not hmac.compare_digest(token.encode(), desk.workspace.bot_token.encode()):
        raise SlackError("invalid_auth")


def content_of(arguments: Json) -> Json:
    """Text, blocks and metadata of a message, checked as Slack would."""
    content: Json = {"text": str(arguments.get("text") or "")[:MOST_TEXT]}
    blocks = arguments.get("blocks")
    if "blocks" in arguments and not isinstance(blocks, list):
        raise SlackError("invalid_blocks_format")
    if blocks:
        check_message(blocks)
        content["blocks"] = with_ids(blocks)
    if not content["text"] and not blocks:
        raise SlackError("no_text")
    if arguments.get("metadata") is not None:
        check_metadata(arguments["metadata"])
        content["metadata"] = arguments["metadata"]
    return content


def _persona(desk: Desk, user_id: Any) -> Persona:
    persona = desk.workspace.persona(str(user_id))
    if persona is None:
        raise SlackError("user_not_found")
    return persona


def _channel(desk: Desk, arguments: Json) -> str:
    """A channel by id or name, or the direct channel of a person by user id."""
    wanted = str(arguments.get("channel") or "")
    for channel in desk.workspace.channels:
        if wanted in {channel.id, channel.name, f"#{channel.name}"}:
            return channel.id
    for persona in desk.workspace.personas:
        if wanted in {persona.id, direct_channel(persona)}:
            return direct_channel(persona)
    raise SlackError("channel_not_found")


def direct_channel(persona: Persona) -> str:
    return f"D{persona.id[1:]}"


def channels_of(desk: Desk, persona: Persona) -> list[Channel]:
    """What this person sees in the sidebar: the public channels and their own conversation with the app."""
    return [*desk.workspace.channels, Channel(direct_channel(persona), desk.workspace.app_name, "Direct messages")]


def auth_test(desk: Desk, _: Json) -> Json:
    space = desk.workspace
    ids = {"team_id": space.team_id, "user_id": space.bot_user_id, "bot_id": space.bot_id}
    names = {"team": space.team_name, "user": space.app_name.lower(), "url": f"{desk.base_url}/"}
    return {**ids, **names, "is_enterprise_install": False}


def chat_post_message(desk: Desk, arguments: Json) -> Json:
    channel = _channel(desk, arguments)
    message = desk.add_message(channel, content_of(arguments), str(arguments.get("thread_ts") or ""))
    return {"channel": channel, "ts": message["ts"], "message": message}


def chat_post_ephemeral(desk: Desk, arguments: Json) -> Json:
    channel, user = _channel(desk, arguments), str(arguments.get("user"))
    persona = desk.workspace.persona(user)
    if persona is None or persona.deleted:
        raise SlackError("user_not_in_channel")
    note = desk.add_ephemeral(channel, user, content_of(arguments), str(arguments.get("thread_ts") or ""))
    return {"message_ts": note["ts"]}


def chat_update(desk: Desk, arguments: Json) -> Json:
    """Text without blocks removes the blocks, as in Slack."""
    message = _own_message(desk, arguments)
    content = content_of(arguments)
    desk.replace_message(message, content)
    return {"channel": message["channel"], "ts": message["ts"], "text": content["text"], "message": message}


def chat_delete(desk: Desk, arguments: Json) -> Json:
    message = _own_message(desk, arguments)
    desk.delete_message(message)
    return {"channel": message["channel"], "ts": message["ts"]}


def _own_message(desk: Desk, arguments: Json) -> Json:
    message = desk.message(_channel(desk, arguments), str(arguments.get("ts")))
    if message is None:
        raise SlackError("message_not_found")
    return message


def views_open(desk: Desk, arguments: Json) -> Json:
    check_view(arguments.get("view"), "modal")
    user = desk.spend_trigger(str(arguments.get("trigger_id")))
    return {"view": desk.show_view(user, _complete(arguments["view"]))}


def views_update(desk: Desk, arguments: Json) -> Json:
    check_view(arguments.get("view"), "modal")
    found = desk.view_by_id(str(arguments.get("view_id")))
    if found is None:
        raise SlackError("not_found")
    user, view = found
    if arguments.get("hash") and arguments["hash"] != view["hash"]:
        raise SlackError("hash_conflict")
    return {"view": desk.show_view(user, _complete(arguments["view"]), view["id"])}


def views_publish(desk: Desk, arguments: Json) -> Json:
    persona = _persona(desk, arguments.get("user_id"))
    check_view(arguments.get("view"), "home")
    home = desk.state["homes"].get(persona.id)
    if arguments.get("hash") and home is not None and arguments["hash"] != home["hash"]:
        raise SlackError("hash_conflict")
    return {"view": desk.publish_home(persona.id, _complete(arguments["view"]))}


def _complete(view: Json) -> Json:
    return {**view, "blocks": with_ids(view["blocks"])}


def users_info(desk: Desk, arguments: Json) -> Json:
    persona = _persona(desk, arguments.get("user"))
    profile = {"real_name": persona.name, "display_name": persona.name, "team": desk.workspace.team_of(persona)}
    flags = {"deleted": persona.deleted, "is_bot": persona.is_bot, "is_restricted": persona.is_restricted}
    foreign = desk.workspace.team_of(persona) != desk.workspace.team_id
    flags |= {"is_ultra_restricted": False, "is_app_user": False, "is_stranger": foreign}
    names = {"name": username(persona), "real_name": persona.name, "team_id": profile["team"]}
    return {"user": {"id": persona.id, **names, **flags, "profile": profile, "tz": "Etc/UTC", "tz_offset": 0}}


def username(persona: Persona) -> str:
    return persona.name.split()[0].lower()


def conversations_open(desk: Desk, arguments: Json) -> Json:
    users = str(arguments.get("users") or "").split(",")
    if len(users) != 1:
        raise SlackError("method_not_supported_for_channel_type")
    return {"channel": {"id": direct_channel(_persona(desk, users[0]))}}


METHODS: dict[str, Callable[[Desk, Json], Json]] = {
    "auth.test": auth_test,
    "chat.postMessage": chat_post_message,
    "chat.postEphemeral": chat_post_ephemeral,
    "chat.update": chat_update,
    "chat.delete": chat_delete,
    "views.open": views_open,
    "views.update": views_update,
    "views.publish": views_publish,
    "users.info": users_info,
    "conversations.open": conversations_open,
}
