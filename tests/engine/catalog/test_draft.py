"""A draft is its bytes: the same content has the same digest, and what is none is refused."""

from __future__ import annotations

import pytest

from engine.canonical import encode
from engine.catalog.draft import Draft, draft_from, gone_tests
from engine.errors import CallerError
from engine.limits import policy_draft_bytes_max

DRAFT = Draft({"twokeys/base.rego": "a"}, {"tests/t.rego": "b"}, {"caps": {"n": 1}}, ("y", "x"))


def test_what_is_stored_comes_back_with_the_same_digest() -> None:
    """Whatever the order in which it was written down."""
    again = draft_from(DRAFT.body)
    assert (again.modules, again.tests, again.data, again.dropped) == (
        DRAFT.modules,
        DRAFT.tests,
        DRAFT.data,
        ("x", "y"),
    )
    assert again.digest == DRAFT.digest
    assert again.digest != Draft({"twokeys/base.rego": "b"}, DRAFT.tests, DRAFT.data, DRAFT.dropped).digest
    assert again.files == {"twokeys/base.rego": "a", "tests/t.rego": "b"}


@pytest.mark.parametrize(
    "value", [1, {}, {"modules": {}, "tests": {}, "data": {}}, {"modules": {}, "tests": {}, "data": {}, "more": 1}]
)
def test_what_is_no_draft_is_refused(value: object) -> None:
    """Exactly its keys."""
    with pytest.raises(CallerError):
        draft_from(encode(value))


def test_a_draft_has_a_size() -> None:
    """And says which."""
    with pytest.raises(CallerError) as refused:
        assert Draft({"twokeys/base.rego": "x" * policy_draft_bytes_max}, {}, {}).body
    assert str(policy_draft_bytes_max) in str(refused.value)


def test_a_test_is_only_gone_when_nobody_said_so() -> None:
    """What is new, kept or dropped by name is no news."""
    assert gone_tests(("a", "b", "c"), ("b", "d"), ("c",)) == ("a",)
