"""Shadow: a draft is asked beside the policy in force, after it and out of everybody's way; only differences are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.canonical import encode
from engine.errors import TwokeysError
from engine.gate.replay import SAME, weigh
from engine.gate.verdict import Answer, Judged
from governance import clock, log, metrics
from governance.policy.bundle import Bundle
from governance.policy.proving import bundle_of
from governance.policy.replay import Asked, Judging, asked_again, ruling_of
from governance.store import drafts, templates
from governance.store.drafts import Difference
from governance.store.unit import Database

queue_max = (
    2_048  # questions that wait for the shadow; when it is slower than the policy in force, the oldest are dropped
)
look_seconds = 5.0  # between two looks at which draft is in the shadow
engines_max = 4
_step_max = 256

_say = log.get("shadow")


@dataclass(frozen=True, slots=True)
class _Noted:
    tenant: str
    input_bytes: bytes
    answer: Answer


@dataclass(slots=True)
class _Beside:
    """What is known about the shadow of one tenant; without a draft there is none."""

    looked_at: float
    draft: str = ""
    n: int = 0
    base: str = ""
    judging: Judging | None = None


class Shadow:
    """One per process. What happens here is seen by nobody whose action is judged: not its answer, not its faults, not its time."""

    def __init__(self, database: Database, bundle: Callable[[str, str], Bundle]) -> None:
        """`bundle` gives a revision as it was activated."""
        self._database = database
        self._bundle = bundle
        self._queue: deque[_Noted] = deque(maxlen=queue_max)
        self._besides: dict[str, _Beside] = {}
        self._lock = threading.Lock()

    def hear(self, tenant: str, judged: Judged) -> None:
        """A verdict is recorded: its question is put to the shadow as well; never waits. One without an answer teaches nothing."""
        verdict = judged.verdict
        if judged.findings_bytes:
            answer = Answer(judged.findings_bytes, verdict.policy_revision, verdict.engine, verdict.engine_version)
            self.note(tenant, judged.input_bytes, answer)

    def note(self, tenant: str, input_bytes: bytes, answer: Answer) -> None:
        """Remember an answer; never waits."""
        if len(self._queue) == queue_max:
            metrics.count("shadow_dropped")
        self._queue.append(_Noted(tenant, input_bytes, answer))

    def step(self) -> int:
        """Put what was noted to the drafts in the shadow; how many questions were put."""
        by_tenant: dict[str, list[_Noted]] = {}
        for _ in range(min(len(self._queue), _step_max)):
            one = self._queue.popleft()
            by_tenant.setdefault(one.tenant, []).append(one)
        put = 0
        with self._lock:
            for tenant, noted in by_tenant.items():
                try:
                    put += self._judge(tenant, noted)
                except TwokeysError as error:
                    # The draft's own trouble: the policy in force has answered already, and nobody waits for this.
                    _say.warning("a draft in the shadow cannot be judged", tenant=tenant, reason=error.reason)
                    metrics.count("shadow_failed")
        return put

    def close(self) -> None:
        """End every engine."""
        with self._lock:
            for one in self._besides.values():
                _end(one)
            self._besides.clear()

    def _judge(self, tenant: str, noted: list[_Noted]) -> int:
        beside = self._of(tenant)
        if beside.judging is None:
            return 0
        asked = [asked_again(one.input_bytes) for one in noted]
        found = []
        for one, question, new in zip(noted, asked, beside.judging.rulings(asked), strict=True):
            old = ruling_of(question, one.answer, one.answer.revision)
            how = "fault" if new["deny_kind"] == "fault" and old["deny_kind"] != "fault" else weigh(old, new)
            if how != SAME:
                found.append(_difference(beside.n, question, how, old, new))
        if found:
            with self._database.unit(tenant) as unit:
                drafts.put_differences(unit, beside.draft, found)
        return len(noted)

    def _of(self, tenant: str) -> _Beside:
        known = self._besides.get(tenant)
        if known is not None and clock.monotonic() - known.looked_at < look_seconds:
            return known
        with self._database.unit(tenant, write=False) as unit:
            draft = drafts.shadowed(unit)
            revision = templates.active_revision(unit)
        name, n = ("", 0) if draft is None else (draft.name, draft.n)
        is_served = known is not None and (known.judging is not None or not name)
        if known is not None and is_served and (known.draft, known.n, known.base) == (name, n, revision):
            known.looked_at = clock.monotonic()
            return known
        if known is not None:
            _end(known)
        # Noted before anything can fail, so that a draft that cannot be loaded is tried again at the next look only.
        fresh = self._besides[tenant] = _Beside(clock.monotonic(), name, n, revision)
        if draft is not None and revision:
            self._make_room(tenant)
            fresh.judging = Judging(bundle_of(draft.draft, tenant, self._bundle(tenant, revision)))
        return fresh

    def _make_room(self, tenant: str) -> None:
        running = [name for name, one in self._besides.items() if one.judging is not None and name != tenant]
        if len(running) >= engines_max:
            oldest = min(running, key=lambda name: self._besides[name].looked_at)
            _end(self._besides.pop(oldest))


def _end(one: _Beside) -> None:
    if one.judging is not None:
        one.judging.close()


def _difference(n: int, asked: Asked, how: str, old: dict[str, object], new: dict[str, object]) -> Difference:
    body = encode({"input": asked.input_bytes, "old": old, "new": new})
    return Difference(n, asked.request_id, how, str(old["effect"]), str(new["effect"]), body, clock.now_utc())
