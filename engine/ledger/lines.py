"""Lines of an export: each holds one entry's exact bytes and its index, plain or as a CloudEvent, and is canonical itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from engine.canonical import jcs, read_json
from engine.errors import CallerError
from engine.ledger.tree import leaf_hash
from engine.limits import entry_bytes_max

PLAIN, CLOUDEVENTS = "plain", "cloudevents"
FORMS = (PLAIN, CLOUDEVENTS)
line_bytes_max = entry_bytes_max + 4_096


def write_line(origin: str, index: int, body: bytes, form: str) -> bytes:
    """One line without its end. The names stand in canonical order, so that the entry's bytes are in it as they were hashed."""
    leaf = leaf_hash(body).hex()
    if form == PLAIN:
        rest = jcs({"index": index, "leaf": leaf, "origin": origin})
        return b'{"entry":' + body + b"," + rest[1:]
    # Read without the catalogue: during an update the other release writes types that this one does not know yet.
    entry = read_json(body, bytes_max=entry_bytes_max)
    rest = jcs(
        {
            "datacontenttype": "application/json",
            "id": str(index),
            "leafhash": leaf,
            # CloudEvents' extension "sequence": text whose order is the order of the events.
            "sequence": f"{index:020}",
            "source": origin,
            "specversion": "1.0",
            "subject": entry["chain"],
            "time": entry["at"],
            "type": f"twokeys.{entry['type']}",
        }
    )
    return b'{"data":' + body + b"," + rest[1:]


def read_line(line: bytes) -> tuple[str, int, bytes]:
    """(origin, index, the entry's exact bytes) of a line in either form; anything else is refused."""
    try:
        value = read_json(line, bytes_max=line_bytes_max)
        form = CLOUDEVENTS if type(value) is dict and "specversion" in value else PLAIN
        data, index, origin = _parts(value, form)
        body = jcs(data)
        if type(index) is int and type(origin) is str and write_line(origin, index, body, form) == line:
            return origin, index, body
    except CallerError as error:
        _refuse(error.reason)
    except (KeyError, TypeError, ValueError):
        pass
    _refuse("it is not the line of one entry")


def _parts(value: Any, form: str) -> tuple[Any, Any, Any]:
    if form == PLAIN:
        return value["entry"], value["index"], value["origin"]
    return value["data"], int(value["id"]), value["source"]


def checked(bodies: Sequence[tuple[int, bytes, bytes]], since: int) -> tuple[list[bytes], str]:
    """The bodies from `since` on that follow each other and are what was hashed, and what is wrong with the next one."""
    good: list[bytes] = []
    for position, body, leaf in bodies:
        index = since + len(good)
        if position != index:
            return good, f"index {index} is missing"
        if leaf_hash(body) != leaf:
            return good, f"index {index} is not what was hashed"
        good.append(body)
    return good, ""


def _refuse(reason: str) -> NoReturn:
    raise CallerError(f"this is no line of an export: {reason}", code="bad_line")
