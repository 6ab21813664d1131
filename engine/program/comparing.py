"""What differs between two definitions, by the place of each value: steps are told apart by their ids, not by their numbers."""

from __future__ import annotations

import json
from typing import Any

shown_chars_max = 200


def differences(before: Any, after: Any, place: str = "") -> list[dict[str, str]]:
    """A row for each value that is only on one side or another on the other, in the order of their places."""
    if type(before) is dict and type(after) is dict:
        rows = []
        for name in sorted({*before, *after}):
            rows += differences(before.get(name, _nothing), after.get(name, _nothing), f"{place}.{name}".lstrip("."))
        return rows
    if type(before) is list and type(after) is list and _have_ids(before) and _have_ids(after):
        old, new = {each["id"]: each for each in before}, {each["id"]: each for each in after}
        rows = []
        if [name for name in old if name in new] != [name for name in new if name in old]:
            rows.append(_row(place, list(old), list(new)))
        for name in [*old, *(name for name in new if name not in old)]:
            rows += differences(old.get(name, _nothing), new.get(name, _nothing), f"{place}[{name}]")
        return rows
    return [] if before == after and type(before) is type(after) else [_row(place, before, after)]


_nothing = object()


def _have_ids(values: list[Any]) -> bool:
    return all(type(each) is dict and "id" in each for each in values)


def _row(place: str, before: Any, after: Any) -> dict[str, str]:
    return {"place": place, "before": _shown(before), "after": _shown(after)}


def _shown(value: Any) -> str:
    if value is _nothing:
        return ""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= shown_chars_max else text[: shown_chars_max - 1] + "…"
