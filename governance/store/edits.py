"""What people have changed of a proposal before it was approved: the newest values of an operation, and everybody who edited it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.kernel import opened
from governance.store.unit import Unit


@dataclass(frozen=True, slots=True)
class Edited:
    """What stands in place of the author's values, and who can hold no key because of it."""

    fields: Mapping[str, str]
    amount_minor: int | None
    editors: tuple[str, ...]


NOTHING = Edited({}, None, ())


def of(unit: Unit, run: str, promise: str) -> Edited:
    """Every edit of an operation put together, the newest value of each field."""
    rows = unit.all(
        "select e.person, p.body from action_edit e join payload p on p.tenant = e.tenant and p.run = e.run and p.digest = e.fields "
        "where e.tenant = :tenant and e.run = :run and e.promise = :promise order by e.n",
        run=run, promise=promise,
    )  # fmt: skip
    fields: dict[str, str] = {}
    amount: int | None = None
    for _, body in rows:
        value: dict[str, Any] = opened(bytes(body))
        fields.update(value["fields"])
        amount = value["amount_minor"] if value["amount_minor"] is not None else amount
    return Edited(fields, amount, tuple(dict.fromkeys(row[0] for row in rows)))


def count(unit: Unit, run: str, promise: str) -> int:
    """How many edits there are."""
    row = unit.one(
        "select count(*) from action_edit where tenant = :tenant and run = :run and promise = :promise",
        run=run,
        promise=promise,
    )
    return int(row[0]) if row else 0
