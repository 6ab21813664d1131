"""The policy bundle: modules and merged tenant data as one deterministic archive, named by the digest of its content."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from engine.canonical import digest, read_json
from engine.errors import AuthorError, CallerError
from engine.ids import check_name
from governance.policy import tenant_data

ROOTS = ("tenants", "twokeys")
REQUIRED = ("twokeys/base.rego", "twokeys/guard.rego", "twokeys/main.rego", "twokeys/overlay.rego")
OWNED = ("twokeys/guard.rego", "twokeys/main.rego")  # the product's own, which no administrator writes
CANARY_TENANT = "twokeys-canary"
source_bytes_max = 1_048_576

_module_path = re.compile(r"twokeys/[a-z][a-z0-9_]{0,40}\.rego")
_package = re.compile(r"^package[ \t]+([a-z0-9_.]+)[ \t]*$", re.MULTILINE)
# What the canaries are asked about; no tenant can have this name's data, and no request can come from it.
_canary_data = {
    "enabled": True,
    "connectors": ["canary"],
    "allowed_operations": {"canary": ["sing"]},
    "caps": {"max_writes_per_run": 1, "max_amount_minor": 0},
    "approver_groups": {"low": ["canary"], "med": ["canary"], "high": ["canary"]},
    "approval_ttl_s": {"low": 3600, "med": 3600, "high": 1800},
    "blocked_targets": [],
    "after_hours_hold": False,
}


class BundleInvalid(AuthorError):
    """The author of a policy must act: the bundle cannot be built from these files."""

    code = "invalid_policy"


@dataclass(frozen=True, slots=True)
class Source:
    """Policy files as read: modules by path, and the data with `defaults` and `tenants`."""

    modules: Mapping[str, str]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bundle:
    """What every engine loads: `revision` is the digest of the content, `sha256` that of the archive's bytes."""

    modules: tuple[tuple[str, str], ...]
    data: Mapping[str, Any]
    revision: str
    archive: bytes
    sha256: str

    def files(self) -> tuple[tuple[str, str, bytes | None], ...]:
        """(path, sha256, text) of what the revision is the digest of; the data has other tenants' parts, so only its digest is told."""
        data = hashlib.sha256(_json({"tenants": self.data["tenants"]})).hexdigest()
        texts = [(path, text.encode("utf-8")) for path, text in self.modules]
        return (*((path, hashlib.sha256(text).hexdigest(), text) for path, text in texts), ("data.json", data, None))

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants that this bundle knows."""
        return tuple(sorted(name for name in self.data["tenants"] if name != CANARY_TENANT))


def shipped_directory() -> Path:
    """Where the product's own policies lie, beside the packages in a checkout and in an installation."""
    return Path(__file__).resolve().parents[2] / "policies"


def read_source(directory: Path) -> Source:
    """The modules and data of a policy directory; its tests and schema are not part of a bundle."""
    modules: dict[str, str] = {}
    try:
        data = read_json((directory / "data.json").read_bytes(), bytes_max=source_bytes_max)
        for file in sorted((directory / "twokeys").glob("*.rego")):
            modules[f"twokeys/{file.name}"] = file.read_text(encoding="utf-8")
    except OSError as error:
        _bad(f"{error.filename or directory}", f"cannot be read ({error.strerror})")
    except UnicodeDecodeError as error:
        _bad(str(directory), f"is not UTF-8 at byte {error.start}")
    except CallerError as error:
        _bad("data.json", error.reason)
    if type(data) is not dict:
        _bad("data.json", "is an object with defaults and tenants")
    return Source(modules, data)


def build(modules: Mapping[str, str], data: Mapping[str, Any], tenants: Mapping[str, Mapping[str, Any]]) -> Bundle:
    """One bundle for these tenants besides those in the data; each tenant is the defaults, overlaid with its own part."""
    _check_modules(modules)
    ordered = tuple(sorted(modules.items()))
    merged = {"tenants": _merge_tenants(data, tenants)}
    texts = [(path, text.encode("utf-8")) for path, text in ordered]
    content = [[path, hashlib.sha256(text).hexdigest()] for path, text in texts]
    content.append(["data.json", hashlib.sha256(_json(merged)).hexdigest()])
    revision = digest("twokeys/policy/v1", sorted(content)).hex()
    complete = {**merged, "twokeys": {"meta": {"revision": revision}}}
    manifest = {"revision": revision, "roots": list(ROOTS), "rego_version": 1}
    archive = _gzip(_tar([(".manifest", _json(manifest)), ("data.json", _json(complete)), *texts]))
    return Bundle(ordered, complete, revision, archive, hashlib.sha256(archive).hexdigest())


def shipped(tenants: Mapping[str, Mapping[str, Any]]) -> Bundle:
    """The product's own policies for these tenants."""
    source = read_source(shipped_directory())
    return build(source.modules, source.data, tenants)


def complete_data(data: Mapping[str, Any], own: Mapping[str, Any], tenant: str) -> dict[str, Any]:
    """A tenant's complete policy data: objects are merged, everything else is replaced by the tenant's own."""
    merged: dict[str, Any] = _merge(data["defaults"], own)
    _check_tenant(merged, tenant)
    return merged


def signed(bundle: Bundle, scope: str, sign: Callable[[bytes], bytes]) -> bytes:
    """The same content as an archive that an OPA server takes from a shelf: with `.signatures.json`, an ES256 token over every file.

    `scope` is the tenant: a server that is set up for one takes no other's. The signature is deterministic, so these bytes are too.
    """
    manifest = {"revision": bundle.revision, "roots": list(ROOTS), "rego_version": 1}
    files = [(".manifest", _json(manifest)), ("data.json", _json(bundle.data))]
    files += [(path, text.encode("utf-8")) for path, text in bundle.modules]
    listed = [
        {"name": path, "hash": _opa_hash(path, content), "algorithm": "SHA-256"} for path, content in sorted(files)
    ]
    token = b".".join(
        _base64url(_json(part)) for part in ({"alg": "ES256", "typ": "JWT"}, {"files": listed, "scope": scope})
    )
    whole = token + b"." + _base64url(sign(token))
    return _gzip(_tar([*files, (".signatures.json", _json({"signatures": [whole.decode("ascii")]}))]))


def _opa_hash(path: str, content: bytes) -> str:
    """OPA hashes JSON as sorted, compact JSON, which is what ours is but for two characters, and all else as it is."""
    if not path.endswith(".rego"):
        content = content.replace("\u2028".encode(), b"\\u2028").replace("\u2029".encode(), b"\\u2029")
    return hashlib.sha256(content).hexdigest()


def _base64url(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


# --- data ---------------------------------------------------------------------------------------------------------


def _merge_tenants(data: Mapping[str, Any], tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if set(data) != {"defaults", "tenants"} or type(data["defaults"]) is not dict or type(data["tenants"]) is not dict:
        _bad("data.json", "is an object with exactly defaults and tenants")
    result = {CANARY_TENANT: _canary_data}
    for name in sorted({*data["tenants"], *tenants}):
        if name == CANARY_TENANT:
            _bad(name, "is a name of the product")
        try:
            check_name(name, "tenant")
        except CallerError as error:
            _bad("tenants", error.reason)
        result[name] = complete_data(data, _merge(data["tenants"].get(name, {}), tenants.get(name, {})), name)
    return result


def _merge(under: Any, over: Any) -> Any:
    if isinstance(under, Mapping) and isinstance(over, Mapping):
        return {
            name: _merge(under[name], over[name]) if name in under and name in over else over.get(name, under.get(name))
            for name in {**under, **over}
        }
    return over


def _check_tenant(data: Mapping[str, Any], tenant: str) -> None:
    found = tenant_data.faults(data, f"tenants.{tenant}")
    if found:
        place, reason = found[0]
        more = f" (and {len(found) - 1} more faults)" if len(found) > 1 else ""
        _bad(place, reason + more)


def _check_modules(modules: Mapping[str, str]) -> None:
    missing = [path for path in REQUIRED if path not in modules]
    if missing:
        _bad(missing[0], "is missing")
    if sum(len(text.encode("utf-8")) for text in modules.values()) > source_bytes_max:
        _bad("policies", f"are more than {source_bytes_max} bytes together")
    for path, text in modules.items():
        package = _package.search(text)
        if not _module_path.fullmatch(path):
            _bad(path, "is not a module's path: twokeys/<name>.rego")
        if package is None or package[1] != path.removesuffix(".rego").replace("/", "."):
            _bad(path, f"does not say `package {path.removesuffix('.rego').replace('/', '.')}`")


def _bad(where: str, reason: str) -> NoReturn:
    raise BundleInvalid(reason, field=where)


# --- bytes --------------------------------------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")


def _tar(files: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _gzip(content: bytes) -> bytes:
    """gzip without compression, so that no version of a compressor can change the archive's digest."""
    out = bytearray(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
    blocks = [content[start : start + 65_535] for start in range(0, len(content), 65_535)] or [b""]
    for n, block in enumerate(blocks):
        out += struct.pack("<BHH", n == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
    return bytes(out + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF))
