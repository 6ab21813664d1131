"""One shape of error: which status each of our errors is, and RFC 9457 problems for the API."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from engine.errors import (
    AuthorError,
    BrokenJournal,
    BrokenLedger,
    CallerError,
    Conflict,
    OperatorError,
    Refused,
    StaleWake,
    TwokeysError,
)
from governance.commands.answer import AnswerInvalid


def sentence(error: TwokeysError) -> str:
    """An error as a person reads it."""
    text = error.reason[:1].upper() + error.reason[1:]
    return f"{text}. {error.next_step[:1].upper()}{error.next_step[1:]}." if error.next_step else text + "."


def told(error: TwokeysError) -> tuple[str, int]:
    """The sentence, and the status that a page with it has."""
    return sentence(error), status_of(error)


TYPE = "urn:twokeys:problem:"

_by_class: Mapping[type[TwokeysError], int] = {
    AuthorError: 422,
    CallerError: 400,
    Refused: 403,
    Conflict: 409,
    StaleWake: 409,
    OperatorError: 503,
    BrokenJournal: 500,
    BrokenLedger: 500,
    TwokeysError: 500,
}
# Where a code says more than its class does.
_by_code = {
    "invalid_input": 422,
    "invalid_body": 422,
    "invalid_answer": 422,
    "invalid_proposal": 422,
    "missing_key": 422,
    "reason_required": 422,
    "unknown_kind": 422,
    "not_signed_in": 401,
    "unknown_person": 401,
    "bad_signature": 401,
    "csrf": 403,
    "too_large": 413,
    "unsupported_media_type": 415,
    # Not now: the thing is in another state than the order needs.
    "ended": 409,
    "paused": 409,
    "runs_full": 409,
    "not_schedulable": 409,
    "not_unknown": 409,
    "not_subscribed": 409,
    "not_sealed": 409,
    "not_connected": 409,
    "decided": 409,
    "not_approved": 409,
    "not_broken": 409,
    "review_overdue": 409,
    "no_glass": 403,
    "ticket_required": 422,
    "expired": 409,
    "stale_card": 409,
    "taken": 409,
    "closed": 409,
    "frozen": 409,
    "waits": 409,
    "policy_moved": 409,
    "loosened": 409,
    "replaying": 409,
    "unchanged": 409,
    "clash": 409,
    "tests_failed": 422,
    "unknown_group": 422,
    "too_few_owners": 422,
    "try_again": 503,
}
_titles = {
    400: "The request is not well formed",
    401: "Sign in first",
    403: "Refused",
    404: "Not found",
    405: "Not a method of this address",
    409: "Not possible in this state",
    413: "Too large",
    415: "Wrong content type",
    422: "The request does not fit",
    500: "An error of ours",
    503: "Something we need does not answer",
}


def status_of(error: TwokeysError) -> int:
    """The HTTP status that says who must act."""
    if error.code in _by_code:
        return _by_code[error.code]
    if isinstance(error, CallerError) and error.code.startswith("unknown_"):
        return 404
    for kind in type(error).__mro__:
        if kind in _by_class:
            return _by_class[kind]
    raise AssertionError("every error of ours is in the table by its base")


def title_of(status: int) -> str:
    """What a status is called."""
    return _titles.get(status, "Refused" if status < 500 else "An error of ours")


def document(error: TwokeysError) -> dict[str, object]:
    """The problem as a JSON value; what has nothing to say is left out."""
    more = {"field": error.field, "next_step": error.next_step}
    status = status_of(error)
    return {
        "type": TYPE + error.code,
        "title": title_of(status),
        "status": status,
        "detail": error.reason,
        "code": error.code,
        **{name: text for name, text in more.items() if text},
        **({"errors": error.faults} if isinstance(error, AnswerInvalid) and error.faults else {}),
    }


def answer(error: TwokeysError) -> Response:
    """The problem as a response."""
    return respond(document(error))


def plain(status: int, code: str, detail: str, **more: str) -> Response:
    """A problem that no error of ours stands behind: an address, a method, or a crash with its id."""
    return respond(
        {"type": TYPE + code, "title": title_of(status), "status": status, "detail": detail, "code": code, **more}
    )


def respond(problem: Mapping[str, object]) -> Response:
    """Send it."""
    status = problem["status"]
    assert isinstance(status, int)
    headers = {"WWW-Authenticate": 'Bearer realm="twokeys"'} if status == 401 else {}
    return Response(json.dumps(problem, ensure_ascii=False), status, headers, "application/problem+json")
