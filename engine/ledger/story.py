"""The rules that the entries of a run must obey together: what was done was proposed, judged, released and receipted.

Nothing here trusts a summary. Verdicts are derived again from the recorded findings, and every release is counted again
from the raw keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.errors import BrokenLedger
from engine.gate.reducer import keys_needed, progress
from engine.ledger.doubts import Doubts
from engine.ledger.entries import Entry, instant
from engine.ledger.findings import derive_verdict
from engine.ledger.lineage import Family
from engine.ledger.owed import Owed
from engine.ledger.receipts import Receipts
from engine.ledger.tasks import Tasks

approver_level_min = 4
nothing_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
settled_statuses = ("ok", "error", "timeout", "rejected")
tiers_in_order = ("low", "med", "high")


@dataclass(slots=True)
class Asked:
    """One request for approval as its entries tell it."""

    body: dict[str, Any]
    seconds: float  # from asking to expiry
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: str = "open"  # open | released | rejected | expired | canceled
    persons: tuple[str, ...] = ()


@dataclass(slots=True)
class Effect:
    """One attempt at an effect as its entries tell it."""

    body: dict[str, Any]
    state: str = "open"  # open | receipted | retried | unknown | resolved


class Story:
    """Takes the entries in order and refuses the first that could not have happened."""

    def __init__(
        self,
        documents: Mapping[str, bytes],
        receipts: Mapping[str, dict[str, Any]],
        started: frozenset[tuple[str, int]],
    ) -> None:
        self._documents = documents
        self._receipts = Receipts(receipts)
        self._started = started
        self._tenant = self._run = ""
        self._requester = ""
        self._family = Family(started)
        self._proposals: dict[str, dict[str, Any]] = {}
        self._verdicts: dict[str, list[dict[str, Any]]] = {}
        self._effects: dict[str, list[Effect]] = {}
        self._done: set[str] = set()
        self._tasks = Tasks()
        self._doubts = Doubts()
        self._owed = Owed()
        self.approvals: dict[str, Asked] = {}
        self.counts: dict[str, int] = {}
        self.remarks: list[str] = []
        self._rules: dict[str, Callable[[Entry], None]] = {
            "run.queued": self._queued,
            **self._family.rules,
            "action.proposed": self._proposed,
            "action.edited": self._owed.edited,
            "verdict.given": self._judged,
            "approval.asked": self._asked,
            "key.given": self._key,
            "key.refused": self._refused,
            "rejection.given": self._rejected,
            "approval.stopped": self._ended,
            "glass.broken": self._glass,
            "debt.overdue": self._debt,
            "approval.released": self._released,
            "approval.rejected": self._ended,
            "approval.expired": self._ended,
            "approval.canceled": self._ended,
            "effect.intended": self._intended,
            "effect.receipted": self._receipted,
            "effect.unknown": self._unknown,
            "effect.resolved": self._resolved,
            "effect.retried": self._retried,
            "effect.reused": self._reused,
            "effect.looked": self._looked,
            "doubt.asked": self._doubted,
            "word.given": self._word,
            "task.asked": self._task_asked,
            "task.answered": self._tasks.answered,
            "task.expired": self._tasks.ended,
            "task.canceled": self._tasks.ended,
            "operator.answered": self._tasks.mended,
            "reversal.proposed": self._reversal,
            "step.completed": self._completed,
            "run.closed": self._closed,
        }

    def take(self, entry: Entry) -> None:
        """One more entry; raises BrokenLedger when it breaks a rule."""
        self.counts[entry.type] = self.counts.get(entry.type, 0) + 1
        rule = self._rules.get(entry.type)
        if rule:
            rule(entry)

    def _task_asked(self, entry: Entry) -> None:
        if entry.body["promise"] in self._proposals:
            _broken("task-twice", f"promise {entry.body['promise']} is an action and no task")
        self._tasks.asked(entry)

    # --- proposed and judged ---------------------------------------------------------------------------------------

    def _queued(self, entry: Entry) -> None:
        self._tenant, self._run = entry.tenant, entry.chain
        self._requester, self._family.trigger = entry.actor["id"], entry.body["trigger_type"]

    def _proposed(self, entry: Entry) -> None:
        body = entry.body
        before = self._proposals.get(body["promise"])
        if before and body["rev"] <= before["rev"]:
            _broken("proposal-order", f"revision {body['rev']} of promise {body['promise']} follows {before['rev']}")
        self._family.check_proposed(body["connector"])
        if not body["action_sha256"] or not body["key_sha256"]:
            _broken("proposal-empty", "a proposal names its action and its effect key by their digests")
        self._proposals[body["promise"]] = body

    def _judged(self, entry: Entry) -> None:
        body = entry.body
        if body["promise"] in self._tasks:
            _broken("sign-off", f"promise {body['promise']} is a task, which no policy judges")
        proposal = self._proposal_of(body)
        given = self._verdicts.setdefault(body["promise"], [])
        if given and body["n"] <= given[-1]["n"]:
            _broken("verdict-order", f"verdict {body['n']} of promise {body['promise']} follows {given[-1]['n']}")
        wanted = [digest for digest in (body["input_sha256"], body["findings_sha256"]) if digest]
        if list(entry.commit) != wanted:
            _broken("verdict-commit", "a verdict commits to exactly its input and its findings")
        remark, obligations = derive_verdict(body, proposal, self._documents, self._tenant, self._run)
        self._owed.judged(body, obligations)
        if remark:
            self.remarks.append(remark)
        given.append(body)

    # --- keys ------------------------------------------------------------------------------------------------------

    def _asked(self, entry: Entry) -> None:
        body = entry.body
        self._proposal_of(body)
        if body["approval"] in self.approvals:
            _broken("approval-twice", f"{body['approval']} is asked twice")
        wanted, lasts_max = self._wanted_of(body)
        for name in ("keys", "groups", "counts", "needs"):
            if body.get(name) != wanted.get(name):
                _broken("approval-verdict", f"asks for {name} {body.get(name)!r} where {wanted.get(name)!r} are needed")
        lasts = (instant(body["expires_at"]) - instant(entry.at)).total_seconds()
        if not 0 < lasts <= lasts_max + 1:
            _broken("approval-expiry", f"expires after {lasts:.0f} seconds where {lasts_max:.0f} are allowed")
        lineage = {ancestor["person"] for ancestor in body["lineage"]}
        if self._requester and self._requester not in lineage:
            _broken("approval-lineage", f"{self._requester} started the run and is missing from the lineage")
        self._family.check_asked(lineage, keys_needed(body["keys"], dict(body["counts"])))
        self.approvals[body["approval"]] = Asked(body, lasts)
        self._owed.asked(body)

    def _wanted_of(self, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What must be asked for: a signature by the author of a task, everything else by policy."""
        if body["promise"] in self._tasks:
            return self._tasks.signatures(body)
        verdict = self._verdict_of(body["promise"], body["verdict_n"])
        if verdict is not self._verdicts[body["promise"]][-1]:
            _broken("approval-verdict", f"verdict {verdict['n']} is not the newest of promise {body['promise']}")
        for name in ("action_sha256", "policy_revision", "tier"):
            if body[name] != verdict[name]:
                _broken("approval-verdict", f"{name} differs from verdict {verdict['n']}")
        return self._wanted(verdict)

    def _wanted(self, verdict: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What must be asked for, and for how long: by the verdict, or as before when only the action drifted."""
        if verdict["effect"] == "needs_approval":
            return verdict, verdict["expires_in_s"]
        before = [asked for asked in self.approvals.values() if asked.body["promise"] == verdict["promise"]]
        if verdict["effect"] != "allow" or not before:
            _broken("approval-verdict", f"verdict {verdict['n']} asks for no approval")
        return before[-1].body, before[-1].seconds

    def _key(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        person = body["person"]
        if asked.state != "open":
            _broken("key-late", f"a key for {body['approval']}, which is already {asked.state}")
        if entry.actor != {"type": "person", "id": person} or not person:
            _broken("key-person", f"the key of {person} was given by {entry.actor['id']}")
        if person in asked.keys:
            _broken("two-person", f"{person} turned a key of {body['approval']} twice")
        if person in {ancestor["person"] for ancestor in asked.body["lineage"]}:
            _broken("key-lineage", f"{person} took part in the request that this key is for")
        if (body["action_sha256"], body["card_sha256"]) != (asked.body["action_sha256"], asked.body["card_sha256"]):
            _broken("key-digest", f"{person} saw another action or another card than was asked for")
        if instant(entry.at) >= instant(asked.body["expires_at"]):
            _broken("key-expired", f"the key of {person} came after {asked.body['expires_at']}")
        if body["level"] < approver_level_min:
            _broken("key-level", f"{person} has level {body['level']}; keys need {approver_level_min}")
        if not set(body["groups"]) & set(asked.body["groups"]):
            _broken("key-group", f"{person} is in none of the groups that were asked")
        self._owed.turned(entry, frozenset(ancestor["person"] for ancestor in asked.body["lineage"]))
        asked.keys[person] = body
        least = keys_needed(asked.body["keys"], dict(asked.body["counts"]))
        given, _ = _progress(asked.body, asked, tuple(asked.keys))
        # Where holds ask for different things, how many it takes depends on who comes: at least so many.
        fits = body["needed"] >= least if "needs" in asked.body else body["needed"] == least
        if not fits or not 1 <= body["given"] <= min(given, body["needed"]):
            _broken("key-count", f"the key of {person} claims to be {body['given']} of {body['needed']}")

    def _refused(self, entry: Entry) -> None:
        self._approval_of(entry.body)

    def _rejected(self, entry: Entry) -> None:
        asked = self._approval_of(entry.body)
        if asked.state != "open":
            _broken("rejection-late", f"{entry.body['approval']} is already {asked.state}")
        self._owed.rejected(entry, asked.body)

    def _released(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        self._same_approval(body, asked)
        if asked.state != "open":
            _broken("release-late", f"{body['approval']} is already {asked.state}")
        self._check_release(asked.body, asked, tuple(body["persons"]))
        if instant(entry.at) >= instant(asked.body["expires_at"]):
            _broken("release-late", f"{body['approval']} expired at {asked.body['expires_at']}")
        self._owed.released(entry, _vias(asked))
        asked.state, asked.persons = "released", tuple(body["persons"])

    def _glass(self, entry: Entry) -> None:
        body = entry.body
        asked = self._approval_of(body)
        self._same_approval(body, asked)
        if asked.state != "open":
            _broken("release-late", f"{body['approval']} is already {asked.state}")
        self.remarks.append(self._owed.broken(entry, asked.body, reversible=self._proposal_of(body)["reversible"]))
        asked.state, asked.persons = "released", (body["person"],)

    def _debt(self, entry: Entry) -> None:
        owing = ", ".join(entry.body["reviews"][:5])
        self.remarks.append(f"DEBT: when this run ended, reviews of broken glass were overdue in this tenant: {owing}")

    def _check_release(self, wanted: dict[str, Any], asked: Asked, persons: tuple[str, ...]) -> None:
        name = asked.body["approval"]
        unknown = [person for person in persons if person not in asked.keys]
        if unknown:
            _broken("forged-key", f"{unknown[0]} is counted for {name} and gave no key")
        if len(set(persons)) != len(persons):
            _broken("two-person", f"one person is counted twice for {name}")
        given, needed = _progress(wanted, asked, persons)
        if given < needed:
            _broken("two-person", f"{name} needs {needed} keys of different people and has {given}")

    def _ended(self, entry: Entry) -> None:
        asked = self._approval_of(entry.body)
        self._same_approval(entry.body, asked)
        # Between release and intent a person may still stop, and a drift may still withdraw.
        if entry.type == "approval.stopped" and asked.state != "released":
            _broken("approval-ended", f"{entry.body['approval']} is {asked.state} and is stopped")
        if asked.state != "open" and not (asked.state == "released" and entry.type != "approval.expired"):
            _broken("approval-ended", f"{entry.body['approval']} is already {asked.state}")
        if entry.type == "approval.expired" and instant(entry.at) < instant(asked.body["expires_at"]):
            _broken("approval-ended", f"{entry.body['approval']} ends only at {asked.body['expires_at']}")
        asked.state = entry.type.partition(".")[2]

    def _same_approval(self, body: dict[str, Any], asked: Asked) -> None:
        if (body["promise"], body["action_sha256"]) != (asked.body["promise"], asked.body["action_sha256"]):
            _broken("approval-action", f"{body['approval']} was asked for another action")

    def _approval_of(self, body: dict[str, Any]) -> Asked:
        asked = self.approvals.get(body["approval"])
        if asked is None:
            _broken("approval-unknown", f"{body['approval'][:40]!r} was never asked for")
        return asked

    # --- effects ---------------------------------------------------------------------------------------------------

    def _intended(self, entry: Entry) -> None:
        body = entry.body
        proposal = self._proposal_of(body)
        if body["key_sha256"] != proposal["key_sha256"]:
            _broken("intent-key", "the intent has another effect key than the proposal")
        place = f"attempt {body['attempt']} of promise {body['promise']}"
        attempts = self._effects.setdefault(body["promise"], [])
        if body["attempt"] < 1 or any(body["attempt"] <= other.body["attempt"] for other in attempts):
            _broken("intent-order", f"{place} is not the next")
        if any(other.state in ("open", "unknown") for other in attempts):
            _broken("intent-open", f"{place} is intended while an earlier one has no known outcome")
        if body["key_sha256"] in self._done:
            _broken("effect-twice", f"{place}: this effect succeeded already")
        if (body["promise"], body["attempt"]) not in self._started:
            _broken("intent-journal", f"the journal does not start {place}")
        self._permit(entry)
        attempts.append(Effect(body))

    def _permit(self, entry: Entry) -> None:
        """An allow for exactly this action, or keys that satisfy the stricter of what was asked and what is asked now."""
        body = entry.body
        verdict = self._verdict_of(body["promise"], body["verdict_n"])
        given = self._verdicts[body["promise"]]
        if verdict is not given[-1] or verdict["action_sha256"] != body["action_sha256"]:
            _broken("executed-unapproved", "the intent does not rest on the newest verdict about this action")
        if verdict["policy_revision"] != body["policy_revision"]:
            _broken("executed-unapproved", "the intent names another policy revision than its verdict")
        denied = any(one["effect"] == "deny" and one["deny_kind"] != "fault" for one in given)
        if denied or verdict["effect"] == "deny":
            _broken("executed-denied", f"policy denied the action of promise {body['promise']}")
        # Once policy wanted people to see this step, a later plain allow does not take that back.
        held = self._family.is_change or any(one["effect"] == "needs_approval" for one in given)
        if not held and not body["approval"]:
            return
        asked = self.approvals.get(body["approval"])
        if asked is None or asked.state != "released":
            state = asked.state if asked else "not asked for"
            _broken("executed-unapproved", f"the action needs keys and {body['approval'] or 'its approval'} is {state}")
        self._same_approval(body, asked)
        is_held = verdict["effect"] == "needs_approval"
        self._owed.check_intent(entry, _vias(asked), asked.persons, held=is_held)
        if is_held and not self._owed.is_broken(body["approval"]):
            if tiers_in_order.index(verdict["tier"]) > tiers_in_order.index(asked.body["tier"]):
                _broken("executed-unapproved", f"{body['approval']} was asked at a lower tier than the recheck demands")
            stricter = {**verdict, "keys": max(verdict["keys"], asked.body["keys"])}
            self._check_release(stricter, asked, asked.persons)

    def _receipted(self, entry: Entry) -> None:
        effect = self._open_effect(entry.body, ("open", "unknown"))
        status = entry.body["status"]
        if status not in settled_statuses:
            _broken("receipt-status", f"{status[:40]!r} is no status of a settled effect")
        envelope = self._check_receipt(entry.body, status)
        if effect.state == "unknown" and envelope.get("how") != "looked":
            _broken("effect-order", "an unknown outcome is settled by looking or by a person, and by nothing else")
        effect.state = "receipted"
        self._settle(entry.body, status)

    def _unknown(self, entry: Entry) -> None:
        effect = self._open_effect(entry.body, ("open",))
        self._check_receipt(entry.body, "unknown")
        effect.state = "unknown"

    def _resolved(self, entry: Entry) -> None:
        body = entry.body
        effect = self._open_effect(body, ("unknown",))
        if entry.actor != {"type": "person", "id": body["person"]} or not body["person"]:
            _broken("resolved-person", "an unknown outcome is resolved by a person who is named")
        self._doubts.check_speaker(body["promise"], body["attempt"], body["person"])
        if body["person"] == self._requester:
            _broken("resolved-person", f"{body['person']} started the run and cannot say how its effect ended")
        envelope = self._check_receipt(body, "")
        if envelope.get("status") not in settled_statuses or body["how"] not in ("happened", "did_not"):
            _broken("receipt-status", "the resolution does not say whether it happened")
        if (body["how"] == "happened") != (envelope["status"] == "ok"):
            _broken("receipt-status", f"the person said {body['how']}, the receipt says {envelope['status']}")
        if envelope.get("resolved_by") != body["person"]:
            _broken("resolved-person", "the receipt names somebody else as the one who resolved it")
        effect.state = "resolved"
        self._settle(body, envelope["status"])

    def _settle(self, body: dict[str, Any], status: str) -> None:
        if status == "ok":
            if body["key_sha256"] in self._done:
                _broken("effect-twice", "a second receipt says that this effect succeeded")
            self._done.add(body["key_sha256"])

    def _retried(self, entry: Entry) -> None:
        body = entry.body
        effect = self._effect_of(body)
        if effect.state == "unknown":
            # Nobody knows whether it happened: only people may want it made again, and enough of them.
            self._doubts.check_retry(body["promise"], body["attempt"])
            self.remarks.append(
                f"attempt {body['attempt']} of promise {body['promise']} stayed unknown and was made again because "
                f"{', '.join(self._doubts.wanting(body['promise'], body['attempt']))} wanted it"
            )
        elif effect.state not in ("open", "receipted", "resolved"):
            _broken("effect-order", f"an attempt that is {effect.state} is tried again")
        effect.state = "retried"

    def _reversal(self, entry: Entry) -> None:
        done = self._proposals.get(entry.body["of"])
        if done is None or done["key_sha256"] not in self._done:
            _broken(
                "reversal", f"{entry.body['step'][:40]} undoes operation {entry.body['of'][:40]}, which never happened"
            )

    def _doubted(self, entry: Entry) -> None:
        effect = self._effect_of(entry.body)
        if effect.state != "unknown" or entry.body["action_sha256"] != effect.body["action_sha256"]:
            _broken("doubt", "people are asked about an attempt that is not unknown, or about another action")
        approval = self.approvals.get(effect.body["approval"])
        groups = approval.body["groups"] if approval else []
        proposal = self._proposal_of({**entry.body, "action_sha256": effect.body["action_sha256"]})
        self._doubts.asked(entry, groups, reversible=proposal["reversible"])

    def _looked(self, entry: Entry) -> None:
        if self._effect_of(entry.body).state != "unknown":
            _broken("effect-order", "an outcome that is known is looked for")

    def _word(self, entry: Entry) -> None:
        if self._effect_of(entry.body).state != "unknown":
            _broken("word-late", f"{entry.body['person']} speaks about an attempt that is not unknown")
        self._doubts.word(entry)

    def _reused(self, entry: Entry) -> None:
        body = entry.body
        proposal = self._proposal_of(body)
        if body["key_sha256"] != proposal["key_sha256"]:
            _broken("intent-key", "the reused receipt has another effect key than the proposal")
        if body["receipt_sha256"] not in self._receipts:
            self.remarks.append(
                f"promise {body['promise']} reused a receipt of run {body['run']}: see that run's bundle"
            )
        self._done.add(body["key_sha256"])

    def _check_receipt(self, body: dict[str, Any], status: str) -> dict[str, Any]:
        return self._receipts.check(body, status, self._tenant, self._run)

    def _effect_of(self, body: dict[str, Any]) -> Effect:
        for effect in self._effects.get(body["promise"], ()):
            if effect.body["attempt"] == body["attempt"]:
                return effect
        _broken("no-intent", f"attempt {body['attempt']} of promise {body['promise']} was never intended")

    def _open_effect(self, body: dict[str, Any], states: tuple[str, ...]) -> Effect:
        effect = self._effect_of(body)
        if effect.state not in states:
            _broken("effect-order", f"an attempt that is {effect.state} gets another outcome")
        for name in ("key_sha256", "action_sha256"):
            if body[name] != effect.body[name]:
                _broken("receipt-other", f"{name} differs from the intent")
        return effect

    # --- ends ------------------------------------------------------------------------------------------------------

    def _completed(self, entry: Entry) -> None:
        promise = entry.body["promise"]
        if promise in self._tasks:
            states = {asked.state for asked in self.approvals.values() if asked.body["promise"] == promise}
            self._tasks.check_done(promise, is_signed="released" in states)
            return
        proposal = self._proposals.get(entry.body["promise"])
        if proposal is None or proposal["key_sha256"] not in self._done:
            _broken("step-unproved", f"step {entry.body['step'][:40]} completed and no receipt says that it happened")

    def _closed(self, entry: Entry) -> None:
        self._family.close()
        for promise, attempts in self._effects.items():
            for effect in attempts:
                if effect.state == "open":
                    _broken("intent-open", f"attempt {effect.body['attempt']} of promise {promise} has no outcome")
                if effect.state == "unknown":
                    if entry.body["status"] == "succeeded":
                        _broken("intent-open", f"promise {promise} is unknown and the run claims to have succeeded")
                    self.remarks.append(f"the outcome of promise {promise} was still unknown when the run closed")

    def _proposal_of(self, body: dict[str, Any]) -> dict[str, Any]:
        proposal = self._proposals.get(body["promise"])
        if proposal is None:
            _broken("unproposed", f"promise {body['promise'][:40]!r} was never proposed")
        if proposal["action_sha256"] != body["action_sha256"]:
            _broken("unproposed", f"the action is not the one that promise {body['promise']} proposed last")
        return proposal

    def _verdict_of(self, promise: str, n: int) -> dict[str, Any]:
        for verdict in self._verdicts.get(promise, ()):
            if verdict["n"] == n:
                return verdict
        _broken("no-verdict", f"promise {promise} has no verdict {n}")


def _vias(asked: Asked) -> dict[str, str]:
    return {person: body["via"] for person, body in asked.keys.items()}


def _progress(wanted: dict[str, Any], asked: Asked, persons: tuple[str, ...]) -> tuple[int, int]:
    return progress(wanted, {person: asked.keys[person]["groups"] for person in persons})


def _broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
