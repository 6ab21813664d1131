"""Review what was done behind a broken glass: two others say whether it was justified; until then it is a debt of the tenant."""

from __future__ import annotations

from dataclasses import dataclass

from engine.canonical import sha256
from engine.errors import CallerError, Refused
from engine.gate import approval as gate
from engine.ledger.entries import Fact
from engine.limits import reason_chars_max
from governance.commands.authority import Actor, who
from governance.store import approvals, cases, entries, glasses, people
from governance.store.unit import Database

HOWS = ("justified", "unjustified")


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Where a review stands after one person's word."""

    approval: str
    given: int
    needed: int
    sentence: str


class Review:
    """The only way such a debt is ever paid."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def review(self, tenant: str, actor: Actor, approval: str, how: str, reason: str, via: str) -> Reviewed:
        """This person's word about a broken glass; Refused when it is not theirs to give."""
        if how not in HOWS:
            raise CallerError(f"{how[:40]!r} is not an answer", field="how", next_step=f"say {' or '.join(HOWS)}")
        if not reason.strip() or len(reason) > reason_chars_max:
            raise CallerError(
                f"a reason of 1-{reason_chars_max} characters is needed", code="reason_required", field="reason"
            )
        with self._database.unit(tenant) as unit:
            run = approvals.run_of(unit, approval)
            case = cases.load(unit, run, lock=True)
            found, glass = approvals.load(unit, approval, lock=True), glasses.of(unit, approval)
            person = who(unit, actor)
            if glass is None:
                raise Refused("no glass was broken for this", code="not_broken")
            if any(name == person.person for name, _, _ in glass.reviews):
                raise Refused("you have reviewed this already; another person must", code="same_person")
            crowd = {name: people.as_person(one) for name, one in people.profiles(unit).items()}
            gate.check_reviewer(found.asked, glass.person, people.as_person(person), crowd)
            at, identity = unit.now(), f"{actor.kind}:{actor.ref}"
            glasses.put_review(unit, approval, person.person, how, at, via, identity, reason.strip())
            given = len(glass.reviews) + 1
            body = {
                "approval": approval, "person": person.person, "groups": list(person.groups), "how": how, "via": via,
                "given": given, "needed": gate.reviews_needed,
                "reason_sha256": sha256(case.origin.salt_key + reason.strip().encode()).hex(),
            }  # fmt: skip
            entries.note_run(unit, run, [Fact("review.given", {"type": "person", "id": person.person}, body)])
        left = gate.reviews_needed - given
        return Reviewed(
            approval,
            given,
            gate.reviews_needed,
            "Reviewed; nothing is owed any more." if left <= 0 else "Recorded. One other person must review it too.",
        )
