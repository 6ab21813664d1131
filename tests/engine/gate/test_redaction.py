"""What a receipt may not carry: the value of a sensitive field, wherever a connector repeats it; and what it must: before and after."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import decode
from engine.gate.action import Action, Field, Target
from engine.gate.permit import Judgement, permit
from engine.gate.receipt import Outcome, Receipt, without, write

ACTION = Action(
    tenant="t", workspace="main", run="r", promise="0", step="s", workflow="w", version="1", definition="ab" * 32,
    connector="servicenow", operation="update", kind="write", risk="low", reversible=True, reversal="inverse",
    target=Target("servicenow", "incident", "x", "prod"),
    fields=(Field("iban", "set", "DE89 3704", "sensitive"), Field("state", "set", "7", "internal")), amount_minor=0, currency="",
    preconditions=(("state", "2"),), key="k", summary="Update", salt="ab" * 16,
)  # fmt: skip


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def receipt(outcome: Outcome, action: Action = ACTION) -> Receipt:
    judged = Judgement(1, "allow", action.digest.hex(), 0, "low", "rev")
    allowed = permit(action, judged, None, attempt=1, deadline_seconds=1.0)
    return write(
        allowed, outcome, n=1, at="2026-01-01T00:00:00.000000Z", executor="twokeys/test", key_sha256="k", key_id="id",
        sign=lambda data: b"s", hashed=digest,
    )  # fmt: skip


def test_before_and_after_stand_there_by_their_digests() -> None:
    payload = decode(receipt(Outcome("ok")).payload)
    assert payload["fields"] == [
        {"name": "iban", "op": "set", "classification": "sensitive", "before": "", "after": digest("DE89 3704")},
        {"name": "state", "op": "set", "classification": "internal", "before": digest("2"), "after": digest("7")},
    ]


def test_a_sensitive_value_is_taken_out_of_whatever_a_connector_says() -> None:
    said: dict[str, Any] = {
        "iban": "DE89 3704",
        "seen": ["to DE89 3704.", {"deep": ("DE89 3704",)}],
        "status": 200,
        "state": "7",
    }
    made = receipt(
        Outcome("rejected", request=said, response=said, error_class="rejected", message="no such iban DE89 3704")
    )
    assert b"DE89" not in made.body
    payload = decode(made.payload)
    hidden = {"iban": "[redacted]", "seen": ["to [redacted].", {"deep": ["[redacted]"]}]}
    assert payload["response"] == {**hidden, "status": 200, "state": "7"}
    assert payload["message"] == "no such iban [redacted]"


NESTED = st.recursive(
    st.text(max_size=8),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
)


@given(value=st.text(min_size=1, max_size=12), around=NESTED)
def test_nothing_hidden_is_left_anywhere(value: str, around: Any) -> None:
    left = without([around, f"a{value}b", {"x": value}], frozenset((value,)))

    def texts(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [text for item in part.values() for text in texts(item)]
        return [text for item in part for text in texts(item)] if isinstance(part, list) else [part]

    assert not [text for text in texts(left) if value in text.replace("[redacted]", "")]


def test_what_is_not_sensitive_is_left_as_it_is() -> None:
    plain = replace(ACTION, fields=(Field("state", "set", "7", "internal"),))
    assert decode(receipt(Outcome("ok", response={"state": "7"}), plain).payload)["response"] == {"state": "7"}
