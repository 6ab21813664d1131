"""The witness: a process of its own, best run by the customer, that cosigns a log's checkpoint only when it continues the last one."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from engine.errors import BrokenLedger, OperatorError
from engine.ledger.notes import COSIGNATURE, VerifierKey, cosigned_text, read_vkey, write_vkey
from engine.ledger.witnessing import Refused, Seen, cosignature, read_submission, refusal, submission_bytes_max
from governance import clock, log
from governance.keys import Signer, signer_of

_say = log.get("witness")
request_seconds_max = 10
_table = "create table if not exists seen (origin text primary key, size integer not null, root blob not null, at integer not null)"


class Witness:
    """What was cosigned, in a file of its own: one row per log, compared and set under one lock, on disk before it is signed."""

    def __init__(self, directory: Path, name: str, now: Callable[[], int] = clock.epoch_seconds) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = directory / "seen.sqlite"
        self._lock = threading.Lock()
        self._now = now
        self.name = name
        self._signer = _signer(directory / "key")
        with closing(self._open()) as database:
            database.execute(_table)

    @property
    def vkey(self) -> str:
        """How a trust policy names this witness."""
        return write_vkey(self.name, self._signer.public, COSIGNATURE)

    def seen(self, origin: str) -> Seen | None:
        """The newest checkpoint of this log that was cosigned."""
        with closing(self._open()) as database:
            row = database.execute("select size, root from seen where origin = ?", (origin,)).fetchone()
        return None if row is None else Seen(int(row[0]), bytes(row[1]))

    def cosign(self, body: bytes, keys_of: Callable[[str], Collection[VerifierKey]]) -> bytes | Refused:
        """The cosignature's line, or why there is none."""
        try:
            submission = read_submission(body)
        except BrokenLedger as error:
            return Refused(400, error.reason)
        new, origin = submission.checkpoint, submission.checkpoint.origin
        with self._lock, closing(self._open()) as database:
            # The file's own lock as well: a second witness on the same file by mistake must not cosign a fork.
            database.execute("begin immediate")
            row = database.execute("select size, root from seen where origin = ?", (origin,)).fetchone()
            refused = refusal(submission, keys_of(origin), None if row is None else Seen(int(row[0]), bytes(row[1])))
            if refused is not None:
                database.rollback()
                return refused
            seconds = self._now()
            database.execute(
                "insert into seen (origin, size, root, at) values (?, ?, ?, ?) on conflict (origin) do update "
                "set size = excluded.size, root = excluded.root, at = excluded.at",
                (origin, new.size, new.root, seconds),
            )
            database.commit()
        signed = self._signer.sign(cosigned_text(seconds, submission.note.text))
        return cosignature(self.name, self._signer.public, signed, seconds)

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, timeout=5, isolation_level=None)
        database.execute("pragma synchronous = full")
        return database


def logs_from(texts: Collection[str]) -> Mapping[str, tuple[VerifierKey, ...]]:
    """The keys of each log, from vkeys: a rotated log has several."""
    found: dict[str, tuple[VerifierKey, ...]] = {}
    for text in texts:
        key = read_vkey(text)
        if key.kind == COSIGNATURE:
            raise OperatorError(f"{key.name} is a witness's key, not a log's", code="bad_setting", field="--log")
        found[key.name] = (*found.get(key.name, ()), key)
    return found


def server(witness: Witness, logs: Mapping[str, tuple[VerifierKey, ...]], host: str, port: int) -> ThreadingHTTPServer:
    """An HTTP server that answers add-checkpoint and nothing else; the caller runs and closes it."""

    class Door(BaseHTTPRequestHandler):
        timeout = request_seconds_max
        server_version, sys_version = "twokeys-witness", ""

        def do_POST(self) -> None:
            if self.path != "/add-checkpoint":
                return self._answer(404, b"there is only /add-checkpoint\n")
            declared = self.headers.get("content-length", "")
            if not (declared.isascii() and declared.isdigit()) or int(declared) > submission_bytes_max:
                return self._answer(400, b"a submission declares its length, and is small\n")
            found = witness.cosign(self.rfile.read(int(declared)), lambda origin: logs.get(origin, ()))
            if isinstance(found, bytes):
                return self._answer(200, found)
            _say.warning("refused", status=found.status, reason=found.reason)
            if found.seen is not None:
                return self._answer(found.status, f"{found.seen}\n".encode(), "text/x.tlog.size")
            return self._answer(found.status, found.reason.encode() + b"\n")

        def do_GET(self) -> None:
            if self.path == "/healthz":
                return self._answer(200, b"ok\n")
            return self._answer(404, b"there is only /add-checkpoint\n")

        def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Requests are not worth a line; refusals have one."""

    return ThreadingHTTPServer((host, port), Door)


def _signer(file: Path) -> Signer:
    """The witness's own key, made at its first start; whoever reads the file can sign in its name."""
    if not file.exists():
        new = file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(clock.random_bytes(32).hex().encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        os.link(new, file)  # fails when another process was first, instead of replacing its key
        new.unlink()
    try:
        return signer_of(bytes.fromhex(file.read_text("ascii").strip()))
    except ValueError:
        raise OperatorError(
            "holds no key", code="bad_key", field=str(file), next_step="put the witness's own file back"
        ) from None
