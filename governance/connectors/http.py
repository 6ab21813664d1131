"""One HTTP exchange with an outside system: no redirects, no proxies, a byte cap, and a total table of what each fault means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from engine.canonical import read_json
from engine.errors import CallerError
from engine.gate.receipt import Outcome
from engine.gate.retry import AGAIN, MEND, NEVER, UNKNOWN, Fault, Faults, outcome_of
from governance import clock

answer_bytes_max = 1_048_576

# Everything that can go wrong between sending and a complete answer. Where nothing reached the other side, or it turned us
# away before doing anything, a write is safe to make again; where it may have got through, nobody knows.
FAULTS: Faults = {
    "unreachable": Fault(AGAIN, AGAIN),  # nothing was sent
    "lease_expired": Fault(AGAIN, AGAIN),  # nor here: this process slept past the end of its lease
    "rate_limited": Fault(AGAIN, AGAIN),  # turned away before anything was done
    "timeout": Fault(AGAIN, UNKNOWN),
    "connection_lost": Fault(AGAIN, UNKNOWN),
    "answer_too_large": Fault(AGAIN, UNKNOWN),
    "malformed_answer": Fault(AGAIN, UNKNOWN),
    "server_error": Fault(AGAIN, UNKNOWN),  # a gateway's 502 or 504, or a 500 after the commit
    "target_not_found": Fault(NEVER, NEVER),
    "not_authorized": Fault(MEND, MEND, "renew the credentials of the connection, or widen what they may do: `twokeys tenant connect`"),
    "rejected": Fault(NEVER, NEVER),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: status and strict JSON, or an outcome that says why there is none."""

    status: int
    body: Any
    outcome: Outcome | None
    headers: Mapping[str, str]


class Exchange:
    """A client for one base URL with basic authentication."""

    def __init__(self, base_url: str, user: str, secret: str, *, seconds: float) -> None:
        self._seconds = seconds
        self._client = httpx2.Client(
            base_url=base_url,
            auth=(user, secret),
            follow_redirects=False,
            trust_env=False,
            timeout=httpx2.Timeout(seconds, connect=3.0),
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        changes: bool,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        send_by: float = float("inf"),
    ) -> Answer:
        """Send once, and not after `send_by`. `changes` decides what a lost answer means: unknown for a write, try again for a read."""
        if too_late := overslept(send_by):
            return _none(too_late)
        late = clock.monotonic() + self._seconds
        try:
            with self._client.stream(
                method, path, params=params, json=json, headers={"Accept": "application/json"}
            ) as response:
                raw = b""
                for chunk in response.iter_bytes():
                    raw += chunk
                    if len(raw) > answer_bytes_max:
                        return _none(_fault("answer_too_large", f"the answer passes {answer_bytes_max} bytes", changes))
                    if clock.monotonic() > late:
                        # The client's own timeout begins again with every byte; a trickle would hold the run for ever.
                        return _none(_fault("timeout", f"the answer takes longer than {self._seconds:g} s", changes))
                status, headers = response.status_code, dict(response.headers)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            # Nothing was sent: the outside did not see this attempt.
            return _none(_fault("unreachable", _words(error), changes))
        except httpx2.TimeoutException as error:
            return _none(_fault("timeout", _words(error), changes))
        except httpx2.HTTPError as error:
            return _none(_fault("connection_lost", _words(error), changes))
        return _understood(status, raw, headers, changes)

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()


def overslept(send_by: float) -> Outcome | None:
    """Why nothing may be sent any more: this process slept past the end of its lease, and another may have begun."""
    if clock.boottime() <= send_by:
        return None
    text = "the lease ran out before anything was sent"
    return Outcome("error", error_class="lease_expired", message=text, retryable=True)


def _understood(status: int, raw: bytes, headers: Mapping[str, str], changes: bool) -> Answer:
    if status >= 300:
        return Answer(status, None, _refused(status, raw, headers, changes), headers)
    try:
        return Answer(status, read_json(raw, floats=True), None, headers)
    except CallerError as error:
        return _none(_fault("malformed_answer", error.reason, changes))


def _refused(status: int, raw: bytes, headers: Mapping[str, str], changes: bool) -> Outcome:
    seen = {"status": status, "size": len(raw)}
    if status == 429 or (status == 503 and "retry-after" in headers):
        # Asked to come back: the request was turned away before anything was done.
        after = headers.get("retry-after", "")
        seconds = int(after) if after.isascii() and after.isdigit() and len(after) < 6 else 0
        return outcome_of(
            FAULTS, "rate_limited", "asked to slow down", changes=changes, response=seen, retry_after_seconds=seconds
        )
    if status >= 500 or status == 408:
        return _fault("server_error", f"answered {status}", changes, seen)
    if status == 404:
        return _fault("target_not_found", "the target does not exist or may not be seen", changes, seen)
    if status in (401, 403):
        return _fault(
            "not_authorized", f"answered {status}: the connection's credentials do not suffice", changes, seen
        )
    return _fault("rejected", f"answered {status}", changes, seen)


def _fault(error_class: str, message: str, changes: bool, seen: Mapping[str, Any] | None = None) -> Outcome:
    return outcome_of(FAULTS, error_class, message, changes=changes, response=seen)


def _none(outcome: Outcome) -> Answer:
    return Answer(0, None, outcome, {})


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
