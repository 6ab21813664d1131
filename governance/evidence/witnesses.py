"""Shows every signed checkpoint to the witnesses, keeps their cosignatures, and stops a log that they saw further than we have it."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.errors import BrokenLedger, OperatorError
from engine.ledger.notes import COSIGNATURE, VerifierKey, cosigned_at, read_note, read_vkey
from engine.ledger.witnessing import write_submission
from governance import log, metrics
from governance.store import cosigned, trees
from governance.store.dispatch import Dispatch
from governance.store.entries import Checkpoint
from governance.store.unit import Database

_say = log.get("witnesses")
answer_bytes_max = 65_536
seconds_max = 5


@dataclass(frozen=True, slots=True)
class Address:
    """A witness and where it listens."""

    key: VerifierKey
    url: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a witness answered: an HTTP status and a body."""

    status: int
    body: bytes


Send = Callable[[Address, bytes], Told]


def addresses(text: str) -> tuple[Address, ...]:
    """The witnesses of TWOKEYS_WITNESSES: `VKEY URL`, one after the other, apart by semicolons."""
    found: list[Address] = []
    for part in filter(None, (one.strip() for one in text.split(";"))):
        words = part.split()
        if len(words) != 2 or urlsplit(words[1]).scheme not in ("http", "https") or not urlsplit(words[1]).hostname:
            raise _setting(f"{part[:60]!r} is not `VKEY URL`")
        try:
            key = read_vkey(words[0])
        except BrokenLedger as error:
            raise _setting(error.reason) from None
        if key.kind != COSIGNATURE or key.name in {one.key.name for one in found}:
            raise _setting(f"{key.name} is no witness's key, or stands twice")
        found.append(Address(key, words[1].rstrip("/")))
    return tuple(found)


def _setting(reason: str) -> OperatorError:
    step = "write what `twokeys-witness` printed when it started, a space, and its address"
    return OperatorError(reason, code="bad_setting", field="TWOKEYS_WITNESSES", next_step=step)


class Witnesses:
    """Any number of processes may run one: a witness compares and sets, and a cosignature is stored once."""

    def __init__(self, database: Database, addresses: Sequence[Address], send: Send | None = None) -> None:
        self._database = database
        self._dispatch = Dispatch(database)
        self._addresses = tuple(addresses)
        self._send = send or ask
        self._asked: set[tuple[str, str]] = set()  # by this process, whatever it remembers of earlier ones
        self._met: set[str] = set()
        self._stopped: set[str] = set()

    def may_sign(self, tenant: str) -> bool:
        """Whether nothing that a witness saw speaks against going on with this log.

        Each process asks once before it signs: a database that was restored from a backup would fork the log. A witness
        that is silent speaks against nothing.
        """
        if tenant not in self._met:
            self._met.add(tenant)
            for each in self._addresses:
                self._one(tenant, each)
        return tenant not in self._stopped

    def step(self) -> int:
        """One round over all logs and witnesses; how many cosignatures came."""
        return sum(self._one(tenant, each) for tenant in self._dispatch.tenants() for each in self._addresses)

    def _one(self, tenant: str, witness: Address) -> int:
        try:
            return self._show(tenant, witness)
        except (OperatorError, OSError, http.client.HTTPException) as error:
            metrics.count("witness_silent")
            _say.warning("witness does not answer", tenant=tenant, witness=witness.key.name, reason=str(error)[:200])
        except BrokenLedger as error:
            metrics.count("witness_disagrees")
            self._stopped.add(tenant)
            _say.error("log stopped", tenant=tenant, witness=witness.key.name, reason=error.reason)
        return 0

    def _show(self, tenant: str, witness: Address) -> int:
        name = witness.key.name
        with self._database.unit(tenant, write=False) as unit:
            newest, since = cosigned.newest_signed(unit), cosigned.seen_by(unit, name)
        if newest is None or newest.note is None:
            return 0
        if since == newest.size and (tenant, name) in self._asked:
            return 0
        told = self._ask(tenant, witness, since, newest)
        if told.status == 409:
            # It has seen another size than we remember: its answer was lost, or ours is an older database.
            seen = _size(told.body)
            if seen > newest.size:
                raise BrokenLedger(
                    f"{name} has cosigned {seen} entries of this log and the database has {newest.size}: it is older than its evidence",
                    code="log_behind",
                )
            told = self._ask(tenant, witness, seen, newest)
        if told.status in (409, 422):
            raise BrokenLedger(f"{name} has seen another history of this log", code="log_forked")
        if told.status != 200:
            raise OperatorError(f"{name} answered {told.status}: {told.body[:100]!r}", code="witness")
        lines = _lines(newest.note, told.body, witness)
        self._asked.add((tenant, name))
        with self._database.unit(tenant) as unit:
            return int(cosigned.keep(unit, newest.size, name, lines))

    def _ask(self, tenant: str, witness: Address, old: int, newest: Checkpoint) -> Told:
        assert newest.note is not None
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            if not cosigned.was_signed(unit, old):
                raise BrokenLedger(
                    f"{witness.key.name} has seen {old} entries of this log, where it has no checkpoint",
                    code="log_forked",
                )
            proof = trees.tiles_of(unit, newest.size).consistency(old)
        return self._send(witness, write_submission(old, proof, newest.note))


def ask(witness: Address, body: bytes) -> Told:
    """Send a submission once, past no proxy and after no redirect."""
    parts = urlsplit(witness.url)
    assert parts.hostname is not None
    made: http.client.HTTPConnection
    if parts.scheme == "https":
        made = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=seconds_max, context=ssl.create_default_context()
        )
    else:
        made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds_max)
    try:
        made.request("POST", f"{parts.path}/add-checkpoint", body, {"Content-Type": "text/plain; charset=utf-8"})
        answer = made.getresponse()
        return Told(answer.status, answer.read(answer_bytes_max))
    finally:
        made.close()


def _size(body: bytes) -> int:
    text = body.decode("ascii", "replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise OperatorError(f"answered 409 without a size: {text[:40]!r}", code="witness")
    return int(text)


def _lines(note: bytes, body: bytes, witness: Address) -> bytes:
    """The cosignature of exactly this witness over exactly this note, or it is none."""
    try:
        if cosigned_at(read_note(note + body), witness.key) is not None:
            return body
    except BrokenLedger as error:
        raise OperatorError(f"{witness.key.name} gave no cosignature: {error.reason}", code="witness") from None
    raise OperatorError(f"{witness.key.name} signed with another key", code="witness")
