"""Sends what a person did to the product, signed as Slack signs, and keeps it for sending again."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
from urllib.parse import urlencode, urlsplit

from governance import clock
from governance.local.desk.state import Desk, Json

DEADLINE_SECONDS = 3.0
LATE_SECONDS = 600
KEPT_ANSWER_CHARACTERS = 4_000
MOST_ANSWER_BYTES = 1_000_000
FORM = "application/x-www-form-urlencoded"
VARIANTS = ("again", "wrong_signature", "late")


async def deliver(desk: Desk, kind: str, user: str, fields: Json) -> Json:
    """An interaction or a command: form fields, structured ones as JSON text."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return await _deliver(desk, kind, user, urlencode(texts), FORM, clock.epoch_seconds(), "")


async def deliver_event(desk: Desk, kind: str, user: str, document: Json) -> Json:
    """An event: a JSON body."""
    return await _deliver(desk, kind, user, json.dumps(document), "application/json", clock.epoch_seconds(), "")


async def deliver_again(desk: Desk, earlier: Json, variant: str) -> Json:
    """The same bytes once more: a duplicate, a forged signature, or ten minutes late (signed then, arriving now)."""
    moment = int(earlier["headers"]["X-Slack-Request-Timestamp"])
    if variant == "late":
        moment -= LATE_SECONDS
    kind, user = earlier["kind"], earlier["user"]
    return await _deliver(desk, kind, user, earlier["body"], earlier["content_type"], moment, variant)


def sign(secret: str, moment: int, body: str) -> str:
    base = f"v0:{moment}:{body}".encode()
    return "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()


def warning(delivery: Json, app_name: str) -> str:
    """What Slack tells the person when the app did not take it; empty when it did."""
    if delivery["status"] == 200:
        return ""
    if delivery["status"] == 0:
        return f"{app_name} didn’t respond in time or could not be reached. What you did was not taken."
    return f"This app responded with Status Code {delivery['status']}. What you did was not taken."


async def _deliver(desk: Desk, kind: str, user: str, body: str, content_type: str, moment: int, variant: str) -> Json:
    signature = sign(desk.workspace.signing_secret, moment, body)
    if variant == "wrong_signature":
        signature = signature[:-1] + ("0" if signature[-1] != "0" else "1")
    headers = {"X-Slack-Request-Timestamp": str(moment), "X-Slack-Signature": signature}
    delivery: Json = {
        "kind": kind,
        "user": user,
        "at": clock.now_utc().isoformat(timespec="seconds"),
        "variant": variant,
    }
    delivery |= {"headers": headers, "content_type": content_type, "body": body}
    started = clock.monotonic()
    sent = {**headers, "Content-Type": content_type, "User-Agent": "twokeys-desk", "Accept": "*/*"}
    call = asyncio.to_thread(_post, desk.workspace.events_url, body.encode(), sent)
    try:
        status, answer = await asyncio.wait_for(call, DEADLINE_SECONDS)
    except TimeoutError:
        status, answer = 0, "no answer within 3 s"
    delivery |= {"status": status, "answer": answer[:KEPT_ANSWER_CHARACTERS]}
    delivery |= {"milliseconds": round((clock.monotonic() - started) * 1000)}
    return {**desk.add_delivery(delivery), "answer": answer}


def _post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """One request, without proxy, redirect or retry; status 0 when there was no answer."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port or 80, timeout=DEADLINE_SECONDS)
    try:
        connection.request("POST", address.path or "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_ANSWER_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, f"no answer: {error}"
    finally:
        connection.close()
