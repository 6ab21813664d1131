"""Inputs are held against the author's schema; the schema itself can neither fetch nor hang."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from engine.program.definition import Definition
from engine.program.inputs import check_input, check_schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["number"],
    "additionalProperties": False,
    "properties": {
        "number": {"type": "string", "pattern": "^INC"},
        "at": {"type": "string", "format": "date-time"},
        "count": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "$defs": {"tag": {"enum": ["a", "b"]}},
}
EMPTY = Definition("a", "1", "a", "", "manual", (), SCHEMA, (), (), 0, "high", ())


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"number": "INC1", "at": "2026-01-01T00:00:00Z", "count": 1, "tags": ["a"]}, []),
        ({}, ['input: "number" is a required property']),
        (
            {"number": 5, "zz": 1, "count": 0, "tags": ["a", "c"]},
            [
                "input.count: the value is less than the minimum of 1",
                'input.number: the value is not of type "string"',
                'input.tags.1: the value is not one of "a" or "b"',
                "input: Additional properties are not allowed ('zz' was unexpected)",
            ],
        ),
        ({"number": "INC1", "at": "yesterday"}, ['input.at: the value is not a "date-time"']),
        ({"number": "INC1", "count": True}, ['input.count: the value is not of type "integer"']),
        ([], ['input: the value is not of type "object"']),
        ({"number": "INC\x00"}, ["input: text holds the character NUL"]),
        (
            {"number": "INC1", "Count": 1},
            ["input: Additional properties are not allowed ('Count' was unexpected)"],
        ),
        ({"number": "I" * 300_000}, ["input: input, state and results together are 300018 bytes; at most 262144"]),
    ],
)
def test_each_fault_of_an_input_names_its_place(value: Any, wanted: list[str]) -> None:
    """Exact messages; never the value, which may be a secret."""
    assert check_input(EMPTY, value) == wanted


def test_a_fraction_is_passed_as_text() -> None:
    """1.0 would pass as an integer; it never reaches the schema."""
    [message] = check_input(EMPTY, {"number": "INC1", "count": 1.0})
    assert message.endswith("this is a fraction; pass it as text")


def test_a_secret_is_not_in_the_message() -> None:
    """What fails a pattern is not repeated."""
    assert "hunter2" not in str(check_input(EMPTY, {"number": "hunter2"}))


@pytest.mark.parametrize(
    ("change", "pointer", "message"),
    [
        ({"type": "array"}, "/type", "an input is a map: the schema starts with type: object"),
        (
            {"properties": {"a": {"type": "strin"}}},
            "/properties/a/type",
            "unknown type 'strin'; did you mean 'string'?",
        ),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern", 'the value is not a "regex"'),
        ({"required": ["a", 1]}, "/required/1", '1 is not of type "string"'),
        ({"$ref": "#/$defs/none"}, "", "Pointer '/$defs/none' does not exist"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            "/$schema",
            "schemas are written in https://json-schema.org/draft/2020-12/schema",
        ),
        ({"$ref": "#"}, "", "# refers to itself; an input is not recursive"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "",
            "#/$defs/a refers to itself; an input is not recursive",
        ),
        ({"$id": "x"}, "", "$id is not read; refer to #/$defs/name"),
    ],
)
def test_each_fault_of_a_schema_is_told(change: dict[str, Any], pointer: str, message: str) -> None:
    """Before anything runs, at its pointer."""
    assert check_schema({"type": "object", **change}) == [(pointer, message)]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:1/x", "https://example.org/x", "file:///etc/passwd"])
def test_nothing_is_fetched(uri: str) -> None:
    """The library fetches by default: a schema could read files and reach inside the network."""
    [(_, message)] = check_schema({"type": "object", "properties": {"a": {"$ref": uri}}})
    assert "nothing is fetched" in message


def test_a_schema_that_doubles_is_refused() -> None:
    """Forty references, each to two of the next, are a million million rules."""
    rules = {f"r{n}": {"allOf": [{"$ref": f"#/$defs/r{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$ref": "#/$defs/r0", "$defs": {**rules, "r40": {"type": "object"}}}
    started = time.monotonic()
    assert check_schema(schema) == [("", "references unfold to more than 5000 rules")]
    assert time.monotonic() - started < 1


def test_a_hostile_pattern_does_not_hang() -> None:
    """Linear time whatever the pattern."""
    definition = replace(
        EMPTY, inputs={"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    )
    started = time.monotonic()
    assert check_input(definition, {"a": "a" * 5_000 + "!"})
    assert time.monotonic() - started < 1
