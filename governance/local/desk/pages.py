"""The pages and forms of the desk: who you are, what you read, and what your press sends to the product."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response

from governance.local.desk import Persona
from governance.local.desk import payloads as shapes
from governance.local.desk.blocks import check_view, interactive, with_ids
from governance.local.desk.delivery import VARIANTS, deliver, deliver_again, deliver_event, warning
from governance.local.desk.faults import KINDS, TIMES_MAX
from governance.local.desk.render import HERE, Renderer, press
from governance.local.desk.state import Desk, Json, SlackError
from governance.local.desk.webapi import channels_of, content_of

COOKIE = "desk_persona"
ACTION_TYPES = {"button", "static_select", "radio_buttons", "checkboxes"}
MOST_COMMAND_CHARACTERS = 2000


class WrongForm(Exception):
    """Whoever sent the form must act: it does not fit what the desk shows now."""


async def wrong_form(_: Request, error: Exception) -> Response:
    return HTMLResponse(f"<!doctype html><title>Not sent</title><p>{error} <a href='/'>Back</a>", status_code=409)


async def ready(_: Request) -> Response:
    return JSONResponse({"ready": True})


async def style(_: Request) -> Response:
    return FileResponse(HERE / "desk.css", media_type="text/css")


async def front(request: Request) -> Response:
    return RedirectResponse(f"/c/{_desk(request).workspace.channels[0].id}", 303)


async def channel(request: Request) -> Response:
    """GET /c/{channel}: the conversation as the chosen persona sees it."""
    desk, persona = _desk(request), _persona(request)
    here = next((c for c in channels_of(desk, persona) if c.id == request.path_params["channel"]), None)
    if here is None:
        return RedirectResponse("/", 303)
    compose = "compose" in request.query_params
    live = "paused" not in request.query_params and not compose
    return _page(request, "channel.html", persona, here=here, threads=_threads(desk, here.id, persona), live=live,
                 compose=compose)  # fmt: skip


async def home(request: Request) -> Response:
    """GET /app-home: the home tab the product published for this persona."""
    persona = _persona(request)
    view = _desk(request).state["homes"].get(persona.id)
    return _page(request, "home.html", persona, home=view, live=False)


async def deliveries(request: Request) -> Response:
    """GET /deliveries: what was sent to the product, newest first."""
    sent = list(reversed(_desk(request).state["deliveries"]))
    fault = _desk(request).state["fault"]
    return _page(request, "deliveries.html", _persona(request), deliveries=sent, live=False, kinds=KINDS, fault=fault)


async def state(request: Request) -> Response:
    """GET /_state: everything on the desk as JSON, with what each button's press would send."""
    desk = _desk(request)
    kept = {name: desk.state[name] for name in ("views", "homes", "deliveries", "notices", "errors", "fault")}
    lists = {name: [_with_presses(m) for m in desk.state[name]] for name in ("messages", "ephemerals")}
    views = {user: _with_presses(view) for user, view in desk.state["views"].items()}
    personas = [{"id": p.id, "name": p.name, "note": p.note} for p in desk.workspace.personas]
    return JSONResponse({**kept, **lists, "views": views, "personas": personas})


async def switch(request: Request) -> Response:
    """POST /persona: be somebody else from now on."""
    form = await _form(request)
    wanted = _desk(request).workspace.persona(_first(form, "persona"))
    if wanted is None:
        raise WrongForm("There is no such person at this desk.")
    answer = _back(form)
    answer.set_cookie(COOKIE, wanted.id, httponly=True, samesite="strict", path="/")
    return answer


async def click(request: Request) -> Response:
    """POST /click: press a button or set a select, on a message, a note, a modal or the home tab."""
    desk, persona, form = await _acting(request)
    try:
        action = json.loads(_first(form, "press"))
    except ValueError:
        action = None
    if not isinstance(action, dict) or action.get("type") not in ACTION_TYPES or "block_id" not in action:
        raise WrongForm("That is not a press.")
    surface = _surface(desk, persona, form)
    blocks = surface.get("blocks", [])
    values = shapes.typed_values(blocks, form)
    element = _find(blocks, action)
    if element is not None and "confirm" in element and not _first(form, "confirmed"):
        return _page(request, "confirm.html", persona, element=element, form=form, modal=None, live=False)
    if action["type"] != "button":
        action |= values.get(action["block_id"], {}).get(action.get("action_id"), {})
    if "ts" in surface:
        payload = shapes.block_actions(desk, persona, action, surface, values)
    else:
        if surface["type"] == "modal":
            desk.keep_typed(persona.id, values, {})
        payload = shapes.view_actions(desk, persona, action, surface)
    sent = await deliver(desk, "block_actions", persona.id, {"payload": payload})
    desk.notify(persona.id, warning(sent, desk.workspace.app_name))
    return _back(form)


async def submit(request: Request) -> Response:
    """POST /submit: send the modal's inputs and do what the product answers."""
    desk, persona, form = await _acting(request)
    view = _own_view(desk, persona, form)
    values = shapes.typed_values(view["blocks"], form)
    desk.keep_typed(persona.id, values, shapes.input_errors(view["blocks"], values))
    if not desk.state["errors"][persona.id]:
        sent = await deliver(
            desk, "view_submission", persona.id, {"payload": shapes.view_submission(desk, persona, view)}
        )
        problem = warning(sent, desk.workspace.app_name) or _follow(desk, persona, view, sent["answer"])
        desk.notify(persona.id, problem)
    return _back(form)


async def close(request: Request) -> Response:
    """POST /close: put the modal away; the product hears of it when it asked to."""
    desk, persona, form = await _acting(request)
    view = _own_view(desk, persona, form)
    desk.close_view(persona.id)
    desk.notify(persona.id, "")
    if view["notify_on_close"]:
        await deliver(desk, "view_closed", persona.id, {"payload": shapes.view_closed(desk, persona, view)})
    return _back(form)


async def command(request: Request) -> Response:
    """POST /command: the slash command, with whatever was written after it."""
    desk, persona, form = await _acting(request)
    text = _first(form, "text").strip()[:MOST_COMMAND_CHARACTERS]
    text = text.removeprefix(desk.workspace.command).strip()
    place = _first(form, "channel")
    if place not in {c.id for c in channels_of(desk, persona)}:
        raise WrongForm("You are not in that channel.")
    sent = await deliver(desk, "command", persona.id, shapes.slash_command(desk, persona, place, text))
    problem = warning(sent, desk.workspace.app_name) or _answer_command(desk, persona, place, sent["answer"])
    desk.notify(persona.id, problem)
    return _back(form)


async def open_home(request: Request) -> Response:
    """POST /app-home: tell the product that this person looks at its home tab."""
    desk, persona, form = await _acting(request)
    sent = await deliver_event(desk, "app_home_opened", persona.id, shapes.home_opened(desk, persona))
    desk.notify(persona.id, warning(sent, desk.workspace.app_name))
    return _back(form)


async def dismiss(request: Request) -> Response:
    """POST /dismiss: take a private note, or the desk's own notice, away."""
    desk, persona, form = await _acting(request)
    note = desk.ephemeral(persona.id, _first(form, "ts"))
    if note is not None:
        desk.delete_ephemeral(note)
    else:
        desk.notify(persona.id, "")
    return _back(form)


async def plan_fault(request: Request) -> Response:
    """POST /faults: let the next calls of the product fail so, or none."""
    form = await _form(request)
    kind, times = _first(form, "kind"), _first(form, "times")
    if kind not in KINDS or not times.isdecimal() or int(times) > TIMES_MAX:
        raise WrongForm("There is no such fault, or it is planned too often.")
    _desk(request).plan_fault(kind, int(times))
    return RedirectResponse("/deliveries", 303)


async def send_again(request: Request) -> Response:
    """POST /deliveries/{id}: the same request once more, as it was or spoiled."""
    desk, form = _desk(request), await _form(request)
    earlier = desk.delivery(request.path_params["id"])
    variant = _first(form, "variant")
    if earlier is None or variant not in VARIANTS:
        raise WrongForm("There is no such delivery, or no such way to send it.")
    await deliver_again(desk, earlier, variant)
    return RedirectResponse("/deliveries", 303)


def _follow(desk: Desk, persona: Persona, view: Json, answer: str) -> str:
    """Do what the answer to a submission says; the sentence for the person when that is impossible."""
    try:
        document = json.loads(answer) if answer.strip() else {}
        action = document.get("response_action", "clear")
        if action == "errors":
            desk.keep_typed(
                persona.id, view["state"]["values"], {str(k): str(v) for k, v in document["errors"].items()}
            )
        elif action == "update":
            check_view(document.get("view"), "modal")
            content = {**document["view"], "blocks": with_ids(document["view"]["blocks"])}
            desk.show_view(persona.id, content, view["id"])
        elif action == "clear":
            desk.close_view(persona.id)
        else:
            return f"The app answered with {action!r}; this desk shows one modal at a time."
    except SlackError as error:
        return f"The app’s answer cannot be shown: {error.code} {' '.join(error.messages)}"
    except (ValueError, AttributeError, KeyError):
        return "The app’s answer to this form is not one that Slack knows."
    return ""


def _answer_command(desk: Desk, persona: Persona, place: str, answer: str) -> str:
    """Show what the command answered: to this person only, unless it says in_channel."""
    if not answer.strip():
        return ""
    try:
        document = json.loads(answer)
    except ValueError:
        document = {"text": answer}
    try:
        content = content_of(document if isinstance(document, dict) else {"text": answer})
    except SlackError as error:
        return f"The app’s answer cannot be shown: {error.code} {' '.join(error.messages)}"
    if isinstance(document, dict) and document.get("response_type") == "in_channel":
        desk.add_message(place, content)
    else:
        desk.add_ephemeral(place, persona.id, content)
    return ""


def _surface(desk: Desk, persona: Persona, form: dict[str, list[str]]) -> Json:
    """What was pressed on, as far as this person may see it."""
    if _first(form, "view"):
        published: Json | None = desk.state["homes"].get(persona.id)
        if published is not None and published["id"] == _first(form, "view"):
            return published
        return _own_view(desk, persona, form)
    place, ts = _first(form, "channel"), _first(form, "ts")
    found = desk.ephemeral(persona.id, ts)
    if found is None and place in {c.id for c in channels_of(desk, persona)}:
        found = desk.message(place, ts)
    if found is None:
        raise WrongForm("That message is not there any more.")
    return found


def _own_view(desk: Desk, persona: Persona, form: dict[str, list[str]]) -> Json:
    view = desk.view(persona.id)
    if view is None or view["id"] != _first(form, "view"):
        raise WrongForm("That window is closed already.")
    return view


def _find(blocks: list[Json], action: Json) -> Json | None:
    for block in blocks:
        for element in interactive(block):
            if block["block_id"] == action["block_id"] and element["action_id"] == action.get("action_id"):
                return element
    return None


def _threads(desk: Desk, place: str, persona: Persona) -> list[tuple[Json, list[Json]]]:
    """Messages and this person's private notes in order, each with the replies in its thread."""
    everything = [*desk.messages(place), *desk.ephemerals(place, persona.id)]
    everything.sort(key=lambda message: float(message["ts"]))
    roots = {m["ts"] for m in everything if m.get("thread_ts", m["ts"]) == m["ts"]}
    replies: dict[str, list[Json]] = {ts: [] for ts in roots}
    top: list[Json] = []
    for message in everything:
        parent = message.get("thread_ts", message["ts"])
        if parent != message["ts"] and parent in roots:
            replies[parent].append(message)
        else:
            top.append(message)
    return [(message, replies.get(message["ts"], [])) for message in top]


def _with_presses(surface: Json) -> Json:
    """The document plus its buttons, for readers without a browser."""
    buttons = [
        {
            "label": element.get("text", {}).get("text", ""),
            "action_id": element["action_id"],
            "press": press(block, element),
        }
        for block in surface.get("blocks", [])
        for element in interactive(block)
        if element["type"] == "button"
    ]
    return {**surface, "presses": buttons}


def _page(request: Request, template: str, persona: Persona, **values: Any) -> Response:
    desk, renderer = _desk(request), request.app.state.renderer
    assert isinstance(renderer, Renderer)
    view = desk.view(persona.id)
    common = {"desk": desk.workspace, "me": persona, "channels": channels_of(desk, persona), "modal": view}
    common |= {"errors": desk.state["errors"].get(persona.id, {}), "notice": desk.state["notices"].get(persona.id, "")}
    common |= {"here": None, "path": request.url.path, "compose": False}
    values["live"] = values["live"] and view is None
    return HTMLResponse(renderer.page(template, **{**common, **values}))


def _desk(request: Request) -> Desk:
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk


def _persona(request: Request) -> Persona:
    """Whoever the cookie names, else the first one."""
    workspace = _desk(request).workspace
    return workspace.persona(request.cookies.get(COOKIE, "")) or workspace.personas[0]


async def _form(request: Request) -> dict[str, list[str]]:
    return parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)


async def _acting(request: Request) -> tuple[Desk, Persona, dict[str, list[str]]]:
    """Who acts; a page that was drawn for somebody else does not act for you."""
    form, persona = await _form(request), _persona(request)
    if _first(form, "as") != persona.id:
        raise WrongForm(f"This browser is now {persona.name}; that page was drawn for somebody else. Nothing was sent.")
    return _desk(request), persona, form


def _first(form: dict[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]


def _back(form: dict[str, list[str]]) -> Response:
    """To the page the form was on; never to another server."""
    target = _first(form, "back")
    safe = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return RedirectResponse(target if safe else "/", 303)
