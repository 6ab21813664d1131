"""Receipts with their signatures checked, and the download of a sealed bundle: fetched by version, hashed again, and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response, StreamingResponse

from engine.canonical import decode, sha256
from engine.errors import BrokenLedger, Refused
from engine.gate.receipt import read
from engine.kernel import opened
from engine.ledger.entries import Fact
from governance.commands.authority import allowed
from governance.store import entries, views
from governance.store.unit import Unit
from governance.store.views import ReceiptView
from governance.web.auth import Caller
from governance.web.seams import Seams

chunk_bytes = 65_536

Verify = Callable[[str, str, bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Shown:
    """A receipt as pages show it."""

    row: ReceiptView
    sound: bool  # whether the signature holds
    how: str
    resolved_by: str
    reversible: bool
    error: str
    said: str
    reverse: tuple[tuple[str, str], ...]
    sha256: str
    executor: str = ""
    fields: tuple[dict[str, str], ...] = ()  # name, op, classification, and the digests of before and after


def receipts(unit: Unit, verify: Verify, run: str) -> tuple[Shown, ...]:
    """Every receipt of a run; one whose signature does not hold is shown as such, with nothing of what it says."""
    return tuple(_shown(unit, row, verify, run) for row in views.receipts(unit, run))


def _shown(unit: Unit, row: ReceiptView, verify: Verify, run: str) -> Shown:
    digest = sha256(row.body).hex()
    try:
        receipt = read(
            row.body, row.signature, row.key_id, lambda key, data, given: verify(unit.tenant, key, data, given)
        )
    except BrokenLedger as broken:
        return Shown(row, False, "", "", False, broken.reason, "", (), digest)
    payload: dict[str, Any] = decode(receipt.payload)
    error = ": ".join(part for part in (payload["error_class"], payload["message"]) if part)
    reverse = tuple((str(name), _words(value)) for name, value in payload["how_to_reverse"].items())
    said = _told(unit, run, payload["response"].get("reason")) if receipt.how == "told" else ""
    return Shown(
        row, True, receipt.how, receipt.resolved_by, receipt.reversible, error, said, reverse, digest, receipt.executor,
        tuple(payload.get("fields", ())),
    )  # fmt: skip


def _told(unit: Unit, run: str, reference: Any) -> str:
    """A person's words: the receipt commits to them, the tenant's own pages show them; other words are not shown."""
    if type(reference) is not dict or type(reference.get("commit")) is not str:
        return ""
    digest = bytes.fromhex(reference["commit"])
    body = views.kept(unit, run, digest)
    return str(opened(body)) if body is not None and sha256(body) == digest else ""


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def download(seams: Seams, caller: Caller, run: str) -> Response:
    """The sealed bundle; who took it, and which bytes, is an entry before the first byte leaves."""
    with seams.database.unit(caller.tenant, write=False) as unit:
        allowed(unit, caller.actor, "audit")
        views.run(unit, run)
        bundle = views.bundle(unit, run)
    if bundle is None or bundle.state != "sealed":
        state = bundle.state if bundle else "not begun"
        raise Refused(
            f"the bundle is {state}, not sealed", code="not_sealed", next_step="a finished run is sealed within seconds"
        )
    data = seams.fetch(bundle.object_key, bundle.version_id)
    if sha256(data).hex() != bundle.sha256:
        raise BrokenLedger(f"the bucket gives other bytes for {bundle.object_key}", code="vault_mismatch")
    with seams.database.unit(caller.tenant) as unit:
        person = allowed(unit, caller.actor, "audit")
        body = {"sha256": bundle.sha256, "person": person.person}
        entries.note_run(unit, run, [Fact("evidence.downloaded", {"type": "person", "id": person.person}, body)])
    headers = {
        "Content-Disposition": f'attachment; filename="{run}.zip"',
        "Content-Length": str(len(data)),
        "X-Twokeys-Sha256": bundle.sha256,
    }
    return StreamingResponse(_chunks(data), media_type="application/zip", headers=headers)


def _chunks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), chunk_bytes):
        yield data[at : at + chunk_bytes]
