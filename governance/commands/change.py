"""Change: a draft published, an earlier policy brought back, a policy loosened for a while, a freeze lifted; each asks people first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.catalog.draft import Draft
from engine.errors import CallerError, Refused, TwokeysError
from engine.gate.own import CONNECTOR, LOOSEN, PUBLISH, ROLL_BACK, THAW, Change, loosened_minutes_max
from engine.ledger.entries import Fact
from engine.program.normalize import Catalog
from engine.program.one_step import Proposal, input_of, one_step
from governance.commands.authority import Actor, allowed
from governance.commands.freeze import checked_reason
from governance.commands.start import Begun, Start, owner_of
from governance.keys import hashed
from governance.store import changes, drafts, entries, standstills, templates
from governance.store.case import ACTION
from governance.store.unit import Database, Unit

# What a draft comes to, proved and replayed: tenant, draft, operation. Raises what is wrong with it.
Prepare = Callable[[str, str, str], Change]


class Changes:
    """Orders about the product's own rules. Each begins a run of one action, which is judged, asked, done once and receipted."""

    def __init__(
        self,
        database: Database,
        prepare: Prepare,
        starting: Callable[[str, str], Draft],
        adopted: Callable[[str], Change | None],
        catalog: Callable[[], Catalog],
        start: Start,
        hash_key: Callable[[str], bytes],
        random_hex: Callable[[int], str],
    ) -> None:
        self._database = database
        self._prepare = prepare
        self._starting = starting
        self._adopted = adopted
        self._catalog = catalog
        self._start = start
        self._hash_key = hash_key
        self._random_hex = random_hex

    def publish(self, tenant: str, actor: Actor, draft: str, reason: str = "") -> Begun:
        """Ask the policy owners to bring this draft into force."""
        return self._policy(tenant, actor, draft, reason.strip(), PUBLISH, 0)

    def roll_back(self, tenant: str, actor: Actor, revision: str, reason: str = "") -> Begun:
        """Ask for an earlier policy, named by the beginning of its revision; the product's own files stay those of this release."""
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "policy")
            live, found = templates.active_revision(unit), templates.revision_of(unit, revision)
            waits = changes.open_run(unit, ROLL_BACK, f"rollback-{found[:12]}")
        if waits:
            return Begun(waits, new=False)
        if found == live:
            raise Refused("this policy is in force", code="unchanged", field="revision")
        content = self._starting(tenant, found)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, "policy")
            name = drafts.free_name(unit, f"rollback-{found[:12]}")
            drafts.create(unit, name, live, person.person, content)
            body = {"draft": name, "n": 1, "base_revision": live, "draft_sha256": content.digest.hex()}
            who = {"type": "person", "id": person.person}
            entries.note(unit, f"policy/{name}", Fact("policy.drafted", who, body))
        try:
            return self._policy(tenant, actor, name, reason.strip(), ROLL_BACK, 0)
        except TwokeysError:
            with self._database.unit(tenant) as unit:
                drafts.close(unit, name, "withdrawn")
                entries.note(unit, f"policy/{name}", Fact("policy.withdrawn", who, {"draft": name}))
            raise

    def loosen(self, tenant: str, actor: Actor, draft: str, reason: str, minutes: int) -> Begun:
        """Ask for a draft in a hurry and for a while: it goes away by itself."""
        if not 1 <= minutes <= loosened_minutes_max:
            raise CallerError(
                f"is 1 to {loosened_minutes_max}: what should stay is published like any draft", field="minutes"
            )
        return self._policy(tenant, actor, draft, checked_reason(reason), LOOSEN, minutes)

    def adopt(self, tenant: str) -> str:
        """The operator's order: this release's own rules in the policy in force, nothing else; empty when they are there already.

        Publishing needs rules that a release before this one did not have, so they cannot come by publishing.
        """
        change = self._adopted(tenant)
        if change is None:
            return ""
        with self._database.unit(tenant) as unit:
            return changes.activate(unit, change, "adopted", run="", by="operator").revision

    def thaw(self, tenant: str, actor: Actor, freeze: str, reason: str) -> Begun:
        """Ask for the end of a freeze, or of the kill switch: two people besides whoever asks."""
        why = checked_reason(reason)
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "freeze")
            found = standstills.of_id(unit, freeze)
            if found is None:
                known = ", ".join(one.freeze for one in standstills.open_ones(unit)) or "nothing stands still"
                raise CallerError(f"{freeze[:40]} is no freeze in force", field="freeze", next_step=known)
        fields = {"lifts": str(found), "reason": why}
        return self._begin(tenant, actor, "freeze", Change(THAW, freeze, fields, people=2), why)

    def _policy(self, tenant: str, actor: Actor, draft: str, reason: str, operation: str, minutes: int) -> Begun:
        with self._database.unit(tenant, write=False) as unit:
            allowed(unit, actor, "policy")
            waits = _waiting(unit, operation, draft)
        if waits:
            return Begun(waits, new=False)
        change = self._prepare(tenant, draft, operation)
        more = {"reason": reason} if reason else {}
        if minutes:
            change, more = replace(change, people=2, minutes=minutes), {**more, "minutes": str(minutes)}
        return self._begin(tenant, actor, "policy", replace(change, fields={**change.fields, **more}), reason)

    def _begin(self, tenant: str, actor: Actor, deed: str, change: Change, reason: str) -> Begun:
        proposal = Proposal(CONNECTOR, change.operation, change.target, change.fields, change.risk)
        definition, key = one_step(proposal, self._catalog()), self._hash_key(tenant)
        with self._database.unit(tenant) as unit:
            person = allowed(unit, actor, deed)
            # One at a time for each tenant: of two who propose the same at once, the second finds the first's run.
            unit.run("select pg_advisory_xact_lock(hashtextextended('own_change/' || :tenant, 0))")
            waits = changes.open_run(unit, change.operation, change.target)
            if waits:
                return Begun(waits, new=False)
            _check_still(unit, change)
            templates.keep(unit, definition, person.person)
            said = Fact(
                "change.proposed",
                {"type": "person", "id": person.person},
                {
                    "operation": change.operation, "target": change.target, "draft": change.draft, "n": change.n,
                    "base_revision": change.base_revision, "revision": change.revision, "bundle_sha256": change.bundle_sha256,
                    "people": change.people, "authors": sorted(change.authors),
                    "reason_sha256": hashed(key, "reason", reason) if reason else "",
                },
            )  # fmt: skip
            ref = f"change/{self._random_hex(8)}"
            begun = self._start.begin(
                unit, key, definition, "main", ACTION, ref, input_of(proposal), person.person, owner_of(person), facts=(said,),
                editors=change.authors,
            )  # fmt: skip
            changes.put(unit, begun.run, change, person.person)
        return begun


def _waiting(unit: Unit, operation: str, draft: str) -> str:
    """The run that asks for the newest edit of this draft already."""
    found = changes.open_run(unit, operation, draft)
    if found:
        change = changes.of_run(unit, found)
        if change is None or change.n != drafts.load(unit, draft).n:
            raise Refused(
                f"an earlier edit of draft {draft!r} still waits for keys in run {found}", code="waits", field="draft",
                next_step=f"`twokeys run cancel {found}`, then propose again",
            )  # fmt: skip
    return found


def _check_still(unit: Unit, change: Change) -> None:
    """Nothing moved while the draft was proved and replayed."""
    if change.operation == THAW:
        return
    if templates.active_revision(unit) != change.base_revision or drafts.load(unit, change.draft).n != change.n:
        raise Refused(
            "the draft or the policy in force changed meanwhile", code="policy_moved", next_step="propose it again"
        )
