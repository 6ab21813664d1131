"""Sends each tenant's log on: to whoever asks for a stretch of it, and to named exports, in order, at least once, past no gap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import BrokenLedger, CallerError, OperatorError, TwokeysError
from engine.ledger.lines import CLOUDEVENTS, read_line, write_line
from engine.ledger.notes import log_origin
from engine.limits import retry_delays_seconds
from governance import clock, log, metrics
from governance.evidence import outward
from governance.store import exports, published
from governance.store.dispatch import Dispatch
from governance.store.exports import Export, Slice
from governance.store.unit import Database

_say = log.get("export")
# A log that grows by one entry a second must not become an object a second.
s3_rest_seconds = 60.0
round_seconds = 1.0
threads = 8


class Shelf(Protocol):
    """Storage outside the database."""

    def keep(self, key: str, data: bytes, retain_until: Any) -> str:
        """Store once; a repeat finds its own bytes there."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a log as lines, and why there is no more of it, if something is wrong with the next entry."""

    since: int
    lines: tuple[bytes, ...]
    fault: str


def object_key(tenant: str, export: Export, until: int) -> str:
    """Where a slice stands in the bucket: first and last index and the form say what its bytes are, whoever stores it."""
    return f"{tenant}/export/{export.name}/{export.position:020}-{until - 1:020}.{export.form}.jsonl"


class Exports:
    """Any number of processes may run one: a slice is fixed and leased in the database before it leaves."""

    def __init__(
        self,
        database: Database,
        shelf: Shelf,
        *,
        deployment: str,
        unseal: Callable[[str, str, bytes], str],
        allow_local: bool,
        s3_rest: float = s3_rest_seconds,
        post: Callable[..., None] = outward.post,
    ) -> None:
        """`allow_local` lets webhooks stand on this machine, which only a demo and tests may; `post` sends one of them."""
        self._database = database
        self._dispatch = Dispatch(database)
        self._shelf = shelf
        self._deployment = deployment
        self._unseal = unseal
        self._allow_local = allow_local
        self._s3_rest = s3_rest
        self._post = post
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="export")
        self._lock = threading.Lock()
        self._busy: set[str] = set()  # one tenant's slow receiver takes one thread at most

    def read(self, tenant: str, since: int, form: str) -> Iterator[Part]:
        """The published log from an index on, part by part; the last part says what is wrong, if something is."""
        with self._database.unit(tenant, write=False) as unit:
            size = published.size(unit)
        if since > size:
            raise CallerError(
                f"the published log has {size} entries", code="bad_index", field="from", next_step=f"0 to {size}"
            )
        while since < size:
            with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
                part = exports.entries(unit, since, size)
            yield Part(since, tuple(self._lines(tenant, part, form)), part.fault)
            if part.fault:
                return
            since = part.until

    def after(self, tenant: str, line: bytes, form: str) -> int:
        """The index to go on with behind a file whose last line is this one, if it is a line of this very log."""
        origin, index, body = read_line(line)
        if origin != log_origin(self._deployment, tenant):
            raise CallerError(
                f"the file holds the log {origin}", field="--to", next_step="name a file of this tenant's log"
            )
        if write_line(origin, index, body, form) != line:
            raise CallerError("the file holds lines of the other form", field="--cloudevents")
        with self._database.unit(tenant, write=False) as unit:
            if exports.entries(unit, index, index + 1).bodies != (body,):
                raise BrokenLedger(
                    f"the file has another entry at index {index} than the log: one of them is not this log's past",
                    code="log_forked",
                )
        return index + 1

    def step(self) -> int:
        """One round over all tenants; how many slices were delivered. A receiver that is slow is waited for beside the round."""
        round_: list[Future[int]] = []
        for tenant in self._dispatch.tenants():
            with self._lock:
                if tenant in self._busy:
                    continue
                self._busy.add(tenant)
            round_.append(self._pool.submit(self._tenant, tenant))
        done, _ = wait(round_, timeout=round_seconds)
        self._measure()
        return sum(each.result() for each in done)

    def _tenant(self, tenant: str) -> int:
        try:
            with self._database.unit(tenant, write=False) as unit:
                names = exports.due(unit)
            return sum(self.deliver(tenant, name) for name in names)
        finally:
            with self._lock:
                self._busy.discard(tenant)

    def _measure(self) -> None:
        """Of all tenants together, because no metric names one."""
        behind, seconds, failing, stopped = 0, 0.0, 0, 0
        for tenant in self._dispatch.tenants():
            with self._database.unit(tenant, write=False) as unit:
                shown = exports.shown(unit)
            going = [one for one in shown if one.export.state != "paused"]
            behind = max([behind, *(one.behind for one in going)])
            seconds = max([seconds, *(one.behind_seconds for one in going)])
            failing += sum(one.export.state == "active" and one.export.tries > 0 for one in shown)
            stopped += sum(one.export.state == "stopped" for one in shown)
        metrics.level("export_behind", behind)
        metrics.level("export_behind_seconds", seconds)
        metrics.level("export_failing", failing)
        metrics.level("export_stopped", stopped)

    def close(self) -> None:
        """Wait for what is on its way, and begin nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def deliver(self, tenant: str, name: str, *, hurry: bool = False) -> bool:
        """One slice of one export, sent and then counted: killed in between, the very same is sent again."""
        with self._database.unit(tenant) as unit:
            taken = exports.take(unit, name, hurry=hurry)
        if taken is None:
            return False
        export, part = taken
        if not part.bodies:
            metrics.count("export_gap")
            _say.error("export stopped", tenant=tenant, export=name, reason=part.fault)
            return False
        try:
            self._send(tenant, export, part)
        except (OperatorError, CallerError) as error:
            metrics.count("export_failed")
            _say.warning("not delivered", tenant=tenant, export=name, reason=error.reason)
            with self._database.unit(tenant) as unit:
                exports.again(unit, export, error.reason, _pause(export.tries))
            return False
        full = len(part.bodies) == exports.batch_entries
        with self._database.unit(tenant) as unit:
            done = exports.delivered(unit, export, 0.0 if export.target != "s3" or full else self._s3_rest)
        metrics.count("export_sent" if done else "export_repeated")
        return done

    def catch_up(self, tenant: str, name: str) -> int:
        """Deliver this export until nothing is left; how many slices. What stands in the way is raised."""
        sent = 0
        while True:
            if self.deliver(tenant, name, hurry=True):
                sent += 1
                continue
            with self._database.unit(tenant, write=False) as unit:
                found, size = exports.named(unit, name), published.size(unit)
            if found is None:
                raise CallerError(f"there is no export {name}", code="unknown_export", field="name")
            if found.state == "stopped":
                raise BrokenLedger(f"export {name} has stopped: {found.last_error}", code="log_gap")
            if found.tries:
                raise OperatorError(found.last_error, code="not_delivered", field=name)
            if found.state == "paused":
                raise CallerError(
                    f"export {name} is paused", code="paused", field="name", next_step="`twokeys tenant export --go-on`"
                )
            if found.position < size:
                raise OperatorError(
                    f"another process is sending export {name}", code="busy", next_step="`twokeys evidence exports`"
                )
            return sent

    def _send(self, tenant: str, export: Export, part: Slice) -> None:
        send_by = clock.boottime() + exports.lease_seconds - outward.seconds_max - 2 * outward.connect_seconds
        lines = list(self._lines(tenant, part, export.form))
        if export.target == "s3":
            self._shelf.keep(object_key(tenant, export, part.until), b"".join(lines), None)
            return
        secret = self._unseal(tenant, f"export/{export.name}", export.secret_sealed)
        kind, body = "application/x-ndjson", b"".join(lines)
        if export.form == CLOUDEVENTS:
            kind = "application/cloudevents-batch+json"
            body = b"[" + b",".join(line[:-1] for line in lines) + b"]"
        headers = {
            "Content-Type": kind,
            "X-Twokeys-Export": f"{tenant}/{export.name}",
            "X-Twokeys-First": str(part.since),
            "X-Twokeys-Last": str(part.until - 1),
        }
        self._post(export.url, body, headers, secret, allow_local=self._allow_local, send_by=send_by)

    def _lines(self, tenant: str, part: Slice, form: str) -> Iterator[bytes]:
        origin = log_origin(self._deployment, tenant)
        try:
            for n, body in enumerate(part.bodies):
                yield write_line(origin, part.since + n, body, form) + b"\n"
        except TwokeysError as error:
            raise OperatorError(f"an entry cannot be read: {error.reason}", code="unreadable_entry") from error


def _pause(tries: int) -> float:
    """5 s, 30 s, then 2 min, and up to a fifth more, so that those who failed together do not come back together."""
    seconds = retry_delays_seconds[min(tries, len(retry_delays_seconds) - 1)]
    return seconds * (1 + clock.random_bytes(1)[0] / 1275)
