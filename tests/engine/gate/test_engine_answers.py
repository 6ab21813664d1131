"""Whatever an engine answers with, only complete findings to this very question allow, and only what may pass is tried again."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gate.verdict import RETRYABLE, Answer, Policy, PolicyFault, judge
from tests.engine.gate.kit import REVISION, findings, question

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
whole = findings()
mutations = st.dictionaries(st.sampled_from([*whole, "allow", "effect"]), anything, min_size=1, max_size=4)


class Fixed(Policy):
    """Answers with these bytes, or raises this."""

    def __init__(self, data: Any, error: BaseException | None = None) -> None:
        self._data, self._error = data, error

    def evaluate(self, input_bytes: bytes) -> Answer:
        if self._error is not None:
            raise self._error
        return Answer(self._data, REVISION, "opa", "1")


def ruled(policy: Policy) -> Any:
    return judge(question(), policy, accepted=(REVISION,), monotonic=lambda: 0.0).verdict


def denied_in_doubt(policy: Policy) -> None:
    verdict = ruled(policy)
    assert (verdict.effect, verdict.deny_kind) == ("deny", "fault")
    assert verdict.retryable == (verdict.reasons[0].code in RETRYABLE)


def test_the_control_of_the_others_allows() -> None:
    assert ruled(Fixed(json.dumps(whole).encode())).effect == "allow"


@settings(deadline=None)
@given(anything)
def test_any_json_is_a_denial(value: Any) -> None:
    denied_in_doubt(Fixed(json.dumps(value).encode()))


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=50) | st.none() | st.integers())
def test_anything_else_is_a_denial(value: Any) -> None:
    denied_in_doubt(Fixed(value))


@settings(deadline=None)
@given(mutations)
def test_findings_with_a_part_put_wrong_never_allow(changes: dict[str, Any]) -> None:
    """Parts that fit by chance may deny or hold by policy; an allow needs the grants that were there or others of their shape."""
    changed = {**whole, **changes}
    verdict = ruled(Fixed(json.dumps(changed).encode()))
    if verdict.effect == "allow":
        assert set(changed) == set(whole)
        assert changed["denials"] == changed["holds"] == []
        assert changed["grants"]
        assert changed["echo"] == whole["echo"]
        assert changed["policy"] == whole["policy"]


@settings(deadline=None)
@given(st.text(max_size=20), st.booleans() | st.none())
def test_a_fault_of_any_code_is_a_denial(code: str, retryable: bool | None) -> None:
    """Also one that claims that it may be tried again: the list decides."""
    fault = PolicyFault(code, "said so", retryable=retryable)
    verdict = ruled(Fixed(b"", fault))
    assert (verdict.effect, verdict.deny_kind) == ("deny", "fault")
    assert not verdict.retryable or code in RETRYABLE


def test_any_exception_is_a_denial() -> None:
    for error in (ValueError(), RecursionError(), MemoryError(), KeyError("x"), OSError(), TimeoutError()):
        denied_in_doubt(Fixed(b"", error))
