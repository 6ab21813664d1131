"""Checks a run's input against its program's schema, and that schema itself (the home of `jsonschema_rs`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs

from engine.canonical import decode, encode
from engine.program.expression import ExprError, admit, check_size
from engine.program.faults import hint, step_into
from engine.program.programs import Program

faults_max = 20
expansion_max = 5_000
_types = ("array", "boolean", "integer", "null", "object", "string")
_not_rules = ("$defs", "const", "enum", "default", "examples")
_dynamic = ("$dynamicRef", "$dynamicAnchor", "$id", "$anchor", "$recursiveRef")
_dialect = "https://json-schema.org/draft/2020-12/schema"


def check_input(program: Program, value: Any) -> list[str]:
    """What is wrong with this input, each fault a sentence that starts with its place; empty when a run may start with it."""
    try:
        check_size(admit(value))
    except ExprError as error:
        return [f"input: {error.message}"]
    faults = []
    for found in _validator(encode(program.inputs)).iter_errors(value):
        faults.append(f"{_dotted(found.instance_path)}: {found.message}")
        if len(faults) >= faults_max:
            break
    return sorted(faults)


def check_schema(schema: dict[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with an inputs schema: (JSON pointer inside it, sentence)."""
    if schema.get("$schema", _dialect) != _dialect:
        return [("/$schema", f"schemas are written in {_dialect}")]
    if schema.get("type") != "object":
        return [("/type", "an input is a map: the schema starts with type: object")]
    try:
        jsonschema_rs.meta.validate(schema)
        _new_validator(schema)
        _expansion(schema, schema, {})
    except jsonschema_rs.ValidationError as error:
        return [(_pointer(error.instance_path), _schema_message(error))]
    except jsonschema_rs.ReferencingError as error:
        return [("", f"only #/... can be referred to: {error}")]
    except ValueError as error:
        return [("", str(error))]
    return []


def _schema_message(error: Any) -> str:
    if error.instance_path and error.instance_path[-1] == "type" and type(error.instance) is str:
        return f"unknown type {error.instance!r}{hint(error.instance, _types)}"
    return str(error.message)


def _expansion(schema: Any, root: Any, seen: dict[str, int]) -> int:
    """How many rules one value may be held against; references that double and double again would never end."""
    if type(schema) is list:
        total = 1 + sum(_expansion(item, root, seen) for item in schema)
    elif type(schema) is dict:
        if found := [name for name in _dynamic if name in schema and type(schema[name]) is str]:
            raise ValueError(f"{found[0]} is not read; refer to #/$defs/name")
        total = 1 + sum(_expansion(item, root, seen) for name, item in schema.items() if name not in _not_rules)
        target = schema.get("$ref")
        if type(target) is str:
            if seen.get(target) == 0:
                raise ValueError(f"{target} refers to itself; an input is not recursive")
            if target not in seen:
                seen[target] = 0
                seen[target] = _expansion(_at(root, target), root, seen)
            total += seen[target]
    else:
        return 1
    if total > expansion_max:
        raise ValueError(f"references unfold to more than {expansion_max} rules")
    return total


def _at(root: Any, target: str) -> Any:
    if "%" in target or (target != "#" and not target.startswith("#/")):
        raise ValueError(f"{target} is not a reference of the form #/$defs/name")
    node = root
    for part in target[2:].split("/") if target != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        node = node[int(name)] if type(node) is list else node[name]
    return node


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    return _new_validator(decode(schema))


def _new_validator(schema: Any) -> Any:
    # A value may be a secret: messages name its place, never the value.
    return jsonschema_rs.Draft202012Validator(
        schema, validate_formats=True, ignore_unknown_formats=False, retriever=_deny, mask="the value"
    )


def _deny(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the definition; nothing is fetched")


def _dotted(path: list[str | int]) -> str:
    return ".".join(["input", *map(str, path)])


def _pointer(path: list[str | int]) -> str:
    pointer = ""
    for part in path:
        pointer = step_into(pointer, part)
    return pointer
