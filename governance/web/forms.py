"""Reads request bodies within their bounds: forms of the console, strict JSON of the API, raw bytes of webhooks."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from engine.canonical import read_json
from engine.errors import CallerError

form_bytes_max = 65_536
form_fields_max = 40

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The body; refused as soon as it is known to be too large, before it is all here."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > bytes_max:
                raise _too_large(bytes_max)
    except ClientDisconnect:
        raise CallerError("the request ended early", code="malformed_request", field="body") from None
    return bytes(received)


def _too_large(bytes_max: int) -> CallerError:
    return CallerError(f"at most {bytes_max} bytes are read", code="too_large", field="body", next_step="send less")


def content_type(request: Request) -> str:
    """The media type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a console form; a field that stands twice is refused, because nobody's browser sends it."""
    if content_type(request) != "application/x-www-form-urlencoded":
        raise CallerError("a form is needed", code="unsupported_media_type", next_step="send the form of the page")
    body = await read_body(request, form_bytes_max)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=form_fields_max, errors="strict")
    except ValueError:
        raise CallerError("the form cannot be read", code="malformed_request", field="body") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise CallerError("a field of the form stands twice", code="malformed_request", field="body")
    return {name: _typed(value) for name, value in form.items()}


def _typed(value: str) -> str:
    # PostgreSQL keeps no NUL; browsers send CRLF for every new line.
    return value.replace("\r\n", "\n").replace("\x00", "\ufffd")


def strict(data: bytes, model: type[Model], *, bytes_max: int) -> Model:
    """The model these bytes hold, read strictly twice: as JSON without doubt, then as exactly this shape."""
    return shaped(read_json(data, bytes_max=bytes_max), model)


def shaped(value: Any, model: type[Model]) -> Model:
    """The model this value holds, or every fault of it in one sentence."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in one['loc']) or 'body'}: {one['msg']}"
            for one in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]["loc"]
        raise CallerError(
            "; ".join(faults[:20]), code="invalid_body", field=str(first[0]) if first else "body",
            next_step="see /v1/openapi.json",
        ) from None  # fmt: skip
