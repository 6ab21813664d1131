"""The same files give the same bytes and the same revision, and data that would weaken a rule silently is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from governance.policy import bundle
from governance.policy.bundle import BundleInvalid, build, read_source, shipped, shipped_directory

SOURCE = read_source(shipped_directory())


def data(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(json.dumps(SOURCE.data))
    whole["defaults"].update(changes)
    return whole


def test_the_same_content_has_the_same_bytes_in_any_order() -> None:
    """Digest and archive depend on nothing but the content."""
    one = build(SOURCE.modules, SOURCE.data, {"b": {}, "a": {}})
    other = build(dict(reversed(list(SOURCE.modules.items()))), SOURCE.data, {"a": {}, "b": {}})
    assert (one.archive, one.revision, one.sha256) == (other.archive, other.revision, other.sha256)
    assert one.sha256 == hashlib.sha256(one.archive).hexdigest()
    assert one.revision != shipped({"a": {}}).revision
    assert one.revision != build({**SOURCE.modules, "twokeys/base.rego": SOURCE.modules["twokeys/base.rego"] + "\n"},
                                 SOURCE.data, {"b": {}, "a": {}}).revision  # fmt: skip


def test_the_archive_is_a_bundle_that_anybody_can_read() -> None:
    """gzip and tar of the standard library find the manifest, the data and every module, sorted and without a date."""
    one = shipped({"acme": {}})
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(one.archive))) as tar:
        names = tar.getnames()
        content = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
        assert {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in tar} == {(0, 0, "", 0o644)}
    assert names == sorted(names) == [".manifest", "data.json", *sorted(SOURCE.modules)]
    assert json.loads(content[".manifest"]) == {
        "revision": one.revision,
        "roots": ["tenants", "twokeys"],
        "rego_version": 1,
    }
    inside = json.loads(content["data.json"])
    assert inside["twokeys"]["meta"]["revision"] == one.revision
    assert content["twokeys/main.rego"].decode() == SOURCE.modules["twokeys/main.rego"]


def test_a_big_archive_has_more_than_one_block() -> None:
    """The uncompressed gzip form is right across its 64 KiB blocks too."""
    modules = {**SOURCE.modules, "twokeys/long.rego": "package twokeys.long\n" + "# comment\n" * 20_000}
    assert gzip.decompress(build(modules, SOURCE.data, {}).archive).count(b"# comment") == 20_000


def test_a_tenant_is_the_defaults_with_its_own_part_over_them() -> None:
    """Objects are merged, lists are replaced, and nothing leaks to another tenant."""
    one = shipped({"acme": {"caps": {"max_writes_per_run": 3}, "connectors": ["slack"]}, "demo": {"enabled": False}})
    acme = one.data["tenants"]["acme"]
    assert acme["caps"] == {"max_writes_per_run": 3, "max_amount_minor": 0}
    assert acme["connectors"] == ["slack"]
    assert acme["approval_ttl_s"] == {"low": 3600, "med": 3600, "high": 1800}
    assert one.data["tenants"]["demo"]["enabled"] is False
    assert one.data["tenants"]["test"]["connectors"] == ["bank", "servicenow", "slack"]
    assert one.tenants == ("acme", "demo", "test", "test-off")
    assert SOURCE.data["defaults"]["caps"]["max_writes_per_run"] == 50


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"more": 1}, "more"),
        ({"enabled": 1}, "enabled"),
        ({"after_hours_hold": None}, "after_hours_hold"),
        ({"connectors": "slack"}, "connectors"),
        ({"connectors": ["slack", "slack"]}, "connectors"),
        ({"connectors": [1]}, "connectors"),
        ({"allowed_operations": ["post"]}, "allowed_operations"),
        ({"allowed_operations": {"slack": "post"}}, "allowed_operations.slack"),
        ({"caps": {}}, "caps"),
        ({"caps": {"max_writes_per_run": "50", "max_amount_minor": 0}}, "max_writes_per_run"),
        ({"caps": {"max_writes_per_run": True, "max_amount_minor": 0}}, "max_writes_per_run"),
        ({"caps": {"max_writes_per_run": -1, "max_amount_minor": 0}}, "max_writes_per_run"),
        ({"approval_ttl_s": {"low": 59, "med": 60, "high": 60}}, "approval_ttl_s.low"),
        ({"approval_ttl_s": {"low": 604_800, "med": 60, "high": 60}}, "approval_ttl_s.low"),
        ({"approver_groups": {"low": [], "med": ["a"], "high": ["a"]}}, "approver_groups.low"),
        ({"approver_groups": {"low": ["a"], "med": ["a"]}}, "approver_groups"),
        ({"approver_groups": {"low": ["a"], "med": ["A B"], "high": ["a"]}}, "approver_groups.med"),
        ({"blocked_targets": {}}, "blocked_targets"),
    ],
)
def test_data_of_the_wrong_shape_is_refused_with_its_place(changes: dict[str, Any], says: str) -> None:
    """A rule over it would be silent instead of wrong."""
    with pytest.raises(BundleInvalid) as refused:
        build(SOURCE.modules, data(**changes), {})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ({"twokeys/guard.rego": None}, "guard.rego"),
        ({"../x.rego": "package x"}, "../x.rego"),
        ({"twokeys/new.rego": "package twokeys.base\n"}, "new.rego"),
        ({"twokeys/new.rego": "# no package"}, "new.rego"),
        ({"twokeys/new.rego": "package twokeys.new\n# " + "x" * 1_100_000}, "bytes together"),
    ],
)
def test_modules_that_cannot_be_a_bundle_are_refused(modules: dict[str, str | None], says: str) -> None:
    """The product's own files are there, and every file is the package that its path says."""
    merged = {path: text for path, text in {**SOURCE.modules, **modules}.items() if text is not None}
    with pytest.raises(BundleInvalid) as refused:
        build(merged, SOURCE.data, {})
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["Acme", "a b", "", "twokeys-canary"])
def test_a_tenant_needs_a_name_of_ours(name: str) -> None:
    """And none takes the canaries' place."""
    with pytest.raises(BundleInvalid):
        shipped({name: {}})


@pytest.mark.parametrize(
    "text", [None, b"", b"[]", b'{"defaults":{}}', b'{"defaults":{},"defaults":{}}', b"{", b"\xff"]
)
def test_a_directory_that_is_no_policy_is_refused(tmp_path: Path, text: bytes | None) -> None:
    """Missing, empty, malformed or doubled data gets a sentence, not a traceback."""
    (tmp_path / "twokeys").mkdir()
    for path, module in SOURCE.modules.items():
        (tmp_path / path).write_text(module)
    if text is not None:
        (tmp_path / "data.json").write_bytes(text)

    def load() -> None:
        source = read_source(tmp_path)
        build(source.modules, source.data, {})

    with pytest.raises(BundleInvalid):
        load()


def test_the_entry_point_is_the_one_of_the_design() -> None:
    """Nothing an administrator writes can loosen another rule: main only adds up, and asks them only about what goes outside."""
    main = SOURCE.modules["twokeys/main.rego"]
    assert main.startswith("package twokeys.main\n\nimport data.twokeys.base\n")
    assert main.count(" contains ") == 10
    for theirs in ("base.deny", "overlay.deny", "base.hold", "overlay.hold", "base.grant", "base.obligations"):
        assert re.search(rf"contains (\w) if {{\n\tguard.outside\n\tsome \1 in {theirs}\n}}", main), theirs
        assert main.count(theirs) == 1
    assert tuple(sorted(SOURCE.modules)) == bundle.REQUIRED
