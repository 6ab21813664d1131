"""Identities: tenant and object names, run ids, promise paths (Dewey), execution and effect keys."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from engine.canonical import digest
from engine.errors import CallerError
from engine.limits import id_chars_max

_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ident = re.compile(rf"[A-Za-z0-9._:/@-]{{1,{id_chars_max}}}")
_run = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, order=True)
class PromiseId:
    """One place in a run's call tree: the root names the run, the path counts children from 0."""

    root: str | int
    path: tuple[int, ...] = ()

    def child(self, n: int) -> PromiseId:
        """The n-th operation below this one."""
        return PromiseId(self.root, (*self.path, n))

    def to_list(self) -> list[str | int]:
        """The wire form: a list that starts with the root."""
        return [self.root, *self.path]

    def __str__(self) -> str:
        return ".".join(str(part) for part in self.to_list())

    @property
    def local(self) -> str:
        """The path without its root, as stored in a column: `0`, `2.1`, empty for the root."""
        return ".".join(str(part) for part in self.path)


def promise_of(run: str | int, local: str) -> PromiseId:
    """The promise that a stored column names."""
    return PromiseId(run, tuple(int(part) for part in local.split(".")) if local else ())


def promise_from_list(value: object) -> PromiseId:
    """Read the wire form; only non-empty lists of an exact root and exact integers are accepted."""
    if type(value) is not list or not value:
        raise CallerError("a promise id is a non-empty list", code="promise_id")
    root, *path = value
    if type(root) is not str and type(root) is not int:
        raise CallerError("a promise id starts with a number or a hex string", code="promise_id")
    for part in path:
        if type(part) is not int or part < 0 or part >= 2**31:
            raise CallerError("a promise id continues with child numbers", code="promise_id")
    return PromiseId(root, tuple(path))


def keyed(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256. What depends on the key alone is worked out once: every step takes some ten of these under the same few keys."""
    begun = _begun(key)
    inner, outer = begun[0].copy(), begun[1].copy()
    inner.update(data)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=64)
def _begun(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\x00")
    return hashlib.sha256(bytes(b ^ 0x36 for b in block)), hashlib.sha256(bytes(b ^ 0x5C for b in block))


def execution_key(hash_key: bytes, tenant: str, workflow: str, trigger_type: str, trigger_ref: str) -> str:
    """What one start is about: the same start twice has the same key. Under the tenant's key, because a reference can be guessed."""
    about = digest("twokeys/execution-key/v1", [tenant, workflow, trigger_type, trigger_ref])
    return keyed(hash_key, about).hex()


def run_id(component_digest: bytes, parent: str, key: str) -> str:
    """The root of a run: hash(component digest, parent, idempotency key), 128 bits in hex."""
    return digest("twokeys/run/v1", [component_digest, parent, key])[:16].hex()


def check_name(value: str, field: str) -> str:
    """A tenant, workflow, group or connector name: what may stand in a URL and in a file name."""
    if not _name.fullmatch(value):
        raise CallerError(
            f"{value!r} is not a name",
            field=field,
            next_step="use 1-63 of a-z 0-9 . _ -, starting with a letter or digit",
        )
    return value


def check_ident(value: str, field: str) -> str:
    """An outside identity (incident number, channel, person): printable ASCII without spaces."""
    if not _ident.fullmatch(value):
        raise CallerError(f"{value[:40]!r} is not an id", field=field, next_step="use 1-128 of A-Z a-z 0-9 . _ : / @ -")
    return value


def check_run(value: str, field: str = "run") -> str:
    """A run id as typed by a person or sent by a client."""
    if not _run.fullmatch(value):
        raise CallerError(
            f"{value[:40]!r} is not a run id",
            field=field,
            next_step="a run id is 32 hexadecimal digits; see `twokeys run list`",
        )
    return value
