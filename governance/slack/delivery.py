"""Sends what the outbox holds: one row, one job, one call; the card is rendered from the record at that very moment."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from engine.gate.card import CardRecord
from governance import log, metrics
from governance.slack import told
from governance.slack.api import INSTALLATION_LOST, Sent
from governance.slack.looks import Looks
from governance.slack.outbox import Job, Sender, card_job, instead
from governance.slack.records import Record, Records
from governance.store import cards, outbox, paces, templates
from governance.store.cards import Place
from governance.store.dispatch import Dispatch
from governance.store.templates import Installation
from governance.store.unit import Database, Unit

_say = log.get("slack")
rows_per_step = 20
rows_per_tenant = 4  # each takes at most two calls of five seconds, and all of them less than a hold
hold_seconds = 60.0
# Slack's own: about one message a second to a channel, fifty updates a minute in a workspace (slack.md 3).
posts_per_min = 60
updates_per_min = 50
views_per_min = 100
_with_card = ("ap_", "ta_", "un_")


@dataclass(frozen=True, slots=True)
class _Row:
    tenant: str
    id: int
    kind: str
    ref: str
    body: dict[str, Any]
    tries: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What one row asks for: a job, or why there is none now; what it is about, for whoever records the answer."""

    job: Job | None
    why: str = ""
    wait: float = 0.0  # without a job: try again after so long; 0: there is nothing to send any more
    place: Place | None = None
    record: Record | None = None
    person: str = ""  # of a copy


class Delivery:
    """The loop between the outbox and Slack; only the worker runs it."""

    def __init__(self, database: Database, sender: Sender, records: Records, looks: Looks) -> None:
        self._database = database
        self._dispatch = Dispatch(database)
        self._sender = sender
        self._records = records
        self._looks = looks

    def step(self) -> int:
        """Send what is due; how many rows were looked at. Tenants go side by side: one whose Slack is slow holds up nobody else."""
        found = self._dispatch.posts(rows_per_step, rows_per_tenant, hold_seconds)
        each = [(tenant, [row_id for _, row_id in rows]) for tenant, rows in groupby(found, key=lambda row: row[0])]
        if len(each) == 1:
            self._of_tenant(*each[0])
        elif each:
            with ThreadPoolExecutor(len(each), thread_name_prefix="slack") as pool:
                list(pool.map(lambda one: self._of_tenant(*one), each))
        return len(found)

    def _of_tenant(self, tenant: str, ids: Sequence[int]) -> None:
        for row_id in ids:
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

    def _deliver(self, row: _Row) -> None:
        with self._database.unit(row.tenant, write=False) as unit:
            installed = templates.installation(unit)
        if installed is None:
            self._later(row, "no Slack workspace is installed", 60, counts=False)
            return
        task = self._task(row, installed)
        if task.job is None:
            self._without(row, task)
            return
        wait = self._pace(row.tenant, installed.team, task.job)
        if wait:
            self._later(row, "this channel has had its messages of this second", wait, counts=False)
            return
        sent, used = self._sender.send(task.job), task.job
        other = instead(used, sent, installed.channel)
        if other is not None:
            sent, used = self._sender.send(other), other
        self._record(row, task, used, sent, installed)

    def _without(self, row: _Row, task: _Task) -> None:
        if task.wait:
            self._later(row, task.why, task.wait, counts=False)
            return
        with self._database.unit(row.tenant) as unit:
            outbox.sent(unit, row.id)

    # --- what a row asks for ------------------------------------------------------------------------------------------

    def _task(self, row: _Row, installed: Installation) -> _Task:
        if row.kind == "card":
            return self._card(row, installed)
        if row.kind == "copy":
            return self._copy(row)
        if row.kind == "home":
            ref = str(row.body["user"])
            view = self._records.render_home(row.tenant, ref, self._looks.desk(row.tenant, ref))
            return _Task({"kind": "home", "tenant": row.tenant, "user": ref.partition(":")[2], "view": view})
        if row.kind in ("ephemeral", "dm"):
            parts: Job = {k: row.body[k] for k in ("channel", "user", "thread_ts", "text", "url") if k in row.body}
            return _Task({"kind": row.kind, "tenant": row.tenant, **parts})
        if not row.ref.startswith(_with_card):
            return _Task({"kind": "message", "tenant": row.tenant, "channel": installed.channel, "text": _words(row)})
        place = self._place(row.tenant, row.ref)
        if place is None or not place.ts:
            return _Task(None, "the card is not posted yet", 0.5)
        job = {
            "kind": "reply",
            "tenant": row.tenant,
            "channel": place.channel,
            "thread_ts": place.ts,
            "text": _words(row),
        }
        return _Task(job)

    def _card(self, row: _Row, installed: Installation) -> _Task:
        place = self._place(row.tenant, row.ref)
        if place is not None and place.is_true:
            return _Task(None)  # several changes, one update
        record = self._records.of(row.tenant, row.ref)
        at, ts = (place.channel or installed.channel, place.ts) if place else (installed.channel, "")
        msg_id = f"{row.ref}/{record.card_rev}"
        # What is asked again stands in the thread of what was asked first, where that is in the same channel.
        before = None if ts else self._place(row.tenant, row.body.get("after", ""))
        thread = before.ts if before is not None and before.channel == at else ""
        job = card_job(row.tenant, at, self._records.render(record), ts=ts, thread_ts=thread, msg_id=msg_id)
        return _Task(job, place=place, record=record)

    def _copy(self, row: _Row) -> _Task:
        ref, person = row.body["approval"], row.body["person"]
        place = self._place(row.tenant, ref)
        with self._database.unit(row.tenant, write=False) as unit:
            copy = next((one for one in cards.copies(unit, ref) if one.person == person), None)
        if copy is None or place is None or (copy.ts and copy.shown == place.state):
            return _Task(None)
        record = self._records.approval(row.tenant, ref)
        msg_id = f"{ref}/{record.card_rev}/{person}"
        shown = self._records.render_copy(record)
        job = card_job(row.tenant, copy.channel or copy.member, shown, ts=copy.ts, msg_id=msg_id)
        return _Task(job, place=place, record=record, person=person)

    def _place(self, tenant: str, ref: str) -> Place | None:
        with self._database.unit(tenant, write=False) as unit:
            return cards.place(unit, ref)

    # --- how fast -----------------------------------------------------------------------------------------------------

    def _pace(self, tenant: str, team: str, job: Job) -> float:
        return paces.take(self._database, tenant, *_lane(team, job))

    def _slow_down(self, row: _Row, team: str, job: Job, seconds: float) -> None:
        kind, place, most = _lane(team, job)
        paces.hold(self._database, row.tenant, kind, place, most, seconds)

    # --- what became of it --------------------------------------------------------------------------------------------

    def _record(self, row: _Row, task: _Task, job: Job, sent: Sent, installed: Installation) -> None:
        if sent.kind == "ok":
            with self._database.unit(row.tenant) as unit:
                self._posted(unit, row, task, job, sent, installed)
                outbox.sent(unit, row.id)
        elif sent.kind == "rejected" and sent.error in INSTALLATION_LOST:
            metrics.count("slack_installation_lost")
            _say.error("slack has no place for us any more", error=sent.error, team=installed.team)
            with self._database.unit(row.tenant) as unit:
                templates.put_installation(unit, replace(installed, state=sent.error))
            self._later(row, sent.error, 60, counts=False)
        elif sent.kind == "rejected":
            _say.error("slack refused", error=sent.error)
            with self._database.unit(row.tenant) as unit:
                outbox.failed(unit, row.id, sent.error)
                if row.kind == "card":
                    self._refused(unit, row, task, job, sent.error, installed)
        else:
            # Later and unknown alike, for as long as it takes: a card posted twice is harmless, because authority is in the record.
            _say.warning("slack did not take it", outcome=sent.kind, error=sent.error)
            pause = max(float(sent.retry_after_s), _pause(row))
            if sent.error in ("ratelimited", "rate_limited"):
                self._slow_down(row, installed.team, job, pause)
            self._later(row, sent.error, pause)

    def _posted(self, unit: Unit, row: _Row, task: _Task, job: Job, sent: Sent, installed: Installation) -> None:
        place = task.place
        if place is None:
            return
        channel, ts = sent.channel or job["channel"], sent.ts or job.get("ts", "")
        if job["kind"] == "reply":  # said beside a card that can no longer be changed; the card stays where it is
            channel, ts = place.channel, place.ts
        if row.kind == "copy":
            cards.copy_posted(unit, row.body["approval"], task.person, channel, ts, place.state)
        elif row.kind == "card":
            self._tell(unit, row.ref, task, place, installed, thread=True)
            cards.posted(unit, row.ref, channel, ts, sent.blocks_sha256, place, _mark(task))
            _refresh(unit, row.ref, place.state)

    def _refused(self, unit: Unit, row: _Row, task: _Task, job: Job, error: str, installed: Installation) -> None:
        """A card that its channel will never take goes to each person who could decide it; the console shows it in any case."""
        place = task.place
        if place is not None:
            cards.missed(unit, row.ref, place)
        if job.get("ts"):
            return
        metrics.count("slack_card_refused")
        outbox.failed_with(unit, row.ref, f"the card was refused: {error}")
        for person in cards.holders(unit, row.ref):
            member = cards.member_of(unit, person, installed.team)
            if member:
                cards.copy_to(unit, row.ref, person, member)
        if place is not None:
            self._tell(unit, row.ref, task, place, installed, thread=False)
            _refresh(unit, row.ref, place.state)

    def _tell(self, unit: Unit, ref: str, task: _Task, place: Place, installed: Installation, *, thread: bool) -> None:
        if not isinstance(task.record, CardRecord):
            return
        said = told.news(place.told, task.record)
        asker = cards.asker(unit, ref) if any(one.kind == "dm" for one in said) else ""
        member = cards.member_of(unit, asker, installed.team) if asker else ""
        for one in said:
            if one.kind == "said" and thread:
                outbox.put(unit, "said", ref, {"text": one.text})
            elif one.kind == "dm" and member:
                outbox.put(unit, "dm", "", {"user": member, "text": one.text, "url": task.record.console_url})

    def _later(self, row: _Row, why: str, seconds: float, *, counts: bool = True) -> None:
        with self._database.unit(row.tenant) as unit:
            outbox.again(unit, row.id, why, seconds, counts=counts)


def _refresh(unit: Unit, ref: str, state: str) -> None:
    """The copies show what the card shows."""
    for one in cards.copies(unit, ref):
        if one.shown != state:
            outbox.put(unit, "copy", "", {"approval": ref, "person": one.person})


def _mark(task: _Task) -> str:
    return told.mark(task.record) if isinstance(task.record, CardRecord) else ""


def _lane(team: str, job: Job) -> tuple[str, str, int]:
    """Which of Slack's limits a job counts against: (kind, place, most in a minute)."""
    if job["kind"] == "home":
        return "slack-view", team, views_per_min
    if job.get("ts"):
        return "slack-update", team, updates_per_min
    return "slack-post", str(job.get("channel") or job.get("user")), posts_per_min


def _pause(row: _Row) -> float:
    """0.5 s doubling to 60 s."""
    return min(60.0, 0.5 * 2.0 ** min(row.tries, 10))


def _words(row: _Row) -> str:
    if row.kind == "said":
        return str(row.body["text"])
    if row.kind == "thread":
        note = f" “{row.body['reason']}”" if row.body.get("reason") else ""
        return f"🔑 {row.body['person']} gave key {row.body['given']} of {row.body['needed']}.{note}"
    return f"🔎 Looked again: {row.body['text']}."
