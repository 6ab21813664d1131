"""One total table per connector: every fault that it can produce is in it, with one meaning, and what nobody listed is never repeated."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gate.receipt import STATUSES
from engine.gate.retry import AGAIN, MEANINGS, MEND, NEVER, OURS, UNKNOWN, Fault, outcome_of
from governance.connectors import http, servicenow, slack
from governance.connectors.shipped import declared

CONNECTORS = Path(http.__file__).parent
TABLES = {"http": http.FAULTS, "servicenow": servicenow.FAULTS, "slack": slack.FAULTS, "ours": OURS}
REGISTRY = declared()
LOOKED = {"did_not_happen"}  # what a look proves is no fault: its own step says what follows


def named(path: Path) -> set[str]:
    """The error classes that a connector's code writes down: the argument of `_fault` and `outcome_of`, or a keyword."""
    found = set()
    for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        place = {"_fault": 0, "outcome_of": 1}.get(name)
        given = [call.args[place]] if place is not None and len(call.args) > place else []
        given += [keyword.value for keyword in call.keywords if keyword.arg == "error_class"]
        found |= {
            node.value for one in given for node in ast.walk(one) if isinstance(node, ast.Constant) and node.value
        }
    return {one for one in found if isinstance(one, str)}


@pytest.mark.parametrize("name", ["http", "servicenow", "slack"])
def test_every_fault_that_a_connector_writes_down_is_in_its_table(name: str) -> None:
    assert named(CONNECTORS / f"{name}.py") - LOOKED <= set(TABLES[name])


def test_every_shipped_connector_has_a_table_and_whoever_goes_over_http_has_its_faults() -> None:
    for connector in {connector for connector, _ in REGISTRY.catalog}:
        assert dict(REGISTRY.of(connector).faults) == dict(TABLES[connector])
    assert http.FAULTS.items() <= servicenow.FAULTS.items()


@pytest.mark.parametrize("table", TABLES)
def test_a_lost_write_is_unknown_and_never_again_by_itself(table: str) -> None:
    """What may have got through is in no table as something to repeat."""
    lost = {"timeout", "connection_lost", "answer_too_large", "malformed_answer", "server_error"}
    assert {name for name in TABLES[table] if name in lost and TABLES[table][name].write != UNKNOWN} == set()


@given(
    name=st.text(max_size=20) | st.sampled_from(sorted(http.FAULTS)),
    changes=st.booleans(),
    after=st.integers(0, 99_999),
)
def test_the_table_is_total(name: str, changes: bool, after: int) -> None:
    outcome = outcome_of(http.FAULTS, name, "why", changes=changes, retry_after_seconds=after)
    fault = http.FAULTS.get(name)
    meaning = (fault.write if changes else fault.read) if fault else (UNKNOWN if changes else NEVER)
    assert outcome.status in STATUSES
    assert meaning in MEANINGS
    assert outcome.retryable == (meaning == AGAIN)
    assert (outcome.status == "unknown") == (meaning == UNKNOWN)
    assert bool(outcome.mend) == (meaning == MEND)
    assert outcome.retry_after_seconds == (after if meaning == AGAIN else 0)


def test_a_fault_that_somebody_mends_says_how() -> None:
    for read, write, mend in ((MEND, MEND, ""), (AGAIN, AGAIN, "do this"), ("perhaps", NEVER, "")):
        with pytest.raises(ValueError, match="fault"):
            Fault(read, write, mend)
