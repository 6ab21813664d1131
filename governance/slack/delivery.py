"""Sends what the outbox holds: one row, one job, one call; the card is rendered from the record at that very moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.gate.card import CardRecord
from governance import log
from governance.slack.api import Sent
from governance.slack.cards import Card
from governance.slack.outbox import Job, Sender, card_job, instead
from governance.store import approvals, outbox, templates
from governance.store.dispatch import Dispatch
from governance.store.doubts import DoubtRecord
from governance.store.tasks import TaskRecord
from governance.store.unit import Database

_say = log.get("slack")
hold_seconds = 30.0
_with_card = ("ap_", "ta_", "un_")


@dataclass(frozen=True, slots=True)
class _Row:
    tenant: str
    id: int
    kind: str
    ref: str
    body: dict[str, Any]
    tries: int


class Delivery:
    """The loop between the outbox and Slack; only the worker runs it."""

    def __init__(
        self,
        database: Database,
        sender: Sender,
        *,
        record_of: Callable[[str, str], CardRecord | TaskRecord | DoubtRecord],
        render: Callable[[CardRecord | TaskRecord | DoubtRecord], Card],
    ) -> None:
        self._database = database
        self._dispatch = Dispatch(database)
        self._sender = sender
        self._record_of = record_of
        self._render = render

    def step(self) -> int:
        """Send what is due; how many rows were looked at."""
        found = self._dispatch.posts(20, hold_seconds)
        for tenant, row_id in found:
            with self._database.unit(tenant, write=False) as unit:
                taken = outbox.take(unit, row_id)
                older = taken is not None and outbox.is_behind(unit, row_id, taken[0], taken[1])
            if taken is None:
                continue
            row = _Row(tenant, row_id, *taken)
            with log.about(tenant=tenant, outbox=row_id, kind=row.kind):
                try:
                    if older:
                        # One writer per card: what was queued before this must be through first.
                        self._later(row, "waits for an older message of the same card", 0.3, counts=False)
                    else:
                        self._deliver(row)
                except Exception as error:  # one row that cannot be rendered must not hold back everybody else's
                    _say.error("message stuck", reason=str(error))
                    self._later(row, str(error), _pause(row))
        return len(found)

    def _deliver(self, row: _Row) -> None:
        with self._database.unit(row.tenant, write=False) as unit:
            place = approvals.card_place(unit, row.ref) if row.ref.startswith(_with_card) else None
            installed = templates.installation(unit)
        if installed is None:
            self._later(row, "no Slack workspace is installed", 60, counts=False)
            return
        job = self._job(row, installed.channel, place)
        if job is None:
            self._later(row, "the card is not posted yet", 0.5, counts=False)
            return
        sent = self._sender.send(job)
        other = instead(job, sent)
        if other is not None:
            sent, job = self._sender.send(other), other
        self._record(row, job, sent, place)

    def _job(self, row: _Row, channel: str, place: tuple[str, str, int, int] | None) -> Job | None:
        at, ts = (place[0] or channel, place[1]) if place else (channel, "")
        if row.kind == "card":
            record = self._record_of(row.tenant, row.ref)
            return card_job(row.tenant, at, self._render(record), ts=ts, msg_id=f"{row.ref}/{record.card_rev}")
        if row.kind == "ephemeral":
            return {
                "kind": "ephemeral",
                "tenant": row.tenant,
                **{k: row.body[k] for k in ("channel", "user", "thread_ts", "text", "url") if k in row.body},
            }
        if not ts:
            return (
                None
                if row.ref.startswith(_with_card)
                else {"kind": "message", "tenant": row.tenant, "channel": channel, "text": _words(row)}
            )
        return {"kind": "reply", "tenant": row.tenant, "channel": at, "thread_ts": ts, "text": _words(row)}

    def _record(self, row: _Row, job: Job, sent: Sent, place: tuple[str, str, int, int] | None) -> None:
        if sent.kind == "ok":
            with self._database.unit(row.tenant) as unit:
                if row.kind == "card":
                    approvals.card_posted(
                        unit, row.ref, sent.channel or job["channel"], sent.ts or job.get("ts", ""), place[2] if place else 1,
                        sent.blocks_sha256,
                    )  # fmt: skip
                outbox.sent(unit, row.id)
        elif sent.kind == "rejected":
            _say.error("slack refused", error=sent.error)
            with self._database.unit(row.tenant) as unit:
                outbox.failed(unit, row.id, sent.error)
                if row.kind == "card" and not job.get("ts"):
                    outbox.failed_with(unit, row.ref, f"the card was refused: {sent.error}")
        else:
            # Later and unknown alike, for as long as it takes: a card posted twice is harmless, because authority is in the record.
            _say.warning("slack did not take it", outcome=sent.kind, error=sent.error)
            self._later(row, sent.error, max(float(sent.retry_after_s), _pause(row)))

    def _later(self, row: _Row, why: str, seconds: float, *, counts: bool = True) -> None:
        with self._database.unit(row.tenant) as unit:
            outbox.again(unit, row.id, why, seconds, counts=counts)


def _pause(row: _Row) -> float:
    """0.5 s doubling to 60 s."""
    return min(60.0, 0.5 * 2.0 ** min(row.tries, 10))


def _words(row: _Row) -> str:
    if row.kind == "thread":
        note = f" “{row.body['reason']}”" if row.body.get("reason") else ""
        return f"🔑 {row.body['person']} gave key {row.body['given']} of {row.body['needed']}.{note}"
    return f"🔎 Looked again: {row.body['text']}."
