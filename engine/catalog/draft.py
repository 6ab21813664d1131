"""A draft of a policy: the files an author may change, their tests and the tenant's data, in one canonical form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.canonical import decode, digest, encode
from engine.errors import CallerError
from engine.limits import policy_draft_bytes_max

DRAFT_STATES = ("open", "published", "withdrawn")


@dataclass(frozen=True)
class Draft:
    """What would come into force: modules and tests by path, the tenant's complete data, and tests that were dropped on purpose."""

    modules: Mapping[str, str]
    tests: Mapping[str, str]
    data: Mapping[str, Any]
    dropped: tuple[str, ...] = ()

    @cached_property
    def body(self) -> bytes:
        """The bytes that are stored and hashed."""
        value = {
            "modules": dict(self.modules),
            "tests": dict(self.tests),
            "data": dict(self.data),
            "dropped": sorted(self.dropped),
        }
        body = encode(value)
        if len(body) > policy_draft_bytes_max:
            raise CallerError(
                f"a draft is {len(body)} bytes; at most {policy_draft_bytes_max}",
                code="too_large",
                field="draft",
                next_step="keep examples and generated tests elsewhere",
            )
        return body

    @cached_property
    def digest(self) -> bytes:
        """What names exactly this content."""
        return digest("twokeys/draft/v1", self.body)

    @property
    def files(self) -> dict[str, str]:
        """Modules and tests together."""
        return {**self.modules, **self.tests}


def draft_from(body: bytes) -> Draft:
    """The draft that these stored bytes hold."""
    value = decode(body)
    if type(value) is not dict or set(value) != {"modules", "tests", "data", "dropped"}:
        raise CallerError("not a draft", code="not_a_draft")
    return Draft(value["modules"], value["tests"], value["data"], tuple(value["dropped"]))


def gone_tests(before: tuple[str, ...], after: tuple[str, ...], dropped: tuple[str, ...]) -> tuple[str, ...]:
    """Tests that the policy in force has, and that are neither here nor dropped by name: nothing is forgotten silently."""
    return tuple(sorted(set(before) - set(after) - set(dropped)))


def passage(draft: Draft, code: str) -> str:
    """What of a draft says this code: every statement of the rules with it, and everything of the data that is named by it."""
    said = []
    for path in sorted(draft.modules):
        for statement in _statement.split(draft.modules[path]):
            if f'"{code}"' in statement:
                said.append(f"{path}\n{statement.strip()}")
    said += sorted(encode(one).hex() for one in _named(dict(draft.data), code))
    return "\n\n".join(said)


# A statement of Rego begins at the left margin with a word; what closes it begins there with a brace.
_statement = re.compile(r"^(?=[a-z])", re.MULTILINE)


def _named(value: Any, code: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, Mapping):
        if value.get("code") == code:
            yield dict(value)
        for inner in value.values():
            yield from _named(inner, code)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(inner, code)


def rebased(origin: Draft, live: Draft, mine: Draft) -> Draft:
    """The draft with what changed in force since it was begun; CallerError names what both changed."""
    clashes: list[str] = []

    def merged(
        path: str, old: Mapping[str, object], now: Mapping[str, object], own: Mapping[str, object]
    ) -> dict[str, object]:
        found: dict[str, object] = {}
        for name in sorted({*old, *now, *own}):
            was, theirs, ours = (side.get(name) for side in (old, now, own))
            if ours in (was, theirs):
                value = theirs
            elif theirs == was:
                value = ours
            elif isinstance(was, Mapping) and isinstance(theirs, Mapping) and isinstance(ours, Mapping):
                value = merged(f"{path}{name}.", was, theirs, ours)
            else:
                clashes.append(f"{path}{name}")
                continue
            if value is not None:
                found[name] = value
        return found

    modules = merged("", origin.modules, live.modules, mine.modules)
    tests = merged("", origin.tests, live.tests, mine.tests)
    data = merged("tenant.json ", origin.data, live.data, mine.data)
    if clashes:
        raise CallerError(
            f"changed in force and in the draft: {', '.join(clashes)}", code="clash", field="draft",
            next_step="take these over by hand: begin a new draft and make the change again there",
        )  # fmt: skip
    return Draft({k: str(v) for k, v in modules.items()}, {k: str(v) for k, v in tests.items()}, data, mine.dropped)
