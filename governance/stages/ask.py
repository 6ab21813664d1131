"""Ask: what policy wants people to see becomes an approval, a clock and a card in the outbox; then nothing of the run is held."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from engine.gate.action import Action
from engine.gate.approval import Asked, escalation, expires_at
from engine.gate.card import CardRecord, card_digest
from engine.gate.verdict import Judged
from governance.store.approvals import Recorded, card_record, requirement
from governance.store.around import Around
from governance.store.case import Case
from governance.store.gates import reminded_at

CardBody = Callable[[CardRecord], bytes]


def ask(
    case: Case, around: Around, action: Action, judged: Judged, verdict_n: int, old: Recorded | None,
    *, approval: str, card_body: CardBody, console_url: str, lineage: Mapping[str, str],
) -> None:  # fmt: skip
    """Record the question and post its card. An older question about the same step is withdrawn, its keys void."""
    v, o = judged.verdict, case.origin
    if old is not None and old.asked.status in ("requested", "approved"):
        case.approval_status[old.asked.id] = "canceled"
        case.note(
            "approval.canceled",
            {
                "approval": old.asked.id,
                "promise": action.promise,
                "action_sha256": old.asked.action_digest.hex(),
                "why": "drift",
            },
        )
    root = ""
    if old is not None:
        # The same thread: whoever decided before sees there what is different now.
        root = old.root or old.asked.id
        case.show_card(old.asked.id)
        case.posts.append(("said", root, {"text": f"🔁 {_changed(old, action, around)}"}))
    keys, counts, groups, needs = v.keys, dict(v.counts), frozenset(v.groups), v.needs
    until = expires_at(case.now, v)
    if v.effect == "allow" and old is not None:
        # Policy wants nobody now, but people agreed to something else: the same requirement, for what would really run.
        keys, counts, groups, needs = old.asked.keys, dict(old.asked.counts), old.asked.groups, old.asked.needs
        until = case.now + (old.asked.expires_at - old.asked.requested_at)
    empty = Asked(
        id=approval, tenant=o.tenant, run=o.run, promise=action.promise, action_digest=action.digest, card_digest=b"", tier=v.tier,
        keys=keys, counts=counts, groups=groups, status="requested", requested_at=case.now, expires_at=until, lineage=lineage,
        obligations=v.obligations, needs=needs,
    )  # fmt: skip
    shown = Recorded(
        asked=empty, votes=(), reasons=(), card_rev=1, verdict_n=verdict_n, rev=case.promises[action.promise].rev, action=action, verdict=v,
        workflow=o.workflow, version=case.code_version, trigger=f"{o.trigger_type} {o.trigger_ref}", promise_state="waiting_approval",
        promise_error="", decided_at=None, root=root,
    )  # fmt: skip
    body = card_body(
        card_record(shown, around.profiles, console_url=console_url, environment=around.tenant.environment)
    )
    card = card_digest(action.digest.hex(), body)
    case.add(
        "approval", approval=approval, promise=action.promise, action_digest=action.digest, card_digest=card, tier=v.tier, keys=empty.keys,
        body=requirement(empty, root), card=body, verdict_n=verdict_n, requested_at=case.now, expires_at=empty.expires_at,
    )  # fmt: skip
    case.add("card", approval=approval)
    case.add("due", kind="approval", ref=approval, at=empty.expires_at)
    case.add("due", kind="remind", ref=approval, at=reminded_at(case.now, empty.expires_at))
    if (rule := escalation(v.obligations)) is not None:
        case.add("due", kind="escalate", ref=approval, at=case.now + datetime.timedelta(seconds=rule[1]))
    case.posts.append(("card", approval, {"after": root} if root else {}))
    case.touch(action.promise, state="waiting_approval", approval=approval)
    case.state = "waiting_approval"
    case.note(
        "approval.asked",
        {
            "approval": approval, "promise": action.promise, "action_sha256": action.digest.hex(),
            "card_sha256": card.hex(), "tier": v.tier,
            "keys": keys, "counts": [[g, c] for g, c in sorted(counts.items())],
            "groups": sorted(groups),
            "expires_at": empty.expires_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "lineage": [{"person": person, "why": why} for person, why in sorted(lineage.items())],
            "verdict_n": verdict_n, "policy_revision": v.policy_revision,
            **({"needs": [dict(need) for need in needs]} if needs else {}),
        },
    )  # fmt: skip


def _changed(old: Recorded, action: Action, around: Around) -> str:
    """What is different from what people were asked before, in words for the thread; whose keys are void."""
    before, after = _shown(old.action), _shown(action)
    said = [
        f"{name} {before.get(name) or '(empty)'} → {after.get(name) or '(empty)'}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name, "") != after.get(name, "")
    ]
    names = [
        around.profiles[vote.person].name for vote in old.votes if vote.kind == "key" and vote.person in around.profiles
    ]
    if not said:
        head = "Asked again: the keys that were given are not enough any more."
    elif old.votes:
        head = f"Changed since it was shown: {'; '.join(said)}."
    else:
        head = f"Changed before anybody decided: {'; '.join(said)}."
    void = f" The keys of {' and '.join(names)} are void." if names and said else ""
    return head + void


def _shown(action: Action) -> dict[str, str]:
    """What people saw of an action, by the names they saw: where it was, what would be set, and for how much."""
    seen = {f"{name} (now)": value for name, value in action.preconditions}
    wanted = {one.name: one.value for one in action.fields}
    amount = {"amount": f"{action.amount_minor / 100:,.2f} {action.currency}"} if action.currency else {}
    return {**amount, **wanted, **seen, "target": action.target.id, "workflow version": action.version}
