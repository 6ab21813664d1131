"""POST /hooks/{tenant}/{source}: the signature over the raw bytes first, then strict JSON, then one run per reference."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import CallerError, Refused
from engine.limits import webhook_bytes_max
from governance import metrics
from governance.keys import hook_signature, same
from governance.store import templates
from governance.web.forms import read_body, strict
from governance.web.seams import Seams

SIGNATURE, TIMESTAMP = "x-twokeys-signature", "x-twokeys-timestamp"
skew_seconds_max = 300

_timestamp = re.compile(r"[0-9]{1,12}")
_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_signature = re.compile(r"v1=([0-9a-f]{64})")
_nobodys_secret = "there is no such source"


class Event(BaseModel):
    """What a source posts: which event, the reference that makes it one start, and the run's input."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    event: str = Field(min_length=1, max_length=100, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    ref: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:/@-]+$")
    data: dict[str, Any]


class Taken(BaseModel):
    """The run that this reference came to; `new` is false when it was posted before."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    run: str
    new: bool


class Hooks:
    """The door for other systems."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    async def receive(self, request: Request) -> Response:
        """One event."""
        body = await read_body(request, webhook_bytes_max)
        tenant, source = request.path_params["tenant"], request.path_params["source"]
        headers = (request.headers.get(TIMESTAMP, ""), request.headers.get(SIGNATURE, ""))
        taken = await run_in_threadpool(self._take, tenant, source, headers, body)
        request.state.tenant = tenant
        metrics.count("webhook_started" if taken.new else "webhook_repeated")
        return Response(json.dumps(taken.model_dump()), 202, media_type="application/json")

    def _take(self, tenant: str, source: str, headers: tuple[str, str], body: bytes) -> Taken:
        self._check(tenant, source, headers, body)
        event = strict(body, Event, bytes_max=webhook_bytes_max)
        self._check_subscribed(tenant, source, event.event)
        begun = self._seams.start.by_event(tenant, source, event.ref, event.data)
        return Taken(run=begun.run, new=begun.new)

    def _check(self, tenant: str, source: str, headers: tuple[str, str], body: bytes) -> None:
        """Whoever does not hold a source's secret learns nothing: not even whether there is such a tenant or source."""
        timestamp, given = headers
        known, secret = self._secret(tenant, source)
        form = _signature.fullmatch(given)
        timely = _timestamp.fullmatch(timestamp) is not None
        expected = hook_signature(secret, timestamp if timely else "0", body)
        holds = same(expected, given if form else "")
        if not (known and holds and timely and abs(self._seams.now() - int(timestamp)) <= skew_seconds_max):
            metrics.count("webhook_refused")
            raise Refused(
                "the signature does not hold for a source known here", code="bad_signature",
                next_step=f"sign `timestamp.body` with the source's secret, within {skew_seconds_max} s of our clock",
            )  # fmt: skip

    def _secret(self, tenant: str, source: str) -> tuple[bool, str]:
        if not (_name.fullmatch(tenant) and _name.fullmatch(source)):
            return False, _nobodys_secret
        if self._seams.route("source", f"{tenant}/{source}") != tenant:
            return False, _nobodys_secret
        with self._seams.database.unit(tenant, write=False) as unit:
            found = templates.source(unit, source)
        if found is None:
            return False, _nobodys_secret
        return True, self._seams.unseal(tenant, f"source/{source}", found.secret_sealed)

    def _check_subscribed(self, tenant: str, source: str, event: str) -> None:
        with self._seams.database.unit(tenant, write=False) as unit:
            found = templates.source(unit, source)
            active = templates.active(unit, found.workflow) if found else None
        if found is None or active is None:
            return  # the command says what is missing
        wanted = sorted(one.event for one in active[2].subscriptions if one.source == source)
        if wanted and event not in wanted:
            raise CallerError(
                f"{found.workflow} {active[1]} does not subscribe to {event}", code="invalid_body", field="event",
                next_step=f"it subscribes to {', '.join(wanted)}",
            )  # fmt: skip
