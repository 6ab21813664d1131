"""A replay counts what enforcement would say: the matrix equals a plain recomputation, and an interruption costs nothing."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.canonical import encode, jcs, sha256
from engine.gate.question import People, Question, canonical_input
from engine.gate.replay import LOOSER, SAME, TIGHTER, Past, Tally, flips_max, tally_from, weigh
from engine.gate.verdict import judge
from governance import clock
from governance.policy import replay
from governance.policy.bundle import Bundle, build, complete_data, read_source, shipped_directory
from governance.policy.embedded import Embedded
from governance.policy.replay import Job, burden, run, size
from governance.store import drafts
from tests.governance.policy.test_table import generated
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]

SOURCE = read_source(shipped_directory())
TEST = complete_data(SOURCE.data, SOURCE.data["tenants"]["test"], "test")
BLOCK = '\ndeny contains {"code": "no_closing", "message": "m"} if {\n\tinput.action.operation == "close"\n}\n'


def bundle_with(overlay: str = "", **data: Any) -> Bundle:
    modules = {**SOURCE.modules, "twokeys/overlay.rego": SOURCE.modules["twokeys/overlay.rego"] + overlay}
    return build(modules, {"defaults": {}, "tenants": {}}, {"test": {**TEST, **data}})


BASE = bundle_with()
DRAFT = bundle_with(BLOCK, connectors=["bank", "jira", "servicenow", "slack"], blocked_targets=[])


def questions(count: int) -> list[bytes]:
    dice = random.Random(11)
    found: list[bytes] = []
    while len(found) < count:
        document = generated(dice, odd=0)
        if document["action"]["target"]["id"].isascii():
            document["request"]["id"] = f"{len(found):08x}-0000-4000-8000-000000000000"
            found.append(canonical_input(document))
    return found


def brute(bundle: Bundle, asked: bytes) -> dict[str, Any]:
    """The whole verdict, one question at a time, by the very function that a worker calls."""
    engine = ENGINES[bundle.revision]
    document = replay.read_input(asked)
    action = document["action"]
    everybody = frozenset(f"p{n}" for n in range(20))
    groups = dict.fromkeys(("oncall", "incident-managers", "finance", "security"), everybody)
    subject = {name: action[name] for name in ("kind", "risk_tier", "reversible")}
    question = Question(
        asked, document["request"]["id"], action["sha256"], "enforce", subject, People(groups, frozenset())
    )
    verdict = judge(question, engine, accepted=(bundle.revision,), monotonic=clock.monotonic).verdict
    return {
        "effect": verdict.effect, "keys": verdict.keys, "tier": verdict.tier, "counts": dict(verdict.counts),
        "groups": list(verdict.groups),
        "expires_in_s": verdict.expires_in_s, "obligations": list(verdict.obligations),
        "reasons": [{"code": reason.code, "message": reason.message} for reason in verdict.reasons],
        "deny_kind": verdict.deny_kind,
    }  # fmt: skip


ENGINES: dict[str, Embedded] = {}


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    for bundle in (BASE, DRAFT):
        ENGINES[bundle.revision] = Embedded(deadline_seconds=5)
        ENGINES[bundle.revision].load(bundle)
    yield
    for engine in ENGINES.values():
        engine.close()
    ENGINES.clear()


def recorded(world: World, asked: list[bytes]) -> str:
    """A run whose verdicts these are, as the policy in force gave them; a third were judged again, one had no question."""
    run_id = world.start()
    with world.parts.database.unit(world.tenant) as unit:
        for n, one in enumerate(asked):
            said = brute(BASE, one)
            body = jcs(
                {"deny_kind": said["deny_kind"], "reasons": said["reasons"], "tier": said["tier"], "keys": said["keys"]}
            )
            unit.run(
                "insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings) values "
                "(:tenant, :run, :promise, :n, :purpose, :effect, '\\x00', :revision, :body, :input, '\\x00')",
                run=run_id, promise=f"{n % 7}", n=n, purpose="recheck" if n % 3 == 2 else "enforce", effect=said["effect"],
                revision=BASE.revision, body=body, input=one,
            )  # fmt: skip
        unit.run(
            "insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings) values "
            "(:tenant, :run, '9', 1, 'enforce', 'deny', '\\x00', '', :body, '', '')",
            run=run_id, body=jcs({"deny_kind": "fault", "reasons": [], "tier": "low", "keys": 0}),
        )  # fmt: skip
        draft = drafts.Draft(dict(DRAFT.modules), {}, {})
        drafts.create(unit, "d", BASE.revision, world.who["rita"], draft)
    return run_id


def expected(asked: list[bytes]) -> tuple[Counter[str], int, int]:
    matrix: Counter[str] = Counter()
    keys = looser = 0
    for n, one in enumerate(asked):
        old, new = brute(BASE, one), brute(DRAFT, one)
        matrix[f"{old['effect']} > {new['effect']}"] += 1
        looser += weigh(old, new) == LOOSER
        keys += (new["keys"] - old["keys"]) * (n % 3 != 2)
    return matrix, keys, looser


def test_the_matrix_equals_a_recomputation_by_the_gate_itself(world: World) -> None:
    """Every count, by the function that enforces, one question at a time."""
    asked = questions(700)
    recorded(world, asked)
    job = Job(world.tenant, "d", 1, BASE, DRAFT)
    steps: list[int] = []
    done = run(world.parts.database, job, told=steps.append)
    matrix, keys, looser = expected(asked)
    assert (Counter(done.tally.matrix), done.tally.weighed[LOOSER]) == (matrix, looser)
    assert burden(world.parts.database, world.tenant, done.tally).keys == keys
    assert done.tally.differs == 0
    assert done.tally.missing == {"the question could not be put at the time": 1}
    assert (done.seen, sum(steps), size(world.parts.database, job)) == (701, 701, 701)
    assert {flip["how"] for flip in done.tally.first_flips()[:looser]} == {LOOSER}


def test_an_interrupted_replay_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after any page: nothing is counted twice and nothing is forgotten."""
    monkeypatch.setattr(replay, "page", 64)
    asked = questions(300)
    recorded(world, asked)
    job = Job(world.tenant, "d", 1, BASE, DRAFT)

    class Killed(Exception):
        pass

    heard: list[int] = []

    def stop(steps: int) -> None:
        heard.append(steps)
        if len(heard) % 2 == 0:
            raise Killed

    for _ in range(20):
        try:
            done = run(world.parts.database, job, told=stop)
            break
        except Killed:
            continue
    assert len(heard) > 5
    assert Counter(done.tally.matrix) == expected(asked)[0]
    assert run(world.parts.database, job).tally == done.tally
    assert run(world.parts.database, job, again=True).tally.matrix == done.tally.matrix


def test_another_draft_or_another_time_begins_anew(world: World) -> None:
    """A stored position is for exactly one candidate, one revision in force and one time."""
    recorded(world, questions(20))
    database = world.parts.database
    first = run(database, Job(world.tenant, "d", 1, BASE, DRAFT))
    other = run(database, Job(world.tenant, "d", 1, BASE, bundle_with()))
    assert (first.seen, other.seen) == (21, 21)
    assert other.tally.weighed == {SAME: 20, TIGHTER: 0, LOOSER: 0}
    with database.unit(world.tenant) as unit:
        now = unit.now()
    assert run(database, Job(world.tenant, "d", 1, BASE, DRAFT, days=1)).seen == 21
    past = drafts.Position("d", 1, "x", "y", None, None, now - datetime.timedelta(days=9), "", "", 0, 0, False, Tally())
    with database.unit(world.tenant) as unit:
        drafts.keep_position(unit, past)
        assert drafts.count_decisions(unit, None, past.until) == 0
        assert drafts.position(unit, "d", 1, "x") == past


def test_what_was_recorded_otherwise_is_told(world: World) -> None:
    """An engine or a record that changed under us would make every number here a guess."""
    run_id = recorded(world, questions(5))
    asked = questions(6)[5]
    with world.parts.database.unit(world.tenant) as unit:
        wrong = "allow" if brute(BASE, asked)["effect"] != "allow" else "deny"
        unit.run(
            "insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings) values "
            "(:tenant, :run, '8', 1, 'enforce', :effect, '\\x00', :revision, :body, :input, '\\x00')",
            run=run_id, effect=wrong, revision=BASE.revision, body=jcs({"deny_kind": "", "reasons": []}), input=asked,
        )  # fmt: skip
    assert run(world.parts.database, Job(world.tenant, "d", 1, BASE, DRAFT)).tally.differs == 1


# --- counting -----------------------------------------------------------------------------------------------------------


def ruling(effect: str, **changes: Any) -> dict[str, Any]:
    return {
        "effect": effect, "keys": 0, "tier": "low", "counts": {}, "groups": [], "expires_in_s": 0, "obligations": [],
        "reasons": [], **changes,
    }  # fmt: skip


ASKED = ruling("needs_approval", keys=2, tier="high", groups=["a", "b"], expires_in_s=600, counts={"a": 1})


@pytest.mark.parametrize(
    ("old", "new", "how"),
    [
        (ruling("deny"), ruling("allow"), LOOSER),
        (ruling("deny"), ASKED, LOOSER),
        (ASKED, ruling("allow"), LOOSER),
        (ruling("allow"), ASKED, TIGHTER),
        (ASKED, ruling("deny"), TIGHTER),
        (ruling("deny"), ruling("deny", reasons=[{"code": "x", "message": "y"}]), SAME),
        (ASKED, ASKED, SAME),
        (ASKED, {**ASKED, "keys": 1}, LOOSER),
        (ASKED, {**ASKED, "keys": 3}, TIGHTER),
        (ASKED, {**ASKED, "tier": "med"}, LOOSER),
        (ASKED, {**ASKED, "groups": ["a"]}, TIGHTER),
        (ASKED, {**ASKED, "groups": ["a", "b", "c"]}, LOOSER),
        (ASKED, {**ASKED, "groups": ["c"]}, LOOSER),
        (ASKED, {**ASKED, "counts": {}}, LOOSER),
        (ASKED, {**ASKED, "counts": {"a": 1, "b": 1}}, TIGHTER),
        (ASKED, {**ASKED, "expires_in_s": 601}, LOOSER),
        (ASKED, {**ASKED, "expires_in_s": 599}, TIGHTER),
        (ASKED, {**ASKED, "keys": 3, "expires_in_s": 601}, LOOSER),
        (ruling("allow", obligations=[{"type": "reason"}]), ruling("allow"), LOOSER),
        (ruling("allow"), ruling("allow", obligations=[{"type": "reason"}]), TIGHTER),
    ],
)
def test_what_is_looser_is_weighed_in_every_part(old: dict[str, Any], new: dict[str, Any], how: str) -> None:
    """And what cannot be ordered counts as looser."""
    assert weigh(old, new) == how


def test_a_tally_is_stored_whole_and_keeps_what_is_urgent() -> None:
    """All flips are counted; those kept are the looser ones first, and among them what people had refused."""
    tally = Tally()
    for n in range(3 * flips_max):
        past = Past("r", "0", n, first=True, decided="approved" if n % 2 else "rejected")
        tally.add(past, ruling("deny"), ruling("allow") if n % 3 else ASKED)
    tally.add(Past("r", "1", 1, first=True, decided="nobody asked"), ruling("allow"), ruling("deny"))
    kept = tally.first_flips()
    assert len(kept) == flips_max
    assert {(flip["how"], flip["decided"], flip["new"]) for flip in kept} == {(LOOSER, "rejected", "allow")}
    assert tally.decided["allow, rejected"] == flips_max
    stored = tally_from(replace(tally).to_value())
    assert stored.to_value() == tally.to_value()
    assert sha256(encode(stored.to_value())) == sha256(encode(tally.to_value()))
