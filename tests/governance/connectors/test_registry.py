"""Which connectors there are: each declares every operation once, unknown ones are refused by name, secrets are never shown."""

from __future__ import annotations

import pytest

from engine.errors import CallerError, OperatorError
from engine.gate.action import CLASSES, FIELD_OPS, KINDS, TIERS, Field, Target, effect_key
from governance.connectors.registry import Connection
from governance.connectors.shipped import declared
from tests.governance.connectors.kit import action, allowed

REGISTRY = declared()


def test_an_unknown_operation_or_connector_is_refused_by_name_with_what_there_is() -> None:
    with pytest.raises(CallerError, match=r"servicenow\.drop is not an operation") as caught:
        REGISTRY.spec("servicenow", "drop")
    assert "servicenow.lookup" in str(caught.value)
    with pytest.raises(CallerError, match="jira is not a connector"):
        REGISTRY.of("jira")


def test_a_registry_that_only_declares_is_connected_to_nothing() -> None:
    with pytest.raises(OperatorError, match="only says what there is"):
        REGISTRY.of("servicenow").perform(allowed(action("lookup")))
    REGISTRY.close()


@pytest.mark.parametrize("name", sorted(".".join(one) for one in REGISTRY.catalog))
def test_what_a_connector_declares_holds_together(name: str) -> None:
    spec = REGISTRY.catalog[tuple(name.split("."))]  # type: ignore[index]
    assert (spec.connector, spec.operation) == tuple(name.split("."))
    assert spec.kind in KINDS
    assert spec.risk in TIERS
    assert spec.summary
    assert spec.reversal in ("inverse", "manual", "none")
    assert spec.reversible == (spec.reversal != "none") or spec.kind == "read"
    assert len({field.name for field in spec.fields}) == len(spec.fields)
    for field in spec.fields:
        assert field.op in FIELD_OPS
        assert field.classification in CLASSES
        assert 0 < field.chars_max <= 8_000


def keyed(given: str, target: str = "t", instance: str = "dev1", value: str = "2", promise: str = "r.0") -> str:
    spec = REGISTRY.spec("servicenow", "update")
    fields = (Field("state", "set", value, "internal"),)
    return effect_key(spec, Target("servicenow", "incident", target, instance), fields, promise, given)


def test_an_effect_is_named_by_its_place_unless_the_author_says_otherwise() -> None:
    assert keyed("") != keyed("", promise="another.7")
    assert keyed("given by the author") == keyed("given by the author", target="u", value="3")


def test_a_named_template_names_what_is_done_to_what() -> None:
    """S004: the same change of the same target is the same effect, whoever makes it; anything else is another."""
    key = "sn:incident:update"
    assert keyed(key) == keyed(key, promise="another.7")
    assert keyed(key).startswith("sn:incident:update:dev1:t:")
    assert len({keyed(key), keyed(key, target="u"), keyed(key, instance="dev2"), keyed(key, value="3")}) == 4


def test_a_connection_does_not_show_its_credentials() -> None:
    assert "hunter2" not in repr(Connection("dev1", "https://x.example", "user", "hunter2"))
