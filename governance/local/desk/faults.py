"""What can go wrong between the product and Slack, one call at a time, chosen on the desk's page of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

# The kind of fault, and what people read of it.
KINDS: Mapping[str, str] = {
    "ratelimited": "says 429: wait a second",
    "server_error": "answers with a broken page (500)",
    "hang": "does not answer for ten seconds",
    "accept_then_drop": "takes it and breaks off in the middle of its answer",
    "is_archived": "says that the channel is archived",
    "token_revoked": "says that the token was revoked",
}
TIMES_MAX = 100
HANG_SECONDS = 10.0
_words = frozenset({"is_archived", "token_revoked"})


async def instead(kind: str) -> Response:
    """The answer of a call that goes wrong before Slack has done anything."""
    if kind == "ratelimited":
        return JSONResponse({"ok": False, "error": "ratelimited"}, 429, {"retry-after": "1"})
    if kind == "server_error":
        return HTMLResponse("<h1>Server Error</h1>", 500)
    if kind == "hang":
        await asyncio.sleep(HANG_SECONDS)
        return HTMLResponse("", 503)
    assert kind in _words
    return JSONResponse({"ok": False, "error": kind})


def dropped(answer: JSONResponse) -> Response:
    """An answer that says how long it is and breaks off: whoever asked cannot know what was done."""
    whole = bytes(answer.body)

    async def half() -> AsyncIterator[bytes]:
        yield whole[: len(whole) // 2]

    return StreamingResponse(half(), media_type="application/json", headers={"content-length": str(len(whole))})
