"""/v1: the same commands over strict JSON; every answer is what the OpenAPI document says it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from engine.limits import json_bytes_max
from governance.web.api import OPERATIONS
from tests.governance.web.kit import Api
from tests.governance.web.test_console import VALUE, high, unknown, waiting
from tests.kit.wait import until
from tests.kit.world import SAMPLE, World

Speak = Callable[[str], Api]


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    return client.get("/v1/openapi.json").json()


def conforms(document: dict[str, Any], name: str, answer: Any) -> None:
    """The answer is one that the document promises for this operation."""
    operation = next(one for path in document["paths"].values() for one in path.values() if one["operationId"] == name)
    promised = operation["responses"].get(str(answer.status_code))
    assert promised is not None, f"{name} does not promise {answer.status_code}"
    media = answer.headers["content-type"].partition(";")[0]
    assert media in promised["content"], (name, media)
    schema = {**promised["content"][media]["schema"], "components": document["components"]}
    if media.endswith("json"):
        faults = [str(fault) for fault in jsonschema_rs.Draft202012Validator(schema).iter_errors(answer.json())]
        assert not faults, (name, faults)


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_whole_and_has_every_route(document: dict[str, Any], application: Any) -> None:
    """Every reference leads somewhere, every schema is one, every address and method of /v1 is in it and no other."""
    assert document["openapi"] == "3.1.0"
    served = {
        (route.path, method) for route in application.routes if route.path.startswith("/v1") for method in route.methods - {"HEAD"}
    }  # fmt: skip
    written = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert served == written
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    text = json.dumps(document)
    assert "$defs" not in text
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("description"), f"{name} says what it is"
        if schema["type"] == "object" and name != "ProblemOut":
            assert schema["additionalProperties"] is False
    for ref in set(text.split('"$ref": "')[1:]):
        assert ref.partition('"')[0].removeprefix("#/components/schemas/") in document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_is_started_once_per_reference(world: World, api: Speak, document: dict[str, Any]) -> None:
    body = {"workflow": "incident-triage", "input": VALUE}
    first = api("rita").post("/v1/runs", body, **{"Idempotency-Key": "INC0010001/1"})
    conforms(document, "startRun", first)
    assert (first.status_code, first.json()["new"]) == (202, True)
    for again in (
        api("rita").post("/v1/runs", body, **{"Idempotency-Key": "INC0010001/1"}),
        api("ana").post("/v1/runs", {**body, "ref": "INC0010001/1"}),
    ):
        assert again.json() == {"run": first.json()["run"], "new": False}
    answer = api("rita").post("/v1/runs", {**body, "ref": "other"}, **{"Idempotency-Key": "INC0010001/1"})
    assert (answer.status_code, answer.json()["field"]) == (422, "ref")
    answer = api("rita").post("/v1/runs", body, **{"Idempotency-Key": "not a reference"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert len(api("rita").get("/v1/runs").json()["runs"]) == 1


def test_a_run_is_shown_with_why_it_waits(world: World, api: Speak, document: dict[str, Any]) -> None:
    run, approval = high(world)
    answer = api("ana").get(f"/v1/runs/{run}")
    conforms(document, "showRun", answer)
    found = answer.json()
    assert found["state"] == "waiting_approval"
    assert found["why"].startswith("“close” waits for 2 keys of different people, from ana, bo or cleo")
    assert found["approvals"][-1] == approval
    assert [step["step"] for step in found["steps"]] == ["look-up", "route", "raise", "close"]
    assert {one["sound"] for one in found["receipts"]} == {True}
    assert [v["effect"] for v in found["verdicts"]][-1] == "needs_approval"
    listed = api("ana").get("/v1/runs?state=waiting_approval&workflow=incident-triage")
    conforms(document, "listRuns", listed)
    assert [one["run"] for one in listed.json()["runs"]] == [run]
    journal = api("aud").get(f"/v1/journal/{run}")
    conforms(document, "runJournal", journal)
    rows = journal.json()["rows"]
    assert [e["sequence"] for row in rows for e in row["entries"]] == list(range(world.case(run).history.version))
    assert rows[-1]["head"] == world.case(run).history.head.hex()


def test_the_list_of_runs_turns_pages(world: World, api: Speak, monkeypatch: pytest.MonkeyPatch) -> None:
    from governance.web import api as module

    monkeypatch.setattr(module, "page_rows", 2)
    runs = [world.start(ref=f"page/{n}") for n in range(5)]
    seen, after = [], ""
    while True:
        page = api("ana").get(f"/v1/runs?after={after}").json()
        seen += [one["run"] for one in page["runs"]]
        if not (after := page["next"]):
            break
    assert seen == runs[::-1]
    for query in ("after=x", "state=nonsense", "colour=red", "state=queued&state=running"):
        answer = api("ana").get(f"/v1/runs?{query}")
        assert answer.status_code in (400, 422), query
        assert answer.json()["field"] in ("after", "state", "colour", "query")


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        (b"{", 400, "malformed_json", "line 1 column 2"),
        (b"", 400, "malformed_json", "line 1 column 1"),
        (b"\xff", 400, "malformed_json", "byte 0 is not UTF-8"),
        (b'{"workflow": "a", "workflow": "b", "input": {}}', 400, "malformed_json", "key 'workflow' stands twice"),
        (b'{"workflow": "a", "input": {"n": NaN}}', 400, "malformed_json", "NaN is not a number"),
        (b'{"workflow": "a", "input": {"n": 1.5}}', 400, "malformed_json", "1.5 is a fraction"),
        (b'{"workflow": "a", "input": {"n": 1e999}}', 400, "malformed_json", "is a fraction"),
        (b'{"workflow": "a", "input": ' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}", 400, "malformed_json", "nested deeper than 32"),
        (b'{"workflow": "a", "input": {"s": "\\ud800"}}', 400, "malformed_json", "lone surrogate"),
        (b'["workflow"]', 422, "invalid_body", "body: "),
        (b'{"workflow": "incident-triage"}', 422, "invalid_body", "input: Field required"),
        (b'{"workflow": 1, "input": {}}', 422, "invalid_body", "workflow: Input should be a valid string"),
        (b'{"workflow": "a", "input": {}, "as": "root"}', 422, "invalid_body", "as: Extra inputs are not permitted"),
        (b'{"workflow": "A B", "input": {}}', 422, "invalid_body", "workflow: "),
        (b'{"workflow": "nobody-wrote-it", "input": {}}', 404, "unknown_workflow", "has no active version"),
        (b'{"workflow": "incident-triage", "input": {}}', 422, "invalid_input", '"number" is a required property'),
        (b'{"workflow": "incident-triage", "input": {"Number": "x"}}', 422, "invalid_input", "Number"),
    ],
)  # fmt: skip
def test_a_body_that_does_not_fit_is_refused_with_its_field_and_what_to_do(
    still: World, client: TestClient, document: dict[str, Any], body: bytes, status: int, code: str, said: str
) -> None:
    answer = Api(client, still.token("rita")).post("/v1/runs", body)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), problem
    assert said in problem["detail"]
    assert problem["field"]
    assert problem["next_step"]
    assert problem["type"] == f"urn:twokeys:problem:{code}"
    conforms(document, "startRun", answer)
    assert still.rows("select run from run where tenant = :tenant") == []


def test_a_body_beyond_the_bound_or_of_another_type_is_refused(world: World, api: Speak) -> None:
    big = b'{"workflow": "incident-triage", "input": {"x": "' + b"x" * json_bytes_max + b'"}}'
    answer = api("rita").post("/v1/runs", big)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert str(json_bytes_max) in answer.json()["detail"]
    for given in ("text/plain", "", "application/x-www-form-urlencoded"):
        answer = api("rita").post("/v1/runs", b"{}", **{"Content-Type": given})
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
        assert answer.json()["next_step"] == "send application/json"


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("low", 403, "level"), ("aud", 403, "auditor"), ("dan", 403, "inactive"), ("ana", 202, "")],
)
def test_levels_hold_for_starting_runs(world: World, api: Speak, name: str, status: int, code: str) -> None:
    answer = api(name).post("/v1/runs", {"workflow": "incident-triage", "input": VALUE})
    assert answer.status_code == status
    assert answer.json().get("code", "") == code


def test_levels_hold_for_every_order(world: World, api: Speak, document: dict[str, Any]) -> None:
    """P11: what a level may not do in Slack or in the console it may not do here."""
    run, approval = waiting(world)
    digest = world.waiting(run).asked.action_digest.hex()[:16]
    orders: list[tuple[str, str, Any]] = [
        ("cancelRun", f"/v1/runs/{run}/cancel", {"reason": "x"}),
        ("resolveRun", f"/v1/runs/{run}/resolve", {"promise": "0", "how": "happened", "reason": "x"}),
        ("decideApproval", f"/v1/approvals/{approval}/decide", {"kind": "key", "digest16": digest}),
    ]
    for name in ("low", "aud", "dan"):
        for operation, path, body in orders:
            answer = api(name).post(path, body)
            assert answer.status_code == 403, (name, path, answer.text)
            conforms(document, operation, answer)
    for name in ("low", "aud", "ana"):
        answer = api(name).post("/v1/workflows", SAMPLE.read_bytes(), **{"Content-Type": "application/yaml"})
        assert answer.status_code == 403, "authors have level 5"
        conforms(document, "applyWorkflow", answer)
    assert world.case(run).state == "waiting_approval"


def test_a_run_is_cancelled_once(world: World, api: Speak, document: dict[str, Any]) -> None:
    run, _ = waiting(world)
    answer = api("ana").post(f"/v1/runs/{run}/cancel", {"reason": "not needed"})
    conforms(document, "cancelRun", answer)
    assert answer.json() == {"run": run, "state": "canceled"}
    again = api("ana").post(f"/v1/runs/{run}/cancel", {"reason": "not needed"})
    assert (again.status_code, again.json()["code"]) == (409, "ended")


def test_an_unknown_outcome_is_resolved(world: World, api: Speak, document: dict[str, Any]) -> None:
    run = unknown(world)
    promise = next(s["promise"] for s in api("bo").get(f"/v1/runs/{run}").json()["steps"] if s["state"] == "unknown")
    assert api("bo").get(f"/v1/runs/{run}").json()["state"] == "unknown"
    path, body = f"/v1/runs/{run}/resolve", {"promise": promise, "how": "happened", "reason": "I looked"}
    assert api("rita").post(path, body).json()["code"] == "lineage"
    assert api("bo").post(path, {**body, "how": "maybe"}).json()["field"] == "how"
    answer = api("bo").post(path, body)
    conforms(document, "resolveRun", answer)
    assert answer.json()["how"] == "happened"
    assert api("bo").post(path, body).json()["code"] == "not_unknown"


# --- approvals --------------------------------------------------------------------------------------------------------


def test_two_people_decide_by_the_api(world: World, api: Speak, document: dict[str, Any]) -> None:
    run, approval = high(world)
    listed = api("ana").get("/v1/approvals")
    conforms(document, "listApprovals", listed)
    assert [one["approval"] for one in listed.json()["approvals"]] == [approval]
    shown = api("ana").get(f"/v1/approvals/{approval}")
    conforms(document, "showApproval", shown)
    found = shown.json()
    assert (found["keys"], found["given"], found["holders"]) == (2, 0, ["ana", "bo", "cleo"])
    assert ["rita", "asked for this"] in found["excluded"]
    assert ["state", "2", "6"] in found["changes"]
    assert found["refused_to_you"] == ""
    assert "cannot hold a key" in api("rita").get(f"/v1/approvals/{approval}").json()["refused_to_you"]
    path, body = f"/v1/approvals/{approval}/decide", {"kind": "key", "digest16": found["digest16"], "reason": "fine"}
    answer = api("ana").post(path, body, **{"Idempotency-Key": "one"})
    conforms(document, "decideApproval", answer)
    assert (answer.json()["given"], answer.json()["needed"]) == (1, 2)
    assert api("ana").post(path, body, **{"Idempotency-Key": "one"}).json() == answer.json()
    again = api("ana").post(path, body)
    assert (again.status_code, again.json()["code"]) == (403, "same_person")
    assert "You already gave key 1" in again.json()["detail"]
    assert api("bo").post(path, body, **{"Idempotency-Key": "one"}).json()["status"] == "approved", "bo's own key"
    late = api("cleo").post(path, body)
    assert (late.status_code, late.json()["code"]) == (409, "decided")
    world.until(run, "succeeded")
    assert [v["via"] for v in api("ana").get(f"/v1/approvals/{approval}").json()["decisions"]] == ["api", "api"]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"digest16": "0" * 16}, 409, "stale_card"),
        ({"digest16": "x"}, 422, "invalid_body"),
        ({"kind": "shout"}, 422, "invalid_body"),
        ({"kind": "stop"}, 409, "not_approved"),
        ({"kind": "reject"}, 422, "reason_required"),
        ({"reason": "x" * 2001}, 422, "invalid_body"),
        ({"reason": "a\x00b"}, 422, "invalid_body"),
        ({"person": "ana"}, 422, "invalid_body"),
    ],
)
def test_a_decision_that_does_not_fit_changes_nothing(
    world: World, api: Speak, document: dict[str, Any], change: dict[str, str], status: int, code: str
) -> None:
    run, approval = waiting(world)
    body = {"kind": "key", "digest16": world.waiting(run).asked.action_digest.hex()[:16], **change}
    answer = api("ana").post(f"/v1/approvals/{approval}/decide", body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    conforms(document, "decideApproval", answer)
    assert world.case(run).state == "waiting_approval"


# --- workflows --------------------------------------------------------------------------------------------------------


def test_a_workflow_is_published_and_a_wrong_one_says_where(world: World, api: Speak, document: dict[str, Any]) -> None:
    text = SAMPLE.read_bytes()
    answer = api("rita").post("/v1/workflows", text, **{"Content-Type": "application/yaml"})
    conforms(document, "applyWorkflow", answer)
    assert (answer.json()["name"], answer.json()["state"]) == ("incident-triage", "active")
    wrong = text.replace(b"operation: lookup", b"operation: loookup").replace(b"connector: slack", b"connector: slakc")
    answer = api("rita").post("/v1/workflows", wrong, **{"Content-Type": "application/yaml"})
    conforms(document, "applyWorkflow", answer)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_definition")
    line = wrong[: wrong.index(b"loookup")].count(b"\n") + 1
    assert f"workflow.yaml:{line}:" in answer.json()["detail"]
    assert "slakc" in answer.json()["detail"], "all faults at once"
    big = b"# " + b"x" * 300_000
    assert api("rita").post("/v1/workflows", big, **{"Content-Type": "application/yaml"}).status_code == 413
    assert api("rita").post("/v1/workflows", text, **{"Content-Type": "text/plain"}).status_code == 415


# --- actions ----------------------------------------------------------------------------------------------------------


def note(world: World, **changes: Any) -> dict[str, Any]:
    return {
        "operation": "servicenow.update",
        "target": VALUE["sys_id"],
        "fields": {"work_notes": f"by {world.tenant}"},
        **changes,
    }


def test_an_agent_proposes_polls_and_reads_what_became_of_it(
    world: World, api: Speak, document: dict[str, Any]
) -> None:
    agent = api("olga")
    answer = agent.post("/v1/actions", note(world), **{"Idempotency-Key": "note/1"})
    conforms(document, "proposeAction", answer)
    assert (answer.status_code, answer.json()["state"], answer.json()["ended"]) == (202, "queued", False)
    action = answer.json()["action"]
    world.until(action, "succeeded")
    answer = agent.get(f"/v1/actions/{action}?wait_s=60")
    conforms(document, "showAction", answer)
    found = answer.json()
    assert (found["state"], found["effect"], found["receipt_status"]) == ("done", "allow", "ok")
    assert found["result"]["number"] == "INC0010001"
    again = agent.post("/v1/actions", note(world), **{"Idempotency-Key": "note/1"})
    assert (again.status_code, again.json()) == (202, found)
    other = agent.post("/v1/actions", note(world, fields={"work_notes": "else"}), **{"Idempotency-Key": "note/1"})
    conforms(document, "proposeAction", other)
    assert (other.status_code, other.json()["code"]) == (409, "key_used")


def test_a_request_may_wait_for_the_end_and_comes_back_when_it_is_there(world: World, api: Speak) -> None:
    agent = api("olga")
    with ThreadPoolExecutor(1) as pool:
        waiting_for = pool.submit(agent.post, "/v1/actions?wait_s=60", note(world), **{"Idempotency-Key": "note/2"})
        until(lambda: bool(world.rows("select 1 from run where tenant = :tenant")), 20)
        world.drain()
        assert waiting_for.result(30).json()["state"] == "done"


def test_an_action_that_waits_for_keys_names_the_page_where_they_are_given(world: World, api: Speak) -> None:
    answer = api("olga").post("/v1/actions", note(world, risk="med"), **{"Idempotency-Key": "note/3"})
    world.until(answer.json()["action"], "waiting_approval")
    found = api("olga").get(f"/v1/actions/{answer.json()['action']}?wait_s=1").json()
    assert (found["state"], found["keys_needed"], found["keys_given"]) == ("waiting_approval", 1, 0)
    assert found["approval_url"].endswith(f"/approvals/{found['approval']}")


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"operation": "servicenow"}, 422, "operation"), ({"operation": "servicenow.updat"}, 422, "operation"),
        ({"fields": {"nope": "x"}}, 422, "fields.nope"), ({"fields": {"work_notes": 5}}, 422, "fields.work_notes"),
        ({"target": "a b"}, 422, "target"), ({"risk": "none"}, 422, "risk"), ({"amount_minor": -1}, 422, "amount_minor"),
        ({"deadline_s": 0}, 422, "deadline_s"), ({"max_attempts": 5}, 422, "max_attempts"), ({"surprise": 1}, 422, "surprise"),
        ({"on_behalf_of": "nobody at all"}, 400, "person"),
    ],
)  # fmt: skip
def test_an_action_that_does_not_fit_is_refused_by_field(
    world: World, api: Speak, document: dict[str, Any], changes: dict[str, Any], status: int, field: str
) -> None:
    answer = api("olga").post("/v1/actions", note(world, **changes), **{"Idempotency-Key": "note/4"})
    conforms(document, "proposeAction", answer)
    assert answer.status_code == status
    assert field in answer.text
    assert world.rows("select 1 from run where tenant = :tenant") == []


def test_an_action_needs_a_key_and_a_workflows_run_is_none(world: World, api: Speak) -> None:
    answer = api("olga").post("/v1/actions", note(world))
    assert (answer.status_code, answer.json()["code"]) == (422, "missing_key")
    assert api("olga").get(f"/v1/actions/{world.start()}").json()["code"] == "unknown_action"


# --- what no database could hold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/runs/%00", "/v1/journal/a%00b", "/v1/approvals/%00", "/v1/runs?workflow=%00", "/v1/runs/%ff%fe", "/v1/runs/" + "9" * 5000]
)  # fmt: skip
def test_a_name_that_cannot_be_is_unknown_and_never_a_crash(client: TestClient, still: World, path: str) -> None:
    assert Api(client, still.token("ana")).get(path).status_code in (200, 404), path


# --- caps and workspaces ----------------------------------------------------------------------------------------------


def test_a_workspace_is_added_capped_and_started_in(world: World, api: Speak, document: dict[str, Any]) -> None:
    rita = api("rita")
    added = rita.post("/v1/workspaces", {"workspace": "emea", "name": "Europe"})
    conforms(document, "addWorkspace", added)
    assert (added.status_code, added.json()) == (201, {"workspace": "emea", "name": "Europe"})
    assert rita.post("/v1/workspaces", {"workspace": "emea"}).json()["code"] == "taken"
    listed = api("ana").get("/v1/workspaces")
    conforms(document, "listWorkspaces", listed)
    assert [one["workspace"] for one in listed.json()["workspaces"]] == ["emea", "main"]

    capped = rita.put("/v1/caps", {"workspace": "emea", "max_concurrency": 1, "weight": 3})
    conforms(document, "setCaps", capped)
    rita.put("/v1/caps", {"workspace": "emea", "max_runs_per_min": 9})
    shown = api("ana").get("/v1/caps")
    conforms(document, "showCaps", shown)
    (cap,) = [one for one in shown.json()["caps"] if one["scope"] == "workspace"]
    assert (cap["scope"], cap["of"], cap["weight"]) == ("workspace", "emea", 3)
    assert (cap["max_concurrency"], cap["max_runs_per_min"]) == (1, 9), "what is not named is left"
    gone = rita.put("/v1/caps", {"workspace": "emea", "max_concurrency": None})
    assert gone.json()["max_concurrency"] is None

    body = {"workflow": "incident-triage", "input": VALUE, "workspace": "emea"}
    run = rita.post("/v1/runs", body).json()["run"]
    (row,) = world.rows("select workspace from run where tenant = :tenant and run = :run", run=run)
    assert row["workspace"] == "emea"
    asked = {"operation": "servicenow.update", "target": "0" * 32, "fields": {"work_notes": "hello"}}
    key = {"Idempotency-Key": "one"}
    assert rita.post("/v1/actions", {**asked, "workspace": "emea"}, **key).status_code == 202
    assert rita.post("/v1/actions", asked, **key).json()["code"] == "key_used"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": "5"}, "max_concurrency"),
        ({"weight": -1}, "weight"),
        ({"workspace": "nowhere", "max_concurrency": 1}, "workspace"),
        ({"max_speed": 1}, "max_speed"),
    ],
)
def test_a_cap_that_is_none_names_its_field(world: World, api: Speak, body: dict[str, Any], field: str) -> None:
    before = api("rita").get("/v1/caps").json()
    answer = api("rita").put("/v1/caps", body)
    assert answer.json()["field"] == field
    assert 400 <= answer.status_code < 500
    assert api("rita").get("/v1/caps").json() == before


def test_only_an_owner_sets_caps_and_adds_workspaces(world: World, api: Speak) -> None:
    for answer in (api("ana").put("/v1/caps", {"weight": 2}), api("ana").post("/v1/workspaces", {"workspace": "x"})):
        assert (answer.status_code, answer.json()["code"]) == (403, "level")


def test_nothing_starts_in_a_workspace_that_is_not_there(world: World, api: Speak) -> None:
    body = {"workflow": "incident-triage", "input": VALUE, "workspace": "nowhere"}
    answer = api("rita").post("/v1/runs", body)
    assert (answer.json()["code"], answer.json()["field"]) == ("unknown_workspace", "workspace")
    assert "main" in answer.json()["next_step"]
