"""Places in lists, as URLs carry them, and where a browser may be sent after sign-in."""

from __future__ import annotations

import base64
import datetime
import json

from engine.errors import CallerError
from governance.store.views import Page


def local_path(wanted: str) -> str:
    """Where to go after sign-in: an address of ours, never another site's."""
    plain = (
        wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isascii() and wanted.isprintable()
    )
    return wanted if plain and "\\" not in wanted else "/"


def write_page(page: Page) -> str:
    """A place in a list, for a URL."""
    at = page.at.astimezone(datetime.UTC).isoformat()
    return base64.urlsafe_b64encode(json.dumps([at, page.id]).encode()).decode().rstrip("=")


def read_page(text: str) -> Page | None:
    """The place that a URL names; None for the first page."""
    if not text:
        return None
    try:
        at, name = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        moment = datetime.datetime.fromisoformat(at)
        if type(name) is not str or moment.tzinfo is None:
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise CallerError(
            "this is not a place in the list", code="bad_cursor", field="after", next_step="start at page one"
        ) from None
    return Page(moment, name.replace("\x00", ""))
