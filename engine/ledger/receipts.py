"""The receipts of a bundle held against the entries that name them: each is there, in order, and says what its entry says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from engine.errors import BrokenLedger


class Receipts:
    """Every receipt by its digest; each verb refuses one that is not what its entry says."""

    def __init__(self, envelopes: Mapping[str, dict[str, Any]]) -> None:
        self._envelopes = envelopes
        self._newest: dict[str, tuple[int, int]] = {}  # attempt and n, by effect key

    def __contains__(self, digest: str) -> bool:
        return digest in self._envelopes

    def check(self, body: dict[str, Any], status: str, tenant: str, run: str) -> dict[str, Any]:
        """The envelope that this entry names; with an empty status it may be any."""
        digest = body["receipt_sha256"]
        envelope = self._envelopes.get(digest)
        if envelope is None:
            _receipt_broken("receipt-missing", f"receipt {digest[:16]} is not in the bundle")
        place = (body["attempt"], body["n"])
        if place <= self._newest.get(body["key_sha256"], (0, 0)):
            _receipt_broken("receipt-order", f"receipt {body['n']} of attempt {body['attempt']} is not the next")
        self._newest[body["key_sha256"]] = place
        origin = envelope.get("origin")
        said = {
            "tenant": (envelope.get("tenant"), tenant),
            "run": (origin.get("run") if type(origin) is dict else None, run),
            "promise": (origin.get("promise") if type(origin) is dict else None, body["promise"]),
            "attempt": (envelope.get("attempt"), body["attempt"]),
            "n": (envelope.get("n"), body["n"]),
            "action_sha256": (envelope.get("action_sha256"), body["action_sha256"]),
            "status": (envelope.get("status"), status or envelope.get("status")),
            "signed_by": (envelope["signed_by"], body["signed_by"]),
        }
        for name, (inside, outside) in said.items():
            if inside != outside:
                _receipt_broken("receipt-other", f"the receipt says {name} {inside!r}, the entry {outside!r}")
        return envelope


def _receipt_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
