"""Every doubt of the policy path is a denial: the engine, the answer, its source, its people."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from engine.canonical import jcs, read_json, sha256
from engine.errors import CallerError
from engine.gate import reducer
from engine.gate.question import People, Question, read_input
from engine.gate.verdict import RETRYABLE, Answer, Judged, PolicyFault, judge, verdict_from
from tests.engine.gate.kit import GROUPS, REVISION, Says, action, findings, hold, question


def judged(
    what: Any, asked: Question | None = None, *, accepted: tuple[str, ...] = (REVISION,), source: str = REVISION
) -> Judged:
    ticks = count()
    return judge(asked or question(), Says(what, source), accepted=accepted, monotonic=lambda: next(ticks) / 1000)


def denied(result: Judged, code: str, *, retryable: bool = False) -> None:
    verdict = result.verdict
    assert (verdict.effect, verdict.deny_kind, verdict.reasons[0].code) == ("deny", "fault", code)
    assert verdict.retryable is retryable
    assert (verdict.keys, verdict.groups, verdict.expires_in_s, verdict.obligations) == (0, (), 0, ())


def test_a_good_answer_allows_and_says_what_it_was_derived_from() -> None:
    """The verdict carries the digests of both documents, the action, the revision, the engine and how long it took."""
    asked = question()
    result = judged(findings(), asked)
    verdict = result.verdict
    assert verdict.effect == "allow"
    assert verdict.input_sha256 == sha256(asked.input_bytes).hex() == sha256(result.input_bytes).hex()
    assert verdict.findings_sha256 == sha256(result.findings_bytes).hex()
    assert verdict.action_sha256 == action().digest.hex()
    assert (verdict.policy_revision, verdict.engine, verdict.purpose) == (REVISION, "test", "enforce")
    assert verdict.duration_us == 1000


def test_a_verdict_is_stored_and_read_back() -> None:
    """Through canonical bytes, with nothing lost."""
    held = findings(holds=[hold(counts={"oncall": 2})], obligations=[{"type": "reason"}])
    verdict = judged(held).verdict
    assert verdict.effect == "needs_approval"
    assert verdict.counts == (("oncall", 2),)
    assert verdict_from(read_json(jcs(verdict.to_value()))) == verdict
    with pytest.raises(CallerError):
        verdict_from({**verdict.to_value(), "more": 1})


def test_the_ruling_can_be_derived_again_from_the_two_documents() -> None:
    """What the verifier does: the reducer over the recorded findings and three facts of the recorded input."""
    result = judged(findings(holds=[hold()]))
    again = reducer.reduce(read_json(result.findings_bytes), reducer.subject_of(read_input(result.input_bytes)))
    assert (again["effect"], again["keys"], tuple(again["groups"])) == (
        result.verdict.effect,
        result.verdict.keys,
        result.verdict.groups,
    )


class Tired(Exception):
    pass


@pytest.mark.parametrize(
    ("raised", "code", "retryable"),
    [
        (PolicyFault("timeout", "slow"), "timeout", True),
        (PolicyFault("refused", "nobody there"), "refused", True),
        (PolicyFault("engine_exit", "gone"), "engine_exit", True),
        (PolicyFault("breaker_open", "wait"), "breaker_open", True),
        (PolicyFault("timeout", "slow", retryable=False), "timeout", False),
        (PolicyFault("evaluation_failed", "500"), "evaluation_failed", False),
        (PolicyFault("evaluation_failed", "500", retryable=True), "evaluation_failed", False),
        (PolicyFault("Not A Code", "x"), "internal", False),
        (PolicyFault("timeout", ""), "timeout", True),
        (PolicyFault("timeout", "a\x00\u202eb" * 500), "timeout", True),
        (Tired(), "internal", False),
        (RecursionError(), "internal", False),
        (MemoryError(), "internal", False),
        (StopIteration(), "internal", False),
        (AssertionError(), "internal", False),
        (TimeoutError(), "internal", False),
    ],
)
def test_whatever_an_engine_raises_is_a_denial(raised: Exception, code: str, retryable: bool) -> None:
    """Only the codes on the list may be tried again; nothing an engine says makes another one retryable."""
    result = judged(raised)
    denied(result, code, retryable=retryable)
    assert reducer.hidden_character.search(result.verdict.reasons[0].message) is None
    assert result.findings_bytes == b""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_and_nothing_is_written(interrupt: type[BaseException]) -> None:
    """Nobody judged, so there is no verdict at all."""
    with pytest.raises(interrupt):
        judged(interrupt())


@pytest.mark.parametrize(
    "returned",
    [None, True, b"{}", "allow", {"allow": True}, Answer("{}", REVISION, "e", "v"), Answer(b"{}", None, "e", "v"),
     Answer(bytearray(b"{}"), REVISION, "e", "v"), Answer(b"{}", REVISION, "e" * 200, "v")],  # type: ignore[arg-type]
)  # fmt: skip
def test_anything_but_findings_in_bytes_is_a_denial(returned: Any) -> None:
    """A truthy return value is not an answer."""

    class Odd:
        def evaluate(self, input_bytes: bytes) -> Answer:
            return returned  # type: ignore[no-any-return]

    denied(judge(question(), Odd(), accepted=(REVISION,), monotonic=lambda: 0.0), "answer_type")


def text(value: dict[str, Any]) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"true",
        b"{}",
        b"[]",
        b"null",
        b"<html>",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":NaN}',
        text(findings()).encode() + b"\n{}",
        text(findings()).encode()[:-1],
        text(findings()).replace('"denials": []', '"denials": [], "denials": []').encode(),
        text(findings()).replace('"denials": []', '"denials": [1.5]').encode(),
        text(findings()).replace('"denials": []', '"denials": [Infinity]').encode(),
        text(findings()).encode() + b" " * 70_000,
    ],
)
def test_bytes_that_are_not_strictly_findings_are_a_denial(data: bytes) -> None:
    """One document, no duplicates, no floats, no more than 64 KiB, no depth that a parser could fall over."""
    result = judged(data)
    assert (result.verdict.effect, result.verdict.deny_kind, result.verdict.retryable) == ("deny", "fault", False)
    assert result.verdict.reasons[0].code in ("malformed_findings", "shape", "too_large")


def test_an_answer_to_another_question_is_a_denial() -> None:
    """A stale, crossed, cached or swapped answer carries another request or another action."""
    denied(judged(findings(question(seed=b"1" * 16))), "echo_mismatch")
    denied(judged(findings(question(action(step="other")))), "echo_mismatch")


def test_an_answer_of_another_package_or_revision_is_a_denial() -> None:
    """The findings, the source and what is in force must all name one revision."""
    other = {"package": "twokeys.main", "revision": "b" * 64}
    denied(judged(findings(policy={"package": "twokeys.draft", "revision": REVISION})), "package_mismatch")
    denied(judged(findings(policy=other)), "revision_mismatch", retryable=True)
    denied(judged(findings(), source="b" * 64), "revision_mismatch", retryable=True)
    denied(judged(findings(policy=other), source="b" * 64), "revision_mismatch", retryable=True)
    denied(judged(findings(), source=""), "revision_mismatch", retryable=True)
    denied(judged(findings(), accepted=()), "revision_mismatch", retryable=True)


def test_while_a_revision_activates_both_are_accepted_and_the_verdict_says_which() -> None:
    """Design 14.28: neither the old nor the new worker stands still."""
    other = {"package": "twokeys.main", "revision": "b" * 64}
    both = (REVISION, "b" * 64)
    assert judged(findings(), accepted=both).verdict.policy_revision == REVISION
    assert judged(findings(policy=other), accepted=both, source="b" * 64).verdict.policy_revision == "b" * 64


def test_a_question_that_could_not_be_put_is_a_denial_and_no_engine_is_asked() -> None:
    """What the canonicaliser rejects never reaches a rule."""

    class Never:
        def evaluate(self, input_bytes: bytes) -> Answer:
            raise AssertionError("asked")

    asked = question(action(kind="poke"))
    denied(judge(asked, Never(), accepted=(REVISION,), monotonic=lambda: 0.0), "input_value")


def test_a_clock_that_cannot_be_read_is_a_denial() -> None:
    """Our own side counts too."""

    def broken() -> float:
        raise OSError("no clock")

    denied(judge(question(), Says(findings()), accepted=(REVISION,), monotonic=broken), "internal")


@pytest.mark.parametrize(
    ("held", "people", "code"),
    [
        (hold(groups=["nobody"]), People(GROUPS, frozenset()), "unknown_group"),
        (hold(groups=["nobody", "oncall"]), People(GROUPS, frozenset()), "unknown_group"),
        (hold(groups=["incident-managers"]), People(GROUPS, frozenset()), "too_few_people"),
        (hold(), People(GROUPS, frozenset({"per_a"})), "too_few_people"),
        (hold(two_person=False), People({"oncall": frozenset()}, frozenset()), "too_few_people"),
        (hold(two_person=False), People(GROUPS, frozenset({"per_a", "per_b"})), "too_few_people"),
        (
            hold(groups=["finance", "security"], counts={"finance": 1, "security": 1}),
            People({"finance": frozenset({"per_x"}), "security": frozenset({"per_x"})}, frozenset()),
            "too_few_people",
        ),
    ],
)
def test_a_hold_that_nobody_could_release_is_a_denial(held: dict[str, Any], people: People, code: str) -> None:
    """Groups exist and hold enough different people who are not in the lineage."""
    denied(judged(findings(question(people=people), holds=[held]), question(people=people)), code)


def test_a_hold_that_the_groups_can_release_is_asked() -> None:
    """Two groups count together where policy names both."""
    people = People(GROUPS, frozenset({"per_a"}))
    held = hold(groups=["incident-managers", "oncall"])
    verdict = judged(findings(question(people=people), holds=[held]), question(people=people)).verdict
    assert (verdict.effect, verdict.keys, verdict.groups) == ("needs_approval", 2, ("incident-managers", "oncall"))


def test_a_policy_denial_is_terminal() -> None:
    """Asking again would only be answered the same again."""
    verdict = judged(findings(denials=[{"code": "freeze", "message": "frozen"}])).verdict
    assert (verdict.effect, verdict.deny_kind, verdict.retryable) == ("deny", "policy", False)


def test_what_was_refused_is_kept_for_the_record() -> None:
    """The record shows what the engine said, not only that it was not believed."""
    result = judged(findings(schema="other"))
    assert b'"other"' in result.findings_bytes
    assert result.verdict.findings_sha256 == sha256(result.findings_bytes).hex()


def test_the_retryable_codes_are_few_and_known() -> None:
    """A new one is a decision, not an accident."""
    assert {
        "timeout", "refused", "unavailable", "breaker_open", "revision_mismatch", "engine_exit", "engine_not_ready",
    } == RETRYABLE  # fmt: skip
