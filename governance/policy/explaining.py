"""Why an action was allowed, held or denied: each reason with the place of its rule, and what a draft would say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.canonical import read_json
from engine.errors import CallerError, TwokeysError
from governance.policy import rego
from governance.policy.bundle import Bundle
from governance.policy.replay import Judging, asked_again
from governance.store import drafts
from governance.store.unit import Database


def explained(
    database: Database,
    tenant: str,
    run: str,
    bundle_of: Callable[[str, str], Bundle],
    candidate: Bundle | None = None,
) -> list[dict[str, Any]]:
    """A row for each reason of each verdict of a run, in the order they were given."""
    with database.unit(tenant, write=False) as unit:
        if unit.one("select 1 from run where tenant = :tenant and run = :run", run=run) is None:
            raise CallerError(
                f"there is no run {run!r}", code="unknown_run", field="run", next_step="`twokeys run list`"
            )
        found = drafts.decisions_of_run(unit, run)
    other = _drafted(found, candidate)
    places: dict[str, dict[str, str]] = {}
    rows: list[dict[str, Any]] = []
    for n, one in enumerate(found):
        body = read_json(one.body)
        if one.revision and one.revision not in places:
            places[one.revision] = _places(bundle_of, tenant, one.revision)
        for reason in body["reasons"]:
            rows.append(
                {
                    "step": one.promise, "n": one.n, "purpose": one.purpose, "effect": one.effect, "tier": body["tier"],
                    "keys": body["keys"], "code": reason["code"], "reason": reason["message"],
                    "rule": places.get(one.revision, {}).get(reason["code"], "the product itself"),
                    **({} if other is None else {"draft": other[n]}),
                }
            )  # fmt: skip
    return rows


def _drafted(found: list[drafts.Decision], candidate: Bundle | None) -> list[str] | None:
    if candidate is None:
        return None
    judging = Judging(candidate)
    try:
        said = []
        for one in found:
            try:
                (ruling,) = judging.rulings([asked_again(one.input_bytes)])
            except CallerError as error:
                said.append(f"cannot be asked again: {error.reason}")
            else:
                said.append(f"{ruling['effect']}: {'; '.join(_worded(reason) for reason in ruling['reasons'])}")
        return said
    finally:
        judging.close()


def _worded(reason: Mapping[str, str]) -> str:
    return f"{reason['code']} ({reason['message']})"


def _places(bundle_of: Callable[[str, str], Bundle], tenant: str, revision: str) -> dict[str, str]:
    """Where each code stands in the text of a revision."""
    try:
        modules = bundle_of(tenant, revision).modules
    except TwokeysError:
        return {}  # a revision that cannot be read any more explains nothing, and is no reason to show nothing
    found: dict[str, str] = {}
    for path, text in modules:
        read = rego.Text(path, text)
        for token in read.tokens:
            if token.kind == "string":
                found.setdefault(token.text[1:-1], f"{path}:{read.place(token.at)[0]}")
    return found
