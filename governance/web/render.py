"""Pages from templates: undefined names are errors, everything is escaped, and the few files that pages load carry their hash."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from engine.canonical import sha256
from engine.catalog.tenancy import LEVELS
from engine.gate.card import demand
from governance.web import text
from governance.web.questions import LINEAGE, REFUSALS
from governance.web.story import STATES, VIA

HERE = Path(__file__).resolve().parent
CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
TIERS = {"low": "Low risk", "med": "Medium risk", "high": "High risk"}

_types = {"console.css": "text/css; charset=utf-8", "favicon.svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load, under a name that changes with its bytes."""

    path: str
    data: bytes
    media_type: str


def assets() -> dict[str, Asset]:
    """Every file that pages load, by its plain name."""
    found = {}
    for name, media_type in _types.items():
        data = (HERE / "static" / name).read_bytes()
        stem, _, ending = name.rpartition(".")
        found[name] = Asset(f"/static/{stem}.{sha256(data).hex()[:16]}.{ending}", data, media_type)
    return found


def badge(state: str) -> Markup:
    """A state as a word in its colour; an unknown word is shown as it is."""
    word, tone = STATES.get(state, (state, "plain"))
    return Markup('<span class="badge {}">{}</span>').format(tone, word)


def tier(name: str) -> Markup:
    """A tier as a word in its colour."""
    return Markup('<span class="badge tier-{}">{}</span>').format(
        name if name in TIERS else "none", TIERS.get(name, name)
    )


class Pages:
    """Renders templates."""

    def __init__(self, deployment: str) -> None:
        self.assets = assets()
        self._env = Environment(
            loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
        )  # fmt: skip
        self._env.globals.update(
            deployment=deployment, style=self.assets["console.css"].path, icon=self.assets["favicon.svg"].path, levels=LEVELS,
            lineage=LINEAGE, refusals=REFUSALS, via=VIA,
        )  # fmt: skip
        self._env.filters.update(
            visible=text.visible,
            hides=text.hides,
            one_line=text.one_line,
            moment=text.moment,
            badge=badge,
            demand=demand,
            tier=tier,
            size=text.size,
            instant=datetime.datetime.fromisoformat,
        )
        self._env.globals.update(lasted=text.lasted, until=text.until)

    def html(self, template: str, values: dict[str, Any]) -> str:
        """The page's text."""
        return self._env.get_template(template).render(values)

    def page(self, template: str, values: dict[str, Any], status: int = 200) -> Response:
        """The page as a response."""
        return HTMLResponse(self.html(template, values), status)

    async def asset(self, request: Request) -> Response:
        """GET /static/{name}: cached for ever, because the name changes with the bytes."""
        for one in self.assets.values():
            if request.url.path == one.path:
                return Response(
                    one.data,
                    media_type=one.media_type,
                    headers={"Cache-Control": "public, max-age=31536000, immutable"},
                )
        return Response("not found", 404, media_type="text/plain")

    async def verifier(self, request: Request) -> Response:
        """GET /verify.py: a copy of the one-file verifier; an auditor gets theirs from somebody they trust."""
        headers = {"Content-Disposition": 'attachment; filename="verify.py"'}
        return Response(
            (HERE / "static" / "verify.py").read_bytes(), media_type="text/x-python; charset=utf-8", headers=headers
        )
