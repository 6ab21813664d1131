"""A draft as a directory that a person edits: modules, tests, the tenant's data, and which draft it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.canonical import read_json
from engine.catalog.draft import Draft
from engine.errors import CallerError, OperatorError
from engine.limits import policy_draft_bytes_max
from governance.policy.bundle import OWNED, Bundle, BundleInvalid, complete_data, read_source, shipped_directory

DATA, NOTE, TABLE = "tenant.json", "draft.json", "tests/table.json"


@dataclass(frozen=True, slots=True)
class Directory:
    """What was read: the draft, and what the note beside it says; a directory without a note belongs to no draft."""

    path: Path
    draft: Draft
    name: str = ""
    tenant: str = ""
    base_revision: str = ""
    data_text: str = ""  # of tenant.json, so that a fault of the data has its line


def read_directory(path: Path) -> Directory:
    """The draft in a directory; the product's own `policies` may be given too."""
    if not path.is_dir():
        raise CallerError("is no directory", field=str(path), next_step="make one with `twokeys policy new`")
    modules, tests = _texts(path, "twokeys", "*.rego"), _texts(path, "tests", "*.rego")
    if (path / TABLE).is_file():
        tests[TABLE] = _text(path / TABLE)
    note = _json(path / NOTE) if (path / NOTE).is_file() else {}
    if type(note) is not dict or not all(
        type(note.get(name, "")) is str for name in ("draft", "tenant", "base_revision")
    ):
        raise CallerError("is not the note of a draft", field=str(path / NOTE))
    dropped = note.get("dropped_tests", [])
    if type(dropped) is not list or not all(type(name) is str for name in dropped):
        raise CallerError("dropped_tests is a list of names", field=str(path / NOTE))
    draft = Draft(modules, tests, _data(path), tuple(dropped))
    data_text = _text(path / DATA) if (path / DATA).is_file() else ""
    return Directory(
        path, draft, note.get("draft", ""), note.get("tenant", ""), note.get("base_revision", ""), data_text
    )


def data_place(text: str, path: str) -> tuple[int, int, str]:
    """Line, column and the line itself of a part of the data, `caps.max_writes_per_run`; of what holds it when it is not there."""
    at = 0
    for name in path.replace("[", ".[").split("."):
        found = text.find(f'"{name}"', at) if not name.startswith("[") else -1
        at = found if found >= 0 else at
    line = text.count("\n", 0, at) + 1
    return line, at - (text.rfind("\n", 0, at) + 1) + 1, text.split("\n")[line - 1]


def write_directory(path: Path, draft: Draft, *, name: str, tenant: str, base_revision: str) -> list[str]:
    """Write a draft into a new or empty directory; the files that were written."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CallerError("is not empty", field=str(path), next_step="name a new directory with --to")
    return rewrite_directory(path, draft, name=name, tenant=tenant, base_revision=base_revision)


def rewrite_directory(path: Path, draft: Draft, *, name: str, tenant: str, base_revision: str) -> list[str]:
    """Write a draft over what a directory says; the files that were written. A file that is no part of a draft stays."""
    note = {"draft": name, "tenant": tenant, "base_revision": base_revision, "dropped_tests": list(draft.dropped)}
    files = {**draft.files, DATA: _shown(draft.data), NOTE: _shown(note)}
    try:
        for old in (*path.glob("twokeys/*.rego"), *path.glob("tests/*.rego")):
            if old.relative_to(path).as_posix() not in files:
                old.unlink()
        for file, text in sorted(files.items()):
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot be written: {error.strerror}", field=str(path), code="unwritable") from None
    return sorted(files)


def shipped_tests() -> dict[str, str]:
    """The tests of the product's own policies."""
    found = _texts(shipped_directory(), "tests", "*.rego")
    return {**found, TABLE: _text(shipped_directory() / TABLE)}


def starting_draft(base: Bundle, tenant: str, tests: Mapping[str, str]) -> Draft:
    """A draft that says what a revision says; the product's own files are those of this release."""
    own = read_source(shipped_directory()).modules
    modules = {path: own[path] if path in OWNED else text for path, text in base.modules}
    data = base.data["tenants"].get(tenant)
    if data is None:
        raise CallerError(f"the policy in force knows no tenant {tenant!r}", code="unknown_tenant", field="tenant")
    return Draft(modules, dict(tests), data)


def _data(path: Path) -> dict[str, Any]:
    if (path / DATA).is_file():
        data = _json(path / DATA)
        if type(data) is not dict:
            raise BundleInvalid("is an object", field=DATA)
        return data
    return complete_data(read_source(path).data, {}, "defaults")


def _texts(path: Path, below: str, pattern: str) -> dict[str, str]:
    return {f"{below}/{file.name}": _text(file) for file in sorted((path / below).glob(pattern))}


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > policy_draft_bytes_max:
            raise BundleInvalid(
                f"is {file.stat().st_size} bytes; a whole draft is at most {policy_draft_bytes_max}", field=str(file)
            )
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot be read: {error.strerror}", field=str(file), code="unreadable") from None
    except UnicodeDecodeError as error:
        raise BundleInvalid(f"is not UTF-8 at byte {error.start}", field=str(file)) from None


def _json(file: Path) -> Any:
    try:
        return read_json(_text(file).encode("utf-8"))
    except CallerError as error:
        raise BundleInvalid(error.reason, field=str(file)) from None


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
