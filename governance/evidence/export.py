"""Streams a log's entries to where somebody else keeps them: each with its index, so that a repeat and a gap can be seen."""

from __future__ import annotations

import hmac
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.canonical import read_json
from engine.errors import BrokenLedger, CallerError, OperatorError
from engine.ledger.entries import read_entry
from engine.ledger.notes import log_origin
from governance.store import cosigned, published
from governance.store.unit import Database

page = 500
seconds_max = 10
FORMS = ("jsonl", "cloudevents")


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of consecutive entries, and the index that comes next."""

    lines: bytes
    first: int
    after: int


def line(origin: str, index: int, body: bytes, form: str) -> bytes:
    """One entry as a line; its bytes stand in it as they were hashed."""
    entry = read_entry(body)
    if form == "cloudevents":
        head = {
            "specversion": "1.0", "id": f"{origin}/{index}", "source": origin, "type": f"twokeys.{entry.type}", "time": entry.at,
            "subject": entry.chain, "datacontenttype": "application/json", "index": index, "leaf": entry.leaf.hex(),
        }  # fmt: skip
        name = b"data"
    else:
        head, name = {"origin": origin, "index": index, "leaf": entry.leaf.hex()}, b"entry"
    return json.dumps(head, separators=(",", ":")).encode()[:-1] + b',"' + name + b'":' + body + b"}\n"


class Export:
    """Reads what is under a signed checkpoint, and nothing that could still get another place."""

    def __init__(self, database: Database, deployment: str) -> None:
        self._database = database
        self._deployment = deployment

    def batches(self, tenant: str, since: int, form: str) -> Iterator[Batch]:
        """Everything from an index on, in the log's order and without a gap."""
        if form not in FORMS:
            raise CallerError(f"{form!r} is no form", field="--form", next_step=" or ".join(FORMS))
        origin = log_origin(self._deployment, tenant)
        with self._database.unit(tenant, write=False) as unit:
            newest = cosigned.newest_signed(unit)
        end = newest.size if newest else 0
        if not 0 <= since <= end:
            raise CallerError(
                f"the log has {end} signed entries, so none is at {since}", field="--from", code="beyond_log",
                next_step="if more were exported before, this database is older than what it said: find out before anything else",
            )  # fmt: skip
        for at in range(since, end, page):
            after = min(at + page, end)
            with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
                bodies = published.bodies(unit, at, after)
            yield Batch(b"".join(line(origin, at + n, body, form) for n, body in enumerate(bodies)), at, after)


def resume_at(last_line: bytes) -> int:
    """The index that follows the last line of an earlier export."""
    try:
        value = read_json(last_line.rstrip(b"\n"))
        index = value["index"]
    except (CallerError, KeyError, TypeError):
        index = None
    if type(index) is not int or not last_line.endswith(b"\n"):
        raise BrokenLedger("the file ends in the middle of a line: cut that line off and go on", code="export")
    return index + 1


def deliver(
    url: str, secret: bytes, batch: Batch, send: Callable[[str, bytes, dict[str, str]], int] | None = None
) -> None:
    """POST a batch; it counts as delivered with a 2xx only, so a receiver may see it again and knows it by its indexes."""
    headers = {
        "Content-Type": "application/x-ndjson",
        "X-Twokeys-First": str(batch.first),
        "X-Twokeys-After": str(batch.after),
        "X-Twokeys-Signature": f"v1={hmac.new(secret, batch.lines, 'sha256').hexdigest()}",
    }
    try:
        status = (send or post)(url, batch.lines, headers)
    except (OSError, http.client.HTTPException) as error:
        raise OperatorError(
            f"{url} does not answer: {type(error).__name__}", code="export", field="--webhook"
        ) from None
    if not 200 <= status < 300:
        raise OperatorError(
            f"{url} answered {status} to entries {batch.first} to {batch.after - 1}", code="export", field="--webhook",
            next_step="run this again: it goes on where the receiver last said yes",
        )  # fmt: skip


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send once, past no proxy and after no redirect; the status."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CallerError(f"{url[:60]!r} is no http(s) URL", field="--webhook")
    made: http.client.HTTPConnection
    if parts.scheme == "https":
        made = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=seconds_max, context=ssl.create_default_context()
        )
    else:
        made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds_max)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        made.request("POST", path, body, headers)
        return made.getresponse().status
    finally:
        made.close()
