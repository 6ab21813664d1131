"""What a draft comes to before people are asked: proved, tested, compared, replayed over everything recorded, and put in words."""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import Refused
from engine.gate.own import LOOSEN, PUBLISH, ROLL_BACK, Change, text_chars_max
from engine.gate.replay import EFFECTS, LOOSER, TIGHTER, Tally
from engine.gate.tightening import Comparison, people_needed
from governance.policy import proving
from governance.policy import replay as replays
from governance.policy.bundle import Bundle
from governance.policy.reader import Reader
from governance.policy.replay import Burden
from governance.policy.stored import Kept
from governance.store import changes, drafts, people, templates
from governance.store.drafts import DraftRecord, Position
from governance.store.unit import Database, Unit

flips_shown = 30
replay_seconds_max = 20.0  # while somebody waits for the answer; what is left is done by the next request
fresh_hours_max = 24  # what was replayed before that says too little about now
VERBS = {"allow": "allow", "needs_approval": "only ask about", "deny": "deny"}
WERE = {
    "approved": "were approved",
    "rejected": "were rejected",
    "expired": "nobody answered in time",
    "canceled": "were withdrawn",
    "requested": "still wait for an answer",
    "nobody asked": "nobody was asked about",
}


@dataclass(frozen=True, slots=True)
class Proved:
    """A draft that may be proposed: what it becomes, what it changes, and how its tests went."""

    record: DraftRecord
    base: Bundle
    made: Bundle
    comparison: Comparison
    tested: proving.Tested


class Publishing:
    """Everything that is said of a draft where the recorded decisions are; `told` of a replay hears how many it had."""

    def __init__(self, database: Database, kept: Kept) -> None:
        self._database = database
        self._kept = kept

    def in_force(self, tenant: str) -> Bundle:
        """The policy in force."""
        with self._database.unit(tenant, write=False) as unit:
            revision = templates.active_revision(unit)
        if not revision:
            raise Refused("no policy is in force for this tenant", code="no_policy", next_step="`twokeys policy adopt`")
        return self._kept.bundle_of(tenant, revision)

    def prove(self, tenant: str, name: str) -> Proved:
        """The newest edit of a draft against the policy in force; PolicyInvalid with every fault, Refused when a test fails."""
        base = self.in_force(tenant)
        with self._database.unit(tenant, write=False) as unit:
            record = drafts.load(unit, name)
        with Reader() as reader:
            made = proving.check(reader, record.draft, tenant, base)
            tests = self._kept.tests_of(tenant, base.revision)
            tested = proving.run_tests(reader, record.draft, made, base_tests=tests)
            comparison = proving.compared(reader, tenant, base, made)
        return Proved(record, base, made, comparison, tested)

    def replayed(
        self,
        tenant: str,
        proved: Proved,
        *,
        told: Callable[[int], None] = lambda steps: None,
        seconds: float | None = None,
    ) -> Position:
        """The draft's replay over everything recorded, taken up where it was; not done when the seconds were too few."""
        job = replays.Job(tenant, proved.record.name, proved.record.n, proved.base, proved.made)
        at = replays.run(self._database, job, told=told, seconds=seconds)
        with self._database.unit(tenant, write=False) as unit:
            old = unit.now() - at.until > datetime.timedelta(hours=fresh_hours_max)
        return replays.run(self._database, job, told=told, again=True, seconds=seconds) if at.done and old else at

    def prepare(self, tenant: str, name: str, operation: str = PUBLISH) -> Change:
        """The change that this draft's newest edit is, with everything that those who decide must see; or why it is none."""
        self._check_open(tenant, name, operation)
        proved = self.prove(tenant, name)
        if operation != ROLL_BACK and not proved.tested.passed:
            raise Refused(_failed(proved.tested), code="tests_failed", field="draft", next_step="`twokeys policy test`")
        if proved.made.revision == proved.base.revision:
            raise Refused("it says what the policy in force says", code="unchanged", field="draft")
        at = self.replayed(tenant, proved, seconds=replay_seconds_max)
        if not at.done:
            raise Refused(
                f"{at.seen} recorded decisions are replayed and more are left", code="replaying", field="draft",
                next_step="ask again: it goes on where it was",
            )  # fmt: skip
        needed = 2 if operation == LOOSEN else people_needed(proved.comparison, at.tally.weighed[LOOSER])
        with self._database.unit(tenant, write=False) as unit:
            _check_people(unit, proved.record)
            # Whoever wrote what comes back is an author of it, however long ago that was.
            earlier = drafts.published_as(unit, proved.made.revision) if operation == ROLL_BACK else None
        cost = replays.burden(self._database, tenant, at.tally)
        fields = {
            "impact": "\n".join(impact(at, cost)), "weight": "\n".join(weight(proved.comparison, needed)),
            "diff": "\n".join(text_diff(tenant, proved.base, proved.made)).expandtabs(4),
            "edit": f"{proved.record.n} of {name}", "revision": proved.made.revision, "bundle_sha256": proved.made.sha256,
        }  # fmt: skip
        _check_readable(fields)
        record = proved.record
        authors = {*record.authors, *(earlier.authors if earlier is not None else ())}
        return Change(
            operation, name, fields, needed, draft=name, n=record.n, base_revision=proved.base.revision, revision=proved.made.revision,
            bundle=proved.made.archive, bundle_sha256=proved.made.sha256, authors=tuple(sorted(authors)),
        )  # fmt: skip

    def adopted(self, tenant: str) -> Change | None:
        """The policy in force with this release's own rules; None when it has them."""
        base = self.in_force(tenant)
        draft = self._kept.starting(tenant, base.revision)
        with Reader() as reader:
            made = proving.check(reader, draft, tenant, base)
        if made.revision == base.revision:
            return None
        return Change(
            PUBLISH, "product", {}, 2, base_revision=base.revision, revision=made.revision, bundle=made.archive,
            bundle_sha256=made.sha256,
        )  # fmt: skip

    def _check_open(self, tenant: str, name: str, operation: str) -> None:
        with self._database.unit(tenant, write=False) as unit:
            record, live = drafts.load(unit, name), templates.active_revision(unit)
            newest = next(iter(changes.activations(unit, 1)), None)
        if record.state != "open":
            raise Refused(f"draft {name!r} is {record.state}", code="closed", field="draft")
        if record.base_revision != live:
            raise Refused(
                f"it was made from {record.base_revision[:16]}, and {live[:16]} is in force now", code="policy_moved", field="draft",
                next_step="`twokeys policy rebase` takes over what changed meanwhile",
            )  # fmt: skip
        if newest is not None and newest.until is not None and operation in (PUBLISH, LOOSEN):
            # A draft on top of it would make for ever what was agreed to for some hours.
            raise Refused(
                f"the policy is loosened until {newest.until:%Y-%m-%d %H:%M} UTC; what is published now would rest on that",
                code="loosened", field="draft", next_step=f"wait, or end it: `twokeys policy rollback {newest.base_revision[:16]}`",
            )  # fmt: skip


def _check_people(unit: Unit, record: DraftRecord) -> None:
    """Nobody is locked out: every group is there, and there are people who could agree to the next change."""
    members = people.group_members(unit)
    data = record.draft.data
    named = {group for groups in data["approver_groups"].values() for group in groups}
    named |= {group for quorum in data.get("quorums", ()) for group in quorum["counts"]}
    owners = data.get("policy_owners", data["approver_groups"]["high"])
    missing = sorted((named | set(owners)) - members.keys())
    if missing:
        raise Refused(
            f"there is no group {missing[0]!r}",
            code="unknown_group",
            field="tenant.json",
            next_step="`twokeys group add`",
        )
    able = {person for group in owners for person in members[group]}
    if len(able) < 2:
        raise Refused(
            f"nobody could agree to the next change: {', '.join(owners)} have {len(able)} members who may give keys",
            code="too_few_owners", field="tenant.json", next_step="`twokeys group join`",
        )  # fmt: skip


def _check_readable(fields: Mapping[str, str]) -> None:
    for name, text in fields.items():
        if len(text) > text_chars_max or len(text.encode()) > 2 * text_chars_max:
            raise Refused(
                f"its {name} has {len(text)} characters, which nobody reads; at most {text_chars_max}", code="too_large",
                field="draft", next_step="publish it in smaller steps",
            )  # fmt: skip


def _failed(tested: proving.Tested) -> str:
    if tested.gone:
        return f"a test of the policy in force is gone: {tested.gone[0]}"
    for name, why in sorted(tested.failed.items()):
        return f"{name}: {why}" + (f" (and {len(tested.failed) - 1} more)" if len(tested.failed) > 1 else "")
    return f"its tests reach {tested.coverage:.1f} % of the rules; at least {tested.coverage_min:.0f} %"


# --- in words -----------------------------------------------------------------------------------------------------------


def weight(comparison: Comparison, needed: int) -> list[str]:
    """Each difference with its weight, what may loosen first, and how many people that takes."""
    ordered = sorted(comparison.changes, key=lambda change: change.tightens)
    lines = [f"{'tightens' if one.tightens else 'MAY LOOSEN'} {one.place}: {one.what}" for one in ordered]
    return [f"takes {'one person' if needed == 1 else 'two people'} besides its authors", *lines]


def impact(at: Position, cost: Burden) -> list[str]:
    """The replay: the matrix, what people had decided, the burden, and the decisions that would loosen, first."""
    tally = at.tally
    lines = [f"{at.seen} recorded decisions, {tally.replayed} replayed"]
    lines += [f"in force > draft: {cell}: {count}" for cell, count in matrix(tally) if count]
    lines.append(f"looser {tally.weighed[LOOSER]}, tighter {tally.weighed[TIGHTER]}, the same {tally.weighed['same']}")
    lines += said_before(tally)
    pace = (
        f"{cost.minutes:+.0f} approver-minutes"
        if cost.minutes is not None
        else "no key was given here yet, so no minutes"
    )
    lines.append(f"keys {cost.keys:+d} ({pace}); asked {tally.asked_after - tally.asked_before:+d} times")
    lines += [f"not replayed: {count}, {why}" for why, count in sorted(tally.missing.items())]
    if tally.differs:
        lines.append(f"WARNING: {tally.differs} decisions would not come out again as they were recorded")
    flips = tally.first_flips()
    lines += [flip_line(flip) for flip in flips[:flips_shown]]
    left = tally.weighed[LOOSER] + tally.weighed[TIGHTER] - min(len(flips), flips_shown)
    return lines + ([f"and {left} more"] if left > 0 else [])


def matrix(tally: Tally) -> list[tuple[str, int]]:
    """Old effect > new effect with its count, those that loosen first."""
    cells = [(old, new) for old in EFFECTS for new in EFFECTS]
    order = sorted(cells, key=lambda cell: EFFECTS.index(cell[0]) - EFFECTS.index(cell[1]))
    return [(f"{old} > {new}", tally.matrix.get(f"{old} > {new}", 0)) for old, new in order]


def said_before(tally: Tally) -> list[str]:
    """What people had decided about those that would be decided otherwise."""
    lines = []
    for what, count in sorted(tally.decided.items()):
        effect, decided = what.split(", ")
        lines.append(f"would {VERBS[effect]} {count} that {WERE.get(decided, decided)}")
    return lines


def flip_line(flip: Mapping[str, Any]) -> str:
    """One decision that would be another."""
    old, new = ", ".join(flip["old_codes"]), ", ".join(flip["new_codes"])
    decided = WERE.get(str(flip["decided"]), str(flip["decided"]))
    return f"{flip['how']}: run {flip['run']} step {flip['promise']}: {flip['old']} ({old}) > {flip['new']} ({new}); {decided}"


def text_diff(tenant: str, base: Bundle, made: Bundle) -> list[str]:
    """The text of the modules and of the tenant's data, in force and as it would be."""
    old, new = _files(base, tenant), _files(made, tenant)
    found: list[str] = []
    for path in sorted({*old, *new}):
        one, other = old.get(path, "").splitlines(), new.get(path, "").splitlines()
        found += difflib.unified_diff(one, other, f"in force/{path}", f"draft/{path}", lineterm="")
    return found


def _files(one: Bundle, tenant: str) -> dict[str, str]:
    data = json.dumps(one.data["tenants"].get(tenant, {}), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    return {**dict(one.modules), "tenant.json": data}
