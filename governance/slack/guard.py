"""Stands in front of Bolt: nothing is parsed before its size, its headers and its signature are right (slack.md 2.2).

Bolt parses the body before it verifies it, answers 500 to odd headers, and runs a function named by a header that no
signature covers. So: (1) size, (2) exactly one timestamp and one signature, well formed and fresh, (3) HMAC over the raw
bytes under every active secret, (4) only then UTF-8, (5) and only five headers go on.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.errors import OperatorError, Refused
from engine.limits import slack_request_bytes_max, slack_skew_seconds_max

Headers = Iterable[tuple[bytes, bytes]]

secrets_max = 2  # the one in use and the one being rotated out
secret_chars_min = 16
_timestamp = re.compile(rb"[0-9]{10}")
_signature = re.compile(rb"v0=[0-9a-f]{64}")
_length = re.compile(rb"[0-9]{1,12}")
_passed_on = (
    b"content-type",
    b"x-slack-request-timestamp",
    b"x-slack-signature",
    b"x-slack-retry-num",
    b"x-slack-retry-reason",
)


class Turned(Refused):
    """Nobody must act: this request does not come from Slack as it should; `status` answers it, `code` is counted."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code.replace("_", " "), code=code)
        self.status = status


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that Slack signed: text, the headers that may go on, and which of the secrets signed it."""

    body: str
    headers: dict[str, str]
    secret: int


class Guard:
    """Checks raw requests against the active signing secrets; the first is the one in use."""

    def __init__(self, secrets: Sequence[str], now: Callable[[], int]) -> None:
        if not 1 <= len(secrets) <= secrets_max or any(len(secret) < secret_chars_min for secret in secrets):
            raise OperatorError(
                f"needs one or two signing secrets of at least {secret_chars_min} characters",
                code="bad_setting",
                field="slack signing secret",
                next_step="copy it from Basic Information of the Slack app",
            )
        self._secrets = [secret.encode() for secret in secrets]
        self._now = now

    def check_length(self, headers: Headers) -> None:
        """(1) What the request says of its size, before a byte of it is read."""
        for length in _all(headers, b"content-length"):
            if not _length.fullmatch(length) or int(length) > slack_request_bytes_max:
                raise Turned(413, "too_large")

    def check_size(self, received: int) -> None:
        """(1) again, for what really arrives."""
        if received > slack_request_bytes_max:
            raise Turned(413, "too_large")

    def admit(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Admitted:
        """(2) to (5) for a body that was read whole."""
        self.check_size(len(body))
        stamps, signatures = _all(headers, b"x-slack-request-timestamp"), _all(headers, b"x-slack-signature")
        if len(stamps) != 1 or len(signatures) != 1:
            raise Turned(401, "not_signed")
        stamp, signature = stamps[0], signatures[0]
        if not _timestamp.fullmatch(stamp) or not _signature.fullmatch(signature):
            raise Turned(401, "not_signed")
        if abs(self._now() - int(stamp)) > slack_skew_seconds_max:
            raise Turned(401, "not_fresh")
        signed_by = self._signed_by(stamp, signature, body)
        if signed_by is None:
            raise Turned(401, "wrong_signature")
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            raise Turned(400, "not_text") from None
        kept = {name.decode(): _all(headers, name) for name in _passed_on}
        return Admitted(text, {name: found[0].decode("latin-1") for name, found in kept.items() if found}, signed_by)

    def _signed_by(self, stamp: bytes, signature: bytes, body: bytes) -> int | None:
        """(3) Every secret is tried, whichever fits, so that the time taken says nothing."""
        found = None
        for number, secret in enumerate(self._secrets):
            expected = b"v0=" + hmac.new(secret, b"v0:" + stamp + b":" + body, hashlib.sha256).hexdigest().encode()
            if hmac.compare_digest(expected, signature) and found is None:
                found = number
        return found


def _all(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]
