"""The ServiceNow connector against the stand-in's real process: what happened, what certainly did not, and what nobody can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.gate.receipt import CannotLook, Outcome
from governance.connectors import servicenow as room
from governance.connectors.registry import Connection
from governance.connectors.servicenow import ServiceNow as Connector
from tests.governance.connectors.kit import Hostile, action, allowed
from tests.kit.servicenow import GROUP, INCIDENT, PASSWORD, USER, ServiceNow


class Place:
    """Where the connector finds its instance; a test may move it or spoil its credentials."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.secret = PASSWORD

    def of(self, tenant: str, connector: str) -> Connection:
        assert (tenant, connector) == ("acme", "servicenow")
        return Connection("dev1", self.base_url, USER, self.secret)


@pytest.fixture
def place(servicenow: ServiceNow, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(room, "_seconds", 0.5)
    return Place(servicenow.base_url)


@pytest.fixture
def connector(place: Place) -> Iterator[Connector]:
    made = Connector(place.of)
    yield made
    made.close()


def back(servicenow: ServiceNow, fault: str) -> None:
    """The stand-in answers again after a planned crash."""
    if fault == "crash_before_answer":
        servicenow.wait_until_down()
        servicenow.restart_if_down()


def short(outcome: Outcome | None) -> tuple[str, str, bool]:
    assert outcome is not None
    return outcome.status, outcome.error_class, outcome.retryable


def test_a_lookup_reads_and_changes_nothing(connector: Connector, servicenow: ServiceNow) -> None:
    outcome = connector.perform(allowed(action("lookup")))
    assert short(outcome) == ("ok", "", False)
    assert outcome.result["number"] == "INC0010001"
    assert outcome.request == {"method": "GET", "fields": []}
    assert outcome.how_to_reverse == {}
    assert servicenow.record()["sys_mod_count"] == "0"


def test_an_update_writes_once_and_says_how_to_go_back(connector: Connector, servicenow: ServiceNow) -> None:
    proposed = action("update", {"state": "2", "impact": "1", "work_notes": "a word for the record"})
    seen = dict(connector.observe(proposed))
    proposed = action("update", {"state": "2", "impact": "1", "work_notes": "a word for the record"}, seen=seen)
    outcome = connector.perform(allowed(proposed))
    assert short(outcome) == ("ok", "", False)
    assert outcome.result["state"] == "2"
    assert servicenow.writes("state") == ["2"]
    assert servicenow.writes("work_notes") == ["a word for the record"]
    assert outcome.how_to_reverse == {"operation": "update", "fields": ["state", "impact"], "values": "preconditions"}


def test_a_receipt_of_it_names_no_value(connector: Connector, servicenow: ServiceNow) -> None:
    """It travels in the bundle: names of fields, a size, a version, and nothing that somebody wrote."""
    outcome = connector.perform(allowed(action("update", {"state": "2", "work_notes": "private words"})))
    told = repr((outcome.request, outcome.response, outcome.how_to_reverse, outcome.message))
    assert "private words" not in told
    assert "INC0010001" not in told


def test_a_field_can_be_cleared(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.change(INCIDENT, {"close_notes": "old"})
    connector.perform(allowed(action("update", {"close_notes": ""}, ops={"close_notes": "clear"})))
    assert servicenow.record()["close_notes"] == ""


# --- before the effect ------------------------------------------------------------------------------------------------


def test_observe_gives_the_values_before_and_the_version(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.change(INCIDENT, {"impact": "2", "assignment_group": GROUP})
    seen = connector.observe(action("update", {"impact": "1", "assignment_group": "Desk", "work_notes": "n"}))
    # A reference comes as its value; what is only ever appended has no value before.
    assert seen == {"number": "INC0010001", "sys_mod_count": "1", "impact": "2", "assignment_group": GROUP}
    assert connector.observe(action("lookup")) == {}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"fault": "error_500"}, ("error", "server_error", True)),
        ({"fault": "too_many_requests", "seconds": 9}, ("error", "rate_limited", True)),
        ({"fault": "slow", "seconds": 2}, ("timeout", "timeout", True)),
    ],
)
@pytest.mark.parametrize("operation", ["update", "close"])
def test_what_cannot_be_seen_is_said_and_nothing_was_changed(
    connector: Connector, servicenow: ServiceNow, fault: dict[str, Any], expected: tuple[str, str, bool], operation: str
) -> None:
    servicenow.plan(**fault, method="GET")
    with pytest.raises(CannotLook) as caught:
        connector.observe(action(operation))
    assert short(caught.value.outcome) == expected
    assert servicenow.record()["sys_mod_count"] == "0"


# --- the outcome table ------------------------------------------------------------------------------------------------


def test_wrong_credentials_are_refused_for_good(connector: Connector, place: Place) -> None:
    place.secret = "not the password"
    for operation in ("lookup", "update"):
        outcome = connector.perform(allowed(action(operation)))
        assert short(outcome) == ("rejected", "not_authorized", False)
        assert "not the password" not in repr(outcome)


def test_credentials_that_were_mended_are_used_at_once(connector: Connector, place: Place) -> None:
    place.secret = "not the password"
    assert connector.perform(allowed(action("lookup"))).status == "rejected"
    place.secret = PASSWORD
    assert connector.perform(allowed(action("lookup"))).status == "ok"


def test_a_target_that_is_not_there_is_refused_for_good(connector: Connector) -> None:
    for operation in ("lookup", "update"):
        outcome = connector.perform(allowed(action(operation, target="0" * 32)))
        assert short(outcome) == ("rejected", "target_not_found", False)


@pytest.mark.parametrize("target", ["INC0010001", "../sys_user/1", "A" * 32, "0" * 31, INCIDENT + "?x=1", ""])
def test_a_target_is_a_sys_id_and_nothing_is_sent_for_another(
    connector: Connector, servicenow: ServiceNow, target: str
) -> None:
    servicenow.plan("error_500", method="*")
    outcome = connector.perform(allowed(action("update", target=target)))
    assert short(outcome) == ("rejected", "bad_target", False)
    with pytest.raises(CannotLook):
        connector.observe(action("update", target=target))
    assert connector.look(allowed(action("update", target=target, seen={"sys_mod_count": "0"}))) is None
    assert len(servicenow.call("GET", "/_control/faults")["result"]) == 1, "the planned fault still waits"


def test_too_many_requests_carries_when_to_come_again(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.plan("too_many_requests", seconds=45, method="PATCH")
    outcome = connector.perform(allowed(action("update")))
    assert (short(outcome), outcome.retry_after_seconds) == (("error", "rate_limited", True), 45)
    assert servicenow.writes("state") == []


def test_a_server_error_is_asked_again_for_a_read_and_unknown_for_a_write(
    connector: Connector, servicenow: ServiceNow
) -> None:
    servicenow.plan("error_500", times=2)
    assert short(connector.perform(allowed(action("lookup")))) == ("error", "server_error", True)
    assert short(connector.perform(allowed(action("update")))) == ("unknown", "server_error", False)


def test_a_slow_write_is_unknown_and_it_did_happen(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.plan("slow", method="PATCH", seconds=1.5)
    outcome = connector.perform(allowed(action("update")))
    assert short(outcome) == ("unknown", "timeout", False)
    assert servicenow.writes("state") == ["2"]


def test_a_slow_read_is_asked_again(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.plan("slow", method="GET", seconds=1.5)
    assert short(connector.perform(allowed(action("lookup")))) == ("timeout", "timeout", True)


@pytest.mark.parametrize("fault", ["crash_before_answer", "drop_connection"])
def test_a_write_whose_answer_is_lost_is_unknown(connector: Connector, servicenow: ServiceNow, fault: str) -> None:
    servicenow.plan(fault, method="PATCH")
    outcome = connector.perform(allowed(action("update")))
    assert short(outcome) == ("unknown", "connection_lost", False)
    back(servicenow, fault)
    assert servicenow.writes("state") == ["2"]


@pytest.mark.parametrize("fault", ["crash_before_answer", "drop_connection"])
def test_a_read_whose_answer_is_lost_is_asked_again(connector: Connector, servicenow: ServiceNow, fault: str) -> None:
    servicenow.plan(fault, method="GET")
    assert short(connector.perform(allowed(action("lookup")))) == ("error", "connection_lost", True)
    back(servicenow, fault)


def test_an_instance_that_is_down_was_not_reached(connector: Connector, servicenow: ServiceNow) -> None:
    servicenow.plan("crash_before_answer", method="PATCH")
    connector.perform(allowed(action("update")))
    servicenow.wait_until_down()
    assert short(connector.perform(allowed(action("update")))) == ("error", "unreachable", True)
    servicenow.restart_if_down()
    assert servicenow.writes("state") == ["2"]


@pytest.mark.parametrize(
    "body", [b'{"result": []}', b'{"result": null}', b"[]", b'{"other": {}}', b'"x"', b'{"result": "INC"}']
)
def test_an_answer_without_a_record_says_nothing(place: Place, connector: Connector, body: bytes) -> None:
    with Hostile() as outside:
        place.base_url = outside.base_url
        outside.says = lambda it: it.answer(200, body)
        assert short(connector.perform(allowed(action("update")))) == ("unknown", "malformed_answer", False)
        assert short(connector.perform(allowed(action("lookup")))) == ("error", "malformed_answer", True)
        with pytest.raises(CannotLook) as caught:
            connector.observe(action("update"))
        assert caught.value.outcome.retryable
        assert connector.look(allowed(action("update", seen={"sys_mod_count": "0"}))) is None


def test_values_of_other_types_become_the_text_of_the_wire(place: Place, connector: Connector) -> None:
    with Hostile() as outside:
        place.base_url = outside.base_url
        body = b'{"result": {"number": 7, "state": null, "assignment_group": {"link": "x", "value": "g1"}, "priority": {}}}'
        outside.says = lambda it: it.answer(200, body)
        result = connector.perform(allowed(action("lookup"))).result
        assert (result["number"], result["state"], result["assignment_group"], result["priority"]) == (
            "7",
            "",
            "g1",
            "",
        )


# --- after a crash ----------------------------------------------------------------------------------------------------


def test_an_unchanged_version_proves_that_nothing_was_written(connector: Connector, servicenow: ServiceNow) -> None:
    seen = dict(connector.observe(action("update")))
    outcome = connector.look(allowed(action("update", seen=seen)))
    assert short(outcome) == ("rejected", "did_not_happen", True)


def test_equal_fields_prove_nothing(connector: Connector, servicenow: ServiceNow) -> None:
    """Somebody else may have set them: whether it was us is not known."""
    seen = dict(connector.observe(action("update")))
    servicenow.change(INCIDENT, {"state": "2"}, user="somebody.else")
    assert connector.look(allowed(action("update", seen=seen))) is None


def test_a_version_that_moved_proves_nothing_either(connector: Connector, servicenow: ServiceNow) -> None:
    """Other fields were changed and ours were not: ours may have been written and taken back."""
    seen = dict(connector.observe(action("update")))
    servicenow.change(INCIDENT, {"urgency": "1"})
    assert connector.look(allowed(action("update", seen=seen))) is None


def test_without_a_version_nothing_is_proved(connector: Connector) -> None:
    assert connector.look(allowed(action("update", seen={"state": "1"}))) is None
    assert connector.look(allowed(action("update", seen={"sys_mod_count": ""}))) is None


@pytest.mark.parametrize(
    "fault", [{"fault": "error_500"}, {"fault": "slow", "seconds": 2}, {"fault": "too_many_requests"}]
)
def test_a_look_that_fails_proves_nothing(connector: Connector, servicenow: ServiceNow, fault: dict[str, Any]) -> None:
    seen = dict(connector.observe(action("update")))
    servicenow.plan(**fault, method="GET")
    assert connector.look(allowed(action("update", seen=seen))) is None
