"""Execute: the intent before the effect, the one call that changes the outside, and the signed receipt after it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from engine.errors import TwokeysError
from engine.gate import doubt
from engine.gate.action import Action, OperationSpec
from engine.gate.permit import Judgement, Permit, Release, permit, reopened
from engine.gate.question import value_hmac
from engine.gate.receipt import Outcome, Receipt, check_signature, read, write
from engine.gate.retry import next_delay, ours
from engine.kernel import Retrying, Started, proposal_from, reference_of
from engine.ledger.entries import stamp
from engine.limits import attempts_max
from governance.keys import Signer, hashed
from governance.store import doubts, mending
from governance.store.case import Case

effect_seconds_max = 15.0  # a connector answers or gives up within this; the lease must outlive it


class Performs(Protocol):
    """A connector as far as executing needs it."""

    def perform(self, permit: Permit) -> Outcome:
        """Do it once; every fault becomes an outcome."""

    def look(self, permit: Permit) -> Outcome | None:
        """What the outside can prove about an attempt; None when nobody can tell."""


class Connectors(Protocol):
    """Which connector to use."""

    def of(self, connector: str) -> Performs:
        """The connector of that name."""

    def spec(self, connector: str, operation: str) -> OperationSpec:
        """The declaration of one operation."""


class Execute:
    """The hands of this stage: connectors, the executor's key, and chance for jitter."""

    def __init__(
        self,
        registry: Connectors,
        *,
        executor: str,
        signer: Callable[[str], Signer],
        verify: Callable[[str, str, bytes, bytes], bool],
        hash_key: Callable[[str], bytes],
        chance: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._executor = executor
        self._signer = signer
        self._verify = verify
        self._hash_key = hash_key
        self._chance = chance

    def intend(self, case: Case, action: Action, judgement: Judgement, release: Release | None, *, turn: int) -> Permit:
        """Pass the gate and write the intent; the permit may be used once this is committed. `turn` 0: the key's intent is ours already."""
        invoke = case.history.invoke(case.promise_id(action.promise))
        assert invoke is not None
        attempt = invoke.attempt + 1
        granted = permit(action, judgement, release, attempt=attempt, deadline_seconds=effect_seconds_max)
        case.accept(Started(case.promise_id(action.promise), attempt))
        if turn:
            case.add("intent", key=granted.key, turn=turn, promise=action.promise, action_digest=action.digest)
            case.writes += action.kind != "read"
            if action.amount_minor:
                case.add(
                    "spending", key=granted.key, turn=turn, promise=action.promise, currency=action.currency,
                    amount_minor=action.amount_minor,
                )  # fmt: skip
        case.touch(
            action.promise, state="running", attempt=attempt, started_at=case.now, last_error="", next_eligible_at=None
        )
        case.state = "running"
        case.put_work(action.promise, "execute", keep=True)
        case.note(
            "effect.intended",
            {
                "promise": action.promise, "attempt": attempt, "key_sha256": self._key(action), "action_sha256": granted.action_sha256,
                "verdict_n": judgement.n, "approval": granted.approval, "policy_revision": judgement.policy_revision,
            },
        )  # fmt: skip
        return granted

    def perform(self, granted: Permit) -> Outcome:
        """The one call that changes the outside. A fault of ours before it is an error; one that nobody expected is unknown."""
        granted.use()
        try:
            return self._registry.of(granted.action.connector).perform(granted)
        except TwokeysError as error:
            # Connections and credentials are read before anything is sent.
            return ours(error.code, str(error), again=True)
        except Exception as error:  # the call may have been on the road: nobody knows, so nothing is retried
            return Outcome("unknown", error_class="connector_fault", message=type(error).__name__)

    def look(self, case: Case, action: Action) -> tuple[Permit, Outcome]:
        """After a take-over or an unknown outcome: what the outside can prove about the attempt that was in flight."""
        row = case.promises[action.promise]
        again = reopened(
            action,
            attempt=row.attempt,
            verdict_n=row.verdict_n,
            revision="",
            approval=row.approval,
            deadline_seconds=effect_seconds_max,
        )
        if action.kind == "read":
            return again, Outcome(
                "error", error_class="lease_expired", message="the worker that read this is gone", retryable=True
            )
        try:
            outcome = self._registry.of(action.connector).look(again)
        except TwokeysError as error:
            return again, Outcome("unknown", error_class=error.code, message=str(error))
        except (
            Exception
        ) as error:  # a connector's bug must not leave the step in flight for ever: a person may still answer
            return again, Outcome("unknown", error_class="connector_fault", message=type(error).__name__)
        if outcome is not None and outcome.status == "rejected" and self.settles_at(case, action) > case.now:
            # Unchanged is not "did not happen" while the first attempt may still be on the road.
            outcome = None
        if outcome is None:
            gone = "the worker that did this is gone and " if row.state == "running" else ""
            code = "lease_expired" if gone else "cannot_tell"
            return again, Outcome(
                "unknown", error_class=code, message=f"{gone}the outside cannot prove whether it happened"
            )
        return again, outcome

    def settles_at(self, case: Case, action: Action) -> datetime.datetime:
        """When an attempt can no longer be on the road."""
        started = case.promises[action.promise].started_at or case.now
        return started + datetime.timedelta(
            seconds=self._registry.spec(action.connector, action.operation).settles_seconds
        )

    def settle(
        self, case: Case, granted: Permit, outcome: Outcome, *, how: str, person: str = "", keep: bool = True
    ) -> Receipt:
        """Record the receipt and what it means for the run: the step goes on, is tried again, ends, or waits for a person."""
        action, name = granted.action, case.promise_id(granted.action.promise)
        if case.promises[action.promise].state == "unknown":
            # People were asked; whatever is known now stands on their card too.
            case.show_card(doubt.id_of(case.origin.run, action.promise, granted.attempt))
        receipt = self._receipt(case, granted, outcome, how, person)
        case.put_receipt(receipt, granted.key)
        self._note(case, receipt, how, person)
        if receipt.status == "ok":
            # A person who says that it happened cannot say what the answer was: the step's result has its names, empty.
            named = dict.fromkeys(self._registry.spec(action.connector, action.operation).result_fields, "")
            case.finish(action.promise, ok=True, value={**named, **outcome.result})
            case.put_work("", "advance", keep=keep)
            return receipt
        if receipt.status == "unknown":
            self._ask_people(case, action, outcome)
            return receipt
        if outcome.mend and how == "performed" and granted.attempt < attempts_max:
            # Nothing was changed. The next attempt is made when an operator says that it is mended.
            case.accept(Retrying(name, granted.attempt, outcome.error_class, case.micros))
            self._note_retry(case, granted, outcome.error_class, case.now)
            mending.ask(case, action.promise, outcome.error_class, outcome.message, outcome.mend)
            return receipt
        delay = self._delay(case, granted, outcome, immediate=how != "performed")
        if delay is None:
            error_class, message = outcome.error_class or "failed", outcome.message
            if outcome.retryable and granted.attempt < self._attempts(case, action.promise):
                # Only time was short: an author may deal with that otherwise than with a failure.
                error_class, message = (
                    "deadline",
                    f"{error_class}: {message}; the next try would come after the deadline",
                )
            case.finish(action.promise, ok=False, error_class=error_class, message=message)
            case.put_work("", "advance", keep=keep)
            return receipt
        at = case.now + datetime.timedelta(seconds=delay)
        case.accept(Retrying(name, granted.attempt, outcome.error_class, int(at.timestamp() * 1_000_000)))
        self._note_retry(case, granted, outcome.error_class, at)
        case.touch(
            action.promise,
            state="failed_retryable",
            last_error=f"{outcome.error_class}: {outcome.message}"[:500],
            next_eligible_at=at,
        )
        case.state = "failed_retryable"
        case.put_work(action.promise, "judge", wait_seconds=delay)
        return receipt

    def _ask_people(self, case: Case, action: Action, outcome: Outcome) -> None:
        """Nobody knows whether it happened: a doubt is put before people, and nothing is tried again by itself."""
        case.touch(action.promise, state="unknown", last_error=f"{outcome.error_class}: {outcome.message}"[:500])
        # Looked at once more when the attempt can no longer be on the road; a person may answer before.
        self._look_later(case, action)
        doubts.ask(case, action)
        case.show_card(case.promises[action.promise].approval)

    def look_again(self, case: Case, action: Action, outcome: Outcome, *, asked: bool) -> None:
        """Somebody looked, or it was time to: it is still unknown, and that is said where people were asked.

        An earlier release asked nobody; then people are asked now.
        """
        row = case.promises[action.promise]
        if not asked:
            self._ask_people(case, action, outcome)
            return
        until = self.settles_at(case, action)
        text = outcome.message
        if until > case.now:
            text += f"; before {until:%H:%M:%S} UTC an unchanged target proves nothing, the attempt may still be on the road"
        case.touch(row.promise, last_error=f"{outcome.error_class}: {text}"[:500])
        case.note("effect.looked", {"promise": row.promise, "attempt": row.attempt, "error_class": outcome.error_class})
        name = doubt.id_of(case.origin.run, row.promise, row.attempt)
        case.show_card(name)
        case.posts.append(("looked", name, {"text": text}))
        self._look_later(case, action)

    def _look_later(self, case: Case, action: Action) -> None:
        seconds = (self.settles_at(case, action) - case.now).total_seconds()
        case.put_work(action.promise, "execute", wait_seconds=max(seconds, 0.0), parked=seconds <= 0)

    def retry(self, case: Case, promise: str, attempt: int) -> None:
        """People want an attempt of unknown outcome made again: under the same key, judged first, as any attempt."""
        case.accept(Retrying(case.promise_id(promise), attempt, "retry_told", case.micros))
        case.note(
            "effect.retried",
            {"promise": promise, "attempt": attempt, "error_class": "retry_told", "retry_at": stamp(case.now)},
        )
        # The hours that people took are not the step's: its time to run begins now.
        case.touch(
            promise, state="failed_retryable", deadline_at=None, next_eligible_at=case.now,
            last_error="retry_told: people want it tried again under the same key",
        )  # fmt: skip
        case.state = "failed_retryable"
        case.put_work(promise, "judge")
        case.show_card(doubt.id_of(case.origin.run, promise, attempt))
        case.show_card(case.promises[promise].approval)

    def reuse(
        self, case: Case, action: Action, run: str, body: bytes, signature: bytes, key_id: str, result: dict[str, str]
    ) -> None:
        """The effect happened already under this key: its receipt is this step's result, shown as such."""
        receipt = self._read(action.tenant, body, signature, key_id)
        case.note(
            "effect.reused",
            {
                "promise": action.promise, "key_sha256": self._key(action), "action_sha256": action.digest.hex(),
                "receipt_sha256": receipt.sha256.hex(), "run": run,
            },
        )  # fmt: skip
        case.finish(action.promise, ok=True, value=result)
        case.put_work("", "advance", keep=True)

    def _receipt(self, case: Case, granted: Permit, outcome: Outcome, how: str, person: str) -> Receipt:
        tenant = granted.action.tenant
        signer = self._signer(tenant)
        n = case.receipts_n.get((granted.key, granted.attempt), 0) + 1
        receipt = write(
            granted, outcome, n=n, at=stamp(case.now), executor=self._executor, key_sha256=self._key(granted.action),
            key_id=signer.key_id, sign=signer.sign,
            hashed=partial(value_hmac, self._hash_key(tenant)), resolved_by=person, how=how,
        )  # fmt: skip
        check_signature(receipt.body, receipt.signature, receipt.key_id, partial(self._verify, tenant))
        return receipt

    def _read(self, tenant: str, body: bytes, signature: bytes, key_id: str) -> Receipt:
        return read(body, signature, key_id, partial(self._verify, tenant))

    def _note(self, case: Case, receipt: Receipt, how: str, person: str) -> None:
        body = {
            "promise": receipt.origin.promise, "attempt": receipt.attempt, "n": receipt.n,
            "key_sha256": receipt.key_sha256, "action_sha256": receipt.action_sha256,
            "receipt_sha256": receipt.sha256.hex(), "signed_by": receipt.key_id,
        }  # fmt: skip
        if receipt.status == "unknown":
            case.note("effect.unknown", body)
        elif person:
            case.note("effect.resolved", {**body, "how": "happened" if receipt.status == "ok" else "did_not", "person": person},
                      actor={"type": "person", "id": person})  # fmt: skip
        else:
            case.note("effect.receipted", {**body, "status": receipt.status})

    def _delay(self, case: Case, granted: Permit, outcome: Outcome, *, immediate: bool) -> float | None:
        row = case.promises[granted.action.promise]
        left = (row.deadline_at - case.now).total_seconds() if row.deadline_at else 3600.0
        delay = next_delay(
            replace(outcome, retryable=True) if immediate else outcome,
            granted.attempt,
            self._attempts(case, row.promise),
            self._chance(),
            left,
        )
        return 0.0 if delay is not None and immediate else delay

    def _attempts(self, case: Case, promise: str) -> int:
        """How many attempts its author allows."""
        invoke = case.history.invoke(case.promise_id(promise))
        assert invoke is not None
        return proposal_from(case.payloads[reference_of(invoke.scheduled.input)]).max_attempts

    def _note_retry(self, case: Case, granted: Permit, error_class: str, at: datetime.datetime) -> None:
        body = {"promise": granted.action.promise, "attempt": granted.attempt, "error_class": error_class}
        case.note("effect.retried", {**body, "retry_at": stamp(at)})

    def _key(self, action: Action) -> str:
        return hashed(self._hash_key(action.tenant), "effect-key", action.key)
