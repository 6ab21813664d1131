"""The table row of an API operation, and the OpenAPI 3.1 document made from the table and the models that validate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from governance.web.models import ProblemOut

_parameter = re.compile(r"\{([a-z]+)\}")
_problems = {
    400: "The request is not well formed",
    401: "No token, or one that opens no door",
    403: "Refused: who asks may not do this",
    404: "Unknown here",
    409: "Not possible in the present state",
    413: "Too large",
    415: "Wrong content type",
    422: "The request does not fit",
    500: "An error of ours, with the id that the log has it under",
    503: "Something we need does not answer",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One address and method of /v1 with everything that is said about it; `work` does it."""

    method: str
    path: str
    name: str
    summary: str
    work: Callable[..., Any]
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    out: type[BaseModel] | None = None
    status: int = 200
    takes: str = "application/json"  # content type of the body, when there is one
    gives: str = "application/json"
    idempotency_key: bool = False
    open: bool = False  # needs no token
    raw: bool = False  # the body is handed over as bytes
    again: Callable[..., Any] | None = None  # asked until what it gives has ended, as long as the request may wait
    waits: Callable[..., float] | None = None  # for how many seconds that is

    @property
    def has_body(self) -> bool:
        """Whether a body is read."""
        return self.body is not None or self.raw


def document(operations: Sequence[Operation], version: str, server: str) -> dict[str, Any]:
    """The whole document."""
    models = {model for one in operations for model in (one.body, one.query, one.out) if model is not None}
    ordered = sorted(models | {ProblemOut}, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation" if model.__name__.endswith("Out") is False else "serialization") for model in ordered],
        ref_template="#/components/schemas/{model}",
    )
    schemas = definitions["$defs"]
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    used = {model.__name__ for model in ordered if not any(model is one.query for one in operations)}
    inner = {name for name in schemas if name not in {model.__name__ for model in ordered}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Twokeys",
            "version": version,
            "description": "The same commands as Slack, the console and the command line; levels are enforced behind all of them.",
        },
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: schemas[name] for name in sorted(used | inner)},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A personal token, `tk_...`"}
            },
        },
    }


def _operation(one: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": (one.out.__doc__ or one.summary) if one.out else one.summary}
    good["content"] = {one.gives: {"schema": _ref(one.out) if one.out else {"type": "string"}}}
    if one.gives == "application/json" and one.out is None:
        good["content"] = {one.gives: {"schema": {"type": "object"}}}
    problem = {"application/problem+json": {"schema": _ref(ProblemOut)}}
    bad = {status: {"description": text, "content": problem} for status, text in _problems.items() if _may(one, status)}
    said: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "responses": {str(one.status): good, **{str(status): answer for status, answer in bad.items()}},
    }
    parameters = [_path(name) for name in _parameter.findall(one.path)] + _query(one, schemas)
    if one.idempotency_key:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "The same key again gives the first answer again.",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:/@-]{1,128}$"},
            }
        )
    if parameters:
        said["parameters"] = parameters
    if one.has_body:
        schema = _ref(one.body) if one.body else {"type": "string"}
        said["requestBody"] = {"required": True, "content": {one.takes: {"schema": schema}}}
    if one.open:
        said["security"] = []
    return said


def _may(one: Operation, status: int) -> bool:
    if status in (400, 413, 415, 422):
        return one.has_body or (status == 400 and one.query is not None)
    return status in (500,) if one.open else True


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "maxLength": 128}}


def _query(one: Operation, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    properties: Mapping[str, Any] = schemas[one.query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]
