"""The ServiceNow stand-in answers as the Table API does, forgets nothing, and fails exactly as it was asked to."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from pathlib import Path

import pytest

from governance.local.children import PACKAGE_ROOT
from tests.kit.servicenow import GROUP, INCIDENT, ServiceNow

RECORD = f"/api/now/table/incident/{INCIDENT}"


def test_a_record_is_found_by_its_id_and_by_its_number(servicenow: ServiceNow) -> None:
    record = servicenow.record()
    assert (record["sys_id"], record["number"], record["sys_mod_count"]) == (INCIDENT, "INC0010001", "0")
    query = "/api/now/table/incident?sysparm_query=number=INC0010001^state=1&sysparm_limit=1"
    status, headers, answer = servicenow.request("GET", query)
    assert (status, headers["x-total-count"]) == (200, "1")
    assert answer["result"] == [record]


def test_only_the_fields_asked_for_come_back(servicenow: ServiceNow) -> None:
    answer = servicenow.call("GET", f"{RECORD}?sysparm_fields=number,sys_mod_count")
    assert answer == {"result": {"number": "INC0010001", "sys_mod_count": "0"}}


def test_an_unknown_record_and_a_stranger_are_refused_in_servicenows_words(servicenow: ServiceNow) -> None:
    status, _, answer = servicenow.request("GET", "/api/now/table/incident/" + "0" * 32)
    assert (status, answer["status"], answer["error"]["message"]) == (404, "failure", "No Record found")
    status, headers, answer = servicenow.request("GET", RECORD, password="wrong")
    assert (status, answer["error"]["message"]) == (401, "User Not Authenticated")
    assert headers["www-authenticate"].startswith("BASIC")
    assert servicenow.request("GET", "/_control/changes", password="wrong")[0] == 401
    assert servicenow.request("GET", "/api/now/table/cmdb_ci")[0] == 400
    assert servicenow.request("DELETE", RECORD)[0] == 405


def test_a_write_counts_the_version_and_enters_the_change_log(servicenow: ServiceNow) -> None:
    answer = servicenow.call("PATCH", RECORD, {"assignment_group": GROUP, "work_notes": "looked", "no_such": "x"})
    record = answer["result"]
    assert (record["sys_mod_count"], record["sys_updated_by"]) == ("1", "twokeys")
    assert record["assignment_group"] == {"link": f"/api/now/table/sys_user_group/{GROUP}", "value": GROUP}
    assert record["work_notes"] == ""  # journal fields are write-only in the record
    assert "no_such" not in record
    bare = servicenow.call("GET", f"{RECORD}?sysparm_exclude_reference_link=true")["result"]
    assert bare["assignment_group"] == GROUP
    entries = servicenow.call("GET", f"/api/now/table/sys_journal_field?sysparm_query=element_id={INCIDENT}")["result"]
    assert [(entry["element"], entry["value"], entry["sys_created_by"]) for entry in entries] == [
        ("work_notes", "looked", "twokeys")
    ]
    assert servicenow.writes("assignment_group") == [GROUP]


def test_a_write_that_changes_nothing_leaves_no_trace(servicenow: ServiceNow) -> None:
    servicenow.call("PATCH", RECORD, {"state": "1"})
    assert servicenow.record()["sys_mod_count"] == "0"
    assert servicenow.writes("state") == []


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"state": {"deep": 1}}', b""])
def test_a_body_that_is_no_record_is_refused_and_changes_nothing(servicenow: ServiceNow, body: bytes) -> None:
    status, _, answer = servicenow.request("PATCH", RECORD, body)
    assert (status, answer["status"]) == (400, "failure")
    assert servicenow.record()["sys_mod_count"] == "0"


def test_somebody_elses_change_is_told_apart_from_ours(servicenow: ServiceNow) -> None:
    servicenow.change(INCIDENT, {"state": "6"})
    assert servicenow.record()["sys_updated_by"] == "somebody.else"
    assert (servicenow.writes("state"), servicenow.writes("state", "somebody.else")) == ([], ["6"])


def test_crash_before_answer_commits_the_write_and_ends_the_process(servicenow: ServiceNow) -> None:
    servicenow.plan("crash_before_answer")
    port = servicenow.port
    assert servicenow.request("GET", RECORD)[0] == 200  # a read does not spend a fault meant for a write
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        servicenow.request("PATCH", RECORD, {"state": "6"})
    servicenow.wait_until_down()
    servicenow.restart_if_down()
    assert servicenow.port == port
    assert servicenow.record()["state"] == "6"
    assert servicenow.writes("state") == ["6"]
    assert servicenow.call("PATCH", RECORD, {"state": "7"})["result"]["state"] == "7"


def test_a_dropped_connection_commits_the_write_and_the_server_stays(servicenow: ServiceNow) -> None:
    servicenow.plan("drop_connection")
    with pytest.raises(http.client.RemoteDisconnected):
        servicenow.request("PATCH", RECORD, {"state": "6"})
    assert servicenow.is_up()
    assert servicenow.writes("state") == ["6"]


def test_a_refused_request_writes_nothing(servicenow: ServiceNow) -> None:
    servicenow.plan("error_500", method="PATCH")
    servicenow.plan("too_many_requests", method="PATCH", seconds=7)
    assert servicenow.request("PATCH", RECORD, {"state": "6"})[0] == 500
    status, headers, _ = servicenow.request("PATCH", RECORD, {"state": "6"})
    assert (status, headers["retry-after"]) == (429, "7")
    assert servicenow.writes("state") == []
    assert servicenow.request("PATCH", RECORD, {"state": "6"})[0] == 200


def test_slow_answers_late_and_only_as_often_as_asked(servicenow: ServiceNow) -> None:
    servicenow.plan("slow", seconds=0.3, times=1)
    begun = time.monotonic()
    servicenow.record()
    assert time.monotonic() - begun >= 0.3
    assert servicenow.call("GET", "/_control/faults")["result"] == []


def test_an_unknown_fault_is_refused(servicenow: ServiceNow) -> None:
    status, _, answer = servicenow.request("POST", "/_control/faults", {"fault": "explode"})
    assert (status, "crash_before_answer" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("module", ["governance.local.servicenow", "governance.local.desk"])
@pytest.mark.parametrize("config", ['{"environment": "production"}', "{}", "[]", "{"])
def test_a_stand_in_refuses_to_run_in_production(tmp_path: Path, module: str, config: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", module, str(file)],
        env={"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "config" in done.stderr
    assert "Traceback" not in done.stderr
