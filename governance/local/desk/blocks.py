"""Slack's rules for Block Kit, as far as the desk can draw it: limits, required parts, allowed keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from governance import clock
from governance.local.desk.state import Json, SlackError

MOST_MESSAGE_BLOCKS = 50
MOST_VIEW_BLOCKS = 100
MOST_MESSAGE_CHARACTERS = 13_000
MOST_VIEW_BYTES = 250_000
MOST_METADATA_BYTES = 8_000
MOST_OPTIONS = 100
RICH_TEXT_PARTS = {"rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote"}
RICH_TEXT_LEAVES = {"text", "link", "user", "channel", "broadcast", "emoji", "date"}
ACTION_ELEMENTS = {"button", "static_select", "radio_buttons", "checkboxes"}
INPUT_ELEMENTS = {"plain_text_input", "static_select", "radio_buttons", "checkboxes"}
ACCESSORIES = ACTION_ELEMENTS | {"image"}


class Check:
    """Collects what is wrong with one document, each fault with a JSON pointer, as Slack reports it."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._block_ids: set[str] = set()

    def fault(self, where: str, what: str) -> None:
        self.faults.append(f"[ERROR] {what} [json-pointer:{where}]")

    def keys(self, value: Any, where: str, required: set[str], optional: set[str]) -> bool:
        """Whether this is an object with exactly the keys Slack knows."""
        if not isinstance(value, dict):
            self.fault(where, "must be an object")
            return False
        for name in sorted(required - value.keys()):
            self.fault(where, f"missing required field: {name}")
        for name in sorted(value.keys() - required - optional):
            self.fault(f"{where}/{name}", "unexpected field")
        return required <= value.keys()

    def string(self, value: Any, where: str, most: int, least: int = 0) -> None:
        if not isinstance(value, str):
            self.fault(where, "must be a string")
        elif len(value) > most:
            self.fault(where, f"must be less than {most + 1} characters")
        elif len(value) < least:
            self.fault(where, f"must be more than {least - 1} characters")

    def text(self, value: Any, where: str, most: int, *, plain: bool = False) -> None:
        """A text object; where Slack allows plain text only, markup is a fault."""
        if not self.keys(value, where, {"type", "text"}, {"emoji", "verbatim"}):
            return
        if value["type"] not in ({"plain_text"} if plain else {"plain_text", "mrkdwn"}):
            self.fault(f"{where}/type", "unsupported text type")
        if "verbatim" in value and value["type"] != "mrkdwn":
            self.fault(f"{where}/verbatim", "unexpected field")
        if "emoji" in value and value["type"] != "plain_text":
            self.fault(f"{where}/emoji", "unexpected field")
        self.string(value["text"], f"{where}/text", most, 1)

    def items(self, value: Any, where: str, most: int, least: int = 1) -> list[Any]:
        if not isinstance(value, list):
            self.fault(where, "must be an array")
            return []
        if not least <= len(value) <= most:
            self.fault(where, f"must have {least} to {most} items")
        return value

    def blocks(self, value: Any, most: int, where: str = "/blocks") -> None:
        blocks = self.items(value, where, most, 0)
        for number, block in enumerate(blocks):
            self.block(block, f"{where}/{number}")

    def block(self, block: Any, where: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        rule = BLOCK_RULES.get(kind) if isinstance(kind, str) else None
        if rule is None:
            self.fault(f"{where}/type", f"unsupported type: {kind}")
            return
        if "block_id" in block:
            self.string(block["block_id"], f"{where}/block_id", 255, 1)
            if block["block_id"] in self._block_ids:
                self.fault(f"{where}/block_id", "block_id already exists")
            self._block_ids.add(str(block["block_id"]))
        rule(self, {name: value for name, value in block.items() if name not in {"type", "block_id"}}, where)

    def element(self, element: Any, where: str, allowed: set[str]) -> None:
        kind = element.get("type") if isinstance(element, dict) else None
        if kind not in allowed:
            self.fault(f"{where}/type", f"unsupported type: {kind}")
            return
        rest = {name: value for name, value in element.items() if name not in {"type", "action_id"}}
        if "action_id" in element:
            self.string(element["action_id"], f"{where}/action_id", 255, 1)
        ELEMENT_RULES[str(kind)](self, rest, where)

    def elements(self, value: Any, where: str, most: int, allowed: set[str]) -> None:
        seen: set[Any] = set()
        for number, element in enumerate(self.items(value, where, most)):
            self.element(element, f"{where}/{number}", allowed)
            action_id = element.get("action_id") if isinstance(element, dict) else None
            if action_id is not None and action_id in seen:
                self.fault(f"{where}/{number}/action_id", "action_id already exists")
            seen.add(action_id)


def check_message(blocks: Any) -> None:
    """Raise Slack's error when these blocks could not be posted."""
    check = Check()
    check.blocks(blocks, MOST_MESSAGE_BLOCKS)
    if check.faults:
        raise SlackError("invalid_blocks", *check.faults)
    if len(json.dumps(blocks, ensure_ascii=False, separators=(",", ":"))) > MOST_MESSAGE_CHARACTERS:
        raise SlackError("msg_blocks_too_long")


def check_view(view: Any, kind: str) -> None:
    """Raise Slack's error when this could not be opened as a modal or published as a home tab."""
    check = Check()
    required = {"type", "blocks"} | ({"title"} if kind == "modal" else set())
    optional = {"private_metadata", "callback_id", "external_id", "submit", "close", "clear_on_close"}
    if not check.keys(view, "/view", required, optional | {"notify_on_close", "submit_disabled"}):
        raise SlackError("invalid_arguments", *check.faults)
    if len(json.dumps(view, ensure_ascii=False).encode()) > MOST_VIEW_BYTES:
        raise SlackError("view_too_large")
    if view["type"] != kind:
        check.fault("/view/type", f"must be {kind}")
    for name in ("title", "submit", "close"):
        if name in view:
            check.text(view[name], f"/view/{name}", 24, plain=True)
    check.string(view.get("private_metadata", ""), "/view/private_metadata", 3000)
    check.string(view.get("callback_id", ""), "/view/callback_id", 255)
    check.blocks(view["blocks"], MOST_VIEW_BLOCKS, "/view/blocks")
    blocks = view["blocks"] if isinstance(view["blocks"], list) else []
    has_input = any(isinstance(block, dict) and block.get("type") == "input" for block in blocks)
    if kind == "modal" and has_input and "submit" not in view:
        check.fault("/view/submit", "is required when there are input blocks")
    if check.faults:
        raise SlackError("invalid_arguments", *check.faults)


def check_metadata(metadata: Any) -> None:
    check = Check()
    if not check.keys(metadata, "/metadata", {"event_type", "event_payload"}, set()):
        raise SlackError("invalid_metadata_format", *check.faults)
    if len(json.dumps(metadata).encode()) > MOST_METADATA_BYTES:
        raise SlackError("metadata_too_large")


def with_ids(blocks: list[Json]) -> list[Json]:
    """The same blocks, with the ids Slack gives to blocks and elements that came without."""
    complete = json.loads(json.dumps(blocks))
    for block in complete:
        block.setdefault("block_id", clock.random_hex(3))
        for element in interactive(block):
            element.setdefault("action_id", clock.random_hex(3))
    return list(complete)


def interactive(block: Json) -> list[Json]:
    """The elements of a block that a person can use."""
    if block["type"] == "actions":
        return list(block["elements"])
    single = block.get("accessory") if block["type"] == "section" else block.get("element")
    return [single] if isinstance(single, dict) and single["type"] != "image" else []


def _section(check: Check, block: Json, where: str) -> None:
    check.keys(block, where, set(), {"text", "fields", "accessory", "expand"})
    if "text" not in block and "fields" not in block:
        check.fault(where, "text or fields are required")
    if "text" in block:
        check.text(block["text"], f"{where}/text", 3000)
    if "fields" in block:
        for number, field in enumerate(check.items(block["fields"], f"{where}/fields", 10)):
            check.text(field, f"{where}/fields/{number}", 2000)
    if "accessory" in block:
        check.element(block["accessory"], f"{where}/accessory", ACCESSORIES)


def _header(check: Check, block: Json, where: str) -> None:
    if check.keys(block, where, {"text"}, {"level"}):
        check.text(block["text"], f"{where}/text", 150, plain=True)


def _divider(check: Check, block: Json, where: str) -> None:
    check.keys(block, where, set(), set())


def _context(check: Check, block: Json, where: str) -> None:
    if not check.keys(block, where, {"elements"}, set()):
        return
    for number, element in enumerate(check.items(block["elements"], f"{where}/elements", 10)):
        if isinstance(element, dict) and element.get("type") == "image":
            check.element(element, f"{where}/elements/{number}", {"image"})
        else:
            check.text(element, f"{where}/elements/{number}", 3000)


def _actions(check: Check, block: Json, where: str) -> None:
    if check.keys(block, where, {"elements"}, set()):
        check.elements(block["elements"], f"{where}/elements", 25, ACTION_ELEMENTS)


def _input(check: Check, block: Json, where: str) -> None:
    if not check.keys(block, where, {"label", "element"}, {"hint", "optional", "dispatch_action"}):
        return
    check.text(block["label"], f"{where}/label", 2000, plain=True)
    check.element(block["element"], f"{where}/element", INPUT_ELEMENTS)
    if "hint" in block:
        check.text(block["hint"], f"{where}/hint", 2000, plain=True)


def _rich_text(check: Check, block: Json, where: str) -> None:
    if not check.keys(block, where, {"elements"}, set()):
        return
    for number, part in enumerate(check.items(block["elements"], f"{where}/elements", 3000)):
        _rich_part(check, part, f"{where}/elements/{number}", RICH_TEXT_PARTS)


def _rich_part(check: Check, part: Any, where: str, allowed: set[str]) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in allowed:
        check.fault(f"{where}/type", f"unsupported type: {kind}")
        return
    for number, inner in enumerate(check.items(part.get("elements"), f"{where}/elements", 3000, 0)):
        here = f"{where}/elements/{number}"
        if kind == "rich_text_list":
            _rich_part(check, inner, here, {"rich_text_section"})
        elif not isinstance(inner, dict) or inner.get("type") not in RICH_TEXT_LEAVES:
            check.fault(f"{here}/type", "unsupported type")
        elif not isinstance(inner.get("style", {}), dict):
            check.fault(f"{here}/style", "must be an object")
        elif inner["type"] == "text":
            check.string(inner.get("text"), f"{here}/text", MOST_VIEW_BYTES, 1)


def _image(check: Check, image: Json, where: str) -> None:
    if check.keys(image, where, {"image_url", "alt_text"}, {"title"}):
        check.string(image["image_url"], f"{where}/image_url", 3000, 1)
        check.string(image["alt_text"], f"{where}/alt_text", 2000, 1)


def _button(check: Check, button: Json, where: str) -> None:
    optional = {"value", "url", "style", "confirm", "accessibility_label"}
    if not check.keys(button, where, {"text"}, optional):
        return
    check.text(button["text"], f"{where}/text", 75, plain=True)
    check.string(button.get("value", ""), f"{where}/value", 2000)
    check.string(button.get("url", ""), f"{where}/url", 3000)
    check.string(button.get("accessibility_label", ""), f"{where}/accessibility_label", 75)
    if button.get("style", "primary") not in {"primary", "danger"}:
        check.fault(f"{where}/style", "must be primary or danger")
    _confirm(check, button, where)


def _confirm(check: Check, element: Json, where: str) -> None:
    if "confirm" not in element:
        return
    where = f"{where}/confirm"
    if check.keys(element["confirm"], where, {"title", "text", "confirm", "deny"}, {"style"}):
        for name, most, plain in (
            ("title", 100, True),
            ("text", 300, False),
            ("confirm", 30, True),
            ("deny", 30, True),
        ):
            check.text(element["confirm"][name], f"{where}/{name}", most, plain=plain)


def _options(check: Check, element: Json, where: str, most: int, extra: set[str]) -> None:
    if not check.keys(element, where, {"options"}, {"confirm", "focus_on_load"} | extra):
        return
    options = check.items(element["options"], f"{where}/options", most)
    for number, option in enumerate(options):
        here = f"{where}/options/{number}"
        if check.keys(option, here, {"text", "value"}, {"description"}):
            check.text(option["text"], f"{here}/text", 75)
            check.string(option["value"], f"{here}/value", 150, 1)
    initial = element.get("initial_options", [element["initial_option"]] if "initial_option" in element else [])
    for option in check.items(initial, f"{where}/initial_options", most, 0):
        if option not in options:
            check.fault(f"{where}/initial_option", "must be one of the options")
    _confirm(check, element, where)


def _static_select(check: Check, element: Json, where: str) -> None:
    _options(check, element, where, MOST_OPTIONS, {"placeholder", "initial_option"})
    if "placeholder" in element:
        check.text(element["placeholder"], f"{where}/placeholder", 150, plain=True)


def _radio_buttons(check: Check, element: Json, where: str) -> None:
    _options(check, element, where, 10, {"initial_option"})


def _checkboxes(check: Check, element: Json, where: str) -> None:
    _options(check, element, where, 10, {"initial_options"})


def _plain_text_input(check: Check, element: Json, where: str) -> None:
    optional = {"placeholder", "initial_value", "multiline", "min_length", "max_length", "focus_on_load"}
    check.keys(element, where, set(), optional | {"dispatch_action_config"})
    if "placeholder" in element:
        check.text(element["placeholder"], f"{where}/placeholder", 150, plain=True)
    check.string(element.get("initial_value", ""), f"{where}/initial_value", 3000)
    for name in ("min_length", "max_length"):
        if not (type(element.get(name, 1)) is int and 0 <= element.get(name, 1) <= 3000):
            check.fault(f"{where}/{name}", "must be a number from 0 to 3000")


Rule = Callable[[Check, Json, str], None]
BLOCK_RULES: dict[str, Rule] = {
    "section": _section,
    "header": _header,
    "divider": _divider,
    "context": _context,
    "actions": _actions,
    "input": _input,
    "rich_text": _rich_text,
    "image": _image,
}
ELEMENT_RULES: dict[str, Rule] = {
    "button": _button,
    "static_select": _static_select,
    "radio_buttons": _radio_buttons,
    "checkboxes": _checkboxes,
    "plain_text_input": _plain_text_input,
    "image": _image,
}
