"""Turns Block Kit into HTML: everything escaped, Slack's markup limited to what Slack knows."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from governance.local.desk import Workspace
from governance.local.desk.payloads import field_name
from governance.local.desk.state import Json

HERE = Path(__file__).parent
EMOJI = {
    "white_check_mark": "✅",
    "heavy_check_mark": "✔️",
    "x": "❌",
    "no_entry": "⛔",
    "warning": "⚠️",
    "question": "❓",
    "hourglass": "⌛",
    "hourglass_flowing_sand": "⏳",
    "key": "🔑",
    "lock": "🔒",
    "rotating_light": "🚨",
    "eyes": "👀",
    "gear": "⚙️",
    "memo": "📝",
    "large_green_circle": "🟢",
    "large_yellow_circle": "🟡",
    "red_circle": "🔴",
    "arrows_counterclockwise": "🔄",
}
EMOJI_NAME = re.compile(r":([a-z0-9_+-]+):")
FENCE = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)
INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|<(?P<angle>[^<>\n]+)>"
    r"|(?<![\w*])\*(?P<b>[^*\n]+)\*(?![\w*])"
    r"|(?<!\w)_(?P<i>[^_\n]+)_(?!\w)"
    r"|(?<![\w~])~(?P<s>[^~\n]+)~(?![\w~])"
)
EMPHASIS = {"b": Markup("<b>{}</b>"), "i": Markup("<i>{}</i>"), "s": Markup("<s>{}</s>")}
RICH_STYLES = {
    "bold": EMPHASIS["b"],
    "italic": EMPHASIS["i"],
    "strike": EMPHASIS["s"],
    "code": Markup("<code>{}</code>"),
}
LINK = Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>')


class Renderer:
    """HTML for one workspace: it knows the names behind user and channel ids."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            text=self.text, mrkdwn=self.mrkdwn, rich=self.rich, clock=clock_time, initials=initials, pretty=pretty
        )
        self._environment.globals.update(
            press=press, field_name=field_name, typed=typed, web_link=web_link, colour=self.colour
        )

    def page(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(**values)

    def text(self, value: Json) -> Markup:
        """A text object: plain text literally (with emoji names when asked for), or Slack's markup."""
        if value["type"] == "mrkdwn":
            return self.mrkdwn(value["text"])
        return _lines(_emoji(value["text"]) if value.get("emoji") else value["text"])

    def mrkdwn(self, source: str) -> Markup:
        """Slack's markup: fences, quotes, code, emphasis, links and mentions; the rest is text."""
        parts = FENCE.split(source)
        shown = [
            Markup("<pre>{}</pre>").format(_decode(part)) if number % 2 else self._quoted(part)
            for number, part in enumerate(parts)
        ]
        return Markup("").join(shown)

    def rich(self, block: Json) -> Markup:
        """A rich_text block: its texts are literal, never parsed."""
        return Markup("").join(self._rich_part(part) for part in block["elements"])

    def colour(self, user_id: str) -> int:
        """A steady colour number for a persona's picture."""
        ids = [persona.id for persona in self._workspace.personas]
        return ids.index(user_id) % 8 if user_id in ids else 8

    def _quoted(self, source: str) -> Markup:
        shown: list[Markup] = []
        for line in source.split("\n"):
            quoted = line.removeprefix("&gt;").removeprefix(">")
            if quoted != line:
                shown.append(Markup("<blockquote>{}</blockquote>").format(self._inline(quoted.strip())))
            else:
                shown.append(self._inline(line))
        return Markup("<br>").join(shown)

    def _inline(self, source: str) -> Markup:
        shown = Markup()
        end = 0
        for match in INLINE.finditer(source):
            shown += escape(_emoji(_decode(source[end : match.start()])))
            shown += self._token(match)
            end = match.end()
        return shown + escape(_emoji(_decode(source[end:])))

    def _token(self, match: re.Match[str]) -> Markup:
        kind = str(match.lastgroup)
        inner = match.group(kind)
        if kind == "code":
            return Markup("<code>{}</code>").format(_decode(inner))
        if kind == "angle":
            return self._angle(inner)
        return EMPHASIS[kind].format(self._inline(inner))

    def _angle(self, inner: str) -> Markup:
        target, _, label = inner.partition("|")
        if target.startswith("@"):
            return self._mention(target[1:])
        if target.startswith("#"):
            names = {channel.id: channel.name for channel in self._workspace.channels}
            return Markup('<span class="mention">#{}</span>').format(names.get(target[1:], label or target[1:]))
        if target.startswith("!date^"):
            _, moment, shape, *_ = [*target.split("^"), "", ""]
            return escape(slack_date(moment, shape) or _decode(label))
        if target.startswith("!"):
            loud = target[1:] in {"here", "channel", "everyone"}
            return Markup('<span class="mention{}">{}</span>').format(
                " loud" if loud else "", f"@{target[1:]}" if loud else _decode(label or target)
            )
        address = _decode(target)
        if not web_link(address):
            return escape(_decode(inner))
        return LINK.format(address, _decode(label) or address)

    def _mention(self, user_id: str) -> Markup:
        persona = self._workspace.persona(user_id)
        name = persona.name if persona else user_id
        if user_id == self._workspace.bot_user_id:
            name = self._workspace.app_name
        return Markup('<span class="mention">@{}</span>').format(name)

    def _rich_part(self, part: Json) -> Markup:
        inner = part.get("elements", [])
        match part["type"]:
            case "rich_text_list":
                shape = Markup("<ol>{}</ol>") if part.get("style") == "ordered" else Markup("<ul>{}</ul>")
                items = Markup("").join(Markup("<li>{}</li>").format(self._rich_part(item)) for item in inner)
                return shape.format(items)
            case "rich_text_preformatted":
                return Markup("<pre>{}</pre>").format(Markup("").join(self._rich_leaf(leaf) for leaf in inner))
            case "rich_text_quote":
                return Markup("<blockquote>{}</blockquote>").format(self._leaves(inner))
            case _:
                return Markup("<div>{}</div>").format(self._leaves(inner))

    def _leaves(self, leaves: list[Json]) -> Markup:
        return Markup("").join(self._rich_leaf(leaf) for leaf in leaves)

    def _rich_leaf(self, leaf: Json) -> Markup:
        match leaf.get("type"):
            case "text":
                shown = _lines(str(leaf.get("text", "")))
            case "user":
                shown = self._mention(str(leaf.get("user_id")))
            case "date":
                shown = escape(slack_date(str(leaf.get("timestamp")), str(leaf.get("format"))) or leaf.get("fallback"))
            case "emoji":
                shown = escape(EMOJI.get(str(leaf.get("name")), f":{leaf.get('name')}:"))
            case "link":
                address = str(leaf.get("url", ""))
                if not web_link(address):
                    return escape(address)
                shown = LINK.format(address, leaf.get("text") or address)
            case kind:
                shown = escape(f"[{kind}]")
        for style, shape in RICH_STYLES.items():
            if leaf.get("style", {}).get(style):
                shown = shape.format(shown)
        return shown


def press(block: Json, element: Json) -> str:
    """What a press on this element says, fixed when the page was drawn: a later card does not change it."""
    kept = {name: element[name] for name in ("type", "action_id", "value", "text", "style") if name in element}
    return json.dumps({**kept, "block_id": block["block_id"]}, ensure_ascii=False)


def typed(values: Json, block: Json, element: Json) -> list[str]:
    """What an input shows: what was typed, else what the product suggested."""
    known = values.get(block["block_id"], {}).get(element["action_id"])
    if element["type"] == "plain_text_input":
        return [(known["value"] if known else element.get("initial_value")) or ""]
    if known:
        chosen = known.get("selected_options") or [known.get("selected_option")]
    else:
        chosen = element.get("initial_options") or [element.get("initial_option")]
    return [option["value"] for option in chosen if option]


def web_link(address: str) -> str:
    """The address when it leads to the web, else nothing: no other scheme becomes a link."""
    return address if re.match(r"https?://[^\s]+$", address) else ""


def slack_date(moment: str, shape: str) -> str:
    """Slack's date tokens, here always in UTC; empty when the moment is not a number of seconds."""
    if not re.fullmatch(r"[0-9]{1,11}", moment):
        return ""
    when = datetime.datetime.fromtimestamp(int(moment), datetime.UTC)
    day = f"{when:%b} {when.day}, {when.year}"
    tokens = {"date_num": f"{when:%Y-%m-%d}", "time": f"{when:%H:%M} UTC", "time_secs": f"{when:%H:%M:%S} UTC"}
    return re.sub(r"\{([a-z_]+)\}", lambda match: tokens.get(match.group(1), day), shape)


def clock_time(ts: str) -> str:
    return datetime.datetime.fromtimestamp(float(ts), datetime.UTC).strftime("%H:%M")


def initials(name: str) -> str:
    return "".join(word[0] for word in name.split()[:2]).upper()


def pretty(body: str) -> str:
    """A delivery's body for reading: the payload as indented JSON where it is one."""
    from_form = body.removeprefix("payload=")
    return from_form[:2000]


def _decode(text: str) -> str:
    """The three characters that Slack's markup escapes."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _emoji(text: str) -> str:
    return EMOJI_NAME.sub(lambda match: EMOJI.get(match.group(1), match.group(0)), text)


def _lines(text: str) -> Markup:
    return Markup("<br>").join(escape(line) for line in text.split("\n"))
