"""Two keys are two different people, none of them in the lineage, and every key is checked again at every count."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gate.approval import (
    LINEAGE,
    Asked,
    Counted,
    Person,
    Vote,
    VoteRefused,
    expires_at,
    satisfied,
    standing,
    stands,
    vote,
)
from engine.gate.verdict import Verdict, judge
from tests.engine.gate.kit import NOON, REVISION, Says, action, findings, hold, question

DIGEST = action().digest
SHOWN = DIGEST.hex()[:16]
CARD = b"c" * 32


def person(name: str, *groups: str, **changes: Any) -> Person:
    return replace(Person(f"per_{name}", 4, True, "human", frozenset(groups)), **changes)


ANA = person("ana", "oncall")
LI = person("li", "oncall")
BO = person("bo", "incident-managers")
CY = person("cy", "oncall", "incident-managers")
RITA = person("rita", "oncall")  # the requester
OUT = person("out", "payroll")
PEOPLE = {one.id: one for one in (ANA, LI, BO, CY, RITA, OUT)}


def asked(**changes: Any) -> Asked:
    plain = Asked(
        id="ap_0123456789abcdef",
        tenant="demo",
        run="r",
        promise="0",
        action_digest=DIGEST,
        card_digest=CARD,
        tier="high",
        keys=2,
        counts={},
        groups=frozenset({"oncall", "incident-managers"}),
        status="requested",
        requested_at=NOON,
        expires_at=NOON + timedelta(minutes=30),
        lineage={RITA.id: "requester"},
    )
    return replace(plain, **changes)


def key(who: Person, **changes: Any) -> Vote:
    return replace(Vote(who.id, "key", NOON, DIGEST, CARD), **changes)


def press(
    ask: Asked,
    votes: tuple[Vote, ...],
    who: Person,
    kind: str = "key",
    *,
    shown: str = SHOWN,
    reason: str = "",
    **more: Any,
) -> Counted:
    at = more.pop("at", NOON + timedelta(minutes=1))
    return vote(ask, votes, more.pop("people", PEOPLE), who, kind, shown, at, reason, **more)


def refused(code: str, *args: Any, **more: Any) -> str:
    with pytest.raises(VoteRefused) as info:
        press(*args, **more)
    assert info.value.code == code
    assert info.value.sentence == info.value.reason
    assert 10 < len(info.value.sentence) < 200
    return info.value.sentence


def test_two_people_turn_their_keys() -> None:
    """The first key asks for one more, the second approves."""
    assert press(asked(), (), ANA) == Counted("requested", 1, 2)
    assert press(asked(), (key(ANA),), BO) == Counted("approved", 2, 2)


DEMANDS = (
    {"keys": 1, "counts": [], "groups": ["incident-managers"]},
    {"keys": 1, "counts": [], "groups": ["oncall"]},
)


def test_each_hold_is_satisfied_by_itself() -> None:
    """One of each group: two people of one group are not enough, and who is in both is."""
    ask = asked(keys=1, needs=DEMANDS)
    assert press(ask, (), ANA) == Counted("requested", 1, 2)
    said = refused("not_approver", ask, (key(ANA),), LI)
    assert said == "A key from your groups is already there. Still needed: @incident-managers."
    assert press(ask, (key(ANA),), BO) == Counted("approved", 2, 2)
    assert press(ask, (), CY) == Counted("approved", 1, 1)
    assert not satisfied(ask, (key(ANA),), PEOPLE, NOON)


def test_a_recheck_with_a_further_hold_asks_again() -> None:
    """What the keys gave was enough; what policy wants now is one of each group."""
    ask, both = asked(keys=1), rechecked(two_person=False, groups=["oncall"])
    narrower = replace(both, needs=DEMANDS, groups=("incident-managers", "oncall"))
    assert stands(ask, both, (key(ANA),), PEOPLE, NOON)
    assert not stands(ask, narrower, (key(ANA),), PEOPLE, NOON)
    assert stands(ask, narrower, (key(CY),), PEOPLE, NOON)


def test_the_same_person_cannot_turn_both_keys() -> None:
    """Nor may the second press of one person count as anything."""
    said = refused("same_person", asked(), (key(ANA),), ANA)
    assert said == "You already gave key 1; a different person must give key 2."
    assert not satisfied(asked(), (key(ANA), key(ANA)), PEOPLE, NOON)


def test_the_requester_cannot_hold_a_key() -> None:
    """Whatever groups and level they have."""
    assert refused("self", asked(), (), RITA) == "You asked for this, so you cannot hold a key."
    refused("self", asked(), (), RITA, "reject", reason="no")


@pytest.mark.parametrize("why", [why for why in LINEAGE if why != "requester"])
def test_nobody_in_the_lineage_can_hold_a_key(why: str) -> None:
    """On whose behalf, owner, editor, delegate, author of the rule: each has a sentence of its own."""
    said = refused("lineage", asked(lineage={ANA.id: why}), (), ANA)
    assert said.endswith("another person must decide.")


def test_an_unknown_reason_for_lineage_still_excludes() -> None:
    """A newer writer of lineage never opens the gate of an older reader."""
    refused("lineage", asked(lineage={ANA.id: "something new"}), (), ANA)


@pytest.mark.parametrize(
    ("who", "code"),
    [
        (OUT, "not_approver"),
        (person("none"), "not_approver"),
        (replace(ANA, active=False), "inactive"),
        (replace(ANA, active=1), "inactive"),
        (replace(ANA, kind="service"), "not_human"),
        (replace(ANA, kind=""), "not_human"),
        (replace(ANA, level=3), "level"),
        (replace(ANA, level=True), "level"),
    ],
)
def test_who_may_not_decide_is_told_why(who: Person, code: str) -> None:
    """Outsiders, switched-off accounts, services and people below level 4 change nothing, with any kind of vote."""
    refused(code, asked(), (), who)
    refused(code, asked(), (), who, "reject", reason="no")
    refused(code, asked(), (), who, "stop")


def test_the_outsider_learns_who_holds_keys() -> None:
    """A refusal says what to do next."""
    assert (
        refused("not_approver", asked(), (), OUT)
        == "You are in no group that may give this key; it takes @incident-managers, @oncall. Nothing changed."
    )


@pytest.mark.parametrize("status", ["approved", "rejected", "canceled"])
def test_a_late_click_changes_nothing(status: str) -> None:
    """Decided is decided; the click is answered."""
    for kind in ("key", "reject", "stop"):
        refused("decided", asked(status=status), (key(ANA),), BO, kind, reason="late")


def test_nothing_counts_after_the_expiry() -> None:
    """At the very second of expiry it is over, whether or not somebody has marked it so."""
    refused("expired", asked(), (), ANA, at=asked().expires_at)
    refused("expired", asked(status="expired"), (), ANA)
    both = (key(ANA), key(BO))
    assert satisfied(asked(), both, PEOPLE, asked().expires_at - timedelta(microseconds=1))
    assert not satisfied(asked(), both, PEOPLE, asked().expires_at)
    late = (key(ANA), key(BO, at=asked().expires_at))
    assert not satisfied(asked(), late, PEOPLE, asked().expires_at - timedelta(microseconds=1))


@pytest.mark.parametrize("shown", ["", SHOWN[:-1], SHOWN.upper(), "0" * 16, DIGEST.hex()])
def test_a_key_binds_to_what_was_shown(shown: str) -> None:
    """A card of an older action turns no key, and neither does half a digest."""
    refused("stale_card", asked(), (), ANA, shown=shown)


def test_a_rejection_needs_a_reason_and_ends_it() -> None:
    """One person is enough; the person who asked reads why."""
    refused("reason_required", asked(), (), ANA, "reject", reason="  ")
    refused("reason_required", asked(), (), ANA, "reject", reason="x" * 2_001)
    assert press(asked(), (key(BO),), ANA, "reject", reason="wrong incident") == Counted("rejected", 1, 1)


def test_a_holder_of_a_key_may_still_reject_or_stop() -> None:
    """Never the reverse: a request that was rejected takes no key."""
    assert press(asked(), (key(ANA),), ANA, "reject", reason="I was wrong").status == "rejected"
    refused("not_approved", asked(), (key(ANA),), ANA, "stop")
    approved = asked(status="approved")
    assert press(approved, (key(ANA), key(BO)), ANA, "stop", stoppable=True).status == "rejected"
    refused("decided", approved, (key(ANA),), LI, "key", stoppable=True)
    assert not satisfied(asked(), (key(ANA), key(BO), replace(key(ANA), kind="reject")), PEOPLE, NOON)
    assert not satisfied(asked(), (key(ANA), key(BO), replace(key(ANA), kind="stop")), PEOPLE, NOON)


def test_policy_may_want_a_reason_with_each_key() -> None:
    """An obligation of the verdict that the request carries."""
    wants = asked(obligations=({"type": "reason"},))
    refused("reason_required", wants, (), ANA)
    assert press(wants, (), ANA, reason="checked").given == 1


def test_policy_may_want_a_fresh_sign_in() -> None:
    """At least one of the keys carries it; the last one is refused while none does."""
    wants = asked(obligations=({"type": "step_up", "max_age_s": 300},))
    assert press(wants, (), ANA).status == "requested"
    refused("step_up", wants, (key(ANA),), BO)
    assert press(wants, (key(ANA),), BO, signed_in=True).status == "approved"
    assert press(wants, (key(ANA, signed_in=True),), BO).status == "approved"
    assert not satisfied(wants, (key(ANA), key(BO)), PEOPLE, NOON)
    assert satisfied(wants, (key(ANA), key(BO, signed_in=True)), PEOPLE, NOON)


@pytest.mark.parametrize(
    "changed",
    [
        {ANA.id: replace(ANA, active=False)},
        {ANA.id: replace(ANA, groups=frozenset())},
        {ANA.id: replace(ANA, level=2)},
        {ANA.id: replace(ANA, kind="service")},
        {ANA.id: BO},
        {},
    ],
    ids=["deactivated", "left the group", "level lowered", "became a service", "somebody else's row", "gone"],
)
def test_a_given_key_stops_counting_when_its_holder_changes(changed: dict[str, Person]) -> None:
    """The count is made anew: what was right at the click is not enough at the end."""
    people = {name: who for name, who in PEOPLE.items() if name != ANA.id} | changed
    assert BO.id in standing(asked(), (key(ANA), key(BO)), people, NOON)
    assert ANA.id not in standing(asked(), (key(ANA), key(BO)), people, NOON)
    assert not satisfied(asked(), (key(ANA), key(BO)), people, NOON)
    assert press(asked(), (key(ANA),), BO, people=people) == Counted("requested", 1, 2)


def test_a_key_for_another_action_or_card_is_void() -> None:
    """Keys bind to both digests."""
    for old in (key(ANA, action_digest=b"x" * 32), key(ANA, card_digest=b"x" * 32)):
        assert standing(asked(), (old, key(BO)), PEOPLE, NOON) == (BO.id,)
        assert press(asked(), (old,), ANA) == Counted("requested", 1, 2)


def test_a_key_of_somebody_who_joined_the_lineage_is_void() -> None:
    """Editing after giving a key makes the key worth nothing."""
    assert not satisfied(asked(lineage={BO.id: "editor"}), (key(ANA), key(BO)), PEOPLE, NOON)


def test_counts_per_group_need_different_people() -> None:
    """One of each: somebody who is in both groups fills one place only, whichever leaves room for the other."""
    each = asked(counts={"oncall": 1, "incident-managers": 1})
    assert press(each, (key(CY),), ANA) == Counted("approved", 2, 2)
    assert press(each, (key(CY),), BO) == Counted("approved", 2, 2)
    assert not satisfied(each, (key(CY),), PEOPLE, NOON)
    said = refused("not_approver", each, (key(ANA),), LI)
    assert said == "A key from your groups is already there. Still needed: @incident-managers."


def test_keys_beyond_the_counts_may_come_from_any_group() -> None:
    """Three keys, one of them an incident manager's."""
    three = asked(keys=3, counts={"incident-managers": 1})
    assert press(three, (key(ANA), key(LI)), BO) == Counted("approved", 3, 3)
    assert not satisfied(three, (key(ANA), key(LI), key(RITA)), PEOPLE, NOON)


def test_a_request_without_a_number_still_needs_one_key() -> None:
    """Nothing that is asked is free."""
    assert not satisfied(asked(keys=0), (), PEOPLE, NOON)
    assert satisfied(asked(keys=0), (key(ANA),), PEOPLE, NOON)


@pytest.mark.parametrize("status", ["rejected", "expired", "canceled", "", "Approved"])
def test_keys_of_a_request_that_is_over_satisfy_nothing(status: str) -> None:
    """Only an open or an approved request can be satisfied."""
    assert not satisfied(asked(status=status), (key(ANA), key(BO)), PEOPLE, NOON)


def test_a_kind_of_vote_that_does_not_exist_is_our_own_bug() -> None:
    """Callers translate what people press before they come here."""
    with pytest.raises(ValueError, match="shrug"):
        press(asked(), (), ANA, "shrug")


def rechecked(**held: Any) -> Verdict:
    what = [hold(**held)] if held else []
    return judge(question(), Says(findings(holds=what)), accepted=(REVISION,), monotonic=lambda: 0.0).verdict


def test_keys_stand_after_a_recheck_that_asks_no_more() -> None:
    """The same hold, a smaller one, or none: the recorded approval meets it."""
    both, now = (key(CY), key(BO)), NOON
    ask = asked(status="approved")
    assert stands(ask, rechecked(), both, PEOPLE, now)
    assert stands(ask, rechecked(groups=["incident-managers", "oncall"]), both, PEOPLE, now)
    assert stands(ask, rechecked(two_person=False, tier="med"), both, PEOPLE, now)
    assert not stands(ask, rechecked(), (key(CY),), PEOPLE, now)


def test_a_stricter_recheck_wins() -> None:
    """A higher tier, other groups, more keys or a new obligation are not met by keys that were given for less."""
    one = asked(status="approved", keys=1, tier="med")
    med = rechecked(tier="med", two_person=False)
    assert stands(one, med, (key(ANA),), PEOPLE, NOON)
    assert not stands(one, rechecked(tier="high", two_person=False), (key(ANA),), PEOPLE, NOON)
    assert not stands(one, rechecked(tier="med", two_person=True), (key(ANA),), PEOPLE, NOON)
    assert not stands(one, replace(med, groups=("incident-managers",)), (key(ANA),), PEOPLE, NOON)
    assert not stands(one, replace(med, counts=(("incident-managers", 1),)), (key(ANA),), PEOPLE, NOON)
    assert not stands(one, replace(med, obligations=({"type": "step_up", "max_age_s": 60},)), (key(ANA),), PEOPLE, NOON)
    assert not stands(one, replace(med, action_sha256="0" * 64), (key(ANA),), PEOPLE, NOON)
    denied = judge(question(), Says(b""), accepted=(REVISION,), monotonic=lambda: 0.0).verdict
    assert not stands(one, denied, (key(ANA),), PEOPLE, NOON)


def test_keys_that_satisfy_the_new_requirement_too_stand() -> None:
    """Design 14.3: other groups are no drift as long as the holders are in them."""
    one = asked(status="approved", keys=1, tier="med")
    other = replace(rechecked(tier="med", two_person=False), groups=("incident-managers",))
    assert stands(one, other, (key(CY),), PEOPLE, NOON)


def test_a_request_expires_as_the_verdict_says() -> None:
    """The shortest of the holds."""
    assert expires_at(NOON, rechecked(expires_in_s=900)) == NOON + timedelta(seconds=900)


names = [f"per_{letter}" for letter in "abcdef"]
persons = st.builds(
    Person,
    id=st.sampled_from(names),
    level=st.integers(1, 6),
    active=st.booleans(),
    kind=st.sampled_from(["human", "human", "service"]),
    groups=st.frozensets(st.sampled_from(["oncall", "incident-managers", "payroll"])),
)
votes_of = st.lists(
    st.builds(
        Vote,
        person=st.sampled_from(names),
        kind=st.sampled_from(["key", "key", "key", "reject"]),
        at=st.sampled_from([NOON, NOON + timedelta(hours=1)]),
        action_digest=st.sampled_from([DIGEST, DIGEST, b"x" * 32]),
        card_digest=st.sampled_from([CARD, CARD, b"x" * 32]),
    ),
    max_size=8,
)


@given(
    st.lists(persons, max_size=6, unique_by=lambda who: who.id),
    votes_of,
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(["oncall", "incident-managers"]), st.integers(1, 2), max_size=2),
    st.dictionaries(st.sampled_from(names), st.sampled_from(LINEAGE), max_size=3),
)
def test_never_fewer_distinct_people_than_keys_and_never_one_of_the_lineage(
    who: list[Person], votes: list[Vote], keys: int, counts: dict[str, int], lineage: dict[str, str]
) -> None:
    """Whatever was voted: satisfied means enough different, active people of level 4 in the groups, outside the lineage."""
    people = {one.id: one for one in who}
    ask = asked(keys=keys, counts=counts, lineage=lineage)
    now = NOON + timedelta(minutes=1)
    if satisfied(ask, votes, people, now):
        givers = {one.person for one in votes if one.kind == "key"}
        good = {
            name
            for name in givers - set(lineage)
            if name in people
            and people[name].active
            and people[name].level >= 4
            and people[name].kind == "human"
            and people[name].groups & ask.groups
        }
        assert len(good) >= max(1, keys, sum(counts.values()))
        for group, count in counts.items():
            assert len([name for name in good if group in people[name].groups]) >= count
        assert all(one.kind == "key" for one in votes)


@given(st.permutations(list(PEOPLE.values())), st.integers(1, 3))
def test_pressing_in_any_order_approves_exactly_when_enough_have_pressed(order: list[Person], keys: int) -> None:
    """Each accepted press adds one; approval comes with the last one needed and not before."""
    ask, votes, accepted = asked(keys=keys), (), 0  # type: tuple[Asked, tuple[Vote, ...], int]
    for who in [*order, *order]:
        try:
            counted = press(ask, votes, who)
        except VoteRefused:
            continue
        accepted += 1
        votes = (*votes, key(who, at=NOON))
        assert counted == Counted("approved" if accepted == keys else "requested", accepted, keys)
        if counted.status == "approved":
            break
    assert accepted == keys
    assert satisfied(ask, votes, PEOPLE, NOON + timedelta(minutes=1))


def no(who: Person, **changes: Any) -> Vote:
    return key(who, kind="reject", **changes)


def test_policy_may_want_more_than_one_person_to_reject() -> None:
    """Counted by people who may still reject; whoever rejected gives no key, and their own key is taken back."""
    wants = asked(obligations=({"type": "rejections", "needed": 2},))
    assert press(wants, (), ANA, "reject", reason="no") == Counted("requested", 1, 2)
    assert press(wants, (no(ANA),), BO, "reject", reason="no") == Counted("rejected", 2, 2)
    refused("same_person", wants, (no(ANA),), ANA, "reject", reason="no")
    refused("same_person", wants, (no(ANA),), ANA)
    assert press(wants, (key(ANA), no(ANA)), BO) == Counted("requested", 1, 2)
    gone = {**PEOPLE, ANA.id: replace(ANA, active=False)}
    assert press(wants, (no(ANA),), BO, "reject", reason="no", people=gone).status == "requested"
    assert satisfied(wants, (no(CY), key(ANA), key(BO)), PEOPLE, NOON)
    assert not satisfied(wants, (no(CY), no(LI), key(ANA), key(BO)), PEOPLE, NOON)


def test_what_is_held_does_not_expire_while_it_is_held() -> None:
    """It was approved in time; the window begins with the last key, however late that came."""
    held = asked(status="approved", obligations=({"type": "hold_window", "seconds": 60},))
    both, end = (key(ANA), key(BO)), asked().expires_at
    assert satisfied(held, both, PEOPLE, end + timedelta(seconds=59))
    assert not satisfied(held, both, PEOPLE, end + timedelta(seconds=60))
    assert not satisfied(replace(held, status="requested"), both, PEOPLE, end)


def test_a_reason_that_policy_wants_later_is_missing_from_earlier_keys() -> None:
    """At the recheck policy wants a reason with each key: a key without one does not satisfy it."""
    one = asked(keys=1, status="approved")
    wants = replace(one, obligations=({"type": "reason"},))
    assert satisfied(one, (key(ANA),), PEOPLE, NOON)
    assert not satisfied(wants, (key(ANA),), PEOPLE, NOON)
    assert satisfied(wants, (key(ANA, with_reason=True),), PEOPLE, NOON)


def stand_in(who: Person, *absent: Person) -> Person:
    return replace(who, stands_in=frozenset(one.id for one in absent))


def test_whoever_stands_in_turns_a_key_in_the_absent_persons_groups() -> None:
    """Olga is in no group that was asked; while Bo is away she may in his place, and the key says so."""
    olga = stand_in(OUT, BO)
    crowd = {**PEOPLE, olga.id: olga}
    assert press(asked(), (), olga, people=crowd) == Counted("requested", 1, 2, BO.id)
    assert press(asked(), (key(olga, for_person=BO.id),), ANA, people=crowd).status == "approved"
    # It stands when Bo is back, and falls when he leaves the group, is switched off or joins the lineage.
    given = (key(olga, for_person=BO.id), key(ANA))
    assert satisfied(asked(), given, PEOPLE, NOON)
    for gone in (replace(BO, groups=frozenset()), replace(BO, active=False), replace(BO, level=3)):
        assert not satisfied(asked(), given, {**PEOPLE, BO.id: gone}, NOON)
    assert not satisfied(asked(lineage={BO.id: "editor"}), given, PEOPLE, NOON)


def test_delegation_never_makes_a_quorum_of_one_person() -> None:
    """Whoever is away and whoever stands in for them count as one, whichever of them was first, with or without own groups."""
    olga = stand_in(OUT, BO)
    crowd = {**PEOPLE, olga.id: olga}
    refused("delegate", asked(), (key(BO),), olga, people=crowd)
    refused("delegate", asked(), (key(olga, for_person=BO.id),), BO, people=crowd)
    assert not satisfied(asked(), (key(BO), key(olga, for_person=BO.id)), crowd, NOON)
    assert not satisfied(asked(), (key(olga, for_person=BO.id), key(BO)), PEOPLE, NOON)
    # Ana is in the groups herself: as long as she stands in for Bo they are one all the same.
    ana = stand_in(ANA, BO)
    both = {**PEOPLE, ana.id: ana}
    refused("delegate", asked(), (key(BO),), ana, people=both)
    refused("delegate", asked(), (key(ana),), BO, people=both)
    assert not satisfied(asked(), (key(ana), key(BO)), both, NOON)
    # And two who stand in for the same person, one after the other, are that one person.
    li = person("lia", "payroll")
    two = {**PEOPLE, olga.id: olga, li.id: stand_in(li, BO)}
    refused("delegate", asked(), (key(olga, for_person=BO.id),), two[li.id], people=two)
    assert not satisfied(asked(), (key(olga, for_person=BO.id), key(li, for_person=BO.id)), two, NOON)


def test_the_delegate_of_somebody_who_took_part_decides_nothing() -> None:
    """Nor may anybody stand in for somebody who could hold no key; and nobody passes on what was lent to them."""
    ana = stand_in(ANA, RITA)
    said = refused("lineage", asked(), (), ana, people={**PEOPLE, ana.id: ana})
    assert said == "You act for somebody who already took part; another person must decide."
    gone = stand_in(OUT, replace(BO, active=False))
    refused("not_approver", asked(), (), gone, people={**PEOPLE, BO.id: replace(BO, active=False), gone.id: gone})
    middle, last = stand_in(person("mid", "payroll"), BO), person("end", "payroll")
    chain = {**PEOPLE, middle.id: middle, last.id: stand_in(last, middle)}
    refused("not_approver", asked(), (), chain[last.id], people=chain)


@given(st.data())
def test_no_pair_of_delegate_and_absent_is_ever_counted_twice(data: st.DataObject) -> None:
    """Whatever is recorded: among the counted, nobody stands in for another one, and no two stood in for the same."""
    names = [ANA, LI, BO, CY, OUT]
    crowd = {}
    for one in names:
        others = [other.id for other in names if other.id != one.id]
        crowd[one.id] = replace(one, stands_in=frozenset(data.draw(st.lists(st.sampled_from(others), max_size=2))))
    votes = tuple(
        key(crowd[who], for_person=data.draw(st.sampled_from(["", *(n.id for n in names if n.id != who)])))
        for who in data.draw(st.permutations([one.id for one in names]))
    )
    counted = standing(asked(), votes, crowd, NOON)
    lent = {one.person: one.for_person for one in votes if one.for_person}
    for one in counted:
        for other in counted:
            if one != other:
                assert other not in crowd[one].stands_in
                assert lent.get(one) != other
                assert lent.get(one, one) != lent.get(other, other)
