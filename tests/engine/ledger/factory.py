"""A synthetic run with real documents, real signatures and a real log, and the means to forge it at every level."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.canonical import encode, jcs, sha256, tagged
from engine.gate import receipt as gate_receipt
from engine.gate.action import Action, Field, Target
from engine.gate.permit import Judgement, Release, permit
from engine.gate.question import Facts, Grant, Moment, People, Usage, ask
from engine.gate.receipt import Outcome
from engine.gate.reducer import reduce
from engine.ids import PromiseId
from engine.journal.events import (
    Entry,
    Event,
    ExecutionCompleted,
    ExecutionStarted,
    InvokeCompleted,
    InvokeScheduled,
    InvokeStarted,
    encode_row,
)
from engine.ledger.bundle import BundleContents, PolicySource, SignedReceipt
from engine.ledger.bundle import build as build_bundle
from engine.ledger.entries import GENESIS, Fact, build, stamp
from engine.ledger.layout import MANIFEST, journal_events, journal_head, policy_revision
from engine.ledger.notes import Checkpoint, log_origin, sign_note, write_vkey
from engine.ledger.statement import read_envelope, read_statement, write_envelope, write_statement
from engine.ledger.tree import Tree, leaf_hash
from engine.ledger.trust import public_id, write_trust

RUN = "0123456789abcdef0123456789abcdef"
TENANT = "acme"
ORIGIN = log_origin("twokeys.example", TENANT)
START = datetime(2026, 8, 21, 10, 0, 0, tzinfo=UTC)
REQUESTER, OLGA, PAUL, NEMO = "per_aa00000000000001", "per_bb00000000000002", "per_cc00000000000003", "per_dd04"
DEFINITION = encode({"name": "incident-triage", "steps": []})
REGO = b"package twokeys.main\n"
POLICY_FILES = [("data.json", sha256(b"{}").hex()), ("twokeys/main.rego", sha256(REGO).hex())]
REVISION = policy_revision(POLICY_FILES)
TENANT_KEY = bytes(range(32))
SYSTEM = {"type": "system", "id": ""}


class Key:
    """An Ed25519 key made from a name, so that every run of the tests has the same bytes."""

    def __init__(self, name: str) -> None:
        private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        self.public = private.public_key().public_bytes_raw()
        self.sign: Callable[[bytes], bytes] = private.sign
        self.id = public_id(self.public)


LOG, BUNDLE, RECEIPT, WITNESS, THIEF = (Key(name) for name in ("log", "bundle", "receipt", "witness", "thief"))


def trust_text(**changes: Any) -> str:
    known: dict[str, Any] = {
        "logs": (write_vkey(ORIGIN, LOG.public),),
        "bundles": (write_vkey("twokeys.example/bundle", BUNDLE.public),),
        "receipts": (write_vkey("twokeys.example/receipt", RECEIPT.public),),
        "tenant": TENANT,
    }
    return write_trust(**{**known, **changes})


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Synthetic:
    """One run being written: facts with their times, and everything that travels with them."""

    facts: list[tuple[Fact, datetime]] = field(default_factory=list)
    documents: list[bytes] = field(default_factory=list)
    receipts: list[SignedReceipt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    now: datetime = START
    run: str = RUN
    receipt_key: Key = RECEIPT
    verdicts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lineage: tuple[str, ...] = (REQUESTER,)

    def add(
        self, kind: str, body: dict[str, Any], actor: dict[str, str] = SYSTEM, commit: tuple[str, ...] = ()
    ) -> None:
        self.now += timedelta(milliseconds=250)
        self.facts.append((Fact(kind, actor, body, commit), self.now))

    def begin(self) -> None:
        definition = tagged("twokeys/definition/v1", DEFINITION).hex()
        card = jcs({"salt": "00" * 16, "media": "application/json", "value": {"number": "INC0010001"}})
        body = {"workflow": "incident-triage", "version": "1", "definition_sha256": definition}
        body |= {"trigger_type": "webhook", "trigger_ref": hashed("INC"), "workspace": "main"}
        body |= {"input_sha256": sha256(card).hex()}
        self.add("run.queued", body, person(REQUESTER), (sha256(card).hex(),))
        self.add("run.started", {"journal_version": 1})
        started = ExecutionStarted("ab" * 32, "{}", PromiseId(self.run), "key")
        self.events.append(started)

    def action(self, promise: str, kind: str = "write", risk: str = "low", reversible: bool = True) -> Action:
        return Action(
            tenant=TENANT,
            workspace="main",
            run=self.run,
            promise=promise,
            step=f"step-{promise}",
            workflow="incident-triage",
            version="1",
            definition=tagged("twokeys/definition/v1", DEFINITION).hex(),
            connector="servicenow",
            operation="incident_update",
            kind=kind,
            risk=risk,
            reversible=reversible,
            reversal="inverse",
            target=Target("servicenow", "incident", "abc123", "dev1"),
            fields=(Field("assignment_group", "set", f"network-{promise}", "internal"),),
            amount_minor=0,
            currency="",
            preconditions=(("sys_mod_count", "7"),),
            key=f"sn:incident:update:dev1:abc123:{promise}",
            summary="Update incident",
            salt="5a" * 16,
        )

    def propose(self, action: Action) -> None:
        target = {"target_type": action.target.type, "target": hashed(action.target.id)}
        body = {"promise": action.promise, "rev": 1, "step": action.step, "connector": action.connector}
        body |= {"operation": action.operation, "kind": action.kind, "risk": action.risk, **target}
        body |= {
            "reversible": action.reversible,
            "key_sha256": hashed(action.key),
            "action_sha256": action.digest.hex(),
        }
        self.add("action.proposed", body)
        promise = PromiseId(self.run, tuple(int(part) for part in action.promise.split(".")))
        self.events.append(InvokeScheduled(promise, "action", "servicenow.incident_update", "{}", ""))

    def judge(
        self, action: Action, *, holds: list[dict[str, Any]] | None = None, purpose: str = "enforce", denials: Any = ()
    ) -> None:
        n = len(self.verdicts.get(action.promise, ())) + 1
        request = f"00000000-0000-4000-8000-{len(self.documents):012d}"
        question = ask(
            action,
            request=request,
            purpose=purpose,
            facts=Facts("prod", False, "webhook", 1, "high", 0, 1, "workflow", "incident-triage"),
            usage=Usage(0, 0, 0, 1, 0),
            at=Moment(1_787_000_000_000, 4, 600, "UTC", "business"),
            people=People({}, frozenset()),
            tenant_key=TENANT_KEY,
            grant=Grant(),
        )
        assert question.input_bytes, question.refusal
        findings = {
            "schema": "twokeys.policy.findings/v1",
            "echo": {"request_id": request, "action_sha256": action.digest.hex()},
            "policy": {"package": "twokeys.main", "revision": REVISION},
            "denials": list(denials),
            "holds": holds or [],
            "grants": [{"code": "known_tenant", "message": "the tenant may use this connector"}],
            "obligations": [],
        }
        raw = jcs(findings)
        ruling = reduce(findings, {"kind": action.kind, "risk_tier": action.risk, "reversible": action.reversible})
        body = {"promise": action.promise, "n": n, "purpose": purpose, "retryable": False}
        body |= {name: ruling[name] for name in ("effect", "deny_kind", "tier", "keys", "groups", "expires_in_s")}
        body |= {"counts": [list(pair) for pair in sorted(ruling["counts"].items())]}
        body |= {"needs": ruling["needs"]} if ruling["needs"] else {}
        body |= {"reasons": [reason["code"] for reason in ruling["reasons"]], "action_sha256": action.digest.hex()}
        body |= {"policy_revision": REVISION, "engine": "opa", "engine_version": "1.20.2"}
        body |= {"input_sha256": sha256(question.input_bytes).hex(), "findings_sha256": sha256(raw).hex()}
        self.documents += [question.input_bytes, raw]
        self.verdicts.setdefault(action.promise, []).append(body)
        self.add("verdict.given", body, commit=(body["input_sha256"], body["findings_sha256"]))

    def ask(self, action: Action, approval: str) -> None:
        verdict = self.verdicts[action.promise][-1]
        body = {"approval": approval, "promise": action.promise, "card_sha256": hashed(approval)}
        body |= {
            name: verdict[name]
            for name in ("action_sha256", "tier", "keys", "counts", "groups", "needs", "policy_revision")
            if name in verdict
        }
        body |= {"verdict_n": verdict["n"], "lineage": [{"person": one, "why": "requester"} for one in self.lineage]}
        expires = self.now + timedelta(seconds=verdict["expires_in_s"])
        self.add("approval.asked", body | {"expires_at": stamp(expires)})

    def key(self, action: Action, approval: str, who: str, given: int, needed: int, **changes: Any) -> None:
        body = {
            "approval": approval,
            "person": who,
            "level": 4,
            "groups": ["ops"],
            "via": "slack_button",
            "card_rev": 1,
        }
        body |= {"action_sha256": action.digest.hex(), "card_sha256": hashed(approval), "policy_revision": REVISION}
        body |= {"blocks_sha256": hashed("blocks"), "given": given, "needed": needed}
        self.add("key.given", body | changes, person(who))

    def release(self, action: Action, approval: str, *persons: str) -> None:
        body = {"approval": approval, "promise": action.promise, "action_sha256": action.digest.hex()}
        self.add("approval.released", body | {"persons": list(persons)})

    def intend(self, action: Action, approval: str = "", attempt: int = 1) -> None:
        verdict = self.verdicts[action.promise][-1]
        body = {"promise": action.promise, "attempt": attempt, "key_sha256": hashed(action.key), "approval": approval}
        body |= {"action_sha256": action.digest.hex(), "verdict_n": verdict["n"], "policy_revision": REVISION}
        self.add("effect.intended", body)
        promise = PromiseId(self.run, tuple(int(part) for part in action.promise.split(".")))
        self.events.append(InvokeStarted(promise, attempt))

    def settle(
        self, action: Action, status: str = "ok", n: int = 1, attempt: int = 1, how: str = "performed", who: str = ""
    ) -> None:
        judgement = Judgement(1, "allow", action.digest.hex(), 0, action.risk, REVISION)
        release = Release("ap_1", action.digest, (OLGA, PAUL), 2, "high")
        made = gate_receipt.write(
            permit(action, judgement, release, attempt=attempt, deadline_seconds=10.0),
            Outcome(status, response={"status": 200}),
            n=n,
            at=stamp(self.now),
            executor="worker/1",
            key_sha256=hashed(action.key),
            key_id=self.receipt_key.id,
            hashed=hashed,
            sign=self.receipt_key.sign,
            resolved_by=who,
            how=how,
        )
        self.receipts.append(SignedReceipt(made.body, made.signature, made.key_id))
        body: dict[str, Any] = {"promise": action.promise, "attempt": attempt, "n": n, "key_sha256": hashed(action.key)}
        body |= {"action_sha256": action.digest.hex(), "receipt_sha256": made.sha256.hex(), "signed_by": made.key_id}
        if how != "performed":
            self.add(
                "effect.resolved",
                body | {"how": "happened" if status == "ok" else "did_not", "person": who},
                person(who) if who else SYSTEM,
            )
        elif status == "unknown":
            self.add("effect.unknown", body)
        else:
            self.add("effect.receipted", body | {"status": status})

    def complete(self, action: Action) -> None:
        self.add("step.completed", {"promise": action.promise, "step": action.step})
        promise = PromiseId(self.run, tuple(int(part) for part in action.promise.split(".")))
        self.events.append(InvokeCompleted(promise, '{"ok":{"commit":"%s","size":2}}' % ("ab" * 32), 1))

    def close(self, status: str = "succeeded") -> None:
        self.events.append(ExecutionCompleted("{}"))
        head, version = journal_head(journal_events(self.journal()))
        body = {
            "status": status,
            "entries": len(self.facts) + 1,
            "journal_version": version,
            "journal_head": head.hex(),
        }
        self.add("run.closed", body)

    def journal(self) -> tuple[bytes, ...]:
        written = [Entry(n + 1, 1_787_000_000_000_000 + n, event) for n, event in enumerate(self.events)]
        return tuple(encode_row(written[n : n + 2]) for n in range(0, len(written), 2))

    # --- from facts to a bundle ------------------------------------------------------------------------------------

    def entries(self) -> list[bytes]:
        """The chain, hashed again from the facts as they are now."""
        prev, chain = GENESIS, []
        for seq, (fact, at) in enumerate(self.facts):
            data, prev = build(fact, TENANT, self.run, seq, prev, at)
            chain.append(data)
        return chain

    def contents(self, chain: list[bytes] | None = None, log: Key = LOG, bundle: Key = BUNDLE) -> BundleContents:
        """What a bundle of these facts is made of, in a log with other entries between."""
        chain = self.entries() if chain is None else chain
        tree, indexes = Tree(), []
        for data in chain:
            tree.append(leaf_hash(b"somebody else's entry %d" % tree.size))
            indexes.append(tree.size)
            tree.append(leaf_hash(data))
        tree.append(leaf_hash(b"a later entry"))
        text = Checkpoint(ORIGIN, tree.size, tree.root()).text
        return BundleContents(
            entries=tuple(chain),
            indexes=tuple(indexes),
            proofs=tuple(tree.inclusion(index) for index in indexes),
            checkpoint=sign_note(text, ORIGIN, log.public, log.sign),
            documents=tuple(self.documents),
            receipts=tuple(self.receipts),
            definition=DEFINITION,
            journal=self.journal(),
            policies=tuple(
                PolicySource(REVISION, path, digest, REGO if path.endswith("rego") else None)
                for path, digest in POLICY_FILES
            ),
            trust=trust_text(),
            verifier=b"# a copy of the verifier stands here\n",
            public=bundle.public,
            sign=bundle.sign,
        )

    def bundle(self, **changes: Any) -> bytes:
        return build_bundle(replace(self.contents(), **changes))

    def change(
        self, kind: str, nth: int = 0, *, at: datetime | None = None, actor: dict[str, str] | None = None, **body: Any
    ) -> None:
        """Forge one fact; whoever calls this holds every key and hashes everything again."""
        places = [n for n, (fact, _) in enumerate(self.facts) if fact.type == kind]
        fact, when = self.facts[places[nth]]
        forged = replace(fact, body={**fact.body, **body}, actor=actor or fact.actor)
        self.facts[places[nth]] = (forged, at or when)
        self.recount()

    def remove(self, kind: str, nth: int = 0) -> None:
        places = [n for n, (fact, _) in enumerate(self.facts) if fact.type == kind]
        del self.facts[places[nth]]
        self.recount()

    def place(self, kind: str, nth: int = 0) -> int:
        return [n for n, (fact, _) in enumerate(self.facts) if fact.type == kind][nth]

    def recount(self) -> None:
        fact, at = self.facts[-1]
        if fact.type == "run.closed" and fact.body["entries"] != len(self.facts):
            self.facts[-1] = (replace(fact, body={**fact.body, "entries": len(self.facts)}), at)


def person(who: str) -> dict[str, str]:
    return {"type": "person", "id": who}


def hold(two_person: bool = True, **more: Any) -> dict[str, Any]:
    reason = {"code": "high_risk", "message": "two people look at this", "tier": "high"}
    return {**reason, "two_person": two_person, "groups": ["ops"], "expires_in_s": 3600, **more}


def two_person_run() -> Synthetic:
    """A low-risk write that policy allows, and a high-risk one that two people release after a refusal."""
    made = Synthetic()
    made.begin()
    low, high = made.action("0"), made.action("1", risk="high")
    made.propose(low)
    made.judge(low)
    made.intend(low)
    made.settle(low)
    made.complete(low)
    made.propose(high)
    made.judge(high, holds=[hold()])
    made.ask(high, "ap_1")
    made.add(
        "key.refused", {"approval": "ap_1", "person": REQUESTER, "code": "self", "via": "slack_button", "count": 1}
    )
    made.key(high, "ap_1", OLGA, 1, 2)
    made.key(high, "ap_1", PAUL, 2, 2)
    made.release(high, "ap_1", OLGA, PAUL)
    made.judge(high, holds=[hold()], purpose="recheck")
    made.intend(high, "ap_1")
    made.settle(high)
    made.complete(high)
    made.close()
    return made


def unknown_run() -> Synthetic:
    """A write whose outcome nobody knew until a person said that it happened."""
    made = Synthetic()
    made.begin()
    low = made.action("0")
    made.propose(low)
    made.judge(low)
    made.intend(low)
    made.settle(low, "unknown")
    made.settle(low, "ok", n=2, how="told", who=OLGA)
    made.complete(low)
    made.close()
    return made


def small_run() -> Synthetic:
    """The least that closes: for flipping every byte."""
    made = Synthetic()
    made.begin()
    low = made.action("0")
    made.propose(low)
    made.judge(low)
    made.intend(low)
    made.settle(low)
    made.close()
    return made


def resealed(files: dict[str, bytes], key: Key = BUNDLE, **predicate: Any) -> dict[str, bytes]:
    """The files with a manifest and an attestation that fit them, signed by whoever holds the key."""
    files = {name: data for name, data in files.items() if name != MANIFEST}
    envelope = files.pop("attestation.intoto.jsonl")
    _, said = read_statement(read_envelope(envelope)[0])
    data = {name: body for name, body in files.items() if name.startswith("data/")}
    manifest = "".join(f"{hashlib.sha256(data[name]).hexdigest()}  {name}\n" for name in sorted(data)).encode()
    statement = write_statement(hashlib.sha256(manifest).hexdigest(), {**said, **predicate})
    return {**files, MANIFEST: manifest, "attestation.intoto.jsonl": write_envelope(statement, key.public, key.sign)}
