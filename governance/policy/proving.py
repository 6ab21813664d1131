"""What can be said of a draft without a database: its faults, its tests with their coverage, and what it would change."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.canonical import read_json
from engine.catalog.draft import Draft, gone_tests
from engine.errors import CallerError, OperatorError
from engine.gate.question import People, Question, canonical_input
from engine.gate.tightening import Comparison, Side, compare, shipped_rules
from engine.gate.verdict import Policy, judge
from governance import clock
from governance.policy import bundle, house, tenant_data
from governance.policy.bundle import CANARY_TENANT, Bundle
from governance.policy.embedded import Embedded
from governance.policy.faults import Fault, PolicyInvalid
from governance.policy.files import DATA, TABLE, data_place
from governance.policy.reader import Reader

draft_coverage_min = 90.0
shipped_coverage_min = 95.0
_quoted = re.compile(r'"([a-z][a-z0-9_-]{0,63})"')
_row_keys = frozenset(("name", "set", "effect", "codes", "tier", "keys", "groups", "expires_in_s"))


@dataclass(frozen=True, slots=True)
class Tested:
    """How the tests went: empty text for a test that passed, else why it did not."""

    rego: Mapping[str, str]
    table: Mapping[str, str]
    coverage: float  # percent of the policies' lines
    missed: Mapping[str, tuple[int, ...]]
    gone: tuple[str, ...]  # tests of the policy in force that are missing here
    coverage_min: float = draft_coverage_min

    @property
    def failed(self) -> dict[str, str]:
        """Every test that did not pass."""
        return {name: why for name, why in {**self.rego, **self.table}.items() if why}

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong: no failure, enough coverage, no test forgotten, and at least one test."""
        return bool(self.rego) and not self.failed and not self.gone and self.coverage >= self.coverage_min


def bundle_of(draft: Draft, tenant: str, base: Bundle | None) -> Bundle:
    """The bundle that a draft would become: other tenants' data stay as they are in the policy in force."""
    if base is None:
        source = bundle.read_source(bundle.shipped_directory())
        return bundle.build(draft.modules, source.data, {tenant: draft.data})
    others = {name: data for name, data in base.data["tenants"].items() if name not in (CANARY_TENANT, tenant)}
    return bundle.build(draft.modules, {"defaults": {}, "tenants": {}}, {**others, tenant: draft.data})


def check(reader: Reader, draft: Draft, tenant: str, base: Bundle | None = None, *, data_text: str = "") -> Bundle:
    """The bundle of a draft without a fault; PolicyInvalid with every fault of rules and data otherwise.

    `data_text` is the data as its author wrote it, for the places of faults.
    """
    found = []
    for where, reason in tenant_data.faults(draft.data):
        line, column, shown = data_place(data_text, where.lstrip("."))
        found.append(Fault(DATA, line, column, "data", f"{where.lstrip('.')} {reason}", shown))
    owned = {path: text for path, text in _shipped_modules().items() if path in bundle.OWNED}
    try:
        made = bundle_of(draft, tenant, base) if not found else None
    except bundle.BundleInvalid as invalid:
        made = None
        found.append(Fault(invalid.field or "policies", 1, 1, "bundle", invalid.reason))
    rego = {path: text for path, text in draft.files.items() if path != TABLE}
    try:
        read = house.check(reader, rego, owned=owned, data=None if made is None else made.data)
    except PolicyInvalid as invalid:
        raise PolicyInvalid((*found, *invalid.faults)) from None
    if made is not None:
        found += _groups_missing(draft, house.named_groups(read.modules))
    if found or made is None:
        raise PolicyInvalid(found)
    return made


def _groups_missing(draft: Draft, named: frozenset[str]) -> list[Fault]:
    """A group that a rule names but the data does not: a hold that names nobody known is a fault at the worst moment."""
    known = {group for groups in draft.data["approver_groups"].values() for group in groups}
    known |= {group for quorum in draft.data.get("quorums", ()) for group in quorum["counts"]}
    missing = sorted(named - known)
    said = "rules name the group {!r}, which stands nowhere in the data"
    return [Fault(DATA, 1, 1, "group", said.format(group), "", "add it to a tier") for group in missing]


def _shipped_modules() -> Mapping[str, str]:
    return bundle.read_source(bundle.shipped_directory()).modules


def run_tests(
    reader: Reader,
    draft: Draft,
    made: Bundle,
    *,
    base_tests: Mapping[str, str],
    coverage_min: float = draft_coverage_min,
) -> Tested:
    """Run the tests of a draft that has no fault: Rego's own in the engine, the table through the whole gate."""
    rego = {path: text for path, text in draft.files.items() if path != TABLE}
    names = house.tests_of(
        reader.read({path: text for path, text in rego.items() if path.startswith("tests/")}).modules
    )
    before = {path: text for path, text in base_tests.items() if path != TABLE}
    base_names = house.tests_of(reader.read(before).modules) if before else ()
    read = reader.tried(rego, made.data, names)
    if read.faults:
        raise PolicyInvalid(read.faults)
    lines = {path: sides for path, sides in read.lines.items() if path.startswith("twokeys/")}
    reached, missed = sum(len(one) for one, _ in lines.values()), sum(len(other) for _, other in lines.values())
    coverage = 100.0 * reached / (reached + missed) if reached + missed else 0.0
    table = draft.tests.get(TABLE)
    rows = {} if table is None else run_table(made, table)
    gone = gone_tests((*base_names, *_rows_named(base_tests.get(TABLE))), (*names, *_rows_named(table)), draft.dropped)
    return Tested(
        read.tests, rows, coverage, {path: one for path, (_, one) in lines.items() if one}, gone, coverage_min
    )


def binary_tests(binary: Path, draft: Draft) -> dict[str, str]:
    """What `opa test` of a binary says of each Rego test; empty text for one that passed."""
    with tempfile.TemporaryDirectory(prefix="twokeys-policy-") as directory:
        for path, text in draft.files.items():
            if path != TABLE:
                file = Path(directory, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        command = [str(binary.resolve()), "test", "--format=json", "twokeys", "tests"]
        try:
            done = subprocess.run(command, cwd=directory, env={}, capture_output=True, timeout=60, check=False)
            rows = read_json(done.stdout, bytes_max=16_777_216, floats=True)
        except (OSError, subprocess.SubprocessError, CallerError) as error:
            raise OperatorError(f"gave no answer ({error})", field=str(binary), code="no_opa") from None
    found = {}
    for row in rows if type(rows) is list else ():
        name = f"{str(row.get('package', '')).removeprefix('data.')}.{row.get('name', '')}"
        found[name] = "failed" if row.get("fail") or row.get("error") else ""
    return found


# --- the table --------------------------------------------------------------------------------------------------------


def read_table(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The base question and the rows of a table, or a sentence about the first thing that is wrong with it."""
    try:
        value = read_json(text.encode("utf-8"))
    except CallerError as error:
        raise PolicyInvalid([Fault(TABLE, 1, 1, "table", error.reason)]) from None
    if type(value) is not dict or set(value) != {"base", "cases"} or type(value["cases"]) is not list:
        raise PolicyInvalid([Fault(TABLE, 1, 1, "table", "is an object with exactly base and cases")])
    for row in value["cases"]:
        fits = type(row) is dict and {"name", "set", "effect"} <= set(row) <= _row_keys
        if not fits or type(row["name"]) is not str or type(row["set"]) is not dict:
            said = "a row has a name, what it sets, and its effect; besides " + ", ".join(
                sorted(_row_keys - {"name", "set", "effect"})
            )
            raise PolicyInvalid([Fault(TABLE, 1, 1, "table", said)])
    return value["base"], value["cases"]


def _rows_named(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(f"table: {row['name']}" for row in read_table(text)[1])


def run_table(made: Bundle, text: str) -> dict[str, str]:
    """Each row against the bundle, through the same gate as a real action."""
    base, rows = read_table(text)
    engine = Embedded(deadline_seconds=5.0)
    try:
        engine.load(made)
        groups = _groups_in(made)
        return {f"table: {row['name']}": _row(engine, made.revision, base, row, groups) for row in rows}
    finally:
        engine.close()


def _groups_in(made: Bundle) -> set[str]:
    """Every group of lower case that the bundle names anywhere: a table is about policy, not about who is on holiday."""
    found = set(_quoted.findall("\n".join(text for _, text in made.modules)))
    for data in made.data["tenants"].values():
        found |= {group for groups in data["approver_groups"].values() for group in groups}
        found |= {group for quorum in data.get("quorums", ()) for group in quorum["counts"]}
    return found


def _row(
    policy: Policy, revision: str, base: Mapping[str, Any], row: Mapping[str, Any], groups: Collection[str]
) -> str:
    document: dict[str, Any] = json.loads(json.dumps(base))
    for path, value in row["set"].items():
        *parents, last = path.split(".")
        at = document
        for name in parents:
            at = at.get(name, {}) if type(at) is dict else {}
        if type(at) is not dict or last not in at:
            return f"there is no {path} in a question"
        at[last] = value
    try:
        question = _question(document, groups)
    except CallerError as error:
        return error.reason
    verdict = judge(question, policy, accepted=(revision,), monotonic=clock.monotonic).verdict
    said = {
        "effect": verdict.effect, "codes": [reason.code for reason in verdict.reasons], "tier": verdict.tier,
        "keys": verdict.keys, "groups": list(verdict.groups), "expires_in_s": verdict.expires_in_s,
    }  # fmt: skip
    wrong = [
        f"{name} is {said[name]}, expected {row[name]}" for name in said if name in row and row[name] != said[name]
    ]
    return "; ".join(wrong)


def _question(document: dict[str, Any], groups: Collection[str]) -> Question:
    data = canonical_input(document)
    action = document["action"]
    # Nobody is asked here: each group has people enough for any quorum.
    people = People({group: frozenset(f"{group}-{n}" for n in range(20)) for group in groups}, frozenset())
    subject = {name: action[name] for name in ("kind", "risk_tier", "reversible")}
    return Question(data, document["request"]["id"], action["sha256"], "enforce", subject, people)


# --- what it would change -----------------------------------------------------------------------------------------------


def compared(reader: Reader, tenant: str, base: Bundle, made: Bundle) -> Comparison:
    """Whether the change from one bundle to another provably only tightens what this tenant's actions meet."""
    known = shipped_rules(_trees(reader, _shipped_modules()))
    return compare(_side(reader, base, tenant), _side(reader, made, tenant), known)


def _side(reader: Reader, one: Bundle, tenant: str) -> Side:
    return Side(_trees(reader, dict(one.modules)), one.data["tenants"].get(tenant, {}))


def _trees(reader: Reader, modules: Mapping[str, str]) -> dict[str, Any]:
    read = reader.read(modules)
    if read.faults:
        raise PolicyInvalid(read.faults)
    return {path: module.tree for path, module in read.modules.items()}
